"""Forks, the end of the interpreter, and garbage collection, each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tosavk
from harness import validation
from harness.devices import CPU_DRIVERS, lane

VICTIM = Path(__file__).resolve().parents[1] / "harness" / "process_victim.py"
FEW = ("fork", "collect,exit_pending,exit_daemon")
MORE = ("exit_gated,exit_mapped", "exit_by_exception")
# What loaders and drivers say of a machine without a desktop.
CHATTER = "XDG_RUNTIME_DIR"


def meet(spec: str, danger: str, **environment: str) -> None:
    """Runs the victim, which must end well and in silence.

    Args:
        spec: the device.
        danger: or several that one process meets, separated by commas.
        environment: further variables of that process.
    """
    assert tosavk.__file__ is not None
    root = str(Path(tosavk.__file__).absolute().parents[1])
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(VICTIM), spec, danger],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([root, *sys.path]),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = [x for x in result.stderr.splitlines() if x.strip() and CHATTER not in x]
    assert result.returncode == 0, (result.returncode, result.stdout, said)
    assert not said, said
    assert result.stdout in ("reached the end\n", "")


def is_harmless(spec: str) -> bool:
    """Whether a device's driver has no exit handlers that harm a forked child."""
    name = f"{spec} {lane(spec).driver}".casefold()
    if "mesa" in name and "mesa 22." not in name:
        return False  # waits for threads that a forked child does not have
    return spec == "reference" or any(driver in name for driver in CPU_DRIVERS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("danger", FEW)
def test_dangers(device: str, danger: str) -> None:
    if danger == "fork" and is_harmless(device):
        # The exit handlers of some drivers crash or hang in a forked child: such a child
        # must leave by os._exit, as those of multiprocessing do (docs/known-issues.md).
        danger = "fork_exit"
        if device.startswith("vulkan") and validation.is_new():
            # So it is with those of newer validation layers.
            meet(device, "fork")
            meet(device, danger, TOSAVK_VALIDATION="0")
            return
    meet(device, danger)


@pytest.mark.parametrize("danger", MORE)
def test_dangers_with_gates_and_mapped_memory(vulkan_device: str, danger: str) -> None:
    meet(vulkan_device, danger)
