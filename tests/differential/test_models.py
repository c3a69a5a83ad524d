"""Real models: what the command line says of them."""

import json
import os
from pathlib import Path

import pytest

from tosavk import cli
from tosavk.backends.session import read_model
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.report import render
from tosavk.differential.result import Verdict
from tosavk.lowering.program import intermediates, load_graph

PEAK = 5e-6
"""Largest error allowed, in units of the largest magnitude of an output."""


def test_a_face_detector_on_every_device(
    shared_models: Path, available_devices: tuple[str, ...]
) -> None:
    graph = load_graph(read_model(shared_models / "face_detection_front.tosa"))
    before = processor_s()
    result = diff(
        DiffRequest(
            graph=graph,
            model="face_detection_front.tosa",
            backends=available_devices,
            repeats=1,
        )
    )
    assert result.verdict is Verdict.AGREED, result.findings
    assert len(result.operators) == 90
    assert result.exceptions == 0
    against = [c.relative for c in result.outputs if c.right == "reference"]
    assert against
    assert max(against) < PEAK
    assert render(result)
    # Seconds of all processes together: a machine that is busy does not matter.
    assert processor_s() - before < 5 * len(available_devices)


def processor_s() -> float:
    """Processor time of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def test_more_intermediates_than_one_submission_binds(
    shared_models: Path, available_devices: tuple[str, ...]
) -> None:
    gpu = next((d for d in available_devices if d != "reference"), None)
    if gpu is None:
        pytest.skip("no device")
    graph = load_graph(read_model(shared_models / "iris_landmark.tosa"))
    names = intermediates(graph)
    result = diff(
        DiffRequest(
            graph=graph,
            model="iris_landmark.tosa",
            backends=(gpu, "reference"),
            repeats=0,
        )
    )
    assert len(names) > 256
    assert result.verdict is Verdict.AGREED, result.findings
    assert {item.operator.op for item in result.operators} >= {"CONV2D", "PAD"}
    assert max(c.relative for c in result.outputs) < PEAK


def test_an_open_dimension(
    shared_models: Path,
    available_devices: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = str(shared_models / "speech_embedding.tosa")
    for command in ("inspect", "run", "diff"):
        assert cli.main([command, model]) == 2
        said = capsys.readouterr()
        assert "dimension 0" in said.err
        assert "--shape TosaInput_0=1x76x32x1" in said.err
    gpu = next((d for d in available_devices if d != "reference"), "reference")
    path = tmp_path / "speech.json"
    words = ["diff", model, "--shape", "TosaInput_0=1x76x32x1", "--json", str(path)]
    assert cli.main([*words, "--backend", gpu, "--backend", "reference"]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["verdict"] == "agreed"
    assert document["inputs"][0]["shape"] == [1, 76, 32, 1]
