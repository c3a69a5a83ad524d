"""The example runs as it is, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tosavk import nvfp4

pytestmark = pytest.mark.nvfp4

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nvfp4_mlp.py"


def example(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_block_agrees(gpu_device: str) -> None:
    small = ("--width", "64", "--inner", "96", "--tokens", "2")
    answer = example("--backend", gpu_device, "--backend", "reference", *small)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "verdict: agreed" in answer.stdout
    assert answer.stdout.count("tokens a second") == 2


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    layers = {
        f"b.{part}": nvfp4.quantize(rng.standard_normal(shape).astype(np.float32))
        for part, shape in [
            ("gate_proj", (32, 16)),
            ("up_proj", (32, 16)),
            ("down_proj", (16, 32)),
        ]
    }
    file = tmp_path / "model.safetensors"
    nvfp4.save_safetensors(file, layers, format="compressed-tensors")
    given = (str(file), "--layer", "b", "--backend", "reference")
    answer = example(*given)
    assert answer.returncode == 0, answer.stderr
    assert "agreed" not in answer.stdout  # one backend agrees with nobody
    answer = example(str(file), "--layer", "none", "--backend", "reference")
    assert answer.returncode == 2
    assert "has no tensor" in answer.stderr


@pytest.mark.parametrize("backend", ["vulkan:no such device"])
def test_what_is_missing_is_said(backend: str) -> None:
    answer = example("--backend", backend, "--width", "16", "--inner", "16")
    assert answer.returncode == 2
    assert backend in answer.stderr


@pytest.mark.parametrize("words", [("--width", "250"), ("--tokens", "0")])
def test_what_is_wrong_is_said(words: tuple[str, ...]) -> None:
    answer = example(*words)
    assert answer.returncode == 2
    assert " ".join(words) in answer.stderr
