"""Fourier transforms and SCATTER on every GPU device.

Expected transforms are made by the same steps in NumPy's float32, bit for bit, and
judged by TOSA's rule as well; where values are not finite they follow from the
definition's sum of products.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.judging import complaints
from harness.running import Devices, same_values
from tosavk.backends.reference import evaluate
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Graph, Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

Array = NDArray[Any]
SIZES = [
    (1, 1, 1),
    (2, 1, 8),
    (3, 8, 1),
    (1, 2, 2),
    (2, 4, 16),
    (1, 32, 4),
    (1, 1, 512),
]
F32 = DType.FP32


def noise(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def forward(shape: tuple[int, int, int], *, inverse: bool = False) -> Graph:
    b = Builder()
    re, im = b.input("re", F32, shape), b.input("im", F32, shape)
    for tensor in b.op_list(
        Op.FFT2D, [re, im], names=("a", "b"), inverse=inverse, local_bound=True
    ):
        b.output(tensor)
    return load_graph(b.build())


def forward_real(shape: tuple[int, int, int]) -> Graph:
    b = Builder()
    re = b.input("re", F32, shape)
    for tensor in b.op_list(Op.RFFT2D, [re], names=("a", "b"), local_bound=True):
        b.output(tensor)
    return load_graph(b.build())


def stockham(re: Array, im: Array, axis: int, sign: float) -> tuple[Array, Array]:
    """One axis of the transform, each operation rounded to float32."""
    re, im = np.moveaxis(re, axis, -1), np.moveaxis(im, axis, -1)
    n = re.shape[-1]
    half, step = n // 2, 1
    j = np.arange(half, dtype=np.int64)
    while step < n:
        k = j % step
        angle = 2.0 * np.pi * (j - k) / max(n, 1)
        cosine = np.where(4 * (j - k) == n, 0.0, np.cos(angle)).astype(np.float32)
        sine = (sign * np.sin(angle)).astype(np.float32)
        low, high = (re[..., :half], im[..., :half]), (re[..., half:], im[..., half:])
        out_re, out_im = np.empty_like(re), np.empty_like(im)
        to = 2 * j - k
        out_re[..., to], out_im[..., to] = low[0] + high[0], low[1] + high[1]
        rest_re, rest_im = low[0] - high[0], low[1] - high[1]
        out_re[..., to + step] = rest_re * cosine - rest_im * sine
        out_im[..., to + step] = rest_re * sine + rest_im * cosine
        re, im, step = out_re, out_im, 2 * step
    return np.moveaxis(re, -1, axis), np.moveaxis(im, -1, axis)


def transformed(re: Array, im: Array, *, inverse: bool) -> tuple[Array, Array]:
    sign = 1.0 if inverse else -1.0
    re, im = stockham(re, im, 2, sign)
    return stockham(re, im, 1, sign)


@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_transforms_bit_for_bit(
    opened: Devices, gpu_device: str, shape: tuple[int, int, int], *, inverse: bool
) -> None:
    graph = forward(shape, inverse=inverse)
    feeds = {"re": noise(shape, 1), "im": noise(shape, 2)}
    found = opened.run(gpu_device, graph, feeds)
    want = transformed(feeds["re"], feeds["im"], inverse=inverse)
    for name, expected in zip("ab", want, strict=True):
        assert same_values(expected, found[name])
    assert not complaints(graph, {**feeds, **found})


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_real_transforms_bit_for_bit(
    opened: Devices, gpu_device: str, shape: tuple[int, int, int]
) -> None:
    _, height, width = shape
    re = noise(shape, 3)
    found = opened.run(gpu_device, forward_real(shape), {"re": re})
    real, imag = transformed(re, np.zeros_like(re), inverse=False)
    columns = width // 2 + 1
    imag = imag[..., :columns].copy()
    for y in {0, height // 2 if height > 1 else 0}:
        for x in {0, width // 2 if width > 1 else 0}:
            imag[:, y, x] = 0.0
    assert same_values(np.ascontiguousarray(real[..., :columns]), found["a"])
    assert same_values(imag, found["b"])
    assert not complaints(forward_real(shape), {"re": re, **found})


def test_an_impulse_has_exact_phases(opened: Devices, gpu_device: str) -> None:
    """The angle of a large product is reduced before it is rounded."""
    re = np.zeros((1, 1, 64), np.float32)
    re[0, 0, 63] = 1.0
    found = opened.run(gpu_device, forward(re.shape), {"re": re, "im": 0 * re})
    angle = 2.0 * np.pi * np.arange(64, dtype=np.float64) / 64
    np.testing.assert_allclose(found["a"][0, 0], np.cos(angle), atol=1e-7)
    np.testing.assert_allclose(found["b"][0, 0], np.sin(angle), atol=1e-7)


def test_a_real_impulse_is_exact(opened: Devices, gpu_device: str) -> None:
    re = np.array([[[0.0, 1.0, 0.0, 0.0]]], np.float32)
    found = opened.run(gpu_device, forward_real((1, 1, 4)), {"re": re})
    np.testing.assert_array_equal(found["a"], [[[1.0, 0.0, -1.0]]])
    np.testing.assert_array_equal(found["b"], [[[0.0, -1.0, 0.0]]])


@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
@pytest.mark.parametrize(
    "spoiled",
    [
        ((0, 0, 0, np.inf, 0.0),),
        ((0, 1, 3, np.inf, 1.0),),
        ((0, 3, 5, 0.5, -np.inf),),
        ((0, 2, 1, np.inf, np.inf), (0, 0, 4, -np.inf, 0.0)),
        ((0, 0, 1, np.nan, 0.0),),
    ],
    ids=["corner", "real", "imaginary", "several", "nan"],
)
def test_infinities_follow_the_definition(
    opened: Devices,
    gpu_device: str,
    spoiled: tuple[tuple[int, int, int, float, float], ...],
    *,
    inverse: bool,
) -> None:
    """Butterflies would make NaN of all of them; other images are not touched."""
    shape = (2, 4, 8)
    feeds = {"re": noise(shape, 4), "im": noise(shape, 5)}
    for image, y, x, re, im in spoiled:
        feeds["re"][image, y, x], feeds["im"][image, y, x] = re, im
    graph = forward(shape, inverse=inverse)
    found = opened.run(gpu_device, graph, feeds)
    want = evaluate(graph, feeds, precise=False)
    for name in "ab":
        assert same_values(want[name][:1], found[name][:1])
        assert np.isfinite(found[name][1]).all()
        np.testing.assert_allclose(found[name][1], want[name][1], atol=1e-5)


def test_real_infinities_follow_the_definition(
    opened: Devices, gpu_device: str
) -> None:
    feeds = {"re": noise((1, 4, 8), 6)}
    feeds["re"][0, 1, 2] = -np.inf
    graph = forward_real((1, 4, 8))
    found = opened.run(gpu_device, graph, feeds)
    want = evaluate(graph, feeds, precise=False)
    for name in "ab":
        assert same_values(want[name], found[name])
    assert (found["b"][0, ::2, ::4] == 0).all()


# --------------------------------------------------------------------- scatter


def scattering(
    dtype: DType, values: tuple[int, int, int], indices: Array
) -> tuple[Graph, Array, Array]:
    n, _, c = values
    b = Builder()
    source = (n, indices.shape[1], c)
    operands = (
        b.input("values", dtype, values),
        b.const(indices, DType.INT32),
        b.input("source", dtype, source),
    )
    b.output(b.scatter(*operands, name="y"))
    rng = np.random.default_rng(7)

    def made(shape: tuple[int, ...]) -> Array:
        raw = rng.integers(0, 256, (*shape, dtype.numpy.itemsize), np.uint8)
        return raw.view(dtype.numpy)[..., 0]

    return load_graph(b.build()), made(values), made(source)


@pytest.mark.parametrize(
    "dtype",
    [DType.INT8, DType.INT16, DType.INT32, F32, DType.BF16, DType.FP8E5M2],
    ids=lambda dtype: dtype.name,
)
@pytest.mark.parametrize("channels", [1, 3])
def test_scatter_moves_bits(
    opened: Devices, gpu_device: str, dtype: DType, channels: int
) -> None:
    """Rows that share words with others, of values that mean nothing as numbers."""
    rng = np.random.default_rng(8)
    indices = np.stack([rng.permutation(7)[:5] for _ in range(3)]).astype(np.int32)
    graph, values, source = scattering(dtype, (3, 7, channels), indices)
    found = opened.run(gpu_device, graph, {"values": values, "source": source})["y"]
    want = values.copy()
    for n, row in enumerate(indices):
        want[n, row] = source[n]
    assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("bad", [-1, 4, -(2**31), 2**31 - 1, 4 + 2**30])
def test_scatter_writes_nowhere_for_a_bad_index(
    opened: Devices, gpu_device: str, bad: int
) -> None:
    indices = np.array([[2, bad], [bad, 0]], np.int32)
    graph, values, source = scattering(DType.INT8, (2, 4, 3), indices)
    found = opened.run(gpu_device, graph, {"values": values, "source": source})["y"]
    want = values.copy()
    want[0, 2], want[1, 0] = source[0, 0], source[1, 1]
    np.testing.assert_array_equal(found, want)


def test_of_equal_indices_the_last_one_wins(opened: Devices, gpu_device: str) -> None:
    indices = np.array([[1, 1, 0, 1]], np.int32)
    graph, values, source = scattering(DType.INT16, (1, 4, 300), indices)
    found = opened.run(gpu_device, graph, {"values": values, "source": source})["y"]
    np.testing.assert_array_equal(found[0, 1], source[0, 3])
    np.testing.assert_array_equal(found[0, 0], source[0, 2])
    np.testing.assert_array_equal(found[0, 2:], values[0, 2:])


# ---------------------------------------------------------------------- conv3d


@pytest.mark.parametrize("infinite", [False, True], ids=["finite", "infinite"])
def test_conv3d_bit_for_bit(
    opened: Devices, gpu_device: str, *, infinite: bool
) -> None:
    """Taps in the order (kz, ky, kx, channel), padded ones skipped, the bias last."""
    x, w, bias = noise((2, 4, 5, 6, 3), 9), noise((5, 2, 3, 2, 3), 10), noise((5,), 11)
    if infinite:
        w[1, 0, 0, 0, 0], w[2, 1, 2, 1, 2] = np.inf, np.nan
    stride, dilation, pad = (1, 2, 1), (2, 1, 2), (1, 0, 2, 2, 1, 1)
    b = Builder()
    y = b.conv3d(
        b.input("x", F32, x.shape),
        b.const(w),
        b.const(bias),
        stride=stride,
        dilation=dilation,
        pad=pad,
        name="y",
    )
    b.output(y)
    graph = load_graph(b.build())
    found = opened.run(gpu_device, graph, {"x": x})["y"]
    sums = np.zeros(found.shape, np.float32)
    for place in np.ndindex(*sums.shape[1:4]):
        for tap in np.ndindex(*w.shape[1:4]):
            at = tuple(
                o * s + k * d - p
                for o, s, k, d, p in zip(
                    place, stride, tap, dilation, pad[::2], strict=True
                )
            )
            if all(0 <= a < n for a, n in zip(at, x.shape[1:4], strict=True)):
                for c in range(x.shape[4]):
                    products = (
                        x[(slice(None), *at, c)][:, None] * w[(slice(None), *tap, c)]
                    )
                    sums[(slice(None), *place)] += products
    assert same_values(sums + bias, found)
    if not infinite:
        assert not complaints(graph, {"x": x, "y": found})
