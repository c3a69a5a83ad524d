"""Runs the cases of the contract."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from traceback import extract_tb

from tosavk.testing.bench import Bench
from tosavk.testing.cases import ALL_CASES
from tosavk.testing.fixture import Fixture
from tosavk.testing.hooks import Hooks
from tosavk.testing.protocols import Factory
from tosavk.testing.report import (
    Case,
    CaseResult,
    ContractFailure,
    ContractReport,
    Outcome,
    Requirement,
    Skip,
)


def cases() -> tuple[Case, ...]:
    """All cases, in the order in which `run_contract` runs them."""
    return ALL_CASES


def run_case(
    case: Case, factory: Factory, fixture: Fixture, hooks: Hooks | None = None
) -> CaseResult:
    """Runs one case on an accelerator of its own.

    Args:
        case: one of `cases()`.
        factory: makes a fresh accelerator.
        fixture: programs with known results.
        hooks: ways to look and act from outside; None for the defaults.

    Returns:
        The result. Whatever the implementation raises is a failure of the case; only
        KeyboardInterrupt and its like pass through.
    """
    started = time.perf_counter()
    notes: list[str] = []
    outcome, message = Outcome.PASSED, ""
    try:
        bench = Bench(factory, fixture, hooks or Hooks())
        notes = bench.notes
        try:
            case.body(bench)
            bench.clean()
        except BaseException:
            bench.abandon()
            raise
        finally:
            bench.close_others()
    except Skip as skip:
        outcome, message = Outcome.SKIPPED, str(skip)
        if case.requirement is Requirement.MANDATORY:
            outcome, message = Outcome.FAILED, f"mandatory, but cannot run: {skip}"
    except ContractFailure as failure:
        outcome, message = Outcome.FAILED, str(failure)
    except Exception as error:  # noqa: BLE001 - the implementation's, whatever it is
        outcome = Outcome.FAILED
        message = f"unexpected {type(error).__name__}: {error}{_place(error)}"
    seconds = time.perf_counter() - started
    return CaseResult(case, outcome, message, tuple(notes), seconds)


def _place(error: Exception) -> str:
    """Which line of a case an error came out of."""
    folder = str(Path(__file__).parent)
    frames = [
        f for f in extract_tb(error.__traceback__) if f.filename.startswith(folder)
    ]
    if not frames:
        return ""
    last = frames[-1]
    return f" (at {Path(last.filename).name}:{last.lineno}: {last.line})"


def run_contract(
    factory: Factory,
    fixture: Fixture,
    hooks: Hooks | None = None,
    *,
    only: Iterable[str] | None = None,
) -> ContractReport:
    """Runs the contract, each case on an accelerator of its own.

    Args:
        factory: makes a fresh accelerator.
        fixture: programs with known results.
        hooks: ways to look and act from outside; None for the defaults.
        only: ids of the cases to run; None for all.

    Raises:
        ValueError: `only` names a case that does not exist.
    """
    wanted = None if only is None else set(only)
    unknown = (wanted or set()) - {case.id for case in ALL_CASES}
    if unknown:
        raise ValueError(f"no such cases: {', '.join(sorted(unknown))}")
    return ContractReport(
        tuple(
            run_case(case, factory, fixture, hooks)
            for case in ALL_CASES
            if wanted is None or case.id in wanted
        )
    )
