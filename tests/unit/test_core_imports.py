"""Import of host memory: order of checks, life of the memory, aligned arrays."""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from harness.fake_device import Bench, FakeDevice, bindings
from tosavk.core.buffers import Buffer
from tosavk.core.descriptors import (
    USAGE_ALL,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    Capabilities,
    DeviceLimits,
    EventState,
    MemoryDomain,
)
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    Error,
    Incompatible,
    InvalidArgument,
    OutOfMemory,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.imports import address_of, aligned_array
from tosavk.core.ports import byte_view

ALIGNMENT = 64
PAGE = mmap.PAGESIZE


@pytest.fixture
def bench() -> Bench:
    return Bench()


def desc(nbytes: int = 16, domain: MemoryDomain = MemoryDomain.HOST) -> BufferDesc:
    return BufferDesc(nbytes, USAGE_ALL, domain)


def imported(bench: Bench, data: object, nbytes: int = 16) -> Buffer:
    return bench.context.import_host_buffer(desc(nbytes), data)


def memory(nbytes: int = ALIGNMENT) -> memoryview:
    return aligned_array(nbytes).data


# ---- what can be imported ------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: aligned_array((4, 4), np.float32),
        lambda: aligned_array(PAGE, np.uint8),
        lambda: aligned_array(PAGE, np.uint8).data,
        lambda: mmap.mmap(-1, PAGE),
        lambda: aligned_array((2, 32), "V2"),
    ],
    ids=["floats", "bytes", "memoryview", "mmap", "void"],
)
def test_anything_with_a_writable_buffer(
    bench: Bench, make: Callable[[], object]
) -> None:
    data = make()
    buffer = imported(bench, data)
    buffer.write(0, b"0123456789abcdef")
    assert bytes(byte_view(data))[:16] == b"0123456789abcdef"
    assert buffer.read(2, 4) == b"2345"
    assert buffer.info.allocation_bytes == byte_view(data).nbytes
    assert bench.accelerator.live_resources().buffers == 1
    buffer.release()
    assert bench.device.live["allocation"] == 0


def test_imported_memory_is_bound_like_any_other(bench: Bench) -> None:
    buffers = [imported(bench, aligned_array(PAGE)) for _ in bench.program.slots]
    event = bench.queue.submit(bench.program, bindings(bench.program, buffers))
    with pytest.raises(Busy):
        buffers[0].release()
    assert event.wait() is EventState.COMPLETE
    event.release()


# ---- order of checks -----------------------------------------------------------------


def refusals(bench: Bench) -> list[tuple[type[Error], Callable[[], object]]]:
    """Calls that fail for one reason and for all later ones, in the documented order.

    A device that cannot import is no state of the same device; it has its own test.
    """
    device = bench.device
    bad = b"\0" * 7

    def lost() -> object:
        device.poisoned = True
        try:
            return bench.context.import_host_buffer(desc(domain=MemoryDomain.HOST), bad)
        finally:
            device.poisoned = False

    def call(wanted: BufferDesc, data: object) -> Callable[[], object]:
        return lambda: bench.context.import_host_buffer(wanted, data)

    return [
        (ResourceLimit, call(desc(1 << 30, MemoryDomain.SHARED), bad)),
        (Unsupported, call(desc(16, MemoryDomain.SHARED), bad)),
        (DeviceLost, lost),
        (Unsupported, call(desc(16, MemoryDomain.DEVICE), bad)),
        (InvalidArgument, call(desc(), 5)),
        (InvalidArgument, call(desc(), bad)),
        (InvalidArgument, call(desc(), memory(PAGE)[1 : 1 + ALIGNMENT])),
        (InvalidArgument, call(desc(), memory(PAGE)[: ALIGNMENT + 4])),
        (InvalidArgument, call(desc(65), memory(ALIGNMENT))),
        (ResourceLimit, call(desc(), memory(ALIGNMENT))),
    ]


def test_order_of_checks() -> None:
    capabilities = Capabilities.HOST_VISIBLE_MEMORY | Capabilities.DEVICE_LOCAL_MEMORY
    bench = Bench(
        FakeDevice(
            limits=DeviceLimits(max_buffer_bytes=1 << 20, max_buffers_per_context=1),
            capabilities=capabilities,
        )
    )
    kept = bench.context.allocate_buffer(desc())
    for error, call in refusals(bench):
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error, caught.value
    assert "import_memory" not in bench.device.calls
    kept.release()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: memory(PAGE).toreadonly(), "read-only"),
        (lambda: bytes(PAGE), "read-only"),
        (lambda: memory(PAGE)[1 : 1 + ALIGNMENT], "aligned_array"),
        (lambda: memory(PAGE)[: ALIGNMENT + 4], "no multiple"),
        (lambda: memory(PAGE)[:0], "no bytes"),
        (lambda: aligned_array((4, 64), np.uint8)[:, ::2], "not C-contiguous"),
        (lambda: aligned_array(ALIGNMENT // 2 * 2)[:0:-1], "not C-contiguous"),
        (lambda: [1, 2], "does not give its bytes"),
    ],
)
def test_messages_name_the_remedy(
    bench: Bench, data: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        imported(bench, data())


def test_read_only_maps_and_arrays(bench: Bench) -> None:
    array = aligned_array(PAGE)
    array.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        imported(bench, array)
    pages = mmap.mmap(-1, PAGE, access=mmap.ACCESS_READ)
    with pytest.raises(InvalidArgument, match="read-only"):
        imported(bench, pages)
    pages.close()


def test_released_context_and_devices_without_import(bench: Bench) -> None:
    bench.device.host_import_alignment = None
    assert bench.accelerator.host_import_alignment is None
    with pytest.raises(Unsupported, match="VK_EXT_external_memory_host"):
        imported(bench, b"")
    context = bench.accelerator.create_context()
    context.release()
    with pytest.raises(Released):
        context.import_host_buffer(desc(), b"")


def test_what_the_device_answers_is_checked(bench: Bench) -> None:
    device = bench.device
    before = dict(device.live)
    wanted = BufferDesc(16, USAGE_ALL, MemoryDomain.HOST, alignment=4096)
    device.next_info = BufferInfo(64, 64, BufferProperties(7))
    with pytest.raises(ResourceLimit, match="aligned to 64"):
        bench.context.import_host_buffer(wanted, memory(PAGE))
    device.next_info = BufferInfo(64, 4096, BufferProperties.HOST_VISIBLE)
    with pytest.raises(Incompatible):
        imported(bench, memory(PAGE))
    device.next_info = None
    device.fail("import_memory", OutOfMemory("x"))
    with pytest.raises(OutOfMemory):
        imported(bench, memory(PAGE))
    assert device.live == before
    assert bench.accelerator.live_resources().buffers == 0


# ---- the life of the memory ----------------------------------------------------------


def test_the_buffer_keeps_the_array(bench: Bench) -> None:
    array = aligned_array(PAGE)
    gone = weakref.ref(array)
    buffer = imported(bench, array)
    del array
    gc.collect()
    assert gone() is not None
    buffer.write(0, b"x")
    buffer.release()
    gc.collect()
    assert gone() is None


def test_what_is_imported_cannot_be_resized_or_closed(bench: Bench) -> None:
    pages = mmap.mmap(-1, PAGE)
    buffer = imported(bench, pages)
    with pytest.raises(BufferError):
        pages.close()
    buffer.release()
    pages.close()
    pages = mmap.mmap(-1, PAGE)
    bench.device.fail("import_memory", OutOfMemory("x"))
    with pytest.raises(OutOfMemory):
        imported(bench, pages)
    pages.close()


def test_a_bytearray_cannot_be_resized_meanwhile(bench: Bench) -> None:
    bench.device.host_import_alignment = 1
    data = bytearray(32)
    buffer = imported(bench, data)
    with pytest.raises(BufferError):
        data.extend(b"more")
    buffer.release()
    data.extend(b"more")


# ---- aligned arrays ------------------------------------------------------------------


@pytest.mark.parametrize("alignment", [1, 64, PAGE, 4 * PAGE, 1 << 20])
@pytest.mark.parametrize("shape", [1, 5, (3, 7), (1, PAGE)])
def test_aligned_arrays(alignment: int, shape: int | tuple[int, ...]) -> None:
    array = aligned_array(shape, np.float32, alignment=alignment)
    assert array.shape == ((shape,) if isinstance(shape, int) else shape)
    assert array.dtype == np.float32
    assert address_of(array.reshape(-1).view(np.uint8).data) % alignment == 0
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert not array.any()
    array[...] = 1
    assert array.sum() == array.size


def test_aligned_arrays_refuse_nonsense() -> None:
    for alignment in (0, -4, 3, 24):
        with pytest.raises(InvalidArgument, match="power of two"):
            aligned_array(4, alignment=alignment)
    for shape in (0, (4, 0), (-1,), ()):
        if shape == ():
            assert aligned_array(shape).shape == ()
        else:
            with pytest.raises(InvalidArgument, match="no bytes"):
                aligned_array(shape)
    with pytest.raises(OutOfMemory):
        aligned_array(1 << 60)
