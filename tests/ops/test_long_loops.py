"""Reductions longer than the loops that every driver runs (docs/known-issues.md).

They are dealt out to several dispatches. What decides the result lies in front of the
cuts, behind them, or on both sides.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from harness.running import Array, Devices, same_values
from tosavk.backends.reference import evaluate
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import NanMode, Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.rules import parts as sums
from tosavk.lowering.rules.parts import LONGEST
from tosavk.lowering.tosa.builder import Builder

EXTREMES = (Op.REDUCE_MAX, Op.REDUCE_MIN, Op.ARGMAX)
# Longer than two dispatches and than the 65535 iterations after which lavapipe stops.
LENGTH = 2 * LONGEST + 101


def name_of(dtype: DType) -> str:
    return dtype.name


def compare(
    opened: Devices,
    spec: str,
    b: Builder,
    inputs: dict[str, Array],
    *,
    least: int = 3,
) -> None:
    """Compares results with the reference's; `least` dispatches make each of them."""
    graph = load_graph(b.build())
    dispatches = opened.lower(spec, graph).plan.dispatches
    assert len(dispatches) >= least * len(graph.main.outputs)
    expected = evaluate(graph, inputs, precise=False)
    for name, found in opened.run(spec, graph, inputs).items():
        assert same_values(found, expected[name]), (name, found)


@pytest.mark.parametrize(
    "dtype", [DType.INT8, DType.FP16, DType.FP32], ids=lambda kind: kind.name
)
def test_extremes(opened: Devices, gpu_device: str, dtype: DType) -> None:
    b = Builder()
    x = np.random.default_rng(3).integers(-90, 90, (1, LENGTH, 5)).astype(dtype.numpy)
    # The extremes in front and again behind; behind only; in the middle only.
    for column, places in enumerate(((5, -2), (-1, -3), (LONGEST, LONGEST + 1))):
        x[0, places[0], column] = 100
        x[0, places[1], column] = -100
    x[0, 9, 0] = x[0, -1, 0] = 100
    if dtype.is_float:
        x[0, :-7, 3] = np.nan
        x[0, [0, -1], 4] = np.nan
        x[0, 1:-1, 4] = 0.0
        x[0, 1 : LONGEST - 3, 4] = -0.0
    tensor = b.input("x", dtype, x.shape)
    for op in EXTREMES:
        for mode in NanMode if dtype.is_float else (NanMode.PROPAGATE,):
            b.output(b.op(op, [tensor], axis=1, nan_mode=mode))
    compare(opened, gpu_device, b, {"x": x})


def test_truth(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    x = np.zeros((LENGTH, 6), np.bool_)
    x[:, 3:] = True
    x[0, [1, 4]] ^= True
    x[-1, [2, 5]] ^= True
    tensor = b.input("x", DType.BOOL, x.shape)
    for op in (Op.REDUCE_ALL, Op.REDUCE_ANY):
        b.output(b.op(op, [tensor], axis=0))
    compare(opened, gpu_device, b, {"x": x})


def test_whole_totals(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    x = np.random.default_rng(5).integers(-(1 << 14), 1 << 14, (3, LENGTH), np.int32)
    b.output(b.reduce_sum(b.input("x", DType.INT32, x.shape), 1))
    compare(opened, gpu_device, b, {"x": x})


@pytest.mark.parametrize(
    "dtype", [DType.FP32, DType.FP16, DType.BF16], ids=lambda kind: kind.name
)
def test_float_totals(opened: Devices, gpu_device: str, dtype: DType) -> None:
    """In ascending order, each step rounded to FP32, and narrowed once."""
    b = Builder()
    x = np.random.default_rng(6).uniform(0.0, 1.0, (1, LENGTH, 3)).astype(dtype.numpy)
    near = np.random.default_rng(7).choice([0.875, 1.125, -1.0], x.shape)
    near[near == 0.875] = 1.0 / 1.125
    factors = near.astype(dtype.numpy)
    b.output(b.reduce_sum(b.input("x", dtype, x.shape), 1, name="sum"))
    b.output(b.reduce_product(b.input("f", dtype, x.shape), 1, name="product"))
    results = opened.run(gpu_device, b.build(), {"x": x, "f": factors})
    with np.errstate(all="ignore"):
        for name, values, fold in (
            ("sum", x, np.add),
            ("product", factors, np.multiply),
        ):
            steps = fold.accumulate(values.astype(np.float32), axis=1)
            want = steps[:, -1:].astype(dtype.numpy)
            assert results[name].tobytes() == want.tobytes(), (results[name], want)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16, DType.FP16], ids=name_of)
def test_large_windows(opened: Devices, gpu_device: str, dtype: DType) -> None:
    b = Builder()
    x = np.random.default_rng(8).integers(-90, 90, (1, 193, 181, 4)).astype(dtype.numpy)
    x[0, [0, -1, 91, 0], [0, -1, 5, -1], [0, 1, 2, 3]] = 100
    if dtype.is_float:
        x[0, 90, 7, 0] = np.nan
        x[0, ..., 3] = np.nan
    tensor = b.input("x", dtype, x.shape)
    for mode in NanMode if dtype.is_float else (NanMode.PROPAGATE,):
        b.output(
            b.max_pool2d(
                tensor, (191, 180), pad=(1, 1, 0, 1), stride=(2, 1), nan_mode=mode
            )
        )
    compare(opened, gpu_device, b, {"x": x}, least=2)


@pytest.mark.parametrize(
    ("dtype", "terms"),
    # Fours are loaded at once: that many loops in a quarter of the terms.
    [(DType.FP32, LENGTH), (DType.FP16, LENGTH), (DType.FP32, 8 * LONGEST + 404)],
    ids=["FP32", "FP16", "fours"],
)
def test_float_products(
    opened: Devices, gpu_device: str, dtype: DType, terms: int
) -> None:
    rng = np.random.default_rng(9)
    x = rng.normal(size=(2, 3, terms)).astype(dtype.numpy)
    w = rng.normal(size=(2, terms, 5)).astype(dtype.numpy)
    b = Builder()
    b.output(b.matmul(b.input("x", dtype, x.shape), b.input("w", dtype, w.shape)))
    (result,) = opened.run(gpu_device, b.build(), {"x": x, "w": w}).values()
    want = np.stack(
        [[ordered(row, w[n]) for row in x[n]] for n in range(len(x))]
    ).astype(dtype.numpy)
    assert result.tobytes() == want.tobytes(), (result, want)


def ordered(x: Array, w: Array) -> Array:
    """Sum of x[k] * w[k, :] in ascending order, each step rounded to FP32."""
    terms = x.astype(np.float32)[:, None] * w.astype(np.float32)
    sums: Array = np.add.accumulate(terms, axis=0)[-1]
    return sums


@dataclass(frozen=True, slots=True)
class Long:
    """A convolution with long sums.

    Attributes:
        op: the operator.
        kernel: the kernel's extent in every dimension.
        depth: input channels.
        skipped: an infinite weight lies under the padding of some outputs.
        parts: the least number of dispatches.
    """

    op: Op
    kernel: tuple[int, ...]
    depth: int
    skipped: bool = False
    parts: int = 3


LONG = {
    "channels": Long(Op.CONV2D, (1, 2), 40_001),
    "channels by fours": Long(Op.CONV2D, (2, 1), 135_000, skipped=True, parts=8),
    "columns": Long(Op.CONV2D, (2, 7_000), 5, skipped=True),
    "rows": Long(Op.CONV2D, (190, 181), 1, skipped=True),
    "transposed": Long(Op.TRANSPOSE_CONV2D, (190, 181), 1),
    "by channel": Long(Op.DEPTHWISE_CONV2D, (257, 256), 3, skipped=True),
    "by channel, fours": Long(Op.DEPTHWISE_CONV2D, (257, 256), 4),
    "volume": Long(Op.CONV3D, (31, 33, 35), 1, skipped=True),
    "volume, channels": Long(Op.CONV3D, (1, 1, 2), 40_001),
}


@pytest.mark.parametrize("case", LONG.values(), ids=LONG)
def test_float_convolutions(opened: Devices, gpu_device: str, case: Long) -> None:
    """Two outputs in a row; the padding is in front, below the first of them."""
    rng = np.random.default_rng(10)
    axes = len(case.kernel)
    turned = case.op is Op.TRANSPOSE_CONV2D
    size = (*case.kernel[:-1], case.kernel[-1] + 1 - case.skipped)
    x = rng.normal(size=(1, *size, case.depth)).astype(np.float32)
    by_channel = case.op is Op.DEPTHWISE_CONV2D
    channels = case.depth if by_channel else 3
    shape = (channels, *case.kernel, case.depth)
    if by_channel:
        shape = (*case.kernel, case.depth, 1)
    w = rng.normal(size=shape).astype(np.float32)
    pad = [0] * (2 * axes)
    padded = x
    if case.skipped:
        pad[-2] = 1
        padded = np.pad(x, [(0, 0)] * axes + [(1, 0), (0, 0)])
        if by_channel:
            w[0, 0] = np.inf
        else:
            w.reshape(channels, -1, case.depth)[:, 0] = np.inf
    bias = rng.normal(size=channels).astype(np.float32)
    b = Builder()
    operands = [b.input("x", DType.FP32, x.shape), b.input("w", DType.FP32, shape)]
    operands += [b.const(bias, DType.FP32), b.zero(DType.FP32), b.zero(DType.FP32)]
    stride = (1,) * axes
    places: dict[str, Any] = {"pad": tuple(pad), "stride": stride, "dilation": stride}
    if turned:
        ky, kx = (1 - k for k in case.kernel)
        places = {"out_pad": (ky, ky, kx, kx), "stride": stride}
    b.output(b.op(case.op, operands, acc_type=DType.FP32, dtype=DType.FP32, **places))
    graph = load_graph(b.build())
    plan = opened.lower(gpu_device, graph).plan
    assert len(plan.dispatches) >= case.parts
    (result,) = opened.run(gpu_device, graph, {"x": x, "w": w}).values()
    assert result.shape == (*(1,) * axes, 2, channels)
    for place in range(2):
        window = padded[0, ..., place : place + case.kernel[-1], :]
        if turned:
            window = window[::-1, ::-1]
        weights = w if by_channel else np.moveaxis(w, 0, -1)
        with np.errstate(all="ignore"):
            terms = window[..., None] * weights
            terms = terms.reshape(-1, channels)
            if case.skipped and place == 0:
                # The first tap is outside and left out, whatever its weight is.
                terms = terms[1 if by_channel else case.depth :]
            want = np.add.accumulate(terms, axis=0)[-1] + bias
        found = result[..., place, :].reshape(-1)
        assert same_values(found, want), (place, found, want)


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16], ids=name_of)
def test_large_means(opened: Devices, gpu_device: str, dtype: DType) -> None:
    """More rows outside than one dispatch takes, and a window within x."""
    b = Builder()
    x = np.random.default_rng(11).uniform(0.0, 1.0, (1, 270, 259, 3))
    x = x.astype(dtype.numpy)
    pad = (140, 0, 2, 0)
    tensor = b.input("x", dtype, x.shape)
    b.output(b.avg_pool2d(tensor, (270, 260), pad=pad, stride=(140, 1)))
    graph = load_graph(b.build())
    assert len(opened.lower(gpu_device, graph).plan.dispatches) >= 3
    (result,) = opened.run(gpu_device, graph, {"x": x}).values()
    for row, end in enumerate((130, 270)):
        for column, part in enumerate((slice(0, 258), slice(0, 259))):
            taps = x[0, :end, part].reshape(-1, 3).astype(np.float32)
            total = np.add.accumulate(taps, axis=0)[-1]
            want = (total / np.float32(len(taps))).astype(dtype.numpy)
            assert result[0, row, column].tobytes() == want.tobytes()


@pytest.mark.parametrize("longest", [1, 4, 7, 30, 1000])
@pytest.mark.parametrize("sizes", [(13,), (3, 5), (2, 3, 11), (2, 2, 3, 9), (1, 1, 7)])
def test_parts_follow_one_another(
    monkeypatch: pytest.MonkeyPatch, longest: int, sizes: tuple[int, ...]
) -> None:
    """All parts together are the nested loops in order, and none is too long."""
    monkeypatch.setattr(sums, "LONGEST", longest)
    names = "zyxc"[-len(sizes) :]
    passed: list[tuple[int, ...]] = []
    for part in sums.parts(**dict(zip(names, sizes, strict=True))):
        ranges = [range(part[f"{n}_first"], part[f"{n}_last"]) for n in names]
        steps = [math.prod(map(len, ranges[: i + 1])) for i in range(len(sizes))]
        assert sum(steps) <= longest + len(sizes)
        passed += itertools.product(*ranges)
    assert passed == list(itertools.product(*map(range, sizes)))
