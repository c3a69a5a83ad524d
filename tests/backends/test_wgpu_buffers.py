"""Buffers of the wgpu backend: every byte, in every domain."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.kernels import ALL, noise
from tosavk.backends.wgpu import buffers, open_device
from tosavk.backends.wgpu.device import Kit, WgpuDevice, WgpuOptions
from tosavk.core.checks import check_buffer_info
from tosavk.core.descriptors import (
    BufferDesc,
    BufferProperties,
    Capabilities,
    MemoryDomain,
)
from tosavk.core.errors import ModelError, ResourceLimit, Unsupported

DOMAINS = pytest.mark.parametrize("domain", MemoryDomain, ids=lambda d: d.name)


def selector(spec: str) -> str | None:
    return spec.partition(":")[2] or None


@pytest.fixture(scope="module")
def opened(wgpu_device: str) -> Iterator[WgpuDevice]:
    device = open_device(selector(wgpu_device))
    yield device
    device.wait_idle()
    device.close()


@pytest.fixture(scope="module")
def kit(opened: WgpuDevice) -> Kit:
    return opened.create_kit()


def desc(nbytes: int, domain: MemoryDomain, *, alignment: int = 4) -> BufferDesc:
    return BufferDesc(nbytes=nbytes, usage=ALL, domain=domain, alignment=alignment)


def needs(device: WgpuDevice, domain: MemoryDomain) -> None:
    if domain not in device.info.domains:
        pytest.skip(f"{device.name} does not advertise {domain.name}")


def content(allocation: buffers.Allocation, nbytes: int) -> NDArray[np.uint8]:
    out = bytearray(nbytes)
    allocation.read(0, memoryview(out))
    return np.frombuffer(bytes(out), np.uint8)


@DOMAINS
def test_a_new_buffer_is_zero_and_described(
    opened: WgpuDevice, kit: Kit, domain: MemoryDomain
) -> None:
    needs(opened, domain)
    request = desc(1021, domain, alignment=64)
    made = kit.allocate(request)
    check_buffer_info(request, made.info)
    assert made.info.allocation_bytes == 1024
    assert made.info.properties & BufferProperties.DIRECT_BINDING
    assert made.mapped is None
    assert not content(made, 1021).any()
    made.free()
    made.free()


@DOMAINS
def test_every_offset_and_length(
    opened: WgpuDevice, kit: Kit, domain: MemoryDomain
) -> None:
    needs(opened, domain)
    nbytes = 23
    made = kit.allocate(desc(nbytes, domain))
    expected = noise(nbytes, 1)
    made.write(0, expected.data)
    assert np.array_equal(content(made, nbytes), expected)
    for offset in range(nbytes):
        for length in (1, 2, 3, 5, 8, 11):
            if offset + length > nbytes:
                continue
            piece = noise(length, 100 * offset + length)
            expected[offset : offset + length] = piece
            made.write(offset, piece.data)
            out = bytearray(length)
            made.read(offset, memoryview(out))
            assert bytes(out) == piece.tobytes(), (offset, length)
    assert np.array_equal(content(made, nbytes), expected)
    made.free()


@DOMAINS
def test_transfers_in_pieces(
    opened: WgpuDevice,
    kit: Kit,
    domain: MemoryDomain,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs(opened, domain)
    monkeypatch.setattr(buffers, "_CHUNK", 64)
    made = kit.allocate(desc(1009, domain))
    expected = noise(1009, 7)
    made.write(0, expected.data)
    middle = noise(333, 8)
    made.write(211, middle.data)
    expected[211 : 211 + 333] = middle
    assert np.array_equal(content(made, 1009), expected)
    part = bytearray(500)
    made.read(3, memoryview(part))
    assert bytes(part) == expected[3:503].tobytes()
    made.free()


def test_read_only_sources_are_fine(kit: Kit) -> None:
    made = kit.allocate(desc(12, MemoryDomain.DEVICE))
    made.write(0, memoryview(b"hello, world"))
    made.write(7, memoryview(b"there"))
    assert content(made, 12).tobytes() == b"hello, there"
    made.free()


def test_a_large_buffer(kit: Kit) -> None:
    nbytes = (33 << 20) + 5
    made = kit.allocate(desc(nbytes, MemoryDomain.DEVICE))
    expected = noise(nbytes, 3)
    made.write(0, expected.data)
    assert np.array_equal(content(made, nbytes), expected)
    made.free()


def test_too_large_and_too_aligned_are_refused(opened: WgpuDevice, kit: Kit) -> None:
    with pytest.raises(ResourceLimit, match="512"):
        kit.allocate(desc(4, MemoryDomain.DEVICE, alignment=512))
    with pytest.raises(ModelError, match="maximum buffer size"):
        kit.allocate(desc(1 << 40, MemoryDomain.DEVICE))
    assert not opened.poisoned


def test_without_the_feature_only_device_memory(wgpu_device: str) -> None:
    options = WgpuOptions(mappable_primary=False)
    plain = open_device(selector(wgpu_device), options=options)
    try:
        assert plain.info.domains == (MemoryDomain.DEVICE,)
        assert plain.info.capabilities == Capabilities.DEVICE_LOCAL_MEMORY
        kit = plain.create_kit()
        with pytest.raises(Unsupported, match="HOST"):
            kit.allocate(desc(4, MemoryDomain.HOST))
        made = kit.allocate(desc(4, MemoryDomain.DEVICE))
        made.write(0, memoryview(b"four"))
        assert content(made, 4).tobytes() == b"four"
        made.free()
    finally:
        plain.close()
