"""Programs of many operators of one kind, with inputs at which arithmetic goes wrong.

Operators are grouped into few programs, since loading costs more than running. Sizes are
prime, ranks go from 0 to 6. A name is a family's and a type's, such as "unary FP16".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import ml_dtypes
import numpy as np

from harness.running import Array
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import NanMode, Op, ResizeMode, Tensor
from tosavk.lowering.tosa.builder import Builder

Shape = tuple[int, ...]
LONG: Shape = (1009,)
SHAPES: tuple[Shape, ...] = (
    (),
    LONG,
    (13, 17),
    (5, 7, 11),
    (2, 3, 5, 7),
    (2, 3, 1, 5, 7),
)
DEEP: Shape = (3, 2, 3, 2, 5, 3)
BROADCASTS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()),
    (LONG, LONG),
    ((1,), (7,)),
    ((13, 1), (1, 17)),
    ((5, 1, 3), (1, 7, 1)),
    ((2, 1, 5, 1), (2, 3, 1, 7)),
    ((1, 3, 1, 5, 1), (2, 1, 3, 1, 5)),
    ((1, 3, 1, 5, 1, 2), (2, 1, 3, 1, 5, 1)),
)
# Each number of dimensions left after collapsing is a pipeline of its own.
FEW = (BROADCASTS[0], BROADCASTS[3], BROADCASTS[7])
# Exponents: products of two are neither subnormal nor infinite, sums of some neither.
SAFE = {DType.FP32: (-60, 60), DType.BF16: (-60, 60), DType.FP16: (-7, 6)}
WHOLE = {DType.FP32: (-126, 127), DType.BF16: (-126, 127), DType.FP16: (-14, 15)}
SUBNORMAL = {DType.FP32: (-149, 127), DType.BF16: (-133, 127), DType.FP16: (-24, 15)}
FLOATS = (DType.FP32, DType.FP16, DType.BF16)
FP8 = (DType.FP8E4M3, DType.FP8E5M2)
INTEGERS = (DType.INT8, DType.INT16, DType.INT32)
MODES = (NanMode.PROPAGATE, NanMode.IGNORE)


@dataclass(slots=True)
class Program:
    """A program that is being made, and its inputs.

    Attributes:
        subnormals: whether floats may be subnormal.
        chained: whether float results pass through further operators.
        build: its builder.
        inputs: its inputs by name.
    """

    subnormals: bool = False
    chained: bool = False
    build: Builder = field(default_factory=Builder)
    inputs: dict[str, Array] = field(default_factory=dict[str, Array])
    _random: np.random.Generator = field(
        default_factory=lambda: np.random.default_rng(20261)
    )

    def give(self, dtype: DType, array: Array) -> Tensor:
        """An input with these values."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        return self.build.input(name, dtype, array.shape)

    def output(self, *tensors: Tensor) -> None:
        """Makes values outputs."""
        b = self.build
        for tensor in tensors:
            longer = self.chained and tensor.dtype.is_float
            b.output(b.negate(b.identity(b.abs(tensor))) if longer else tensor)

    def floats(
        self, dtype: DType, shape: Sequence[int], *, safe: bool = False
    ) -> Tensor:
        """An input of floats of all sizes, edge values among them.

        Args:
            dtype: a float type.
            shape: its shape.
            safe: whether products and sums must stay normal numbers.
        """
        count = math.prod(shape)
        low, high = (SAFE if safe else WHOLE)[dtype]
        if self.subnormals:
            low = SUBNORMAL[dtype][0]
        wide = np.ldexp(
            self._random.uniform(1.0, 2.0, count),
            self._random.integers(low, high, count, endpoint=True),
        )
        wide *= self._random.choice([-1.0, 1.0], count)
        # Half of them are of a size at which functions are interesting.
        usual = self._random.uniform(-11.0, 11.0, count)
        values = np.where(self._random.random(count) < 0.5, wide, usual)
        values = np.where(np.abs(values) < 2.0**low, 0.75, values)
        self._strew(values, self._edges(dtype))
        with np.errstate(over="ignore"):
            return self.give(dtype, values.astype(dtype.numpy).reshape(tuple(shape)))

    def _edges(self, dtype: DType) -> list[float]:
        limits: Any = cast("Any", ml_dtypes).finfo(dtype.numpy)
        sized = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.5, float(limits.max)]
        if self.subnormals:
            smallest = float(limits.smallest_subnormal)
            sized += [smallest, 3 * smallest, float(limits.smallest_normal) - smallest]
        return [*sized, *(-v for v in sized), np.nan, -np.nan, np.inf, -np.inf]

    def _strew(self, values: Array, edges: Sequence[float]) -> None:
        """Puts each edge value somewhere, twice where there is room."""
        if values.size < 30:
            edges = self._random.permutation(edges).tolist()[: values.size // 2]
        for _ in range(2):
            places = self._random.choice(values.size, len(edges), replace=False)
            values[places] = edges

    def moderate(self, dtype: DType, shape: Sequence[int], size: float = 2.0) -> Tensor:
        """An input of floats in [-size, size], none of them near 0."""
        values = self._random.uniform(0.25, size, tuple(shape))
        values *= self._random.choice([-1.0, 1.0], tuple(shape))
        return self.give(dtype, values.astype(dtype.numpy))

    def positive(self, dtype: DType, shape: Sequence[int]) -> Tensor:
        """An input of positive floats of all sizes."""
        low, high = SUBNORMAL[dtype] if self.subnormals else WHOLE[dtype]
        wide = np.ldexp(
            self._random.uniform(1.0, 2.0, tuple(shape)),
            self._random.integers(low, high, tuple(shape), endpoint=True),
        )
        usual = self._random.uniform(0.1, 11.0, tuple(shape))
        values = np.where(self._random.random(tuple(shape)) < 0.5, wide, usual)
        return self.give(dtype, np.minimum(values, 2.0**high).astype(dtype.numpy))

    def integers(
        self, dtype: DType, shape: Sequence[int], low: int, high: int
    ) -> Tensor:
        """An input of integers from `low` to `high`, both among them."""
        values = self._random.integers(low, high, tuple(shape), endpoint=True)
        flat = values.reshape(-1)
        flat[:2] = (low, high)[: flat.size]
        return self.give(dtype, values.astype(dtype.numpy))

    def bits(self, dtype: DType, shape: Sequence[int]) -> Tensor:
        """An input of arbitrary bit patterns; BOOL bytes are 0 to 3."""
        size = dtype.numpy.itemsize
        raw = self._random.integers(0, 256, (*shape, size), np.uint8)
        if dtype is DType.BOOL:
            raw = raw % 4
            return self.give(dtype, raw.reshape(tuple(shape)))
        if dtype is DType.INT4:
            return self.integers(dtype, shape, -7, 7)
        return self.give(dtype, raw.view(dtype.numpy).reshape(tuple(shape)))


_UNARY = (
    *(Op.ABS, Op.CEIL, Op.COS, Op.ERF, Op.EXP, Op.FLOOR, Op.LOG, Op.RECIPROCAL),
    *(Op.RSQRT, Op.SIGMOID, Op.SIN, Op.TANH),
)


def unary(p: Program, dtype: DType) -> None:
    """All functions of one float operand."""
    b = p.build
    for shape in (LONG, (), DEEP):
        x = p.floats(dtype, shape)
        p.output(*(b.op(op, [x]) for op in _UNARY), b.negate(x))
        for mode in MODES:
            p.output(b.clamp(x, -0.75, 6.0, nan_mode=mode))
    for shape in SHAPES[2:]:
        p.output(b.floor(p.floats(dtype, shape)))
    x = p.positive(dtype, LONG)
    p.output(b.log(x), b.rsqrt(x), b.reciprocal(x))


def arithmetic(p: Program, dtype: DType) -> None:
    """Additions, subtractions, multiplications with broadcasting."""
    b = p.build
    for left, right in BROADCASTS:
        x = p.floats(dtype, left, safe=True)
        y = p.floats(dtype, right, safe=True)
        p.output(b.add(x, y), b.sub(x, y), b.mul(x, y))
        if left == right:
            # Equal operands, and almost equal ones.
            p.output(b.sub(x, x), b.add(x, x), b.mul(x, x))


def comparing(p: Program, dtype: DType) -> None:
    """What compares or selects, with broadcasting."""
    b = p.build
    for left, right in BROADCASTS:
        x, y = p.floats(dtype, left), p.floats(dtype, right)
        p.output(b.equal(x, y), b.greater(x, y), b.greater_equal(x, y))
        p.output(b.equal(x, x), b.greater(x, x), b.greater_equal(x, x))
        for mode in MODES:
            p.output(b.maximum(x, y, nan_mode=mode), b.minimum(x, y, nan_mode=mode))
        p.output(b.select(p.bits(DType.BOOL, right), x, y))


def power(p: Program, dtype: DType) -> None:
    """POW of positive numbers; TOSA leaves most other cases open."""
    b = p.build
    for left, right in BROADCASTS:
        p.output(b.pow(p.positive(dtype, left), p.moderate(dtype, right, 7.0)))
    x = p.positive(dtype, LONG)
    p.output(b.pow(x, x), b.pow(x, b.const(np.zeros(1, dtype.numpy), dtype)))


def extremes(p: Program, dtype: DType) -> None:
    """REDUCE_MAX, REDUCE_MIN and ARGMAX over every axis."""
    b = p.build
    for shape in ((37,), (3, 5, 7, 11), DEEP):
        for axis in range(len(shape)):
            x = p.floats(dtype, shape)
            for mode in MODES:
                p.output(b.reduce_max(x, axis, nan_mode=mode))
                p.output(b.reduce_min(x, axis, nan_mode=mode))
                p.output(b.argmax(x, axis, nan_mode=mode))
    zeros = p.give(dtype, np.array([[0.0, -0.0, 0.0], [-0.0, 0.0, -0.0]], dtype.numpy))
    p.output(b.reduce_max(zeros, 1), b.reduce_min(zeros, 1), b.argmax(zeros, 1))
    least = p.give(dtype, np.full((2, 5), -np.inf, dtype.numpy))
    p.output(b.reduce_max(least, 1), b.argmax(least, 1))
    missing = p.give(dtype, np.full((2, 5), np.nan, dtype.numpy))
    for mode in MODES:
        p.output(b.reduce_max(missing, 1, nan_mode=mode))
        p.output(b.reduce_min(missing, 0, nan_mode=mode))
        p.output(b.argmax(missing, 1, nan_mode=mode))


def totals(p: Program, dtype: DType) -> None:
    """REDUCE_SUM and REDUCE_PRODUCT over every axis."""
    b = p.build
    for shape in ((37,), (3, 5, 7, 11), DEEP):
        for axis in range(len(shape)):
            x = p.moderate(dtype, shape, 1.75)
            p.output(b.reduce_sum(x, axis), b.reduce_product(x, axis))
    x = p.floats(dtype, (11, 13), safe=True)
    p.output(b.reduce_sum(x, 0), b.reduce_sum(x, 1), b.reduce_product(x, 1))
    zeros = p.give(dtype, np.full((3, 5), -0.0, dtype.numpy))
    p.output(b.reduce_sum(zeros, 1), b.reduce_product(zeros, 1))
    one = p.floats(dtype, (1, 7), safe=True)
    p.output(b.reduce_sum(one, 0), b.reduce_product(one, 0))


def moves(p: Program, dtype: DType) -> None:
    """What moves data, with every bit pattern."""
    b = p.build
    for shape in SHAPES:
        p.output(b.identity(p.bits(dtype, shape)))
    x1, x2, x3 = (p.bits(dtype, shape) for shape in (LONG, (13, 17), (5, 7, 11)))
    x4, x5, x6 = (p.bits(dtype, shape) for shape in (*SHAPES[4:], DEEP))
    p.output(b.reshape(x4, (7, 30)), b.reshape(x1, (1, 1, 1009, 1)))
    p.output(b.transpose(x2, (1, 0)), b.transpose(x3, (2, 0, 1)))
    p.output(b.transpose(x4, (0, 3, 1, 2)), b.transpose(x5, (4, 2, 0, 1, 3)))
    p.output(b.transpose(x6, (5, 3, 1, 4, 0, 2)))
    p.output(b.reverse(x1, 0), b.reverse(x3, 1), b.reverse(x6, 4), b.reverse(x6, 5))
    p.output(b.slice(x1, (17,), (101,)), b.slice(x3, (1, 0, 3), (3, 7, 5)))
    p.output(b.slice(x6, (1, 0, 1, 0, 2, 1), (2, 2, 1, 1, 3, 2)))
    p.output(b.tile(x1, (2,)), b.tile(x3, (2, 1, 3)), b.tile(x6, (1, 2, 1, 2, 1, 2)))
    fill = b.const(np.array([1], np.int8).astype(dtype.numpy), dtype)
    run_time_fill = p.bits(dtype, (1,))
    p.output(b.pad(x1, (3, 5), pad_const=fill), b.pad(x2, (0, 1, 2, 0)))
    p.output(b.pad(x3, (1, 0, 0, 2, 3, 1), pad_const=run_time_fill))
    p.output(b.pad(x6, (1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 2, 1), pad_const=fill))
    p.output(b.pad(x2, (0, 0, 0, 0), pad_const=run_time_fill))
    p.output(b.concat([x2, p.bits(dtype, (3, 17)), x2], 0))
    p.output(b.concat([x2, p.bits(dtype, (13, 5)), p.bits(dtype, (13, 1))], 1))
    p.output(b.concat([x3, p.bits(dtype, (5, 2, 11)), x3], 1), b.concat([x1, x1], 0))
    if dtype is not DType.BOOL:
        indices = p.integers(DType.INT32, (5, 13), 0, 6)
        p.output(b.gather(x3, indices))
        once = b.const(np.array([[6, 0, 3], [1, 2, 5]] * 2 + [[4, 3, 2]], np.int32))
        p.output(b.scatter(x3, once, p.bits(dtype, (5, 3, 11))))
    if dtype not in FP8:
        p.output(b.select(p.bits(DType.BOOL, (1, 7, 1)), x3, p.bits(dtype, (5, 1, 11))))


def convolutions(p: Program, dtype: DType) -> None:
    """Convolutions, constant and run-time weights, strides, dilation, padding."""
    b = p.build
    narrow = DType.FP16 if dtype in FP8 else dtype
    x = p.moderate(dtype, (2, 7, 11, 3))
    weight, bias = p.moderate(dtype, (5, 3, 3, 3)), p.moderate(narrow, (5,))
    known = b.const(_weights(dtype, (13, 2, 3, 3)), dtype)
    one = b.const(np.array([0.5], narrow.numpy), narrow)
    p.output(b.conv2d(x, weight, bias, pad=(1, 1, 1, 1)))
    p.output(b.conv2d(x, known, one, stride=(2, 3), pad=(0, 1, 1, 0)))
    p.output(b.conv2d(x, weight, bias, dilation=(2, 1), pad=(2, 2, 1, 1)))
    depthwise = p.moderate(dtype, (3, 2, 3, 2))
    p.output(b.depthwise_conv2d(x, depthwise, one, pad=(1, 1, 0, 1)))
    known = b.const(_weights(dtype, (3, 3, 3, 1)), dtype)
    p.output(b.depthwise_conv2d(x, known, one, stride=(2, 1), pad=(1, 1, 1, 1)))
    known = b.const(_weights(dtype, (5, 2, 3, 3)), dtype)
    p.output(b.transpose_conv2d(x, weight, bias, out_pad=(-1, -1, 1, 2)))
    p.output(b.transpose_conv2d(x, known, one, stride=(3, 2), out_pad=(0, -1, 0, 1)))
    known = b.const(_weights(dtype, (5, 2, 3, 2, 3)), dtype)
    volume = p.moderate(dtype, (1, 3, 5, 7, 3))
    p.output(b.conv3d(volume, known, one, stride=(1, 1, 2), pad=(1, 0, 1, 1, 1, 0)))


def _weights(dtype: DType, shape: tuple[int, ...]) -> Array:
    values = np.random.default_rng(7).uniform(-1.5, 1.5, shape)
    return np.asarray(values.astype(dtype.numpy))


def windows(p: Program, dtype: DType) -> None:
    """Pooling, with edge values for the maximum."""
    b = p.build
    x, shape = p.moderate(dtype, (2, 7, 11, 3)), (1, 7, 13, 5)
    special = p.bits(dtype, shape) if dtype in FP8 else p.floats(dtype, shape)
    for kernel, stride, pad in (
        ((2, 2), (1, 1), (0, 0, 0, 0)),
        ((3, 5), (2, 2), (2, 0, 2, 2)),
    ):
        p.output(b.avg_pool2d(x, kernel, stride=stride, pad=pad))
        for mode in MODES:
            y = b.max_pool2d(special, kernel, stride=stride, pad=pad, nan_mode=mode)
            p.output(y)
            if dtype in FP8:
                p.output(b.argmax(special, 2, nan_mode=mode))


def products(p: Program, dtype: DType) -> None:
    """MATMUL of odd sizes, with constants, with edge values."""
    b = p.build
    for n, h, c, w in ((1, 1, 1, 1), (2, 13, 7, 11), (3, 1, 37, 17), (1, 17, 5, 1)):
        x, y = p.moderate(dtype, (n, h, c)), p.moderate(dtype, (n, c, w))
        p.output(b.matmul(x, y))
        if dtype is DType.FP16:
            p.output(b.matmul(x, y, dtype=DType.FP32))
    p.output(b.matmul(x, b.const(_weights(dtype, (1, 5, 13)), dtype)))


def images(p: Program, dtype: DType) -> None:
    """RESIZE up and down."""
    b = p.build
    x = p.moderate(dtype, (2, 5, 7, 3))
    for mode in (ResizeMode.NEAREST, ResizeMode.BILINEAR):
        p.output(b.resize(x, (2, 1, 3, 1), mode=mode))
        p.output(b.resize(x, (4, 2, 4, 2), offset=(-1, -1), border=(1, 1), mode=mode))
        p.output(b.resize(x, (2, 3, 1, 2), offset=(0, 0), border=(1, 0), mode=mode))
        p.output(b.resize(p.floats(dtype, (1, 1, 1, 13)), (3, 1, 5, 1), mode=mode))


def special_sums(p: Program, dtype: DType) -> None:
    """Sums of products with NaN, infinities and zeros of both signs among them."""
    b = p.build
    x, y = (
        p.floats(dtype, (2, 7, 11), safe=True),
        p.floats(dtype, (2, 11, 5), safe=True),
    )
    p.output(b.matmul(x, y))
    image, bias = p.floats(dtype, (1, 7, 11, 3), safe=True), p.floats(dtype, (5,))
    weight = p.floats(dtype, (5, 3, 3, 3), safe=True)
    pad = (1, 1, 1, 1)
    p.output(b.conv2d(image, weight, bias, pad=pad))
    p.output(b.transpose_conv2d(image, weight, bias, stride=(2, 2)))
    bias, weight = p.floats(dtype, (6,)), p.floats(dtype, (3, 3, 3, 2), safe=True)
    p.output(b.depthwise_conv2d(image, weight, bias, pad=pad))
    p.output(b.avg_pool2d(image, (3, 3), pad=pad), b.reduce_sum(image, 2))
    p.output(b.resize(image, (3, 1, 2, 1), mode=ResizeMode.BILINEAR))


def float_casts(p: Program, dtype: DType) -> None:
    """CAST from a float type to all others."""
    b = p.build
    x = p.moderate(dtype, LONG, 100.0) if dtype in FP8 else p.floats(dtype, LONG)
    for target in (*FLOATS, *FP8):
        allowed = target is not dtype and not {target, dtype} <= set(FP8)
        if allowed and {target, dtype} != {DType.FP16, DType.BF16}:
            p.output(b.cast(x, target))
    if dtype in FP8:
        return
    for target in INTEGERS:
        numbers = p.inputs[x.name].copy()
        numbers[np.isnan(numbers)] = 0.5
        p.output(b.cast(p.give(dtype, numbers), target))
        halves = (np.arange(1009) - 504) / 2
        p.output(b.cast(p.give(dtype, halves.astype(dtype.numpy)), target))


def integer_casts(p: Program, dtype: DType) -> None:
    """CAST from an integer type or BOOL to all others."""
    b = p.build
    x = p.bits(dtype, LONG)
    for target in (DType.BOOL, *INTEGERS, *FLOATS):
        if target is not dtype and not (dtype is DType.BOOL and target in FLOATS):
            p.output(b.cast(x, target))


def integers(p: Program, dtype: DType) -> None:
    """INT32 arithmetic inside its range."""
    b = p.build
    for left, right in BROADCASTS:
        x = p.integers(dtype, left, -46340, 46340)
        y = p.integers(dtype, right, -46340, 46340)
        p.output(b.add(x, y), b.sub(x, y), b.mul(x, y))
        p.output(b.mul(x, y, shift=b.const([7], DType.INT8)))
        p.output(b.maximum(x, y), b.minimum(x, y))
        p.output(b.equal(x, y), b.greater(x, y), b.greater_equal(x, y))
        p.output(b.select(p.bits(DType.BOOL, right), x, y))
    least, most = -(2**31), 2**31 - 1
    x = p.integers(dtype, LONG, least + 1, most)
    p.output(b.abs(x), b.negate(x))
    y = p.integers(dtype, LONG, least, most)
    p.output(b.maximum(x, y), b.minimum(x, y), b.greater(x, y), b.equal(x, x))
    # The product of two of full size, 64 bits wide before it is shifted.
    p.output(b.mul(x, y, shift=b.const([32], DType.INT8)))
    for shape in ((37,), (3, 5, 7, 11), DEEP):
        for axis in range(len(shape)):
            wide = p.integers(dtype, shape, least, most)
            p.output(b.reduce_max(wide, axis), b.reduce_min(wide, axis))
            small = p.integers(dtype, shape, -(2**24), 2**24)
            p.output(b.reduce_sum(small, axis))


def bits_of_integers(p: Program, dtype: DType) -> None:
    """Operators on the bits of integers, and shifts inside their range."""
    b = p.build
    width = 8 * dtype.numpy.itemsize
    least, most = -(1 << (width - 1)), (1 << (width - 1)) - 1
    for left, right in FEW:
        x, y = (
            p.integers(dtype, left, least, most),
            p.integers(dtype, right, least, most),
        )
        p.output(b.bitwise_and(x, y), b.bitwise_or(x, y), b.bitwise_xor(x, y))
        p.output(b.bitwise_not(x))
        by = p.integers(dtype, right, 0, width - 1)
        p.output(b.logical_left_shift(x, by), b.logical_right_shift(x, by))
        p.output(b.arithmetic_right_shift(x, by, round=False))
        p.output(b.arithmetic_right_shift(x, by, round=True))
        if dtype is DType.INT32:
            p.output(b.clz(x), b.intdiv(x, p.integers(dtype, right, 1, 99)))
            p.output(b.intdiv(x, p.integers(dtype, right, -99, -2)))


def small_integers(p: Program, dtype: DType) -> None:
    """INT8 and INT16 where they compute and do not only move."""
    b = p.build
    width = 8 * dtype.numpy.itemsize
    least, most = -(1 << (width - 1)), (1 << (width - 1)) - 1
    for left, right in FEW:
        x, y = (
            p.integers(dtype, left, least, most),
            p.integers(dtype, right, least, most),
        )
        p.output(b.mul(x, y), b.clamp(x, -100, 99), b.negate(x))
    x = p.integers(dtype, LONG, least, most)
    if dtype is DType.INT8:
        zero, other = (b.const(np.array([v], np.int8)) for v in (-128, 7))
        p.output(b.negate(x, input_zp=zero, output_zp=other))
    for axis in range(4):
        x = p.integers(dtype, (3, 5, 7, 11), least, most)
        p.output(b.reduce_max(x, axis), b.reduce_min(x, axis), b.argmax(x, axis))
    p.output(b.max_pool2d(p.integers(dtype, (2, 7, 11, 3), least, most), (3, 2)))


def transforms(p: Program, dtype: DType) -> None:
    """FFT2D both ways and RFFT2D."""
    b = p.build
    for shape in ((2, 4, 8), (1, 1, 64), (1, 16, 2), (3, 1, 1)):
        x, y = p.moderate(dtype, shape), p.moderate(dtype, shape)
        p.output(*b.fft2d(x, y), *b.fft2d(x, y, inverse=True), *b.rfft2d(x))


def wrapping(p: Program, dtype: DType) -> None:
    """INT32 arithmetic beyond its range, which TOSA leaves open and we do not."""
    b = p.build
    least, most = -(2**31), 2**31 - 1
    x, y = (p.integers(dtype, (37, 29), least, most) for _ in range(2))
    p.output(b.add(x, y), b.sub(x, y), b.mul(x, y), b.abs(x), b.negate(x))
    p.output(b.reduce_sum(x, 0), b.reduce_sum(x, 1))


def open_floats(p: Program, dtype: DType) -> None:
    """What TOSA leaves open for floats and we do not: POW, NaN as an integer."""
    b = p.build
    x = p.floats(dtype, LONG)
    p.output(b.pow(x, p.floats(dtype, LONG)))
    p.output(*(b.cast(x, target) for target in INTEGERS))


def logic(p: Program, dtype: DType) -> None:
    """Operators of BOOL; any byte but 0 is true."""
    b = p.build
    for left, right in BROADCASTS:
        x, y = p.bits(dtype, left), p.bits(dtype, right)
        p.output(b.logical_and(x, y), b.logical_or(x, y), b.logical_xor(x, y))
        p.output(b.logical_not(x), b.select(x, y, y))
    for axis in range(3):
        x = p.bits(dtype, (3, 5, 7))
        p.output(b.reduce_all(x, axis), b.reduce_any(x, axis))


Make = Callable[[Program, DType], None]
FAMILIES: dict[str, tuple[Make, tuple[DType, ...]]] = {
    "unary": (unary, FLOATS),
    "arithmetic": (arithmetic, FLOATS),
    "comparing": (comparing, FLOATS),
    "power": (power, FLOATS),
    "extremes": (extremes, FLOATS),
    "totals": (totals, FLOATS),
    "moves": (moves, (DType.BOOL, *INTEGERS, *FLOATS, *FP8)),
    "convolutions": (convolutions, (*FLOATS, *FP8)),
    "windows": (windows, (*FLOATS, *FP8)),
    "products": (products, (*FLOATS, *FP8)),
    "images": (images, FLOATS),
    "special sums": (special_sums, FLOATS),
    "float casts": (float_casts, (*FLOATS, *FP8)),
    "integer casts": (integer_casts, (DType.BOOL, *INTEGERS)),
    "integers": (integers, (DType.INT32,)),
    "integer bits": (bits_of_integers, INTEGERS),
    "small integers": (small_integers, (DType.INT8, DType.INT16)),
    "transforms": (transforms, (DType.FP32,)),
    "logic": (logic, (DType.BOOL,)),
    "wrapping": (wrapping, (DType.INT32,)),
    "open floats": (open_floats, FLOATS),
}
OPEN = ("wrapping", "open floats")
"""Families whose results TOSA leaves open."""
ROUNDING = (
    *("arithmetic", "totals", "convolutions", "windows", "products", "images"),
    *("special sums", "transforms"),
)
"""Families with sums or products of floats, which a device may flush."""


def names() -> list[str]:
    """All families with all their types."""
    return [
        f"{family} {dtype.name}"
        for family, (_, types) in FAMILIES.items()
        for dtype in types
    ]


def make(name: str, *, subnormals: bool = False, chained: bool = False) -> Program:
    """The program of a family and a type, with inputs (see `Program`)."""
    family, _, dtype = name.rpartition(" ")
    program = Program(subnormals=subnormals, chained=chained)
    FAMILIES[family][0](program, DType[dtype])
    return program
