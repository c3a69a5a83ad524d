"""Values of the reference backend: how tensors are held between operators.

Two modes. *Precise* carries every float as binary64 and never rounds: the oracle that
TOSA's error bounds are taken from. *Native* rounds every operator's result once, to
nearest even, to its own type. Integers are exact in both.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType

Array = NDArray[Any]


FRACTION_BITS = {
    DType.FP32: 23,
    DType.FP16: 10,
    DType.BF16: 7,
    DType.FP8E4M3: 3,
    DType.FP8E5M2: 2,
}
"""Bits after the binary point of a normal number: TOSA's normal_frac."""

SMALLEST_NORMAL = {
    DType.FP32: 2.0**-126,
    DType.FP16: 2.0**-14,
    DType.BF16: 2.0**-126,
    DType.FP8E4M3: 2.0**-6,
    DType.FP8E5M2: 2.0**-14,
}
"""TOSA's normal_min."""

LARGEST = {
    DType.FP32: float(np.finfo(np.float32).max),
    DType.FP16: 65504.0,
    DType.BF16: (2.0 - 2.0**-7) * 2.0**127,
    DType.FP8E4M3: 448.0,
    DType.FP8E5M2: 57344.0,
}
"""TOSA's normal_max."""


class Precision(enum.Enum):
    """How float results are held."""

    PRECISE = "precise"
    NATIVE = "native"


def integer_range(dtype: DType, *, unsigned: bool = False) -> tuple[int, int]:
    """Smallest and largest value of an integer type; INT4 is -8..7 in storage."""
    bits = 48 if dtype is DType.INT48 else dtype.bits
    if unsigned:
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def round_float(dtype: DType, values: Array) -> Array:
    """Rounds binary64 values once, to nearest even, to a float type.

    Overflow gives infinity, or NaN in FP8E4M3, which has none. Subnormals are kept.

    Returns:
        An array of `dtype.numpy`, the same shape.
    """
    wide = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        if dtype in (DType.FP32, DType.FP16):
            return wide.astype(dtype.numpy)
        # Twice rounded is not once rounded: go through FP32 rounded to odd, whose 24
        # bits are enough to round any narrower type correctly afterwards.
        near = wide.astype(np.float32)
        bits = near.view(np.uint32)
        beyond = np.abs(near.astype(np.float64)) > np.abs(wide)
        inexact = (near.astype(np.float64) != wide) & ~np.isnan(wide)
        odd = (bits - (beyond & inexact)) | inexact
        rounded: Array = odd.astype(np.uint32).view(np.float32).astype(dtype.numpy)
        return rounded


def widen(dtype: DType, stored: Array) -> Array:
    """A stored tensor as operators compute on it.

    Floats become float64, integers int64, BOOL stays Boolean with any nonzero byte true.
    """
    if dtype.is_float:
        # The product makes signalling NaNs quiet; fmax and fmin would return them.
        with np.errstate(invalid="ignore"):
            wide = np.array(stored, np.float64)
            return np.multiply(wide, 1.0, out=wide)
    if dtype is DType.BOOL:
        return canonical_bool(stored)
    return np.asarray(stored, np.int64)


def canonical_bool(stored: Array) -> Array:
    """BOOL storage with every nonzero byte as one and the same true."""
    value = np.asarray(stored)
    if value.dtype == np.bool_:
        value = value.view(np.uint8)
    return np.asarray(value != 0)


def store(dtype: DType, result: Array, precision: Precision) -> Array:
    """An operator's result as it is held; integers wrap to their width."""
    if dtype.is_float:
        if precision is Precision.PRECISE:
            return np.asarray(result, np.float64)
        return round_float(dtype, result)
    if dtype is DType.INT48:
        wide = np.asarray(result, np.int64)
        return np.asarray((wide << np.int64(16)) >> np.int64(16))
    return np.asarray(result).astype(dtype.numpy)
