"""Packed elements that move as whole words where lengths and places allow it."""

import functools
import math

import numpy as np
import pytest

from harness.running import Array, Devices
from tosavk.backends.reference import evaluate
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Graph, Op, ResizeMode, Tensor
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.shaders.catalogue import kernels

PACKED = (DType.INT8, DType.INT16, DType.FP16, DType.BF16, DType.FP8E4M3, DType.BOOL)
MOVES = {"move", "remap", "concat", "gather", "scatter", "resize"}
EACH_TYPE = pytest.mark.parametrize("dtype", PACKED, ids=lambda dtype: dtype.name)
EACH_WIDTH = pytest.mark.parametrize("channels", [8, 12, 6, 5, 1])


def patterns(dtype: DType, *shape: int) -> Array:
    """All bit patterns, in some order; numbers where a NaN would not stay as it is."""
    rng = np.random.default_rng(math.prod(shape))
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return rng.normal(size=shape).astype(dtype.numpy)
    most = (1 << (dtype.bits - 1)) - 1
    return rng.integers(-most - 1, most, shape, endpoint=True).astype(dtype.numpy)


@functools.cache
def program(dtype: DType, channels: int) -> tuple[Graph, dict[str, Array]]:
    """Every operator that moves data, most of them along whole rows of channels."""
    b = Builder()
    feeds: dict[str, Array] = {}

    def given(*shape: int) -> Tensor:
        name = f"x{len(feeds)}"
        feeds[name] = patterns(dtype, *shape)
        return b.input(name, dtype, shape)

    x, y = given(2, 3, 5, channels), given(2, 4, 5, channels)
    fill = b.const(patterns(dtype, 1), dtype)
    for axis in (0, 2, 3):
        b.output(b.reverse(x, axis=axis))
    for first, size in ((0, channels), (channels // 2, channels - channels // 2)):
        start = b.const_shape((1, 0, 2, first))
        b.output(b.op(Op.SLICE, [x, start, b.const_shape((1, 3, 3, size))]))
    b.output(b.concat([x, y, x], 1))
    b.output(b.concat([x, given(2, 3, 5, 4)], 3))
    for pads in ((0, 0, 1, 2, 2, 1, 0, 0), (1, 0, 0, 0, 0, 0, 4, 8), (0,) * 7 + (1,)):
        b.output(b.op(Op.PAD, [x, b.const_shape(pads), fill]))
    b.output(b.op(Op.TILE, [x, b.const_shape((2, 1, 3, 2))]))
    b.output(b.op(Op.TRANSPOSE, [x], perms=(2, 0, 1, 3)))
    b.output(b.op(Op.TRANSPOSE, [x], perms=(0, 3, 1, 2)))
    if dtype is not DType.BOOL:
        values = given(2, 3, channels)
        indices = b.const(np.array([[2, 0, 2, 1], [1, 1, 0, 2]], np.int32))
        b.output(b.op(Op.GATHER, [values, indices]))
        places = b.const(np.array([[2, 0], [1, 2]], np.int32))
        b.output(b.op(Op.SCATTER, [values, places, given(2, 2, channels)]))
    if dtype in {DType.INT8, DType.INT16, DType.FP16, DType.BF16}:
        numbers = ((2, 1, 3, 2), (0, -1), (0, 1))
        b.output(
            b.op(
                Op.RESIZE,
                [x, *(b.const_shape(n) for n in numbers)],
                dtype=dtype,
                mode=int(ResizeMode.NEAREST),
            )
        )
    return load_graph(b.build()), feeds


def bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


@EACH_TYPE
@EACH_WIDTH
def test_they_arrive(
    opened: Devices, gpu_device: str, dtype: DType, channels: int
) -> None:
    graph, feeds = program(dtype, channels)
    expected = evaluate(graph, feeds, precise=False)
    for name, found in opened.run(gpu_device, graph, feeds).items():
        assert np.array_equal(bits(found), bits(expected[name])), name


@EACH_TYPE
def test_words_move_where_rows_are_whole_words(dtype: DType) -> None:
    """All but what cuts rows, or turns them; BOOL becomes 0 or 1 on its way."""
    moved: dict[int, list[bool]] = {}
    for channels in (8, 5):
        plan = lower_graph(program(dtype, channels)[0]).plan
        for dispatch in plan.dispatches:
            if dispatch.kernel in MOVES:
                spec = kernels()[dispatch.kernel].spec
                kind = dict(zip(spec, dispatch.spec, strict=True))["TYPE"]
                words = kind in {DType.INT32, DType.FP32}
                moved.setdefault(channels, []).append(words)
    if dtype is DType.BOOL:
        assert not any(moved[8])
    else:
        assert sum(moved[8]) >= 10
        assert sum(moved[5]) <= sum(moved[8]) - 6


@pytest.mark.parametrize("channels", [4, 12, 6, 1])
def test_pools_of_whole_words(opened: Devices, gpu_device: str, channels: int) -> None:
    """INT8 pools, four channels at a time where rows are whole words."""
    b = Builder()
    feeds = {"x": patterns(DType.INT8, 2, 5, 6, channels)}
    x = b.input("x", DType.INT8, (2, 5, 6, channels))
    for zeros in ((0, 0), (-128, 127), (127, -128)):
        points = [b.const(np.array([zero], np.int8)) for zero in zeros]
        for kernel, pad in (((2, 2), (1, 1, 1, 1)), ((5, 3), (0, 0, 2, 1))):
            b.output(
                b.avg_pool2d(
                    x, kernel, pad=pad, input_zp=points[0], output_zp=points[1]
                )
            )
    b.output(b.max_pool2d(x, (3, 2), pad=(2, 2, 1, 1)))
    b.output(b.max_pool2d(x, (5, 6), stride=(3, 5)))
    graph = load_graph(b.build())
    expected = evaluate(graph, feeds)
    for name, found in opened.run(gpu_device, graph, feeds).items():
        assert np.array_equal(found, expected[name]), name
