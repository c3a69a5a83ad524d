#!/usr/bin/env python3
"""The demo: a published face detector, on every backend, with one verdict.

`make demo` runs this. Its exit status is that of `tosavk diff`: 0 when the backends
agree, 1 when a difference was found, others as docs say.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import bootstrap
import driver_env

MODEL = Path("build/models/face_detection_front.tosa")
REPORT = Path("build/demo/report.html")
LANES: tuple[tuple[str, Callable[[], object]], ...] = (
    ("vulkan:llvmpipe", bootstrap.find_lavapipe),
    ("vulkan:SwiftShader", bootstrap.find_swiftshader),
    ("wgpu:llvmpipe", bootstrap.find_lavapipe),
    ("reference", lambda: True),
)


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"[demo] {text}", flush=True)


def run(command: list[str]) -> int:
    """Shows a command, then runs it."""
    say(f"$ {shlex.join(['python', *command[1:]])}")
    return subprocess.run(command, cwd=bootstrap.ROOT, check=False).returncode


def main() -> int:
    """Runs the three steps of the demo."""
    say("1/3  a published TFLite face detector becomes a TOSA program")
    status = run(
        [sys.executable, "tools/make_model.py", MODEL.stem, "--output", str(MODEL)]
    )
    if status != 0:
        return status
    command = [sys.executable, "-m", "tosavk", "diff", str(MODEL)]
    for spec, found in LANES:
        if found():
            command += ["--backend", spec]
        else:
            say(f"{spec} is left out: its driver is not there")
    report = bootstrap.ROOT / REPORT
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    say("2/3  the same plan runs on each device, and the results are compared")
    if not driver_env.is_active():
        say("     (start this by `make demo`, or SwiftShader is not seen)")
    status = run([*command, "--seed", "7", "--report", str(REPORT)])
    if not report.exists():
        say(f"3/3  no report was written (exit status {status})")
        return status or 1
    say(f"3/3  the report is {report}")
    say("     open it in a browser; it is one file and needs no network")
    return status


if __name__ == "__main__":
    sys.exit(main())
