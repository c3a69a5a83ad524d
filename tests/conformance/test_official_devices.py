"""The official TOSA tests on every device.

Judged by the official verifier where it is there, and by our own rules everywhere (they
are compared with it in tests/unit/test_rules_official.py).
"""

from __future__ import annotations

import numpy as np
import pytest

import tosavk
from harness import official, shared
from harness.official import OfficialTest, Result
from tosavk.backends.reference import expect
from tosavk.backends.reference.values import Array
from tosavk.core.dtypes import coerce
from tosavk.differential.rules import judge, rule_for
from tosavk.lowering.errors import AdmissionError
from tosavk.lowering.graph import Op
from tosavk.lowering.rules.table import RULES
from tosavk.lowering.tosa.reader import read_graph

pytestmark = pytest.mark.skipif(
    bool(shared.missing("tosa", "corpus")), reason=shared.missing("tosa", "corpus")
)
OPERATORS = sorted({test.folder.parent.name for test in official.positive_tests()})


def run_test(device: str, test: OfficialTest) -> dict[str, Array] | None:
    """The results, or None if the program is refused: an operator or type too many."""
    try:
        program = tosavk.load(test.program, backend=device)
    except AdmissionError:
        return None
    with program:
        types = {spec.name: spec.dtype for spec in program.inputs}
        inputs = {
            name: coerce(name, types[name], array)
            for name, array in test.inputs().items()
        }
        return dict(program.run(inputs))


def judge_by_our_rules(test: OfficialTest, results: dict[str, Array]) -> None:
    """Judges the operators whose operands are inputs or constants."""
    graph = read_graph(test.program)
    block = graph.main
    given = test.inputs()
    known = {
        name: coerce(name, block.tensors[name].dtype, given[name])
        for name in block.inputs
    }
    for op in block.operators:
        if op.op in (Op.CONST, Op.CONST_SHAPE):
            (value,) = expect(op, block, [], graph=graph)
            known[op.outputs[0]] = value.reference
            continue
        if not all(name in known for name in op.inputs):
            continue
        operands = [known[name] for name in op.inputs]
        for position, expected in enumerate(expect(op, block, operands, graph=graph)):
            name = op.outputs[position]
            if name in results:
                rule = rule_for(op, block, expected, position)
                found = judge(rule, expected.reference, expected.bound, results[name])
                assert found.outcome.agrees, (
                    f"{test.folder.name} {name}: {found.reason}"
                )


def judge_officially(test: OfficialTest, result: Result, actual: Array) -> None:
    """Asks the official verifier, where it is there."""
    if not official.missing():
        assert result.accepts(actual), f"{test.folder.name} {result.name}"


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_official_tests(device: str, operator: str) -> None:
    ran = 0
    tests = official.positive_tests(operator)
    for test in tests:
        results = run_test(device, test)
        if results is None:
            continue
        ran += 1
        for result in test.results():
            actual = results[result.name]
            assert actual.shape == result.reference.shape
            judge_officially(test, result, actual)
        with np.errstate(all="ignore"):
            judge_by_our_rules(test, results)
    # An operator that has a rule runs at least with some type.
    assert ran or Op[operator.upper()] not in RULES, f"all {len(tests)} were refused"
