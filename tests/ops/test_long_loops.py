"""Reductions longer than the loops that every driver runs (docs/known-issues.md).

They are dealt out to several dispatches. What decides the result lies in front of the
cuts, behind them, or on both sides.
"""

import numpy as np
import pytest

from harness.running import Array, Devices, same_values
from tosavk.backends.reference import evaluate
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import NanMode, Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.rules.reduction import LONGEST
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
