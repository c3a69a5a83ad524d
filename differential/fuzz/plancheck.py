"""An independent check of a plan: its barriers, its arena, and who reads whose bytes.

It runs a plan without a device: every 256-byte granule of memory remembers who wrote it
last, who has read it since, and in which stretch between two barriers that was. It
shares nothing with `lowering.hazards` and `lowering.arena`, which keep lists of ranges
and lifetimes. What a dispatch reads and writes is taken from the kernel catalogue; whose
bytes it must find there, from the graph.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tosavk.core.dtypes import DType, pack
from tosavk.core.plan import Dispatch, Operand, Plan, SlotRole
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Block, Graph, Op
from tosavk.lowering.lower import live_operators
from tosavk.shaders.catalogue import Kernel, kernels

GRANULE = 64
"""Words of a granule; tensors in the arena start at multiples of it."""

_VIEWS = frozenset({Op.IDENTITY, Op.RESHAPE})
_INPUT = "input"
_CONSTANT = "constant"
_TELLING = 12
"""Bytes that a constant must have for them to tell which it is."""


class Fault(enum.StrEnum):
    """What is wrong with a plan."""

    BOUNDS = "out of bounds"
    ALIAS = "operands of one dispatch overlap"
    OVERLAP = "constants overlap"
    READ_AFTER_WRITE = "missing barrier, read after write"
    WRITE_AFTER_READ = "missing barrier, write after read"
    WRITE_AFTER_WRITE = "missing barrier, write after write"
    NEEDLESS = "barrier without a hazard"
    UNWRITTEN = "reads what nothing wrote"
    FOREIGN = "reads another value"
    TORN = "reads a value that was partly overwritten"
    LOST = "a value is never read"
    OUTPUT = "an output is not written"
    UNREAD = "a constant is never read"

    @property
    def is_hazard(self) -> bool:
        """Whether it is about barriers."""
        return self in (
            Fault.READ_AFTER_WRITE,
            Fault.WRITE_AFTER_READ,
            Fault.WRITE_AFTER_WRITE,
            Fault.NEEDLESS,
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of a plan.

    Attributes:
        fault: what is wrong.
        dispatch: position in the main part, or in the prologue where `at_load`; -1 for
            the plan as a whole.
        at_load: whether it is in the prologue.
        operator: index in the block of the operator it belongs to, or -1.
        text: the fault in one line.
    """

    fault: Fault
    dispatch: int
    at_load: bool
    operator: int
    text: str


@dataclass(slots=True)
class _Value:
    """Something that was written as a whole: a region with its writer."""

    start: int
    end: int
    writer: object
    label: str
    main: bool
    reads: int = 0
    data: bytes = b""


@dataclass(slots=True)
class _Granule:
    """What is known of a stretch of memory."""

    value: _Value | None = None
    wrote: int = -1
    wrote_by: int = -1
    read: int = -1
    read_by: int = -1


@dataclass(slots=True)
class _Buffer:
    granules: list[_Granule] = field(default_factory=list[_Granule])


def check_plan(plan: Plan, graph: Graph) -> tuple[Violation, ...]:
    """Checks a plan of a graph without control flow.

    The main part is run twice, as a program is submitted again and again.
    """
    return _Check(plan, graph.main).run()


def _constant_owners(block: Block) -> dict[bytes, set[str]]:
    """The constant tensors that have certain bytes; not such as masks have."""
    owners: dict[bytes, set[str]] = {}
    for name, array in fold(block, live_operators(block)).items():
        data = bytes(pack(block.tensors[name].dtype, array))
        if len(data) >= _TELLING and len(set(data)) > 2:
            owners.setdefault(data, set()).add(name)
    return owners


class _Check:
    def __init__(self, plan: Plan, block: Block) -> None:
        self._plan = plan
        self._block = block
        self._kernels: Mapping[str, Kernel] = kernels()
        self._found: dict[tuple[Fault, int | str, bool], Violation] = {}
        self._stretch = 0
        self._at_load = False
        self._position = -1
        self._operators = {op.index: op for op in block.operators}
        self._producer = {n: op for op in block.operators for n in op.outputs}
        self._loaded: list[_Value] = []
        self._written: list[_Value] = []
        self._owners = _constant_owners(block)
        self._folded = set(fold(block, live_operators(block)))
        sizes = [-(-slot.nbytes // 4) for slot in plan.slots]
        sizes += [-(-size // 4) for size in plan.segments]
        self._words = sizes
        self._buffers = [
            _Buffer([_Granule() for _ in range(-(-words // GRANULE))])
            for words in sizes
        ]

    def run(self) -> tuple[Violation, ...]:
        for slot in self._plan.inputs:
            self._place(slot.index, 0, self._words[slot.index], _INPUT, slot.name)
        self._constants()
        self._at_load = True
        self._part(self._plan.prologue)
        self._at_load = False
        for _ in range(2):
            # The next submission waits for the one before.
            self._stretch += 1
            self._part(self._plan.dispatches)
            self._position = -1
            self._outputs()
        for value in self._written:
            self._overwritten(value)
        for value in self._loaded:
            if not value.reads:
                self._report(Fault.UNREAD, f"{value.label} is never read")
        return tuple(self._found.values())

    # Load ---------------------------------------------------------------------------

    def _constants(self) -> None:
        slots = len(self._plan.slots)
        for constant in self._plan.constants:
            words = -(-len(constant.data) // 4)
            buffer, start = slots + constant.segment, constant.offset // 4
            label = f"constant at {constant.segment}:{constant.offset}"
            if constant.offset % (4 * GRANULE) or start + words > self._words[buffer]:
                self._report(Fault.BOUNDS, f"{label} does not fit its segment")
                continue
            for granule in self._granules(buffer, start, words):
                if granule.value is not None:
                    self._report(
                        Fault.OVERLAP, f"{label} overlaps {granule.value.label}"
                    )
            value = self._place(buffer, start, words, _CONSTANT, label)
            value.data = bytes(constant.data)
            self._loaded.append(value)

    def _place(
        self, buffer: int, start: int, words: int, writer: object, label: str
    ) -> _Value:
        value = _Value(start, start + words, writer, label, main=False)
        for granule in self._granules(buffer, start, words):
            granule.value = value
        return value

    # Run ----------------------------------------------------------------------------

    def _part(self, dispatches: Sequence[Dispatch]) -> None:
        self._stretch += 1
        for position, dispatch in enumerate(dispatches):
            self._position = position
            kernel = self._kernels[dispatch.kernel]
            cut = len(dispatch.operands) - kernel.outputs
            reads, writes = dispatch.operands[:cut], dispatch.operands[cut:]
            if not all(self._fits(o, dispatch) for o in dispatch.operands):
                continue
            self._aliases(reads, writes)
            hazards = self._hazards(dispatch, reads, writes, self._stretch)
            if dispatch.barrier:
                if not hazards:
                    self._report(Fault.NEEDLESS, "a barrier that no hazard calls for")
                self._stretch += 1
            else:
                for fault, text in hazards:
                    self._report(fault, text)
            for operand in reads:
                self._read(operand, dispatch)
            for operand in writes:
                self._write(operand, dispatch)

    def _fits(self, operand: Operand, dispatch: Dispatch) -> bool:
        slots = len(self._plan.slots)
        buffer, start = operand.buffer, operand.word
        if not 0 <= buffer < len(self._words):
            self._report(Fault.BOUNDS, f"buffer {buffer} does not exist")
            return False
        aligned = start % GRANULE == 0 if buffer >= slots else start == 0
        inside = start >= 0 and start + operand.words <= self._words[buffer]
        if not aligned or not inside or operand.words < 1:
            self._report(
                Fault.BOUNDS,
                f"{dispatch.kernel}: words {start}..{start + operand.words} of buffer "
                f"{buffer}, which has {self._words[buffer]}",
            )
            return False
        return True

    def _aliases(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> None:
        for number, target in enumerate(writes):
            for other in (*reads, *writes[:number]):
                if other.buffer == target.buffer and not (
                    other.word + other.words <= target.word
                    or target.word + target.words <= other.word
                ):
                    self._report(Fault.ALIAS, f"{other} and {target}")

    def _hazards(
        self,
        dispatch: Dispatch,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        stretch: int,
    ) -> list[tuple[Fault, str]]:
        found: list[tuple[Fault, str]] = []
        for operand in reads:
            for granule in self._of(operand):
                if granule.wrote == stretch:
                    found.append((Fault.READ_AFTER_WRITE, self._pair(granule.wrote_by)))
                    break
        for operand in writes:
            for granule in self._of(operand):
                if granule.read == stretch:
                    found.append((Fault.WRITE_AFTER_READ, self._pair(granule.read_by)))
                    break
                if granule.wrote == stretch and not self._disjoint(
                    granule.wrote_by, dispatch
                ):
                    found.append(
                        (Fault.WRITE_AFTER_WRITE, self._pair(granule.wrote_by))
                    )
                    break
        return found

    def _disjoint(self, first: int, dispatch: Dispatch) -> bool:
        """Whether all parts of one CONCAT since `first` write other words than this.

        Only 32-bit elements have words of their own.
        """
        part = self._part_of(dispatch)
        if part is None:
            return False
        begin, end, row = part
        for earlier in self._dispatches()[first : self._position]:
            if earlier.operands[-1] != dispatch.operands[-1]:
                continue
            other = self._part_of(earlier)
            if other is None or earlier.operator != dispatch.operator:
                return False
            if other[2] != row or (begin < other[1] and other[0] < end):
                return False
        return True

    def _part_of(self, dispatch: Dispatch) -> tuple[int, int, int] | None:
        """The part of a row that a dispatch of CONCAT writes."""
        kernel = self._kernels[dispatch.kernel]
        if kernel.name != "concat" or DType(dispatch.spec[0]).bits != 32:
            return None
        params = dict(zip(kernel.params, dispatch.params, strict=True))
        return params["begin"], params["begin"] + params["length"], params["row"]

    def _dispatches(self) -> Sequence[Dispatch]:
        return self._plan.prologue if self._at_load else self._plan.dispatches

    def _pair(self, other: int) -> str:
        kernel = self._dispatches()[other].kernel
        return f"needs what dispatch {other} ({kernel}) does, without a barrier between"

    # Values -------------------------------------------------------------------------

    def _read(self, operand: Operand, dispatch: Dispatch) -> None:
        granules = list(self._of(operand))
        value = granules[0].value
        for granule in granules:
            granule.read, granule.read_by = self._stretch, self._position
        if any(granule.value is None for granule in granules) or value is None:
            self._report(Fault.UNWRITTEN, f"{dispatch.kernel} reads {operand}")
            return
        value.reads += 1
        whole = (value.start, value.end) == (
            operand.word,
            operand.word + operand.words,
        )
        if not whole or any(granule.value is not value for granule in granules):
            self._report(
                Fault.TORN, f"{dispatch.kernel} reads {operand}, now {value.label}"
            )
            return
        if not self._expects(dispatch, value):
            self._report(
                Fault.FOREIGN, f"{dispatch.kernel} reads {operand}, now {value.label}"
            )

    def _expects(self, dispatch: Dispatch, value: _Value) -> bool:
        """Whether a dispatch may read a value: its own, or of one of its operands."""
        op = self._operators.get(self._index(dispatch))
        if op is None or value.writer == op.index:
            return True
        # A final copy belongs to the operator whose result it copies. Views hold the
        # same bits, whether they were copied or not.
        operands = (*op.inputs, *op.outputs)
        if dispatch.kernel == "concat" and op.op is Op.CONCAT:
            # A dispatch for each operand, in order.
            operands = (op.inputs[self._ordinal(dispatch)],)
        names = {n for name in operands for n in self._views_to(name)}
        if value.writer == _CONSTANT:
            return self._expects_constant(names, value)
        if value.writer == _INPUT:
            return value.label in names
        makers = {self._producer[n].index for n in names if n in self._producer}
        return value.writer in makers

    def _ordinal(self, dispatch: Dispatch) -> int:
        """How many dispatches of the same kernel its operator had before."""
        return sum(
            d.operator == dispatch.operator and d.kernel == dispatch.kernel
            for d in self._dispatches()[: self._position]
        )

    def _expects_constant(self, names: set[str], value: _Value) -> bool:
        """Whether a constant is not one that belongs to other operators.

        An operator also has tables, masks and rearranged weights of its own; what has
        the bytes of one of the program's constants must be an operand.
        """
        owners = self._owners.get(value.data)
        if owners is None or not owners.isdisjoint(names):
            return True
        # What an operator rearranges may look like what another one folds.
        return not self._roots(owners).isdisjoint(self._roots(names))

    def _roots(self, names: Iterable[str]) -> set[str]:
        """The constants that tensors are made of."""
        found: set[str] = set()
        open_names = list(names)
        while open_names:
            name = open_names.pop()
            op = self._producer.get(name)
            if name in found or op is None or name not in self._folded:
                continue
            found.add(name)
            open_names += op.inputs
        return {name for name in found if not self._producer[name].inputs}

    def _write(self, operand: Operand, dispatch: Dispatch) -> None:
        index = self._index(dispatch)
        granules = list(self._of(operand))
        old = granules[0].value
        start, end = operand.word, operand.word + operand.words
        same = (
            old is not None
            and old.writer == index
            and (old.start, old.end) == (start, end)
            and old.reads == 0
            and old.main != self._at_load
        )
        value = old
        if not same or value is None:
            label = f"a result of operator {index} (dispatch {self._position})"
            value = _Value(start, end, index, label, main=not self._at_load)
            self._written.append(value)
            for granule in granules:
                self._overwritten(granule.value)
        for granule in granules:
            granule.value = value
            granule.wrote, granule.wrote_by = self._stretch, self._position

    def _overwritten(self, value: _Value | None) -> None:
        """Complains of a value that nobody could read."""
        if value is None or value.reads or not isinstance(value.writer, int):
            return
        op = self._operators.get(value.writer)
        if op is None or len(op.outputs) > 1:
            return
        value.reads = 1
        if not self._is_slot(value):
            self._report(Fault.LOST, f"{value.label} is never read")

    def _is_slot(self, value: _Value) -> bool:
        """Whether a value lies in an output, which the next run writes again."""
        return any(
            self._buffers[slot.index].granules[0].value is value
            for slot in self._plan.slots
            if slot.role is not SlotRole.INPUT
        )

    def _outputs(self) -> None:
        for slot in self._plan.slots:
            if slot.role is SlotRole.INPUT:
                continue
            value = self._buffers[slot.index].granules[0].value
            if value is None or any(
                granule.value is not value
                for granule in self._buffers[slot.index].granules
            ):
                self._report(Fault.OUTPUT, f"output {slot.name!r}")
                continue
            # Through a chain of views the first operator may have written it.
            names = self._views_to(slot.name)
            makers = {self._producer[n].index for n in names if n in self._producer}
            if makers and value.writer not in makers:
                self._report(Fault.FOREIGN, f"output {slot.name!r} holds {value.label}")

    def _views_to(self, name: str) -> list[str]:
        """A tensor with all those that it is a view of."""
        names = [name]
        op = self._producer.get(name)
        while op is not None and op.op in _VIEWS:
            names.append(op.inputs[0])
            op = self._producer.get(op.inputs[0])
        return names

    # Memory -------------------------------------------------------------------------

    def _of(self, operand: Operand) -> list[_Granule]:
        return self._granules(operand.buffer, operand.word, operand.words)

    def _granules(self, buffer: int, start: int, words: int) -> list[_Granule]:
        first, last = start // GRANULE, -(-(start + words) // GRANULE)
        return self._buffers[buffer].granules[first:last]

    def _index(self, dispatch: Dispatch) -> int:
        return self._plan.operators[dispatch.operator].index

    def _report(self, fault: Fault, text: str) -> None:
        key = (fault, self._position if self._position >= 0 else text, self._at_load)
        operator = -1
        where = "the plan"
        if self._position >= 0:
            origin = self._plan.operators[self._dispatches()[self._position].operator]
            operator = origin.index
            part = "load dispatch" if self._at_load else "dispatch"
            where = f"{part} {self._position} of operator {origin.index} {origin.op}"
        self._found.setdefault(
            key,
            Violation(
                fault, self._position, self._at_load, operator, f"{where}: {text}"
            ),
        )
