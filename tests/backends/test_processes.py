"""Forks, the end of the interpreter, and garbage collection, each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tosavk

VICTIM = Path(__file__).resolve().parents[1] / "harness" / "process_victim.py"
FEW = ("fork_exit", "collect,exit_pending,exit_daemon")
MORE = ("exit_gated,exit_mapped", "exit_by_exception")
# What loaders and drivers say of a machine without a desktop.
CHATTER = "XDG_RUNTIME_DIR"


def meet(spec: str, danger: str) -> None:
    """Runs the victim, which must end well and in silence.

    Args:
        spec: the device.
        danger: or several that one process meets, separated by commas.
    """
    assert tosavk.__file__ is not None
    root = str(Path(tosavk.__file__).absolute().parents[1])
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(VICTIM), spec, danger],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = [x for x in result.stderr.splitlines() if x.strip() and CHATTER not in x]
    assert result.returncode == 0, (result.returncode, result.stdout, said)
    assert not said, said
    assert result.stdout in ("reached the end\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("danger", FEW)
def test_dangers(device: str, danger: str) -> None:
    meet(device, danger)


@pytest.mark.parametrize("danger", MORE)
def test_dangers_with_gates_and_mapped_memory(vulkan_device: str, danger: str) -> None:
    meet(vulkan_device, danger)
