"""The official TOSA tests on every device.

Results are judged by the official verifier, where it is there, and by our own rules. What
is not admitted is listed here and compared exactly, so that it changes on purpose only.
"""

import functools
import json

import pytest

from harness import devices, official, shared
from harness.judging import complaints
from harness.official import OfficialTest
from harness.running import Array, Devices
from tosavk.core.errors import ModelError
from tosavk.lowering.errors import AdmissionError
from tosavk.lowering.graph import Graph, Op
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

pytestmark = pytest.mark.skipif(
    bool(shared.missing("tosa", "corpus")), reason=shared.missing("tosa", "corpus")
)

_ALL = "every type"
NOT_ADMITTED: dict[str, set[str]] = {}
OPERATORS = sorted({test.folder.parent.name for test in official.positive_tests()})
ADMITTED = [name for name in OPERATORS if _ALL not in NOT_ADMITTED.get(name, ())]


def dtype_of(operator: str, graph: Graph) -> str:
    """Type of the first data operand of the tested operator, or of a constant."""
    block = graph.main
    op = next(op for op in block.operators if op.op is Op[operator.upper()])
    names = op.inputs or op.outputs
    return block.tensors[names[1 if op.op is Op.SELECT else 0]].dtype.name


def is_listed(operator: str, graph: Graph) -> bool:
    """Whether a test is one that must not be admitted."""
    types = NOT_ADMITTED.get(operator, set())
    return _ALL in types or dtype_of(operator, graph) in types


@functools.cache
def graphs(operator: str) -> tuple[tuple[OfficialTest, Graph], ...]:
    """An operator's tests that must succeed, with their graphs, verified."""
    tests = official.positive_tests(operator)
    return tuple((test, load_graph(test.program)) for test in tests)


def is_admitted(graph: Graph) -> bool:
    """Whether lowering takes a program."""
    try:
        lower_graph(graph)
    except AdmissionError:
        return False
    return True


@pytest.mark.parametrize("operator", OPERATORS)
def test_admission_is_as_listed(operator: str) -> None:
    wrong = [
        test.folder.name
        for test, graph in graphs(operator)
        if is_admitted(graph) == is_listed(operator, graph)
    ]
    assert not wrong


def test_the_list_names_what_the_corpus_has() -> None:
    for operator, types in NOT_ADMITTED.items():
        found = {dtype_of(operator, graph) for _, graph in graphs(operator)}
        assert types in ({_ALL}, types & found), (operator, types, found)


@pytest.mark.parametrize("operator", ADMITTED)
def test_results(opened: Devices, device: str, operator: str) -> None:
    for test, graph in graphs(operator):
        if is_listed(operator, graph):
            continue
        inputs = test.inputs()
        outputs = opened.run(device, graph, inputs)
        judge_officially(test, outputs)
        assert not complaints(graph, {**inputs, **outputs}), test.folder.name


def judge_officially(test: OfficialTest, outputs: dict[str, Array]) -> None:
    """Asks the official verifier, where it is there."""
    for result in test.results():
        actual = outputs[result.name]
        assert actual.shape == result.reference.shape
        if not official.missing():
            assert result.accepts(actual), f"{test.folder.name} {result.name}"


def negative_tests() -> list[str]:
    """The official tests that must be refused, as paths in the corpus."""
    corpus = shared.shared_root() / "tosa" / "corpus"
    return [
        str(folder.relative_to(corpus))
        for folder in shared.conformance_tests()
        if json.loads((folder / "desc.json").read_text())["expected_failure"]
    ]


@pytest.mark.parametrize("path", negative_tests())
def test_refusal(opened: Devices, path: str) -> None:
    folder = shared.shared_root() / "tosa" / "corpus" / path
    test = OfficialTest(folder, json.loads((folder / "desc.json").read_text()))
    spec = devices.available()[0]
    with pytest.raises(ModelError):
        opened.run(spec, test.program, test.inputs())


def test_the_corpus_is_whole() -> None:
    """Fewer tests than there were would pass unseen."""
    assert len(OPERATORS) == 70
    assert len(official.positive_tests()) >= 662
    assert len(negative_tests()) >= 204
