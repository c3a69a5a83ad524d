"""What `tosavk diff` prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli.console import (
    BAD,
    GOOD,
    SOFT,
    TITLE,
    WARN,
    Cell,
    Column,
    say,
    say_wrapped,
    seconds,
    short_device,
    show_table,
)
from tosavk.differential.result import KNOWN_EXCEPTION
from tosavk.differential.summary import distance, summary

if TYPE_CHECKING:
    from rich.console import Console

    from tosavk.differential.result import (
        Comparison,
        DiffResult,
        Finding,
        OperatorComparison,
    )

_SHOWN = 10
_STDERR_LINES = 6
_OPERAND_VALUES = 8


def show(console: Console, result: DiffResult) -> None:
    """Prints what was compared and what is wrong, and last the summary."""
    say(console, f"{Path(result.model).name}, {result.numerics} numerics", TITLE)
    for origin in result.inputs[:_SHOWN]:
        run = f" {origin.sample + 1}" if result.samples > 1 else ""
        say(console, f"  input{run} {origin}", SOFT)
    _more(console, len(result.inputs), "inputs")
    console.print()
    _show_runs(console, result)
    _show_outputs(console, result)
    if result.operators:
        _show_operators(console, result)
    for note in result.notes[:_SHOWN]:
        say(console, f"note: {note}", WARN)
    _more(console, len(result.notes), "notes")
    for finding in result.findings[:_SHOWN]:
        _show_finding(console, finding, several=result.samples > 1)
    _more(console, len(result.findings), "findings")
    if result.notes or result.findings:
        console.print()
    _show_place(console, result)
    if result.reduced is not None:
        say(console, f"reduced: {result.reduced}")
        console.print()
    say_wrapped(console, summary(result))


def _show_finding(console: Console, finding: Finding, *, several: bool) -> None:
    where = ""
    if several and finding.tensor:
        where = f" (run {finding.sample + 1})"
    say(console, f"finding: {finding.text}{where}")
    lines = finding.stderr.splitlines()
    if len(lines) > _STDERR_LINES:
        say(console, f"    ... {len(lines) - _STDERR_LINES} more lines", SOFT)
    for line in lines[-_STDERR_LINES:]:
        say(console, f"    {line}", SOFT)


def _show_place(console: Console, result: DiffResult) -> None:
    """The first operator that differs: its worst element, and what went into it."""
    first = result.first_comparison
    if first is None:
        return
    name, c = first
    at = f" at {name.location}" if name.location else ""
    say(console, f"operator {name.index} {name.op} ({c.tensor}){at}", TITLE)
    say(console, f"  {c.left} against {c.right}: {c.rule}")
    if c.worst is None:
        return
    say(console, f"  element {list(c.worst.index)} of {list(c.shape)}")
    width = max(len(c.left), len(c.right))
    say(console, f"  {c.left:<{width}}  {c.worst.left}  {c.worst.left_bits}")
    say(console, f"  {c.right:<{width}}  {c.worst.right}  {c.worst.right_bits}")
    say(console, f"  {distance(c)}")
    for part in c.operands:
        values = ", ".join(part.values[:_OPERAND_VALUES])
        more = ", ..." if part.elements > _OPERAND_VALUES else ""
        say(
            console,
            f"  from {part.tensor} {part.dtype} at {list(part.start)}, "
            f"{list(part.shape)}: {values}{more}",
            SOFT,
        )
    console.print()


def _more(console: Console, count: int, what: str) -> None:
    if count > _SHOWN:
        say(console, f"... and {count - _SHOWN} more {what} (--json or --report)")


def _show_runs(console: Console, result: DiffResult) -> None:
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
    if not c.agreed:
        return f"{c.outcome} ({c.differing}/{c.elements})", BAD
    if c.outcome == "equal" and c.rule == "same bits":
        return "same bits", GOOD
    return c.outcome, WARN if c.outcome == KNOWN_EXCEPTION else GOOD


def _share(item: OperatorComparison, c: Comparison) -> tuple[str, str]:
    """What the operator adds to the error of this result, and what it was given."""
    for label in (c.left, c.right):
        for share in item.shares:
            if (share.tensor, share.backend) == (c.tensor, label):
                return f"{share.contributed:.1e}", f"{share.inherited:.1e}"
    return "", ""


def _show_operators(console: Console, result: DiffResult) -> None:
    """The operators that do not agree, one line for each comparison."""
    rows: list[tuple[Cell, ...]] = [
        (
            str(item.operator.index),
            item.operator.op,
            c.left,
            c.right,
            _outcome(c),
            "" if c.worst is None or c.worst.ulp is None else f"{c.worst.ulp:.3g}",
            *_share(item, c),
        )
        for item in result.operators
        for c in item.comparisons
        if not c.agreed
    ]
    if rows:
        say(
            console,
            "operators that differ on equal inputs, with their own error and that of "
            "what they were given",
        )
        show_table(
            console,
            (
                Column("#", right=True),
                Column("operator", least=8),
                Column("of", least=12),
                Column("against", least=12),
                Column("outcome"),
                Column("ulp", right=True),
                Column("own", right=True),
                Column("given", right=True),
            ),
            rows[:_SHOWN],
        )
        _more(console, len(rows), "operators")
