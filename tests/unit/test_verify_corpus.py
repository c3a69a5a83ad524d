"""Official tests, field cases and real models: all are read and judged rightly."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness.shared import conformance_tests, missing, shared_root
from tosavk.core.errors import Error
from tosavk.lowering.errors import Kind, ParseError, VerifyError
from tosavk.lowering.graph import Graph
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.verify import verify

# Negative tests that only a run can detect, because the bad values are inputs: none
# in this corpus (in all of them the values are constants of the file).
DETECTED_AT_RUN_TIME: frozenset[str] = frozenset()

# What the file name says is wrong, and how it is found here.
KINDS: dict[str, set[str]] = {
    "WrongInputList": {Kind.UNKNOWN_SYMBOL, Kind.INVALID_ARITY},
    "WrongOutputList": {
        Kind.UNKNOWN_SYMBOL,
        Kind.INVALID_ARITY,
        Kind.DISCONNECTED_SYMBOL,
    },
    "DimensionMismatch": {Kind.INVALID_SHAPE},
    "RankMismatch": {Kind.INVALID_SHAPE},
    "BroadcastShapesMismatch": {Kind.INVALID_SHAPE},
    "WrongRank": {Kind.INVALID_RANK},
    "AxisSmallerZero": {Kind.INVALID_ATTRIBUTE},
    "AxisLargerRank": {Kind.INVALID_ATTRIBUTE},
    "StrideSmallerOne": {Kind.INVALID_ATTRIBUTE},
    "IndexUsedTwice": {Kind.INVALID_ATTRIBUTE},
    "MaxSmallerMin": {Kind.INVALID_ATTRIBUTE},
    "InputZeroPointNotZero": {Kind.INVALID_CONSTANT_DATA},
    "OutputZeroPointNotZero": {Kind.INVALID_CONSTANT_DATA},
    "U16InputZeroPointNotValid": {Kind.INVALID_CONSTANT_DATA},
}

# Field cases of operators of TOSA 1.1, and of types that belong to it.
LATER = {"D1", "D19_1", "D19_2"}

MODELS: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "face_detection_front": (254, {"TosaOutput_0": (1, 896, 16)}),
    "face_landmark": (245, {"TosaOutput_0": (1, 1, 1, 1404)}),
    "iris_landmark": (472, {"TosaOutput_0": (1, 213)}),
}


def load(path: Path, **shapes: tuple[int, ...]) -> Graph:
    return verify(read_graph(path.read_bytes()), shapes=shapes)


def label(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("folder", conformance_tests(), ids=label)
def test_official_tests(folder: Path) -> None:
    description: dict[str, Any] = json.loads((folder / "desc.json").read_text())
    if not description["expected_failure"]:
        graph = load(folder / "test.tosa")
        assert len(graph.main.outputs) == len(description["ofm_name"])
        return
    if folder.name in DETECTED_AT_RUN_TIME:
        load(folder / "test.tosa")
        return
    with pytest.raises((ParseError, VerifyError)) as caught:
        load(folder / "test.tosa")
    rule = folder.name.partition("_ERRORIF_")[2].partition("_")[0]
    assert caught.value.kind in KINDS.get(rule, set(Kind))


def cases() -> list[Path]:
    return sorted(
        p.parent for p in (shared_root() / "cases" / "tosa").rglob("case.json")
    )


@pytest.mark.parametrize("folder", cases(), ids=label)
def test_field_cases(folder: Path) -> None:
    case: dict[str, Any] = json.loads((folder / "case.json").read_text())
    if case["compare"] == "reject" or folder.name in LATER:
        with pytest.raises((ParseError, VerifyError)) as caught:
            load(folder / "test.tosa")
        assert caught.value.kind in set(Kind)
    elif case["compare"] == "unpredictable":
        with contextlib.suppress(Error):  # anything but a crash
            load(folder / "test.tosa")
    else:
        load(folder / "test.tosa")


@pytest.mark.skipif(bool(missing("models")), reason=missing("models"))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_models(name: str) -> None:
    count, outputs = MODELS[name]
    graph = load(shared_root() / "models" / f"{name}.tosa")
    assert len(graph.main.operators) == count
    for tensor, shape in outputs.items():
        assert graph.main.tensors[tensor].shape == shape


@pytest.mark.skipif(bool(missing("models")), reason=missing("models"))
def test_a_model_with_an_open_batch() -> None:
    path = shared_root() / "models" / "speech_embedding.tosa"
    with pytest.raises(VerifyError) as caught:
        load(path)
    assert "input 'TosaInput_0' has shape ?x76x32x1" in str(caught.value)
    assert "give --shape TosaInput_0=1x76x32x1" in str(caught.value)
    for batch in (1, 3):
        graph = load(path, TosaInput_0=(batch, 76, 32, 1))
        assert graph.main.tensors["TosaOutput_0"].shape == (batch, 1, 1, 96)
        assert all(
            tensor.shape is not None and -1 not in tensor.shape
            for tensor in graph.main.tensors.values()
        )
