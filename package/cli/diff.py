"""`tosavk diff`: run a model on several backends and compare."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli import options as shared
from tosavk.cli.doctor import DRIVER_VARIABLES

if TYPE_CHECKING:
    from rich.console import Console

    from tosavk.cli.types import Subparsers
    from tosavk.differential.result import Comparison, DiffResult

DEFAULT_BACKENDS = ("vulkan", "wgpu", "reference")
_SHOWN = 10


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "diff",
        help="run a model on several backends and compare the results",
        description="Run a model on several backends and compare the results: devices "
        "with each other bit for bit, and every operator with the reference by TOSA's "
        "rules.",
        allow_abbrev=False,
    )
    shared.add_model(parser)
    parser.add_argument(
        "--backend",
        action="append",
        metavar="S",
        help="backend specification (repeatable; default: those that are there of "
        "vulkan, wgpu, reference)",
    )
    shared.add_inputs(parser)
    shared.add_numerics(parser)
    parser.add_argument(
        "--node-by-node",
        action="store_true",
        help="compare every operator and name the first that differs (always done "
        "when reference takes part)",
    )
    parser.add_argument("--report", metavar="F.html", help="write a report")
    parser.add_argument("--json", metavar="F", help="write JSON (- for stdout)")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Compares; 1 when a difference was found, 3 or 4 when nothing could be compared."""
    import hashlib

    from tosavk.backends.session import parse_numerics, read_model
    from tosavk.cli.console import BAD, GOOD, out, say
    from tosavk.cli.progress import steps
    from tosavk.differential.diff import DiffRequest, diff
    from tosavk.differential.result import Verdict
    from tosavk.lowering.program import load_graph

    start = time.perf_counter()
    for target in (options.report, options.json):
        shared.check_writable(target)
    with steps("reading the model") as step:
        data = read_model(options.model)
        assert isinstance(data, bytes)
        graph = load_graph(data, shapes=shared.parse_shapes(options.shape))
        paths = shared.parse_inputs(options.input, graph.main.inputs)
        request = DiffRequest(
            graph=graph,
            model=options.model,
            source=options.model if Path(options.model).is_file() else "",
            shapes=shared.parse_shapes(options.shape),
            model_sha256=hashlib.sha256(data).hexdigest(),
            backends=tuple(options.backend or DEFAULT_BACKENDS),
            optional=not options.backend,
            given=shared.read_arrays(paths),
            paths=paths,
            seed=options.seed,
            numerics=parse_numerics(options.numerics),
            node_by_node=options.node_by_node,
            command=command(options),
            environment=tuple(
                (name, os.environ[name])
                for name in DRIVER_VARIABLES
                if name in os.environ
            ),
        )
        result = diff(request, step)
        if options.report:
            from tosavk.differential.report import render

            step("writing the report")
            shared.write_text(options.report, render(result))
    if options.json:
        shared.write_json(options.json, result.document())
    if options.json != "-":
        console = out()
        show(console, result)
        if options.report:
            say(console, f"report: {options.report}")
        elapsed = time.perf_counter() - start
        verdict = f"verdict: {result.verdict.value.upper()}"
        style = GOOD if result.verdict is Verdict.AGREED else BAD
        say(console, f"{verdict} in {elapsed:.1f} s", f"bold {style}")
    return exit_code(result)


def command(options: argparse.Namespace) -> tuple[str, ...]:
    """The words of the command line that repeats a diff, but for where output goes."""
    words = ["tosavk", "diff", options.model]
    for spec in options.backend or DEFAULT_BACKENDS:
        words += ["--backend", spec]
    for item in options.shape:
        words += ["--shape", item]
    for item in options.input:
        words += ["--input", item]
    words += ["--seed", str(options.seed), "--numerics", options.numerics]
    if options.node_by_node:
        words.append("--node-by-node")
    return tuple(words)


def exit_code(result: DiffResult) -> int:
    """0 agreed, 1 different; with fewer than two results 3 or 4, by the reason."""
    from tosavk.differential.result import Ending, Verdict

    if result.verdict is Verdict.AGREED:
        return 0
    if result.verdict is Verdict.DIFFERENT:
        return 1
    refused = (Ending.UNSUPPORTED, Ending.RESOURCE)
    return 3 if any(run.ending in refused for run in result.runs) else 4


def show(console: Console, result: DiffResult) -> None:
    """Prints what was compared and what is wrong, and last the summary."""
    from tosavk.cli.console import SOFT, TITLE, WARN, say, say_wrapped
    from tosavk.differential.summary import summary

    say(console, f"{Path(result.model).name}, {result.numerics} numerics", TITLE)
    for origin in result.inputs:
        say(console, f"  input {origin}", SOFT)
    console.print()
    _show_runs(console, result)
    _show_outputs(console, result)
    if result.operators:
        _show_operators(console, result)
    for note in result.notes[:_SHOWN]:
        say(console, f"note: {note}", WARN)
    _more(console, len(result.notes), "notes")
    for finding in result.findings[:_SHOWN]:
        say(console, f"finding: {finding.text}")
    _more(console, len(result.findings), "findings")
    if result.notes or result.findings:
        console.print()
    say_wrapped(console, summary(result))


def _more(console: Console, count: int, what: str) -> None:
    from tosavk.cli.console import say

    if count > _SHOWN:
        say(console, f"... and {count - _SHOWN} more {what} (--json or --report)")


def _show_runs(console: Console, result: DiffResult) -> None:
    from tosavk.cli.console import BAD, Cell, Column, seconds, short_device, show_table

    rows: list[tuple[Cell, ...]] = []
    for run in result.runs:
        device = short_device(run.device) or "-"
        if run.ran:
            times = (run.load_s, run.first_s, run.steady_s)
            rows.append((run.label, *(seconds(t) for t in times), device))
        else:
            rows.append((run.label, (run.ending.value, BAD), "", "", device))
    show_table(
        console,
        (
            Column("backend", least=20),
            Column("load", right=True),
            Column("first run", right=True),
            Column("steady", right=True),
            Column("device", least=16),
        ),
        rows,
    )


def _show_outputs(console: Console, result: DiffResult) -> None:
    from tosavk.cli.console import Cell, Column, show_table

    rows: list[tuple[Cell, ...]] = []
    shown = ""
    for c in result.outputs:
        name = c.tensor if c.tensor != shown else ""
        shown = c.tensor
        error = f"{c.relative:.1e}" if c.relative else "0"
        rows.append((name, c.left, c.right, _outcome(c), error))
    if rows:
        show_table(
            console,
            (
                Column("output", least=10),
                Column("of", least=12),
                Column("against", least=12),
                Column("outcome"),
                Column("error/peak", right=True),
            ),
            rows,
        )


def _outcome(c: Comparison) -> tuple[str, str]:
    from tosavk.cli.console import BAD, GOOD, WARN
    from tosavk.differential.result import KNOWN_EXCEPTION

    if not c.agreed:
        return f"{c.outcome} ({c.differing}/{c.elements})", BAD
    if c.outcome == "equal" and c.rule == "same bits":
        return "same bits", GOOD
    return c.outcome, WARN if c.outcome == KNOWN_EXCEPTION else GOOD


def _show_operators(console: Console, result: DiffResult) -> None:
    """The operators that do not agree, one line for each comparison."""
    from tosavk.cli.console import Cell, Column, say, show_table

    rows: list[tuple[Cell, ...]] = [
        (
            str(item.operator.index),
            item.operator.op,
            c.left,
            c.right,
            _outcome(c),
            "" if c.worst is None or c.worst.ulp is None else f"{c.worst.ulp:.3g}",
        )
        for item in result.operators
        for c in item.comparisons
        if not c.agreed
    ]
    if rows:
        say(console, "operators that differ on equal inputs")
        show_table(
            console,
            (
                Column("#", right=True),
                Column("operator", least=8),
                Column("of", least=12),
                Column("against", least=12),
                Column("outcome"),
                Column("ulp", right=True),
            ),
            rows[:_SHOWN],
        )
        _more(console, len(rows), "operators")
