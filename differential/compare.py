"""Compares two backends' results bit for bit, and finds results that say nothing.

Any NaN equals any NaN, since TOSA has no NaN payloads; the zeros are told apart, since
in strict mode every backend computes the same sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.core.errors import InvalidArgument
from tosavk.core.parts import parts

Array = NDArray[Any]

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class BitComparison:
    """How two arrays of one type and shape differ.

    Attributes:
        elements: how many there are.
        differing: how many differ.
        index: position of the worst one; None if none differs.
        left: first array's value there; 0 if none differs.
        right: second array's value there.
        left_bits: hexadecimal bits of `left`, "" if none differs.
        right_bits: hexadecimal bits of `right`.
        distance: representable values between the two there (integers: the
            difference); -1 where one of them is NaN.
        zeros: how many of the differing elements are zeros of different sign.
    """

    elements: int
    differing: int
    index: tuple[int, ...] | None
    left: float
    right: float
    left_bits: str
    right_bits: str
    distance: int
    zeros: int

    @property
    def equal(self) -> bool:
        """Whether all bits are equal."""
        return self.differing == 0

    def __str__(self) -> str:
        if self.equal:
            return f"{self.elements} elements are equal"
        where = "the distance" if self.distance >= 0 else "a NaN"
        amount = f" {self.distance}" if self.distance >= 0 else ""
        return (
            f"{self.differing} of {self.elements} elements differ; worst at "
            f"{list(self.index or ())}: {self.left!r} ({self.left_bits}) and "
            f"{self.right!r} ({self.right_bits}), {where}{amount}"
        )


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a NumPy type is a float, including those of ml_dtypes."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def bits_of(array: Array) -> Array:
    """The bit patterns of an array, as unsigned integers of the same shape."""
    whole = np.asarray(array, order="C")
    return whole.view(_UNSIGNED[whole.dtype.itemsize])


def same_bits(left: Array, right: Array) -> bool:
    """Whether two arrays have the same bits, NaNs included."""
    if left.shape != right.shape:
        return False
    a, b = bits_of(left).reshape(-1), bits_of(right).reshape(-1)
    return all(bool((a[part] == b[part]).all()) for part in parts(a.size))


def ordered(array: Array) -> Array:
    """Integers in the order of the values of a float array; both zeros are 0.

    Neighbouring floats are neighbouring integers, so that a difference counts units in
    the last place. Infinity follows the largest number.
    """
    width = 8 * array.dtype.itemsize
    bits = bits_of(array).astype(np.int64)
    if width == 64:
        return np.where(bits < 0, np.int64(-(1 << 63)) - bits, bits)
    sign = 1 << (width - 1)
    return np.where(bits & sign, -(bits & (sign - 1)), bits)


def distances(left: Array, right: Array) -> Array:
    """Representable values between elements, as float64: not exact where it is large.

    A NaN and a number are infinitely far apart, two NaNs not at all.
    """
    if is_float(left.dtype):
        with np.errstate(invalid="ignore"):
            one, other = np.isnan(left), np.isnan(right)
        apart = np.abs(ordered(left).astype(np.float64) - ordered(right))
        return np.where(one | other, np.where(one & other, 0.0, np.inf), apart)
    if left.dtype == np.bool_:
        left, right = left.view(np.uint8), right.view(np.uint8)
    return np.abs(left.astype(np.float64) - right.astype(np.float64))


def _distance(left: Array, right: Array) -> int:
    """The exact distance of two single elements, -1 with a NaN."""
    if not is_float(left.dtype):
        return abs(int(left[0]) - int(right[0]))
    if bool(np.isnan(left)[0]) or bool(np.isnan(right)[0]):
        return -1
    return abs(int(ordered(left)[0]) - int(ordered(right)[0]))


def compare_bits(left: Array, right: Array) -> BitComparison:
    """Compares two arrays bit for bit; any NaN equals any NaN.

    The worst element is one where only one side is NaN, or else the one farthest
    apart, or else, when only signs of zeros differ, the first.

    Raises:
        InvalidArgument: types or shapes differ.
    """
    if left.dtype != right.dtype or left.shape != right.shape:
        raise InvalidArgument(
            f"a {left.dtype} array of shape {left.shape} cannot be compared with a "
            f"{right.dtype} array of shape {right.shape}"
        )
    a, b = np.asarray(left, order="C"), np.asarray(right, order="C")
    a, b = a.reshape(-1), b.reshape(-1)
    differing = zeros = flat = 0
    farthest = -1.0
    for part in parts(a.size):
        places = _apart(a[part], b[part])
        if not places.size:
            continue
        places += part.start
        differing += places.size
        gaps = distances(a[places], b[places])
        zeros += int(np.count_nonzero(gaps == 0))
        at = int(np.argmax(gaps))
        if gaps[at] > farthest:
            farthest, flat = float(gaps[at]), int(places[at])
    if not differing:
        return BitComparison(a.size, 0, None, 0.0, 0.0, "", "", 0, 0)
    one, other = a[flat : flat + 1], b[flat : flat + 1]
    digits = 2 * a.dtype.itemsize
    return BitComparison(
        elements=a.size,
        differing=differing,
        index=tuple(int(i) for i in np.unravel_index(flat, left.shape)),
        left=float(one[0]),
        right=float(other[0]),
        left_bits=f"0x{int(bits_of(one)[0]):0{digits}x}",
        right_bits=f"0x{int(bits_of(other)[0]):0{digits}x}",
        distance=_distance(one, other),
        zeros=zeros if is_float(a.dtype) else 0,
    )


def _apart(left: Array, right: Array) -> NDArray[np.intp]:
    """Places whose bits differ and that are not NaN on both sides."""
    places = np.flatnonzero(bits_of(left) != bits_of(right))
    if is_float(left.dtype) and places.size:
        with np.errstate(invalid="ignore"):
            both = np.isnan(left[places]) & np.isnan(right[places])
        places = places[~both]
    return places


def degenerate(array: Array) -> bool:
    """Whether an array of several elements holds one value only, so that it proves little.

    All NaN counts as one value, and so do zeros of both signs.
    """
    if array.size < 2:
        return False
    flat = np.asarray(array, order="C").reshape(-1)
    first = flat[:1]
    if is_float(flat.dtype):
        with np.errstate(invalid="ignore"):
            if bool(np.isnan(first)[0]):
                return bool(np.isnan(flat).all())
    return all(bool((flat[part] == first).all()) for part in parts(flat.size))
