"""Submissions under way at once: ordered over an arena, else not at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tosavk
from harness import validation
from harness import vulkan_plans as plans
from harness.lanes import Floats, allocate, bind, chain_model, floats, load
from harness.vulkan_door import Door, library_of_tests, open_device
from harness.vulkan_plans import Made
from tosavk.backends.vulkan import programs
from tosavk.backends.vulkan.device import open_with
from tosavk.backends.vulkan.options import VulkanOptions, validation_wanted
from tosavk.backends.vulkan.validation import validation_messages
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import (
    USAGE_ALL,
    BufferDesc,
    EventState,
    MemoryDomain,
)
from tosavk.core.device import BoundSlot
from tosavk.core.plan import Operand, Plan
from tosavk.core.waiting import wait_all

SIDE = 24
DEPTH = 32
N = 67


def expected(x: Floats) -> Floats:
    """x to the fourth, with sums in ascending order as the strict kernels make them."""
    y = x
    for _ in range(3):
        total = np.zeros_like(x)
        for k in range(SIDE):
            total = (total + y[:, k : k + 1] * x[k : k + 1, :]).astype(x.dtype)
        y = total
    return y


@pytest.fixture
def accelerator(gpu_device: str) -> Iterator[Accelerator]:
    with tosavk.open(gpu_device) as opened:
        yield opened


def test_overlapping_submissions_of_a_program_with_an_arena(
    accelerator: Accelerator,
) -> None:
    """All are queued before the first is observed; each has its own input and output."""
    context = accelerator.create_context()
    program = load(accelerator, context, chain_model(SIDE, 3))
    assert program.arena_bytes > 0
    queue = context.create_queue()
    domain = accelerator.info.domains[-1]
    rng = np.random.default_rng(5)
    pairs = [
        [allocate(context, 4 * SIDE * SIDE, domain) for _ in range(2)]
        for _ in range(DEPTH)
    ]
    prepared = [context.prepare(program, bind(program, pair)) for pair in pairs[::2]]
    for turn in range(4):
        inputs = [rng.integers(-3, 4, (SIDE, SIDE)) for _ in pairs]
        for (source, _), x in zip(pairs, inputs, strict=True):
            source.write(0, x.astype(np.float32))
        events = [
            prepared[i // 2].submit()
            if i % 2 == 0 and turn % 2
            else queue.submit(program, bind(program, pair))
            for i, pair in enumerate(pairs)
        ]
        assert wait_all(events, 60)
        for event, (_, target), x in zip(events, pairs, inputs, strict=True):
            assert event.poll() is EventState.COMPLETE
            event.release()
            want = expected(x.astype(np.float32))
            assert np.array_equal(floats(target).reshape(SIDE, SIDE), want)


def opening(spec: str, plan: Plan) -> str:
    """The first command that a recording of a plan has."""
    door = Door()
    options = VulkanOptions(validation=False, pipeline_cache=False)
    device = open_device(spec, wrap=door, options=options)
    kit = device.create_kit()
    program = kit.load(Made(plan))
    bound = [
        BoundSlot(kit.allocate(BufferDesc(part.nbytes, USAGE_ALL)), 0, part.nbytes)
        for part in plan.slots
    ]
    door.commands.clear()
    recording = kit.record(program, bound, None)
    first = door.commands[0]
    recording.free()
    for slot in bound:
        slot.allocation.free()
    program.free()
    kit.free()
    device.close()
    return first


def test_only_programs_that_write_their_own_memory_wait_for_others(
    vulkan_device: str,
) -> None:
    waits, flows = "0x800/0x400000000->0x800/0x600000000", "0x0/0x0->0x800/0x600000000"
    words = np.arange(N, dtype=np.uint32)
    assert opening(vulkan_device, plans.chain_plan(N, words)) == waits
    operands = [Operand(i, 0, N) for i in range(3)]
    plain = plans.one_plan(plans.mix(*operands, bias=0, factor=1), [N] * 3)
    assert opening(vulkan_device, plain) == flows


@pytest.mark.parametrize("ordered", [True, False])
def test_validation_sees_the_order_over_the_arena(
    vulkan_device: str, monkeypatch: pytest.MonkeyPatch, *, ordered: bool
) -> None:
    """Layers that look across submissions complain if the first barrier is missing."""
    if not validation_wanted():
        pytest.skip("needs the validation layer: TOSAVK_VALIDATION=1")
    if not ordered:

        def never(jobs: object, slots: object) -> bool:
            del jobs, slots
            return False

        monkeypatch.setattr(programs, "_needs_order", never)
    device = open_with(
        None,
        vulkan_device.partition(":")[2],
        VulkanOptions(pipeline_cache=False),
        library=library_of_tests(),
    )
    with Accelerator(device) as accelerator:
        context = accelerator.create_context()
        plan = plans.chain_plan(N, np.arange(N, dtype=np.uint32))
        program = context.load_program(Made(plan))
        queue = context.create_queue()
        groups = [
            [allocate(context, 4 * N, MemoryDomain.HOST) for _ in program.slots]
            for _ in range(4)
        ]
        events = [queue.submit(program, bind(program, group)) for group in groups]
        assert wait_all(events, 60)
        for event in events:
            event.release()
    messages = [str(message) for message in validation_messages()]
    hazards = [text for text in messages if "SYNC-HAZARD" in text]
    assert hazards == messages
    if ordered:
        assert not hazards
    elif not hazards:
        assert not validation.is_new()
        pytest.skip("this layer does not look across submissions")
