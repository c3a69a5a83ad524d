"""The command line: `tosavk COMMAND ...`.

Exit codes: 0 agreed or passed; 1 a difference was found; 2 bad input or usage; 3 not
supported; 4 no usable device; 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tosavk.cli import devices, diff, doctor, inspect, run
from tosavk.core.errors import Error, InitError, Unsupported

OK = 0
DIFFERENT = 1
BAD_INPUT = 2
NOT_SUPPORTED = 3
NO_DEVICE = 4
INTERRUPTED = 130

_COMMANDS = (devices, doctor, inspect, run, diff)


def parser() -> argparse.ArgumentParser:
    """The argument parser of all commands."""
    top = argparse.ArgumentParser(
        prog="tosavk",
        description="Run TOSA programs on Vulkan and prove the result right.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _COMMANDS:
        module.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        options = parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        return int(options.function(options))
    except Unsupported as error:
        return _complain(error, NOT_SUPPORTED)
    except InitError as error:
        return _complain(error, NO_DEVICE)
    except Error as error:
        return _complain(error, BAD_INPUT)
    except KeyboardInterrupt:
        print("tosavk: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away; there is nobody left to tell.
        sys.stderr.close()
        return OK


def _complain(error: Error, code: int) -> int:
    text = " ".join(str(error).split("\n"))
    print(f"tosavk: {text}", file=sys.stderr)  # noqa: T201
    return code
