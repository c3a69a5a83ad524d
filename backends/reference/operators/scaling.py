"""Integer scaling: apply_scale_32, apply_scale_16 and reciprocal_scale of TOSA 1.0."""

from __future__ import annotations

import enum

import numpy as np

from tosavk.backends.reference.call import Call, Handler
from tosavk.backends.reference.values import Array, integer_range
from tosavk.lowering.graph import Op, RoundingMode

# INEXACT_ROUND allows a relative error of 2**-22 before rounding.
_INEXACT = 1 << 22


class Rounding(enum.Enum):
    """How a scaled value is brought back to an integer.

    LOWEST and HIGHEST are the ends of what INEXACT_ROUND allows; SINGLE lies between.
    """

    SINGLE = "single"
    DOUBLE = "double"
    LOWEST = "lowest"
    HIGHEST = "highest"


def apply_scale(
    value: Array, multiplier: Array, shift: Array, rounding: Rounding
) -> tuple[Array, bool]:
    """Value * multiplier / 2**shift, rounded.

    The product of a 32-bit value and a 31-bit multiplier, or of a 48-bit value and a
    15-bit one, fits int64 together with the rounding term.

    Returns:
        The int64 result, and whether the operands kept the specification's ranges.
    """
    half = np.int64(1) << (shift - 1)
    if rounding is Rounding.DOUBLE:
        second = np.where(value >= 0, np.int64(1 << 30), np.int64(-(1 << 30)))
        half = half + np.where(shift > 31, second, 0)
    fits = (multiplier >= 0) & (shift >= 2) & (shift <= 62)
    product = value * multiplier
    if rounding is Rounding.LOWEST:
        half = half - ((np.abs(product) + _INEXACT - 1) // _INEXACT)
    elif rounding is Rounding.HIGHEST:
        half = half + np.abs(product) // _INEXACT
    return (product + half) >> shift, bool(np.all(fits))


def reciprocal_scale(count: Array) -> tuple[Array, Array]:
    """Multiplier and shift that divide by `count` (TOSA 1.0 section 5.1)."""
    power = np.frexp((count - 1).astype(np.float64))[1].astype(np.int64)
    return (np.int64((1 << 30) + 1) << power) // count, 30 + power


def _zero_point(call: Call, index: int, *, unsigned: bool) -> int:
    """A zero point operand, read as the same signedness as the data it belongs to."""
    value = call.scalar(index)
    return value & ((1 << call.types[index].bits) - 1) if unsigned else value


def _scaled(call: Call, rounding: Rounding) -> Array:
    unsigned_in, unsigned_out = (
        call.flag("input_unsigned"),
        call.flag("output_unsigned"),
    )
    value = call[0]
    if unsigned_in:
        value = value & ((1 << call.dtype.bits) - 1)
    value = value - _zero_point(call, 3, unsigned=unsigned_in)
    multiplier, shift = call[1].reshape(-1), call[2].reshape(-1)
    if not call.flag("per_channel"):
        multiplier, shift = multiplier[0], shift[0]
    scaled, fits = apply_scale(value, multiplier, shift, rounding)
    call.unpredictable_if(
        not fits, "a multiplier is negative or a shift is not in 2..62"
    )
    bits = np.int64(1) << (shift - 1)
    if call.flag("scale32"):
        call.unpredictable_if(
            (value < -bits) | (value >= bits), "a value is too large for its shift"
        )
    low32, high32 = -(1 << 31), (1 << 31) - 1
    call.unpredictable_if(
        (scaled < low32) | (scaled > high32), "a scaled value overflows INT32"
    )
    result = scaled + _zero_point(call, 4, unsigned=unsigned_out)
    low, high = integer_range(call.out_type, unsigned=unsigned_out)
    return np.asarray(np.clip(result, low, high))


def _rescale(call: Call) -> list[Array]:
    double = call.integer("rounding_mode") == RoundingMode.DOUBLE_ROUND
    return [_scaled(call, Rounding.DOUBLE if double else Rounding.SINGLE)]


def inexact_range(call: Call) -> tuple[Array, Array]:
    """The smallest and the largest result that INEXACT_ROUND allows."""
    return _scaled(call, Rounding.LOWEST), _scaled(call, Rounding.HIGHEST)


HANDLERS: dict[Op, Handler] = {Op.RESCALE: _rescale}
