"""`tosavk campaign`: the same run on the devices of many machines."""

from __future__ import annotations

import argparse
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli import diff_inputs
from tosavk.cli import options as shared

if TYPE_CHECKING:
    from rich.console import Console

    from tosavk.cli.types import Subparsers
    from tosavk.differential.campaign.run import CampaignResult

_LIMIT_S = 120
_PATIENCE_S = 60
_REPEATED = (
    "samples",
    "seed",
    "generator",
    "fuzz",
    "start",
    "numerics",
    "timeout",
    "patience",
)
"""Options that the command repeats where they are not as by default."""


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "campaign",
        help="run models and random programs on the devices of many machines",
        description="Run models, random programs or both on devices of the workers of a "
        "Dask cluster, compare all devices, and write one report. A worker that goes "
        "away loses nothing; the same command goes on where it was interrupted. Needs "
        "the extra `campaign` (docs/campaigns.md).",
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="TOSA flatbuffers")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="an existing Dask scheduler: tcp://host:8786, tls://host:8786",
    )
    where.add_argument(
        "--local",
        action="store_true",
        help="start the workers that --worker names on this machine",
    )
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="S[,S]",
        help="with --local: a worker with this device, or several (repeatable)",
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="S",
        help="a device to run on, as --backend of other commands; some worker must have "
        "it (repeatable; with --local by default those of the workers)",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="D",
        help="folder for results; what is there already is not run again",
    )
    shared.add_shapes(parser)
    diff_inputs.add_generated(parser)
    shared.add_seed(parser, "inputs and random programs")
    shared.add_programs(parser, "--fuzz", where=" on every device", count=0)
    shared.add_numerics(parser)
    shared.add_timeout(parser, limit_s=_LIMIT_S)
    parser.add_argument(
        "--patience",
        type=shared.whole_number,
        default=_PATIENCE_S,
        metavar="S",
        help="seconds to wait for a worker with a device before it is reported as not "
        f"run (default {_PATIENCE_S})",
    )
    parser.add_argument("--report", metavar="F.html", help="write a report")
    parser.add_argument("--json", metavar="F", help="write JSON (- for stdout)")
    defaults = {name: parser.get_default(name) for name in _REPEATED}
    parser.set_defaults(function=main, defaults=defaults)


def main(options: argparse.Namespace) -> int:
    """Runs the campaign; 1 when something differs, 4 when something has not run."""
    from tosavk.backends.session import parse_numerics
    from tosavk.cli.console import out
    from tosavk.cli.progress import steps
    from tosavk.core.errors import InvalidArgument
    from tosavk.differential.campaign.cluster import connected, dask_module, local
    from tosavk.differential.campaign.run import Plan, campaign
    from tosavk.differential.result import Verdict

    for target in (options.report, options.json):
        shared.check_writable(target)
    if options.local != bool(options.worker):
        raise InvalidArgument("--worker and --local belong together")
    labels = [label for text in options.worker for label in text.split(",") if label]
    plan = Plan(
        devices=tuple(options.device or dict.fromkeys(labels)),
        models=tuple(options.models),
        shapes=shared.parse_shapes(options.shape),
        seed=options.seed,
        samples=options.samples,
        generator=options.generator,
        numerics=parse_numerics(options.numerics),
        programs=options.fuzz,
        start=options.start,
        limit_s=float(options.timeout),
        patience_s=float(options.patience),
        command=command(options),
    )
    plan.check()
    dask_module()
    with ExitStack() as stack:
        step = stack.enter_context(steps("connecting"))
        pool = stack.enter_context(
            local(options.worker) if options.local else connected(options.scheduler)
        )
        result = campaign(plan, pool, Path(options.out), step)
        step("closing the workers")
    if options.report:
        from tosavk.differential.campaign.report import render

        shared.write_text(options.report, render(result))
    if options.json:
        shared.write_json(options.json, result.document())
    if options.json != "-":
        show(out(), result)
    return {Verdict.AGREED: 0, Verdict.DIFFERENT: 1, Verdict.FAILED: 4}[result.verdict]


def show(console: Console, result: CampaignResult) -> None:
    """Prints a table of models and devices, and what has not run."""
    from tosavk.cli.console import BAD, GOOD, SOFT, WARN, Cell, Column, say, show_table
    from tosavk.differential.campaign.report import cell, summary
    from tosavk.differential.result import Verdict
    from tosavk.differential.text import counted

    styles = {"ok": GOOD, "no": BAD, "warn": WARN}
    if result.models:
        rows: list[list[Cell]] = []
        for model in result.models:
            cells = [cell(model, spec) for spec in result.plan.devices]
            rows.append(
                [Path(model.model).name, *((text, styles[s]) for text, s in cells)]
            )
        columns = [Column("model", least=18)]
        columns += [Column(spec) for spec in result.plan.devices]
        show_table(console, columns, rows)
    for model in result.models:
        for finding in model.findings[:3]:
            say(console, f"{Path(model.model).name}: {finding.text}", BAD)
    for item in result.fuzzed:
        style = BAD if item.findings else ""
        programs = counted(item.programs, "random program")
        text = f"{programs}, {counted(len(item.findings), 'finding')}"
        say(console, f"{item.spec}: {text}", style)
        for found in item.findings[:3]:
            say(console, f"  {found['text']}", BAD)
    for text in result.events:
        say(console, f"note: {text}", SOFT)
    for task, reason in result.not_run.items():
        say(console, f"not run: {task}: {reason}", WARN)
    good = result.verdict is Verdict.AGREED
    say(console, summary(result))
    say(
        console,
        f"verdict: {result.verdict.value.upper()}",
        f"bold {GOOD if good else BAD}",
    )


def command(options: argparse.Namespace) -> tuple[str, ...]:
    """The words of the command line that repeats it."""
    words = ["tosavk", "campaign", *map(shlex.quote, options.models)]
    words += ["--local"] if options.local else ["--scheduler", options.scheduler]
    for name in ("worker", "device", "shape"):
        for item in getattr(options, name):
            words += [f"--{name}", shlex.quote(item)]
    for name, default in options.defaults.items():
        value = getattr(options, name)
        if value != default:
            words += [f"--{name}", str(value)]
    return (*words, "--out", shlex.quote(options.out))
