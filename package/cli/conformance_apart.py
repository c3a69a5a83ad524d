"""Official tests in a process of their own, which a test may end or block."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tosavk.core.errors import InitError, InvalidArgument
from tosavk.differential.conformance import Journal, Status, TestResult

_STARTING_S = 60.0
_STEP_S = 0.05
_MOST_STARTS = 3
_PROPER = (0, 1, 3)


class ChildFailed(InitError):
    """The process ended without a test that it could be put down to."""


def run_apart(options: argparse.Namespace) -> Journal:
    """Runs the tests; one that hangs or crashes is a failed test, and the rest goes on.

    Args:
        options: of `tosavk conformance`; `timeout` in seconds for one test.

    Raises:
        InvalidArgument: the folders hold no test, or a file is broken.
        ChildFailed: the process cannot even start.
    """
    with tempfile.TemporaryDirectory(prefix="tosavk-conformance-") as folder:
        kept = Path(options.resume) if options.resume else Path(folder) / "journal"
        current = Path(folder) / "current"
        errors = Path(folder) / "errors"
        vain = 0
        while True:
            before = _size(kept)
            current.unlink(missing_ok=True)
            with errors.open("wb") as stream:
                ending = _run_once(options, kept, current, stream.fileno())
            if ending is None:
                return Journal(kept)
            text = errors.read_text("utf-8", "replace").strip()
            test = _current(current)
            if test is None:
                vain = vain + 1 if _size(kept) == before else 0
                if ending == "exit code 2":
                    raise InvalidArgument(text.removeprefix("tosavk: "))
                if vain >= _MOST_STARTS or ending == "exit code 4":
                    said = text.removeprefix("tosavk: ") or ending
                    raise ChildFailed(said)
                continue
            operator, name, backend = test
            lines = text.splitlines()
            reason = f"{ending}: {lines[-1]}" if lines else ending
            journal = Journal(kept)
            journal.add(TestResult(operator, name, backend, Status.FAILED, reason))


def _run_once(
    options: argparse.Namespace, kept: Path, current: Path, errors: int
) -> str | None:
    """Runs until the end (None), or until a test ends or blocks the process."""
    command = [sys.executable, "-P", "-m", "tosavk", "conformance", *options.folders]
    for spec in options.backend or ("vulkan",):
        command += ["--backend", spec]
    command += ["--filter", options.filter, "--resume", str(kept)]
    command += ["--current", str(current)]
    with _child(command, errors) as process:
        since, seen = time.monotonic(), ""
        while process.poll() is None:
            time.sleep(_STEP_S)
            now = _text(current)
            if now != seen:
                since, seen = time.monotonic(), now
            limit = options.timeout if seen else max(options.timeout, _STARTING_S)
            if time.monotonic() - since > limit:
                return f"hung: no result for {limit:g} s, the process was ended"
        code = process.returncode
    if code in _PROPER:
        return None
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"crashed: the process was ended by {signal.Signals(-code).name}"
    return f"crashed: the process was ended by signal {-code}"


@contextmanager
def _child(command: list[str], errors: int) -> Generator[subprocess.Popen[bytes]]:
    """A process that is gone in the end."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            if os.name == "posix":
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        process.wait()


def _current(path: Path) -> tuple[str, str, str] | None:
    """Operator, name and backend of the test that was under way."""
    try:
        operator, name, backend = json.loads(_text(path))
    except ValueError:
        return None
    return str(operator), str(name), str(backend)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
