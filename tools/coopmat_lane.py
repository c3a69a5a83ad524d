#!/usr/bin/env python3
"""Runs tests on a CPU driver that has cooperative matrices, without a GPU and root.

    coopmat_lane.py                 the NVFP4 tests
    coopmat_lane.py tests/ops -k x  other tests; arguments go to pytest

The driver is Mesa's lavapipe of Debian unstable (`newer_debian.py`); it needs a C
library newer than the system's, so the tests run under the Python that comes with it.
What Debian has no package for is put into build/newer/ by pip.

Exit codes: pytest's; 77 when driver or packages cannot be had here.
"""

import os
import subprocess
import sys
from pathlib import Path

from newer_python import MissingError, prepare

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/ops/test_nvfp4.py",
    "tests/ops/test_nvfp4_fast.py",
    "tests/ops/test_nvfp4_fragments.py",
    "tests/cases/test_nvfp4_cases.py",
    "tests/unit/test_nvfp4_variants.py",
)
VALIDATOR = ROOT / "build/newer/shader-tools/bin/spirv-val"
SKIPPED = 77


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"[coopmat] {text}", flush=True)


def main() -> int:
    """Runs the tests."""
    try:
        beside = prepare("lavapipe")
    except MissingError as missing:
        say(f"skipped: {missing}")
        return SKIPPED
    if not VALIDATOR.exists():
        # One that knows cooperative matrices; without it their modules are not looked at.
        script = str(ROOT / "tools" / "newer_debian.py")
        subprocess.run([sys.executable, script, "shader-tools"], check=False)
    environment = {
        **os.environ,
        "PYTHONPATH": beside.library_path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOSAVK_TEST_DEVICES": "vulkan:llvmpipe",
        "TOSAVK_REQUIRE_DEVICES": "vulkan:llvmpipe",
        "TOSAVK_VALIDATION": os.environ.get("TOSAVK_VALIDATION", "1"),
        "NODEVICE_SELECT": "1",
    }
    arguments = sys.argv[1:]
    if not any((ROOT / word.partition("::")[0]).exists() for word in arguments):
        arguments += TESTS
    command = [str(beside.python), "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
