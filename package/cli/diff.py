"""`tosavk diff`: run a model on several backends and compare."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli import diff_inputs
from tosavk.cli import options as shared
from tosavk.differential.variables import driver_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tosavk.cli.types import Subparsers
    from tosavk.differential.diff import DiffRequest
    from tosavk.differential.result import DiffResult

DEFAULT_BACKENDS = ("vulkan", "wgpu", "reference")
_LIMIT_S = 120


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "diff",
        help="run a model on several backends and compare the results",
        description="Run a model on several backends and compare the results: devices "
        "with each other bit for bit, and every operator with the reference by TOSA's "
        "rules. Each backend runs in a process of its own: a driver that crashes, hangs "
        "or loses its device is a finding, and the others go on.",
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
    diff_inputs.add_arguments(parser)
    shared.add_numerics(parser)
    parser.add_argument(
        "--node-by-node",
        action="store_true",
        help="compare every operator and name the first that differs (always done "
        "when reference takes part)",
    )
    shared.add_process(parser, limit_s=_LIMIT_S)
    parser.add_argument(
        "--reduce",
        metavar="DIR",
        help="reduce what differs, as `tosavk reduce` does, into this folder",
    )
    parser.add_argument("--report", metavar="F.html", help="write a report")
    parser.add_argument("--junit", metavar="F.xml", help="write JUnit XML")
    parser.add_argument("--json", metavar="F", help="write JSON (- for stdout)")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Compares; 1 when something was found, 3 or 4 when nothing could be compared."""
    from tosavk.cli.console import BAD, GOOD, out, say
    from tosavk.cli.progress import steps
    from tosavk.differential.diff import diff
    from tosavk.differential.result import Verdict

    start = time.perf_counter()
    for target in (options.report, options.json, options.junit):
        shared.check_writable(target)
    if options.reduce:
        shared.make_folder(Path(options.reduce))
    with steps("reading the model") as step:
        request = _request(options)
        result = diff(request, step)
        if options.reduce:
            result = _reduced(request, result, Path(options.reduce), step)
        if options.report:
            from tosavk.differential.report import render

            step("writing the report")
            shared.write_text(options.report, render(result))
        if options.junit:
            from tosavk.differential.junit import junit

            shared.write_text(options.junit, junit(result))
    if options.json:
        shared.write_json(options.json, result.document())
    if options.json != "-":
        from tosavk.cli.diff_show import show

        console = out()
        show(console, result)
        if options.report:
            say(console, f"report: {options.report}")
        elapsed = time.perf_counter() - start
        verdict = f"verdict: {result.verdict.value.upper()}"
        style = GOOD if result.verdict is Verdict.AGREED else BAD
        say(console, f"{verdict} in {elapsed:.1f} s", f"bold {style}")
    return exit_code(result)


def _request(options: argparse.Namespace) -> DiffRequest:
    from tosavk.backends.session import parse_numerics
    from tosavk.differential.childside import Children
    from tosavk.differential.diff import DiffRequest
    from tosavk.differential.generators import Generator
    from tosavk.differential.job import read_program

    shapes = shared.parse_shapes(options.shape)
    shared.load_custom(options.custom)
    graph, digest = read_program(options.model, shapes)
    always, runs = diff_inputs.given_runs(options, graph.main.inputs)
    return DiffRequest(
        graph=graph,
        model=options.model,
        source=options.model if Path(options.model).is_file() else "",
        shapes=shapes,
        model_sha256=digest,
        backends=tuple(options.backend or DEFAULT_BACKENDS),
        optional=not options.backend,
        given=always.arrays,
        paths=always.paths,
        runs=runs,
        samples=options.samples,
        generator=Generator(options.generator),
        seed=options.seed,
        numerics=parse_numerics(options.numerics),
        node_by_node=options.node_by_node,
        children=None
        if options.in_process
        else Children(limit_s=float(options.timeout)),
        command=command(options),
        environment=tuple(driver_environment().items()),
    )


def _reduced(
    request: DiffRequest,
    result: DiffResult,
    folder: Path,
    step: Callable[[str], None],
) -> DiffResult:
    """The result with what the reduction gave, or with a note of why it gave nothing."""
    import dataclasses

    from tosavk.core.errors import Error
    from tosavk.differential.reduction import reduce_result

    try:
        reduced = reduce_result(
            request, result, folder, progress=lambda text: step(f"reducing: {text}")
        )
    except Error as error:
        note = f"the reduction ended early: {error}"
        return dataclasses.replace(result, notes=(*result.notes, note))
    return dataclasses.replace(result, reduced=reduced)


def command(options: argparse.Namespace) -> tuple[str, ...]:
    """The words of the command line that repeats a diff, but for where output goes."""
    words = ["tosavk", "diff", options.model]
    for spec in options.backend or DEFAULT_BACKENDS:
        words += ["--backend", spec]
    for item in options.shape:
        words += ["--shape", item]
    for item in options.custom:
        words += ["--custom", item]
    words += [*diff_inputs.words(options), "--numerics", options.numerics]
    if options.node_by_node:
        words.append("--node-by-node")
    if options.in_process:
        words.append("--in-process")
    if options.timeout != _LIMIT_S:
        words += ["--timeout", str(options.timeout)]
    return tuple(words)


def exit_code(result: DiffResult) -> int:
    """0 agreed, 1 a finding; with fewer than two results and no fault 3 or 4."""
    from tosavk.differential.result import Ending, Verdict

    if result.verdict is Verdict.AGREED:
        return 0
    endings = {run.ending for run in result.runs}
    # A device that could not be opened is no finding about what it computes.
    faults = {ending for ending in endings if ending.is_fault} - {Ending.FAILED}
    if result.verdict is Verdict.DIFFERENT or faults:
        return 1
    return 3 if endings & {Ending.UNSUPPORTED, Ending.RESOURCE} else 4
