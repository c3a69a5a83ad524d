"""Field cases of group A with their families, as programs made here.

The ready artifacts (test_field_cases.py) are optional; these need nothing. Each case is
run with its operands as inputs and as constants, where that makes a difference.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from harness.running import Array, Devices, same_values
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.graph import Graph, NanMode, Op, ResizeMode, RoundingMode, Tensor
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

I4, I8, I16, I32, I48 = DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT48
F16, F32, BOOL = DType.FP16, DType.FP32, DType.BOOL
Nested = Any  # numbers, or lists of them
KEEP, SKIP = int(NanMode.PROPAGATE), int(NanMode.IGNORE)
NAN, INF = float("nan"), float("inf")
LEAST, MOST = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Case:
    """One operator on given values.

    Attributes:
        name: id of the field case, and which of its family.
        op: the operator.
        operands: values with their types; a shape operand has the type SHAPE.
        expected: the result.
        dtype: its type, where the operator leaves a choice.
        fixed: operands from this position on are constants in any case.
        attributes: of the operator.
    """

    name: str
    op: Op
    operands: tuple[tuple[DType, Any], ...]
    expected: Nested
    dtype: DType | None = None
    fixed: int = 99
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])

    def program(self, *, constant: bool) -> tuple[Graph, dict[str, Array]]:
        b = Builder()
        feeds: dict[str, Array] = {}
        tensors: list[Tensor] = []
        for number, (dtype, value) in enumerate(self.operands):
            if dtype is DType.SHAPE:
                tensors.append(b.const_shape(value))
                continue
            array = np.asarray(value, dtype.numpy)
            if constant or number >= self.fixed:
                tensors.append(b.const(array, dtype))
            else:
                feeds[f"x{number}"] = array
                tensors.append(b.input(f"x{number}", dtype, array.shape))
        y = b.op(self.op, tensors, name="y", dtype=self.dtype, **self.attributes)
        b.output(y)
        return load_graph(b.build()), feeds


def rescale(
    name: str,
    x: Nested,
    expected: Nested,
    *,
    types: tuple[DType, DType] = (I32, I32),
    zeros: tuple[int, int] = (0, 0),
    scale: tuple[int, int] = (1 << 30, 30),
    mode: RoundingMode = RoundingMode.SINGLE_ROUND,
    unsigned: tuple[bool, bool] = (False, False),
) -> Case:
    return Case(
        name,
        Op.RESCALE,
        (
            (types[0], x),
            (I32, [scale[0]]),
            (I8, [scale[1]]),
            (types[0], [zeros[0]]),
            (types[1], [zeros[1]]),
        ),
        expected,
        types[1],
        1,
        {
            "scale32": True,
            "rounding_mode": int(mode),
            "per_channel": False,
            "input_unsigned": unsigned[0],
            "output_unsigned": unsigned[1],
        },
    )


def resize(
    name: str, dtype: DType, mode: ResizeMode, row: list[float], **more: Nested
) -> Case:
    def shape(values: Nested) -> Array:
        return np.asarray(values, float).reshape(1, 1, -1, 1)

    return Case(
        name,
        Op.RESIZE,
        (
            (dtype, shape(row)),
            (DType.SHAPE, more["scale"]),
            (DType.SHAPE, more["offset"]),
            (DType.SHAPE, more["border"]),
        ),
        shape(more["expected"]),
        dtype,
        1,
        {"mode": int(mode)},
    )


def cast(name: str, source: DType, target: DType, x: list[Any], y: list[Any]) -> Case:
    return Case(name, Op.CAST, ((source, x),), y, target)


def nan_case(
    name: str, op: Op, x: Nested, mode: int, y: Nested, **more: Nested
) -> Case:
    dtype = I32 if op is Op.ARGMAX else None
    attributes = {"nan_mode": mode, **more}
    return Case(name, op, ((F32, x),), y, dtype, attributes=attributes)


def window(
    op: Op, x: Array, w: Array, expected: list[int], **attributes: Nested
) -> Case:
    """A convolution of INT8 whose input zero point is 5."""
    zeros = ((I8, [5]), (I8, [0]))
    operands = ((I8, x), (I8, w), (I32, [0]), *zeros)
    return Case(
        f"A34 {op.name}",
        op,
        operands,
        np.reshape(expected, (*x.shape[:-1], 1)),
        None,
        2,
        {"acc_type": I32, **attributes},
    )


def transposed(
    number: int, out_pad: tuple[int, ...], stride: int, y: list[int], bias: int = 0
) -> Case:
    return Case(
        f"A20 {number}",
        Op.TRANSPOSE_CONV2D,
        (
            (I8, np.reshape([1, 2, 3], (1, 1, 3, 1))),
            (I8, np.reshape([10, 20, 30], (1, 1, 3, 1))),
            (I32, [bias]),
            (I8, [0]),
            (I8, [0]),
        ),
        np.reshape(y, (1, 1, -1, 1)),
        None,
        2,
        {"acc_type": I32, "out_pad": out_pad, "stride": (1, stride)},
    )


SHIFTED = (125, -125, -1, -3, -5, 5, 7, -1, 2**30, -(2**30), LEAST)
BY = (0, 0, 1, 1, 1, 1, 1, 31, 31, 31, 31)
EIGHTH = [3, 4, 11, -3, -4, -5, -11, -12]
HALVES = [0.5, 1.5, 2.5, 3.5, -0.5, -2.5, -3.5]
ROW = np.full((1, 1, 3, 1), 5)
ALONG = {"pad": (0, 0, 1, 1), "stride": (1, 1), "dilation": (1, 1)}

CASES = (
    rescale("A1 single", EIGHTH, [0, 1, 1, 0, 0, -1, -1, -1], scale=(1 << 30, 33)),
    rescale(
        "A1 double",
        EIGHTH,
        [1, 1, 2, 0, -1, -1, -1, -2],
        scale=(1 << 30, 33),
        mode=RoundingMode.DOUBLE_ROUND,
    ),
    *(
        rescale(
            f"A2 zero point {zero}",
            np.array([0, 127, 128, 200, 255], np.uint8).view(np.int8),
            expected,
            types=(I8, I8),
            zeros=(zero - 256, 0),
            unsigned=(True, False),
        )
        for zero, expected in (
            (200, [-128, -73, -72, 0, 55]),
            (128, [-128, -1, 0, 72, 127]),
        )
    ),
    resize(
        "A5",
        I8,
        ResizeMode.NEAREST,
        [10, 20, 30, 40, 50],
        scale=(1, 1, 4, 2),
        offset=(0, -1),
        border=(0, 1),
        expected=[10, 10, 20, 20, 30, 30, 40, 40, 50, 50],
    ),
    *(
        resize(
            f"A7 {dtype.name}",
            dtype,
            ResizeMode.BILINEAR,
            [1, 2, 3, 4],
            scale=(1, 1, 4, 2),
            offset=(0, -1),
            border=(0, 1),
            expected=[1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4],
        )
        for dtype in (F32, F16)
    ),
    *(
        Case(
            f"A9 {taps}",
            Op.AVG_POOL2D,
            ((I8, np.reshape(taps, (1, 2, 2, 1))), (I8, [0]), (I8, [0])),
            np.reshape(mean, (1, 1, 1, 1)),
            None,
            1,
            {"kernel": (2, 2), "stride": (1, 1), "pad": (0,) * 4, "acc_type": I32},
        )
        for taps, mean in (
            ([-1, -1, 0, 0], -1),
            ([1, 1, 0, 0], 1),
            ([-3, -3, 0, 0], -2),
            ([3, 3, 0, 0], 2),
            ([-1, 0, 0, 0], 0),
        )
    ),
    cast(
        "A12 int32",
        F32,
        I32,
        [2147483520, 2147483648, 1e20, -1e20, INF, -INF],
        [2147483520, MOST, MOST, LEAST, MOST, LEAST],
    ),
    cast(
        "A12 int8",
        F32,
        I8,
        [126.5, 127.4, 127.5, -128.5, -129, 300],
        [126, 127, 127, -128, -128, 127],
    ),
    cast("A12 int16", F32, I16, [32767.5, -32768.5], [32767, -32768]),
    cast("A13 fp32", F32, I32, [*HALVES, 0.49999997], [0, 2, 2, 4, 0, -2, -4, 0]),
    cast("A13 fp16", F16, I8, HALVES, [0, 2, 2, 4, 0, -2, -4]),
    *(
        nan_case(f"A16 {row} {mode}", Op.ARGMAX, row, mode, index, axis=0)
        for row, mode, index in (
            ([1, NAN, 5, NAN], KEEP, 1),
            ([1, NAN, 5, NAN], SKIP, 2),
            ([NAN, NAN], KEEP, 0),
            ([NAN, NAN], SKIP, 0),
            ([3, 7, 7], KEEP, 1),
            ([-INF] * 4, KEEP, 0),
        )
    ),
    nan_case("A16 many", Op.ARGMAX, [2.5] * 4096, KEEP, 0, axis=0),
    *(
        nan_case(f"A18 {row} {mode}", Op.REDUCE_MAX, row, mode, [best], axis=0)
        for row, mode, best in (
            ([-INF, -INF], KEEP, -INF),
            ([-INF, NAN], KEEP, NAN),
            ([-INF, NAN], SKIP, -INF),
            ([NAN, NAN], SKIP, NAN),
            ([1, NAN, 3], KEEP, NAN),
        )
    ),
    *(
        nan_case(
            f"A18 pool {row} {mode}",
            Op.MAX_POOL2D,
            np.reshape(row, (1, 1, 2, 1)),
            mode,
            np.reshape(best, (1, 1, 1, 1)),
            kernel=(1, 2),
            stride=(1, 1),
            pad=(0,) * 4,
        )
        for row, mode, best in (
            ([-INF, -INF], KEEP, -INF),
            ([-INF, NAN], KEEP, NAN),
            ([-INF, NAN], SKIP, -INF),
            ([NAN, NAN], SKIP, NAN),
        )
    ),
    Case(
        "A18 int8",
        Op.REDUCE_MAX,
        ((I8, [-128, -3, -7]),),
        [-3],
        attributes={"axis": 0, "nan_mode": SKIP},
    ),
    transposed(1, (0, 0, 0, 0), 1, [10, 40, 100, 120, 90]),
    transposed(2, (0, 0, -1, -1), 1, [40, 100, 120]),
    transposed(3, (0, 0, 2, 0), 1, [7, 7, 17, 47, 107, 127, 97], bias=7),
    transposed(4, (0, 0, 0, 0), 2, [10, 20, 50, 40, 90, 60, 90]),
    Case(
        "A22 int32",
        Op.ARITHMETIC_RIGHT_SHIFT,
        ((I32, SHIFTED), (I32, BY)),
        [125, -125, 0, -1, -2, 3, 4, 0, 1, 0, -1],
        attributes={"round": True},
    ),
    *(
        Case(
            f"A22 {dtype.name}",
            Op.ARITHMETIC_RIGHT_SHIFT,
            ((dtype, SHIFTED[:7]), (dtype, BY[:7])),
            [125, -125, 0, -1, -2, 3, 4],
            attributes={"round": True},
        )
        for dtype in (I8, I16)
    ),
    *(
        Case(
            f"A24 {a} {b} {shift}", Op.MUL, ((I32, [a]), (I32, [b]), (I8, [shift])), [y]
        )
        for a, b, shift, y in (
            (-5, 3, 1, -7),
            (5, 3, 1, 8),
            (1 << 30, 1 << 30, 31, 536870912),
            (MOST, MOST, 32, 1073741823),
        )
    ),
    Case("A26", Op.INTDIV, ((I32, [-7, 7]), (I32, [2, -2])), [-3, -3]),
    Case(
        "A27",
        Op.TABLE,
        ((I16, np.arange(-32768, 32768)), (I16, (np.arange(513) - 256) * 100)),
        np.arange(-32768, 32768) * 100,
        I32,
    ),
    *(
        Case(
            f"A31 {number}",
            Op.NEGATE,
            ((dtype, x), (dtype, [zeros[0]]), (dtype, [zeros[1]])),
            y,
        )
        for number, (dtype, x, zeros, y) in enumerate(
            (
                (I8, [-128, 127, 0], (0, 0), [127, -127, 0]),
                (I16, [-32768], (0, 0), [32767]),
                (I8, [8, 6, -128, 127], (6, 6), [4, 6, 127, -115]),
                (I8, [127, -128], (-128, -128), [-128, -128]),
            )
        )
    ),
    *(
        cast(f"A32 to {dtype.name}", BOOL, dtype, [True, False], [1, 0])
        for dtype in (I8, I16, I32)
    ),
    cast("A32 int8", I8, BOOL, [2, -128, 0], [True, True, False]),
    cast("A32 int16", I16, BOOL, [256, 0], [True, False]),
    cast("A32 int32", I32, BOOL, [65536, LEAST, 0], [True, True, False]),
    window(Op.CONV2D, ROW, np.ones((1, 1, 3, 1)), [0, 0, 0], **ALONG),
    window(Op.DEPTHWISE_CONV2D, ROW, np.ones((1, 3, 1, 1)), [0, 0, 0], **ALONG),
    window(
        Op.CONV3D,
        np.full((1, 1, 1, 3, 1), 5),
        np.ones((1, 1, 1, 3, 1)),
        [0, 0, 0],
        pad=(0, 0, 0, 0, 1, 1),
        stride=(1, 1, 1),
        dilation=(1, 1, 1),
    ),
    Case("A37 both", Op.ADD, ((I32, [[1, 2, 3]]), (I32, [[10], [20]])), [[11, 12, 13], [21, 22, 23]]),
    Case("A37 rank 0", Op.ADD, ((F32, 1.5), (F32, 2.25)), 3.75),
    Case(
        "A37 select",
        Op.SELECT,
        ((BOOL, [[True], [False]]), (I32, [[1, 2, 3]]), (I32, [[9]])),
        [[1, 2, 3], [9, 9, 9]],
    ),
    Case("A38 odd", Op.IDENTITY, ((I4, [1, -2, 3]),), [1, -2, 3]),
    Case("A38 edges", Op.IDENTITY, ((I4, [-7, 7, 0]),), [-7, 7, 0]),
)  # fmt: skip
NAMES = [one.name for one in CASES]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_semantics(opened: Devices, gpu_device: str, case: Case) -> None:
    for constant in (False, True):
        graph, feeds = case.program(constant=constant)
        found = opened.run(gpu_device, graph, feeds)["y"]
        want = np.asarray(case.expected).astype(found.dtype)
        assert same_values(found, want), (constant, found, want)


def clamps(
    dtype: DType, first: tuple[Any, ...], second: tuple[Any, ...] | None
) -> Graph:
    b = Builder()
    x = b.input("x", dtype, (1,))
    y = b.clamp(x, first[0], first[1], nan_mode=first[2])
    if second is not None:
        y = b.clamp(y, second[0], second[1], nan_mode=second[2])
    b.output(y)
    return load_graph(b.build())


@pytest.mark.parametrize("dtype", [F32, F16], ids=lambda dtype: dtype.name)
def test_chains_of_clamps(opened: Devices, gpu_device: str, dtype: DType) -> None:
    """A14 and A15: neither merged nor in another order."""
    keep, skip = NanMode.PROPAGATE, NanMode.IGNORE
    for x, first, second, want in (
        (NAN, (0, 1, skip), (0, 1, keep), 0),
        (NAN, (0, 1, keep), None, NAN),
        (0.5, (0, 1, keep), (2, 3, keep), 2),
        (NAN, (0, 1, keep), (2, 5, skip), 2),
    ):
        feeds = {"x": np.array([x], dtype.numpy)}
        (found,) = opened.run(gpu_device, clamps(dtype, first, second), feeds).values()
        assert same_values(found, np.array([want], dtype.numpy)), (x, first, second)
    if dtype is F32:
        for pattern in (0x7FC00000, 0xFFC00001, 0x7F800001):
            feeds = {"x": np.array([pattern], np.uint32).view(np.float32)}
            graph = clamps(dtype, (0, 1, keep), (2, 5, skip))
            (found,) = opened.run(gpu_device, graph, feeds).values()
            assert found.tolist() == [2.0]


def test_turns_of_a_transform_stay_exact(opened: Devices, gpu_device: str) -> None:
    """A29: the last angle is as good as the first."""
    b = Builder()
    re, im = (b.input(name, F32, (1, 1, 64)) for name in ("re", "im"))
    for part in b.fft2d(re, im, inverse=False):
        b.output(part)
    feeds = {
        "re": np.zeros((1, 1, 64), np.float32),
        "im": np.zeros((1, 1, 64), np.float32),
    }
    feeds["re"][0, 0, 63] = 1
    real, imaginary = opened.run(gpu_device, load_graph(b.build()), feeds).values()
    turns = -2 * np.pi * ((63 * np.arange(64)) % 64) / 64
    assert np.abs(real.reshape(-1) - np.cos(turns)).max() < 1e-6
    assert np.abs(imaginary.reshape(-1) - np.sin(turns)).max() < 1e-6
    b = Builder()
    for part in b.rfft2d(b.input("x", F32, (1, 1, 4))):
        b.output(part)
    row = {"x": np.array([[[0, 1, 0, 0]]], np.float32)}
    real, imaginary = opened.run(gpu_device, load_graph(b.build()), row).values()
    np.testing.assert_allclose(real.reshape(-1), [1, 0, -1], atol=1e-6)
    np.testing.assert_allclose(imaginary.reshape(-1), [0, -1, 0], atol=1e-6)
    assert imaginary[0, 0, 0] == 0
    assert imaginary[0, 0, 2] == 0


def padded(b: Builder, pads: tuple[int, int], start: int, size: int) -> Tensor:
    x = b.input("x", I32, (2,))
    seven = b.const(np.array([7], np.int32))
    wide = b.op(Op.PAD, [x, b.const_shape(pads), seven])
    return b.op(Op.SLICE, [wide, b.const_shape((start,)), b.const_shape((size,))])


def test_a_pad_keeps_its_constant(opened: Devices, gpu_device: str) -> None:
    """A40."""
    b = Builder()
    b.output(padded(b, (1, 0), 0, 2))
    feeds = {"x": np.array([1, 2], np.int32)}
    (found,) = opened.run(gpu_device, load_graph(b.build()), feeds).values()
    assert found.tolist() == [7, 1]


def shift_by(op: Op, dtype: DType, amount: int) -> Callable[[Builder], Tensor]:
    def make(b: Builder) -> Tensor:
        x = b.input("x", dtype, (1,))
        attributes: dict[str, Any] = (
            {"round": False} if op is Op.ARITHMETIC_RIGHT_SHIFT else {}
        )
        return b.op(op, [x, b.const(np.array([amount], dtype.numpy))], **attributes)

    return make


REFUSED: dict[str, Callable[[Builder], Tensor]] = {
    "A1 needs scale32": lambda b: b.op(
        Op.RESCALE,
        [
            b.input("x", I32, (1,)),
            *(b.const(np.array([n], t.numpy)) for n, t in ((1 << 14, I16), (30, I8))),
            *(b.const(np.array([0], np.int32)) for _ in range(2)),
        ],
        dtype=I32,
        scale32=False,
        rounding_mode=int(RoundingMode.DOUBLE_ROUND),
        per_channel=False,
    ),
    "A23 left": shift_by(Op.LOGICAL_LEFT_SHIFT, I32, 32),
    "A23 right": shift_by(Op.ARITHMETIC_RIGHT_SHIFT, I16, 53),
    "A37 ranks": lambda b: b.add(b.input("x", I32, (3,)), b.input("y", I32, (1, 3))),
    "A38 cast": lambda b: b.op(Op.CAST, [b.input("x", I4, (3,))], dtype=I8),
    "A40 size": lambda b: padded(b, (1, 0), 0, -1),
    "A40 negative": lambda b: padded(b, (-1, 0), 0, 1),
    "A41 empty": lambda b: b.abs(b.input("x", F32, (0, 4))),
    "A41 rank 0": lambda b: b.reduce_sum(b.input("x", F32, ()), 0),
    "A41 empty part": lambda b: b.concat(
        [b.input("x", F32, (2, 2)), b.input("y", F32, (0, 2))], 0
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_at_load(name: str) -> None:
    b = Builder()
    with pytest.raises(InvalidArgument, match=r"operator|tensor|'\w+'"):
        load_graph(built(b, REFUSED[name]))


def built(b: Builder, make: Callable[[Builder], Tensor]) -> bytes:
    b.output(make(b))
    return bytes(b.build())
