"""Field cases about memory: B2, B5, B7, B8, E4, E6."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.vulkan_door import Door, KeptInstance
from tosavk.backends.session import Session, lower_on
from tosavk.backends.vulkan import _ffi
from tosavk.backends.vulkan._ffi import const
from tosavk.backends.vulkan.description import describe, heap_report
from tosavk.backends.vulkan.device import plan_limits
from tosavk.backends.vulkan.memory import (
    DEVICE_LOCAL,
    HOST_CACHED,
    HOST_COHERENT,
    HOST_VISIBLE,
    MemoryHeap,
    MemoryType,
    plan_memory,
)
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.records import DeviceRecord, Features, Limits
from tosavk.backends.vulkan.suitability import select
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceUnavailable, OutOfMemory, TooLarge
from tosavk.core.plan import PlanLimits
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

GIB = 1 << 30
OPTIONS = VulkanOptions(pipeline_cache=False)
STAGED = VulkanOptions(pipeline_cache=False, map_unified_device_memory=False)
COHERENT = HOST_VISIBLE | HOST_COHERENT


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def instance(door: Door) -> Iterator[KeptInstance]:
    kept = KeptInstance(door)
    yield kept
    kept.destroy()


def chain(count: int = 4, *, outputs: int = 1) -> Graph:
    b = Builder()
    x, y = b.input("x", DType.FP32, (count,)), b.input("y", DType.FP32, (count,))
    product = b.mul(x, y, name="product")
    if outputs > 1:
        b.output(product)
    b.output(b.add(product, y, name="total"))
    return load_graph(b.build())


# B2 -------------------------------------------------------------------------------

SMALL_BAR = (
    MemoryType(DEVICE_LOCAL, 0),
    MemoryType(COHERENT, 1),
    MemoryType(COHERENT | HOST_CACHED, 1),
    MemoryType(DEVICE_LOCAL | COHERENT, 2),
)


def test_the_small_window_is_for_what_asks_for_it_b2() -> None:
    """8 GiB near the device, 24 GiB of the host, a window of 246 MiB."""
    heaps = (8 * GIB, 24 * GIB, 246 << 20)
    found = plan_memory(SMALL_BAR, heaps=len(heaps))
    assert found is not None
    assert found.device is not None
    assert found.shared is not None
    # 1 GiB near the device; staging of 300 MB; 300 MB to read back, from cached memory.
    assert heaps[found.device.heap] == 8 * GIB
    assert found.arena == found.device
    assert heaps[found.host.heap] == 24 * GIB
    assert found.host.flags & HOST_CACHED
    # Only SHARED memory, which nothing takes unasked, lies in the window.
    assert heaps[found.shared.heap] == 246 << 20
    assert not found.device.mapped


@pytest.mark.parametrize("order", range(4))
def test_the_order_of_types_does_not_matter_b2(order: int) -> None:
    turned = (*SMALL_BAR[order:], *SMALL_BAR[:order])
    found = plan_memory(turned, heaps=3)
    assert found is not None
    assert found.device is not None
    assert (found.device.heap, found.host.heap) == (0, 1)
    assert found.host.flags & HOST_CACHED


# B5 -------------------------------------------------------------------------------


def test_mapped_memory_is_always_coherent_b5() -> None:
    """So no range is ever flushed or invalidated, and none can be rounded wrongly."""
    windows = (HOST_VISIBLE, HOST_VISIBLE | HOST_CACHED)
    for flags in windows:
        assert plan_memory([MemoryType(flags, 0)], heaps=1) is None
        table = [MemoryType(flags | DEVICE_LOCAL, 0), MemoryType(COHERENT, 1)]
        found = plan_memory(table, heaps=2)
        assert found is not None
        assert found.host.flags & HOST_COHERENT
        assert found.shared is None
        assert found.device is not None
        assert not found.device.mapped
    names = (*_ffi.DEVICE_FUNCTIONS, *_ffi.DEVICE_OPTIONAL)
    assert not [name for name in names if "MappedMemoryRange" in name]


# B7 -------------------------------------------------------------------------------

SHADER = const.PIPELINE_STAGE_2_COMPUTE_SHADER_BIT
WRITE = const.ACCESS_2_SHADER_STORAGE_WRITE_BIT
READ = const.ACCESS_2_SHADER_STORAGE_READ_BIT
COPY_READ = const.ACCESS_2_TRANSFER_READ_BIT
COPY_WRITE = const.ACCESS_2_TRANSFER_WRITE_BIT
HOST_READ = const.ACCESS_2_HOST_READ_BIT


def barrier(text: str) -> tuple[int, int]:
    """What a barrier makes available, and to what it is made visible."""
    source, target = text.split("->")
    return int(source.split("/")[1], 16), int(target.split("/")[1], 16)


def test_every_step_to_the_host_has_its_barrier_b7(
    vulkan_device: str, door: Door, instance: KeptInstance
) -> None:
    with Accelerator(instance.open(vulkan_device, STAGED)) as accelerator:
        graph = chain()
        lowered = lower_on(accelerator.device, graph)
        if lowered.plan.dispatches and len(lowered.plan.dispatches) < 2:
            pytest.fail("the program is one dispatch, and shows no barrier")
        door.commands.clear()
        ones = np.ones(4, np.float32)
        with Session(accelerator, lowered) as session:
            recorded = list(door.commands)
            door.commands.clear()
            found = session.run({"x": ones, "y": ones})
        read = list(door.commands)
    assert found["total"].tolist() == [2.0] * 4
    first, second = (i for i, c in enumerate(recorded) if c == "vkCmdDispatch")
    between = [barrier(c) for c in recorded[first + 1 : second] if "->" in c]
    assert any(source & WRITE and target & READ for source, target in between)
    after = [barrier(c) for c in recorded[second + 1 :] if "->" in c]
    assert any(s & WRITE and t & COPY_READ and t & HOST_READ for s, t in after)
    copy = read.index("vkCmdCopyBuffer")
    last = [barrier(c) for c in read[copy + 1 :] if "->" in c]
    assert any(source & COPY_WRITE and target & HOST_READ for source, target in last)


def test_without_reading_back_nothing_is_copied_b7(
    vulkan_device: str, door: Door, instance: KeptInstance
) -> None:
    with (
        Accelerator(instance.open(vulkan_device, STAGED)) as accelerator,
        Session(accelerator, lower_on(accelerator.device, chain())),
    ):
        door.commands.clear()
    assert "vkCmdCopyBuffer" not in door.commands
    assert not [c for c in door.commands if "->" in c]


# B8 -------------------------------------------------------------------------------


def test_many_constants_share_allocations_b8(
    vulkan_device: str, door: Door, instance: KeptInstance
) -> None:
    """600 constants, each added to a running sum."""
    b = Builder()
    total = b.input("x", DType.INT32, (3,))
    count = 600
    for number in range(count):
        values = np.asarray([number, 1, -number], np.int32)
        total = b.add(total, b.const(values))
    b.output(total)
    graph = load_graph(b.build())
    before = door.calls["vkAllocateMemory"]
    with (
        Accelerator(instance.open(vulkan_device, OPTIONS)) as accelerator,
        Session(accelerator, lower_on(accelerator.device, graph)) as session,
    ):
        (found,) = session.run({"x": np.zeros(3, np.int32)}).values()
        live = sum(name == "vkAllocateMemory" for name, _ in door.live)
    whole = count * (count - 1) // 2
    assert found.tolist() == [whole, count, -whole]
    assert live <= 100
    assert door.calls["vkAllocateMemory"] - before <= 100


# E4 -------------------------------------------------------------------------------

HEAP = MemoryHeap(38868971888, const.MEMORY_HEAP_DEVICE_LOCAL_BIT)


@pytest.mark.parametrize(
    ("budget", "used", "free"),
    [
        (50206003200, 4096, 38868967792),
        (50206003200, 0, 38868971888),
        (1000, 400, 600),
        (1000, 4000, 0),
        (0, 0, 0),
        (None, None, None),
        (1000, None, None),
    ],
)
def test_free_memory_is_never_more_than_there_is_e4(
    budget: int | None, used: int | None, free: int | None
) -> None:
    report = heap_report(HEAP, budget=budget, used=used)
    assert report.free == free
    assert report.size == 38868971888
    assert report.free is None or 0 <= report.free <= report.size


def test_every_heap_is_reported_e4(vulkan_device: str) -> None:
    known = describe(vulkan_device.partition(":")[2])
    assert len(known["memory"]) == len(known["memory_heaps"])
    for heap in known["memory"]:
        assert heap["free"] is None or 0 <= heap["free"] <= heap["size"]
        assert heap["free"] is not None or heap["used"] is None


# E6 -------------------------------------------------------------------------------


def limits_of(**limits: Any) -> PlanLimits:  # noqa: ANN401 - as Limits takes
    return plan_limits(
        DeviceRecord(index=0, name="d", driver="v", limits=Limits(**limits))
    )


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"storage_buffer_range": 4096}, "maxStorageBufferRange"),
        ({"allocation_bytes": 4096}, "maxMemoryAllocationSize"),
        ({"buffer_bytes": 4096}, "maxBufferSize"),
    ],
)
def test_which_limit_a_tensor_exceeds_is_said_e6(
    limits: dict[str, int], name: str
) -> None:
    with pytest.raises(TooLarge) as caught:
        lower_graph(chain(5000), limits=limits_of(**limits))
    error = caught.value
    assert (error.tensor, error.requested, error.limit) == ("x", 20000, 4096)
    assert error.limit_name == name
    assert f"'x' needs 20000 bytes in one storage buffer; the device allows 4096 ({name})"\
        in str(error)  # fmt: skip


def test_an_intermediate_that_is_too_large_is_named_e6() -> None:
    b = Builder()
    row = b.input("row", DType.FP32, (100, 1))
    column = b.input("column", DType.FP32, (1, 100))
    b.output(b.reduce_sum(b.add(row, column, name="grid"), 1))
    with pytest.raises(TooLarge) as caught:
        lower_graph(load_graph(b.build()), limits=limits_of(storage_buffer_range=4096))
    assert (caught.value.tensor, caught.value.requested) == ("grid", 40000)


@pytest.mark.parametrize(
    "what", ["constants and intermediates", "input 'x'", "input 'y'", "output 'total'"]
)
def test_an_exhausted_heap_is_out_of_memory_e6(
    vulkan_device: str, door: Door, instance: KeptInstance, what: str
) -> None:
    """With size, memory type, heap and what it was for; nothing spills elsewhere."""
    said: list[str] = []
    with Accelerator(instance.open(vulkan_device, OPTIONS)) as accelerator:
        lowered = lower_on(accelerator.device, chain())
        for number in range(1, 12):
            before = set(door.live)
            code = int(const.ERROR_OUT_OF_DEVICE_MEMORY)
            door.arm(number, code=code, only="vkAllocateMemory")
            try:
                Session(accelerator, lowered).close()
            except OutOfMemory as error:
                said.append(str(error))
            else:
                break
            kept = {
                item for item in door.live - before if item[0] == "vkAllocateMemory"
            }
            assert not kept
        door.arm(0)
        with Session(accelerator, lowered):
            pass
    (text,) = (text for text in said if what in text)
    assert "bytes of memory type" in text
    assert "in heap" in text


def test_no_suitable_memory_type_is_another_error_e6() -> None:
    record = DeviceRecord(
        index=0,
        name="d",
        driver="v",
        features=Features(synchronization2=True, robust_buffer_access=True),
        memory_types=(MemoryType(DEVICE_LOCAL, 0),),
        memory_heaps=(MemoryHeap(GIB, 1),),
        queue_families=(int(const.QUEUE_COMPUTE_BIT),),
    )
    with pytest.raises(DeviceUnavailable, match="no memory type is both host-visible"):
        select([record], "0")
    assert not issubclass(TooLarge, OutOfMemory)
    assert not issubclass(DeviceUnavailable, OutOfMemory)
