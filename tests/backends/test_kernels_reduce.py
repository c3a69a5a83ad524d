"""The kernels that fold and interpolate: reduce and resize, on every GPU device.

Expected floats are made by the same steps in NumPy's float32, so they are equal bit for
bit.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import kernels as harness
from tosavk.core.device import ContextKit
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import NanMode, Op, ResizeMode

Array = NDArray[np.generic]
F32 = NDArray[np.float32]
RNG = np.random.default_rng(977)
FLOATS = (DType.FP32, DType.FP16, DType.BF16)
SHAPES = ((5, 7, 3), (1, 11, 1), (3, 1, 5), (13, 2, 1))
FAR = 1.0e30
EDGES = {
    DType.FP32: (0.0, -0.0, FAR, -FAR, np.inf, -np.inf),
    DType.FP16: (0.0, -0.0, 65504.0, -65504.0, np.inf, -np.inf),
    DType.BF16: (0.0, -0.0, FAR, -FAR, np.inf, -np.inf),
}


@pytest.fixture(scope="module")
def kit(gpu_device: str) -> Iterator[ContextKit]:
    with harness.open_kit(gpu_device) as opened:
        yield opened


def floats(dtype: DType, shape: tuple[int, ...], *, edges: float = 0.0) -> Array:
    """Random values of some magnitudes, a part of them edge values."""
    values = RNG.normal(size=shape) * 2.0 ** RNG.integers(-4, 5, shape)
    chosen = RNG.random(shape) < edges
    if edges:
        values[chosen] = RNG.choice(EDGES[dtype], shape)[chosen]
    return values.astype(dtype.numpy)


def run_reduce(
    kit: ContextKit,
    op: Op,
    dtype: DType,
    x: Array,
    *,
    mode: int = 0,
    y_dtype: DType | None = None,
) -> Array:
    """Reduces the middle of (outer, axis, inner)."""
    outer, axis, inner = x.shape
    target = y_dtype or dtype
    count = outer * inner
    before = harness.noise(count * target.bits // 8, 5)
    result = harness.run_kernel(
        kit,
        "reduce",
        spec={"OP": op, "TYPE": dtype, "Y_TYPE": target, "MODE": mode},
        params={
            "count": count,
            "axis": axis,
            "inner": inner,
            "first": 0,
            "last": axis,
        },
        inputs=[x],
        before=before,
        columns=harness.destination_words(target, count),
    )
    return result.view(target.numpy).reshape(outer, inner)


def same_bits(result: Array, expected: Array) -> None:
    assert result.dtype == expected.dtype
    got, want = harness.bytes_of(result), harness.bytes_of(expected)
    assert np.array_equal(got, want), (result, expected)


def canonical(dtype: DType, array: Array) -> Array:
    """A result in the tensor's type, every NaN the canonical one."""
    narrow = array.astype(dtype.numpy)
    nan = np.array(0x7FC00000, np.uint32).view(np.float32).astype(dtype.numpy)
    return np.where(np.isnan(array), nan, narrow)


@pytest.mark.parametrize("op", [Op.REDUCE_SUM, Op.REDUCE_PRODUCT], ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("edges", [0.0, 0.3])
def test_float_totals(kit: ContextKit, op: Op, dtype: DType, edges: float) -> None:
    for shape in SHAPES:
        x = floats(dtype, shape, edges=edges)
        total: F32 = np.full(
            (shape[0], shape[2]), 0.0 if op is Op.REDUCE_SUM else 1.0, np.float32
        )
        with np.errstate(all="ignore"):
            for k in range(shape[1]):
                step = x[:, k].astype(np.float32)
                total = total + step if op is Op.REDUCE_SUM else total * step
            want = canonical(dtype, total)
        same_bits(run_reduce(kit, op, dtype, x), want)


def test_the_sum_of_negative_zeros_is_positive_zero(kit: ContextKit) -> None:
    x = np.full((3, 5, 2), -0.0, np.float32)
    same_bits(
        run_reduce(kit, Op.REDUCE_SUM, DType.FP32, x), np.zeros((3, 2), np.float32)
    )


def test_integer_sum_wraps(kit: ContextKit) -> None:
    x = RNG.integers(-(2**31), 2**31, (5, 7, 3)).astype(np.int32)
    want = x.sum(axis=1, dtype=np.int64).astype(np.int32)
    same_bits(run_reduce(kit, Op.REDUCE_SUM, DType.INT32, x), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("mode", NanMode, ids=lambda m: m.name)
def test_float_extremes(kit: ContextKit, dtype: DType, mode: NanMode) -> None:
    for shape in SHAPES:
        x = floats(dtype, shape, edges=0.2)
        x[RNG.random(shape) < 0.15] = np.nan
        if shape[2] > 1:
            x[0, :, 0] = np.nan
        wide = x.astype(np.float32)
        nan = np.isnan(wide)
        for op, start in ((Op.REDUCE_MAX, -np.inf), (Op.REDUCE_MIN, np.inf)):
            result = run_reduce(kit, op, dtype, x, mode=mode).astype(np.float32)
            pick = np.max if op is Op.REDUCE_MAX else np.min
            want = pick(np.where(nan, start, wide), axis=1)
            # Passed-over NaNs leave NaN only where there is no number at all.
            lost = nan.any(axis=1) if mode is NanMode.PROPAGATE else nan.all(axis=1)
            want = np.where(lost, np.nan, want)
            # Both zeros are equal; which of them comes out is another test.
            assert np.array_equal(result, want, equal_nan=True), (x, result, want)


def test_extremes_keep_subnormals_and_order_them(kit: ContextKit) -> None:
    bits = np.array([0x80000003, 0x80000001, 0x00000002, 0x00000007], np.uint32)
    x = bits.view(np.float32).reshape(1, 4, 1)
    high = run_reduce(kit, Op.REDUCE_MAX, DType.FP32, x, mode=1)
    low = run_reduce(kit, Op.REDUCE_MIN, DType.FP32, x, mode=1)
    assert high.view(np.uint32)[0, 0] == 0x00000007
    assert low.view(np.uint32)[0, 0] == 0x80000003


def test_extremes_of_zeros(kit: ContextKit) -> None:
    x = np.array([0.0, -0.0, -0.0, 0.0], np.float32).reshape(2, 2, 1)
    high = run_reduce(kit, Op.REDUCE_MAX, DType.FP32, x, mode=1)
    low = run_reduce(kit, Op.REDUCE_MIN, DType.FP32, x, mode=1)
    same_bits(high, np.array([[0.0], [-0.0]], np.float32))
    same_bits(low, np.array([[-0.0], [0.0]], np.float32))


@pytest.mark.parametrize(
    "dtype", [DType.INT8, DType.INT16, DType.INT32], ids=lambda d: d.name
)
def test_integer_extremes(kit: ContextKit, dtype: DType) -> None:
    low = -(2 ** (dtype.bits - 1))
    for shape in SHAPES:
        x = RNG.integers(low, -low, shape).astype(dtype.numpy)
        same_bits(run_reduce(kit, Op.REDUCE_MAX, dtype, x), x.max(axis=1))
        same_bits(run_reduce(kit, Op.REDUCE_MIN, dtype, x), x.min(axis=1))


def test_truth(kit: ContextKit) -> None:
    for shape in (*SHAPES, (7, 3, 5)):
        x = RNG.integers(0, 256, shape, np.uint8)
        x[RNG.random(shape) < 0.3] = 0
        every = run_reduce(kit, Op.REDUCE_ALL, DType.BOOL, x)
        some = run_reduce(kit, Op.REDUCE_ANY, DType.BOOL, x)
        same_bits(every.view(np.uint8), (x != 0).all(axis=1).astype(np.uint8))
        same_bits(some.view(np.uint8), (x != 0).any(axis=1).astype(np.uint8))


@pytest.mark.parametrize(
    "dtype",
    [DType.INT8, DType.INT16, *FLOATS, DType.FP8E4M3, DType.FP8E5M2],
    ids=lambda d: d.name,
)
def test_argmax_takes_the_first_of_equals(kit: ContextKit, dtype: DType) -> None:
    for shape in SHAPES:
        x = RNG.integers(-3, 4, shape).astype(np.float32).astype(dtype.numpy)
        mode = NanMode.PROPAGATE if dtype.is_float else 0
        result = run_reduce(kit, Op.ARGMAX, dtype, x, mode=mode, y_dtype=DType.INT32)
        want = np.argmax(x.astype(np.float32), axis=1).astype(np.int32)
        same_bits(result, want)


def test_argmax_of_nans(kit: ContextKit) -> None:
    n, f = np.nan, -np.inf
    rows = [[1, n, 2, n], [n, n, n, n], [n, f, n, f], [f, f, 3, n], [f, f, f, f]]
    x = np.array(rows, np.float32).reshape(5, 4, 1)
    first = run_reduce(kit, Op.ARGMAX, DType.FP32, x, mode=1, y_dtype=DType.INT32)
    assert first.ravel().tolist() == [1, 0, 0, 3, 0]
    passed = run_reduce(kit, Op.ARGMAX, DType.FP32, x, mode=2, y_dtype=DType.INT32)
    assert passed.ravel().tolist() == [2, 0, 1, 2, 0]


# resize: scale (y_n, y_d, x_n, x_d), offset (y, x), border (y, x) as TOSA has them.
GEOMETRIES = (
    ((4, 2, 4, 2), (-1, -1), (1, 1)),
    ((5, 3, 2, 7), (0, 3), (2, 0)),
    ((1, 1, 1, 1), (0, 0), (0, 0)),
    ((3, 1, 8, 6), (2, -5), (-1, 5)),
    ((16, 1, 1, 2), (-15, 0), (15, 0)),
)


def run_resize(
    kit: ContextKit,
    mode: ResizeMode,
    dtypes: tuple[DType, DType],
    x: Array,
    geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> tuple[Array, tuple[int, int]]:
    scale, offset, border = geometry
    n, ih, iw, c = x.shape
    oh = ((ih - 1) * scale[0] - offset[0] + border[0]) // scale[1] + 1
    ow = ((iw - 1) * scale[2] - offset[1] + border[1]) // scale[3] + 1
    count = n * oh * ow * c
    target = dtypes[1]
    result = harness.run_kernel(
        kit,
        "resize",
        spec={"MODE": mode, "TYPE": dtypes[0], "Y_TYPE": target},
        params={
            "count": count,
            "ih": ih,
            "iw": iw,
            "c": c,
            "oh": oh,
            "ow": ow,
            "scale_y_n": scale[0],
            "scale_y_d": scale[1],
            "scale_x_n": scale[2],
            "scale_x_d": scale[3],
            "offset_y": offset[0],
            "offset_x": offset[1],
        },
        inputs=[x],
        before=harness.noise(count * target.bits // 8, 9),
        columns=harness.destination_words(target, count),
    )
    return result.view(target.numpy).reshape(n, oh, ow, c), (oh, ow)


def position(o: int, n: int, d: int, offset: int, size: int) -> tuple[int, int, int]:
    whole, beyond = divmod(o * d + offset, n)
    return min(max(whole, 0), size - 1), min(max(whole + 1, 0), size - 1), beyond


@pytest.mark.parametrize(
    "dtype", [DType.INT8, DType.INT16, *FLOATS], ids=lambda d: d.name
)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_resize_nearest(
    kit: ContextKit,
    dtype: DType,
    geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    x = np.frombuffer(
        harness.noise(2 * 3 * 5 * 3 * dtype.bits // 8, 3).tobytes(), dtype.numpy
    ).reshape(2, 3, 5, 3)
    result, (oh, ow) = run_resize(kit, ResizeMode.NEAREST, (dtype, dtype), x, geometry)
    scale, offset, _ = geometry
    want = np.empty_like(result)
    for oy in range(oh):
        y0, y1, dy = position(oy, scale[0], scale[1], offset[0], 3)
        for ox in range(ow):
            x0, x1, dx = position(ox, scale[2], scale[3], offset[1], 5)
            row = y1 if 2 * dy >= scale[0] else y0
            column = x1 if 2 * dx >= scale[2] else x0
            want[:, oy, ox] = x[:, row, column]
    same_bits(result, want)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_resize_bilinear_of_floats(
    kit: ContextKit,
    dtype: DType,
    geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    x = floats(dtype, (2, 3, 5, 3))
    x[0, 0, 0, 0] = np.inf
    result, (oh, ow) = run_resize(kit, ResizeMode.BILINEAR, (dtype, dtype), x, geometry)
    scale, offset, _ = geometry
    wide = x.astype(np.float32)
    one = np.float32(1)
    want = np.empty(result.shape, np.float32)
    with np.errstate(all="ignore"):
        for oy in range(oh):
            y0, y1, part = position(oy, scale[0], scale[1], offset[0], 3)
            dy = np.float32(part) / np.float32(scale[0])
            for ox in range(ow):
                x0, x1, part = position(ox, scale[2], scale[3], offset[1], 5)
                dx = np.float32(part) / np.float32(scale[2])
                total = wide[:, y0, x0] * (one - dy) * (one - dx)
                total = total + wide[:, y0, x1] * (one - dy) * dx
                total = total + wide[:, y1, x0] * dy * (one - dx)
                want[:, oy, ox] = total + wide[:, y1, x1] * dy * dx
        expected = canonical(dtype, want)
    same_bits(result, expected)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_resize_bilinear_of_integers(
    kit: ContextKit,
    geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    x = RNG.integers(-128, 128, (2, 3, 5, 3)).astype(np.int8)
    result, (oh, ow) = run_resize(
        kit, ResizeMode.BILINEAR, (DType.INT8, DType.INT32), x, geometry
    )
    scale, offset, _ = geometry
    wide = x.astype(np.int64)
    want = np.empty(result.shape, np.int64)
    for oy in range(oh):
        y0, y1, dy = position(oy, scale[0], scale[1], offset[0], 3)
        for ox in range(ow):
            x0, x1, dx = position(ox, scale[2], scale[3], offset[1], 5)
            want[:, oy, ox] = (
                wide[:, y0, x0] * (scale[0] - dy) * (scale[2] - dx)
                + wide[:, y0, x1] * (scale[0] - dy) * dx
                + wide[:, y1, x0] * dy * (scale[2] - dx)
                + wide[:, y1, x1] * dy * dx
            )
    same_bits(result, want.astype(np.int32))
