"""A contract suite for implementations of the Accelerator model.

    from tosavk import testing

    report = testing.run_contract(make_accelerator, testing.standard_fixture())
    print(report)
    report.check()

In pytest or unittest, one test a case:

    @pytest.mark.parametrize("case", testing.cases(), ids=str)
    def test_contract(case):
        testing.run_case(case, make_accelerator, FIXTURE, HOOKS).check()

`check` raises ContractFailure, an AssertionError, for a case that failed, and
`unittest.SkipTest`, which pytest knows too, for one that does not apply. Mandatory cases
are never skipped. Each case has an accelerator of its own; nothing is ever retried but
releases, once. The ids of the cases are stable.
"""

from __future__ import annotations

from tosavk.testing.fixture import BindingFixture, Fixture, ProgramFixture
from tosavk.testing.hooks import Diagnostics, Hooks
from tosavk.testing.protocols import AcceleratorHandle, Factory, Gate
from tosavk.testing.report import (
    Case,
    CaseResult,
    ContractFailure,
    ContractReport,
    Outcome,
    Requirement,
    Skip,
)
from tosavk.testing.standard import standard_fixture
from tosavk.testing.suite import cases, run_case, run_contract

__all__ = [
    "AcceleratorHandle",
    "BindingFixture",
    "Case",
    "CaseResult",
    "ContractFailure",
    "ContractReport",
    "Diagnostics",
    "Factory",
    "Fixture",
    "Gate",
    "Hooks",
    "Outcome",
    "ProgramFixture",
    "Requirement",
    "Skip",
    "cases",
    "run_case",
    "run_contract",
    "standard_fixture",
]
