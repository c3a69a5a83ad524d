"""Graph to Plan: liveness, folding, views, rules, arena, barriers.

The order of steps: dead operators go; constants are folded; slots are numbered; outputs
that are mere views of an intermediate take over its memory; rules emit dispatches;
lifetimes become places; hazards become barriers. Source: docs/architecture.md, "The way
of the data".
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tosavk.core.dtypes import DType, storage_bytes
from tosavk.core.errors import TooLarge
from tosavk.core.plan import (
    Constant,
    Dispatch,
    Numerics,
    Operand,
    OperatorName,
    Plan,
    PlanLimits,
    Slot,
    SlotRole,
)
from tosavk.lowering.admission import check_operator, refusal
from tosavk.lowering.arena import Arena, allocate, lifetimes
from tosavk.lowering.builder import (
    CONSTANT_OPS,
    Emitted,
    Memory,
    PlanBuilder,
    Value,
)
from tosavk.lowering.control import lower_flow, needs_flow
from tosavk.lowering.errors import AdmissionError, Kind
from tosavk.lowering.flow import Flow
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Block, Graph, Op, Operator
from tosavk.lowering.hazards import HazardTracker, ranges
from tosavk.lowering.late import LateChecks
from tosavk.lowering.rules.layout import copy_value
from tosavk.lowering.rules.table import RULES

_VIEW_OPS = frozenset({Op.IDENTITY, Op.RESHAPE})
_MAX_ELEMENTS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Lowered:
    """A verified graph with its plan.

    Attributes:
        graph: the graph.
        plan: its plan; only slots, where a flow says what to do.
        flow: for graphs with control flow or variables.
        rules: what is forbidden of the values in the plan's checked slots.
    """

    graph: Graph
    plan: Plan
    flow: Flow | None = None
    rules: LateChecks | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Everything that is dispatched: the plan, or those of the flow's pieces."""
        if self.flow is None:
            return (self.plan,)
        return tuple(piece.plan for piece in self.flow.pieces)


def lower_graph(
    graph: Graph,
    *,
    limits: PlanLimits | None = None,
    numerics: Numerics = Numerics.STRICT,
) -> Lowered:
    """Lowers a verified graph.

    Raises:
        AdmissionError: an operator, type or graph form that the kernels lack.
        TooLarge: a tensor is larger than the device's storage buffers.
    """
    limits = limits or PlanLimits()
    try:
        return _lowered(graph, limits, numerics)
    except AdmissionError as error:
        raise refusal(graph, error) from error


def _lowered(graph: Graph, limits: PlanLimits, numerics: Numerics) -> Lowered:
    if not needs_flow(graph):
        rules = value_rules(graph)
        checked = rules.names if rules else ()
        return Lowered(graph, _lower(graph, limits, numerics, checked), rules=rules)
    flow = lower_flow(graph, lambda piece: _lower(piece, limits, numerics))
    slots = _slots(graph.main, limits)
    return Lowered(graph, Plan(slots, (), (), (), (), (), numerics), flow)


def _lower(
    graph: Graph,
    limits: PlanLimits,
    numerics: Numerics,
    checked: Sequence[str] = (),
) -> Plan:
    """The plan of a graph without control flow, with slots for what is checked."""
    block = graph.main
    entry = next(r for r in graph.regions if r.blocks[0] is block)
    if len(entry.blocks) != 1:
        raise AdmissionError(
            f"region {entry.name!r} has {len(entry.blocks)} blocks; only regions of one "
            "block are supported",
            kind=Kind.UNSUPPORTED_GRAPH,
        )
    if not block.outputs:
        raise AdmissionError("the program has no outputs", kind=Kind.UNSUPPORTED_GRAPH)
    live = live_operators(block)
    constants = fold(block, live)
    LateChecks.of(block, live).check(constants)
    slots = _slots(block, limits, checked)
    build = PlanBuilder(
        tensors=block.tensors, constants=constants, values={}, limits=limits
    )
    work = [
        op
        for op in live
        if op.op not in CONSTANT_OPS
        and not all(name in constants for name in op.outputs)
    ]
    constant_only = _constant_only(work, set(constants))
    copies = _bind_slots(block, build, slots, work, constant_only)
    for op in work:
        check_operator(op, block)
        build.begin(op, constant_only=op.index in constant_only)
        if op.op in _VIEW_OPS:
            _view_or_copy(op, build)
        else:
            RULES[op.op].function(op, build)
    for name, memory in copies:
        _copy_out(block, build, name, memory)
    return _assemble(build, slots, limits, numerics)


def live_operators(block: Block) -> list[Operator]:
    """The operators that some block output depends on, in execution order."""
    wanted = set(block.outputs)
    live: list[Operator] = []
    for op in reversed(block.operators):
        if op.op is Op.VARIABLE_WRITE or not wanted.isdisjoint(op.outputs):
            live.append(op)
            wanted.update(op.inputs)
    live.reverse()
    return live


def value_rules(graph: Graph) -> LateChecks | None:
    """The rules about operands of the entry block whose values only a run brings.

    Only a run can tell whether such a zero point, multiplier or shift is allowed.

    Returns:
        The rules, whose names are inputs or computed; None if there are none.
    """
    block = graph.main
    live = live_operators(block)
    rules = LateChecks.of(block, live)
    if not rules.names:
        return None
    known = fold(block, live)
    names = tuple(name for name in rules.names if name not in known)
    return dataclasses.replace(rules, names=names) if names else None


def with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """A graph whose entry block also gives some of its tensors."""
    block = graph.main
    wider = dataclasses.replace(block, outputs=(*block.outputs, *names))
    regions = tuple(
        dataclasses.replace(
            region, blocks=tuple(wider if b is block else b for b in region.blocks)
        )
        for region in graph.regions
    )
    return dataclasses.replace(graph, regions=regions)


def _constant_only(work: Sequence[Operator], known: set[str]) -> set[int]:
    """Indices of operators whose inputs are all known at load."""
    found: set[int] = set()
    for op in work:
        if op.inputs and known.issuperset(op.inputs):
            found.add(op.index)
            known.update(op.outputs)
    return found


def _slots(
    block: Block, limits: PlanLimits, checked: Sequence[str] = ()
) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    for role, names in (
        (SlotRole.INPUT, block.inputs),
        (SlotRole.OUTPUT, block.outputs),
        (SlotRole.CHECKED, checked),
    ):
        for name in names:
            tensor = block.tensors[name]
            assert tensor.shape is not None
            nbytes = storage_bytes(tensor.dtype, tensor.shape)
            if nbytes > limits.max_storage_buffer_range:
                raise TooLarge(
                    role.value,
                    tensor=name,
                    requested=nbytes,
                    limit=limits.max_storage_buffer_range,
                    limit_name=limits.storage_limit,
                )
            slots.append(
                Slot(len(slots), name, role, tensor.dtype, tensor.shape, nbytes)
            )
    return tuple(slots)


def _bind_slots(
    block: Block,
    build: PlanBuilder,
    slots: Sequence[Slot],
    work: Sequence[Operator],
    constant_only: set[int],
) -> list[tuple[str, Memory]]:
    """Gives boundary tensors their slots; returns those that need a final copy."""
    copies: list[tuple[str, Memory]] = []
    made_at_load = {n for op in work if op.index in constant_only for n in op.outputs}
    for slot in slots:
        memory = Memory(slot.nbytes, slot=slot.index, label=slot.name)
        taken = slot.name in build.values or slot.name in build.constants
        if slot.role is not SlotRole.INPUT and (taken or slot.name in made_at_load):
            copies.append((slot.name, memory))
            continue
        build.values[slot.name] = Value(slot.dtype, slot.shape, memory)
    readers = Counter(name for op in work for name in op.inputs)
    boundary = {slot.name for slot in slots}
    for op in reversed(work):
        if op.op not in _VIEW_OPS or op.outputs[0] not in build.values:
            continue
        source = op.inputs[0]
        target = build.values[op.outputs[0]]
        if (
            source in boundary
            or source in build.constants
            or source in made_at_load
            or readers[source] != 1
        ):
            continue
        build.values[source] = Value(target.dtype, build.shape(source), target.memory)
    return copies


def _view_or_copy(op: Operator, build: PlanBuilder) -> None:
    source = build.value(op.inputs[0])
    name = op.outputs[0]
    target = build.values.get(name)
    if target is None:
        build.values[name] = Value(source.dtype, build.shape(name), source.memory)
    elif target.memory is not source.memory:
        copy_value(build, source, target)


def _copy_out(block: Block, build: PlanBuilder, name: str, memory: Memory) -> None:
    source = build.value(name)
    producer = next((op for op in block.operators if name in op.outputs), None)
    origin = producer or Operator(len(block.operators), Op.IDENTITY, (name,), (name,))
    build.begin(origin, constant_only=False)
    copy_value(build, source, Value(source.dtype, source.shape, memory))


def _assemble(
    build: PlanBuilder,
    slots: tuple[Slot, ...],
    limits: PlanLimits,
    numerics: Numerics,
) -> Plan:
    arena = allocate(lifetimes(build.prologue, build.emitted), limits)
    origins: dict[int, int] = {}
    names: list[OperatorName] = []
    for item in (*build.prologue, *build.emitted):
        op = item.operator
        if op.index not in origins:
            origins[op.index] = len(names)
            output = op.outputs[0] if op.outputs else ""
            names.append(OperatorName(op.index, op.op.name, output, op.location))
    constants = tuple(
        Constant(place.segment, place.offset, memory.data)
        for memory, place in arena.places.items()
        if memory.data is not None
    )
    return Plan(
        slots=slots,
        segments=arena.segments,
        constants=constants,
        prologue=_dispatches(build.prologue, arena, len(slots), origins),
        dispatches=_dispatches(build.emitted, arena, len(slots), origins),
        operators=tuple(names),
        numerics=numerics,
    )


def _dispatches(
    items: Sequence[Emitted], arena: Arena, slots: int, origins: dict[int, int]
) -> tuple[Dispatch, ...]:
    def place(memory: Memory) -> Operand:
        if memory.slot is not None:
            return Operand(memory.slot, 0, memory.words)
        spot = arena.places[memory]
        return Operand(slots + spot.segment, spot.offset // 4, memory.words)

    tracker = HazardTracker()
    result: list[Dispatch] = []
    for item in items:
        operands = tuple(place(memory) for memory in item.operands)
        reads = len(operands) - item.kernel.outputs
        barrier = tracker.needs_barrier(
            ranges(operands[:reads]), ranges(operands[reads:]), _disjoint_group(item)
        )
        result.append(
            Dispatch(
                kernel=item.kernel.name,
                spec=item.spec,
                params=item.params,
                operands=operands,
                columns=item.columns,
                tiles=item.tiles,
                barrier=barrier,
                operator=origins[item.operator.index],
            )
        )
    return tuple(result)


def _disjoint_group(item: Emitted) -> object | None:
    """Parts of one CONCAT of 32-bit elements write disjoint words."""
    if item.kernel.name == "concat" and DType(item.spec[0]).bits == 32:
        return item.operator
    return None
