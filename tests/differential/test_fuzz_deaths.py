"""Programs that a process does not survive: crash, hang, loss and want of memory."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tosavk.core.dtypes import DType
from tosavk.core.errors import InitError, InvalidArgument
from tosavk.differential.fuzz import remote
from tosavk.differential.fuzz.campaign import Request, Result, fuzz
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.files import read_case
from tosavk.differential.fuzz.generator import SPAN, Generator
from tosavk.differential.fuzz.judge import Kind
from tosavk.differential.fuzz.reducing import reduce_finding
from tosavk.differential.fuzz.remote import RemoteBench, Wanted
from tosavk.differential.process import Message, Process
from tosavk.lowering.graph import Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

TESTS = Path(__file__).resolve().parents[1]
OP = Op.CONCAT

WORKER = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
import pytest
from harness.planted import healthy, plant
from tosavk.core.errors import DeviceLost
from tosavk.differential.fuzz.worker import main

def dies(op, graph, results):
    if op.op.name != {op!r}:
        return results
    print("last words", file=sys.stderr, flush=True)
    {how}
    return results

def opens():
    {opening}

plant(pytest.MonkeyPatch(), {{"good": healthy, "bad": dies, "open_bad": opens}})
main()
"""


def worker(folder: Path, how: str, opening: str) -> Path:
    """A script that judges, with a backend that dies of an operator."""
    script = folder / "worker.py"
    script.write_text(
        WORKER.format(tests=str(TESTS), op=OP.name, how=how, opening=opening)
    )
    return script


def run(
    folder: Path,
    how: str = "pass",
    *,
    backends: tuple[str, ...] = ("good", "bad"),
    opening: str = "os.abort()",
    count: int = 12,
    limit_s: float = 60.0,
    optional: bool = False,
    reducing: int = 300,
) -> Result:
    script = worker(folder, how, opening)
    return fuzz(
        Request(
            seed=1,
            count=count,
            backends=backends,
            optional=optional,
            folder=folder / "out",
            reducing=reducing,
            apart=True,
            limit_s=limit_s,
            command=(sys.executable, str(script)),
        )
    )


def having(count: int) -> list[int]:
    """The programs that have the operator in the main block, among the first ones."""
    generator = Generator(1)
    return [
        index
        for index in range(count)
        if OP in {op.op for op in generator.make(index).case.graph.main.operators}
    ]


def test_a_crash_is_a_finding_named_and_reduced(tmp_path: Path) -> None:
    first = having(30)[0]
    result = run(tmp_path, "os.abort()", count=first + 1, reducing=12)
    (filed,) = result.findings.values()
    assert (filed.key.kind, filed.key.op) == (Kind.CRASHED, OP.name)
    assert filed.graphs == [first]
    assert filed.backends == ("bad",)
    assert filed.operators == 1
    assert "SIGABRT" in filed.text
    document = json.loads((Path(filed.folder) / "finding.json").read_text())
    assert "last words" in document["stderr"]
    assert read_case(Path(filed.folder)).graph.main.operators
    # The other programs are judged as ever.
    assert result.done == first + 1
    assert len(result.coverage.points) > 10


def test_a_signal_is_a_crash_and_the_run_goes_on(tmp_path: Path) -> None:
    first = having(30)[0]
    how = "os.kill(os.getpid(), signal.SIGSEGV)"
    result = run(tmp_path, how, count=first + 2, reducing=0)
    assert result.done == first + 2
    assert {key.kind for key in result.findings} == {Kind.CRASHED}


def test_what_happens_once_is_a_finding_too(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    how = f"os.path.exists({mark!r}) or (open({mark!r}, 'w'), os.abort())"
    first = having(30)[0]
    result = run(tmp_path, how, count=first + 1)
    (filed,) = result.findings.values()
    assert filed.key.kind is Kind.CRASHED
    assert "once" in filed.text


def test_a_backend_that_dies_when_it_is_opened(tmp_path: Path) -> None:
    backends = ("good", "bad", "open_bad")
    with pytest.raises(InitError, match="open_bad"):
        run(tmp_path, backends=backends)
    result = run(tmp_path, backends=backends, optional=True, count=3)
    assert result.backends == ("good", "bad")
    assert any("open_bad" in text for text in result.missing)
    assert not result.findings


def test_errors_before_anything_runs_are_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="at least two"):
        run(tmp_path, backends=("good",))
    with pytest.raises(InitError):
        run(tmp_path, backends=("good", "open_bad"), opening="raise InitError('no')")


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    assert run(tmp_path, count=5).fresh == 5
    result = run(tmp_path, count=9)
    assert (result.fresh, result.done) == (4, 9)
    assert not result.findings


def test_reduce_finds_what_ends_the_process(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (2, 3))
    b.output(b.negate(b.concat([b.abs(x), x], 0)))
    inputs = {"x": np.ones((2, 3), np.float32)}
    case = Case(load_graph(b.build()), (inputs,))
    wanted = Wanted(
        seed=0,
        backends=("good", "bad"),
        command=(sys.executable, str(worker(tmp_path, "os.abort()", "pass"))),
    )
    with RemoteBench(wanted) as bench:
        found = reduce_finding(case, bench, tmp_path / "small", budget=8)
    assert found.key is not None
    assert (found.key.kind, found.key.op) == (Kind.CRASHED, OP.name)
    assert found.backends == ("bad",)
    assert found.after[0] == 1


def test_a_process_is_replaced_after_many_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RENEWED", 1)
    started: list[int] = []

    right = Process.ask

    def ask(process: Process, *words: Any) -> Message:  # noqa: ANN401
        started.append(process.pid)
        return right(process, *words)

    monkeypatch.setattr(Process, "ask", ask)
    result = run(tmp_path, count=SPAN + 2)
    assert len(set(started)) == 2
    assert result.done == SPAN + 2
    assert not result.findings
