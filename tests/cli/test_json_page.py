"""docs/json.md has every field of every document, with its format and version."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.planted import Array, healthy, plant
from tosavk.cli import main
from tosavk.core.dtypes import DType
from tosavk.core.plan import MatrixGrid
from tosavk.lowering.graph import Graph, Op, Operator
from tosavk.lowering.tosa.builder import Builder

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
WORDS = {
    word
    for quoted in re.findall(r"`([^`]+)`", PAGE)
    for word in re.split(r"\W+", quoted)
}
# Fields whose own fields are names of the machine's or of the program's.
NAMES = {"packages", "environment", "vulkan", "features", "limits", "lacks"}
BY_LABEL = {"tosavk.case": {"devices"}, "tosavk.replay": {"devices"}}


def version(name: str) -> int:
    """The version that the page says a document has."""
    assert f"| `{name}` |" in PAGE
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    said = re.search(r"This is version (\d+)", section)
    return int(said[1]) if said else 1


def fields(value: object, names: set[str], at: str = "") -> Iterator[str]:
    """All fields of a document, but for those under names that are free."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            yield f"{at}.{key}"
            if key not in names:
                yield from fields(item, names, f"{at}.{key}")
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from fields(item, names, at)


def check(document: dict[str, Any]) -> None:
    name = str(document["format"])
    assert document["version"] == version(name)
    free = NAMES | BY_LABEL.get(name, set())
    unknown = {f for f in fields(document, free) if f.rpartition(".")[2] not in WORDS}
    assert not unknown, name


def wrong(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
    del graph
    if op.op is not Op.ABS:
        return results
    result: NDArray[Any] = results[0]
    return [result + 1, *results[1:]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a model is; two backends are planted, of which one is wrong."""
    plant(monkeypatch, {"good": healthy, "bad": wrong})
    b = Builder()
    x = b.input("x", DType.FP32, (2, 5))
    b.output(b.exp(b.abs(x, name="y")))
    (tmp_path / "m.tosa").write_bytes(b.build())
    monkeypatch.chdir(tmp_path)
    return tmp_path


TWO = ("--in-process", "--backend", "good", "--backend", "bad", "--json", "r.json")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("diff", "m.tosa", "--node-by-node", "--reduce", "small", *TWO), 1),
        (("diff", "m.tosa", *TWO, "--backend", "reference"), 1),
        (("reduce", "m.tosa", "--out", "small", *TWO), 1),
        (("fuzz", "--seed", "1", "--count", "30", "--out", "found", *TWO), 1),
    ],
    ids=("diff and reduce", "diff", "reduce", "fuzz"),
)
def test_what_compares(folder: Path, words: tuple[str, ...], code: int) -> None:
    assert main(list(words)) == code
    check(json.loads((folder / "r.json").read_text()))
    for found in folder.rglob("finding.json"):
        check(json.loads(found.read_text()))
    assert words[0] == "diff" or list(folder.rglob("finding.json"))


def test_replay(folder: Path) -> None:
    assert main(["reduce", "m.tosa", "--out", "small", *TWO]) == 1
    words = ["fuzz", "--replay", "small", "--backend", "reference", "--json", "r.json"]
    assert main(words) == 0
    check(json.loads((folder / "r.json").read_text()))


@pytest.mark.parametrize(
    "words",
    [
        ("devices", "--json"),
        ("devices", "--describe", "reference"),
        ("doctor", "--json"),
        ("inspect", "m.tosa", "--json"),
        ("inspect", "m.tosa", "--json", "--plan"),
    ],
    ids=" ".join,
)
def test_what_tells(
    folder: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 0
    check(json.loads(capsys.readouterr().out))


def test_devices(gpu_device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--describe", gpu_device]) == 0
    document = json.loads(capsys.readouterr().out)
    check(document)
    assert document["spec"] == f"{gpu_device.partition(':')[0]}:{document['index']}"
    assert "Kind." not in json.dumps(document)
    # Few drivers have matrices to tell of.
    assert {field.name for field in dataclasses.fields(MatrixGrid)} <= WORDS


def test_conformance(folder: Path) -> None:
    test = folder / "tests" / "abs"
    test.mkdir(parents=True)
    (folder / "m.tosa").rename(test / "test.tosa")
    np.save(test / "input-0.npy", np.zeros((2, 5), np.float32))
    description: dict[str, Any] = {
        "tosa_file": "test.tosa",
        "ifm_name": ["x"],
        "ifm_file": ["input-0.npy"],
        "ofm_name": [],
        "ofm_file": [],
        "expected_failure": True,
        "meta": {"compliance": {"tensors": {}}},
        "test_details": {"operator": "ABS"},
    }
    (test / "desc.json").write_text(json.dumps(description))
    words = ["conformance", "tests", "--backend", "reference", "--json", "r.json"]
    assert main(words) == 1
    check(json.loads((folder / "r.json").read_text()))
