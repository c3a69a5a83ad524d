"""The options of `diff`: inputs of many runs, processes, JUnit, exit codes, progress."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from harness.planted import corrupts, healthy, plant
from tosavk import cli
from tosavk.core.dtypes import DType
from tosavk.core.errors import OutOfMemory
from tosavk.differential.job import run_job
from tosavk.lowering.tosa.builder import Builder

Captured = pytest.CaptureFixture[str]
TWO = ("--in-process", "--backend", "one", "--backend", "two")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = Builder()
    x, y = b.input("x", DType.FP32, (2, 3)), b.input("y", DType.FP32, (2, 3))
    b.output(b.exp(b.add(x, y, name="total"), name="\x01power"))
    path = tmp_path / "m.tosa"
    path.write_bytes(b.build())
    return path


def document(words: list[str], path: Path, code: int = 0) -> dict[str, Any]:
    assert cli.main([*words, "--json", str(path)]) == code
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_runs_from_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    plant(monkeypatch, {"one": healthy, "two": corrupts("total")})
    files: list[str] = []
    for number in range(3):
        files.append(str(tmp_path / f"x{number}.npy"))
        np.save(files[-1], np.full((2, 3), number, np.float32))
    words = ["diff", str(model), *TWO, "--node-by-node"]
    words += [f"--input=x={file}" for file in files]
    found = document(words, tmp_path / "a.json", 1)
    assert found["samples"] == 3
    given = [i for i in found["inputs"] if i["name"] == "x"]
    assert [(i["sample"], i["path"]) for i in given] == list(enumerate(files))
    assert {i["seed"] for i in found["inputs"] if i["name"] == "y"} == {0, 1, 2}
    wrong = found["operators"][0]["comparisons"][0]
    assert wrong["samples"] == [0, 1, 2]
    assert wrong["elements"] == 18
    assert "run " in capsys.readouterr().out
    # The same as a folder; and what does not fit.
    folder = tmp_path / "runs"
    folder.mkdir()
    for number in range(3):
        x = np.full((2, 3), number, np.float32)
        np.savez(folder / f"{number}.npz", x=x, y=x)
    words = ["diff", str(model), *TWO, "--inputs", str(folder)]
    found = document(words, tmp_path / "b.json", 1)
    assert found["samples"] == 3
    assert all(i["path"].endswith(f"{i['sample']}.npz") for i in found["inputs"])
    assert f"--inputs {folder}" in " ".join(found["command"])
    capsys.readouterr()
    assert cli.main([*words, *(f"--input=x={file}" for file in files)]) == 2
    assert "--inputs" in capsys.readouterr().err
    uneven = [f"--input=x={file}" for file in files] + [
        f"--input=y={file}" for file in files[:2]
    ]
    assert cli.main(["diff", str(model), *TWO, *uneven]) == 2
    assert "one for each run" in capsys.readouterr().err
    (folder / "3.npz").write_bytes(b"no archive")
    assert cli.main(words) == 2
    assert "3.npz" in capsys.readouterr().err


def test_samples_and_generator(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {"one": healthy, "two": healthy})
    words = ["diff", str(model), *TWO, "--samples", "4"]
    found = document(words, tmp_path / "a.json")
    styles = [i["style"] for i in found["inputs"] if i["name"] == "x"]
    assert styles == ["uniform", "ranges", "cancellation", "specials"]
    assert "--samples 4" in " ".join(found["command"])
    found = document([*words, "--generator", "specials"], tmp_path / "b.json")
    assert {i["style"] for i in found["inputs"]} == {"specials"}
    assert "--generator specials" in " ".join(found["command"])


def test_junit(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy() -> Any:  # noqa: ANN401
        raise OutOfMemory("none \x02 left")

    plant(
        monkeypatch,
        {"one": healthy, "two": corrupts("\x01power"), "open_three": greedy},
    )
    path = tmp_path / "new" / "junit.xml"
    words = ["diff", str(model), *TWO, "--backend", "open_three"]
    words += ["--backend", "reference", "--junit", str(path)]
    assert cli.main(words) == 1
    suite = Xml.parse(path).getroot()[0]
    cases = {case.get("name", ""): case for case in suite.iter("testcase")}
    assert suite.get("tests") == str(len(cases))
    assert suite.get("errors") == "1"
    failures = [
        name for name, case in cases.items() if case.find("failure") is not None
    ]
    assert suite.get("failures") == str(len(failures)) == "4"
    assert sum("1 EXP" in name for name in failures) == 2
    error = cases["open_three"].find("error")
    assert error is not None
    assert "out of memory" in error.get("message", "")
    (text,) = (
        case.findtext("failure") or ""
        for name, case in cases.items()
        if "1 EXP" in name and "two, reference" in name
    )
    assert "from total at [" in text
    assert "times as much" in text


def test_what_ends_a_process_is_code_1_also_without_another_result(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def greedy() -> Any:  # noqa: ANN401
        raise OutOfMemory("none left")

    plant(monkeypatch, {"one": healthy, "open_two": greedy})
    words = ["diff", str(model), "--in-process", "--backend", "one"]
    assert cli.main([*words, "--backend", "open_two"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "finding: open_two: out of memory: OutOfMemory: none left" in out


def test_a_job_is_data_and_so_is_its_result(model: Path) -> None:
    job = {"model": str(model), "backends": ["reference", "reference"], "samples": 2}
    found = run_job(json.loads(json.dumps(job)))
    assert found["verdict"] == "agreed"
    assert found["samples"] == 2
    assert [run["ending"] for run in found["runs"]] == ["ran", "ran"]  # type: ignore[attr-defined]
