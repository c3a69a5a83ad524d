"""Cases of the contract, and what became of them."""

from __future__ import annotations

import enum
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tosavk.testing.bench import Bench


class ContractFailure(AssertionError):
    """An implementation breaks a promise; the message says which, and how."""


class Skip(Exception):
    """A case does not apply; raised by cases that are not mandatory."""


class Requirement(enum.Enum):
    """When a case may be skipped."""

    MANDATORY = "mandatory"
    """Never."""
    CAPABILITY = "capability"
    """When the device does not have what the case is about."""
    HOOK = "hook"
    """When the hook that the case needs is not given."""
    FIXTURE = "fixture"
    """When the fixture lacks the program that the case needs."""


class Outcome(enum.Enum):
    """What became of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Case:
    """One promise of the model.

    Attributes:
        id: its stable name.
        requirement: when it may be skipped.
        promise: what it holds an implementation to.
        body: the checks; raises ContractFailure or Skip.
    """

    id: str
    requirement: Requirement
    promise: str
    body: Callable[[Bench], None]

    def __str__(self) -> str:
        """The id."""
        return self.id


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case.

    Attributes:
        case: the case.
        outcome: passed, failed or skipped.
        message: why it failed or was skipped.
        notes: what could not be decided although the case passed.
        seconds: how long it took.
    """

    case: Case
    outcome: Outcome
    message: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def check(self) -> None:
        """Raises unless the case passed; test runners understand both errors.

        Raises:
            ContractFailure: it failed.
            SkipTest: it was skipped.
        """
        if self.outcome is Outcome.FAILED:
            raise ContractFailure(f"{self.case.id}: {self.message}")
        if self.outcome is Outcome.SKIPPED:
            raise unittest.SkipTest(f"{self.case.id}: {self.message}")

    def __str__(self) -> str:
        """One line."""
        tail = "; ".join(part for part in (self.message, *self.notes) if part)
        return f"{self.outcome.value:7} {self.case.id}{': ' if tail else ''}{tail}"


@dataclass(frozen=True, slots=True)
class ContractReport:
    """What became of all cases, in the order in which they ran.

    Attributes:
        results: one for each case.
    """

    results: tuple[CaseResult, ...]

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        """The cases that failed."""
        return tuple(r for r in self.results if r.outcome is Outcome.FAILED)

    @property
    def skipped(self) -> tuple[CaseResult, ...]:
        """The cases that were skipped."""
        return tuple(r for r in self.results if r.outcome is Outcome.SKIPPED)

    @property
    def ok(self) -> bool:
        """Whether no case failed."""
        return not self.failed

    def check(self) -> None:
        """Raises if a case failed.

        Raises:
            ContractFailure: with one line for each case that failed.
        """
        if self.failed:
            raise ContractFailure("\n".join(str(result) for result in self.failed))

    def __iter__(self) -> Iterator[CaseResult]:
        """The results."""
        return iter(self.results)

    def __str__(self) -> str:
        """A line for each case, then the sum."""
        counts = ", ".join(
            f"{sum(r.outcome is outcome for r in self.results)} {outcome.value}"
            for outcome in Outcome
        )
        return "\n".join([*(str(result) for result in self.results), counts])
