"""Runs a program on the chosen backends and says what is wrong with it.

Each device runs the program as it is and once more with every intermediate kept; then
every operator is judged on equal inputs, between the devices bit for bit and against the
reference by TOSA's rule (`differential.operators`). What a diff does once with care,
this does hundreds of times a minute with devices that stay open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import open_accelerator, parse_spec
from tosavk.backends.session import Session
from tosavk.core.accelerator import Accelerator
from tosavk.core.errors import DeviceLost, Error, InitError, InvalidArgument
from tosavk.core.plan import Numerics, PlanLimits
from tosavk.differential.exceptions import Trait
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.finding import Finding, Key, Kind
from tosavk.differential.fuzz.flowcheck import FlowCheck
from tosavk.differential.fuzz.plancheck import Violation, check_plan
from tosavk.differential.fuzz.validated import VULKAN, Validated
from tosavk.differential.operators import LOAD, check_operators
from tosavk.differential.refusal import refusal
from tosavk.differential.result import Ending, OperatorComparison
from tosavk.differential.sides import REFERENCE, Side, ending_of, keeps_state, same_bits
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.errors import AdmissionError, VerifyError
from tosavk.lowering.graph import Graph, Op, Operator, Tensor
from tosavk.lowering.lower import Lowered, lower_graph
from tosavk.lowering.program import expose, intermediates

__all__ = [
    "COMPARING",
    "Finding",
    "Judge",
    "Key",
    "Kind",
    "Verdict",
    "has_key",
    "named_key",
    "operator_types",
]

Array = NDArray[np.generic]

COMPARING = "the comparison"
"""What is at work when no backend is."""


_PLAN_KINDS = (Kind.BARRIER, Kind.ARENA, Kind.REFUSED)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What judging a program gave.

    Attributes:
        findings: what is wrong, most telling first; empty when all agrees.
        operators: comparisons of every operator, for the coverage.
        kernels: names of the kernels of each operator, by its index.
        exceptions: comparisons that differ by a known exception only.
        unpredictable: comparisons that TOSA leaves open.
        left_out: backends that do not support the program, with the reason.
        outputs: what the program gave, by label, for each sample.
    """

    findings: tuple[Finding, ...]
    operators: tuple[OperatorComparison, ...] = ()
    kernels: Mapping[int, tuple[str, ...]] = dataclasses.field(
        default_factory=dict[int, tuple[str, ...]]
    )
    exceptions: int = 0
    unpredictable: int = 0
    left_out: tuple[str, ...] = ()
    outputs: Mapping[str, Sequence[Mapping[str, Array]]] = dataclasses.field(
        default_factory=dict[str, Sequence[Mapping[str, Array]]]
    )


class _Lane(Side):
    """A device that stays open; its traits are asked for once."""

    known: frozenset[Trait] | None = None
    validated: Validated | None = None

    def traits(self) -> frozenset[Trait]:
        if self.known is None:
            self.known = Side.traits(self)
        return self.known

    @property
    def accelerator(self) -> Accelerator:
        assert self._accelerator is not None
        return self._accelerator

    def load(self, case: Case, graph: Graph) -> Lowered:
        return lower_graph(graph, limits=self.limits(case), numerics=self._numerics)

    def limits(self, case: Case) -> PlanLimits:
        limits = self.accelerator.device.plan_limits
        if case.segment_bytes is None:
            return limits
        return dataclasses.replace(limits, segment_bytes=case.segment_bytes)

    def trouble(self) -> tuple[Ending, str] | None:
        """What broke while single operators ran again, said once."""
        ending, failure = self._notes.ending, self._notes.failure
        self._notes.ending, self._notes.failure = Ending.RAN, ""
        return None if ending is Ending.RAN else (ending, failure)


class Judge:
    """Backends that stay open, and what they say of programs.

    Use it as a context manager. Operators are judged by TOSA's rules when `reference` is
    among the backends; alone, it is judged like a device.

    Args:
        backends: specifications; one may come several times.
        optional: leave out those that are not there.
        numerics: mode; devices are compared bit for bit in strict mode only.
        watch: told which backend is at work.
        labels: what the backends are called, where that is not to follow from their
            specifications.
        least: how many there must be.

    Raises:
        InvalidArgument: fewer are left.
        InitError: one cannot be opened and is not optional.
    """

    def __init__(
        self,
        backends: Sequence[str],
        *,
        optional: bool = False,
        numerics: Numerics = Numerics.STRICT,
        watch: Callable[[str], None] = lambda _: None,
        labels: Sequence[str] = (),
        least: int = 2,
    ) -> None:
        """Opens the backends."""
        self._stack = ExitStack()
        self._numerics = numerics
        self.watch = watch
        self.lanes: list[_Lane] = []
        self.missing: list[str] = []
        self.by_rules = False
        try:
            for number, spec in enumerate(backends):
                if parse_spec(spec)[0] == REFERENCE and len(backends) > 1:
                    self.by_rules = True
                    continue
                label = labels[number] if labels else self._label(spec)
                self._open(spec, label, optional=optional)
        except BaseException:
            self._stack.close()
            raise
        if len(self.lanes) + self.by_rules < least:
            self._stack.close()
            raise InvalidArgument(
                "at least two backends are needed; "
                + ("; ".join(self.missing) or "give --backend twice or more")
            )

    def _label(self, spec: str) -> str:
        count = sum(lane.spec == spec for lane in self.lanes)
        return f"{spec} ({count + 1})" if count else spec

    def _open(self, spec: str, label: str, *, optional: bool) -> None:
        self.watch(f"opening {spec}")
        try:
            accelerator = self._stack.enter_context(open_accelerator(spec))
        except InitError as error:
            if not optional:
                raise
            self.missing.append(f"{spec}: {error}")
            return
        lane = _Lane(label, spec, accelerator, numerics=self.numerics)
        if parse_spec(spec)[0] == VULKAN:
            lane.validated = Validated(spec, self.numerics)
            self._stack.callback(lane.validated.close)
        self.lanes.append(lane)

    @property
    def numerics(self) -> Numerics:
        """Mode."""
        return self._numerics

    @property
    def stderr(self) -> str:
        """What drivers said to standard error goes there, and is not known here."""
        return ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The backends that take part."""
        rules = (REFERENCE,) if self.by_rules else ()
        return (*(lane.label for lane in self.lanes), *rules)

    @property
    def specs(self) -> tuple[str, ...]:
        """The specification of each."""
        rules = (REFERENCE,) if self.by_rules else ()
        return (*(lane.spec for lane in self.lanes), *rules)

    @property
    def devices(self) -> dict[str, str]:
        """Device and driver of each backend."""
        return {lane.label: lane.accelerator.name for lane in self.lanes}

    @property
    def validates(self) -> bool:
        """Whether some device is open with synchronization validation."""
        return any(lane.validated and lane.validated.is_open for lane in self.lanes)

    @property
    def unvalidated(self) -> list[str]:
        """Why there is no synchronization validation, where it was wanted."""
        validated = [lane.validated for lane in self.lanes if lane.validated]
        return list(dict.fromkeys(v.missing for v in validated if v.missing))

    def close(self) -> None:
        """Closes the backends."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def judge(
        self, case: Case, *, plans_only: bool = False, validating: bool = False
    ) -> Verdict:
        """Judges a program.

        Args:
            case: the program and its inputs.
            plans_only: look at plans only, run nothing.
            validating: run it under synchronization validation too, on Vulkan.

        Raises:
            DeviceLost: a device is gone, and nothing more can be learnt from it.
        """
        run = _Run(self, case)
        return run.plans() if plans_only else run.all(validating=validating)

    def examine(self, case: Case, kind: Kind | None = None) -> tuple[Finding, ...]:
        """What is wrong with a case.

        Args:
            case: the case.
            kind: the only kind that is of interest, if there is one: what cannot show
                it is not done.

        Raises:
            DeviceLost: a device is gone, and nothing more can be learnt from it.
        """
        return self.judge(
            case, plans_only=kind in _PLAN_KINDS, validating=kind is Kind.VALIDATION
        ).findings


class _Run:
    """One program being judged."""

    def __init__(self, judge: Judge, case: Case) -> None:
        self._judge = judge
        self._case = case
        self._graph = case.graph
        self._block = case.graph.main
        self._findings: dict[Key, Finding] = {}
        self._left_out: list[str] = []
        self._kernels: dict[int, tuple[str, ...]] = {}
        self._operators: list[OperatorComparison] = []
        self._results: dict[str, list[dict[str, Array]]] = {}
        self._stateful = keeps_state(case.graph)
        self._flows = FlowCheck(case.graph) if judge.by_rules else None

    def plans(self) -> Verdict:
        """Checks the plans only."""
        seen: list[PlanLimits] = []
        for lane in self._judge.lanes:
            limits = lane.limits(self._case)
            if limits in seen:
                continue
            seen.append(limits)
            try:
                for graph in (self._graph, *self._exposures(lane)):
                    self._plan(lane, lane.load(self._case, graph), graph)
            except Error as error:
                self._failed(lane, error)
        return self._verdict()

    def all(self, *, validating: bool) -> Verdict:
        """Runs everything."""
        outputs = self._results
        tensors: dict[str, list[dict[str, Array]]] = {}
        for lane in self._judge.lanes:
            self._judge.watch(lane.label)
            try:
                outputs[lane.label] = self._outputs(lane)
                tensors[lane.label] = self._everything(lane)
                if validating and lane.validated is not None:
                    self._validate(lane, lane.validated)
            except DeviceLost:
                raise
            except Exception as error:  # noqa: BLE001 - what breaks is a finding
                self._failed(lane, error)
        lanes = [lane for lane in self._judge.lanes if lane.label in tensors]
        for lane in lanes:
            self._compare_plans(lane, outputs[lane.label], tensors[lane.label])
        for number, sample in enumerate(self._case.samples):
            for lane in lanes:
                lane.outputs = outputs[lane.label][number]
                lane.tensors = {**sample, **tensors[lane.label][number]}
            self._judge.watch(COMPARING)
            self._compare_operators(lanes, number)
            if self._flows is not None:
                self._compare_flows(self._flows, lanes, number)
        return self._verdict()

    def _validate(self, lane: _Lane, validated: Validated) -> None:
        """Runs it under the validation layer, as it is and with all intermediates."""
        self._judge.watch(f"{lane.label} with validation")
        for graph in (self._graph, *self._exposures(lane)):
            lowered = lane.load(self._case, graph)
            for text in validated.complaints(lowered, self._case.samples[:1]):
                self._report(Kind.VALIDATION, None, (lane.label,), 0, text)

    def _outputs(self, lane: _Lane) -> list[dict[str, Array]]:
        """What the program gives; the first run is repeated."""
        lowered = lane.load(self._case, self._graph)
        self._plan(lane, lowered, self._graph)
        with Session(lane.accelerator, lowered) as session:
            results = [session.run(dict(sample)) for sample in self._case.samples]
            again = session.run(dict(self._case.samples[0]))
        for name, array in results[0].items():
            if not self._stateful and not same_bits(array, again[name]):
                self._report(Kind.REPEAT, self._maker(name), (lane.label,), 0, name)
        return results

    def _everything(self, lane: _Lane) -> list[dict[str, Array]]:
        """All intermediates and outputs, as many at once as a device can bind."""
        results: list[dict[str, Array]] = [{} for _ in self._case.samples]
        for graph in self._exposures(lane):
            lowered = lane.load(self._case, graph)
            self._plan(lane, lowered, graph)
            with Session(lane.accelerator, lowered) as session:
                for found, sample in zip(results, self._case.samples, strict=True):
                    found.update(session.run(dict(sample)))
        return results

    def _exposures(self, lane: _Lane) -> list[Graph]:
        """The program with its intermediates as outputs, in parts."""
        limits = lane.accelerator.info.limits
        tensors = self._block.tensors
        names = [n for n in intermediates(self._graph) if not tensors[n].variable]
        room = min(limits.max_bindings_per_submission, limits.max_buffers_per_context)
        step = max(1, room - len(self._block.inputs) - len(self._block.outputs))
        return [
            expose(self._graph, names[start : start + step])
            for start in range(0, max(1, len(names)), step)
        ]

    def _compare_plans(
        self,
        lane: _Lane,
        outputs: Sequence[Mapping[str, Array]],
        tensors: Sequence[Mapping[str, Array]],
    ) -> None:
        for number, (short, full) in enumerate(zip(outputs, tensors, strict=True)):
            for name, array in short.items():
                if not same_bits(array, full[name]):
                    text = f"output {name!r}"
                    self._report(
                        Kind.PLAN, self._maker(name), (lane.label,), number, text
                    )

    def _compare_operators(self, lanes: Sequence[_Lane], sample: int) -> None:
        found = check_operators(
            self._graph,
            lanes,
            against_reference=self._judge.by_rules,
            exact=self._judge.numerics is Numerics.STRICT,
            progress=_silent,
        )
        self._operators += found
        for lane in lanes:
            trouble = lane.trouble()
            if trouble is not None:
                self._broken(lane, *trouble)
        by_index = {op.index: op for op in self._block.operators}
        for item in found:
            op = by_index[item.operator.index]
            for c in item.comparisons:
                if c.agreed or (op.op is Op.VARIABLE_READ and self._excused_state):
                    continue
                kind = Kind.RULE if c.right == REFERENCE else Kind.BITS
                kind = Kind.LOAD if c.left == LOAD else kind
                self._report(kind, op, (c.left, c.right), sample, str(c))

    @property
    def _excused_state(self) -> bool:
        """Whether known exceptions may have got into variables.

        What they hold is no operand that devices could be given alike.
        """
        return any(lane.traits() for lane in self._judge.lanes)

    def _compare_flows(
        self, check: FlowCheck, lanes: Sequence[_Lane], sample: int
    ) -> None:
        """Judges control flow as a whole, and what variables hold."""
        for lane in lanes:
            for op, text in check.differences(self._case.samples[sample], lane.tensors):
                self._report(Kind.RULE, op, (lane.label, REFERENCE), sample, text)
        check.advance(self._case.samples[sample])

    def _plan(self, lane: _Lane, lowered: Lowered, graph: Graph) -> None:
        """Checks a plan, and notes which kernels an operator takes."""
        if lowered.flow is not None:
            for piece in lowered.flow.pieces:
                for violation in check_plan(piece.plan, piece.graph):
                    self._violation(violation, lane, None)
            return
        plan = lowered.plan
        for item in (*plan.prologue, *plan.dispatches):
            index = plan.operators[item.operator].index
            names = self._kernels.get(index, ())
            if item.kernel not in names:
                self._kernels[index] = (*names, item.kernel)
        for violation in check_plan(plan, graph):
            op = self._numbered(violation.operator)
            self._violation(violation, lane, op)

    def _violation(
        self, violation: Violation, lane: _Lane, op: Operator | None
    ) -> None:
        kind = Kind.BARRIER if violation.fault.is_hazard else Kind.ARENA
        text = f"{violation.fault.value}: {violation.text}"
        self._report(kind, op, (lane.label,), -1, text)

    def _failed(self, lane: _Lane, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, VerifyError) and refusal(self._graph, self._case.samples):
            self._left_out.append(f"{lane.label}: {text}")
        elif isinstance(error, AdmissionError | VerifyError):
            index = getattr(error.operator, "index", -1)
            self._report(Kind.REFUSED, self._numbered(index), (lane.label,), -1, text)
        else:
            self._broken(lane, ending_of(error), text)

    def _broken(self, lane: _Lane, ending: Ending, text: str) -> None:
        if ending is Ending.LOST:
            raise DeviceLost(text)
        kind = {Ending.FAILED: Kind.FAILED, Ending.OUT_OF_MEMORY: Kind.MEMORY}
        if ending in kind:
            self._report(kind[ending], None, (lane.label,), -1, text)
        else:
            self._left_out.append(f"{lane.label}: {text}")

    def _numbered(self, index: int) -> Operator | None:
        return next((o for o in self._block.operators if o.index == index), None)

    def _maker(self, name: str) -> Operator | None:
        return next((o for o in self._block.operators if name in o.outputs), None)

    def _report(
        self,
        kind: Kind,
        op: Operator | None,
        backends: tuple[str, ...],
        sample: int,
        text: str,
    ) -> None:
        key = Key(kind, "" if op is None else op.op.name, self._types(op))
        index = -1 if op is None else op.index
        first = self._findings.get(key)
        if first is None:
            self._findings[key] = Finding(key, text, backends, sample, index)
            return
        # The text is of the first; it is about all of them.
        labels = tuple(dict.fromkeys((*first.backends, *backends)))
        self._findings[key] = dataclasses.replace(first, backends=labels)

    def _types(self, op: Operator | None) -> str:
        return "" if op is None else operator_types(op, self._block.tensors)

    def _verdict(self) -> Verdict:
        outcomes = [c.outcome for item in self._operators for c in item.comparisons]
        order = list(Kind)
        findings = sorted(
            self._findings.values(),
            # What a variable holds follows from the operators that gave it.
            key=lambda f: (
                f.key.op == Op.VARIABLE_READ.name,
                order.index(f.key.kind),
                f.operator,
            ),
        )
        return Verdict(
            tuple(findings),
            tuple(self._operators),
            self._kernels,
            exceptions=outcomes.count("known exception"),
            unpredictable=outcomes.count("unpredictable"),
            left_out=tuple(self._left_out),
            outputs=self._results,
        )


def operator_types(op: Operator, tensors: Mapping[str, Tensor]) -> str:
    """Types of an operator's first data operand and first result, such as FP32-INT8."""
    names = (*op.inputs[:1], *op.outputs[:1])
    found = dict.fromkeys(tensors[n].dtype.name for n in names)
    return "-".join(found)


def named_key(case: Case, kind: Kind) -> Key:
    """A key of a kind: with the operator, where only one is left."""
    block = case.graph.main
    work = [op for op in block.operators if op.op not in CONSTANT_OPS]
    if len(work) != 1:
        return Key(kind, "", "")
    return Key(kind, work[0].op.name, operator_types(work[0], block.tensors))


def has_key(verdict: Verdict, key: Key) -> bool:
    """Whether a verdict has a finding of a key."""
    return any(finding.key == key for finding in verdict.findings)


def _silent(text: str) -> None:
    del text
