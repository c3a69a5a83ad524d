"""Rules about values hold for whoever submits: the Accelerator model, no session."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np
import pytest

from harness.dynamic import CASES, FORBIDDEN, GIVEN, I16, MADE, Case, computed
from harness.running import Array, Devices, same_values
from tosavk.backends.loaded import slot_domain
from tosavk.backends.session import lower_on
from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    FORMAT_TOSA,
    USAGE_ALL,
    AccessMode,
    Artifact,
    Binding,
    BufferDesc,
    BufferRange,
    EventState,
)
from tosavk.core.device import Lowered
from tosavk.core.dtypes import DType, pack, unpack
from tosavk.core.errors import InvalidArgument, Unsupported
from tosavk.core.events import Event
from tosavk.core.plan import Slot, SlotRole
from tosavk.lowering import target
from tosavk.lowering.graph import Graph, Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

Feeds = dict[str, Array]
Programs = Callable[[Case], tuple[Graph, Feeds]]


class Bound:
    """A program with a buffer for each of its slots."""

    def __init__(
        self, accelerator: Accelerator, context: Context, source: Lowered | Artifact
    ) -> None:
        self.context = context
        self.queue = context.create_queue()
        self.program = context.load_program(source)
        self._buffers: dict[str, tuple[Slot, Buffer]] = {}
        self.bindings: list[Binding] = []
        for slot in self.program.slots:
            desc = BufferDesc(
                slot.nbytes, USAGE_ALL, slot_domain(accelerator, SlotRole.OUTPUT)
            )
            made = context.allocate_buffer(desc)
            read = slot.role is SlotRole.INPUT
            access = AccessMode.READ if read else AccessMode.WRITE
            whole = BufferRange(0, slot.nbytes)
            self.bindings.append(Binding(slot.index, made, whole, access))
            self._buffers[slot.name] = (slot, made)

    def fill(self, feeds: Feeds) -> None:
        for name, value in feeds.items():
            slot, made = self._buffers[name]
            made.write(0, pack(slot.dtype, value))

    def submit(self) -> Event:
        return self.queue.submit(self.program, self.bindings)

    def output(self) -> Array:
        slot, made = next(
            pair for pair in self._buffers.values() if pair[0].role is SlotRole.OUTPUT
        )
        raw = bytearray(slot.nbytes)
        made.read_into(0, raw)
        return unpack(slot.dtype, raw, slot.shape).copy()


@contextmanager
def bound(
    opened: Devices, device: str, source: Graph | Artifact
) -> Generator[tuple[Bound, Accelerator]]:
    accelerator = opened.accelerator(device)
    program: Lowered | Artifact
    if isinstance(source, Graph):
        program = lower_on(accelerator.device, source)
    else:
        program = source
    with accelerator.create_context() as context:
        yield Bound(accelerator, context, program), accelerator


def judged(event: Event) -> str:
    """What the end of a submission says: "" or why it failed."""
    with event:
        state = event.wait()
    assert (state is EventState.FAILED) is (event.error is not None)
    assert event.error is None or isinstance(event.error, InvalidArgument)
    return str(event.error or "")


def given(case: Case) -> tuple[Graph, Feeds]:
    return case.program(constant=False)


def made(case: Case) -> tuple[Graph, Feeds]:
    return computed(case, region=False)


@pytest.mark.parametrize(("programs", "prefix"), [(given, GIVEN), (made, MADE)])
@pytest.mark.parametrize(("case", "operand", "value", "message"), FORBIDDEN)
def test_a_submission_with_a_forbidden_value_has_failed(
    opened: Devices,
    device: str,
    case: str,
    operand: str,
    value: float,
    message: str,
    programs: Programs,
    prefix: str,
) -> None:
    """Its event names operator, tensor and value; the next one is fine again."""
    graph, feeds = programs(CASES[case])
    wrong = {**feeds, operand: np.full_like(feeds[operand], value)}
    with bound(opened, device, graph) as (work, _):
        names = [slot.name for slot in work.program.slots]
        assert names == [*graph.main.inputs, *graph.main.outputs]
        prepared = work.context.prepare(work.program, work.bindings)
        for submit in (prepared.submit, work.submit):
            work.fill(feeds)
            assert judged(submit()) == ""
            first = work.output()
            work.fill(wrong)
            assert re.search(message.format(prefix), judged(submit()))
            work.fill(feeds)
            assert judged(submit()) == ""
            assert same_values(first, work.output())


def negation() -> bytes:
    b = Builder()
    shapes = {"x": (4,), "zp": (1,), "out_zp": (1,)}
    operands = [b.input(name, I16, shape) for name, shape in shapes.items()]
    b.output(b.op(Op.NEGATE, operands, name="y"))
    return b.build()


def negated(zero_point: int) -> Feeds:
    return {
        "x": np.arange(4, dtype=np.int16),
        "zp": np.array([zero_point], np.int16),
        "out_zp": np.zeros(1, np.int16),
    }


def artifact(data: bytes) -> Artifact:
    return Artifact(FORMAT_TOSA, target.EVERYTHING.words(), data)


def test_an_artifact_is_judged_as_well(opened: Devices, device: str) -> None:
    with bound(opened, device, artifact(negation())) as (work, _):
        work.fill(negated(0))
        assert judged(work.submit()) == ""
        np.testing.assert_array_equal(work.output(), [0, -1, -2, -3])
        work.fill(negated(3))
        assert "'zp'" in judged(work.submit())


def test_a_submission_behind_a_gate_is_judged(opened: Devices, device: str) -> None:
    """Its inputs may come after the submission."""
    with bound(opened, device, artifact(negation())) as (work, accelerator):
        work.fill(negated(3))
        if device.startswith("wgpu"):
            pytest.skip("wgpu has no gates; another test says so")
        with accelerator.create_gate() as gate:
            event = work.queue.submit_after(work.program, work.bindings, gate, 1)
            assert event.poll() is EventState.PENDING
            gate.signal().raise_to(1)
            assert "'zp'" in judged(event)


def test_a_closed_context_has_judged_its_work(opened: Devices, device: str) -> None:
    with bound(opened, device, artifact(negation())) as (work, _):
        work.fill(negated(3))
        event = work.submit()
    assert event.poll() is EventState.FAILED
    assert "'zp'" in str(event.error)
    event.release()


def test_several_in_flight_are_judged_each(opened: Devices, device: str) -> None:
    accelerator = opened.accelerator(device)
    with accelerator.create_context() as context:
        works = [Bound(accelerator, context, artifact(negation())) for _ in range(3)]
        for number, work in enumerate(works):
            work.fill(negated(number % 2))
        events = [work.submit() for work in works]
        assert [bool(judged(event)) for event in events] == [False, True, False]


def test_an_operand_that_is_an_output_too(opened: Devices, device: str) -> None:
    b = Builder()
    x, seed = b.input("x", I16, (4,)), b.input("seed", I16, (1,))
    zero = b.const(np.zeros(1, np.int16))
    zp = b.op(Op.REVERSE, [seed], axis=0, name="zp")
    b.output(b.op(Op.NEGATE, [x, zp, zero], name="y"))
    b.output(zp)
    graph = load_graph(b.build())
    for value, error in ((0, ""), (7, "'zp'")):
        feeds = {"x": np.ones(4, np.int16), "seed": np.array([value], np.int16)}
        with bound(opened, device, graph) as (work, _):
            work.fill(feeds)
            found = judged(work.submit())
            assert error in found if error else found == ""


def test_rules_in_regions_need_a_session(opened: Devices, device: str) -> None:
    """A submission is no place for them: several backends would not look."""
    graph, _ = computed(CASES["negate int16"], region=True)
    accelerator = opened.accelerator(device)
    with accelerator.create_context() as context:
        for source in (lower_on(accelerator.device, graph), artifact(_region())):
            with pytest.raises(Unsupported, match=r"tosavk\.load"):
                context.load_program(source)


def _region() -> bytes:
    b = Builder()
    x, zp = b.input("x", I16, (4,)), b.input("zp", I16, (1,))
    taken = b.input("taken", DType.BOOL, (1,))
    for name in ("then", "else"):
        inside = b.region(name)
        value, point = inside.input("v", I16, (4,)), inside.input("p", I16, (1,))
        zero = inside.const(np.zeros(1, np.int16))
        inside.output(inside.op(Op.NEGATE, [value, point, zero]))
    b.output(*b.cond_if(taken, [x, zp], then_graph="then", else_graph="else"))
    return b.build()
