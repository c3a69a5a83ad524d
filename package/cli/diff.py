"""`tosavk diff`: run a model on several backends and compare."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tosavk.backends.session import read_model
from tosavk.cli import options as shared
from tosavk.cli.console import out, steps
from tosavk.core.plan import Numerics
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.report import render
from tosavk.differential.result import DiffResult, Verdict
from tosavk.lowering.program import load_graph

if TYPE_CHECKING:
    from tosavk.cli.types import Subparsers

_CODES = {Verdict.AGREED: 0, Verdict.DIFFERENT: 1, Verdict.FAILED: 4}
_SHOWN_FINDINGS = 10


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "diff", help="run a model on several backends and compare the results"
    )
    shared.add_model(parser)
    parser.add_argument(
        "--backend",
        action="append",
        metavar="S",
        help="backend specification (repeatable; default vulkan, wgpu, reference)",
    )
    shared.add_inputs(parser)
    shared.add_numerics(parser)
    parser.add_argument(
        "--node-by-node",
        action="store_true",
        help="compare every operator and name the first that differs",
    )
    parser.add_argument("--report", metavar="F.html", help="write a report")
    parser.add_argument("--json", metavar="F", help="write JSON (- for stdout)")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Compares; 1 when a difference was found, 4 when nothing could be compared."""
    graph = load_graph(
        read_model(options.model), shapes=shared.parse_shapes(options.shape)
    )
    request = DiffRequest(
        graph=graph,
        model=Path(options.model).name,
        backends=tuple(options.backend or ("vulkan", "wgpu", "reference")),
        given=shared.read_inputs(options.input),
        seed=options.seed,
        numerics=Numerics(options.numerics),
        node_by_node=options.node_by_node,
    )
    with steps("reading the model") as step:
        result = diff(request, step)
    quiet = options.json == "-"
    if not quiet:
        show(out(), result)
    if options.json:
        shared.write_json(options.json, result.document())
    if options.report:
        shared.write_text(options.report, render(result))
        if not quiet:
            out().print(f"report: {options.report}", soft_wrap=True)
    return _CODES[result.verdict]


def show(console: Console, result: DiffResult) -> None:
    """Prints the verdict and its reasons."""
    console.print(_runs(result))
    if result.outputs:
        console.print(_outputs(result))
    if result.operators:
        agreed = sum(item.agreed for item in result.operators)
        console.print(
            f"operators on equal inputs: {agreed} of {len(result.operators)} agree"
        )
    for note in result.notes:
        console.print(f"note: {note}", soft_wrap=True)
    for finding in result.findings[:_SHOWN_FINDINGS]:
        console.print(f"finding: {finding}", soft_wrap=True, markup=False)
    if len(result.findings) > _SHOWN_FINDINGS:
        console.print(f"... and {len(result.findings) - _SHOWN_FINDINGS} more findings")
    first = result.first_different
    if first is not None:
        console.print(
            f"first operator that differs on equal inputs: {first.index} {first.op} "
            f"({first.output!r})",
            soft_wrap=True,
            markup=False,
        )
    style = "bold green" if result.verdict is Verdict.AGREED else "bold red"
    console.print(
        f"verdict: {result.verdict.value.upper()} ({result.numerics})", style=style
    )


def _runs(result: DiffResult) -> Table:
    table = Table(title=result.model)
    for column in ("backend", "device", "load", "first run", "steady"):
        table.add_column(column, overflow="fold")
    for run in result.runs:
        if run.failure:
            table.add_row(run.spec, run.device, "failed", "", "")
            continue
        table.add_row(
            run.spec,
            run.device,
            f"{run.load_s * 1e3:.0f} ms",
            f"{run.first_s * 1e3:.0f} ms",
            f"{run.steady_s * 1e3:.1f} ms",
        )
    return table


def _outputs(result: DiffResult) -> Table:
    table = Table()
    for column in ("output", "left", "right", "rule", "outcome", "error / peak"):
        table.add_column(column, overflow="fold")
    for c in result.outputs:
        table.add_row(
            c.tensor, c.left, c.right, c.rule, c.outcome, f"{c.relative:.2g}"
        )
    return table
