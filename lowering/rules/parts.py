"""Long sums in parts: nested loops, dealt out to several dispatches.

A driver may stop the loops of an invocation early and say nothing (docs/known-issues.md),
and others end programs whose dispatches take seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

LONGEST = 1 << 15
"""Most iterations of one invocation's loops, up to one a level of nesting."""


def parts(**loops: int) -> list[Mapping[str, int]]:
    """Ranges of nested loops whose parts, one after another, are the whole in order.

    A loop that does not fit is cut, and those around it make one step each; so a strict
    sum goes on in the next part exactly where this one ends. Lengths that are multiples
    of four are cut at multiples of four when nothing is inside of them.

    Args:
        loops: the lengths by name, outermost first.

    Returns:
        `NAME_first` and `NAME_last` of every loop, for each part; most often there is
        one.
    """
    ranges: list[list[tuple[int, int]]] = []
    cost = 1
    for length in reversed(loops.values()):
        step = min(length, max(LONGEST // cost, 1))
        ranges.append(
            [(first, min(first + step, length)) for first in range(0, length, step)]
        )
        cost = length * cost + 1 if step == length else LONGEST
    result: list[Mapping[str, int]] = []
    for part in itertools.product(*reversed(ranges)):
        words: dict[str, int] = {}
        for name, (first, last) in zip(loops, part, strict=True):
            words[f"{name}_first"] = first
            words[f"{name}_last"] = last
        result.append(words)
    return result
