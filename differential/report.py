"""The report of a diff: one HTML file that needs nothing else."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib import metadata

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tosavk.differential.result import Comparison, DiffResult, Verdict

_CELL = 6
_MAX_PICTURES = 12


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of an error with its caption."""

    svg: Markup
    caption: str


def render(result: DiffResult) -> str:
    """The report as HTML text."""
    environment = Environment(
        loader=PackageLoader("tosavk.differential", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        result=result,
        summary=summary(result),
        pictures=_pictures(result),
        worst=_worst,
        version=_version(),
        command=command(result),
    )


def summary(result: DiffResult) -> str:
    """The verdict in one sentence."""
    ran = [run.spec for run in result.runs if not run.failure]
    if result.verdict is Verdict.FAILED:
        return "Fewer than two backends gave a result, so nothing was compared."
    text = f"{len(ran)} backends ({', '.join(ran)}), {result.numerics} numerics: "
    if result.verdict is Verdict.DIFFERENT:
        first = result.first_different
        text += f"{len(result.findings)} findings"
        if first is not None:
            text += f"; the first operator that differs is {first.index} {first.op}"
        return text + "."
    exact = sum(c.rule == "same bits" for c in result.outputs)
    text += f"{exact} output comparisons bit for bit equal"
    if result.operators:
        text += (
            f", all {len(result.operators)} operators agree on equal inputs, and the "
            f"largest error of an output against the reference is "
            f"{max((c.relative for c in result.outputs), default=0.0):.2g} of its peak"
        )
    return text + "."


def command(result: DiffResult) -> str:
    """The command line that repeats the diff."""
    words = ["tosavk", "diff", result.model]
    for run in result.runs:
        words += ["--backend", run.spec]
    words += ["--numerics", result.numerics]
    return shlex.join(words)


def _pictures(result: DiffResult) -> list[Picture]:
    wrong = [c for item in result.operators for c in item.comparisons if not c.agreed]
    candidates = [c for c in (*result.outputs, *wrong) if c.error_map is not None]
    return [
        Picture(_heat_map(c), f"{c.tensor}: {c.left} and {c.right}, {c.outcome}")
        for c in candidates[:_MAX_PICTURES]
    ]


def _heat_map(comparison: Comparison) -> Markup:
    grid = comparison.error_map
    assert grid is not None
    peak = max((value for row in grid for value in row), default=0.0) or 1.0
    height, width = len(grid) * _CELL, max(map(len, grid)) * _CELL
    cells = [
        Markup(
            '<rect x="{}" y="{}" width="{}" height="{}" fill="rgb({},{},{})"/>'
        ).format(x * _CELL, y * _CELL, _CELL, _CELL, *_colour(value / peak))
        for y, row in enumerate(grid)
        for x, value in enumerate(row)
        if value > 0
    ]
    return Markup(
        '<svg role="img" aria-label="error of {}" width="{}" height="{}" '
        'viewBox="0 0 {} {}">{}</svg>'
    ).format(
        comparison.tensor, width * 2, height * 2, width, height, Markup("").join(cells)
    )


def _colour(share: float) -> tuple[int, int, int]:
    """White to dark red, with small shares already visible."""
    level = min(1.0, max(0.0, share)) ** 0.4
    return (255 - int(110 * level), int(225 * (1 - level)), int(205 * (1 - level)))


def _worst(comparison: Comparison) -> str:
    worst = comparison.worst
    if worst is None:
        return ""
    text = f"[{', '.join(map(str, worst.index))}] {worst.left} / {worst.right}"
    return text if worst.ulp is None else f"{text} ({worst.ulp:.3g} ulp)"


def _version() -> str:
    try:
        return metadata.version("tosavk")
    except metadata.PackageNotFoundError:
        return "(not installed)"
