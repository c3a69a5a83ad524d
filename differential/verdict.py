"""The verdict on one tensor, put together from the parts that it was judged in.

It is the same as for the whole at once.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.differential.result import ULP_EDGES

Array = NDArray[Any]


class Outcome(enum.StrEnum):
    """What a comparison found."""

    EQUAL = "equal"
    WITHIN_RULE = "within rule"
    DIFFERENT = "different"
    UNPREDICTABLE = "unpredictable"
    UNSUPPORTED = "unsupported"
    RESOURCE = "resource"

    @property
    def agrees(self) -> bool:
        """Whether the results are as good as equal."""
        return self in (Outcome.EQUAL, Outcome.WITHIN_RULE)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one tensor.

    Attributes:
        outcome: EQUAL, WITHIN_RULE or DIFFERENT.
        index: position of the worst element; None for an empty tensor.
        expected: reference there.
        actual: result there.
        error_ulp: distance there, in units in the last place (integers: as such).
        limit: what was allowed there, in the same unit; infinity if anything.
        failed: how many elements break the rule.
        reason: what is wrong; "" if nothing is.
        histogram: elements by distance, in the classes of `result.ULP_EDGES`; None for
            an empty tensor.
    """

    outcome: Outcome
    index: tuple[int, ...] | None
    expected: float
    actual: float
    error_ulp: float
    limit: float
    failed: int
    reason: str = ""
    histogram: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What was found out about some elements; flat arrays of one size.

    Attributes:
        same: which have the value wanted.
        admitted: which keep the rule.
        error: their distances in units in the last place, never NaN.
        limit: distances allowed, as they are.
        unit: a unit in the last place.
        reference: what is wanted.
        actual: what there is.
    """

    same: Array
    admitted: Array
    error: Array
    limit: Array
    unit: Array
    reference: Array
    actual: Array


@dataclass(slots=True)
class _Worst:
    """The element with the largest error so far, the first among equals."""

    error: float = -1.0
    flat: int = 0
    limit: float = 0.0
    reference: Any = None
    actual: Any = None

    def see(self, error: Array, part: Part, start: int) -> None:
        at = int(np.argmax(error))
        if self.reference is None or float(error[at]) > self.error:
            self.error = float(error[at])
            self.flat = start + at
            self.limit = float(part.limit[at] / part.unit[at])
            self.reference, self.actual = part.reference[at], part.actual[at]


class Tally:
    """Takes the parts of a tensor in order, and says the verdict.

    Args:
        shape: of the tensor.
        rule: by which it is judged, in words.
    """

    def __init__(self, shape: tuple[int, ...], rule: str) -> None:
        """Has seen nothing."""
        self._shape = shape
        self._rule = rule
        self._seen = 0
        self._failed = 0
        self._same = True
        self._among_all, self._among_failed = _Worst(), _Worst()
        self._counts = np.zeros(len(ULP_EDGES) + 1, np.int64)

    def add(self, part: Part) -> None:
        """Looks at the next elements."""
        if not part.same.size:
            return
        self._same = self._same and bool(part.same.all())
        self._among_all.see(part.error, part, self._seen)
        if not part.admitted.all():
            failing = np.where(part.admitted, -1.0, part.error)
            self._among_failed.see(failing, part, self._seen)
            self._failed += int(np.count_nonzero(~part.admitted))
        self._counts += counts(part.error)
        self._seen += part.same.size

    def judgement(self, reason: str = "") -> Judgement:
        """The verdict.

        Args:
            reason: what the tensor as a whole breaks, or "".
        """
        if not self._seen:
            return Judgement(Outcome.EQUAL, None, 0.0, 0.0, 0.0, 0.0, 0)
        # Among the elements that break the rule, or else among all, the farthest.
        worst = self._among_failed if self._failed else self._among_all
        index = tuple(int(i) for i in np.unravel_index(worst.flat, self._shape))
        outcome = Outcome.EQUAL if self._same else Outcome.WITHIN_RULE
        if self._failed:
            outcome = Outcome.DIFFERENT
            reason = (
                f"{self._failed} of {self._seen} elements break the rule "
                f"({self._rule}); the worst, at {list(index)}, is "
                f"{worst.actual.item()!r} instead of {worst.reference.item()!r}"
            )
        elif reason:
            outcome = Outcome.DIFFERENT
        return Judgement(
            outcome,
            index,
            float(worst.reference),
            float(worst.actual),
            worst.error,
            math.inf if math.isnan(worst.limit) else worst.limit,
            self._failed,
            reason,
            tuple(int(n) for n in self._counts),
        )


def counts(errors: Array) -> NDArray[np.int64]:
    """How many elements lie in each of the classes of `ULP_EDGES`, and beyond.

    Args:
        errors: distances, one-dimensional; NaN counts as infinity.
    """
    if errors.size and errors.max() <= ULP_EDGES[1]:
        far = int(np.count_nonzero(errors))
        found = np.zeros(len(ULP_EDGES) + 1, np.int64)
        found[:2] = errors.size - far, far
        return found
    # Searching puts NaN behind every number.
    classes = np.searchsorted(_EDGES, errors, side="left")
    return np.bincount(classes, minlength=len(ULP_EDGES) + 1)


_EDGES = np.array(ULP_EDGES)
