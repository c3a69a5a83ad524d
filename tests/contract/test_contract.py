"""The contract suite on every implementation of the repository."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from harness import contract, toy
from harness.contract import Kept
from tosavk import testing
from tosavk.core.errors import InvalidArgument
from tosavk.testing import Case, Outcome, Requirement

FIXTURE = testing.standard_fixture()
CASES = testing.cases()

# Everything that a lane may skip; anything else must run.
COMMON = {
    "memory.unavailable-domains",
    "order.allocations",
    "event.cancellation-races",
}
MAY_SKIP = {
    "vulkan": COMMON,
    "wgpu": {
        *COMMON,
        "memory.shared",  # cards with memory of their own
        "event.bounded-waits",
        "buffer.views",
        *(c.id for c in CASES if c.id.startswith(("gate.", "import."))),
    },
    "reference": {"memory.device", "event.cancellation-races"},
}


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    """The Vulkan instance of this file."""
    with ExitStack() as undo:
        yield Kept(undo)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract(case: Case, device: str, kept: Kept) -> None:
    chosen = contract.of_lane(device, kept)
    result = testing.run_case(case, chosen.make, FIXTURE, chosen.hooks)
    if result.outcome is Outcome.SKIPPED:
        assert case.id in MAY_SKIP[device.partition(":")[0]], result.message
    result.check()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract_with_staged_memory(
    case: Case, vulkan_device: str, kept: Kept
) -> None:
    """As on a discrete card: DEVICE memory is not mapped, transfers are staged."""
    chosen = contract.vulkan(vulkan_device, kept(), unified=False)
    result = testing.run_case(case, chosen.make, FIXTURE, chosen.hooks)
    if result.outcome is Outcome.SKIPPED:
        assert case.id in MAY_SKIP["vulkan"], result.message
    result.check()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract_of_another_implementation(case: Case) -> None:
    chosen = contract.toys()
    testing.run_case(case, chosen.make, FIXTURE, chosen.hooks).check()


def test_the_fifteen_named_cases_are_there() -> None:
    mandatory = {
        "metadata.stable-valid",
        "intent.reserved-flags",
        "buffer.segmented-transfer-bounds",
        "buffer.transfer-permissions",
        "program.segmented-artifact-bounds",
        "submission.binding-validation",
        "submission.context-isolation",
        "event.pending-release-terminal-stability",
        "timeout.finite-admission",
    }
    optional = {
        "memory.host",
        "memory.device",
        "memory.shared",
        "submission.copy-path-diagnostics",
        "event.cancellation-races",
        "accounting.resource-lifecycle",
    }
    by_id = {case.id: case for case in CASES}
    assert len(by_id) == len(CASES)
    assert mandatory | optional <= set(by_id)
    for name in mandatory:
        assert by_id[name].requirement is Requirement.MANDATORY
    for name in optional:
        assert by_id[name].requirement is not Requirement.MANDATORY


def test_a_report_names_what_was_skipped_and_why() -> None:
    bare = testing.Fixture(FIXTURE.program)
    hooks = testing.Hooks(counts=None, one_thread=False)
    report = testing.run_contract(toy.ToyAccelerator, bare, hooks)
    assert report.ok
    report.check()
    skipped = {result.case.id: result.message for result in report.skipped}
    assert "gate" in skipped["event.bounded-waits"]
    assert "gate" in skipped["gate.holds"]
    assert "packed" in skipped["submission.packed-neighbours"]
    assert "counts" in skipped["accounting.resource-lifecycle"]
    mandatory = {c.id for c in CASES if c.requirement is Requirement.MANDATORY}
    assert not mandatory & set(skipped)
    pending = "event.pending-release-terminal-stability"
    (noted,) = (r for r in report if r.case.id == pending)
    assert "no gate" in str(noted)
    assert str(report).endswith(f"0 failed, {len(skipped)} skipped")


def test_only_the_chosen_cases_run() -> None:
    name = "metadata.stable-valid"
    report = testing.run_contract(toy.ToyAccelerator, FIXTURE, only=[name])
    assert [result.case.id for result in report] == [name]
    with pytest.raises(ValueError, match=r"no\.such"):
        testing.run_contract(toy.ToyAccelerator, FIXTURE, only=["no.such"])


def test_an_accelerator_that_cannot_be_made_fails_the_case() -> None:
    def make() -> toy.ToyAccelerator:
        raise InvalidArgument("no such thing")

    result = testing.run_case(CASES[0], make, FIXTURE)
    assert result.outcome is Outcome.FAILED
    with pytest.raises(testing.ContractFailure, match="no such thing"):
        result.check()


def test_a_mandatory_case_that_cannot_run_fails() -> None:
    def body(bench: object) -> None:
        del bench
        raise testing.Skip("not today")

    case = Case("x.y", Requirement.MANDATORY, "p", body)
    result = testing.run_case(case, toy.ToyAccelerator, FIXTURE)
    assert result.outcome is Outcome.FAILED
    assert "not today" in result.message


def test_fixtures_that_prove_nothing_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="stay as it is"):
        testing.BindingFixture(
            slot=1, access=FIXTURE.program.primary.access, initial=b"a", expected=b"a"
        )
    with pytest.raises(InvalidArgument, match="output"):
        testing.ProgramFixture(FIXTURE.program.artifact, FIXTURE.program.inputs)
