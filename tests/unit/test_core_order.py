"""Order of checks in creating, loading and transfers (docs/accelerator.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.fake_device import SLOT_BYTES, Bench, FakeLowered, buffer
from harness.violations import (
    POISONED,
    Violation,
    World,
    check,
    fail,
    ids,
    pairs,
)
from tosavk.core.buffers import Buffer
from tosavk.core.descriptors import (
    AccessMode,
    Artifact,
    Binding,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    BufferRange,
    BufferUsage,
    ContextDesc,
    ContextFlags,
    MemoryDomain,
    QueueDesc,
    QueueFlags,
)
from tosavk.core.errors import (
    Busy,
    External,
    Incompatible,
    InvalidArgument,
    ModelError,
    OutOfBounds,
    OutOfMemory,
    PermissionDenied,
    Released,
    ResourceLimit,
    Unsupported,
)

# ---- create_context ------------------------------------------------------------------

CREATE_CONTEXT = [
    Violation(
        "closed", Released, "close", lambda w: w.late.append(w.bench.accelerator.close)
    ),
    Violation("flag", Unsupported, "flags", lambda w: setattr(w, "flags", 1)),
    POISONED,
    Violation(
        "cap",
        ResourceLimit,
        "max_contexts",
        lambda w: w.keep.extend(w.bench.accelerator.create_context() for _ in range(2)),
    ),
    Violation(
        "ids",
        ResourceLimit,
        "numbers",
        lambda w: w.late.append(
            lambda: setattr(w.bench.accelerator._shared, "next_id", 2**64)  # pyright: ignore[reportPrivateUsage]
        ),
    ),
    Violation("device", External, "raw", fail("create_kit")),
]


@pytest.mark.parametrize("violated", pairs(CREATE_CONTEXT), ids=ids)
def test_create_context(violated: tuple[Violation, ...]) -> None:
    # Closing ends the contexts, so the counts are taken after it.
    check(
        violated,
        lambda w: w.bench.accelerator.create_context(
            ContextDesc(ContextFlags(w.flags))
        ),
    )


# ---- allocate_buffer -----------------------------------------------------------------

ALLOCATE = [
    Violation(
        "released", Released, "Context", lambda w: w.late.append(w.bench.context.close)
    ),
    Violation(
        "size",
        ResourceLimit,
        "max_buffer_bytes",
        lambda w: setattr(w, "nbytes", 1 << 17),
    ),
    Violation(
        "domain",
        Unsupported,
        "SHARED",
        lambda w: setattr(w, "domain", MemoryDomain.SHARED),
    ),
    POISONED,
    Violation(
        "cap",
        ResourceLimit,
        "max_buffers_per_context",
        lambda w: w.keep.extend(buffer(w.bench.context) for _ in range(80)),
    ),
    Violation("device", External, "raw", fail("allocate")),
    Violation(
        "aligned",
        ResourceLimit,
        "aligned to 2 bytes",
        lambda w: w.late.append(
            lambda: setattr(
                w.bench.device, "next_info", BufferInfo(1 << 20, 2, BufferProperties(7))
            )
        ),
    ),
    Violation(
        "honesty",
        Incompatible,
        "allocated 1 of",
        lambda w: w.late.append(
            lambda: setattr(
                w.bench.device,
                "next_info",
                w.bench.device.next_info or BufferInfo(1, 256, BufferProperties(7)),
            )
        ),
    ),
]


@pytest.mark.parametrize("violated", pairs(ALLOCATE), ids=ids)
def test_allocate_buffer(violated: tuple[Violation, ...]) -> None:
    check(
        violated,
        lambda w: w.bench.context.allocate_buffer(
            BufferDesc(w.nbytes, w.usage, domain=w.domain, alignment=w.alignment)
        ),
    )


@pytest.mark.parametrize(
    "info",
    [
        BufferInfo(1 << 20, 2, BufferProperties(7)),
        BufferInfo(1, 256, BufferProperties(7)),
    ],
)
def test_refused_allocation_is_freed(info: BufferInfo) -> None:
    bench = Bench()
    bench.device.next_info = info
    with pytest.raises(ModelError):
        buffer(bench.context)
    assert bench.device.live["allocation"] == 0


# ---- load_program --------------------------------------------------------------------


class LengthOnly:
    """A source that knows its length but cannot be read."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def read_at(self, offset: int, out: memoryview) -> None:
        raise OutOfBounds("this source cannot be read")


def _huge(world: World) -> None:
    world.payload = LengthOnly((256 << 20) + 1)


def _unreadable(world: World) -> None:
    world.payload = (
        world.payload if isinstance(world.payload, LengthOnly) else LengthOnly(8)
    )


LOAD_ARTIFACT = [
    Violation(
        "released", Released, "Context", lambda w: w.late.append(w.bench.context.close)
    ),
    Violation("size", ResourceLimit, "max_artifact_bytes", _huge),
    Violation(
        "resident",
        ResourceLimit,
        "resident_bytes",
        lambda w: setattr(w, "resident", 2**64 - 2),
    ),
    POISONED,
    Violation(
        "cap",
        ResourceLimit,
        "max_programs_per_context",
        lambda w: w.keep.extend(
            w.bench.context.load_program(FakeLowered()) for _ in range(2)
        ),
    ),
    Violation("gather", OutOfBounds, "cannot be read", _unreadable),
    Violation("format", Unsupported, "format", lambda w: setattr(w, "format", 0x1234)),
    Violation("lowering", External, "raw", fail("lower")),
    Violation(
        "device",
        OutOfMemory,
        "load",
        fail("load", OutOfMemory("load")),
    ),
]


@pytest.mark.parametrize(
    "violated",
    pairs(LOAD_ARTIFACT),
    ids=ids,
)
def test_load_artifact(violated: tuple[Violation, ...]) -> None:
    check(
        violated,
        lambda w: w.bench.context.load_program(
            Artifact(w.format, (0,) * 12, w.payload, w.resident)  # type: ignore[arg-type]
        ),
    )


LOAD_LOWERED = [
    LOAD_ARTIFACT[0],
    POISONED,
    LOAD_ARTIFACT[4],
    Violation(
        "slots",
        ResourceLimit,
        "max_bindings_per_submission",
        lambda w: setattr(w, "lowered", FakeLowered(4, 1)),
    ),
    LOAD_ARTIFACT[8],
]


@pytest.mark.parametrize("violated", pairs(LOAD_LOWERED), ids=ids)
def test_load_lowered(violated: tuple[Violation, ...]) -> None:
    check(violated, lambda w: w.bench.context.load_program(w.lowered or FakeLowered()))


# ---- create_queue --------------------------------------------------------------------

CREATE_QUEUE = [
    Violation(
        "released", Released, "Context", lambda w: w.late.append(w.bench.context.close)
    ),
    Violation("flag", Unsupported, "flags", lambda w: setattr(w, "flags", 1)),
    POISONED,
    Violation(
        "cap",
        ResourceLimit,
        "max_queues_per_context",
        lambda w: w.keep.append(w.bench.context.create_queue()),
    ),
]


@pytest.mark.parametrize("violated", pairs(CREATE_QUEUE), ids=ids)
def test_create_queue(violated: tuple[Violation, ...]) -> None:
    check(
        violated, lambda w: w.bench.context.create_queue(QueueDesc(QueueFlags(w.flags)))
    )


# ---- transfers -----------------------------------------------------------------------


def _transfer_order(call: str) -> list[Violation]:
    return [
        Violation(
            "released", Released, "Buffer", lambda w: setattr(w, "exhaust", True)
        ),
        Violation(
            "usage",
            PermissionDenied,
            "TRANSFER_",
            lambda w: setattr(w, "usage", BufferUsage.MUTABLE_STATE),
        ),
        Violation(
            "busy", Busy, "unobserved", lambda w: setattr(w, "busy_buffer", True)
        ),
        POISONED,
        Violation(
            "empty", InvalidArgument, "at least one", lambda w: setattr(w, "length", 0)
        ),
        Violation("bounds", OutOfBounds, "leave", lambda w: setattr(w, "offset", 65)),
        Violation("device", External, "raw", fail(call)),
    ]


def _transfer(
    violated: tuple[Violation, ...], act: Callable[[Buffer, World], object]
) -> None:
    world = World()
    for violation in violated:
        violation.apply(world)
    bench = world.bench
    target = bench.context.allocate_buffer(BufferDesc(64, world.usage))
    target_bindings = bench.bindings()
    target_bindings[0] = Binding(0, target, BufferRange(0, SLOT_BYTES), AccessMode.READ)
    if world.busy_buffer:
        world.keep.append(bench.queue.submit(bench.program, target_bindings))
    if world.exhaust:
        # In flight it cannot be released, but it ends with its context.
        bench.context.close() if world.busy_buffer else target.release()
    for late in world.late:
        late()
    with pytest.raises(violated[0].error, match=violated[0].match) as caught:
        act(target, world)
    assert type(caught.value) is violated[0].error
    assert bench.accelerator.explicit_transfer_bytes == 0


@pytest.mark.parametrize("violated", pairs(_transfer_order("write")), ids=ids)
def test_write(violated: tuple[Violation, ...]) -> None:
    _transfer(violated, lambda b, w: b.write(w.offset, bytes(w.length)))


@pytest.mark.parametrize("violated", pairs(_transfer_order("read")), ids=ids)
def test_read_into(violated: tuple[Violation, ...]) -> None:
    _transfer(violated, lambda b, w: b.read_into(w.offset, bytearray(w.length)))


@pytest.mark.parametrize("violated", pairs(_transfer_order("read")[:-1]), ids=ids)
def test_read(violated: tuple[Violation, ...]) -> None:
    _transfer(violated, lambda b, w: b.read(w.offset, w.length))
