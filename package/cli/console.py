"""Results on standard output.

Tables never squeeze what matters: columns keep their width, and only those that say so
are cut, with an ellipsis, when a terminal is too narrow. In a pipe nothing is cut.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tosavk.cli.progress import printable

GOOD = "green"
BAD = "bold red"
WARN = "yellow"
SOFT = "dim"
TITLE = "bold"

_GAP = 2
_PIPE_WIDTH = 10_000

Cell = str | tuple[str, str]
"""A text, or a text with its style."""


class _Console(Console):
    """A console that leaves a closed pipe to the command line."""

    def on_broken_pipe(self) -> None:
        """Passes it on.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError


def out() -> Console:
    """Console for results; as wide as the terminal, or unlimited in a pipe."""
    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Console(
        highlight=False,
        markup=False,
        emoji=False,
        width=None if limited else _PIPE_WIDTH,
    )


def say(console: Console, text: str, style: str = "") -> None:
    """Prints one line, however long."""
    console.print(Text(printable(text), style=style), soft_wrap=True)


def say_wrapped(console: Console, text: str) -> None:
    """Prints a sentence, broken at words where the terminal ends."""
    console.print(Text(printable(text)))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: its heading.
        right: whether it is set to the right, as numbers are.
        least: cells that are left when the table is too wide; 0: never cut.
    """

    title: str
    right: bool = False
    least: int = 0


def show_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> None:
    """Prints a table, one line a row, and an empty line."""
    texts = [[_clean(cell) for cell in row] for row in rows]
    widths = [
        max([cell_len(column.title), *(cell_len(row[i][0]) for row in texts)])
        for i, column in enumerate(columns)
    ]
    _shrink(widths, columns, console.width)
    heading = [[(column.title, SOFT) for column in columns]]
    titled = any(column.title for column in columns)
    for row in (*(heading if titled else ()), *texts):
        line = Text()
        for i, (text, style) in enumerate(row):
            line.append(" " * _GAP)
            line.append(_fit(text, widths[i], right=columns[i].right), style)
        line.rstrip()
        console.print(line, soft_wrap=True)
    console.print()


def _clean(cell: Cell) -> tuple[str, str]:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return printable(text), style


def _shrink(widths: list[int], columns: Sequence[Column], room: int) -> None:
    """Takes cells from the widest column that may be cut until the table fits."""
    while sum(widths) + _GAP * len(widths) > room:
        able = [i for i, c in enumerate(columns) if c.least and widths[i] > c.least]
        if not able:
            return
        widths[max(able, key=lambda i: widths[i])] -= 1


def _fit(text: str, width: int, *, right: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "\N{HORIZONTAL ELLIPSIS}"
    pad = " " * (width - length)
    return pad + text if right else text + pad


def dims(shape: Sequence[int]) -> str:
    """A shape for people: 1x2x3, `?` for an open dimension."""
    return "x".join("?" if n < 0 else str(n) for n in shape) or "scalar"


def seconds(value: float) -> str:
    """A time for people, with about three digits."""
    if value >= 1:
        return f"{value:.2f} s"
    milliseconds = value * 1e3
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.1f} ms"


def size(nbytes: int) -> str:
    """A number of bytes for people."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes} bytes"


def short_device(name: str) -> str:
    """A device's name with its driver, without what is in brackets.

    `llvmpipe (LLVM 15.0.6, 256 bits) (llvmpipe, Mesa 22.3.6 (LLVM 15.0.6))` becomes
    `llvmpipe, Mesa 22.3.6`.
    """
    groups: list[str] = []
    depth, start, outside = 0, 0, ""
    for i, c in enumerate(name):
        if c == "(":
            depth += 1
            start = i + 1 if depth == 1 else start
        elif c == ")" and depth:
            depth -= 1
            if depth == 0:
                groups.append(name[start:i])
        elif depth == 0:
            outside += c
    device = " ".join(outside.split())
    if not groups or depth:
        return name
    driver = " ".join(groups[-1].partition("(")[0].split())
    return driver if device in driver else f"{device}, {driver}"
