"""The mutation study: its table fits the sources, and its machinery finds faults."""

from collections import Counter
from pathlib import Path

import mutation
import mutation_report
import mutation_tree
import pytest
from mutation_tree import Fault, Tree, problems, read_faults, shader_tools

from harness import devices
from harness.validation import Log

FAULTS = {fault.id: fault for fault in read_faults()}
KINDS = {
    "wrong operator",
    "off by one in an index",
    "missing barrier",
    "wrong arena offset",
    "wrong NaN mode",
    "wrong rounding",
    "dropped tail",
    "stale constant",
    "swapped operands",
    "wrong dtype width",
}


def test_every_fault_fits_its_source_exactly_once_and_changes_it() -> None:
    assert not problems(list(FAULTS.values()))


def test_the_table_has_faults_of_every_kind_and_place() -> None:
    assert len(FAULTS) >= 60
    assert {fault.kind for fault in FAULTS.values()} >= KINDS
    places = Counter(fault.where for fault in FAULTS.values())
    assert set(places) == {"glsl", "wgsl", "lower", "plan"}
    assert min(places.values()) >= 10


def stale(**changes: str) -> Fault:
    entry = {"find": "nowhere in the file", "replace": "x", **changes}
    return Fault("lower-x", "kind", "lowering/arena.py", operators=("*",), **entry)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (stale(), "0 times"),
        (stale(find="return"), "times"),
        (stale(find="ALIGNMENT = 256", replace="ALIGNMENT = 256"), "itself"),
        (stale(find="ALIGNMENT = 256", replace="ALIGNMENT ="), "invalid syntax"),
    ],
)
def test_a_stale_entry_is_an_error(fault: Fault, message: str) -> None:
    (problem,) = problems([fault])
    assert message in problem


def test_what_judges_must_not_have_a_fault() -> None:
    shared = Fault(
        "lower-y",
        "kind",
        "lowering/lower.py",
        "live.reverse()",
        "live.sort()",
        ("*",),
    )
    (problem,) = problems([shared])
    assert "live_operators" in problem


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"), shader_tools())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.mark.parametrize(
    "name", ["glsl-select-choice", "lower-slice-start", "plan-no-read-after-write"]
)
def test_a_fault_is_found_named_and_reduced(
    folder: Path,
    tree: Tree,
    name: str,
    layer_log: Log,
) -> None:
    fault = FAULTS[name]
    if fault.where == "glsl" and shader_tools() is None:
        pytest.skip("needs glslangValidator and spirv-opt")
    spec = devices.first("vulkan")
    if not spec:
        pytest.skip("no Vulkan device")
    before = (tree.folder / "tosavk" / fault.file).read_bytes()
    backends = (spec, "reference")
    study = mutation.Study(folder, mutation.Settings(5, 300, backends))
    outcome = study.run(fault, tree)
    if fault.kind == "missing barrier":
        # The validation layer sees it as well, in the processes of the study.
        assert all("SYNC-HAZARD" in message for message in layer_log.take())
    assert not outcome.trouble
    assert outcome.found
    assert outcome.right, outcome
    assert outcome.operators <= mutation_report.MOST_OPERATORS, outcome
    if fault.where != "plan":
        assert (outcome.diff, outcome.diff_operator) == ("different", outcome.operator)
    assert (tree.folder / "tosavk" / fault.file).read_bytes() == before
    assert (mutation_tree.ROOT / fault.file).read_bytes() == before
    study.keep(outcome)
    assert mutation.Study(folder, study.settings).has(fault)
    assert not mutation.Study(folder, mutation.Settings(6, 300, backends)).has(fault)
