"""Faults with 4-bit weights that users of such systems reported, with right answers."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tosavk import nvfp4
from tosavk.core.errors import InvalidArgument
from tosavk.nvfp4 import Nvfp4Warning, Weights

pytestmark = pytest.mark.nvfp4

ONE = 0x2
"""The code of 1.0."""


def ones(n: int, k: int, *, scale: int = 0x38, tensor: float = 1.0) -> Weights:
    packed = np.full((n, k // 2), ONE | ONE << 4, np.uint8)
    return Weights(
        packed, np.full((n, k // 16), scale, np.uint8), np.array(tensor, np.float32)
    )


def values_of(packed: int) -> list[float]:
    codes = nvfp4.unpack_codes(np.array([packed], np.uint8))
    return [float(v) for v in nvfp4.dequantize(one_block(codes.tolist()))[0, :2]]


def one_block(codes: list[int], *, scale: int = 0x38, tensor: float = 1.0) -> Weights:
    filled = np.array(codes + [0] * (16 - len(codes)), np.uint8)[None]
    scales = np.array([[scale]], np.uint8)
    return Weights(nvfp4.pack_codes(filled), scales, np.array(tensor, np.float32))


def product(x: NDArray[Any], weights: Weights, device: str) -> NDArray[np.float32]:
    return nvfp4.matmul(x, weights, backend=device)


def test_nibble_order_d1() -> None:
    assert values_of(0x21) == [0.5, 1.0]
    assert values_of(0x9F) == [-6, -0.5]
    table = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(float)
    for byte in range(256):
        assert values_of(byte) == [table[byte & 15], table[byte >> 4]]


def test_import_layouts_d2() -> None:
    codes = np.arange(16, dtype=np.uint8)[None]
    scales = np.array([[0x38]], np.uint8)
    pairs = bytes.fromhex("1032547698badcfe")
    halves = bytes.fromhex("8091a2b3c4d5e6f7")
    for data, nibbles in ((pairs, "pairs"), (halves, "halves")):
        packed = np.frombuffer(data, np.uint8)[None]
        taken = nvfp4.from_arrays(
            packed, scales, 1.0, convention="multiply", nibbles=nibbles
        )
        assert (nvfp4.unpack_codes(taken.packed) == codes).all()


def test_scale_overflow_d4_d22() -> None:
    raw = np.array([448, 464, 464.0001, 465, 480, 1e6, np.inf])
    assert nvfp4.encode_scales(raw).tolist() == [0x7E] * 7
    with pytest.raises(InvalidArgument):
        nvfp4.encode_scales(np.array([np.nan]))
    for size in (448, 464, 465, 480, 1e6):
        matrix = np.full((1, 16), 6.0 * size)
        if size > 448:
            with pytest.warns(Nvfp4Warning, match="clipped"):
                weights = nvfp4.quantize(matrix, tensor_scale=1.0)
        else:
            weights = nvfp4.quantize(matrix, tensor_scale=1.0)
        assert weights.block_scales.tolist() == [[0x7E]]


def test_a_nan_scale_d4(gpu_device: str) -> None:
    scales = np.full((5, 2), 0x38, np.uint8)
    scales[3, 1] = 0x7F
    packed = np.full((5, 16), 0x22, np.uint8)
    with pytest.raises(InvalidArgument, match="row 3, block 1"):
        Weights(packed, scales, np.array(1, np.float32))
    weights = Weights(packed, scales, np.array(1, np.float32), allow_nan=True)
    y = product(np.ones((2, 32), np.float32), weights, gpu_device)
    assert np.isnan(y[:, 3]).all()
    assert (np.delete(y, 3, axis=1) == 32).all()


def test_scale_decoding_d5() -> None:
    codes = np.array([0x00, 0x01, 0x07, 0x08, 0x38, 0x7E, 0x7F, 0x80, 0xFF], np.uint8)
    values = nvfp4.decode_scales(codes)
    expected = [0, 2**-9, 0.013671875, 0.015625, 1, 448, np.nan, -0.0, np.nan]
    np.testing.assert_array_equal(values, np.array(expected, np.float32))
    assert np.signbit(values[7])


def test_zero_blocks_d7(device: str) -> None:
    zeros = nvfp4.quantize(np.zeros((32, 32)))
    assert zeros.tensor_scale.tolist() == [1.0]
    matrix = np.ones((32, 32))
    matrix[4, 16:] = 0
    matrix[9] = 0
    x = np.ones((1, 32), np.float32)
    y = product(x, Weights.concatenate([zeros, nvfp4.quantize(matrix)]), device)[0]
    assert (y[:32] == 0).all()
    assert y[32 + 9] == 0
    assert y[32 + 4] == pytest.approx(16, rel=1e-6)


def test_clipping_without_a_tensor_scale_d9() -> None:
    exact = nvfp4.quantize(np.full((1, 16), 2688.0), tensor_scale=1.0)
    assert exact.amax == 2688
    for amax in (2689.0, 10000.0):
        matrix = np.full((1, 16), amax)
        with pytest.warns(Nvfp4Warning, match="clipped"):
            assert nvfp4.quantize(matrix, tensor_scale=1.0).amax == 2688
        automatic = nvfp4.quantize(matrix)
        step = float(np.spacing(automatic.tensor_scale[0])) * 2688
        assert abs(float(nvfp4.dequantize(automatic)[0, 0]) - amax) <= step


def test_tensor_scale_conventions_d10() -> None:
    packed, scales = np.full((1, 8), 0x22, np.uint8), np.full((1, 1), 0x7E, np.uint8)
    multiplied = nvfp4.from_arrays(packed, scales, 0.0011160715, convention="multiply")
    divided = nvfp4.from_arrays(packed, scales, 896.0, convention="divide")
    for weights in (multiplied, divided):
        assert nvfp4.dequantize(weights)[0, 0] == pytest.approx(0.5, rel=1e-6)
    with pytest.warns(Nvfp4Warning, match="inverted"):
        wrong = nvfp4.from_arrays(packed, scales, 896.0, convention="multiply")
    assert nvfp4.dequantize(wrong)[0, 0] == 401408
    with pytest.warns(Nvfp4Warning, match="inverted"):
        nvfp4.from_arrays(packed, scales, 0.0011160715, convention="divide")


def test_fused_projections_d12(device: str) -> None:
    parts = [ones(16, 16, scale=0x7E, tensor=t) for t in (3.85e-5, 4.83e-5)]
    y = nvfp4.matmul(np.ones(16, np.float32), parts, backend=device)
    assert y[:16] == pytest.approx(0.27596800, rel=1e-6)
    assert y[16:] == pytest.approx(0.34621440, rel=1e-6)


def test_swizzle_offsets_d13() -> None:
    scales = np.arange(650).reshape(130, 5)
    mixed = nvfp4.swizzle(scales)
    assert mixed.size == 2048
    places = {(0, 3): 3, (0, 4): 512, (1, 0): 16, (32, 0): 4, (127, 3): 511}
    for (r, c), offset in {**places, (128, 0): 1024}.items():
        assert mixed[offset] == scales[r, c]
    assert (nvfp4.unswizzle(mixed, 130, 5) == scales).all()


def test_scale_layout_is_said_d16(device: str) -> None:
    scales = np.where(np.arange(128) % 2, 0x40, 0x38).astype(np.uint8)
    linear = np.repeat(scales[:, None], 4, axis=1)
    packed = np.full((128, 32), 0x22, np.uint8)
    with pytest.raises(InvalidArgument, match="linear or swizzled"):
        nvfp4.from_arrays(packed, linear, 1.0, convention="multiply")
    one = nvfp4.from_arrays(
        packed, linear, 1.0, convention="multiply", scale_layout="linear"
    )
    two = nvfp4.from_arrays(
        packed,
        nvfp4.swizzle(linear),
        1.0,
        convention="multiply",
        scale_layout="swizzled",
    )
    x = np.ones((1, 64), np.float32)
    expected = np.where(np.arange(128) % 2, 128, 64)
    for weights in (one, two):
        assert (product(x, weights, device)[0] == expected).all()


def test_depths_d17(device: str) -> None:
    with pytest.raises(InvalidArgument, match="k = 24 is no multiple of 16"):
        ones(1, 24)
    with pytest.raises(InvalidArgument, match="k = 232"):
        nvfp4.quantize(np.ones((1, 232)))
    for k in (16, 48, 240, 272, 1040):
        assert product(np.ones((1, k), np.float32), ones(1, k), device) == k


def test_code_ties_d19() -> None:
    values = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, -0.25, -2.5, -5])
    codes = nvfp4.encode_codes(values)
    assert codes.tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 12, 14]


def test_quantising_divides_d20() -> None:
    matrix = np.zeros((1, 32))
    matrix[0, 0] = 0.02392577938735485
    matrix[0, 1] = 0.013671875 * 6
    weights = nvfp4.quantize(matrix, tensor_scale=1.0)
    assert weights.block_scales[0, 0] == 0x07
    assert nvfp4.unpack_codes(weights.packed)[0, 0] == 3  # 1.5


def test_negative_zero_and_subnormals_d23(device: str) -> None:
    values = np.array([-0.0, 2.0**-9, -7 * 2.0**-9])
    assert nvfp4.encode_scales(values).tolist() == [0x80, 0x01, 0x87]
    weights = one_block([0x8])
    assert nvfp4.unpack_codes(weights.packed)[0, 0] == 0x8
    y = product(np.ones((1, 16), np.float32), weights, device)
    assert y == 0
    again = nvfp4.quantize(np.array([[-0.0] + [1.0] * 15]))
    assert nvfp4.unpack_codes(again.packed)[0, 0] == 0x8


def test_small_scales_d25(device: str) -> None:
    x = np.zeros((1, 16), np.float32)
    x[0, 0] = 1
    tiny = one_block([0x1], scale=0x01, tensor=1e-30)
    exact = 0.5 * 2.0**-9 * float(np.float32(1e-30))
    assert nvfp4.dequantize(tiny)[0, 0] == pytest.approx(exact, rel=1e-6)
    assert product(x, tiny, device)[0, 0] == pytest.approx(exact, rel=1e-6)
    small = one_block([0x1], scale=0x01, tensor=1e-6)
    expected = pytest.approx(9.765625e-4, rel=1e-6)
    assert product(x * np.float32(1e6), small, device)[0, 0] == expected


def test_neighbours_of_a_nibble_d27(device: str) -> None:
    for word in (0x88888888, 0xF0F0F0F0, 0x12345678, 0xFFFFFFFF, 0x7F80017F):
        codes = [word >> 4 * j & 15 for j in range(8)]
        weights = one_block(codes * 2)
        table = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
        # One row a column: x picks each element alone.
        x = np.eye(16, dtype=np.float32)
        y = product(x, weights, device)[:, 0]
        assert y.tolist() == table[codes * 2].astype(np.float32).tolist()


def test_import_metadata_d28() -> None:
    packed = np.full((130, 40), 0x22, np.uint8)
    linear = np.full((130, 5), 0x38, np.uint8)
    for scales in (
        nvfp4.swizzle(linear),
        linear,
        linear.view(ml_dtypes.float8_e4m3fn),
    ):
        weights = nvfp4.from_arrays(packed, scales, 1.0, convention="multiply")
        assert (nvfp4.dequantize(weights) == 1).all()
    with pytest.raises(InvalidArgument, match=r"linear is \[130, 5\], swizzled is 256"):
        nvfp4.from_arrays(packed, linear[:100], 1.0, convention="multiply")
    with pytest.raises(InvalidArgument, match="uint8"):
        nvfp4.from_arrays(packed, linear.astype(np.float32), 1.0, convention="multiply")


def test_the_name_of_the_kernel_is_told(device: str, tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    nvfp4.save_safetensors(file, {"l": ones(3, 16)})
    with nvfp4.load(
        nvfp4.load_safetensors(file, "l"), tokens=1, backend=device
    ) as layer:
        assert layer.kernel in str(layer.choice)
        assert layer.kernel in repr(layer)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, "x", None])
def test_a_count_of_tokens_that_is_none(tokens: Any) -> None:  # noqa: ANN401 - wrong
    weights = nvfp4.quantize(np.ones((16, 32), np.float32))
    with pytest.raises(InvalidArgument, match="tokens is"):
        nvfp4.load(weights, tokens=tokens, backend="reference")


@pytest.mark.parametrize("shape", [(16, 2), (32,), (5,), (1, 16), ()])
def test_a_residual_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    weights = nvfp4.quantize(np.ones((16, 32), np.float32))
    x = np.ones((2, 32), np.float32)
    with pytest.raises(InvalidArgument, match=r"the residual is \(2, 16\)"):
        nvfp4.matmul(
            x, weights, backend="reference", residual=np.ones(shape, np.float32)
        )
    one = nvfp4.matmul(
        x[0], weights, backend="reference", residual=np.ones(16, np.float32)
    )
    assert one.shape == (16,)
