"""The index of field cases names tests that are there, and no case is missing."""

import ast
import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from harness import shared

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {"A": 29, "B": 28, "C": 18, "D": 18, "E": 14}


def _index() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "index", ROOT / "tests/cases/index.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


INDEX = _index()
TESTS: dict[str, tuple[str, ...]] = INDEX.TESTS


@functools.cache
def functions(path: str) -> frozenset[str]:
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    )


def test_no_case_is_missing() -> None:
    counts = {group: sum(c.startswith(group) for c in TESTS) for group in COUNTS}
    assert counts == COUNTS


@pytest.mark.parametrize("case", TESTS)
def test_every_test_of_a_case_is_there(case: str) -> None:
    assert TESTS[case]
    for test in TESTS[case]:
        if test == INDEX.ARTIFACTS:
            continue
        path, _, name = test.partition("::")
        found = functions(path)
        if not name:
            # Their names say the case.
            assert [n for n in found if re.search(rf"_{case.lower()}(_|$)", n)], case
        else:
            assert name in found, test


@pytest.mark.skipif(
    bool(shared.missing("cases")), reason=shared.missing("cases", "field-cases.md")
)
def test_the_index_has_the_cases_of_the_corpus() -> None:
    cases = shared.shared_root() / "cases"
    text = (cases / "field-cases.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### ([A-E]\d+) ", text, re.MULTILINE)) == set(TESTS)
    folders = {path.parent.name for path in (cases / "tosa").rglob("case.json")}
    for case, tests in TESTS.items():
        if INDEX.ARTIFACTS in tests:
            assert [f for f in folders if re.match(rf"{case}(_|$)", f)], case
