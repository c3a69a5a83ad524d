"""A program while it is being made up: its values so far, and where operands come from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tosavk.core.dtypes import DType, elements
from tosavk.differential.fuzz.dice import Dice
from tosavk.differential.fuzz.values import (
    ANYWHERE,
    WEIGHTS,
    Domain,
    Style,
    values,
)
from tosavk.lowering.graph import Tensor
from tosavk.lowering.tosa.builder import Builder

Shape = tuple[int, ...]
Ranks = tuple[int, int]

ANY_RANK: Ranks = (0, 6)
# Mostly sizes that tiles and packed words do not divide: 1, primes, 4n - 1, 4n + 1.
_SIZES: dict[int, float] = {
    **dict.fromkeys((2, 3, 5, 7, 11, 13, 17), 3.0),
    1: 8.0,
    **dict.fromkeys((4, 8, 16), 1.5),
    **dict.fromkeys((6, 9, 12, 15, 19, 21, 33), 1.0),
    **dict.fromkeys((31, 63, 65, 127, 129), 0.3),
}
_RANKS = {0: 0.5, 1: 2.0, 2: 2.0, 3: 3.0, 4: 3.0, 5: 1.0, 6: 1.0}


@dataclass(frozen=True, slots=True)
class Source:
    """How an input's values are drawn."""

    name: str
    dtype: DType
    shape: Shape
    domain: Domain


@dataclass(slots=True)
class Scene:
    """A program that grows.

    Attributes:
        dice: draws.
        style: of the values of this program.
        budget: elements a tensor may have.
        builder: the program.
        pool: values that may be read, oldest first.
        sources: the inputs.
        constants: whether new sources are constants only, so that all is known at load.
    """

    dice: Dice
    style: Style = Style.PLAIN
    budget: int = 1500
    builder: Builder = field(default_factory=Builder)
    pool: list[Tensor] = field(default_factory=list[Tensor])
    sources: list[Source] = field(default_factory=list[Source])
    constants: bool = False

    def size(self, most: int = 1 << 30) -> int:
        """A dimension of at most `most`."""
        fitting = {n: weight for n, weight in _SIZES.items() if n <= most}
        return self.dice.weighted(fitting or {1: 1.0})

    def shape(self, ranks: Ranks = ANY_RANK, *, budget: int | None = None) -> Shape:
        """A shape within the budget."""
        low, high = ranks
        fitting = {r: w for r, w in _RANKS.items() if low <= r <= high}
        room = budget or self.budget
        dims: list[int] = []
        for _ in range(self.dice.weighted(fitting)):
            dims.append(self.size(max(1, room)))
            room //= dims[-1]
        return tuple(self.dice.shuffled(dims))

    def factored(self, count: int, rank: int) -> Shape:
        """A shape of a rank with exactly `count` elements."""
        dims = [1] * rank
        if rank == 0:
            return ()
        for prime in _primes(count):
            dims[self.dice.below(rank)] *= prime
        return tuple(dims)

    def fresh(self, dtype: DType, shape: Shape, *, domain: Domain = ANYWHERE) -> Tensor:
        """A new input, or sometimes a constant."""
        if self.constants or self.dice.chance(0.2):
            return self.constant(dtype, shape, domain=domain)
        name = f"in{len(self.sources)}"
        self.sources.append(Source(name, dtype, shape, domain))
        tensor = self.builder.input(name, dtype, shape)
        if domain == ANYWHERE:
            self.pool.append(tensor)
        return tensor

    def constant(
        self, dtype: DType, shape: Shape, *, domain: Domain = ANYWHERE
    ) -> Tensor:
        """A new constant."""
        style = Style.PLAIN if self.style is Style.CANCEL else self.style
        array = values(self.dice, dtype, shape, style=style, domain=domain)
        return self.builder.const(array, dtype)

    def take(
        self, dtype: DType, ranks: Ranks = ANY_RANK, *, domain: Domain = ANYWHERE
    ) -> Tensor:
        """A value of a type to be read: one of the pool, or a new source."""
        open_to_all = domain == ANYWHERE or self.dice.chance(0.3)
        if open_to_all and self.dice.chance(0.85):
            found = self._pooled(dtype, ranks)
            if found is not None:
                return found
        return self.fresh(dtype, self.shape(ranks), domain=domain)

    def shaped(
        self, dtype: DType, shape: Shape, *, domain: Domain = ANYWHERE
    ) -> Tensor:
        """A value of exactly this shape."""
        fitting = [t for t in self.pool if t.dtype is dtype and t.shape == shape]
        if fitting and domain == ANYWHERE and self.dice.chance(0.7):
            return self.dice.one_of(fitting)
        count = elements(shape)
        alike = [
            t
            for t in self.pool
            if t.dtype is dtype and elements(dims(t)) == count and dtype.bits < 48
        ]
        if alike and domain == ANYWHERE and self.dice.chance(0.5):
            return self.builder.reshape(self.dice.one_of(alike), shape)
        return self.fresh(dtype, shape, domain=domain)

    def companion(
        self, first: Tensor, dtype: DType, *, domain: Domain = ANYWHERE, style: int = 0
    ) -> Tensor:
        """A second operand that broadcasts with the first.

        Args:
            first: the first operand.
            dtype: type of the second.
            domain: where its values lie.
            style: 0 equal shapes; 1 one axis; 2 all axes; 3 any axes, both ways.
        """
        shape = list(dims(first))
        if not shape or style == 0:
            return self.shaped(dtype, tuple(shape), domain=domain)
        if style == 1:
            keep = self.dice.below(len(shape))
            shape = [n if axis == keep else 1 for axis, n in enumerate(shape)]
        elif style == 2:
            shape = [1] * len(shape)
        else:
            for axis, n in enumerate(shape):
                if n == 1:
                    room = max(1, self.budget // max(1, elements(dims(first))))
                    shape[axis] = self.size(min(room, 5))
                elif self.dice.chance(0.5):
                    shape[axis] = 1
            if elements(dims(first)) * math.prod(shape) > 8 * self.budget:
                shape = [1] * len(shape)
        return self.shaped(dtype, tuple(shape), domain=domain)

    def keep(self, *tensors: Tensor) -> None:
        """Puts results into the pool, now and then behind views."""
        for tensor in tensors:
            viewed = tensor
            if self.dice.chance(0.2) and tensor.dtype not in (DType.INT4, DType.INT48):
                if self.dice.chance(0.4):
                    self.pool.append(tensor)
                for _ in range(self.dice.between(1, 3)):
                    viewed = self.view(viewed)
            self.pool.append(viewed)

    def view(self, tensor: Tensor) -> Tensor:
        """The tensor through IDENTITY or RESHAPE."""
        if self.dice.chance(0.4):
            return self.builder.identity(tensor)
        shape = self.factored(elements(dims(tensor)), self.dice.between(1, 5))
        return self.builder.reshape(tensor, shape)

    def _pooled(self, dtype: DType, ranks: Ranks) -> Tensor | None:
        low, high = ranks
        known = [t for t in self.pool if t.dtype is dtype]
        fitting = [t for t in known if low <= len(dims(t)) <= high]
        if fitting and self.dice.chance(0.9):
            # Recent values more often than old ones.
            if self.dice.chance(0.5):
                fitting = fitting[-3:]
            return self.dice.one_of(fitting)
        if known and dtype not in (DType.INT4, DType.INT48):
            chosen = self.dice.one_of(known)
            rank = self.dice.between(max(low, 1), max(high, 1))
            shape = self.factored(elements(dims(chosen)), rank)
            return self.builder.reshape(chosen, shape)
        return None


def dims(tensor: Tensor) -> Shape:
    """The shape of a value."""
    assert tensor.shape is not None
    return tensor.shape


def style_of(dice: Dice) -> Style:
    """A style by the usual weights."""
    return dice.weighted(WEIGHTS)


def _primes(count: int) -> list[int]:
    found: list[int] = []
    divisor = 2
    while divisor * divisor <= count:
        while count % divisor == 0:
            found.append(divisor)
            count //= divisor
        divisor += 1
    if count > 1:
        found.append(count)
    return found
