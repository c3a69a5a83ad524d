"""Long work in portions, so that no watchdog takes a device that works for a hung one.

Operating systems end submissions that take seconds (Windows after two). What a dispatch
takes is estimated from its invocations and the lengths of their loops; dispatches that
are too long are cut between rows of work groups, and submissions between dispatches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Dispatch
from tosavk.shaders.catalogue import Kernel, Work

VARIABLE = "TOSAVK_SUBMISSION_WORK"
"""Environment variable: most work of one submission, in turns of loops."""

SUBMISSION_WORK = 1 << 30
"""Turns of loops of one submission. A turn of a matrix product is 64 multiplications, so
that a processor of 140 thousand million of them a second takes half a second."""

Groups = tuple[int, int, int]


def submission_work() -> int:
    """What TOSAVK_SUBMISSION_WORK says, or the default.

    Raises:
        InvalidArgument: it is no positive number.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return SUBMISSION_WORK
    if not text.isascii() or not text.isdigit() or not int(text):
        raise InvalidArgument(
            f"{VARIABLE} is {text!r}; give the most turns of loops of one submission as "
            f"a positive number, or nothing for {SUBMISSION_WORK}"
        )
    return int(text)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of work groups of one dispatch.

    Attributes:
        step: number of the dispatch.
        first: the first row.
        count: how many.
    """

    step: int
    first: int
    count: int


def turns(kernel: Kernel, dispatch: Dispatch) -> int:
    """Turns of the loops of one invocation; 1 for a kernel without loops.

    Loops that may be dealt out (`lowering.rules.parts`) have their range among the
    parameters, as first and last with a name in front.
    """
    words = dict(zip(kernel.params, dispatch.params, strict=True))
    return math.prod(
        max(last - words[first], 1)
        for name, last in words.items()
        if name.endswith("last") and (first := f"{name[:-4]}first") in words
    )


def narrowed(counts: Groups, cost: int, most: int, budget: int) -> Groups:
    """Work groups of a linear dispatch, in rows that fit the budget.

    Args:
        counts: work groups along x, y and z, as they are without a budget.
        cost: turns of one work group.
        most: rows that the device can number.
        budget: turns of one submission.

    Returns:
        Counts that number at least as many groups, in the same order.
    """
    groups = counts[0] * counts[1]
    if groups * cost <= budget or counts[2] != 1:
        return counts
    across = min(counts[0], max(budget // cost, 1, math.ceil(groups / most)))
    return across, math.ceil(groups / across), 1


def portions(
    steps: Sequence[tuple[Groups, int]], budget: int
) -> tuple[tuple[Rows, ...], ...]:
    """Deals dispatches out to submissions.

    Args:
        steps: of each dispatch the work groups, and the turns of one of them; no more
            than one row if it must not be cut.
        budget: turns of one submission; a single row may exceed it.

    Returns:
        The submissions in order; at least one.
    """
    done: list[tuple[Rows, ...]] = []
    open_: list[Rows] = []
    left = budget
    for rows, cost in _rows(steps, budget):
        if open_ and cost > left:
            done.append(tuple(open_))
            open_, left = [], budget
        open_.append(rows)
        left -= cost
    return (*done, tuple(open_))


def _rows(
    steps: Sequence[tuple[Groups, int]], budget: int
) -> Iterable[tuple[Rows, int]]:
    for number, (counts, cost) in enumerate(steps):
        row = counts[0] * counts[2] * cost
        at_once = counts[1] if row * counts[1] <= budget else max(budget // row, 1)
        for first in range(0, counts[1], at_once):
            count = min(at_once, counts[1] - first)
            yield Rows(number, first, count), row * count


def can_be_cut(kernel: Kernel) -> bool:
    """Whether work groups of a dispatch may be numbered from elsewhere than 0.

    Linear kernels count rows of the width that the dispatch says. NVFP4 kernels in
    groups share sums and stay whole.
    """
    return kernel.work is Work.LINEAR
