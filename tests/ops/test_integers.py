"""Integer operators on every device, integer for integer as in the reference.

Sizes are prime, values are random with the limits of their type among them, and operands
are constants in one half of the programs and inputs in the other. Where TOSA leaves a
result open because a sum overflows, ours wrap or saturate as the reference's do.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np
import pytest

from harness.running import Array, Devices
from tosavk.backends.reference import evaluate
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import ResizeMode, RoundingMode, Tensor
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

LIMITS = {
    DType.INT4: (-7, 7),
    DType.INT8: (-128, 127),
    DType.INT16: (-(1 << 15), (1 << 15) - 1),
    DType.INT32: (-(1 << 31), (1 << 31) - 1),
    DType.INT48: (-(1 << 47), (1 << 47) - 1),
}
WEIGHTS = (
    (DType.INT8, DType.INT8),
    (DType.INT8, DType.INT4),
    (DType.INT16, DType.INT8),
)
KNOWN_AT_LOAD = pytest.mark.parametrize("constant", [True, False], ids=["const", "dyn"])


def name_of(dtype: DType) -> str:
    return dtype.name


class Program:
    """A program that is being made, and its inputs."""

    def __init__(self, *, constant: bool = True) -> None:
        """Takes whether small operands and weights are constants."""
        self.build = Builder()
        self.inputs: dict[str, Array] = {}
        self._constant = constant
        self._random = np.random.default_rng(7)

    def values(self, dtype: DType, shape: Sequence[int]) -> Array:
        """Random values of all sizes; the limits of the type and their neighbours."""
        low, high = LIMITS[dtype]
        flat = self._random.integers(low, high, math.prod(shape), endpoint=True)
        flat >>= self._random.integers(0, int(high).bit_length(), flat.size)
        edges = [low, low + 1, -1, 0, 1, high - 1, high]
        if flat.size >= 2 * len(edges):
            flat[self._random.choice(flat.size, len(edges), replace=False)] = edges
        return flat.astype(dtype.numpy).reshape(tuple(shape))

    def give(self, dtype: DType, array: Array) -> Tensor:
        """An input with these values."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array.astype(dtype.numpy)
        return self.build.input(name, dtype, array.shape)

    def x(self, dtype: DType, shape: Sequence[int]) -> Tensor:
        """An input of random values."""
        return self.give(dtype, self.values(dtype, shape))

    def operand(self, dtype: DType, array: Array) -> Tensor:
        """A constant or an input."""
        if self._constant:
            return self.build.const(array.astype(dtype.numpy), dtype)
        return self.give(dtype, array)

    def zero_point(self, dtype: DType, value: int) -> Tensor:
        """A zero point, which only INT8 has."""
        return self.operand(dtype, np.array([value if dtype is DType.INT8 else 0]))

    def check(self, opened: Devices, spec: str) -> None:
        """Compares all results of a device with the reference's."""
        graph = load_graph(self.build.build())
        expected = evaluate(graph, self.inputs, precise=False)
        results = opened.run(spec, graph, self.inputs)
        wrong = [
            f"{op}: {np.argwhere(expected[name] != results[name])[:4].tolist()}"
            for op in graph.main.operators
            for name in op.outputs
            if name in results and not np.array_equal(expected[name], results[name])
        ]
        assert results
        assert not wrong, "\n".join(wrong)


def rescales() -> list[tuple[DType, DType, bool, bool, RoundingMode, DType]]:
    """Types, signs, rounding and type of the multiplier of all RESCALEs there are."""
    narrow = (DType.INT8, DType.INT16)
    every = (*narrow, DType.INT32)
    found: list[tuple[DType, DType, bool, bool, RoundingMode, DType]] = []
    for source, target in itertools.product((*every, DType.INT48), every):
        signs = [(False, False)]
        if source in narrow and target in narrow:
            signs += [(True, False), (False, True)]
        wide = [(mode, DType.INT32) for mode in RoundingMode]
        ways = [(RoundingMode.SINGLE_ROUND, DType.INT16)]
        if source is not DType.INT48:
            ways += wide
        found += [
            (source, target, *sign, *way)
            for sign, way in itertools.product(signs, ways)
        ]
    return found


@KNOWN_AT_LOAD
def test_rescale(opened: Devices, gpu_device: str, *, constant: bool) -> None:
    program = Program(constant=constant)
    b = program.build
    shifts = np.arange(2, 63)
    # What is known at run time only costs further dispatches, the kernels are the same.
    wanted = rescales() if constant else rescales()[::5]
    for number, (source, target, *signs, mode, scale) in enumerate(wanted):
        per_channel = number % 2 == 0
        multiplier = np.abs(program.values(scale, shifts.shape).astype(np.int64))
        multiplier = np.minimum(multiplier, LIMITS[scale][1])
        shift = shifts if per_channel else shifts[[number % 61]]
        zero_points = [
            program.operand(dtype, np.array([zero_point_of(dtype, signed=not sign)]))
            for dtype, sign in zip((source, target), signs, strict=True)
        ]
        b.output(
            b.rescale(
                program.x(source, (7, 61)),
                target,
                program.operand(scale, multiplier[: shift.size]),
                program.operand(DType.INT8, shift),
                input_zp=zero_points[0],
                output_zp=zero_points[1],
                rounding_mode=mode,
                per_channel=per_channel,
                input_unsigned=signs[0],
                output_unsigned=signs[1],
            )
        )
    program.check(opened, gpu_device)


def zero_point_of(dtype: DType, *, signed: bool) -> int:
    """A zero point that the type may have, as its signed storage."""
    if dtype is DType.INT8:
        return -113
    return -(1 << 15) if dtype is DType.INT16 and not signed else 0


def test_rescale_of_every_rank(opened: Devices, gpu_device: str) -> None:
    program = Program()
    b = program.build
    for shape in ((), (1,), (5, 3), (2, 3, 5), (3, 2, 1, 2, 5, 3)):
        factors = program.values(DType.INT32, (shape or (1,))[-1:])
        b.output(
            b.rescale(
                program.x(DType.INT32, shape),
                DType.INT8,
                b.const(np.abs(factors // 2)),
                b.const(np.full(factors.shape, 40, np.int8)),
                output_zp=b.const(np.array([-7], np.int8)),
                per_channel=bool(shape),
            )
        )
    program.check(opened, gpu_device)


def test_double_rounding(opened: Devices, gpu_device: str) -> None:
    """Large products and the shifts about 31, where double rounding begins."""
    program = Program()
    b = program.build
    shifts = np.array([2, 30, 31, 32, 33, 61, 62], np.int8)
    x = program.x(DType.INT32, (211, shifts.size))
    for factor in (1 << 30, (1 << 31) - 1, 0):
        for rounding in RoundingMode:
            b.output(
                b.rescale(
                    x,
                    DType.INT32,
                    b.const(np.full(shifts.shape, factor, np.int32)),
                    b.const(shifts),
                    rounding_mode=rounding,
                    per_channel=True,
                )
            )
    program.check(opened, gpu_device)


@KNOWN_AT_LOAD
def test_table(opened: Devices, gpu_device: str, *, constant: bool) -> None:
    program = Program(constant=constant)
    b = program.build
    for dtype, entries in ((DType.INT8, 256), (DType.INT16, 513)):
        low, high = LIMITS[dtype]
        every = np.arange(low, high + 1)[::-1]
        table = program.operand(dtype, program.values(dtype, (entries,)))
        for x in (program.give(dtype, every), program.x(dtype, (13, 17))):
            b.output(b.table(x, table))
    program.check(opened, gpu_device)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16], ids=name_of)
@KNOWN_AT_LOAD
def test_pools(
    opened: Devices, gpu_device: str, dtype: DType, *, constant: bool
) -> None:
    program = Program(constant=constant)
    b = program.build
    for shape, kernel, stride, pad in (
        ((2, 11, 13, 3), (3, 2), (2, 1), (1, 1, 1, 0)),
        ((1, 7, 7, 5), (7, 7), (1, 1), (6, 6, 6, 6)),
        ((1, 29, 31, 1), (29, 31), (1, 1), (0, 0, 0, 0)),
        ((1, 5, 5, 8), (1, 1), (2, 2), (0, 0, 0, 0)),
        ((3, 1, 17, 4), (1, 5), (1, 3), (0, 0, 2, 1)),
    ):
        x = program.x(dtype, shape)
        b.output(b.max_pool2d(x, kernel, stride=stride, pad=pad))
        for zero_points in ((0, 0), (-128, 127), (101, -77)):
            before, after = (program.zero_point(dtype, zero) for zero in zero_points)
            b.output(
                b.avg_pool2d(
                    x,
                    kernel,
                    stride=stride,
                    pad=pad,
                    input_zp=before,
                    output_zp=after,
                )
            )
    program.check(opened, gpu_device)


def bias_of(program: Program, dtype: DType, channels: int) -> Tensor:
    """A bias that overflows the accumulator where its channel is at a limit."""
    kind = DType.INT48 if dtype is DType.INT16 else DType.INT32
    return program.operand(kind, program.values(kind, (channels,)))


class ZeroPoints(TypedDict):
    """Operands that all convolutions have."""

    input_zp: Tensor
    weight_zp: Tensor


def zero_points_of(program: Program, dtype: DType, weight: DType) -> ZeroPoints:
    return {
        "input_zp": program.zero_point(dtype, -128),
        "weight_zp": program.zero_point(weight, 127),
    }


def conv2d(program: Program, dtype: DType, weight: DType) -> None:
    for ic, oc, bias, kernel, stride, dilation, pad in (
        (3, 5, 5, (3, 2), (2, 1), (1, 3), (1, 1, 2, 0)),
        (8, 17, 1, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
        (4, 8, 8, (3, 3), (1, 1), (2, 1), (7, 0, 0, 5)),
        (7, 1, 1, (11, 13), (1, 1), (1, 1), (0, 0, 0, 0)),
    ):
        program.build.output(
            program.build.conv2d(
                program.x(dtype, (2, 11, 13, ic)),
                program.operand(weight, program.values(weight, (oc, *kernel, ic))),
                bias_of(program, dtype, bias),
                stride=stride,
                dilation=dilation,
                pad=pad,
                **zero_points_of(program, dtype, weight),
            )
        )


def conv3d(program: Program, dtype: DType, weight: DType) -> None:
    for ic, oc, bias, kernel, stride, pad in (
        (3, 5, 5, (2, 3, 1), (1, 2, 3), (0, 1, 1, 1, 0, 0)),
        (4, 9, 1, (1, 1, 2), (2, 1, 1), (2, 0, 0, 0, 1, 0)),
    ):
        program.build.output(
            program.build.conv3d(
                program.x(dtype, (2, 5, 7, 7, ic)),
                program.operand(weight, program.values(weight, (oc, *kernel, ic))),
                bias_of(program, dtype, bias),
                stride=stride,
                dilation=(1, 1, 2) if kernel[2] > 1 else (2, 1, 1),
                pad=pad,
                **zero_points_of(program, dtype, weight),
            )
        )


def depthwise(program: Program, dtype: DType, weight: DType) -> None:
    for c, m, bias, kernel, stride, dilation, pad in (
        (8, 1, 8, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
        (5, 1, 1, (2, 3), (1, 2), (2, 1), (0, 0, 1, 1)),
        (3, 3, 9, (1, 5), (2, 1), (1, 2), (0, 0, 9, 0)),
        (4, 2, 8, (3, 1), (5, 3), (1, 1), (1, 1, 0, 0)),
    ):
        program.build.output(
            program.build.depthwise_conv2d(
                program.x(dtype, (2, 11, 13, c)),
                program.operand(weight, program.values(weight, (*kernel, c, m))),
                bias_of(program, dtype, bias),
                stride=stride,
                dilation=dilation,
                pad=pad,
                **zero_points_of(program, dtype, weight),
            )
        )


def transposed(program: Program, dtype: DType, weight: DType) -> None:
    for ic, oc, bias, kernel, stride, pad in (
        (3, 5, 5, (3, 2), (2, 1), (1, 0, 2, 0)),
        (4, 8, 1, (3, 5), (2, 3), (-2, -1, -4, 3)),
        (5, 9, 9, (1, 1), (3, 2), (0, 0, 0, 7)),
    ):
        program.build.output(
            program.build.transpose_conv2d(
                program.x(dtype, (2, 5, 7, ic)),
                program.operand(weight, program.values(weight, (oc, *kernel, ic))),
                bias_of(program, dtype, bias),
                stride=stride,
                out_pad=pad,
                **zero_points_of(program, dtype, weight),
            )
        )


CONVOLUTIONS: dict[str, Callable[[Program, DType, DType], None]] = {
    "conv2d": conv2d,
    "conv3d": conv3d,
    "depthwise": depthwise,
    "transposed": transposed,
}


@pytest.mark.parametrize(("dtype", "weight"), WEIGHTS, ids=name_of)
@KNOWN_AT_LOAD
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(
    opened: Devices,
    gpu_device: str,
    kind: str,
    dtype: DType,
    weight: DType,
    *,
    constant: bool,
) -> None:
    program = Program(constant=constant)
    CONVOLUTIONS[kind](program, dtype, weight)
    program.check(opened, gpu_device)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16], ids=name_of)
@KNOWN_AT_LOAD
def test_matmul(
    opened: Devices, gpu_device: str, dtype: DType, *, constant: bool
) -> None:
    program = Program(constant=constant)
    for n, h, c, w in ((1, 1, 1, 1), (3, 11, 13, 17), (2, 8, 12, 4), (1, 17, 4, 7)):
        program.build.output(
            program.build.matmul(
                program.x(dtype, (n, h, c)),
                program.operand(dtype, program.values(dtype, (n, c, w))),
                a_zp=program.zero_point(dtype, 127),
                b_zp=program.zero_point(dtype, -128),
            )
        )
    program.check(opened, gpu_device)


def test_long_sums_take_two_words(opened: Devices, gpu_device: str) -> None:
    """2^13 products of 2^30 each pass 32 bits on both sides."""
    program = Program()
    lowest = np.full((1, 2, 8209), -(1 << 15))
    lowest[0, 1] = (1 << 15) - 1
    x = program.give(DType.INT16, lowest)
    column = np.full((1, 8209, 1), -(1 << 15))
    program.build.output(program.build.matmul(x, program.give(DType.INT16, column)))
    program.check(opened, gpu_device)


def test_long_sums_take_several_dispatches(opened: Devices, gpu_device: str) -> None:
    """Sums longer than a driver's loops (docs/known-issues.md), and where they are cut."""
    program = Program()
    b = program.build
    for dtype, c in ((DType.INT8, 65537), (DType.INT8, 131076), (DType.INT16, 65539)):
        right = program.operand(dtype, program.values(dtype, (1, c, 3)))
        b.output(b.matmul(program.x(dtype, (1, 2, c)), right))
    for dtype, image, kernel, ic in (
        (DType.INT8, (1, 2), (1, 1), 70001),
        (DType.INT8, (3, 8200), (3, 8192), 4),
        (DType.INT16, (17, 61), (13, 59), 44),
    ):
        x = program.x(dtype, (1, *image, ic))
        weights = program.operand(
            DType.INT8, program.values(DType.INT8, (3, *kernel, ic))
        )
        b.output(b.conv2d(x, weights, bias_of(program, dtype, 3)))
    weights = program.operand(DType.INT8, program.values(DType.INT8, (5, 8192, 3, 1)))
    x = program.x(DType.INT8, (1, 5, 8193, 3))
    b.output(b.depthwise_conv2d(x, weights, bias_of(program, DType.INT8, 3)))
    x = program.x(DType.INT8, (1, 181, 182, 3))
    b.output(
        b.avg_pool2d(
            x,
            (181, 181),
            pad=(1, 0, 0, 0),
            stride=(1, 1),
            input_zp=program.zero_point(DType.INT8, -100),
            output_zp=program.zero_point(DType.INT8, 3),
        )
    )
    program.check(opened, gpu_device)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16], ids=name_of)
def test_resize(opened: Devices, gpu_device: str, dtype: DType) -> None:
    program = Program()
    for shape, scale, offset, border in (
        ((1, 3, 5, 3), (16, 1, 2, 1), (-8, -1), (8, 1)),
        ((2, 7, 5, 1), (3, 2, 5, 4), (1, -5), (-1, 3)),
        ((1, 2, 2, 5), (2048, 512, 2047, 2047), (0, 0), (0, 0)),
        ((1, 1, 11, 2), (1, 1, 4, 2), (0, -1), (0, 1)),
    ):
        for mode in ResizeMode:
            x = program.x(dtype, shape)
            program.build.output(
                program.build.resize(x, scale, offset=offset, border=border, mode=mode)
            )
    program.check(opened, gpu_device)


@KNOWN_AT_LOAD
def test_moves_of_int4_and_int48(
    opened: Devices, gpu_device: str, *, constant: bool
) -> None:
    program = Program(constant=constant)
    for dtype, shape in itertools.product(
        (DType.INT4, DType.INT48), ((), (1,), (7,), (3, 11, 5))
    ):
        x = program.operand(dtype, program.values(dtype, shape))
        program.build.output(program.build.identity(x))
    program.check(opened, gpu_device)
