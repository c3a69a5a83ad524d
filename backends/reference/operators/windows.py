"""Sliding windows without padding: which outputs each kernel tap reaches.

Padding never enters a sum: a tap outside the input is skipped, as the specification's
loops do. So a padded infinity cannot make a NaN, and zero points need no care.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a window.

    Attributes:
        size: input elements.
        kernel: taps.
        stride: input step of one output step.
        dilation: input step of one tap.
        before: padding before the input.
        after: padding after it.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def out(self) -> int:
        """Output elements: TOSA 1.0 section 2.2.3."""
        reach = self.size - 1 + self.before + self.after
        return (reach - (self.kernel - 1) * self.dilation) // self.stride + 1

    def tap(self, index: int) -> tuple[slice, slice] | None:
        """Input and output positions that tap `index` joins; None if there are none."""
        shift = index * self.dilation - self.before
        first = max(0, -(shift // self.stride))
        last = min(self.out - 1, (self.size - 1 - shift) // self.stride)
        if last < first:
            return None
        start = first * self.stride + shift
        stop = last * self.stride + shift + 1
        return slice(start, stop, self.stride), slice(first, last + 1)


def axes(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pad: Sequence[int],
) -> tuple[Axis, ...]:
    """The axes of a window; `pad` holds (before, after) for each axis in turn."""
    return tuple(
        Axis(size, k, s, d, pad[2 * i], pad[2 * i + 1])
        for i, (size, k, s, d) in enumerate(
            zip(sizes, kernel, stride, dilation, strict=True)
        )
    )


def taps(
    window: Sequence[Axis],
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """Every tap with the input and output slices it joins, in ascending order."""
    for index in itertools.product(*(range(axis.kernel) for axis in window)):
        joined = [axis.tap(i) for axis, i in zip(window, index, strict=True)]
        pairs = [pair for pair in joined if pair is not None]
        if len(pairs) == len(joined):
            yield index, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
