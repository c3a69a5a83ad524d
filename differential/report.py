"""The report of a diff: one HTML file that needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import PurePath

from tosavk.core.plan import OperatorName
from tosavk.differential.pages import template
from tosavk.differential.report_parts import (
    Histogram,
    histogram_of,
    histograms,
    pictures,
    share_rows,
)
from tosavk.differential.result import (
    KNOWN_EXCEPTION,
    NOT_JUDGED,
    Comparison,
    DiffResult,
)
from tosavk.differential.summary import distance, summary

_REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Cell:
    """What one device says of one operator's result.

    Attributes:
        text: the outcome in a few characters.
        style: class of the cell: "ok", "no" or "warn".
        title: the whole comparison.
    """

    text: str
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """One result of one operator, over all devices.

    Attributes:
        operator: which one.
        tensor: name of the result.
        shape: its type and dimensions.
        rule: the reference's rule, or "same bits".
        cells: one for every device; None where nothing was compared.
    """

    operator: OperatorName
    tensor: str
    shape: str
    rule: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The first operator that differs, and its worst element.

    Attributes:
        operator: which one.
        comparison: what differs.
        distance: how far apart the two values are, and what is allowed.
        histogram: of this comparison.
    """

    operator: OperatorName
    comparison: Comparison
    distance: str
    histogram: Histogram | None


def render(result: DiffResult) -> str:
    """The report as HTML text."""
    devices = _devices(result)
    return template("report.html.j2").render(
        result=result,
        model=PurePath(result.model).name,
        summary=summary(result),
        pictures=pictures(result),
        wrong=[item for item in result.operators if not item.agreed],
        place=_place(result),
        histograms=histograms(result),
        shares=share_rows(result),
        devices=devices,
        matrix=_matrix(result, devices),
        style=_style,
        version=_version(),
        command=command(result),
    )


def command(result: DiffResult) -> str:
    """The command line that repeats the diff, or "" where it is not known."""
    if not result.command:
        return ""
    variables = [f"{name}={shlex.quote(value)}" for name, value in result.environment]
    return " ".join((*variables, shlex.join(result.command)))


def _devices(result: DiffResult) -> list[str]:
    """Labels that operators are compared for."""
    found: dict[str, None] = {run.label: None for run in result.runs if run.ran}
    for item in result.operators:
        for c in item.comparisons:
            found.setdefault(c.left)
    found.pop(_REFERENCE, None)
    return list(found)


def _matrix(result: DiffResult, devices: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for item in result.operators:
        for tensor in dict.fromkeys(c.tensor for c in item.comparisons):
            found = [c for c in item.comparisons if c.tensor == tensor]
            judged = [c for c in found if c.right == _REFERENCE]
            first = found[0]
            rows.append(
                Row(
                    item.operator,
                    tensor,
                    f"{first.dtype} {'x'.join(map(str, first.shape)) or 'scalar'}",
                    (judged or found)[0].rule,
                    tuple(_cell(device, found) for device in devices),
                )
            )
    return rows


def _cell(device: str, found: Sequence[Comparison]) -> Cell | None:
    """A device's worst outcome for one tensor."""
    own = [c for c in found if c.left == device]
    if not own:
        # The one that the others are compared with.
        own = [c for c in found if c.right == device and c.agreed]
        if not own:
            return None
    worst = max(own, key=lambda c: (not c.agreed, c.outcome != "equal"))
    text = worst.outcome
    if worst.agreed and worst.right == _REFERENCE and worst.worst is not None:
        ulp = worst.worst.ulp
        text = text if ulp is None else f"{ulp:.2g} ulp"
    return Cell(text, _style(worst), "; ".join(map(str, own)))


def _style(c: Comparison) -> str:
    if not c.agreed:
        return "no"
    return (
        "warn" if c.outcome in (KNOWN_EXCEPTION, NOT_JUDGED, "unpredictable") else "ok"
    )


def _place(result: DiffResult) -> Place | None:
    first = result.first_comparison
    if first is None:
        return None
    name, c = first
    title = f"{c.left} against {c.right}"
    return Place(name, c, distance(c), histogram_of(title, [c]))


def _version() -> str:
    try:
        return metadata.version("tosavk")
    except metadata.PackageNotFoundError:
        return "(not installed)"
