"""Random draws that are the same on every platform and Python.

Only `random.random` and `random.getrandbits` are used, whose sequences Python keeps;
the rest is done here, since neither `random.choice` nor NumPy promise as much.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Dice:
    """A stream of draws.

    Args:
        words: what the stream is for; equal words give an equal stream.
    """

    def __init__(self, *words: int | str) -> None:
        """Starts the stream that `words` name."""
        self._random = random.Random("/".join(map(str, words)))

    def below(self, count: int) -> int:
        """A number of 0..count-1."""
        return min(int(self._random.random() * count), count - 1)

    def between(self, low: int, high: int) -> int:
        """A number of low..high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with a probability."""
        return self._random.random() < probability

    def one_of(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def weighted(self, items: Mapping[T, float]) -> T:
        """One of the items by their weights."""
        mark = self._random.random() * sum(items.values())
        for item, weight in items.items():
            mark -= weight
            if mark < 0:
                return item
        return next(reversed(list(items)))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in another order."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result

    def words(self, count: int) -> NDArray[np.uint64]:
        """Random 64-bit words."""
        raw = self._random.getrandbits(64 * count) if count else 0
        return np.frombuffer(raw.to_bytes(8 * count, "little"), "<u8").copy()

    def fractions(self, count: int) -> NDArray[np.float64]:
        """Numbers of [0, 1), multiples of 2^-53."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
