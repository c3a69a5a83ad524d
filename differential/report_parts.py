"""Pictures and tables of a report: where the error is, how large, and whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tosavk.core.plan import OperatorName
from tosavk.differential.result import ULP_EDGES, Comparison, DiffResult, Share

_CELL = 6
_MAX_PICTURES = 12
_REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of an error with its caption."""

    svg: Markup
    caption: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One class of a histogram.

    Attributes:
        label: distances in it.
        count: elements in it.
        width: of the bar, in percent; logarithmic.
    """

    label: str
    count: int
    width: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Elements by distance in units in the last place.

    Attributes:
        title: whose results, against what.
        bars: the classes; empty ones at the end are left out.
        elements: how many there are.
    """

    title: str
    bars: tuple[Bar, ...]
    elements: int


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One operator's errors on devices that have the same ones.

    Attributes:
        operator: which one.
        backends: labels, joined.
        share: the errors.
        own: part of the row's larger error that is its own, in percent.
    """

    operator: OperatorName
    backends: str
    share: Share
    own: float


def histogram_of(title: str, comparisons: Sequence[Comparison]) -> Histogram | None:
    """The histogram of comparisons, or None where all is equal."""
    totals = [0] * (len(ULP_EDGES) + 1)
    for c in comparisons:
        if c.histogram is None:
            totals[0] += c.elements
        else:
            totals = [a + b for a, b in zip(totals, c.histogram, strict=True)]
    if not any(totals[1:]):
        return None
    while not totals[-1]:
        totals.pop()
    longest = max(n.bit_length() for n in totals)
    bars = tuple(
        Bar(label, n, 100 * n.bit_length() / longest)
        for label, n in zip(_labels(), totals, strict=False)
    )
    return Histogram(title, bars, sum(totals))


def histograms(result: DiffResult) -> list[Histogram]:
    """One for each device: all operators against the reference, or the other device."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for item in result.operators:
        for c in item.comparisons:
            groups.setdefault((c.left, c.right), []).append(c)
    judged = any(right == _REFERENCE for _, right in groups)
    found: list[Histogram] = []
    for (left, right), comparisons in groups.items():
        if (right == _REFERENCE) == judged:
            made = histogram_of(f"{left} against {right}", comparisons)
            if made is not None:
                found.append(made)
    return found


def _labels() -> list[str]:
    edges = [f"{edge:g}" for edge in ULP_EDGES[1:]]
    return ["0", *(f"up to {edge}" for edge in edges), f"above {edges[-1]}, or NaN"]


def share_rows(result: DiffResult) -> list[ShareRow]:
    """All operators' errors; devices that have the same ones share a row."""
    rows: list[ShareRow] = []
    for item in result.operators:
        groups: dict[tuple[object, ...], list[Share]] = {}
        for share in item.shares:
            key = (share.tensor, share.against, share.contributed, share.inherited)
            groups.setdefault((*key, share.total), []).append(share)
        for shares in groups.values():
            first = shares[0]
            both = first.contributed + first.inherited
            # Infinity over infinity is no number.
            own = first.contributed / both if 0 < both < float("inf") else 0.0
            if first.contributed == float("inf"):
                own = 1.0
            labels = ", ".join(share.backend for share in shares)
            rows.append(ShareRow(item.operator, labels, first, 100 * own))
    return rows


def pictures(result: DiffResult) -> list[Picture]:
    """Pictures of what is wrong first, then of the outputs' errors; each once."""
    wrong = [c for item in result.operators for c in item.comparisons if not c.agreed]
    groups: dict[object, list[Comparison]] = {}
    for c in (*wrong, *result.outputs):
        if c.error_map is not None:
            groups.setdefault((c.tensor, c.error_map), []).append(c)
    return [
        Picture(_heat_map(group[0]), _caption(group))
        for group in list(groups.values())[:_MAX_PICTURES]
    ]


def _caption(group: Sequence[Comparison]) -> str:
    first = group[0]
    pairs = "; ".join(dict.fromkeys(f"{c.left} and {c.right}" for c in group))
    return f"{first.tensor}: {pairs}; darkest cell {_peak(first):.2g}, {first.outcome}"


def _peak(comparison: Comparison) -> float:
    return max(
        (value for row in comparison.error_map or () for value in row), default=0
    )


def _heat_map(comparison: Comparison) -> Markup:
    grid = comparison.error_map
    assert grid is not None
    peak = _peak(comparison) or 1.0
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
        'viewBox="0 0 {} {}"><rect width="{}" height="{}" fill="#fff"/>{}</svg>'
    ).format(
        comparison.tensor,
        width * 2,
        height * 2,
        width,
        height,
        width,
        height,
        Markup("").join(cells),
    )


def _colour(share: float) -> tuple[int, int, int]:
    """White to dark red, with small shares already visible."""
    level = min(1.0, max(0.0, share)) ** 0.4
    return (255 - int(110 * level), int(225 * (1 - level)), int(205 * (1 - level)))
