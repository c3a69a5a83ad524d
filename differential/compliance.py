"""TOSA's compliance rules: how far a float result may lie from the binary64 one.

Each rule gives an interval around the reference, element by element, or a statistic
over the whole tensor. What holds for all of them: NaN must meet NaN, the sign of zero
does not matter, a result may be zero where the interval reaches below the smallest
normal number (subnormals may be flushed, except in FP8), and an interval that passes
the largest number ends in infinity. Source: TOSA 1.0 section 1.8.2 and the operators'
"precision" paragraphs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference.values import (
    FRACTION_BITS,
    LARGEST,
    SMALLEST_NORMAL,
)
from tosavk.core.dtypes import DType

Array = NDArray[Any]

_HAS_INFINITY = frozenset({DType.FP32, DType.FP16, DType.BF16, DType.FP8E5M2})
_EXPONENT = np.uint64(0x7FF << 52)
_TINY = 2.0**-50
_KEEPS_SUBNORMALS = frozenset({DType.FP8E4M3, DType.FP8E5M2})


def unit_in_last_place(dtype: DType, values: Array) -> Array:
    """The spacing of `dtype` at the magnitude of finite, nonzero float64 values."""
    wide = np.asarray(values, np.float64)
    # Without sign and fraction, a power of two is left.
    power = np.asarray(wide.view(np.uint64) & _EXPONENT).view(np.float64)
    if power.size and not (power.min() > 0.0 and power.max() < np.inf):
        power[~np.isfinite(wide) | (wide == 0)] = 1.0
    np.maximum(power, SMALLEST_NORMAL[dtype], out=power)
    power *= 2.0 ** -FRACTION_BITS[dtype]
    return power


@dataclass(frozen=True, slots=True)
class Interval:
    """What an element may be: from `reference - below` to `reference + above`.

    Both count away from zero: `below` is towards zero, `above` away from it. An
    infinite or NaN width allows everything.

    Attributes:
        reference: float64.
        below: width towards zero.
        above: width away from zero.
    """

    reference: Array
    below: Array
    above: Array

    def admits(self, dtype: DType, actual: Array, distance: Array) -> Array:
        """Which elements are allowed.

        Args:
            dtype: type of the result.
            actual: the result, float64, of the reference's shape.
            distance: between the two, always positive.

        Returns:
            BOOL, the same shape.
        """
        # Most are well inside, beyond what the sums below may round.
        widths = [self.below] if self.above is self.below else [self.below, self.above]
        slack = np.abs(self.reference)
        slack *= -_TINY
        admitted: Array = np.ones(actual.shape, np.bool_)
        for width in widths:
            admitted &= distance < slack + width * (1.0 - _TINY)
        if not admitted.all():
            admitted |= actual == self.reference
        if admitted.all():
            return admitted
        places = np.flatnonzero(~admitted)
        admitted[places] = self._part(places).decides(dtype, actual[places])
        return admitted

    def _part(self, places: Array) -> Interval:
        below = np.broadcast_to(self.below, self.reference.shape)[places]
        above = np.broadcast_to(self.above, self.reference.shape)[places]
        return Interval(self.reference[places], below, above)

    def decides(self, dtype: DType, actual: Array) -> Array:
        """Which elements of `actual` (float64) are allowed; BOOL, the same shape."""
        negative = self.reference < 0
        reference = np.abs(self.reference)
        value = np.where(negative, -actual, actual)
        low, high = reference - self.below, reference + self.above
        largest = LARGEST[dtype]
        low = np.where(low > largest, np.inf, np.where(low < -largest, -np.inf, low))
        high = np.where(high > largest, np.inf, high)
        within = (value >= low) & (value <= high)
        if dtype not in _KEEPS_SUBNORMALS:
            within |= (low < SMALLEST_NORMAL[dtype]) & (value == 0)
        if dtype not in _HAS_INFINITY:
            within |= np.isnan(actual) & (high == np.inf)
        open_ended = ~(np.isfinite(self.below) & np.isfinite(self.above))
        missing = np.isnan(self.reference)
        return np.where(missing, np.isnan(actual), within | open_ended)


@dataclass(frozen=True, slots=True)
class Absolute:
    """Parameters of the absolute error rule of one operator and type.

    The error allowed is 2**(-fraction bits / divisor) times a magnitude times a factor:
    the reference's magnitude and the bound plus `base`, or, with `bound_is_magnitude`,
    the bound and `base`.

    Attributes:
        base: see above.
        least: least value of magnitude times factor.
        bound_is_magnitude: see above.
        divisor: see above.
        least_error: least error allowed.
    """

    base: float = 0.0
    least: float = 0.0
    bound_is_magnitude: bool = False
    divisor: float = 1.0
    least_error: float = 0.0


def exactly(reference: Array) -> Interval:
    """The rule of operators that do not round."""
    zero = np.zeros_like(reference)
    return Interval(reference, zero, zero)


def within_ulp(reference: Array, unit: Array, above: float, below: float) -> Interval:
    """The ULP rule.

    Args:
        reference: float64.
        unit: as `unit_in_last_place` gives it.
        above: units allowed away from zero.
        below: units allowed towards zero.
    """
    counted = np.isfinite(reference) & (reference != 0)
    unit = np.where(counted, unit, 0.0)
    wide = unit * above
    return Interval(reference, wide if below == above else unit * below, wide)


def within_absolute(
    dtype: DType, reference: Array, bound: Array, rule: Absolute
) -> Interval:
    """The absolute error rule: EXP, LOG, SIN, COS, TANH, SIGMOID."""
    if rule.bound_is_magnitude:
        magnitude, factor = np.abs(bound), np.full_like(bound, rule.base)
    else:
        magnitude, factor = np.abs(reference), bound + rule.base
    scaled = np.maximum(magnitude, SMALLEST_NORMAL[dtype]) * factor
    error = 2.0 ** (-FRACTION_BITS[dtype] / rule.divisor)
    error = error * np.maximum(scaled, rule.least)
    counted = np.isfinite(factor) | (magnitude != 0)
    error = np.maximum(np.where(counted, error, 0.0), rule.least_error)
    return Interval(reference, error, error)


def within_stated(reference: Array, bound: Array) -> Interval:
    """The rule of POW: the bound is the error."""
    return Interval(reference, bound, bound)


def within_product(dtype: DType, reference: Array, factors: int) -> Interval:
    """The rule of REDUCE_PRODUCT: half a unit for each factor, compounded."""
    half = 2.0 ** (-FRACTION_BITS[dtype] - 1)
    magnitude = np.maximum(np.abs(reference), SMALLEST_NORMAL[dtype])
    error = magnitude * math.expm1(factors * math.log1p(half))
    error = np.where(np.isinf(reference), 0.0, error)
    return Interval(reference, error, error)


def within_relative(
    dtype: DType, reference: Array, bound: Array, scale: float, ulp: float
) -> Interval:
    """The rule of RESIZE: a part of the largest input, or some of its units."""
    part = max(scale, ulp * 2.0 ** -FRACTION_BITS[dtype])
    error = np.broadcast_to(bound * part, reference.shape)
    return Interval(reference, error, error)


@dataclass(frozen=True, slots=True)
class DotErrors:
    """Errors of a dot product result in units of its bound.

    Attributes:
        errors: float64; 0 where the rule asks nothing of the size.
        admitted: which elements keep the bound.
    """

    errors: Array
    admitted: Array


def dot_errors(
    dtype: DType, reference: Array, bound: Array, actual: Array, limit: float
) -> DotErrors:
    """Element errors of the dot product rule, and which are at most `limit`."""
    half = 2.0 ** (-1 - FRACTION_BITS[dtype])
    # Halfway to the number that would follow the largest one.
    overflow = LARGEST[dtype] + unit_in_last_place(dtype, np.array(LARGEST[dtype])) / 2
    unit = np.maximum(bound * half, SMALLEST_NORMAL[dtype])
    errors = (actual - reference) / unit
    admitted = np.abs(errors) <= limit
    least, most = (bound.min(), bound.max()) if bound.size else (1.0, 1.0)
    plain = least > 0 and most * (1 + limit * half) < overflow
    if plain and not np.isnan(errors).any():
        return DotErrors(errors, admitted)
    free = np.isnan(bound) | (bound * (1 + limit * half) >= overflow)
    nothing = bound == 0
    admitted = np.where(nothing, (reference == 0) & (actual == 0), admitted)
    admitted = np.where(free, True, admitted)
    missing = np.isnan(reference)
    admitted = np.where(missing, np.isnan(actual), admitted)
    errors = np.where(free | nothing | missing, 0.0, errors)
    return DotErrors(errors, admitted)


def special_pattern(reference: Array, bound: Array, actual: Array) -> Array:
    """Which elements have the reference's NaN, infinity and sign; sizes are free.

    NaN is also allowed where the bound is NaN: additional products with zero, as of
    padding, may make one.
    """
    zero = (reference == 0) & (actual == 0)
    loose = np.isnan(actual) & (np.isnan(reference) | np.isnan(bound))
    same = (
        (np.isnan(reference) == np.isnan(actual))
        & (np.isfinite(reference) == np.isfinite(actual))
        & (np.signbit(reference) == np.signbit(actual))
    )
    return np.asarray(zero | loose | same)
