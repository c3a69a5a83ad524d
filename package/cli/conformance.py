"""`tosavk conformance`: run official TOSA tests and count."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli import options as shared
from tosavk.core.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

    from tosavk.cli.types import Subparsers
    from tosavk.core.accelerator import Accelerator
    from tosavk.differential.conformance import Journal, TestResult

_SHOWN_FAILURES = 20


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "conformance",
        help="run official TOSA tests on backends",
        description="Run official TOSA tests (folders that TOSA's own generator writes) "
        "on backends, and judge the results by the rule that each test states.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="folder with tests (desc.json) below"
    )
    parser.add_argument(
        "--backend",
        action="append",
        metavar="S",
        help="backend specification (repeatable; default vulkan)",
    )
    parser.add_argument(
        "--filter", default="", metavar="RE", help="only tests whose path matches"
    )
    parser.add_argument(
        "--resume",
        metavar="F",
        help="keep results in F as they come, and skip those that F has",
    )
    parser.add_argument(
        "--timeout",
        type=shared.whole_number,
        default=0,
        metavar="S",
        help="run the tests in a process of their own; one that crashes, or gives no "
        "result for S seconds, is a failed test, and the rest goes on (default: 0, in "
        "this process)",
    )
    parser.add_argument("--current", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="F", help="write JSON (- for stdout)")
    parser.add_argument("--junit", metavar="F.xml", help="write JUnit XML")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Runs the tests; 1 when one failed, 3 when some are not supported."""
    from tosavk.backends.registry import open_accelerator
    from tosavk.cli.console import out
    from tosavk.differential.conformance import Journal, Status, document, junit

    for target in (options.resume, options.json, options.junit):
        shared.check_writable(target)
    specs = tuple(dict.fromkeys(options.backend or ("vulkan",)))
    if options.timeout:
        from tosavk.cli.conformance_apart import run_apart

        journal = run_apart(options)
    else:
        journal = Journal(Path(options.resume) if options.resume else None)
        with ExitStack() as stack:
            accelerators = {
                spec: stack.enter_context(open_accelerator(spec)) for spec in specs
            }
            current = Path(options.current) if options.current else None
            _run(_folders(options), accelerators, journal, current)
    results = sorted(
        journal.results.values(), key=lambda r: (r.operator, r.name, r.backend)
    )
    if not results:
        raise InvalidArgument(f"there is no test below {', '.join(options.folders)}")
    if options.json != "-":
        _show(out(), results)
    if options.json:
        shared.write_json(options.json, document(results))
    if options.junit:
        shared.write_text(options.junit, junit(results) + "\n")
    states = {result.status for result in results}
    if Status.FAILED in states:
        return 1
    return 3 if Status.UNSUPPORTED in states else 0


def _folders(options: argparse.Namespace) -> list[Path]:
    from tosavk.differential.official_tests import find_tests

    try:
        pattern = re.compile(options.filter)
    except re.error as error:
        raise InvalidArgument(f"--filter {options.filter!r}: {error}") from error
    return [
        folder
        for folder in find_tests([Path(name) for name in options.folders])
        if pattern.search(str(folder))
    ]


def _run(
    folders: list[Path],
    accelerators: dict[str, Accelerator],
    journal: Journal,
    current: Path | None,
) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from tosavk.differential.conformance import prepare, run_case
    from tosavk.differential.official_tests import read_test

    console = Console(stderr=True)
    parent = os.getppid()
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("tests", total=len(folders))
        for folder in folders:
            test = read_test(folder)
            progress.update(task, description=test.operator, advance=1)
            todo = [spec for spec in accelerators if not journal.known(test, spec)]
            if not todo:
                continue
            case = prepare(test)
            for spec in todo:
                if current is not None:
                    if os.getppid() != parent:
                        raise KeyboardInterrupt  # whoever started this is gone
                    current.write_text(json.dumps([test.operator, test.name, spec]))
                journal.add(run_case(case, spec, accelerators[spec]))


def _show(console: Console, results: list[TestResult]) -> None:
    from tosavk.cli.console import BAD, GOOD, WARN, Column, say, show_table
    from tosavk.differential.conformance import Status, tallies

    counted = tallies(results)
    columns = (
        Column("operator"),
        Column("backend"),
        Column("passed", right=True),
        Column("failed", right=True),
        Column("unsupported", right=True),
    )
    show_table(
        console,
        columns,
        [
            (
                operator,
                backend,
                (str(tally.passed), GOOD),
                (str(tally.failed), BAD if tally.failed else ""),
                (str(tally.unsupported), WARN if tally.unsupported else ""),
            )
            for (operator, backend), tally in counted.items()
        ],
    )
    failures = [r for r in results if r.status is Status.FAILED]
    for failure in failures[:_SHOWN_FAILURES]:
        say(
            console,
            f"failed: {failure.operator}/{failure.name} on {failure.backend}: "
            f"{failure.reason}",
        )
    if len(failures) > _SHOWN_FAILURES:
        say(console, f"... and {len(failures) - _SHOWN_FAILURES} more")
    for backend in sorted({r.backend for r in results}):
        mine = [t for (_, b), t in counted.items() if b == backend]
        passed, total = sum(t.passed for t in mine), sum(t.total for t in mine)
        failed = sum(t.failed for t in mine)
        say(
            console,
            f"{backend}: {passed} of {total} passed, {failed} failed, "
            f"{total - passed - failed} not supported",
            GOOD if passed == total else BAD if failed else WARN,
        )
