"""NVFP4's numbers: codes, scales, rounding, layouts."""

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tosavk.core import nvfp4
from tosavk.core.errors import InvalidArgument
from tosavk.core.nvfp4 import Nvfp4Warning, Weights

pytestmark = pytest.mark.nvfp4

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
CODES = np.arange(16, dtype=np.uint8)
SCALES = np.arange(256, dtype=np.uint8)


def codes_of(*values: float) -> list[int]:
    return [int(code) for code in nvfp4.encode_codes(np.array(values))]


def test_all_codes_agree_with_ml_dtypes() -> None:
    expected = CODES.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert nvfp4.CODE_VALUES.tobytes() == expected.tobytes()


def test_all_scales_agree_with_ml_dtypes() -> None:
    expected = SCALES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = SCALES & 127 != 127
    assert nvfp4.SCALE_VALUES[finite].tobytes() == expected[finite].tobytes()
    assert np.isnan(nvfp4.SCALE_VALUES[~finite]).all()


def test_codes_and_scales_survive_decoding_and_encoding() -> None:
    assert nvfp4.encode_codes(nvfp4.CODE_VALUES).tolist() == CODES.tolist()
    finite = SCALES[SCALES & 127 != 127]
    assert (nvfp4.encode_scales(nvfp4.decode_scales(finite)) == finite).all()


@given(st.lists(st.floats(-500, 500, width=32), min_size=1, max_size=30))
def test_encoding_is_nearest_with_ties_to_even(values: list[float]) -> None:
    array = np.array(values, np.float32)
    expected = array.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert nvfp4.encode_codes(array).tolist() == expected.tolist()
    inside = np.clip(array, -448, 448)
    expected = inside.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert nvfp4.encode_scales(inside).tolist() == expected.tolist()


def test_a_tie_is_seen_beyond_the_precision_of_fp32() -> None:
    above = np.nextafter(0.25, 1)
    assert codes_of(0.25, above, np.nextafter(0.25, 0)) == [0, 1, 0]


@pytest.mark.parametrize("encode", [nvfp4.encode_codes, nvfp4.encode_scales])
def test_nan_is_not_encoded(encode: Callable[[Floats], Codes]) -> None:
    with pytest.raises(InvalidArgument, match="NaN"):
        encode(np.array([1.0, np.nan]))


def test_packing_is_the_inverse_of_unpacking() -> None:
    packed = np.arange(256, dtype=np.uint8).reshape(4, 64)
    assert (nvfp4.pack_codes(nvfp4.unpack_codes(packed)) == packed).all()
    assert (nvfp4.split_halves(nvfp4.join_halves(packed)) == packed).all()
    assert not (nvfp4.join_halves(packed) == packed).all()


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (130, 5), (128, 4), (257, 9), (32, 3), (300, 12)]
)
def test_swizzling_is_undone(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    scales = rng.integers(0, 256, (rows, columns)).astype(np.uint8)
    mixed = nvfp4.swizzle(scales)
    assert (nvfp4.unswizzle(mixed, rows, columns) == scales).all()
    wide = nvfp4.swizzled_shape(rows, columns)[1]
    for r, c in [(0, 0), (rows - 1, columns - 1), (rows // 2, columns // 2)]:
        tile = r // 128 * (wide // 4) + c // 4
        at = 512 * tile + 16 * (r % 32) + 4 * (r % 128 // 32) + c % 4
        assert mixed[at] == scales[r, c]


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 37.5, 1e6, 1e30])
def test_the_error_of_quantising_is_bounded(size: float) -> None:
    rng = np.random.default_rng(5)
    values = (rng.standard_normal((33, 96)) * size).astype(np.float32)
    weights = nvfp4.quantize(values)
    back = nvfp4.dequantize(weights).astype(np.float64)
    largest = np.abs(values.reshape(33, -1, 16)).max(axis=2)
    step = np.repeat(largest, 16, axis=1)
    # A sixth of the block's largest for the widest gap, and the scale's own rounding.
    assert (np.abs(back - values) <= step * (1 / 6 + 1 / 16)).all()
    assert weights.amax == pytest.approx(float(np.abs(values).max()), rel=1e-6)


def test_scales_are_the_nearest_ones_to_exact_quotients() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 0] = 2688.0
    values[0, 16] = 1.0
    weights = nvfp4.quantize(values)
    assert weights.tensor_scale.tolist() == [1.0]
    nearest = nvfp4.encode_scales(np.array([448.0, 1 / 6]))
    assert weights.block_scales[0].tolist() == nearest.tolist()


def test_tiny_blocks_keep_the_least_scale() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 0], values[0, 16], values[0, 17] = 2688.0, 2.0**-9, -0.0
    weights = nvfp4.quantize(values)
    assert weights.block_scales[0].tolist() == [0x7E, 0x01]
    back = nvfp4.dequantize(weights)[0]
    assert back[16] == 2.0**-9
    assert np.signbit(back[17])


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e39])
def test_what_is_not_finite_is_refused(value: float) -> None:
    values = np.ones((2, 16))
    values[1, 3] = value
    with pytest.raises(InvalidArgument, match=r"element \(1, 3\)"):
        nvfp4.quantize(values)


@pytest.mark.parametrize(
    "shape", [(16,), (0, 16), (2, 0), (2, 15), (2, 24), (1, 2, 16)]
)
def test_shapes_are_checked(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument):
        nvfp4.quantize(np.zeros(shape))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_a_tensor_scale_is_positive(scale: float) -> None:
    with pytest.raises(InvalidArgument, match="tensor scale"):
        nvfp4.quantize(np.ones((1, 16)), tensor_scale=scale)


def test_weights_check_their_arrays() -> None:
    good = nvfp4.quantize(np.ones((3, 32)))
    packed, scales = good.packed, good.block_scales
    wrong: list[tuple[tuple[Any, Any, Any], str]] = [
        ((packed.astype(np.int32), scales, 1.0), "uint8"),
        ((packed[0], scales, 1.0), r"\[n, k / 2\]"),
        ((packed[:, :12], scales, 1.0), "k = 24"),
        ((packed, scales[:, :1], 1.0), r"\[3, 2\]"),
        ((packed, scales, [1.0, 2.0]), "each of 3 rows"),
        ((packed, scales, np.nan), "finite"),
        ((packed, scales.astype(np.float32), 1.0), "uint8"),
    ]
    for arguments, match in wrong:
        with pytest.raises(InvalidArgument, match=match):
            Weights(*arguments)
    taken = Weights(packed, scales.view(ml_dtypes.float8_e4m3fn), np.ones(1))
    assert taken.block_scales.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        taken.packed[0, 0] = 1


def test_joined_weights_keep_their_scales() -> None:
    one, two = nvfp4.quantize(np.ones((2, 16))), nvfp4.quantize(np.full((3, 16), 7.0))
    joined = Weights.concatenate([one, two])
    assert joined.tensor_scale.size == 5
    assert Weights.concatenate([one, one]).tensor_scale.size == 1
    expected = np.concatenate([nvfp4.dequantize(one), nvfp4.dequantize(two)])
    assert (nvfp4.dequantize(joined) == expected).all()
    with pytest.raises(InvalidArgument, match="one k"):
        Weights.concatenate([one, nvfp4.quantize(np.ones((2, 32)))])
    with pytest.raises(InvalidArgument):
        Weights.concatenate([])


@pytest.mark.parametrize("amax", [1e-3, 0.5, 3.0, 900.0])
def test_plausible_weights_give_no_warning(amax: float) -> None:
    weights = nvfp4.quantize(np.full((2, 16), amax))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Nvfp4Warning)
        nvfp4.warn_if_inverted(weights, convention="multiplies", other="divided")
