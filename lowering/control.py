"""Lowers a graph with control flow or variables to a flow.

A block is cut at its operators of control flow and variables. What lies between them
moves freely, since it has no effects: as much as possible goes into one piece.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import pack, serialized_bytes, storage_bytes, unpack_serialized
from tosavk.core.plan import Plan
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.errors import AdmissionError, Kind, operator_name
from tosavk.lowering.flow import (
    Branch,
    Call,
    Check,
    Flow,
    Held,
    Loop,
    Piece,
    Read,
    Routine,
    Run,
    Step,
    Variable,
    Write,
    read_by,
)
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Block, Graph, Op, Operator, Region, Tensor
from tosavk.lowering.late import LateChecks

CALLS: Mapping[Op, tuple[str, str]] = {
    Op.COND_IF: ("then_graph", "else_graph"),
    Op.WHILE_LOOP: ("cond_graph", "body_graph"),
}
VARIABLE_OPS = frozenset({Op.VARIABLE, Op.VARIABLE_READ, Op.VARIABLE_WRITE})
FLOW_OPS = frozenset(CALLS) | VARIABLE_OPS
"""Operators that are no part of a plan."""

MAX_PIECES = 64
"""As many programs as one context holds."""

Lower = Callable[[Graph], Plan]


def needs_flow(graph: Graph) -> bool:
    """Whether a plan alone cannot say what a graph does."""
    return any(op.op in FLOW_OPS for op in graph.main.operators)


def called_region(graph: Graph, op: Operator, attribute: str) -> Region:
    """The region that an operator of control flow names; verified to be there."""
    name = op.attributes[attribute]
    return next(region for region in graph.regions if region.name == name)


def lower_flow(graph: Graph, lower: Lower) -> Flow:
    """Lowers a verified graph.

    Args:
        graph: with operators of control flow or variables.
        lower: lowers a graph that has none.

    Raises:
        AdmissionError: an operator, type or graph form that is not supported.
        ResourceLimit: a tensor is larger than the device's storage buffers.
    """
    return _Flow(graph, lower).whole()


class _Flow:
    """One lowering."""

    def __init__(self, graph: Graph, lower: Lower) -> None:
        self.graph = graph
        self._lower = lower
        self._pieces: list[Piece] = []
        self._routines: list[Routine | None] = []
        self._numbers: dict[str, int] = {}
        self._effects: dict[str, bool] = {}
        self._variables: dict[str, int] = {}
        self._declared: list[Variable] = []

    def whole(self) -> Flow:
        """The flow of the whole program."""
        main = self.graph.main
        entry = next(r for r in self.graph.regions if r.blocks[0] is main)
        self._declare()
        self.routine(entry)
        done = tuple(routine for routine in self._routines if routine is not None)
        return Flow(tuple(self._pieces), done, tuple(self._declared))

    def routine(self, region: Region) -> int:
        """Number of the routine that a region becomes."""
        number = self._numbers.get(region.name)
        if number is None:
            number = len(self._routines)
            self._numbers[region.name] = number
            self._routines.append(None)
            self._routines[number] = _Cut(self, region).routine()
        return number

    def piece(self, block: Block) -> int:
        """Number of the piece that a straight-line block becomes."""
        region = Region(block.name, (block,))
        graph = dataclasses.replace(self.graph, regions=(region,))
        if len(self._pieces) == MAX_PIECES:
            raise AdmissionError(
                f"control flow and variables cut the program into more than "
                f"{MAX_PIECES} pieces; use fewer such operators",
                kind=Kind.UNSUPPORTED_GRAPH,
            )
        self._pieces.append(Piece(graph, self._lower(graph)))
        return len(self._pieces) - 1

    def variable(self, op: Operator, block: Block) -> int:
        """Number of the variable that an operator names."""
        tensors = [block.tensors[name] for name in (*op.inputs, *op.outputs)]
        for tensor in tensors:
            if tensor.variable or tensor.variable_name:
                name = variable_name(tensor)
                break
        else:
            raise _refusal(op, "names no variable")
        number = self._variables.get(name, -1)
        if number < 0:
            raise _refusal(op, f"no variable {name!r} is declared")
        known = self._declared[number]
        for tensor in tensors:
            if (tensor.dtype, tensor.shape) != (known.dtype, known.shape):
                raise _refusal(
                    op,
                    f"{tensor.name!r} is {tensor.dtype.name} {tensor.shape}, but the "
                    f"variable {name!r} is {known.dtype.name} {known.shape}",
                )
        return number

    def has_effects(self, op: Operator) -> bool:
        """Whether an operator changes a variable, itself or in a region it calls."""
        if op.op is Op.VARIABLE_WRITE:
            return True
        return any(
            self._region_has_effects(called_region(self.graph, op, attribute))
            for attribute in CALLS.get(op.op, ())
        )

    def _region_has_effects(self, region: Region) -> bool:
        if region.name not in self._effects:
            self._effects[region.name] = any(
                self.has_effects(op) for op in region.blocks[0].operators
            )
        return self._effects[region.name]

    def _declare(self) -> None:
        """Collects the variables of all regions; the same name is the same variable."""
        for region in self.graph.regions:
            for tensor in region.blocks[0].tensors.values():
                if not tensor.variable:
                    continue
                assert tensor.shape is not None
                name, size = (
                    variable_name(tensor),
                    storage_bytes(tensor.dtype, tensor.shape),
                )
                initial = _initial(tensor)
                number = self._variables.get(name)
                if number is None:
                    self._variables[name] = len(self._declared)
                    self._declared.append(
                        Variable(name, tensor.dtype, tensor.shape, size, initial)
                    )
                    continue
                known = self._declared[number]
                if (known.dtype, known.shape) != (tensor.dtype, tensor.shape):
                    raise AdmissionError(
                        f"variable {name!r} is {known.dtype.name} {known.shape} in one "
                        f"place and {tensor.dtype.name} {tensor.shape} in region "
                        f"{region.name!r}; give different variables different names",
                        kind=Kind.INVALID_VARIABLE,
                        tensor=tensor.name,
                    )
                if known.initial is None and initial is not None:
                    self._declared[number] = dataclasses.replace(known, initial=initial)


class _Cut:
    """Cuts one block into steps."""

    def __init__(self, flow: _Flow, region: Region) -> None:
        self._flow = flow
        self._region = region
        self._block = region.blocks[0]
        if len(region.blocks) != 1:
            raise AdmissionError(
                f"region {region.name!r} has {len(region.blocks)} blocks; only regions "
                "of one block are supported",
                kind=Kind.UNSUPPORTED_GRAPH,
            )
        self._live = self._live_operators()
        self._constants = fold(self._block, self._live)
        self._held: list[Held] = []
        self._values: dict[str, int] = {}
        self._steps: list[Step] = []
        self._producers = {name: op for op in self._live for name in op.outputs}

    def routine(self) -> Routine:
        """The routine."""
        inputs = tuple(self._value(name) for name in self._block.inputs)
        work = [
            op
            for op in self._live
            if op.op not in CONSTANT_OPS
            and op.op is not Op.VARIABLE
            and not (op.outputs and all(name in self._constants for name in op.outputs))
        ]
        for op in work:
            self._check_operands(op)
        self._schedule(work)
        for name in self._block.outputs:
            self._check_no_variable(name, "an output of the block")
        outputs = tuple(self._value(name) for name in self._block.outputs)
        return Routine(
            self._region.name,
            tuple(self._held),
            inputs,
            outputs,
            tuple(self._steps),
            _ends(self._steps, self._held, outputs),
        )

    def _live_operators(self) -> list[Operator]:
        """Operators that an output or a variable depends on, in order."""
        wanted = set(self._block.outputs)
        live: list[Operator] = []
        for op in reversed(self._block.operators):
            if not wanted.isdisjoint(op.outputs) or self._flow.has_effects(op):
                live.append(op)
                wanted.update(op.inputs)
        live.reverse()
        return live

    def _check_operands(self, op: Operator) -> None:
        if op.op not in VARIABLE_OPS:
            for name in (*op.inputs, *op.outputs):
                self._check_no_variable(name, f"an operand of {op}")

    def _check_no_variable(self, name: str, what: str) -> None:
        if self._block.tensors[name].variable:
            raise AdmissionError(
                f"variable {name!r} is {what}; read it by VARIABLE_READ and use the "
                "result",
                kind=Kind.UNSUPPORTED_GRAPH,
                tensor=name,
            )

    def _schedule(self, work: Sequence[Operator]) -> None:
        """Orders operators: all straight-line ones that can run, then one with effects.

        Those of control flow and variables keep their order among each other.
        """
        positions = {op.index: place for place, op in enumerate(work)}
        readers: dict[int, list[int]] = {}
        missing = [0] * len(work)
        for place, op in enumerate(work):
            needs = {
                positions[self._producers[name].index]
                for name in self._operands(op)
                if name in self._producers and self._producers[name].index in positions
            }
            missing[place] = len(needs)
            for need in needs:
                readers.setdefault(need, []).append(place)
        effects = [place for place, op in enumerate(work) if op.op in FLOW_OPS]
        ready = [
            place
            for place, op in enumerate(work)
            if not missing[place] and op.op not in FLOW_OPS
        ]

        def done(place: int) -> None:
            for reader in readers.get(place, ()):
                missing[reader] -= 1
                if not missing[reader] and work[reader].op not in FLOW_OPS:
                    heapq.heappush(ready, reader)

        used = self._uses(work)
        turn = 0
        while ready or turn < len(effects):
            while turn < len(effects) and not missing[effects[turn]]:
                self._effect(work[effects[turn]])
                done(effects[turn])
                turn += 1
            piece: list[Operator] = []
            while ready:
                place = heapq.heappop(ready)
                piece.append(work[place])
                done(place)
            if piece:
                self._run(piece, used)

    def _operands(self, op: Operator) -> tuple[str, ...]:
        """The tensors that an operator reads: of variable operators only the value."""
        if op.op in VARIABLE_OPS:
            return tuple(n for n in op.inputs if not self._names_variable(n))
        return op.inputs

    def _names_variable(self, name: str) -> bool:
        tensor = self._block.tensors[name]
        return tensor.variable or bool(tensor.variable_name)

    def _uses(self, work: Iterable[Operator]) -> dict[str, set[int]]:
        """Which operators read a tensor; -1 stands for the caller."""
        used: dict[str, set[int]] = {}
        for op in work:
            for name in self._operands(op):
                used.setdefault(name, set()).add(op.index)
        for name in self._block.outputs:
            used.setdefault(name, set()).add(-1)
        return used

    def _run(self, piece: Sequence[Operator], used: Mapping[str, set[int]]) -> None:
        """A step for straight-line operators."""
        inside = {op.index for op in piece}
        made = {name for op in piece for name in op.outputs}
        late = LateChecks.of(self._block, piece)
        outputs = [
            name
            for op in piece
            for name in op.outputs
            if not used.get(name, set()) <= inside or name in late.names
        ]
        inputs = list(
            dict.fromkeys(
                name
                for op in piece
                for name in op.inputs
                if name not in made and name not in self._constants
            )
        )
        operators = (*self._constant_operators(piece), *piece)
        used_names = {n for op in operators for n in (*op.inputs, *op.outputs)}
        block = Block(
            name=self._block.name,
            operators=tuple(operators),
            tensors={n: t for n, t in self._block.tensors.items() if n in used_names},
            inputs=tuple(inputs),
            outputs=tuple(outputs),
        )
        self._steps.append(
            Run(
                self._flow.piece(block),
                tuple(self._value(name) for name in inputs),
                tuple(self._value(name) for name in outputs),
            )
        )
        # What folding knows is checked when the piece is lowered.
        names = tuple(name for name in late.names if name not in self._constants)
        if names:
            late = dataclasses.replace(late, names=names)
            self._steps.append(Check(late, tuple(self._value(n) for n in names)))

    def _constant_operators(self, piece: Sequence[Operator]) -> list[Operator]:
        """The operators that the constants of a piece come from."""
        wanted = [n for op in piece for n in op.inputs if n in self._constants]
        found: dict[int, Operator] = {}
        while wanted:
            op = self._producers[wanted.pop()]
            if op.index not in found:
                found[op.index] = op
                wanted.extend(op.inputs)
        return [op for op in self._live if op.index in found] if found else []

    def _effect(self, op: Operator) -> None:
        """A step for an operator of control flow or variables."""
        match op.op:
            case Op.VARIABLE_READ:
                number = self._flow.variable(op, self._block)
                self._steps.append(Read(number, self._value(op.outputs[0])))
            case Op.VARIABLE_WRITE:
                number = self._flow.variable(op, self._block)
                operands = self._operands(op)
                if len(operands) != 1:
                    raise _refusal(op, "must have one value to write")
                self._steps.append(Write(number, self._value(operands[0])))
            case Op.COND_IF:
                self._branch(op)
            case _:
                condition, body = self._called(op)
                self._steps.append(
                    Loop(
                        operator_name(op),
                        self._flow.routine(condition),
                        self._flow.routine(body),
                        tuple(self._value(name) for name in op.inputs),
                        tuple(self._value(name) for name in op.outputs),
                    )
                )

    def _branch(self, op: Operator) -> None:
        then, other = self._called(op)
        inputs = tuple(self._value(name) for name in op.inputs[1:])
        outputs = tuple(self._value(name) for name in op.outputs)
        known = self._constants.get(op.inputs[0])
        if known is not None:
            chosen = then if bool(known.reshape(-1)[0]) else other
            number = self._flow.routine(chosen)
            self._steps.append(Call(operator_name(op), number, inputs, outputs))
            return
        self._steps.append(
            Branch(
                operator_name(op),
                self._value(op.inputs[0]),
                self._flow.routine(then),
                self._flow.routine(other),
                inputs,
                outputs,
            )
        )

    def _called(self, op: Operator) -> tuple[Region, Region]:
        first, second = CALLS[op.op]
        graph = self._flow.graph
        return called_region(graph, op, first), called_region(graph, op, second)

    def _value(self, name: str) -> int:
        """Number of the value that a tensor has; constants get their own."""
        if name not in self._values:
            tensor = self._block.tensors[name]
            constant = self._constants.get(name)
            self._values[name] = len(self._held)
            self._held.append(_held(tensor, constant))
        return self._values[name]


def variable_name(tensor: Tensor) -> str:
    """What a variable is called outside of its block."""
    return tensor.variable_name or tensor.name


def _held(tensor: Tensor, constant: NDArray[np.generic] | None) -> Held:
    assert tensor.shape is not None
    nbytes = storage_bytes(tensor.dtype, tensor.shape)
    data = None if constant is None else memoryview(pack(tensor.dtype, constant))
    return Held(tensor.name, tensor.dtype, tensor.shape, nbytes, data)


def _initial(tensor: Tensor) -> memoryview | None:
    """The first value of a variable, in packed storage."""
    if tensor.data is None:
        return None
    assert tensor.shape is not None
    count = serialized_bytes(tensor.dtype, tensor.shape)
    value = unpack_serialized(tensor.dtype, tensor.data[:count], tensor.shape)
    return memoryview(pack(tensor.dtype, value))


def _ends(
    steps: Sequence[Step], held: Sequence[Held], outputs: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """The values that end with each step: read there last, or written for nobody."""
    later = set(outputs)
    later.update(number for number, value in enumerate(held) if value.data is not None)
    ends: list[tuple[int, ...]] = []
    for step in reversed(steps):
        touched = dict.fromkeys((*read_by(step), *_written_by(step)))
        ends.append(tuple(number for number in touched if number not in later))
        later.update(touched)
    ends.reverse()
    return tuple(ends)


def _written_by(step: Step) -> tuple[int, ...]:
    match step:
        case Read():
            return (step.output,)
        case Write() | Check():
            return ()
        case _:
            return step.outputs


def _refusal(op: Operator, reason: str) -> AdmissionError:
    return AdmissionError(f"{op}: {reason}", kind=Kind.UNSUPPORTED_GRAPH, operator=op)
