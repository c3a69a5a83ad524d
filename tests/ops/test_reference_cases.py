"""The reference backend on published faults and on whole models, where they are there."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import shared
from tosavk.backends.reference import Note, evaluate
from tosavk.core.dtypes import DType, coerce
from tosavk.lowering.tosa.reader import read_graph

ROOT = shared.shared_root()
# B1 needs a gigabyte; the D cases belong to TOSA 1.1.
LEFT_OUT = ("B1", "D1", "D19_1", "D19_2")


def cases() -> list[Path]:
    """The published faults that have an answer."""
    found: list[Path] = []
    for path in sorted(ROOT.glob("cases/tosa/*/case.json")):
        rejected = json.loads(path.read_text())["compare"] == "reject"
        if not rejected and path.parent.name not in LEFT_OUT:
            found.append(path)
    return found


def unpredictable() -> list[Path]:
    """Those that TOSA leaves open; the A43 ones are about versions."""
    found = sorted(ROOT.glob("cases/tosa/_unpredictable/*/case.json"))
    return [path for path in found if not path.parent.name.startswith("A43")]


MODELS = sorted(
    path
    for path in ROOT.glob("models/*.tosa")
    if path.with_suffix(".out0.npy").exists()
)


def label(path: Path) -> str:
    return path.parent.name


def judged(case: dict[str, Any], dtype: DType) -> bool:
    return case["compare"] == "exact" or not dtype.is_float


@pytest.mark.parametrize("path", cases(), ids=label)
def test_a_case_has_the_reference_models_answer(path: Path) -> None:
    case = json.loads(path.read_text())
    graph = read_graph((path.parent / "test.tosa").read_bytes())
    inputs = {i["name"]: np.load(path.parent / i["file"]) for i in case["inputs"]}
    notes: list[Note] = []
    values = evaluate(graph, inputs, precise=False, notes=notes)
    assert not notes
    for output in case["outputs"]:
        dtype, actual = DType[output["dtype"]], values[output["name"]]
        expected = np.load(path.parent / output["file"])
        if judged(case, dtype):
            expected = coerce(output["name"], dtype, expected)
            with np.errstate(invalid="ignore"):
                both = np.isnan(actual) & np.isnan(expected)
            assert np.all((actual == expected) | both)
        else:
            unit = np.spacing(np.abs(expected).astype(np.float32))
            limit = case["compare"].get("abs", case["compare"].get("ulp", 0) * unit)
            assert np.all(np.abs(actual.astype(np.float64) - expected) <= limit)


@pytest.mark.parametrize("path", unpredictable(), ids=label)
def test_an_unpredictable_case_is_noted(path: Path) -> None:
    case = json.loads(path.read_text())
    graph = read_graph((path.parent / "test.tosa").read_bytes())
    inputs = {i["name"]: np.load(path.parent / i["file"]) for i in case["inputs"]}
    notes: list[Note] = []
    evaluate(graph, inputs, precise=False, notes=notes)
    assert notes


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_model_has_its_known_results(path: Path) -> None:
    graph = read_graph(path.read_bytes())
    block = graph.main
    inputs = {block.inputs[0]: np.load(path.with_suffix(".in0.npy"))}
    start = time.perf_counter()
    values = evaluate(graph, inputs)
    assert time.perf_counter() - start < 3
    for index, name in enumerate(block.outputs):
        expected = np.load(path.with_suffix(f".out{index}.npy"))
        actual = values[name].reshape(expected.shape)
        assert np.allclose(actual, expected, rtol=1e-11, atol=1e-11)
