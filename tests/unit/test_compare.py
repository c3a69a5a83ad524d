"""Bit comparison of two backends' results."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tosavk.core.errors import InvalidArgument
from tosavk.differential.compare import bits_of, compare_bits, degenerate, ordered

Kind = np.dtype[Any]

FLOATS: tuple[Kind, ...] = tuple(
    np.dtype(kind)
    for kind in (
        np.float32,
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        np.float64,
    )
)
NARROW: tuple[Kind, ...] = tuple(kind for kind in FLOATS if kind.itemsize <= 2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_equal_arrays_are_equal(dtype: Kind) -> None:
    array = np.array([[0.0, 1.0, -2.0], [np.nan, -0.0, 0.5]]).astype(dtype)
    found = compare_bits(array, array.copy())
    assert found.equal
    assert found.elements == 6
    assert found.index is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_nan_equals_any_nan(dtype: Kind) -> None:
    left = np.array([np.nan, 1.0]).astype(dtype)
    right = np.array([-np.nan, 1.0]).astype(dtype)
    assert compare_bits(left, right).equal


def test_nan_payloads_do_not_matter() -> None:
    left = np.array([0x7FC00000, 0x7F800001], np.uint32).view(np.float32)
    right = np.array([0xFFC00001, 0x7FC00000], np.uint32).view(np.float32)
    assert compare_bits(left, right).equal


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_of_different_sign_differ(dtype: Kind) -> None:
    left = np.array([0.0, -0.0, 1.0]).astype(dtype)
    right = np.array([-0.0, -0.0, 1.0]).astype(dtype)
    found = compare_bits(left, right)
    assert (found.differing, found.zeros, found.distance) == (1, 1, 0)
    assert found.index == (0,)


def test_the_worst_element_is_named() -> None:
    left = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    right = left.copy()
    right[0, 1, 2] = np.nextafter(right[0, 1, 2], np.float32(100))
    right[1, 2, 0] *= 2
    found = compare_bits(left, right)
    assert found.differing == 2
    assert found.index == (1, 2, 0)
    assert (found.left, found.right) == (20.0, 40.0)
    assert (found.left_bits, found.right_bits) == ("0x41a00000", "0x42200000")
    assert found.distance == 1 << 23
    assert "[1, 2, 0]" in str(found)


def test_a_nan_on_one_side_is_worst() -> None:
    left = np.array([1.0, 1.0, 1.0], np.float32)
    right = np.array([1e30, np.nan, 1.0], np.float32)
    found = compare_bits(left, right)
    assert found.index == (1,)
    assert found.distance == -1
    assert "NaN" in str(found)


def test_integers_and_bools() -> None:
    found = compare_bits(np.array([-128, 5], np.int8), np.array([127, 5], np.int8))
    assert (found.differing, found.distance) == (1, 255)
    found = compare_bits(np.array([True, False]), np.array([True, True]))
    assert (found.index, found.distance, found.right_bits) == ((1,), 1, "0x01")
    far = compare_bits(
        np.array([-(1 << 63)], np.int64), np.array([(1 << 63) - 1], np.int64)
    )
    assert far.distance == (1 << 64) - 1


def test_a_bool_that_is_not_canonical_differs() -> None:
    two = np.array([2], np.uint8).view(np.bool_)
    assert not compare_bits(two, np.array([True])).equal


def test_rank_zero_and_empty_arrays() -> None:
    one = np.ones((), np.float32)
    assert compare_bits(one, one.copy()).equal
    found = compare_bits(np.array(1, np.int32), np.array(3, np.int32))
    assert (found.index, found.distance) == ((), 2)
    assert compare_bits(np.zeros((0, 3)), np.zeros((0, 3))).equal


def test_types_and_shapes_must_match() -> None:
    with pytest.raises(InvalidArgument, match="int32"):
        compare_bits(np.zeros(2, np.int32), np.zeros(2, np.float32))
    with pytest.raises(InvalidArgument, match=r"\(2,\)"):
        compare_bits(np.zeros(2), np.zeros(3))


@pytest.mark.parametrize("dtype", NARROW)
def test_order_counts_every_representable_value(dtype: Kind) -> None:
    size = dtype.itemsize
    patterns = np.arange(1 << (8 * size), dtype=np.dtype(f"u{size}")).view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = patterns.astype(np.float64)
    keep = ~np.isnan(values)
    order = np.argsort(values[keep], kind="stable")
    steps = np.diff(ordered(patterns[keep][order]))
    gaps = np.diff(values[keep][order])
    assert np.all(steps[gaps != 0] == 1)
    assert np.all(steps[gaps == 0] == 0)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_order_of_float64(a: float, b: float) -> None:
    left, right = ordered(np.array([a, b]))
    assert (left < right) == (a < b)
    assert (left == right) == (a == b)


@given(st.binary(min_size=8, max_size=64), st.binary(min_size=8, max_size=64))
def test_counts_what_numpy_counts(a: bytes, b: bytes) -> None:
    size = min(len(a), len(b)) // 4
    left = np.frombuffer(a, np.float32, size)
    right = np.frombuffer(b, np.float32, size)
    nan = np.isnan(left) & np.isnan(right)
    expected = np.count_nonzero((bits_of(left) != bits_of(right)) & ~nan)
    assert compare_bits(left, right).differing == expected


@pytest.mark.parametrize("dtype", FLOATS)
def test_degenerate(dtype: Kind) -> None:
    assert degenerate(np.full((3, 5), 2.0).astype(dtype))
    assert degenerate(np.array([np.nan, -np.nan]).astype(dtype))
    assert degenerate(np.array([0.0, -0.0]).astype(dtype))
    assert not degenerate(np.array([np.nan, 1.0]).astype(dtype))
    assert not degenerate(np.array([1.0, np.nan]).astype(dtype))
    assert not degenerate(np.array([1.0, 2.0]).astype(dtype))
    assert not degenerate(np.array([1.0]).astype(dtype))


def test_degenerate_integers_and_large_arrays() -> None:
    assert degenerate(np.zeros(7, np.int8))
    assert not degenerate(np.array([True, False]))
    large = np.zeros((1 << 20) + 3, np.int32)
    assert degenerate(large)
    large[-1] = 1
    assert not degenerate(large)
