"""`tosavk fuzz`: random programs on several backends."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli import options as shared

if TYPE_CHECKING:
    from rich.console import Console

    from tosavk.cli.types import Subparsers
    from tosavk.differential.fuzz.campaign import Filed, Result

DEFAULT_BACKENDS = ("vulkan", "wgpu", "reference")
_COUNT = 100
_SHOWN = 12


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "fuzz",
        help="run random programs on several backends and reduce what differs",
        description="Make valid random programs, check their plans, run them on several "
        "backends, and judge every operator on equal inputs: devices bit for bit, and "
        "against the reference by TOSA's rules. What differs is reduced and filed. "
        "Program i of a seed is the same everywhere; the same command with --out goes "
        "on after an interruption.",
        allow_abbrev=False,
    )
    shared.add_seed(parser, "the programs")
    shared.add_programs(parser, "--count", count=_COUNT)
    parser.add_argument(
        "--backend",
        action="append",
        metavar="S",
        help="backend specification (repeatable; default: those that are there of "
        "vulkan, wgpu, reference)",
    )
    shared.add_numerics(parser)
    parser.add_argument("--out", metavar="D", help="folder for findings and journal")
    parser.add_argument(
        "--no-reduce", action="store_true", help="file findings as they are"
    )
    parser.add_argument(
        "--max-findings",
        type=shared.whole_number,
        default=0,
        metavar="N",
        help="end after N findings (default: go on)",
    )
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="print every operator with types, rule and kernels that was covered",
    )
    parser.add_argument(
        "--replay",
        metavar="D",
        help="judge the program in the folder of a finding again, in processes of "
        "their own, on the backends of then unless --backend names others",
    )
    shared.add_process(parser)
    parser.add_argument("--json", metavar="F", help="write JSON (- for stdout)")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Fuzzes; 1 when anything was found."""
    from tosavk.backends.session import parse_numerics
    from tosavk.cli.console import BAD, out, say
    from tosavk.cli.progress import steps
    from tosavk.differential.fuzz.campaign import REDUCING, Request, fuzz

    shared.check_writable(options.json)
    if options.replay:
        return _replay(options)
    if options.out:
        shared.make_folder(Path(options.out))
    request = Request(
        seed=options.seed,
        count=options.count,
        start=options.start,
        backends=tuple(options.backend or DEFAULT_BACKENDS),
        optional=not options.backend,
        numerics=parse_numerics(options.numerics),
        folder=Path(options.out) if options.out else None,
        reducing=0 if options.no_reduce else REDUCING,
        most=options.max_findings,
        apart=not options.in_process,
        limit_s=float(options.timeout),
    )
    console = out()
    quiet = options.json == "-"

    def notice(filed: Filed) -> None:
        if not quiet:
            say(console, f"finding: {filed.key}: {filed.text}", BAD)

    with steps("opening the devices") as step:
        result = fuzz(request, step, notice)
    if options.json:
        shared.write_json(options.json, result.document())
    if not quiet:
        show(console, result)
        if options.coverage:
            show_coverage(console, result)
    return 1 if result.findings else 0


def _replay(options: argparse.Namespace) -> int:
    """Judges a filed case again; 1 when anything is wrong."""
    from tosavk.cli.console import BAD, GOOD, SOFT, out, say
    from tosavk.cli.progress import steps
    from tosavk.core.errors import InvalidArgument
    from tosavk.differential.fuzz.remote import Wanted
    from tosavk.differential.fuzz.replay import replay

    if options.in_process:
        raise InvalidArgument("--replay runs drivers in processes of their own only")
    wanted = Wanted(
        seed=0,
        backends=tuple(options.backend or ()),
        limit_s=float(options.timeout),
    )
    with steps("opening the devices") as step:
        found = replay(Path(options.replay), wanted, step)
    if options.json:
        shared.write_json(options.json, found.document())
    if options.json != "-":
        console = out()
        for label, device in found.devices.items():
            say(console, f"  {label}{': ' if device else ''}{device}", SOFT)
        for label, ending, text in found.endings:
            words = f"{label}, in a process of its own: {ending}"
            say(console, f"{words}{': ' if text else ''}{text}")
        for finding in found.findings:
            say(console, f"finding: {finding.key}: {finding.text}", BAD)
        again = "it shows it again" if found.shown else "it does not show it"
        say(
            console,
            f"filed for {found.filed or 'nothing'}: {again}",
            f"bold {BAD if found.findings else GOOD}",
        )
    return 1 if found.findings else 0


def show_coverage(console: Console, result: Result) -> None:
    """Prints all that was covered, and what was not."""
    from tosavk.cli.console import WARN, Column, say, show_table

    console.print()
    show_table(
        console,
        (
            Column("operator"),
            Column("types"),
            Column("rule"),
            Column("kernels"),
            Column("program", right=True),
        ),
        [
            (point.operator, point.dtype, point.rule, point.kernels, str(index))
            for point, index in sorted(result.coverage.points.items())
        ],
    )
    for operator, dtype in result.coverage.missing():
        say(console, f"not covered: {operator} {dtype}", WARN)


def show(console: Console, result: Result) -> None:
    """Prints what was covered and what was found."""
    from tosavk.cli.console import BAD, GOOD, SOFT, WARN, Column, say, show_table
    from tosavk.differential.fuzz.coverage import summary
    from tosavk.differential.text import counted

    console.print()
    rows = summary(list(result.coverage.points))
    show_table(
        console,
        (
            Column("operator"),
            Column("types", right=True),
            Column("rules", right=True),
            Column("kernels", right=True),
        ),
        [(name, *map(str, counts)) for name, counts in rows.items()],
    )
    possible = len(result.coverage.possible())
    missing = result.coverage.missing()
    say(
        console,
        f"covered {possible - len(missing)} of {possible} operators with types, "
        f"{len(result.coverage.points)} with rule and kernels",
    )
    for label in result.backends:
        device = result.devices.get(label, "")
        say(console, f"  {label}{': ' if device else ''}{device}", SOFT)
    for text in result.missing:
        say(console, f"note: left out: {text}", WARN)
    for index, reason in list(result.left_out.items())[:_SHOWN]:
        say(console, f"note: program {index} is not supported: {reason}", WARN)
    for filed in result.findings.values():
        where = f" in {filed.folder}" if filed.folder else ""
        say(
            console,
            f"{filed.key}: {counted(len(filed.graphs), 'program')}, first "
            f"{filed.graphs[0]}; reduced to {counted(filed.operators, 'operator')}, "
            f"{counted(filed.elements, 'element')}{where}",
        )
    found = len(result.findings)
    verdict = counted(found, "finding") if found else "all agree"
    say(
        console,
        f"{counted(result.done, 'program')} of seed {result.request.seed}, "
        f"{result.rate:.0f} a minute, {result.exceptions} known exceptions, "
        f"{result.unpredictable} open results, {result.validated} under "
        f"synchronization validation: {verdict}",
        f"bold {BAD if result.findings else GOOD}",
    )
