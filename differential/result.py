"""The result of a diff, as data: what the verdict, the report and the JSON show."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field

from tosavk.core.plan import OperatorName


class Verdict(enum.Enum):
    """What a diff found."""

    AGREED = "agreed"
    DIFFERENT = "different"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BackendRun:
    """One backend's part in a diff.

    Attributes:
        spec: backend specification as given.
        device: device name.
        load_s: seconds to open, lower and load.
        first_s: seconds of the first run.
        steady_s: median seconds of the further runs, NumPy to NumPy.
        repeatable: whether further runs gave the same bits.
        failure: why there is no result, or "".
    """

    spec: str
    device: str
    load_s: float = 0.0
    first_s: float = 0.0
    steady_s: float = 0.0
    repeatable: bool = True
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst element of a comparison.

    Attributes:
        index: where it is in the tensor.
        left: value on the left, as text with its bits.
        right: value on the right.
        ulp: distance in units of the last place of the type, or None.
    """

    index: tuple[int, ...]
    left: str
    right: str
    ulp: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor compared between two backends.

    Attributes:
        tensor: name.
        dtype: TOSA type.
        shape: dimensions.
        left: backend specification.
        right: backend specification.
        rule: the rule it was judged by.
        agreed: whether the rule holds.
        outcome: "equal", "equal within the rule", "different", ...
        differing: elements that differ.
        elements: elements in all.
        relative: largest error over the largest magnitude, for floats.
        worst: the worst element, if any differs.
        note: what a reader must know besides, such as "all values equal".
        error_map: mean absolute error on a coarse grid for the picture, or None.
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
    error_map: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class OperatorComparison:
    """One operator, compared on equal inputs.

    Attributes:
        operator: which one.
        comparisons: one for each result tensor and pair of backends.
    """

    operator: OperatorName
    comparisons: tuple[Comparison, ...]

    @property
    def agreed(self) -> bool:
        """Whether all comparisons hold."""
        return all(c.agreed for c in self.comparisons)


@dataclass(frozen=True, slots=True)
class DiffResult:
    """Everything a diff found out.

    Attributes:
        model: name of the model.
        numerics: "strict" or "fast".
        inputs: text for every input: name, type, shape, origin.
        runs: the backends.
        outputs: final outputs compared.
        operators: per-operator comparisons, empty when not asked for.
        findings: what is wrong, in order of importance; empty when all agree.
        notes: what a reader must know besides.
    """

    model: str
    numerics: str
    inputs: tuple[str, ...]
    runs: tuple[BackendRun, ...]
    outputs: tuple[Comparison, ...]
    operators: tuple[OperatorComparison, ...] = ()
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """Failed when fewer than two backends ran; different when anything is wrong."""
        if sum(not run.failure for run in self.runs) < 2:
            return Verdict.FAILED
        return Verdict.DIFFERENT if self.findings else Verdict.AGREED

    @property
    def first_different(self) -> OperatorName | None:
        """The first operator whose result differs on equal inputs."""
        return next((o.operator for o in self.operators if not o.agreed), None)

    def document(self) -> dict[str, object]:
        """The result as JSON data (docs/json.md)."""
        data = dataclasses.asdict(self)
        first = self.first_different
        return {
            "format": "tosavk.diff",
            "version": 1,
            "verdict": self.verdict.value,
            "first_different": dataclasses.asdict(first) if first else None,
            **data,
        }
