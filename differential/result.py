"""The result of a diff, as data: what the verdict, the report and the JSON show."""

from __future__ import annotations

import dataclasses
import enum
import errno
from dataclasses import dataclass

from tosavk.core.errors import DeviceLost, OutOfMemory, ResourceLimit, Unsupported
from tosavk.core.plan import OperatorName
from tosavk.lowering.errors import VerifyError

KNOWN_EXCEPTION = "known exception"
"""Outcome of a comparison whose difference `exceptions` explains; it agrees."""

NOT_JUDGED = "not judged"
"""Outcome where the reference has no rule or no result; it counts as agreed."""


class Verdict(enum.StrEnum):
    """What a diff found."""

    AGREED = "agreed"
    DIFFERENT = "different"
    FAILED = "failed"


class Ending(enum.StrEnum):
    """How a backend's part ended.

    REFUSED: it says that the program, for these inputs, breaks a rule of TOSA. When all
    say so it is right, and no backend is at fault (`diff` raises InvalidArgument).
    """

    RAN = "ran"
    CRASHED = "crashed"
    HUNG = "hung"
    LOST = "device lost"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    REFUSED = "refused"
    UNSUPPORTED = "unsupported"
    RESOURCE = "resource"
    LEFT_OUT = "left out"

    @property
    def is_fault(self) -> bool:
        """Whether ending so is a finding."""
        return self in _FAULTS


_FAULTS = frozenset(
    {
        Ending.CRASHED,
        Ending.HUNG,
        Ending.LOST,
        Ending.OUT_OF_MEMORY,
        Ending.FAILED,
        Ending.REFUSED,
    }
)


def ending_of(error: Exception) -> Ending:
    """How a backend ended that raised `error`."""
    if isinstance(error, VerifyError):
        return Ending.REFUSED
    if isinstance(error, Unsupported):
        return Ending.UNSUPPORTED
    if isinstance(error, ResourceLimit):
        return Ending.RESOURCE
    if _wants_memory(error):
        return Ending.OUT_OF_MEMORY
    return Ending.LOST if isinstance(error, DeviceLost) else Ending.FAILED


def _wants_memory(error: BaseException) -> bool:
    """Whether an error, or what caused it, is a want of memory.

    The reference is lost with an evaluation that found no memory.
    """
    # Memory that cannot be mapped is an error of the system's own sort.
    unmapped = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if unmapped or isinstance(error, OutOfMemory | MemoryError):
        return True
    return error.__cause__ is not None and _wants_memory(error.__cause__)


class FindingKind(enum.StrEnum):
    """What sort of thing is wrong; in the order in which findings are listed."""

    CRASH = "crash"
    HANG = "hang"
    LOST = "device lost"
    MEMORY = "out of memory"
    BACKEND = "backend failed"
    REFUSED = "refused"
    OPERATOR = "operator"
    PLAN = "plan"
    REPEATABILITY = "repeatability"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: what sort.
        text: the finding in one line, for people.
        backends: labels of the backends it is about.
        tensor: name of the tensor it is about, or "".
        operator: the operator it is about, or None.
        sample: the run that shows it best.
        stderr: the end of what the backend's process wrote to standard error.
    """

    kind: FindingKind
    text: str
    backends: tuple[str, ...]
    tensor: str = ""
    operator: OperatorName | None = None
    sample: int = 0
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class InputOrigin:
    """Where an input's values come from.

    Attributes:
        name: of the input.
        dtype: TOSA type.
        shape: dimensions.
        seed: of the random values, or None when they were given.
        path: the file they were read from, or "".
        sha256: of the values in packed storage.
        sample: number of the run.
        style: how the random values were chosen, or "".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    seed: int | None
    path: str
    sha256: str
    sample: int = 0
    style: str = ""

    def __str__(self) -> str:
        """The input in one line."""
        dims = "x".join(map(str, self.shape)) or "scalar"
        origin = f"random, seed {self.seed}"
        if self.style not in ("", "uniform"):
            origin += f", {self.style}"
        if self.seed is None:
            origin = f"from {self.path}" if self.path else "given"
        return f"{self.name}: {self.dtype} {dims}, {origin}"


@dataclass(frozen=True, slots=True)
class BackendRun:
    """One backend's part in a diff.

    Attributes:
        label: what it is called here: the specification, with a number where one
            specification takes part twice.
        spec: backend specification as given.
        device: name of device and driver, "" if it could not be opened.
        ending: how it ended.
        load_s: seconds to lower and load.
        first_s: seconds of the first run.
        steady_s: median seconds of the further runs, NumPy to NumPy.
        repeatable: whether further runs gave the same bits.
        failure: why there is no result, or "".
        traits: known exceptions that the device was seen to need, by a known-answer
            test; only filled when a difference made it necessary to look.
        stderr: the end of what its process wrote to standard error, where it failed.
        compared: whether it gave outputs; it may have failed after that.
    """

    label: str
    spec: str
    device: str = ""
    ending: Ending = Ending.RAN
    load_s: float = 0.0
    first_s: float = 0.0
    steady_s: float = 0.0
    repeatable: bool = True
    failure: str = ""
    traits: tuple[str, ...] = ()
    stderr: str = ""
    compared: bool = False

    @property
    def ran(self) -> bool:
        """Whether it gave a result."""
        return self.ending is Ending.RAN


ULP_EDGES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 4096.0, 65536.0)
"""Upper ends of the classes of `Comparison.histogram`; one more class follows."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of an operand: what an element of a result was computed from.

    Attributes:
        tensor: name of the operand.
        dtype: TOSA type.
        start: index of the first element.
        shape: of the part.
        values: its elements in C order, decimal; the first 64 of them.
        bits: the same in hexadecimal.
        elements: how many the part has.
    """

    tensor: str
    dtype: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    values: tuple[str, ...]
    bits: tuple[str, ...]
    elements: int


@dataclass(frozen=True, slots=True)
class Share:
    """What an operator adds to the error of its result, and what it was given.

    Each is the largest absolute difference over the largest magnitude of the tensor.

    Attributes:
        tensor: name of the result.
        backend: whose.
        against: the reference, or the device that it is compared with.
        contributed: against a right result for the inputs that it had.
        inherited: between right results for these inputs and for the other side's.
        total: against the other side's own tensor.
    """

    tensor: str
    backend: str
    against: str
    contributed: float
    inherited: float
    total: float


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst element of a comparison.

    Attributes:
        index: where it is in the tensor.
        left: value on the left in decimal.
        right: value on the right; of the reference in binary64.
        left_bits: the left value's bits in hexadecimal.
        right_bits: the right value's; of the reference the nearest of the type.
        ulp: distance in units of the last place of the type (integers: as such), or
            None where one side is no number.
        allowed_ulp: what the rule allows there, or None where it has no such number.
        excess: `ulp` over `allowed_ulp`: above 1 the rule is broken; None where one of
            them is None or nothing is allowed.
    """

    index: tuple[int, ...]
    left: str
    right: str
    left_bits: str
    right_bits: str
    ulp: float | None
    allowed_ulp: float | None = None
    excess: float | None = None

    def __str__(self) -> str:
        """The element in one line."""
        where = f"[{', '.join(map(str, self.index))}]"
        left = f"{self.left} ({self.left_bits})"
        right = f"{self.right} ({self.right_bits})" if self.right_bits else self.right
        text = f"{where} {left} and {right}"
        if self.ulp is not None:
            text += f", {self.ulp:.3g} ulp apart"
        if self.allowed_ulp is not None:
            text += f", {self.allowed_ulp:.3g} allowed"
        if self.excess is not None and self.excess > 1:
            text += f", {self.excess:.3g} times that"
        return text


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor compared between two backends.

    Attributes:
        tensor: name.
        dtype: TOSA type.
        shape: dimensions.
        left: label of a backend; "load" for a value computed when a program is loaded.
        right: label of a backend.
        rule: the rule it was judged by.
        agreed: whether the rule holds, or the difference is a known exception.
        outcome: "equal", "within rule", "different", "unpredictable", "known
            exception" or "not judged".
        differing: elements that differ; against the reference, that break the rule.
        elements: elements in all.
        relative: largest error over the largest magnitude, for floats.
        worst: the worst element, if any differs.
        note: what a reader must know besides, such as "all values equal".
        rerun: whether the right side computed it again from the left side's inputs.
        error_map: mean absolute error on a coarse grid for the picture, or None.
        sample: which run the worst element and the picture are from.
        samples: runs in which the rule is broken.
        histogram: elements by distance in units in the last place: 0, then up to each
            of `ULP_EDGES`, then the rest; None where all are equal.
        operands: what the worst element was computed from, where an operator is
            compared and does not agree.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    left: str
    right: str
    rule: str
    agreed: bool
    outcome: str
    differing: int = 0
    elements: int = 0
    relative: float = 0.0
    worst: Worst | None = None
    note: str = ""
    rerun: bool = False
    error_map: tuple[tuple[float, ...], ...] | None = None
    sample: int = 0
    samples: tuple[int, ...] = ()
    histogram: tuple[int, ...] | None = None
    operands: tuple[Excerpt, ...] = ()

    def __str__(self) -> str:
        """The comparison in one line."""
        text = f"{self.tensor!r} of {self.left} and {self.right}: {self.outcome}"
        text += f" ({self.rule})"
        if self.differing:
            text += f", {self.differing} of {self.elements} elements"
        if self.worst is not None:
            text += f", worst {self.worst}"
        return text


@dataclass(frozen=True, slots=True)
class OperatorComparison:
    """One operator, compared on equal inputs.

    Attributes:
        operator: which one.
        comparisons: one for each result tensor and pair of backends.
        shares: errors that it adds and that it was given, for each result and device;
            the largest over all runs.
    """

    operator: OperatorName
    comparisons: tuple[Comparison, ...]
    shares: tuple[Share, ...] = ()

    @property
    def agreed(self) -> bool:
        """Whether all comparisons hold."""
        return all(c.agreed for c in self.comparisons)


@dataclass(frozen=True, slots=True)
class Reduced:
    """The smallest program that still differs.

    Attributes:
        folder: where it is, with its inputs and the script that makes it.
        text: the difference in it, in one line.
        operators: its operators.
        before: how many operators and elements the given program has.
        after: how many it has.
        script: the Python text that makes it, or "" where there is none.
    """

    folder: str
    text: str
    operators: tuple[str, ...]
    before: tuple[int, int]
    after: tuple[int, int]
    script: str = ""

    def __str__(self) -> str:
        """The reduction in one line."""
        return (
            f"from {self.before[0]} operators and {self.before[1]} elements to "
            f"{self.after[0]} and {self.after[1]}, in {self.folder}"
        )


@dataclass(frozen=True, slots=True)
class DiffResult:
    """Everything a diff found out.

    Attributes:
        model: the model's path or name as given.
        model_sha256: of the file, or "".
        numerics: "strict" or "fast".
        inputs: where the inputs come from.
        runs: the backends.
        outputs: final outputs compared.
        operators: per-operator comparisons, empty when not asked for.
        findings: what is wrong, in order of importance; empty when all agree.
        notes: what a reader must know besides.
        command: the words of the command line that repeats the diff, or empty.
        environment: variables that choose drivers, as they were set.
        samples: how many runs with different inputs there were.
        reduced: the smallest program that differs so, where it was asked for.
    """

    model: str
    model_sha256: str
    numerics: str
    inputs: tuple[InputOrigin, ...]
    runs: tuple[BackendRun, ...]
    outputs: tuple[Comparison, ...]
    operators: tuple[OperatorComparison, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    samples: int = 1
    reduced: Reduced | None = None

    @property
    def verdict(self) -> Verdict:
        """Failed when fewer than two gave results; different when anything is wrong."""
        if sum(run.compared for run in self.runs) < 2:
            return Verdict.FAILED
        return Verdict.DIFFERENT if self.findings else Verdict.AGREED

    @property
    def first_different(self) -> OperatorName | None:
        """The first operator whose result differs on equal inputs."""
        return next((o.operator for o in self.operators if not o.agreed), None)

    @property
    def first_comparison(self) -> tuple[OperatorName, Comparison] | None:
        """The first operator that differs, judged by its rule where that is known."""
        for item in self.operators:
            wrong = [c for c in item.comparisons if not c.agreed]
            if wrong:
                judged = (c for c in wrong if c.right == "reference")
                return item.operator, next(judged, wrong[0])
        return None

    @property
    def exceptions(self) -> int:
        """How many comparisons differ by a known exception only."""
        operators = (c for item in self.operators for c in item.comparisons)
        return sum(c.outcome == KNOWN_EXCEPTION for c in (*self.outputs, *operators))

    def document(self) -> dict[str, object]:
        """The result as JSON data (docs/json.md)."""
        data = dataclasses.asdict(self)
        first = self.first_different
        return {
            "format": "tosavk.diff",
            "version": 2,
            "verdict": self.verdict.value,
            "first_different": dataclasses.asdict(first) if first else None,
            **data,
            "environment": dict(self.environment),
        }
