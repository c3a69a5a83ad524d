"""Values for inputs and constants, chosen by what reads them.

Ordinary values find wrong indices; special ones, wide ranges and sums that cancel find
wrong arithmetic.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, elements
from tosavk.differential.fuzz.dice import Dice

Array = NDArray[np.generic]


class Style(enum.StrEnum):
    """A way to choose values."""

    PLAIN = "plain"
    SMALL = "small whole numbers"
    WIDE = "all magnitudes"
    SPECIAL = "special values"
    CANCEL = "sums that cancel"


WEIGHTS = {
    Style.PLAIN: 6.0,
    Style.SMALL: 2.0,
    Style.WIDE: 2.0,
    Style.SPECIAL: 2.0,
    Style.CANCEL: 1.0,
}


@dataclass(frozen=True, slots=True)
class Domain:
    """Where values lie.

    Attributes:
        low: least value; None for the type's own.
        high: greatest value; None for the type's own.
        distinct: whether the values of each row are different numbers of low..high.
    """

    low: float | None = None
    high: float | None = None
    distinct: bool = False


ANYWHERE = Domain()

_SPECIAL = (
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    127.5,
    -128.5,
    2.0**-126,
    2.0**-130,
    -(2.0**-149),
    2.0**-14,
    2.0**-24,
    65504.0,
    65520.0,
    448.0,
    464.0,
    57344.0,
    2147483648.0,
    -2147483648.0,
    3.0e38,
    -3.4028234e38,
    1 + 2.0**-23,
    1 - 2.0**-24,
)
_INTEGER_BITS = {DType.INT4: 4, DType.INT48: 48}


def values(
    dice: Dice,
    dtype: DType,
    shape: tuple[int, ...],
    *,
    style: Style = Style.PLAIN,
    domain: Domain = ANYWHERE,
) -> Array:
    """An array of a type."""
    count = elements(shape)
    if dtype is DType.BOOL:
        return (dice.words(count) & np.uint64(1)).astype(np.bool_).reshape(shape)
    if dtype.is_float:
        return _floats(dice, dtype, count, style, domain).reshape(shape)
    if domain.distinct:
        return _rows(dice, dtype, shape, int(domain.high or 0))
    return _integers(dice, dtype, count, style, domain).reshape(shape)


def _rows(dice: Dice, dtype: DType, shape: tuple[int, ...], high: int) -> Array:
    rows = [dice.shuffled(range(high + 1))[: shape[1]] for _ in range(shape[0])]
    return np.array(rows, dtype.numpy).reshape(shape)


def _floats(
    dice: Dice, dtype: DType, count: int, style: Style, domain: Domain
) -> Array:
    u = dice.fractions(count)
    if domain.low is not None or domain.high is not None:
        low = -2.0 if domain.low is None else domain.low
        high = max(low + 4.0, 4.0) if domain.high is None else domain.high
        wide = low + (high - low) * u
    elif style is Style.WIDE:
        return _all_magnitudes(dice, dtype, count)
    elif style is Style.SMALL:
        wide = np.floor(u * 17) - 8
    elif style is Style.CANCEL:
        # Neighbours nearly cancel; what is left needs every bit of the sum.
        sign = np.where(np.arange(count) % 2, -1.0, 1.0)
        large = 2.0 ** np.floor(dice.fractions(count // 2 + 1) * 12)
        wide = sign * np.repeat(large, 2)[:count] * (1 + (u - 0.5) * 2.0**-6)
    else:
        wide = 4 * u - 2
    if style is Style.SPECIAL:
        pick = np.array(_SPECIAL)[(dice.words(count) % len(_SPECIAL)).astype(int)]
        wide = np.where(dice.fractions(count) < 0.3, pick, wide)
    with np.errstate(all="ignore"):
        return wide.astype(np.float32).astype(dtype.numpy)


def _all_magnitudes(dice: Dice, dtype: DType, count: int) -> Array:
    """Random bit patterns of finite numbers."""
    width = dtype.numpy.itemsize * 8
    bits = (dice.words(count) >> np.uint64(64 - width)).astype(f"u{width // 8}")
    array = bits.view(dtype.numpy)
    one = np.ones(1, dtype.numpy)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(array), array, one)


def _integers(
    dice: Dice, dtype: DType, count: int, style: Style, domain: Domain
) -> Array:
    bits = _INTEGER_BITS.get(dtype, dtype.bits)
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if dtype is DType.INT4:
        least = -7
    low = least if domain.low is None else int(domain.low)
    high = most if domain.high is None else int(domain.high)
    if style in (Style.SMALL, Style.PLAIN, Style.CANCEL) and bits > 16:
        # Sums and products of ordinary operators stay in range.
        reach = 100 if style is Style.SMALL else 20000
        low, high = max(low, -reach), max(min(high, reach), low)
    wide = low + (dice.fractions(count) * (high - low + 1)).astype(np.int64)
    if style is Style.SPECIAL:
        edges = np.array([low, low + 1, 0, 1, -1, high - 1, high])
        edges = np.clip(edges, low, high)
        pick = edges[(dice.words(count) % len(edges)).astype(int)]
        wide = np.where(dice.fractions(count) < 0.4, pick, wide)
    return np.clip(wide, low, high).astype(dtype.numpy)
