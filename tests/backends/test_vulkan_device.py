"""The Vulkan device objects, driven by hand with small plans.

Run with TOSAVK_VALIDATION=1 too: then every message of the layer fails the test.
"""

import dataclasses
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from harness import vulkan_plans as plans
from harness.vulkan_door import KERNELS, Door, library_of_tests, open_device
from harness.vulkan_plans import Made, Words
from tosavk.backends.vulkan import instance, list_devices
from tosavk.backends.vulkan.device import VulkanDevice, open_with
from tosavk.backends.vulkan.kit import VulkanKit
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.probe import read_records
from tosavk.backends.vulkan.recordings import VulkanRecording
from tosavk.backends.vulkan.spirv import ShaderLibrary
from tosavk.core.checks import check_buffer_info, validate_device_info
from tosavk.core.descriptors import BufferDesc, BufferProperties, MemoryDomain
from tosavk.core.device import BoundSlot
from tosavk.core.errors import (
    DeviceUnavailable,
    InvalidArgument,
    ResourceLimit,
    RuntimeUnavailable,
    Unsupported,
)
from tosavk.core.plan import Operand, Plan

N = 1009
SECONDS = 1_000_000_000


@pytest.fixture(params=["mapped", "staged"])
def opened(
    vulkan_device: str, request: pytest.FixtureRequest
) -> Iterator[VulkanDevice]:
    options = VulkanOptions(
        map_unified_device_memory=request.param == "mapped", pipeline_cache=False
    )
    device = open_device(vulkan_device, options=options)
    yield device
    device.close()


@pytest.fixture
def kit(opened: VulkanDevice) -> Iterator[VulkanKit]:
    made = opened.create_kit()
    yield made
    made.free()


def random_words(seed: int, count: int = N) -> Words:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, count, dtype=np.uint32)


def finish(recording: VulkanRecording) -> None:
    assert recording.wait(60 * SECONDS)
    assert recording.poll()
    recording.retire()


def test_the_device_describes_itself(opened: VulkanDevice) -> None:
    validate_device_info(opened.info)
    assert opened.info == opened.info
    assert opened.info.limits.max_bindings_per_submission == 256
    assert opened.binding_alignment >= 4
    assert opened.record.name in opened.name
    assert opened.record.driver in opened.name
    assert not opened.poisoned


def test_arena_constants_prologue_and_barriers(kit: VulkanKit) -> None:
    constant, x0, x1 = (random_words(seed) for seed in (1, 2, 3))
    plan = plans.chain_plan(N, constant)
    found = plans.run(kit, plan, [x0, x1], launches=3)
    assert np.array_equal(found, plans.chain_result(x0, x1, constant))


@pytest.mark.parametrize("domain", list(MemoryDomain))
def test_every_domain_is_what_it_says(
    opened: VulkanDevice, kit: VulkanKit, domain: MemoryDomain
) -> None:
    if not opened.info.capabilities & domain.capability:
        pytest.skip(f"no {domain.name} memory")
    desc = BufferDesc(nbytes=1021, usage=plans.ALL, domain=domain, alignment=16)
    buffer = kit.allocate(desc)
    check_buffer_info(desc, buffer.info)
    visible = bool(buffer.info.properties & BufferProperties.HOST_VISIBLE)
    assert visible == (buffer.mapped is not None)
    if buffer.mapped is not None:
        assert not buffer.mapped.readonly
        assert len(buffer.mapped) >= 1021
    buffer.free()


def test_an_alignment_nobody_has_is_refused(kit: VulkanKit) -> None:
    desc = BufferDesc(nbytes=64, usage=plans.ALL, alignment=1 << 50)
    with pytest.raises(ResourceLimit, match="alignment"):
        kit.allocate(desc)


def test_transfers_touch_only_their_bytes(kit: VulkanKit) -> None:
    size = 1021
    desc = BufferDesc(nbytes=size, usage=plans.ALL, domain=MemoryDomain.DEVICE)
    buffer = kit.allocate(desc)
    rng = np.random.default_rng(7)
    expected = bytearray(rng.bytes(size))
    buffer.write(0, memoryview(bytes(expected)))
    for offset, count in [
        (0, 1),
        (1, 1),
        (3, 1),
        (1, 2),
        (2, 3),
        (3, 6),
        (5, 1000),
        (1020, 1),
        (1017, 4),
        (8, 12),
        (0, size),
    ]:
        data = rng.bytes(count)
        expected[offset : offset + count] = data
        buffer.write(offset, memoryview(data))
        whole = bytearray(size)
        buffer.read(0, memoryview(whole))
        assert whole == expected, (offset, count)
        part = bytearray(b"\xa5" * (count + 2))
        buffer.read(offset, memoryview(part)[1:-1])
        assert part[1:-1] == data
        assert part[0] == part[-1] == 0xA5
    buffer.free()


def test_transfers_larger_than_the_staging_buffer(kit: VulkanKit) -> None:
    size = (9 << 20) + 3
    desc = BufferDesc(nbytes=size, usage=plans.ALL, domain=MemoryDomain.DEVICE)
    buffer = kit.allocate(desc)
    data = np.random.default_rng(8).bytes(size)
    buffer.write(0, memoryview(data))
    found = bytearray(size)
    buffer.read(0, memoryview(found))
    assert found == data
    buffer.free()


def test_multi_byte_views_are_transferred_as_bytes(kit: VulkanKit) -> None:
    values = random_words(9, 16)
    desc = BufferDesc(nbytes=64, usage=plans.ALL, domain=MemoryDomain.DEVICE)
    buffer = kit.allocate(desc)
    buffer.write(0, values.data)
    found = np.zeros(16, np.uint32)
    buffer.read(0, found.data)
    assert np.array_equal(found, values)
    buffer.free()


def test_offsets_of_bound_ranges_and_neighbours(
    opened: VulkanDevice, kit: VulkanKit
) -> None:
    step = max(opened.binding_alignment, 4)
    x = random_words(10)
    start = -(-4 * N // step) * step
    size = start + 4 * N + 16
    source = kit.allocate(BufferDesc(nbytes=size, usage=plans.ALL))
    target = kit.allocate(BufferDesc(nbytes=size, usage=plans.ALL))
    source.write(start, x.data.cast("B"))
    target.write(0, memoryview(b"\xee" * size))
    ops = [Operand(i, 0, N) for i in range(3)]
    plan = plans.one_plan(plans.mix(*ops, bias=0, factor=2), [N] * 3)
    program = kit.load(Made(plan))
    bound = [
        BoundSlot(source, start, 4 * N),
        BoundSlot(source, start, 4 * N),
        BoundSlot(target, start, 4 * N),
    ]
    recording = kit.record(program, bound, None)
    recording.launch()
    finish(recording)
    found = bytearray(size)
    target.read(0, memoryview(found))
    assert found[:start] == b"\xee" * start
    assert found[start + 4 * N :] == b"\xee" * 16
    assert np.array_equal(np.frombuffer(found, np.uint32, N, start), x * 3)
    recording.free()
    source.free()
    target.free()
    program.free()


@pytest.mark.parametrize("tiles", [1, 3, 65537])
def test_tiles_beyond_one_dimension(kit: VulkanKit, tiles: int) -> None:
    columns = 5
    count = columns * tiles
    x = random_words(11, count)
    step = plans.one_plan(
        dataclasses.replace(
            plans.mix(*[Operand(i, 0, count) for i in range(3)], bias=0, factor=1),
            kernel="tile",
            spec=(),
            params=(columns, tiles),
            operands=(Operand(0, 0, count), Operand(1, 0, count)),
            columns=columns,
            tiles=tiles,
        ),
        [count, count],
    )
    found = plans.run(kit, step, [x])
    expected = x.reshape(tiles, columns) + np.arange(tiles, dtype=np.uint32)[:, None]
    assert np.array_equal(found, expected.reshape(-1))


def test_more_work_groups_than_fit_one_dimension(kit: VulkanKit) -> None:
    count = 65535 * 64 + 1
    x = np.arange(count, dtype=np.uint32) % 251
    ops = [Operand(i, 0, count) for i in range(3)]
    plan = plans.one_plan(plans.mix(*ops, bias=3, factor=2), [count] * 3)
    found = plans.run(kit, plan, [x, x])
    assert np.array_equal(found[-300:], (x * 3 + 3)[-300:])
    assert np.array_equal(found, x * 3 + 3)


def bind(kit: VulkanKit, plan: Plan, inputs: Sequence[Words]) -> list[BoundSlot]:
    bound = [
        BoundSlot(
            kit.allocate(BufferDesc(nbytes=s.nbytes, usage=plans.ALL)), 0, s.nbytes
        )
        for s in plan.slots
    ]
    for slot, values in zip(bound, inputs, strict=False):
        slot.allocation.write(0, values.data.cast("B"))
    return bound


def output(bound: Sequence[BoundSlot]) -> Words:
    out = bytearray(bound[-1].nbytes)
    bound[-1].allocation.read(0, memoryview(out))
    return np.frombuffer(bytes(out), np.uint32)


def test_a_recording_is_reused_for_other_buffers_and_programs(kit: VulkanKit) -> None:
    x0, x1, c0, c1 = (random_words(seed) for seed in range(20, 24))
    first = plans.chain_plan(N, c0)
    ops = [Operand(i, 0, N) for i in range(3)]
    second = plans.one_plan(plans.mix(*ops, bias=9, factor=4), [N] * 3)
    programs = [kit.load(Made(first)), kit.load(Made(second))]
    recording: VulkanRecording | None = None
    bounds: list[list[BoundSlot]] = []
    for number, expected in [
        (0, plans.chain_result(x0, x1, c0)),
        (0, plans.chain_result(x1, x0, c0)),
        (1, x0 * 4 + x1 + 9),
        (0, plans.chain_result(x0, x1, c0)),
    ]:
        swap = len(bounds) == 1
        bound = bind(kit, first, [x1, x0] if swap else [x0, x1])
        bounds.append(bound)
        recording = kit.record(programs[number], bound, recording)
        recording.launch()
        finish(recording)
        assert np.array_equal(output(bound), expected)
    assert recording is not None
    recording.free()
    for bound in bounds:
        for slot in bound:
            slot.allocation.free()
    for program in programs:
        program.free()
    del c1


def test_submissions_that_share_an_arena_do_not_disturb_each_other(
    kit: VulkanKit,
) -> None:
    """All 16 are in flight at once; each writes the arena that all of them use."""
    count = 4099
    constant = random_words(30, count)
    plan = plans.chain_plan(count, constant)
    program = kit.load(Made(plan))
    inputs = [
        (random_words(40 + i, count), random_words(60 + i, count)) for i in range(16)
    ]
    bounds = [bind(kit, plan, pair) for pair in inputs]
    recordings = [kit.record(program, bound, None) for bound in bounds]
    for _ in range(4):
        for recording in recordings:
            recording.launch()
        for recording in reversed(recordings):
            finish(recording)
        for (x0, x1), bound in zip(inputs, bounds, strict=True):
            assert np.array_equal(output(bound), plans.chain_result(x0, x1, constant))
            bound[-1].allocation.write(0, memoryview(bytes(4 * count)))
    for recording in recordings:
        recording.free()
    for bound in bounds:
        for slot in bound:
            slot.allocation.free()
    program.free()


def test_launch_is_one_call_into_the_driver(vulkan_device: str) -> None:
    door = Door()
    device = open_device(vulkan_device, wrap=door)
    kit = device.create_kit()
    plan = plans.chain_plan(N, random_words(1))
    program = kit.load(Made(plan))
    bound = bind(kit, plan, [random_words(2), random_words(3)])
    recording = kit.record(program, bound, None)
    for _ in range(3):
        before = door.calls.copy()
        recording.launch()
        assert door.calls - before == {"vkQueueSubmit2": 1}
        assert recording.wait(60 * SECONDS)
        before = door.calls.copy()
        assert recording.poll()
        assert door.calls - before == {"vkGetFenceStatus": 1}
        recording.retire()
    recording.free()
    for slot in bound:
        slot.allocation.free()
    program.free()
    kit.free()
    device.close()


# Stage/access numbers of the specification: compute 0x800, copy 1 << 32, host 0x4000;
# storage read 1 << 33 and write 1 << 34, transfer read 0x800 and write 0x1000, host
# read 0x2000.
WRITTEN = "0x800/0x400000000"
BETWEEN = f"{WRITTEN}->0x800/0x600000000"
VISIBLE = "0x0/0x0->0x800/0x600000000"
FINAL = f"{WRITTEN}->0x100004000/0x3800"
FOR_HOST = "0x100000000/0x1000->0x4000/0x2000"
FOR_DEVICE = "0x100000000/0x1000->0x100000800/0x600001800"


def test_every_memory_dependency_is_recorded(vulkan_device: str) -> None:
    """What no validation layer checks: the host's part of it above all."""
    door = Door()
    options = VulkanOptions(map_unified_device_memory=False, pipeline_cache=False)
    device = open_device(vulkan_device, wrap=door, options=options)
    door.commands.clear()
    kit = device.create_kit()
    plan = plans.chain_plan(N, random_words(1))
    program = kit.load(Made(plan))
    copy, dispatch, submit = "vkCmdCopyBuffer", "vkCmdDispatch", "vkQueueSubmit2"
    upload = [copy, FOR_DEVICE, submit]
    assert door.commands == [*upload, dispatch, FINAL, submit]
    bound = bind(kit, plan, [])
    door.commands.clear()
    recording = kit.record(program, bound, None)
    # The first barrier is for the last submission, which may use the arena still.
    assert door.commands == [BETWEEN, dispatch, BETWEEN, dispatch, FINAL]
    door.commands.clear()
    desc = BufferDesc(nbytes=9, usage=plans.ALL, domain=MemoryDomain.DEVICE)
    buffer = kit.allocate(desc)
    buffer.write(1, memoryview(bytes(8)))
    download = [copy, FOR_HOST, submit]
    assert door.commands == [*download, *upload, *upload, *download, *upload]
    door.commands.clear()
    buffer.read(0, memoryview(bytearray(8)))
    assert door.commands == download
    recording.free()
    buffer.free()
    for slot in bound:
        slot.allocation.free()
    program.free()
    kit.free()
    device.close()


def test_pipelines_are_made_once_for_each_distinct_one(vulkan_device: str) -> None:
    door = Door()
    device = open_device(vulkan_device, wrap=door)
    kit = device.create_kit()
    plan = plans.chain_plan(N, random_words(1))
    loads = [kit.load(Made(plan)) for _ in range(2)]
    other = dataclasses.replace(
        plan,
        dispatches=(
            *plan.dispatches,
            dataclasses.replace(plan.dispatches[1], spec=(8,)),
        ),
    )
    loads.append(kit.load(Made(other)))
    made = [name for name, _ in door.live if name == "vkCreateComputePipelines"]
    # Factors 2, 3 and 7 in one call, 8 in a second; the second load made none.
    assert len(made) == 4
    assert door.calls["vkCreateComputePipelines"] == 2
    assert (
        door.calls["vkCreateShaderModule"] == door.calls["vkDestroyShaderModule"] == 2
    )
    assert door.calls["vkCreatePipelineLayout"] == 1
    for program in loads:
        program.free()
    kit.free()
    device.close()


def test_a_program_tells_its_size(kit: VulkanKit) -> None:
    plan = plans.chain_plan(N, random_words(1))
    program = kit.load(Made(plan))
    assert program.slots == plan.slots
    assert program.dispatch_count == 2
    assert program.arena_bytes == plan.arena_bytes
    program.free()


WRONG = [
    ({"kernel": "absent"}, Unsupported, "absent"),
    ({"spec": ()}, InvalidArgument, "specialization words"),
    ({"params": (1, 2, 3)}, InvalidArgument, "parameters"),
    ({"operands": (Operand(0, 0, N),) * 2}, InvalidArgument, "operands"),
    (
        {"operands": (Operand(0, 0, N),) * 2 + (Operand(9, 0, N),)},
        InvalidArgument,
        "y of",
    ),
    ({"operands": (Operand(0, 64, N),) * 3}, InvalidArgument, "operand a of"),
    ({"columns": 1 << 33}, ResourceLimit, "work groups"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_a_plan_that_does_not_fit_is_refused_by_name(
    kit: VulkanKit, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    ops = [Operand(i, 0, N) for i in range(3)]
    good = plans.mix(*ops, bias=0, factor=1)
    bad = dataclasses.replace(good, **change)
    with pytest.raises(error, match=message) as caught:
        kit.load(Made(plans.one_plan(bad, [N] * 3)))
    if error is not Unsupported:
        assert "mix" in str(caught.value)


def test_a_tensor_beyond_the_storage_range_is_refused(
    opened: VulkanDevice, kit: VulkanKit
) -> None:
    count = opened.record.limits.storage_buffer_range // 4 + 1
    ops = [Operand(i, 0, count) for i in range(3)]
    plan = plans.one_plan(plans.mix(*ops, bias=0, factor=1), [count] * 3)
    with pytest.raises(ResourceLimit, match="maxStorageBufferRange"):
        kit.load(Made(plan))


def test_a_prologue_must_not_touch_slots(kit: VulkanKit) -> None:
    plan = plans.chain_plan(N, random_words(1))
    bad = dataclasses.replace(plan, prologue=plan.dispatches[:1])
    with pytest.raises(InvalidArgument, match="prologue"):
        kit.load(Made(bad))


def test_a_kernel_without_a_module_is_refused(vulkan_device: str) -> None:
    def nothing(name: str) -> bytes:
        raise FileNotFoundError(name)

    device = open_device(vulkan_device, library=ShaderLibrary(KERNELS, nothing))
    kit = device.create_kit()
    with pytest.raises(Unsupported, match="kernel 'mix' has no SPIR-V module"):
        kit.load(Made(plans.chain_plan(N, random_words(1))))
    kit.free()
    device.close()


def test_the_stripped_module_runs(vulkan_device: str) -> None:
    library = library_of_tests()

    def stripped(name: str) -> bytes:
        return library.module(name, preserve=False)

    device = open_device(vulkan_device, library=ShaderLibrary(KERNELS, stripped))
    kit = device.create_kit()
    constant, x0, x1 = (random_words(seed) for seed in (1, 2, 3))
    found = plans.run(kit, plans.chain_plan(N, constant), [x0, x1])
    assert np.array_equal(found, plans.chain_result(x0, x1, constant))
    kit.free()
    device.close()


def test_nothing_is_left_and_nothing_dies_twice(vulkan_device: str) -> None:
    door = Door()
    for mapped in (True, False):
        options = VulkanOptions(map_unified_device_memory=mapped, pipeline_cache=False)
        device = open_device(vulkan_device, wrap=door, options=options)
        kit = device.create_kit()
        plans.run(kit, plans.chain_plan(N, random_words(1)), [random_words(2)] * 2)
        kit.free()
        device.close()
        assert not door.live
        assert not door.wrong


def test_devices_can_be_opened_many_times(vulkan_device: str) -> None:
    """Some drivers can be loaded about thirty times only: they must stay loaded."""
    for number in range(40):
        device = open_device(vulkan_device)
        if number % 10:
            device.close()
            continue
        kit = device.create_kit()
        plans.run(kit, plans.chain_plan(N, random_words(1)), [random_words(2)] * 2)
        kit.free()
        device.close()


def test_structs_survive_the_garbage_collector(kit: VulkanKit) -> None:
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        constant, x0, x1 = (random_words(seed) for seed in (1, 2, 3))
        for factor in range(20):
            plan = plans.chain_plan(N, constant)
            step = dataclasses.replace(plan.dispatches[1], spec=(factor,))
            changed = dataclasses.replace(plan, dispatches=(plan.dispatches[0], step))
            hidden = x0 * 3 + (constant * 3 + 1) + 5
            expected = hidden * np.uint32(factor) + x1 + 11
            assert np.array_equal(plans.run(kit, changed, [x0, x1]), expected)
    finally:
        gc.set_threshold(*before)


def test_properties_are_stable(vulkan_device: str) -> None:
    name = vulkan_device.partition(":")[2]
    with instance.open_instance(None, validation=False) as made:
        first = [record for record, _ in read_records(made)]
        for _ in range(30):
            assert [record for record, _ in read_records(made)] == first
    assert all(record.driver for record in first)
    listed = list_devices()
    assert [listing.record for listing in listed] == first
    assert any(name.casefold() in str(listing).casefold() for listing in listed)


def test_a_device_is_opened_by_index_and_uuid(vulkan_device: str) -> None:
    name = vulkan_device.partition(":")[2].casefold()
    listing = next(d for d in list_devices() if name in str(d).casefold())
    for selector in (str(listing.index), listing.uuid):
        options = VulkanOptions(pipeline_cache=False)
        device = open_with(None, selector, options)
        assert device.record == listing.record
        device.close()


def test_an_unknown_device_leaves_no_instance(vulkan_device: str) -> None:
    door = Door()
    with pytest.raises(DeviceUnavailable, match="no such thing"):
        open_device("vulkan:no such thing", wrap=door)
    assert door.calls["vkCreateInstance"] == 1
    assert not door.live


def test_the_pinned_instance_is_shared_but_follows_the_environment(
    vulkan_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del vulkan_device
    first = instance.open_instance(None, validation=False)
    first.close()
    assert instance.open_instance(None, validation=False) is first
    assert first.physical_devices()
    monkeypatch.setenv("VK_TOSAVK_TEST", "1")
    assert instance.open_instance(None, validation=False) is not first


def test_no_driver_says_what_to_install(
    vulkan_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(variable, "/nowhere/driver.json")
    monkeypatch.delenv("VK_ADD_DRIVER_FILES", raising=False)
    with pytest.raises(RuntimeUnavailable, match="VK_DRIVER_FILES"):
        list_devices()
