"""Backends in processes of their own: what ends one is a finding, and the rest goes on."""

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import harness
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceUnavailable
from tosavk.differential.arrays import write_arrays
from tosavk.differential.childside import Children, ChildSide
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.junit import junit
from tosavk.differential.process import Process, ProcessEnded
from tosavk.differential.reduction import reduce_result
from tosavk.differential.report import render
from tosavk.differential.result import DiffResult, Ending, FindingKind, Verdict
from tosavk.differential.sides import Sample
from tosavk.lowering.graph import Graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.writer import write_graph

LIMIT_S = 3.0
SHAPE = (1, 7, 11)


@pytest.fixture(autouse=True)
def _harness_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = str(Path(harness.__file__).parents[1])
    paths = (tests, os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def faulty(limit_s: float = LIMIT_S) -> Children:
    return Children((sys.executable, "-m", "harness.faulty_worker"), limit_s)


def sample() -> Graph:
    b = Builder()
    x = b.input("x", DType.FP32, SHAPE)
    total = b.add(x, b.const(np.full((1, 1, 1), 0.1, np.float32)), name="total")
    power = b.exp(b.clamp(total, 0.0, 6.0, name="clamped"), name="power")
    b.output(b.reduce_sum(power, 1, name="reduced"))
    graph = load_graph(b.build())
    block = graph.main
    operators = tuple(
        dataclasses.replace(op, location=f"model.py:{op.index}")
        for op in block.operators
    )
    block = dataclasses.replace(block, operators=operators)
    region = dataclasses.replace(graph.regions[0], blocks=(block,))
    return dataclasses.replace(graph, regions=(region,))


def run(*faults: str, node_by_node: bool = True, optional: bool = False) -> DiffResult:
    return diff(
        DiffRequest(
            graph=sample(),
            model="sample",
            backends=tuple(
                name if name == "reference" else f"vulkan:{name}" for name in faults
            ),
            node_by_node=node_by_node,
            optional=optional,
            repeats=0,
            children=faulty(),
        )
    )


def test_crash_hang_loss_and_out_of_memory_leave_the_others() -> None:
    start = time.monotonic()
    result = run(
        *("good", "aborts", "hangs", "loses", "wants", "greedy", "maps", "codes"),
        *("dies", "reference"),
    )
    assert time.monotonic() - start < LIMIT_S + 15
    endings = {run.spec.partition(":")[2]: run.ending for run in result.runs}
    assert endings == {
        "good": Ending.RAN,
        "aborts": Ending.CRASHED,
        "hangs": Ending.HUNG,
        "loses": Ending.LOST,
        "wants": Ending.OUT_OF_MEMORY,
        "greedy": Ending.OUT_OF_MEMORY,
        "maps": Ending.OUT_OF_MEMORY,
        "codes": Ending.OUT_OF_MEMORY,
        "dies": Ending.CRASHED,
        "": Ending.RAN,
    }
    assert result.verdict is Verdict.DIFFERENT
    assert [(f.kind, f.backends[0].partition(":")[2]) for f in result.findings] == [
        (FindingKind.CRASH, "aborts"),
        (FindingKind.CRASH, "dies"),
        (FindingKind.HANG, "hangs"),
        (FindingKind.LOST, "loses"),
        (FindingKind.MEMORY, "wants"),
        (FindingKind.MEMORY, "greedy"),
        (FindingKind.MEMORY, "maps"),
        (FindingKind.MEMORY, "codes"),
    ]
    texts = {f.backends[0].partition(":")[2]: f.text for f in result.findings}
    assert "SIGABRT" in texts["aborts"]
    assert "SIGKILL" in texts["dies"]
    assert f"{LIMIT_S:g} s while running on planted" in texts["hangs"]
    assert "DeviceLost" in texts["loses"]
    stderr = {f.backends[0].partition(":")[2]: f.stderr for f in result.findings}
    assert "assertion `pipeline != NULL` failed" in stderr["aborts"]
    assert "waiting for a fence" in stderr["hangs"]
    assert "VK_ERROR_DEVICE_LOST" in stderr["loses"]
    assert "std::bad_alloc" in stderr["wants"]
    # What the others said is there, operator by operator.
    assert len(result.operators) == 4
    assert {(c.left, c.right) for c in result.outputs} == {("vulkan:good", "reference")}
    assert all(c.agreed for c in result.outputs)


def test_a_crash_on_the_way_keeps_what_was_said_before() -> None:
    result = run("good", "alone", "slow", "talks")
    endings = {run.spec.partition(":")[2]: run.ending for run in result.runs}
    assert endings == {
        "good": Ending.RAN,
        "alone": Ending.CRASHED,
        "slow": Ending.HUNG,
        "talks": Ending.RAN,
    }
    assert [f.kind for f in result.findings] == [
        FindingKind.CRASH,
        FindingKind.HANG,
        FindingKind.OPERATOR,
        FindingKind.OUTPUT,
    ]
    assert "closing the device" in result.findings[1].text
    assert result.first_different is not None
    assert result.first_different.output == "total"
    # Names and places are those of the source.
    at = f"model.py:{result.first_different.index}"
    assert result.first_different.location == at
    assert at in result.findings[2].text
    assert at in render(result)
    assert f"at {at}\n" in junit(result)
    # The outputs of all four were there before.
    assert len(result.outputs) == 3


def test_what_opening_a_device_can_end_by() -> None:
    result = run(
        "good", "absent", "unborn", "crashes", node_by_node=False, optional=True
    )
    endings = [run.ending for run in result.runs]
    assert endings == [Ending.RAN, Ending.LEFT_OUT, Ending.CRASHED, Ending.CRASHED]
    assert "SIGSEGV" in result.runs[3].failure
    assert "Segmentation fault" in result.runs[3].stderr
    assert result.verdict is Verdict.FAILED
    with pytest.raises(DeviceUnavailable, match="absent"):
        run("good", "absent")


def test_the_process_of_a_real_backend_is_killed(
    vulkan_device: str, tmp_path: Path
) -> None:
    graph = sample()
    (tmp_path / "model.tosa").write_bytes(write_graph(graph))
    arrays = {"x": np.ones(SHAPE, np.float32)}
    write_arrays(tmp_path / "inputs", arrays)
    side = ChildSide(
        "it",
        vulkan_device,
        folder=tmp_path / "side",
        model=tmp_path / "model.tosa",
        children=Children(limit_s=60),
    )
    try:
        side.open(graph, lambda _: None)
        given = Sample(arrays, tmp_path / "inputs")
        side.run(given, repeats=0, progress=lambda _: None)
        assert side.ran
        assert side.outputs["reduced"].shape == (1, 1, 11)
        os.kill(side.pid, signal.SIGKILL)
        side.run(given, repeats=0, progress=lambda _: None)
        assert side.record.ending is Ending.CRASHED
        assert "SIGKILL" in side.record.failure
        assert side.record.compared
    finally:
        side.close()


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """A child that is busy notices that nobody waits for its answer."""
    started = tmp_path / "pid"
    script = """
import os, sys, time
from pathlib import Path
from tosavk.differential.process import Process
code = '''
import time
from tosavk.differential.process import answering
answering(lambda question, progress: time.sleep(600) or {})
'''
child = Process([sys.executable, "-c", code], stderr=Path(sys.argv[1]) / "e")
child.send({})
time.sleep(1.5)
Path(sys.argv[1], "pid").write_text(str(child.pid))
os._exit(0)
"""
    with (
        Process(
            [sys.executable, "-c", script, str(tmp_path)], stderr=tmp_path / "errors"
        ) as parent,
        pytest.raises(ProcessEnded),
    ):
        parent.receive()
    pid = int(started.read_text(encoding="ascii"))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _alive(pid):
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_what_differs_is_reduced_and_shown_in_the_report(tmp_path: Path) -> None:
    request = DiffRequest(
        graph=sample(),
        model="sample",
        backends=("vulkan:good", "vulkan:wrong"),
        node_by_node=True,
        samples=2,
        repeats=0,
        children=faulty(30),
    )
    result = diff(request)
    assert result.first_different is not None
    command = (*faulty().command, "fuzz")
    reduced = reduce_result(
        request, result, tmp_path / "small", command=command, budget=25
    )
    assert reduced is not None
    assert reduced.before[0] > reduced.after[0] == 1
    assert any("ADD" in op for op in reduced.operators)
    assert (tmp_path / "small" / "model.tosa").exists()
    page = render(dataclasses.replace(result, reduced=reduced))
    assert 'id="reduced"' in page
    assert "Builder" in page
    # What agrees is not reduced.
    agreed = dataclasses.replace(result, findings=())
    assert reduce_result(request, agreed, tmp_path / "none", command=command) is None


def test_what_makes_no_sense_is_a_failure(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "print('[1, 2]', flush=True); input()"]
    child = Process(program, stderr=tmp_path / "errors", limit_s=30)
    child.send({"do": "open"})
    with pytest.raises(ProcessEnded):
        child.receive()
    child.close()


def test_the_reference_may_take_its_time() -> None:
    """It is slow with large models, and is no driver that hangs."""
    result = diff(
        DiffRequest(
            graph=sample(),
            model="slow",
            backends=("reference", "reference:crawls", "vulkan:crawls"),
            repeats=0,
            children=faulty(1.0),
        )
    )
    endings = [run.ending for run in result.runs]
    assert endings == [Ending.RAN, Ending.RAN, Ending.HUNG]
