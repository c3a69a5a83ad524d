"""Descriptors: what constructors refuse, and the device-side checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tosavk.core.checks import (
    DeviceInfoError,
    DeviceInfoFault,
    check_buffer_info,
    validate_buffer_desc,
    validate_device_info,
)
from tosavk.core.descriptors import (
    FORMAT_NVFP4,
    FORMAT_TOSA,
    RESIDENT_UNBOUNDED,
    USAGE_ALL,
    AccessMode,
    Artifact,
    Binding,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    BufferRange,
    BufferUsage,
    Capabilities,
    DeviceClass,
    DeviceIdentity,
    DeviceInfo,
    DeviceLimits,
    MemoryDomain,
    Timeout,
)
from tosavk.core.errors import (
    Incompatible,
    InvalidArgument,
    ModelError,
    OutOfBounds,
    ResourceLimit,
    Unsupported,
)

U64 = 2**64 - 1
LIMITS = DeviceLimits(max_buffer_bytes=1024)
HOST = Capabilities.HOST_VISIBLE_MEMORY


def wrong(value: object) -> Any:  # noqa: ANN401
    """A value of a type that the checker would refuse."""
    return value


def info(
    capabilities: Capabilities = HOST, limits: DeviceLimits = LIMITS
) -> DeviceInfo:
    return DeviceInfo(DeviceIdentity(bytes(16)), limits, capabilities)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        # Every condition that is listed earlier wins over those below it.
        (lambda: BufferDesc(0, BufferUsage(0), alignment=3), InvalidArgument, "byte"),
        (lambda: BufferDesc(1, BufferUsage(0), alignment=0), InvalidArgument, "power"),
        (lambda: BufferDesc(1, BufferUsage(0), alignment=6), InvalidArgument, "power"),
        (lambda: BufferDesc(1, BufferUsage(0)), InvalidArgument, "usage"),
        (lambda: BufferDesc(1, BufferUsage(33)), InvalidArgument, "unknown bits 0x20"),
        (lambda: BufferDesc(-1, USAGE_ALL), InvalidArgument, "buffer bytes"),
        (lambda: BufferDesc(2**64, USAGE_ALL), InvalidArgument, "buffer bytes"),
        (lambda: BufferDesc(wrong(1.0), USAGE_ALL), InvalidArgument, "float"),
        (
            lambda: BufferDesc(1, USAGE_ALL, domain=wrong(4)),
            InvalidArgument,
            "domain 4",
        ),
        (lambda: BufferRange(U64, 0), InvalidArgument, "at least one"),
        (lambda: BufferRange(U64, 1), OutOfBounds, "64 bits"),
        (lambda: BufferRange(-1, 1), InvalidArgument, "offset"),
        (lambda: BufferRange(0, -1), InvalidArgument, "range bytes"),
        (lambda: Timeout(0), InvalidArgument, "0 ns"),
        (lambda: Timeout(-1), InvalidArgument, "timeout"),
        (lambda: DeviceIdentity(b"short"), InvalidArgument, "16 bytes"),
        (lambda: Artifact(0, (0,) * 12, b""), InvalidArgument, "format"),
        (lambda: Artifact(2**32, (0,) * 12, b""), InvalidArgument, "format"),
        (lambda: Artifact(1, (0,) * 11, b""), InvalidArgument, "12 words"),
        (lambda: Artifact(1, (2**32,) * 12, b""), InvalidArgument, "target word"),
        (lambda: Artifact(1, (0,) * 12, b"", -1), InvalidArgument, "resident"),
        (
            lambda: Binding(-1, wrong(object()), BufferRange(0, 1), AccessMode.READ),
            InvalidArgument,
            "slot",
        ),
        (
            lambda: Binding(0, wrong(object()), BufferRange(0, 1), wrong(4)),
            InvalidArgument,
            "access 4",
        ),
    ],
)
def test_constructors_refuse(
    make: Callable[[], object], error: type[ModelError], match: str
) -> None:
    with pytest.raises(error, match=match) as caught:
        make()
    assert type(caught.value) is error


def test_numbers_of_numpy_become_plain() -> None:
    desc = BufferDesc(
        np.int64(8),  # type: ignore[arg-type]
        BufferUsage(1),
        alignment=np.uint8(128),  # type: ignore[arg-type]
    )
    assert type(desc.nbytes) is int
    assert type(desc.alignment) is int
    # In NumPy's own arithmetic these would wrap around.
    extent = BufferRange(np.uint8(200), np.uint8(100))  # type: ignore[arg-type]
    assert extent.end == 300


def test_codes_are_those_of_the_model() -> None:
    assert (FORMAT_TOSA, FORMAT_NVFP4) == (0x544F5341, 0x564E4634)
    assert FORMAT_TOSA.to_bytes(4, "big") == b"TOSA"
    assert FORMAT_NVFP4.to_bytes(4, "big") == b"VNF4"
    assert RESIDENT_UNBOUNDED == U64
    assert [int(d) for d in MemoryDomain] == [1, 2, 3]
    assert [int(u) for u in BufferUsage] == [1, 2, 4, 8, 16]
    assert [int(p) for p in BufferProperties] == [1, 2, 4]
    assert [int(a) for a in AccessMode] == [1, 2, 3]
    assert [int(c) for c in Capabilities] == [1, 2, 4, 8, 16, 32]
    assert [int(c) for c in DeviceClass] == [0, 1, 2, 3]


def test_unknown_device_class_stays_representable() -> None:
    assert DeviceClass(77) == 77
    assert DeviceClass(77).name == "UNKNOWN_77"
    with pytest.raises(ValueError, match="65536"):
        DeviceClass(65536)


@pytest.mark.parametrize("usage", range(1, 32))
def test_usage_allows(usage: int) -> None:
    held = BufferUsage(usage)
    mutable = bool(usage & 16)
    assert held.allows(AccessMode.READ) == (bool(usage & 4) or mutable)
    assert held.allows(AccessMode.WRITE) == (bool(usage & 8) or mutable)
    assert held.allows(AccessMode.READ_WRITE) == mutable


def test_timeout_of_the_wire() -> None:
    assert not Timeout.from_wire(0).is_finite
    assert Timeout.from_wire(7).nanoseconds == 7
    assert not Timeout().is_finite


def test_artifact_length_is_known_without_reading() -> None:
    assert Artifact(1, (0,) * 12, b"abc").payload_bytes == 3
    wide = memoryview(bytearray(8)).cast("I")
    assert Artifact(1, (0,) * 12, wide).payload_bytes == 8
    assert bytes(Artifact(1, (0,) * 12, wide).view()) == bytes(8)


def test_good_device_info_passes() -> None:
    validate_device_info(info())
    validate_device_info(info(HOST | Capabilities(1 << 40)))


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (info(HOST | Capabilities.EXTERNAL_MEMORY), "RESERVED_CAPABILITIES"),
        (info(Capabilities.SECURE_CONTEXTS), "RESERVED_CAPABILITIES"),
        (info(Capabilities.EVENT_CANCELLATION), "MISSING_MEMORY_DOMAIN"),
        (
            info(Capabilities(0), DeviceLimits(max_buffer_bytes=0)),
            "MISSING_MEMORY_DOMAIN",
        ),
        (info(limits=DeviceLimits(max_buffer_bytes=0)), "ZERO_LIMIT"),
        *(
            (info(limits=DeviceLimits(max_buffer_bytes=1, **{name: 0})), "ZERO_LIMIT")
            for name in (
                "max_contexts",
                "max_buffers_per_context",
                "max_programs_per_context",
                "max_queues_per_context",
                "max_events_per_context",
                "max_bindings_per_submission",
                "max_artifact_bytes",
            )
        ),
    ],
)
def test_bad_device_info(bad: DeviceInfo, fault: str) -> None:
    with pytest.raises(DeviceInfoError) as caught:
        validate_device_info(bad)
    assert caught.value.fault is DeviceInfoFault[fault]


def test_buffer_request_against_device() -> None:
    with pytest.raises(ResourceLimit, match="1025"):
        validate_buffer_desc(
            info(), BufferDesc(1025, USAGE_ALL, domain=MemoryDomain.DEVICE)
        )
    with pytest.raises(Unsupported, match=r"DEVICE.*offers HOST"):
        validate_buffer_desc(
            info(), BufferDesc(1024, USAGE_ALL, domain=MemoryDomain.DEVICE)
        )
    validate_buffer_desc(info(), BufferDesc(1024, USAGE_ALL))


P = BufferProperties
TRANSFER = BufferUsage.TRANSFER_SOURCE
HONEST = P.HOST_VISIBLE | P.DEVICE_LOCAL | P.DIRECT_BINDING


@pytest.mark.parametrize(
    ("domain", "usage", "told", "error"),
    [
        (1, USAGE_ALL, BufferInfo(0, 0, P(64)), InvalidArgument),
        (1, USAGE_ALL, BufferInfo(64, 0, HONEST), InvalidArgument),
        (1, USAGE_ALL, BufferInfo(1, 1, P(8)), InvalidArgument),
        (1, USAGE_ALL, BufferInfo(63, 16, HONEST), Incompatible),
        (1, USAGE_ALL, BufferInfo(64, 24, HONEST), Incompatible),
        (1, USAGE_ALL, BufferInfo(64, 8, HONEST), Incompatible),
        (1, TRANSFER, BufferInfo(64, 16, P.DEVICE_LOCAL), Incompatible),
        (2, TRANSFER, BufferInfo(64, 16, P.HOST_VISIBLE), Incompatible),
        (3, TRANSFER, BufferInfo(64, 16, P.HOST_VISIBLE), Incompatible),
        (3, TRANSFER, BufferInfo(64, 16, P.DIRECT_BINDING), Incompatible),
        (1, BufferUsage(4), BufferInfo(64, 16, P.HOST_VISIBLE), Incompatible),
        (1, BufferUsage(8), BufferInfo(64, 16, P.HOST_VISIBLE), Incompatible),
        (1, BufferUsage(16), BufferInfo(64, 16, P.HOST_VISIBLE), Incompatible),
        (1, TRANSFER, BufferInfo(64, 16, P.HOST_VISIBLE), None),
        (2, TRANSFER, BufferInfo(64, 16, P.DEVICE_LOCAL), None),
        (3, TRANSFER, BufferInfo(64, 16, P.HOST_VISIBLE | P.DIRECT_BINDING), None),
        (2, USAGE_ALL, BufferInfo(4096, 4096, HONEST), None),
    ],
)
def test_honesty(
    domain: int, usage: BufferUsage, told: BufferInfo, error: type[ModelError] | None
) -> None:
    desc = BufferDesc(64, usage, domain=MemoryDomain(domain), alignment=16)
    if error is None:
        check_buffer_info(desc, told)
    else:
        with pytest.raises(error) as caught:
            check_buffer_info(desc, told)
        assert type(caught.value) is error
