"""`tosavk reduce`: the smallest program that still differs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli import diff_inputs
from tosavk.cli import options as shared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tosavk.cli.types import Subparsers
    from tosavk.lowering.graph import Graph

_BUDGET = 2000


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "reduce",
        help="make a program that differs between backends as small as possible",
        description="Find what differs between the backends, as `diff` does, and take "
        "away operators, outputs, sizes, constants and inputs as long as it still "
        "differs in the same way: same operator, types and sort of difference. The "
        "result is a folder with the program, its inputs and a Python script that makes "
        "it again. The same command goes on after an interruption.",
        allow_abbrev=False,
    )
    shared.add_model(parser)
    parser.add_argument(
        "--backend",
        action="append",
        required=True,
        metavar="S",
        help="backend specification (at least two)",
    )
    diff_inputs.add_arguments(parser)
    shared.add_numerics(parser)
    parser.add_argument(
        "--out", metavar="F", help="folder for the result (default: MODEL-reduced)"
    )
    parser.add_argument(
        "--budget",
        type=shared.whole_number,
        default=_BUDGET,
        metavar="N",
        help=f"programs that are tried at most (default {_BUDGET})",
    )
    shared.add_process(parser)
    parser.add_argument("--json", metavar="F", help="write JSON (- for stdout)")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Reduces; 0 when there is nothing to reduce, since the backends agree; else 1."""
    from tosavk.backends.session import parse_numerics, read_model
    from tosavk.cli.console import GOOD, out, say
    from tosavk.cli.progress import steps
    from tosavk.differential.fuzz.bench import Bench
    from tosavk.differential.fuzz.case import Case
    from tosavk.differential.fuzz.reducing import reduce_finding
    from tosavk.differential.fuzz.remote import RemoteBench, Wanted
    from tosavk.differential.refusal import refusal
    from tosavk.lowering.program import load_graph

    shared.check_writable(options.json)
    folder = Path(options.out or f"{Path(options.model).stem}-reduced")
    shared.make_folder(folder)
    with steps("reading the model") as step:
        shared.load_custom(options.custom)
        graph = load_graph(
            read_model(options.model), shapes=shared.parse_shapes(options.shape)
        )
        numerics = parse_numerics(options.numerics)
        case = Case(graph, _samples(options, graph))
        broken = refusal(graph, case.samples)
        if broken is not None:
            raise broken
        backends = tuple(options.backend)
        with (
            Bench(0, backends, numerics=numerics)
            if options.in_process
            else RemoteBench(
                Wanted(
                    seed=0,
                    backends=backends,
                    numerics=numerics,
                    limit_s=float(options.timeout),
                )
            )
        ) as bench:
            found = reduce_finding(
                case, bench, folder, budget=options.budget, progress=step
            )
    if options.json:
        shared.write_json(options.json, found.document())
    if options.json != "-":
        console = out()
        if found.key is None:
            say(console, "the backends agree; there is nothing to reduce", GOOD)
        else:
            say(console, f"{found.key}: {found.text}")
            say(
                console,
                f"from {found.before[0]} operators and {found.before[1]} elements to "
                f"{found.after[0]} and {found.after[1]}, {found.tried} programs tried"
                + ("" if found.finished else "; the budget is used up (--budget)"),
            )
            say(console, f"written to {folder}")
    return 0 if found.key is None else 1


def _samples(
    options: argparse.Namespace, graph: Graph
) -> tuple[dict[str, NDArray[np.generic]], ...]:
    """The inputs of every run: those of `diff` with the same options."""
    from tosavk.differential.generators import Generator
    from tosavk.differential.request import DiffRequest

    always, runs = diff_inputs.given_runs(options, graph.main.inputs)
    request = DiffRequest(
        graph=graph,
        model=options.model,
        backends=tuple(options.backend),
        given=always.arrays,
        paths=always.paths,
        runs=runs,
        samples=options.samples,
        generator=Generator(options.generator),
        seed=options.seed,
    )
    return tuple(dict(request.inputs(number)) for number in range(request.count))
