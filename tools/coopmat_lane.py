#!/usr/bin/env python3
"""Runs tests on a CPU driver that has cooperative matrices, without a GPU and root.

    coopmat_lane.py                 the NVFP4 tests
    coopmat_lane.py tests/ops -k x  other tests; arguments go to pytest

The driver is Mesa's lavapipe of Debian unstable (`newer_debian.py`); it needs a C
library newer than the system's, so the tests run under the Python that comes with it.
What Debian has no package for is put into build/newer/python by pip.

Exit codes: pytest's; 77 when driver or packages cannot be had here.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAVAPIPE = ROOT / "build" / "newer" / "lavapipe" / "bin" / "python3"
PACKAGES = ROOT / "build" / "newer" / "python"
COMPILED = (
    "hypothesis>=6.100",
    "ml_dtypes>=0.5",
    "safetensors>=0.5",
    "wgpu>=0.32,<0.33",
)
PURE = (
    "pytest-timeout>=2.3",
    "sortedcontainers",
    "vulkan>=1.3.275.1,<1.4",
)
TESTS = (
    "tests/ops/test_nvfp4.py",
    "tests/ops/test_nvfp4_fast.py",
    "tests/cases/test_nvfp4_cases.py",
)
SKIPPED = 77


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"[coopmat] {text}", flush=True)


def prepare() -> str:
    """Brings driver and packages; returns what is missing, or an empty text."""
    if not LAVAPIPE.exists():
        command = [sys.executable, str(ROOT / "tools" / "newer_debian.py"), "lavapipe"]
        if subprocess.run(command, check=False).returncode != 0:
            return "lavapipe of Debian unstable cannot be unpacked here"
    answer = subprocess.run(
        [LAVAPIPE, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=False,
        capture_output=True,
        text=True,
    )
    version = answer.stdout.strip()
    if not version:
        return f"{LAVAPIPE} does not start: {answer.stderr.strip()[-200:]}"
    if (PACKAGES / "ml_dtypes").is_dir() and (PACKAGES / "vulkan").is_dir():
        return ""
    say(f"installing packages for Python {version}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--disable-pip-version-check", "--target", str(PACKAGES)]
    binary = ["--python-version", version, "--only-binary=:all:"]
    for arguments in ([*binary, *COMPILED], [*PURE]):
        if subprocess.run([*pip, *arguments], check=False).returncode != 0:
            return f"pip cannot install {', '.join(arguments)}"
    return ""


def main() -> int:
    """Runs the tests."""
    missing = prepare()
    if missing:
        say(f"skipped: {missing}")
        return SKIPPED
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "typings"), str(PACKAGES)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOSAVK_TEST_DEVICES": "vulkan:llvmpipe",
        "TOSAVK_REQUIRE_DEVICES": "vulkan:llvmpipe",
        "TOSAVK_VALIDATION": os.environ.get("TOSAVK_VALIDATION", "1"),
        "NODEVICE_SELECT": "1",
    }
    arguments = sys.argv[1:]
    if not any((ROOT / word.partition("::")[0]).exists() for word in arguments):
        arguments += TESTS
    command = [str(LAVAPIPE), "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
