"""`tosavk conformance` on small folders of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from harness import shared
from tosavk import Builder, DType
from tosavk.cli import main

X = np.array([1.5, -2.25, 0.0, np.nan], np.float32)


def program() -> bytes:
    b = Builder()
    x = b.input("x", DType.FP32, (4,))
    b.output(b.add(x, x))
    return b.build()


def make(folder: Path, *, must_fail: bool = False, mode: str = "ULP") -> Path:
    """A test as the official generator writes it: y = x + x."""
    from tosavk.lowering.tosa.reader import read_graph

    data = program()
    (output,) = read_graph(data).main.outputs
    folder.mkdir(parents=True)
    (folder / "test.tosa").write_bytes(data)
    np.save(folder / "input-0.npy", X)
    rule = {"mode": mode, "data_type": "FP32", "ulp_info": {"ulp": 0.5}}
    description = {
        "tosa_file": "test.tosa",
        "ifm_name": ["x"],
        "ifm_file": ["input-0.npy"],
        "ofm_name": [output],
        "ofm_file": ["result-0.npy"],
        "expected_failure": must_fail,
        "meta": {"compliance": {"tensors": {output: rule}}},
        "test_details": {"operator": "ADD"},
    }
    (folder / "desc.json").write_text(json.dumps(description))
    return folder


def edit(folder: Path, **changes: object) -> None:
    path = folder / "desc.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def run(*arguments: str) -> int:
    return main(["conformance", *arguments, "--backend", "reference"])


def test_passed_and_failed_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "add" / "good")
    make(tmp_path / "add" / "runs", must_fail=True)
    xml, data = tmp_path / "r.xml", tmp_path / "r.json"
    code = run(str(tmp_path), "--junit", str(xml), "--json", str(data))
    assert code == 1
    text = capsys.readouterr().out
    assert "reference: 1 of 2 passed, 1 failed" in text
    assert "failed: add/runs on reference: the program must be refused" in text
    suite = ElementTree.parse(xml).getroot().find("testsuite")
    assert suite is not None
    assert suite.get("tests") == "2"
    assert suite.get("failures") == "1"
    assert suite.get("skipped") == "0"
    assert len(suite.findall("testcase/failure")) == 1
    found = json.loads(data.read_text())
    assert found["format"] == "tosavk.conformance"
    assert {r["name"]: r["status"] for r in found["results"]} == {
        "good": "passed",
        "runs": "failed",
    }


def test_a_wrong_result_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tosavk.backends.session import Session

    right = Session.run

    def wrong(self: Session, inputs: object = None) -> object:
        outputs = right(self, inputs)  # type: ignore[arg-type]
        return {k: np.nextafter(a, np.float32(9)) for k, a in outputs.items()}

    make(tmp_path / "add" / "good")
    monkeypatch.setattr(Session, "run", wrong)
    assert run(str(tmp_path)) == 1
    assert "ulp" in capsys.readouterr().out.lower()


def test_a_run_is_taken_up_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "add" / "one")
    journal = tmp_path / "results.jsonl"
    assert run(str(tmp_path), "--resume", str(journal)) == 0
    first = journal.read_text()
    assert first.count("\n") == 1
    make(tmp_path / "add" / "two")
    journal.write_text(first + '{"operator": "ad')
    assert run(str(tmp_path), "--resume", str(journal), "--filter", "two") == 0
    assert "2 of 2 passed" in capsys.readouterr().out
    # The part of a line is gone, so the file can be taken up again and again.
    assert journal.read_text().startswith(first)
    make(tmp_path / "add" / "three")
    assert run(str(tmp_path), "--resume", str(journal)) == 0
    assert "3 of 3 passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"notes of mine", b"one\ntwo\n", b"\xff\xfe\x00", b'{"a": 1}\n']
)
def test_a_file_that_holds_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    make(tmp_path / "add" / "one")
    mine = tmp_path / "mine"
    mine.write_bytes(content)
    for more in ((), ("--timeout", "60")):
        assert run(str(tmp_path), "--resume", str(mine), *more) == 2
        error = capsys.readouterr().err
        assert "mine', " in error
        assert "not a result line" in error
        assert error.count("\n") == 1
        assert mine.read_bytes() == content


@pytest.mark.skipif(os.name != "posix", reason="kills a process as POSIX does")
def test_tests_apart_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    for number in range(400):
        make(tmp_path / "add" / f"t{number}")
    journal = tmp_path / "results.jsonl"
    words = ["conformance", str(tmp_path), "--timeout", "60", "--resume", str(journal)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tosavk", *words, "--backend", "reference"],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = -1
    while journal.stat().st_size != before:
        before = journal.stat().st_size
        time.sleep(0.5)
    assert journal.read_text().count("\n") < 400


@pytest.mark.parametrize("option", ["--resume", "--json", "--junit"])
def test_what_cannot_be_written_is_told_before_the_tests_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    make(tmp_path / "add" / "one")
    (tmp_path / "file").touch()
    for target in (tmp_path, tmp_path / "file" / "results"):
        assert run(str(tmp_path), option, str(target)) == 2
        told = capsys.readouterr()
        assert not told.out
        assert told.err.startswith("tosavk: cannot ")
        assert told.err.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tosa_file": "../test.tosa"}, "no file"),
        ({"ifm_file": ["nothing.npy"]}, "no file"),
        ({"ifm_file": []}, "no description"),
        ({"ofm_name": None}, "no description"),
    ],
)
def test_broken_descriptions_are_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    message: str,
) -> None:
    edit(make(tmp_path / "add" / "one"), **changes)
    assert run(str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "rules", [{}, {"tensors": {"y": {"mode": "ULP"}}}, {"tensors": {"y": 3}}]
)
def test_a_broken_rule_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rules: dict[str, object]
) -> None:
    folder = make(tmp_path / "add" / "one")
    (output,) = json.loads((folder / "desc.json").read_text())["ofm_name"]
    named = json.loads(json.dumps(rules).replace('"y"', json.dumps(output)))
    edit(folder, meta={"compliance": named})
    assert run(str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert "no known rule" in error
    assert error.count("\n") == 1
    edit(folder, ofm_name=["nobody"])
    assert run(str(tmp_path)) == 1
    assert "no output 'nobody'" in capsys.readouterr().out


def test_an_unknown_rule_and_an_empty_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert run(str(tmp_path / "empty")) == 2
    assert "no test" in capsys.readouterr().err
    make(tmp_path / "add" / "one", mode="FANCY")
    assert run(str(tmp_path)) == 2
    assert "FANCY" in capsys.readouterr().err


@pytest.mark.skipif(
    bool(shared.missing("tosa", "corpus")), reason=shared.missing("tosa", "corpus")
)
def test_the_corpus_passes_on_the_reference() -> None:
    assert run(str(shared.shared_root() / "tosa" / "corpus")) == 0
