"""Every Vulkan call fails once: the right error comes out, and nothing is left."""

import itertools
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from harness import vulkan_plans as plans
from harness.vulkan_door import Door, open_device
from harness.vulkan_plans import Made
from tosavk.backends.vulkan import staging
from tosavk.backends.vulkan._ffi import Function, const
from tosavk.backends.vulkan.device import VulkanDevice
from tosavk.backends.vulkan.kit import VulkanKit
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.core.descriptors import BufferDesc, MemoryDomain
from tosavk.core.device import BoundSlot
from tosavk.core.errors import (
    DeviceLost,
    Error,
    External,
    InitError,
    OutOfMemory,
    ResourceLimit,
)
from tosavk.core.plan import Operand

N = 67
STAGED = VulkanOptions(map_unified_device_memory=False, pipeline_cache=False)
WORDS = np.arange(N, dtype=np.uint32)
ENDED = 60_000_000_000


def whole_life(spec: str, door: Door) -> None:
    """Opens, loads, runs and closes; what has been opened is closed in any case."""
    device = open_device(spec, wrap=door, options=STAGED)
    try:
        kit = device.create_kit()
        try:
            plans.run(
                kit,
                plans.chain_plan(N, WORDS),
                [WORDS, WORDS],
                settle=device.wait_idle,
            )
        finally:
            kit.free()
    finally:
        device.close()


def checked_calls(spec: str) -> int:
    door = Door()
    door.arm(0)
    whole_life(spec, door)
    return door.checked


def test_every_call_may_fail_and_open_leaves_nothing(vulkan_device: str) -> None:
    door = Door()
    fail = 0
    while True:
        fail += 1
        door.arm(fail, code=const.ERROR_OUT_OF_HOST_MEMORY)
        try:
            device = open_device(vulkan_device, wrap=door, options=STAGED)
        except InitError as error:
            names(error, door)
            assert not door.live, door.failed
            continue
        device.close()
        assert not door.live
        if not door.failed:
            break
    assert fail > 10
    assert not door.wrong


def names(error: Error, door: Door) -> None:
    """Checks that an error says which call failed."""
    assert door.failed, "nothing was made to fail"
    assert door.failed in str(error)


def others(door: Door) -> frozenset[tuple[str, int]]:
    """What lives, without pipelines and layouts: those stay with the device."""
    kept = ("Pipeline", "Layout")
    return frozenset(x for x in door.live if not any(word in x[0] for word in kept))


CODES: dict[str, type[Error]] = {
    "ERROR_OUT_OF_DEVICE_MEMORY": OutOfMemory,
    "ERROR_TOO_MANY_OBJECTS": ResourceLimit,
    "ERROR_FRAGMENTED_POOL": External,
}


def load_and_launch(device: VulkanDevice, kit: VulkanKit, door: Door, fail: int) -> str:
    """Makes one call fail, and gives its name; "" if there are not as many calls."""
    code, expected = list(CODES.items())[fail % len(CODES)]
    plan = plans.chain_plan(N, WORDS)
    desc = BufferDesc(nbytes=4 * N, usage=plans.ALL, domain=MemoryDomain.DEVICE)
    with ExitStack() as undo:
        slots = [BoundSlot(kit.allocate(desc), 0, 4 * N) for _ in range(3)]
        for slot in slots:
            undo.callback(slot.allocation.free)
        before = others(door)
        door.arm(fail, code=getattr(const, code))
        try:
            program = kit.load(Made(plan))
        except expected as error:
            names(error, door)
            assert others(door) == before, door.failed
            return door.failed
        undo.callback(program.free)
        loaded = others(door)
        try:
            recording = kit.record(program, slots, None)
        except expected as error:
            names(error, door)
            assert others(door) == loaded, door.failed
            return door.failed
        undo.callback(recording.free)
        undo.callback(device.wait_idle)
        try:
            recording.launch()
            assert recording.wait(ENDED)
        except expected as error:
            names(error, door)
            return door.failed
        recording.retire()
        return door.failed


def test_every_call_of_load_and_launch_may_fail(vulkan_device: str) -> None:
    seen: set[str] = set()
    failed = "nothing yet"
    for fail in itertools.count(1):
        if not failed:
            break
        door = Door()
        device = open_device(vulkan_device, wrap=door, options=STAGED)
        kit = device.create_kit()
        failed = load_and_launch(device, kit, door, fail)
        seen.add(failed)
        door.arm(0)
        kit.free()
        device.close()
        assert not door.live, failed
        assert not door.wrong, failed
    assert seen >= {
        "vkAllocateCommandBuffers",
        "vkAllocateDescriptorSets",
        "vkAllocateMemory",
        "vkBeginCommandBuffer",
        "vkBindBufferMemory",
        "vkCreateBuffer",
        "vkCreateComputePipelines",
        "vkCreateDescriptorPool",
        "vkCreateDescriptorSetLayout",
        "vkCreateFence",
        "vkCreatePipelineLayout",
        "vkCreateShaderModule",
        "vkEndCommandBuffer",
        "vkMapMemory",
        "vkQueueSubmit2",
        "vkResetFences",
        "vkWaitForFences",
    }


def test_a_whole_life_survives_any_one_failure(vulkan_device: str) -> None:
    total = checked_calls(vulkan_device)
    door = Door()
    for fail in range(1, total + 1):
        door.arm(fail, code=const.ERROR_OUT_OF_HOST_MEMORY)
        try:
            whole_life(vulkan_device, door)
        except Error:
            assert door.failed
        assert not door.live, door.failed
        assert not door.wrong, door.failed


def test_an_interrupted_compilation_leaves_nothing(vulkan_device: str) -> None:
    door = Door()

    def wrap(name: str, function: Function) -> Function:
        seen = door(name, function)
        if name != "vkCreateComputePipelines":
            return seen

        def interrupted(*args: object) -> object:
            seen(*args)
            raise KeyboardInterrupt  # as Python does when a signal came meanwhile

        return interrupted

    device = open_device(vulkan_device, wrap=wrap)
    kit = device.create_kit()
    before = set(door.live)
    with pytest.raises(KeyboardInterrupt):
        kit.load(Made(plans.chain_plan(N, WORDS)))
    left = Counter(name for name, _ in door.live - before)
    # Layouts are the device's, and kept.
    kept = {"vkCreatePipelineLayout", "vkCreateDescriptorSetLayout"}
    assert set(left) <= kept, left
    kit.free()
    device.close()
    assert not door.wrong


def test_a_lost_device_poisons_for_good(vulkan_device: str) -> None:
    door = Door()
    device = open_device(vulkan_device, wrap=door, options=STAGED)
    kit = device.create_kit()
    ops = [Operand(i, 0, N) for i in range(3)]
    plan = plans.one_plan(plans.mix(*ops, bias=0, factor=1), [N] * 3)
    program = kit.load(Made(plan))
    desc = BufferDesc(nbytes=4 * N, usage=plans.ALL)
    slots = [BoundSlot(kit.allocate(desc), 0, 4 * N) for _ in range(3)]
    recording = kit.record(program, slots, None)
    door.arm(1, code=const.ERROR_DEVICE_LOST, only="vkQueueSubmit2")
    with pytest.raises(DeviceLost, match=device.record.name.split()[0]):
        recording.launch()
    assert device.poisoned
    device.wait_idle()
    recording.free()
    for slot in slots:
        slot.allocation.free()
    program.free()
    kit.free()
    assert device.poisoned
    device.close()
    assert not door.live
    assert not door.wrong


@pytest.mark.parametrize("function", ["vkGetFenceStatus", "vkWaitForFences"])
def test_the_fence_tells_of_a_lost_device(vulkan_device: str, function: str) -> None:
    door = Door()
    device = open_device(vulkan_device, wrap=door)
    kit = device.create_kit()
    ops = [Operand(i, 0, N) for i in range(3)]
    program = kit.load(Made(plans.one_plan(plans.mix(*ops, bias=0, factor=1), [N] * 3)))
    desc = BufferDesc(nbytes=4 * N, usage=plans.ALL)
    slots = [BoundSlot(kit.allocate(desc), 0, 4 * N) for _ in range(3)]
    recording = kit.record(program, slots, None)
    recording.launch()
    door.arm(1, code=const.ERROR_DEVICE_LOST, only=function)
    with pytest.raises(DeviceLost):
        recording.poll() if function == "vkGetFenceStatus" else recording.wait(1)
    assert device.poisoned
    device.wait_idle()
    recording.free()
    for slot in slots:
        slot.allocation.free()
    program.free()
    kit.free()
    device.close()
    assert not door.live


def test_a_fence_that_cannot_be_reset_holds_up_only_the_next_launch(
    vulkan_device: str,
) -> None:
    door = Door()
    device = open_device(vulkan_device, wrap=door)
    kit = device.create_kit()
    ops = [Operand(i, 0, N) for i in range(3)]
    program = kit.load(Made(plans.one_plan(plans.mix(*ops, bias=0, factor=1), [N] * 3)))
    desc = BufferDesc(nbytes=4 * N, usage=plans.ALL)
    slots = [BoundSlot(kit.allocate(desc), 0, 4 * N) for _ in range(3)]
    recording = kit.record(program, slots, None)
    recording.launch()
    assert recording.wait(ENDED)
    door.code, door.stuck = const.ERROR_OUT_OF_DEVICE_MEMORY, "vkResetFences"
    recording.retire()
    with pytest.raises(OutOfMemory):
        recording.launch()
    assert not device.poisoned
    door.stuck = ""
    recording.launch()
    assert recording.wait(ENDED)
    recording.retire()
    recording.launch()
    assert recording.wait(ENDED)
    recording.retire()
    recording.free()
    for slot in slots:
        slot.allocation.free()
    program.free()
    kit.free()
    device.close()


def test_a_copy_that_never_ends_poisons_and_keeps_its_memory(
    vulkan_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver says "not yet" for ever; the staging memory must outlive the call."""
    monkeypatch.setattr(staging, "COPY_TIMEOUT_NS", 20_000_000)
    door = Door()
    device = open_device(vulkan_device, wrap=door, options=STAGED)
    kit = device.create_kit()
    desc = BufferDesc(nbytes=4 * N, usage=plans.ALL, domain=MemoryDomain.DEVICE)
    buffer = kit.allocate(desc)
    before = len([x for x in door.live if x[0] == "vkAllocateMemory"])
    door.code, door.stuck = const.TIMEOUT, "vkWaitForFences"
    with pytest.raises(DeviceLost, match="did not end in time"):
        buffer.write(0, memoryview(bytes(4 * N)))
    assert device.poisoned
    door.stuck = ""
    buffer.free()
    kit.free()
    assert len([x for x in door.live if x[0] == "vkAllocateMemory"]) == before + 1
    device.close()
    assert not door.live
    assert not door.wrong


def test_the_allocation_count_is_kept_by_us(vulkan_device: str) -> None:
    device = open_device(vulkan_device)
    kit = device.create_kit()
    limits = device.record.limits
    object.__setattr__(limits, "allocations", 3)
    desc = BufferDesc(nbytes=4, usage=plans.ALL)
    buffers = [kit.allocate(desc) for _ in range(3)]
    with pytest.raises(ResourceLimit, match="maxMemoryAllocationCount"):
        kit.allocate(desc)
    buffers.pop().free()
    buffers.append(kit.allocate(desc))
    for buffer in buffers:
        buffer.free()
    kit.free()
    device.close()
