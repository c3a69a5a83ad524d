"""Long work in several submissions (field case B22), inside of operators too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tosavk
from harness.lanes import allocate, bind, chain_model, floats, load
from harness.vulkan_door import Door, open_device
from tosavk.backends.session import Session
from tosavk.backends.vulkan import _ffi, portions
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.portions import Rows, narrowed
from tosavk.backends.vulkan.spirv import catalogue_library
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import EventState, MemoryDomain
from tosavk.core.errors import DeviceLost, InvalidArgument, ModelError
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

SIDE = 96
BUDGET = 7_000


@contextmanager
def opened(spec: str, budget: int, door: Door) -> Generator[Accelerator]:
    options = VulkanOptions(pipeline_cache=False, submission_work=budget)
    device = open_device(spec, wrap=door, options=options, library=catalogue_library())
    with Accelerator(device) as accelerator:
        yield accelerator


def model() -> bytes:
    """Kernels of several kinds, with an arena, a loop and a view."""
    b = tosavk.Builder()
    x = b.input("x", tosavk.DType.FP32, (1, SIDE, SIDE))
    y = b.exp(b.matmul(x, b.reverse(x, axis=1)))
    total = b.reduce_sum(y, axis=2)
    b.output(b.add(y, total, name="y"))
    return b.build()


def result(accelerator: Accelerator) -> bytes:
    limits = accelerator.device.plan_limits
    x = np.random.default_rng(4).uniform(-0.2, 0.2, (1, SIDE, SIDE))
    lowered = lower_graph(load_graph(model()), limits=limits)
    with Session(accelerator, lowered) as session:
        first = session.run({"x": x.astype(np.float32)})["y"].tobytes()
        assert session.run({"x": x.astype(np.float32)})["y"].tobytes() == first
    return first


def test_work_is_cut_inside_of_operators_and_the_bits_stay(
    vulkan_device: str,
) -> None:
    whole, cut = Door(), Door()
    with opened(vulkan_device, portions.SUBMISSION_WORK, whole) as accelerator:
        expected = result(accelerator)
    assert whole.calls["vkCmdDispatchBase"] == 0
    with opened(vulkan_device, BUDGET, cut) as accelerator:
        assert result(accelerator) == expected
    # One work group of the product takes 64 x 96 turns, and there are several.
    assert cut.calls["vkCmdDispatchBase"] > 1
    assert cut.calls["vkQueueSubmit2"] > whole.calls["vkQueueSubmit2"] + 2
    assert not cut.live
    assert not cut.wrong


def test_portions_wait_for_a_gate_once(vulkan_device: str) -> None:
    with opened(vulkan_device, BUDGET, Door()) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, chain_model(SIDE, 3))
        x = np.random.default_rng(5).integers(-3, 4, (SIDE, SIDE)).astype(np.float32)
        source = allocate(context, x.nbytes, MemoryDomain.DEVICE, x)
        target = allocate(context, x.nbytes, MemoryDomain.DEVICE)
        gate = accelerator.create_gate()
        queue = context.create_queue()
        bindings = bind(program, [source, target])
        with queue.submit_after(program, bindings, gate, 1) as event:
            assert event.poll() is EventState.PENDING
            gate.signal().raise_to(1)
            event.wait()
        want = np.linalg.matrix_power(x.astype(np.float64), 4)
        assert np.allclose(floats(target).reshape(SIDE, SIDE), want, rtol=1e-5)


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_nothing_of_refused_work_stays(vulkan_device: str, failing: int) -> None:
    door = Door()
    with opened(vulkan_device, BUDGET, door) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, chain_model(SIDE, 3))
        x = np.ones((SIDE, SIDE), np.float32)
        source = allocate(context, x.nbytes, MemoryDomain.DEVICE, x)
        target = allocate(context, x.nbytes, MemoryDomain.DEVICE)
        bindings = bind(program, [source, target])
        queue = context.create_queue()
        door.arm(failing, code=_ffi.const.ERROR_OUT_OF_DEVICE_MEMORY, only=SUBMIT)
        with pytest.raises(ModelError) as caught:
            queue.submit(program, bindings)
        assert not isinstance(caught.value, DeviceLost)
        source.write(0, x)  # nothing uses it
        with queue.submit(program, bindings) as event:
            event.wait()
        assert np.all(floats(target) == np.float32(SIDE) ** 3)


def test_refused_work_does_not_wait_for_its_gate(vulkan_device: str) -> None:
    """Behind a gate all portions are accepted at once, or none."""
    door = Door()
    with opened(vulkan_device, BUDGET, door) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, chain_model(SIDE, 3))
        x = np.ones((SIDE, SIDE), np.float32)
        source = allocate(context, x.nbytes, MemoryDomain.DEVICE, x)
        target = allocate(context, x.nbytes, MemoryDomain.DEVICE)
        bindings = bind(program, [source, target])
        queue = context.create_queue()
        gate = accelerator.create_gate()
        door.arm(1, code=_ffi.const.ERROR_OUT_OF_DEVICE_MEMORY, only=SUBMIT)
        with pytest.raises(ModelError):
            queue.submit_after(program, bindings, gate, 1)
        with queue.submit(program, bindings) as event:
            event.wait()
        submitted = door.calls[SUBMIT]
        with queue.submit_after(program, bindings, gate, 1) as event:
            assert door.calls[SUBMIT] == submitted + 1
            gate.signal().raise_to(1)
            event.wait()
        assert np.all(floats(target) == np.float32(SIDE) ** 3)


SUBMIT = "vkQueueSubmit2"


@given(
    st.lists(
        st.tuples(
            st.tuples(st.integers(1, 9), st.integers(1, 40), st.just(1)),
            st.integers(1, 500),
        ),
        max_size=6,
    ),
    st.integers(1, 4000),
)
def test_every_row_goes_into_one_submission(
    steps: list[tuple[portions.Groups, int]], budget: int
) -> None:
    dealt = portions.portions(steps, budget)
    rows = list(itertools.chain.from_iterable(dealt))
    assert [
        (part.step, row)
        for part in rows
        for row in range(part.first, part.first + part.count)
    ] == [(n, row) for n, (groups, _) in enumerate(steps) for row in range(groups[1])]
    for submission in dealt:
        cost = sum(steps[r.step][0][0] * r.count * steps[r.step][1] for r in submission)
        assert cost <= budget or submission == (
            Rows(submission[0].step, submission[0].first, 1),
        )


@given(
    st.integers(1, 100_000),
    st.integers(1, 50),
    st.integers(1, 10_000),
    st.integers(1, 1 << 30),
)
def test_rows_become_narrow_enough(
    across: int, rows: int, cost: int, budget: int
) -> None:
    most = 65_535
    found = narrowed((across, rows, 1), cost, most, budget)
    assert across * rows <= math.prod(found) < across * rows + found[0]
    assert found[1] <= most
    if across * rows * cost <= budget:
        assert found == (across, rows, 1)
    elif found[1] < most:
        least = math.ceil(across * rows / most)
        assert found[0] * cost <= budget or found[0] in (1, least)


@pytest.mark.parametrize("text", ["0", "-3", "much", "1.5"])
def test_a_budget_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(portions.VARIABLE, text)
    with pytest.raises(InvalidArgument, match=portions.VARIABLE):
        VulkanOptions()


def test_a_budget_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(portions.VARIABLE, "123")
    assert VulkanOptions().submission_work == 123
    monkeypatch.delenv(portions.VARIABLE)
    assert VulkanOptions().submission_work == portions.SUBMISSION_WORK
