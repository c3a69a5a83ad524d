"""The command line: `tosavk COMMAND ...`.

Exit codes: 0 agreed or passed; 1 a difference was found; 2 bad input or usage, or output
that cannot be written; 3 not supported; 4 no usable device; 130 interrupted; 141 the
reader of the output went away.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tosavk.cli import (
    campaign,
    conformance,
    devices,
    diff,
    doctor,
    fuzz,
    inspect,
    reduce,
    run,
)
from tosavk.core.errors import (
    DeadlineExpired,
    DeviceLost,
    Error,
    External,
    Incompatible,
    InitError,
    OutOfMemory,
    ResourceLimit,
    Unsupported,
)

OK = 0
DIFFERENT = 1
BAD_INPUT = 2
NOT_SUPPORTED = 3
NO_DEVICE = 4
INTERRUPTED = 130
PIPE_CLOSED = 141

_COMMANDS = (devices, doctor, inspect, run, diff, fuzz, reduce, campaign, conformance)
_EXIT_CODES = """\
exit codes:
  0  agreed, passed        3  not supported (operator, type, limit)
  1  a difference          4  no usable device
  2  bad input or usage    130  interrupted
"""
_BACKENDS = """\
a backend S is vulkan, wgpu or reference, optionally with a device index, UUID, or
part of a device or driver name: vulkan:1, wgpu:llvmpipe. See `tosavk devices`.
TOSAVK_DEVICE=vulkan:1 says which device is meant where none is named.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Complains and leaves.

        Raises:
            SystemExit: always, with 2.
        """
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The argument parser of all commands."""
    from tosavk import __version__

    top = Parser(
        prog="tosavk",
        description="Run TOSA programs on any Vulkan driver and prove the result right.",
        epilog=f"{_EXIT_CODES}\n{_BACKENDS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"tosavk {__version__}")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands"
    )
    for module in _COMMANDS:
        module.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    _have_streams()
    _never_fail_to_encode()
    code: int | None = None
    try:
        options = parser().parse_args(argv)
        code = int(options.function(options))
        sys.stdout.flush()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else OK
    except (Unsupported, ResourceLimit, Incompatible) as error:
        return _complain(error, NOT_SUPPORTED)
    except (InitError, DeviceLost, DeadlineExpired, OutOfMemory, External) as error:
        return _complain(error, NO_DEVICE)
    except Error as error:
        return _complain(error, BAD_INPUT)
    except MemoryError:
        return _complain("out of memory", NO_DEVICE)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED if code is None else code
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _complain("out of memory", NO_DEVICE)
        # A full disk, most likely that of standard output.
        _drop_output()
        what = error.filename or "input or output failed"
        return _complain(f"{what}: {error.strerror or error}", BAD_INPUT)
    return code


def _complain(error: Error | str, code: int) -> int:
    first, *others = [" ".join(line.split()) for line in str(error).splitlines()] or [
        ""
    ]
    text = " ".join((first, "; ".join(others))).rstrip()
    clean = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    with contextlib.suppress(OSError):
        print(f"tosavk: {clean}", file=sys.stderr)  # noqa: T201
    return code


def _have_streams() -> None:
    """Output goes nowhere where a stream was closed before the start."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays
            setattr(sys, name, nowhere)


def _never_fail_to_encode() -> None:
    """Lets a terminal without Unicode show names in any script, escaped."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Sends what is still in the buffer nowhere, so that the interpreter ends quietly."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        return
