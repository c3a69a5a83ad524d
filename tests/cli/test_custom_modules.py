"""CUSTOM operators on the command line: modules that the user names."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tosavk
from harness.planted import healthy, plant
from tosavk import cli
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.job import read_program, run_job
from tosavk.lowering.custom import CustomOperators
from tosavk.lowering.tosa.builder import Builder

Captured = pytest.CaptureFixture[str]
DECORATED = """
import tosavk

@tosavk.custom.register("example.org", "thrice")
def thrice(call):
    b = tosavk.Builder()
    x = b.input("x", call.inputs[0].dtype, call.inputs[0].shape)
    b.output(b.add(b.add(x, x, name="twice"), x))
    return b.graph()
"""
OWN = DECORATED.replace(
    "import tosavk\n",
    "import tosavk\nfrom tosavk.lowering.custom import CustomOperators\n"
    "mine = CustomOperators()\nempty = CustomOperators()\nother = 3\n",
).replace("tosavk.custom.register", "mine.register")
REFERENCES = ("--backend", "reference", "--backend", "reference")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = Builder()
    x = b.input("x", DType.FP32, (4,))
    (y,) = b.custom(
        [b.negate(x, name="n")],
        [(DType.FP32, (4,))],
        operator_name="thrice",
        domain_name="example.org",
    )
    b.output(y)
    path = tmp_path / "m.tosa"
    path.write_bytes(b.build())
    return path


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Nothing stays registered, and what was imported is imported again."""
    modules = set(sys.modules)
    yield
    for domain, name in tosavk.custom.names:
        tosavk.custom.unregister(domain, name)
    for name in set(sys.modules) - modules:
        if name == "my_operators" or name.startswith("tosavk_custom_"):
            del sys.modules[name]


def written(folder: Path, text: str, name: str = "my_operators.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_without_a_meaning_the_operator_is_refused(
    model: Path, capsys: Captured
) -> None:
    assert cli.main(["run", str(model), "--backend", "reference"]) == 3
    text = capsys.readouterr().err
    assert "'thrice' of domain 'example.org' is unknown" in text
    assert "--custom" in text


@pytest.mark.parametrize("own", [False, True], ids=["decorated", "own registry"])
def test_run_with_a_file(model: Path, tmp_path: Path, *, own: bool) -> None:
    file = written(tmp_path, OWN if own else DECORATED) + (":mine" if own else "")
    x = np.array([1, 2, 3, 4], np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ["run", str(model), "--backend", "reference", "--custom", file]
    words += ["--input", f"x={tmp_path / 'x.npy'}", "--output-dir", str(tmp_path)]
    # The second time it is imported already.
    for _ in range(2):
        assert cli.main(words) == 0
    (result,) = (p for p in tmp_path.glob("*.npy") if p.name != "x.npy")
    np.testing.assert_array_equal(np.load(result), -3 * x)


def test_diff_in_processes_of_their_own(model: Path, tmp_path: Path) -> None:
    file = written(tmp_path, DECORATED)
    target = tmp_path / "r.json"
    words = ["diff", str(model), *REFERENCES, "--custom", file, "--json", str(target)]
    assert cli.main(words) == 0
    found = json.loads(target.read_text(encoding="utf-8"))
    assert found["verdict"] == "agreed"
    assert [run["compared"] for run in found["runs"]] == [True, True]
    at = found["command"].index("--custom")
    assert found["command"][at + 1] == file


def test_diff_and_jobs_from_python(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, DECORATED)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    document = run_job(
        {
            "model": str(model),
            "backends": ["reference", "reference"],
            "custom": ["my_operators"],
        }
    )
    assert document["verdict"] == "agreed"
    # Registered in this process, whatever for: other processes get along without.
    graph, _ = read_program(str(model), {})
    request = DiffRequest(
        graph=graph,
        model=str(model),
        source=str(model),
        backends=("reference", "reference"),
        repeats=0,
    )
    assert diff(request).verdict.value == "agreed"


def test_inspect_and_reduce(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    file = written(tmp_path, DECORATED)
    assert cli.main(["inspect", str(model), "--custom", file]) == 0
    assert "CUSTOM" not in capsys.readouterr().out
    plant(monkeypatch, {"one": healthy, "two": healthy})
    words = ["reduce", str(model), "--in-process", "--backend", "one"]
    words += ["--backend", "two", "--custom", file]
    assert cli.main([*words, "--out", str(tmp_path / "small")]) == 0
    assert "the backends agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "suffix", "message"),
    [
        ("", "", "registers no CUSTOM operator"),
        (OWN, ":empty", "registers no CUSTOM operator"),
        (OWN, ":other", "has no registry 'other'"),
        (OWN, ":missing", "has no registry 'missing'"),
        ("raise RuntimeError('not today')", "", "RuntimeError: not today"),
        ("this is no Python", "", "SyntaxError"),
    ],
)
def test_what_cannot_be_used_is_bad_input(
    model: Path, tmp_path: Path, capsys: Captured, text: str, suffix: str, message: str
) -> None:
    file = written(tmp_path, text) + suffix
    words = ["run", str(model), "--backend", "reference", "--custom", file]
    for _ in range(2):
        assert cli.main(words) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["no_such_module", "nowhere.py", "a b", "", "x:y:z"])
def test_what_is_not_there(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot import"):
        tosavk.custom.load(name)


def test_two_meanings_are_refused(tmp_path: Path) -> None:
    one = CustomOperators()
    tosavk.custom.load(written(tmp_path, OWN) + ":mine")
    one.register("example.org", "other")(lambda call: Builder().graph())
    one.register("example.org", "thrice")(lambda call: Builder().graph())
    with pytest.raises(InvalidArgument, match="registered already"):
        tosavk.custom.update(one)
    assert tosavk.custom.names == (("example.org", "thrice"),)
