"""Delta debugging: the smallest program that still shows a finding.

Deterministic: the same case, criterion and devices give the same result. What was tried
is remembered, on disk where a folder is given, so an interrupted reduction goes on where
it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference.evaluate import Evaluator
from tosavk.backends.reference.values import Precision
from tosavk.core.dtypes import DType, pack
from tosavk.core.errors import Error
from tosavk.differential.fuzz import shrink
from tosavk.differential.fuzz.case import Case
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.folding import constant_value
from tosavk.lowering.graph import Graph, Operator
from tosavk.lowering.tosa.writer import write_graph

Array = NDArray[Any]
Interesting = Callable[[Case], bool]

BUDGET = 600
"""Programs that a reduction tries at most."""

_PLAIN_ATTRIBUTES: Mapping[str, int] = {
    "pad": 0,
    "out_pad": 0,
    "stride": 1,
    "dilation": 1,
}
_PAIRS = 12
_CHUNKS = 64


class Store(Protocol):
    """Where a reduction keeps what it knows."""

    def known(self, digest: str) -> bool | None:
        """What trying a case gave, if it was tried."""
        ...

    def note(self, digest: str, *, shows: bool) -> None:
        """Remembers what trying a case gave."""
        ...

    def best(self, case: Case) -> None:
        """Keeps the smallest case so far."""
        ...


class Forgetful:
    """A store in memory."""

    def __init__(self) -> None:
        """Knows nothing."""
        self._known: dict[str, bool] = {}

    def known(self, digest: str) -> bool | None:
        """What trying a case gave, if it was tried."""
        return self._known.get(digest)

    def note(self, digest: str, *, shows: bool) -> None:
        """Remembers what trying a case gave."""
        self._known[digest] = shows

    def best(self, case: Case) -> None:
        """Does nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reduced:
    """The result of a reduction.

    Attributes:
        case: the smallest case that shows the finding.
        tried: programs that were judged.
        finished: whether nothing smaller was left to try.
    """

    case: Case
    tried: int
    finished: bool


def reduce_case(
    case: Case,
    interesting: Interesting,
    *,
    target: str = "",
    budget: int = BUDGET,
    store: Store | None = None,
    progress: Callable[[str], None] = lambda _: None,
    plain: bool = True,
) -> Reduced:
    """Makes a case smaller as long as it stays interesting.

    Args:
        case: an interesting case.
        interesting: whether a case shows what is looked for.
        target: name of the operator that is blamed, to be tried alone first.
        budget: programs that are judged at most.
        store: what was tried before, and where the best case is kept.
        progress: told how far it is.
        plain: make values plain too. What a kernel leaves unwritten looks right, in a
            fresh process, where all values are 0.
    """
    return _Reduction(case, interesting, target, budget, store, progress, plain).run()


def digest(case: Case) -> str:
    """A name for a case: equal for equal programs and inputs."""
    seen = hashlib.sha256(write_graph(case.graph))
    seen.update(repr(case.segment_bytes).encode())
    tensors = case.graph.main.tensors
    for sample in case.samples:
        for name in case.graph.main.inputs:
            seen.update(pack(tensors[name].dtype, sample[name]))
    return seen.hexdigest()


class _Exhausted(Exception):
    """The budget is used up."""


class _Reduction:
    def __init__(
        self,
        case: Case,
        interesting: Interesting,
        target: str,
        budget: int,
        store: Store | None,
        progress: Callable[[str], None],
        plain: bool,  # noqa: FBT001
    ) -> None:
        self._plain = plain
        self._case = case
        self._interesting = interesting
        self._target = target
        self._left = budget
        self._budget = budget
        self._store: Store = store or Forgetful()
        self._progress = progress

    def run(self) -> Reduced:
        finished = True
        try:
            while True:
                before = shrink.weight(self._case)
                for step in (
                    self._samples,
                    self._effects,
                    self._alone,
                    self._outputs,
                    self._cuts,
                    self._bypasses,
                    self._sizes,
                    self._attributes,
                    *([self._values] if self._plain else ()),
                    self._segments,
                ):
                    step()
                if shrink.weight(self._case) >= before:
                    break
        except _Exhausted:
            finished = False
        return Reduced(self._case, self._budget - self._left, finished)

    def _segments(self) -> None:
        """The device's own arena segments, as other commands have them."""
        if self._case.segment_bytes is not None:
            self._try(dataclasses.replace(self._case, segment_bytes=None))

    def _try(self, candidate: Case | None) -> bool:
        """Takes a candidate if it shows the finding."""
        if candidate is None:
            return False
        name = digest(candidate)
        shows = self._store.known(name)
        if shows is None:
            if self._left <= 0:
                raise _Exhausted
            self._left -= 1
            try:
                shows = self._interesting(candidate)
            except Error:
                shows = False
            self._store.note(name, shows=shows)
        if shows:
            self._case = candidate
            self._store.best(candidate)
            work, size, busy = shrink.weight(candidate)
            self._progress(
                f"{work} operators, {size} elements, {busy} of the data not zero"
            )
        return shows

    # Whole parts ----------------------------------------------------------------------

    def _samples(self) -> None:
        for number in range(len(self._case.samples)):
            if len(self._case.samples) == 1:
                return
            one = (self._case.samples[number],)
            if self._try(dataclasses.replace(self._case, samples=one)):
                return

    def _effects(self) -> None:
        """Writes to variables go."""
        for op in reversed(self._case.graph.main.operators):
            if not op.outputs:
                self._try(shrink.without(self._case, op))

    def _work(self) -> list[Operator]:
        return [
            op
            for op in self._case.graph.main.operators
            if op.op not in CONSTANT_OPS and op.outputs
        ]

    def _alone(self) -> None:
        """The blamed operator with its operands as inputs."""
        blamed = [op for op in self._work() if op.op.name == self._target]
        if len(self._work()) < 2:
            return
        for op in blamed:
            single = shrink.with_outputs(self._case, op.outputs)
            if single is None:
                continue
            made = {n for other in single.graph.main.operators for n in other.outputs}
            known = set(shrink.constants(single.graph.main))
            cuts = [n for n in op.inputs if n in made and n not in known]
            if cuts:
                values = self._evaluate(single)
                if values is None or self._try(shrink.cut(single, cuts, values)):
                    return
            elif self._try(single):
                return

    def _outputs(self) -> None:
        outputs = self._case.graph.main.outputs
        for op in self._work():
            # A blamed operator first: nothing behind it is needed then.
            if op.op.name == self._target and tuple(op.outputs) != outputs:
                self._try(shrink.with_outputs(self._case, op.outputs[:1]))
        outputs = self._case.graph.main.outputs
        if len(outputs) > 1:
            for name in dict.fromkeys(outputs):
                if self._try(shrink.with_outputs(self._case, (name,))):
                    return
            for position in reversed(range(len(outputs))):
                now = self._case.graph.main.outputs
                if position < len(now) > 1:
                    rest = (*now[:position], *now[position + 1 :])
                    self._try(shrink.with_outputs(self._case, rest))
        for op in reversed(self._work()):
            # Operators at the end go, and their operands are given out.
            block = self._case.graph.main
            if len(block.outputs) == 1 and block.outputs[0] in op.outputs:
                made = {n for other in self._work() for n in other.outputs}
                for name in op.inputs:
                    if name in made and self._try(
                        shrink.with_outputs(self._case, (name,))
                    ):
                        break

    def _cuts(self) -> None:
        """Results become inputs: many at once, then fewer."""
        width = max(1, len(self._work()) // 2)
        while True:
            start = 0
            while start < len(self._work()):
                chosen = self._work()[start : start + width]
                names = [name for op in chosen for name in op.outputs]
                values = self._evaluate(self._case)
                if values is None or not self._try(
                    shrink.cut(self._case, names, values)
                ):
                    start += width
            if width == 1:
                return
            width //= 2

    def _bypasses(self) -> None:
        """Operators that readers can do without, and views."""
        for way in (shrink.bypass, shrink.merged, shrink.absorbed, shrink.dropped):
            for op in reversed(self._work()):
                if any(op == other for other in self._case.graph.main.operators):
                    self._try(way(self._case, op))

    def _evaluate(self, case: Case) -> list[Mapping[str, Array]] | None:
        """All tensors by NumPy, for each sample."""
        return evaluate(case.graph, case.samples)

    # Sizes and attributes ---------------------------------------------------------------

    def _sizes(self) -> None:
        for size in sorted(shrink.axes(self._case), reverse=True):
            self._size(size)

    def _size(self, size: int) -> None:
        for smaller in _smaller(size):
            places = shrink.axes(self._case).get(size, [])
            if not places:
                return
            if self._resize(places, smaller):
                return
        for smaller in _smaller(size):
            for group in _groups(shrink.axes(self._case).get(size, [])):
                self._resize(group, smaller)

    def _resize(self, places: Sequence[shrink.Axis], size: int) -> bool:
        """Keeps the first elements, or else the last ones."""
        return any(
            self._try(shrink.resized(self._case, places, size, first=first))
            for first in (True, False)
        )

    def _attributes(self) -> None:
        for position in range(len(self._case.graph.main.operators)):
            for name, plain in _PLAIN_ATTRIBUTES.items():
                operators = self._case.graph.main.operators
                if position >= len(operators):
                    return
                op = operators[position]
                numbers = op.attributes.get(name)
                if not isinstance(numbers, tuple) or set(numbers) == {plain}:
                    continue
                if self._try(
                    shrink.with_attributes(
                        self._case, op, {name: (plain,) * len(numbers)}
                    )
                ):
                    continue
                for place, number in enumerate(numbers):
                    now = self._case.graph.main.operators[position]
                    if number != plain and now.op is op.op:
                        held = now.attributes[name]
                        assert isinstance(held, tuple)
                        other = (*held[:place], plain, *held[place + 1 :])
                        self._try(
                            shrink.with_attributes(self._case, now, {name: other})
                        )

    # Values -----------------------------------------------------------------------------

    def _values(self) -> None:
        block = self._case.graph.main
        for number in range(len(self._case.samples)):
            for name in block.inputs:
                self._simplify(name, number)
        for name in shrink.constants(block):
            if block.tensors[name].dtype is not DType.SHAPE:
                self._simplify(name, 0)

    def _array(self, name: str, sample: int) -> Array | None:
        tensor = self._case.graph.main.tensors.get(name)
        if tensor is None:
            return None
        if tensor.data is not None:
            return constant_value(tensor)
        return self._case.samples[sample][name]

    def _simplify(self, name: str, sample: int) -> None:
        """Zeros where possible, then ones, in parts that get smaller."""
        for simple in (0, 1):
            array = self._array(name, sample)
            if array is None or not array.size:
                return
            parts = 1
            while parts <= min(_CHUNKS, 2 * array.size):
                for part in np.array_split(np.arange(array.size), parts):
                    now = self._array(name, sample)
                    if now is None or not part.size:
                        return
                    flat = now.reshape(-1).copy()
                    chosen = flat[part]
                    plain = np.array(simple).astype(flat.dtype)
                    busy = (chosen != plain) & (chosen != 0)
                    if not busy.any():
                        continue
                    flat[part[busy]] = plain
                    self._try(
                        shrink.with_values(
                            self._case, name, flat.reshape(now.shape), sample
                        )
                    )
                parts *= 4


def evaluate(
    graph: Graph, samples: Sequence[Mapping[str, Array]]
) -> list[Mapping[str, Array]] | None:
    """All tensors of a program by NumPy, for each sample; None where it has no answer."""
    try:
        # One for all: what variables hold goes from run to run.
        evaluator = Evaluator(graph, Precision.NATIVE)
        return [evaluator.block(graph.main, sample) for sample in samples]
    except Error:
        return None


def _smaller(size: int) -> list[int]:
    tried = (1, 2, 3, 4, 5, size // 2, (size + 1) // 2, size - 2, size - 1)
    return sorted({n for n in tried if 0 < n < size})


def _groups(places: Sequence[shrink.Axis]) -> Iterator[list[shrink.Axis]]:
    """Pairs of places, then single ones."""
    few = places[:_PAIRS]
    for first in range(len(few)):
        for second in range(first + 1, len(few)):
            yield [few[first], few[second]]
    for place in few:
        yield [place]
