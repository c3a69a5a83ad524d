"""Each rule of each operator: one program that breaks it, and what is said then."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.errors import Kind, VerifyError
from tosavk.lowering.graph import Attribute, Op, Tensor, Version
from tosavk.lowering.operators import SPECS
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.verify import verify

F32 = DType.FP32
F16 = DType.FP16
I8 = DType.INT8
I32 = DType.INT32

CONV: dict[str, Any] = {
    "pad": (0, 0, 0, 0),
    "stride": (1, 1),
    "dilation": (1, 1),
    "acc_type": F32,
}
POOL: dict[str, Any] = {"kernel": (2, 2), "stride": (1, 1), "pad": (0, 0, 0, 0)}


def refused(b: Builder, out: tuple[DType, Sequence[int]] | None = None) -> VerifyError:
    """Verifies what was written and read back; the last operator is the broken one."""
    graph = read_graph(b.build())
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    assert isinstance(caught.value, InvalidArgument)
    last = graph.main.operators[-1]
    assert caught.value.operator is not None
    assert caught.value.operator.index == last.index
    assert str(last) in str(caught.value)
    return caught.value


def run(
    op: Op,
    inputs: Sequence[tuple[DType, tuple[int, ...]] | Tensor],
    dtype: DType,
    shape: tuple[int, ...],
    *,
    builder: Builder | None = None,
    **attributes: Attribute | Sequence[int],
) -> VerifyError:
    b = builder or Builder()
    operands: list[Tensor] = []
    for number, given in enumerate(inputs):
        if isinstance(given, Tensor):
            operands.append(given)
        else:
            operands.append(b.input(f"in{number}", *given))
    b.output(b.op(op, operands, dtype=dtype, shape=shape, name="y", **attributes))
    return refused(b)


@pytest.mark.parametrize(
    ("op", "inputs", "output", "attributes", "kind", "text"),
    [
        # Arity, kinds, ranks, types.
        (Op.ADD, [(F32, (3,))], (F32, (3,)), {}, Kind.INVALID_ARITY, "1 input"),
        (Op.ABS, [(F32, (3,))] * 2, (F32, (3,)), {}, Kind.INVALID_ARITY, "takes 1"),
        (Op.REDUCE_SUM, [(F32, ())], (F32, ()), {}, Kind.INVALID_RANK, "rank 0"),
        (Op.MATMUL, [(F32, (3, 3))] * 4, (F32, (3,)), {}, Kind.INVALID_RANK, "rank 3"),
        (
            Op.RESHAPE,
            [(F32, (3,)), (I32, (1,))],
            (F32, (3,)),
            {},
            Kind.EXPECTED_SHAPE,
            "must be a shape",
        ),
        (
            Op.ADD,
            [(F32, (3,)), (F16, (3,))],
            (F32, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "FP32, FP16 -> FP32",
        ),
        (
            Op.CAST,
            [(DType.INT4, (3,))],
            (I8, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "INT4 -> INT8",
        ),
        (
            Op.CAST,
            [(F32, (3,))],
            (F32, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "FP32 -> FP32",
        ),
        (
            Op.CAST,
            [(DType.FP8E4M3, (3,))],
            (DType.FP8E5M2, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "FP8E4M3 -> FP8E5M2",
        ),
        (
            Op.CAST,
            [(DType.BOOL, (3,))],
            (F32, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "no combination of TOSA 1.0",
        ),
        (
            Op.EQUAL,
            [(F32, (3,))] * 2,
            (F32, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "-> FP32",
        ),
        (
            Op.AVG_POOL2D,
            [(F16, (1, 4, 4, 1)), (F16, (1,)), (F16, (1,))],
            (F16, (1, 3, 3, 1)),
            {**POOL, "acc_type": I32},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "acc_type INT32",
        ),
        # Attributes.
        (
            Op.ARGMAX,
            [(F32, (2, 3))],
            (I32, (2,)),
            {"axis": 2},
            Kind.INVALID_ATTRIBUTE,
            "axis=2 lies outside the 2 dimensions",
        ),
        (
            Op.ARGMAX,
            [(F32, (2, 3))],
            (I32, (2,)),
            {"axis": 1, "nan_mode": 0},
            Kind.INVALID_ATTRIBUTE,
            "nan_mode=0",
        ),
        (
            Op.REVERSE,
            [(F32, (2, 3))],
            (F32, (2, 3)),
            {"axis": -1},
            Kind.INVALID_ATTRIBUTE,
            "axis=-1",
        ),
        (
            Op.TRANSPOSE,
            [(F32, (2, 3))],
            (F32, (3, 2)),
            {"perms": (1, 1)},
            Kind.INVALID_ATTRIBUTE,
            "no permutation",
        ),
        (
            Op.TRANSPOSE,
            [(F32, (2, 3))],
            (F32, (3, 2)),
            {"perms": (1,)},
            Kind.INVALID_ATTRIBUTE,
            "2 numbers",
        ),
        (
            Op.CLAMP,
            [(F32, (2,))],
            (F32, (2,)),
            {"min_val": np.float32(2).tobytes(), "max_val": np.float32(1).tobytes()},
            Kind.INVALID_ATTRIBUTE,
            "maximum 1 is below its minimum 2",
        ),
        (
            Op.CLAMP,
            [(F32, (2,))],
            (F32, (2,)),
            {
                "min_val": np.float32(np.nan).tobytes(),
                "max_val": np.float32(1).tobytes(),
            },
            Kind.INVALID_ATTRIBUTE,
            "is NaN",
        ),
        (
            Op.CLAMP,
            [(F32, (2,))],
            (F32, (2,)),
            {"min_val": b"\0", "max_val": bytes(4)},
            Kind.INVALID_ATTRIBUTE,
            "1 bytes",
        ),
        *[
            (
                Op.MAX_POOL2D,
                [(F32, (1, 6, 6, 1))],
                (F32, (1, 5, 5, 1)),
                {**POOL, **change},
                Kind.INVALID_ATTRIBUTE,
                text,
            )
            for change, text in (
                ({"kernel": (0, 2)}, "kernel=(0, 2)"),
                ({"kernel": (2,)}, "must have 2 numbers"),
                ({"kernel": (9000, 2)}, "exceeds 8192"),
                ({"stride": (1, 0)}, "stride=(1, 0)"),
                ({"pad": (-1, 0, 0, 0)}, "must not be negative"),
                ({"pad": (2, 0, 0, 0)}, "below the kernel"),
                ({"nan_mode": 7}, "nan_mode=7"),
            )
        ],
        (
            Op.MAX_POOL2D,
            [(F32, (1, 6, 6, 1))],
            (F32, (1, 3, 3, 1)),
            {**POOL, "stride": (3, 2)},
            Kind.INVALID_SHAPE,
            "stride 3 in y does not divide the 4 positions",
        ),
        (
            Op.MAX_POOL2D,
            [(F32, (1, 6, 6, 1))],
            (F32, (1, 1, 1, 1)),
            {**POOL, "kernel": (7, 1)},
            Kind.INVALID_SHAPE,
            "does not fit",
        ),
        # Shapes.
        (
            Op.ADD,
            [(F32, (3,)), (F32, (1, 3))],
            (F32, (1, 3)),
            {},
            Kind.INVALID_SHAPE,
            "different ranks",
        ),
        (
            Op.ADD,
            [(F32, (2, 3)), (F32, (2, 2))],
            (F32, (2, 3)),
            {},
            Kind.INVALID_SHAPE,
            "differ in dimension 1",
        ),
        (
            Op.ADD,
            [(F32, (2, 1)), (F32, (1, 3))],
            (F32, (2, 1)),
            {},
            Kind.INVALID_SHAPE,
            "declared with shape 2x1, but the operator gives 2x3",
        ),
        (
            Op.CONCAT,
            [(F32, (2, 3)), (F32, (3, 3))],
            (F32, (2, 6)),
            {"axis": 1},
            Kind.INVALID_SHAPE,
            "only dimension 1 may differ",
        ),
        (
            Op.MATMUL,
            [(F32, (1, 2, 3)), (F32, (1, 4, 5)), (F32, (1,)), (F32, (1,))],
            (F32, (1, 2, 5)),
            {},
            Kind.INVALID_SHAPE,
            "cannot multiply 1x2x3 by 1x4x5",
        ),
        (
            Op.MATMUL,
            [(F32, (1, 2, 3)), (F32, (1, 3, 5)), (F32, (2,)), (F32, (1,))],
            (F32, (1, 2, 5)),
            {},
            Kind.INVALID_SHAPE,
            "must have one element",
        ),
        (
            Op.GATHER,
            [(F32, (2, 3, 4)), (I32, (1, 5))],
            (F32, (2, 5, 4)),
            {},
            Kind.INVALID_SHAPE,
            "differ in dimension 0",
        ),
        (
            Op.SCATTER,
            [(F32, (1, 3, 4)), (I32, (1, 5)), (F32, (1, 5, 4))],
            (F32, (1, 3, 4)),
            {},
            Kind.INVALID_SHAPE,
            "5 rows into 3",
        ),
        (
            Op.SCATTER,
            [(F32, (1, 3, 4)), (I32, (1, 2)), (F32, (1, 2, 5))],
            (F32, (1, 3, 4)),
            {},
            Kind.INVALID_SHAPE,
            "NxKxC",
        ),
        (
            Op.RFFT2D,
            [(F32, (1, 3, 4))],
            (F32, (1, 3, 3)),
            {},
            Kind.INVALID_ARITY,
            "1 output",
        ),
        (
            Op.TABLE,
            [(I8, (3,)), (I8, (255,))],
            (I8, (3,)),
            {},
            Kind.INVALID_SHAPE,
            "256 entries",
        ),
        (
            Op.TABLE,
            [(DType.INT16, (3,)), (DType.INT16, (512,))],
            (I32, (3,)),
            {},
            Kind.INVALID_SHAPE,
            "513 entries",
        ),
    ],
)
def test_broken_operators(
    op: Op,
    inputs: list[tuple[DType, tuple[int, ...]]],
    output: tuple[DType, tuple[int, ...]],
    attributes: dict[str, Any],
    kind: Kind,
    text: str,
) -> None:
    found = run(op, inputs, *output, **attributes)
    assert found.kind == kind, str(found)
    assert text in str(found)


IMAGE = (F32, (1, 6, 6, 2))
WEIGHT = (F32, (3, 3, 3, 2))
BIAS = (F32, (3,))
ZERO = (F32, (1,))


@pytest.mark.parametrize(
    ("op", "inputs", "shape", "change", "kind", "text"),
    [
        (Op.CONV2D, {1: (F32, (3, 3, 3, 4))}, (1, 4, 4, 3), {}, None, "has 2 channels"),
        (Op.CONV2D, {2: (F32, (2,))}, (1, 4, 4, 3), {}, None, "1 or 3"),
        (Op.CONV2D, {}, (1, 4, 4, 3), {"dilation": (3, 1)}, None, "does not fit"),
        (Op.CONV2D, {}, (1, 4, 4, 3), {"stride": (2, 1)}, None, "does not divide"),
        (
            Op.CONV2D,
            {},
            (1, 4, 4, 3),
            {"dilation": (4096, 1)},
            None,
            "at most 8192",
        ),
        (
            Op.CONV2D,
            {},
            (1, 4, 4, 3),
            {"pad": (0, 0, -1, 0)},
            Kind.INVALID_ATTRIBUTE,
            "negative",
        ),
        (
            Op.CONV2D,
            {},
            (1, 4, 4, 3),
            {"acc_type": 0},
            Kind.INVALID_ATTRIBUTE,
            "acc_type=0",
        ),
        (
            Op.CONV2D,
            {},
            (1, 4, 4, 3),
            {"pad": (0, 0, 0)},
            Kind.INVALID_ATTRIBUTE,
            "4 numbers",
        ),
        (
            Op.CONV2D,
            {3: (F16, (1,))},
            (1, 4, 4, 3),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "FP32, FP32, FP32, FP16, FP32 -> FP32 (acc_type FP32)",
        ),
        (
            Op.DEPTHWISE_CONV2D,
            {1: (F32, (3, 3, 2, 4))},
            (1, 4, 4, 8),
            {},
            None,
            "1 or 8",
        ),
        (
            Op.TRANSPOSE_CONV2D,
            {},
            (1, 8, 8, 3),
            {"out_pad": (-3, 0, 0, 0)},
            Kind.INVALID_ATTRIBUTE,
            "above minus the kernel",
        ),
        (
            Op.TRANSPOSE_CONV2D,
            {0: (F32, (1, 1, 1, 2))},
            (1, 1, 1, 3),
            {"out_pad": (-2, -2, 0, 0)},
            None,
            "leaves nothing",
        ),
    ],
)
def test_broken_convolutions(
    op: Op,
    inputs: dict[int, tuple[DType, tuple[int, ...]]],
    shape: tuple[int, ...],
    change: dict[str, Any],
    kind: Kind | None,
    text: str,
) -> None:
    operands: list[tuple[DType, tuple[int, ...]]] = [IMAGE, WEIGHT, BIAS, ZERO, ZERO]
    for position, operand in inputs.items():
        operands[position] = operand
    attributes: dict[str, Any] = {**CONV, **change}
    if op is Op.TRANSPOSE_CONV2D:
        del attributes["pad"], attributes["dilation"]
        attributes.setdefault("out_pad", (0, 0, 0, 0))
    found = run(op, operands, F32, shape, **attributes)
    assert found.kind == (kind or Kind.INVALID_SHAPE), str(found)
    assert text in str(found)


@pytest.mark.parametrize(
    ("op", "shape", "lists", "output", "text"),
    [
        (Op.PAD, (2,), [(-1, 0)], (1,), "negative"),
        (Op.PAD, (2,), [(1, 0, 0)], (3,), "must have 2 numbers"),
        (Op.RESHAPE, (2, 3), [(4,)], (4,), "cannot make shape 4"),
        (Op.RESHAPE, (2, 3), [(-1,)], (6,), "below 1"),
        (Op.RESHAPE, (2, 3), [(6, 0)], (6, 1), "below 1"),
        (Op.SLICE, (5,), [(0,), (-1,)], (5,), "size -1"),
        (Op.SLICE, (5,), [(0,), (0,)], (5,), "size 0"),
        (Op.SLICE, (5,), [(-1,), (2,)], (2,), "start -1"),
        (Op.SLICE, (5,), [(3,), (3,)], (3,), "leave the input's 5"),
        (Op.SLICE, (5,), [(1 << 62,), (1 << 62,)], (3,), "leave the input's 5"),
        (Op.TILE, (2, 3), [(1, 0)], (2, 3), "below 1"),
        (Op.TILE, (2, 3), [(1,)], (2, 3), "must have 2 numbers"),
    ],
)
def test_broken_lists(
    op: Op,
    shape: tuple[int, ...],
    lists: list[tuple[int, ...]],
    output: tuple[int, ...],
    text: str,
) -> None:
    b = Builder()
    operands = [b.input("x", F32, shape), *(b.const_shape(one) for one in lists)]
    if op is Op.PAD:
        operands.append(b.const(np.zeros(1, np.float32)))
    found = run(op, operands, F32, output, builder=b)
    assert found.kind == Kind.INVALID_SHAPE
    assert text in str(found)


@pytest.mark.parametrize(
    ("scale", "offset", "border", "text"),
    [
        ((0, 1, 1, 1), (0, 0), (0, 0), "scale 0/1 in y is not positive"),
        ((1, 1, 1, -1), (0, 0), (0, 0), "scale 1/-1 in x is not positive"),
        ((2049, 2049, 1, 1), (0, 0), (0, 0), "2048"),
        ((257, 1, 1, 1), (0, 0), (0, 0), "level 8K"),
        ((1, 16, 1, 1), (0, 0), (0, 0), "1/16 or less"),
        ((2, 1, 1, 1), (-3, 0), (0, 0), "offset -3 in y must lie in -2..31"),
        ((2, 1, 1, 1), (32, 0), (0, 0), "offset 32"),
        ((2, 1, 1, 1), (0, 0), (2, 0), "border 2 in y must lie in -32..1"),
        ((2, 1, 1, 1), (0, 0), (0, -17), "border -17 in x"),
        ((2, 3, 1, 1), (0, 0), (0, 0), "no whole size in y"),
        ((1, 1, 1), (0, 0), (0, 0), "must have 4 numbers"),
        ((1, 1, 1, 1), (0,), (0, 0), "must have 2 numbers"),
    ],
)
def test_broken_resizes(
    scale: tuple[int, ...], offset: tuple[int, ...], border: tuple[int, ...], text: str
) -> None:
    b = Builder()
    lists = [b.const_shape(one) for one in (scale, offset, border)]
    x = b.input("x", F32, (1, 3, 3, 1))
    found = run(Op.RESIZE, [x, *lists], F32, (1, 3, 3, 1), builder=b, mode=1)
    assert found.kind == Kind.INVALID_SHAPE
    assert text in str(found)


def test_resize_of_a_huge_image() -> None:
    b = Builder()
    x = b.input("x", I8, (1, 1, 16384, 1))
    lists = [b.const_shape(one) for one in ((1, 1, 1, 1), (0, 0), (0, 0))]
    found = run(Op.RESIZE, [x, *lists], I8, (1, 1, 16384, 1), builder=b, mode=1)
    assert "below 16384" in str(found)


@pytest.mark.parametrize(
    ("dtype", "output", "mode", "kind"),
    [
        (I8, I32, 1, Kind.UNSUPPORTED_TYPE_PROFILE),
        (I8, I8, 2, Kind.UNSUPPORTED_TYPE_PROFILE),
        (DType.INT16, DType.INT16, 2, Kind.UNSUPPORTED_TYPE_PROFILE),
        (F32, F16, 2, Kind.UNSUPPORTED_TYPE_PROFILE),
        (F32, F32, 0, Kind.INVALID_ATTRIBUTE),
    ],
)
def test_types_and_modes_of_resize(
    dtype: DType, output: DType, mode: int, kind: Kind
) -> None:
    b = Builder()
    x = b.input("x", dtype, (1, 3, 3, 1))
    lists = [b.const_shape(one) for one in ((1, 1, 1, 1), (0, 0), (0, 0))]
    found = run(Op.RESIZE, [x, *lists], output, (1, 3, 3, 1), builder=b, mode=mode)
    assert found.kind == kind


@pytest.mark.parametrize(
    ("source", "target", "change", "kind", "text"),
    [
        (I32, I32, {"output_unsigned": True}, Kind.INVALID_ATTRIBUTE, "INT32 to INT32"),
        (I32, I8, {"input_unsigned": True}, Kind.INVALID_ATTRIBUTE, "INT32 to INT8"),
        (I8, I32, {"input_unsigned": True}, Kind.INVALID_ATTRIBUTE, "INT8 to INT32"),
        (
            I8,
            I8,
            {"input_unsigned": True, "output_unsigned": True},
            Kind.INVALID_ATTRIBUTE,
            "cannot both",
        ),
        (
            I32,
            I8,
            {"scale32": False, "rounding_mode": 3},
            Kind.INVALID_ATTRIBUTE,
            "DOUBLE_ROUND needs",
        ),
        (I32, I8, {"rounding_mode": 4}, Kind.INVALID_ATTRIBUTE, "rounding_mode=4"),
        (
            DType.INT48,
            I8,
            {"scale32": True},
            Kind.INVALID_ATTRIBUTE,
            "not possible for INT48",
        ),
        (
            I8,
            DType.INT48,
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "INT8, INT32, INT8, INT8, INT48 -> INT48",
        ),
        (
            I32,
            I8,
            {"scale32": False, "multiplier": I32},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "must be INT16",
        ),
        (I32, I8, {"zero_points": (1, 0)}, Kind.INVALID_CONSTANT_DATA, "must be 0"),
        (
            DType.INT16,
            I8,
            {"input_unsigned": True, "zero_points": (7, 0)},
            Kind.INVALID_CONSTANT_DATA,
            "0 or 32768",
        ),
        (I32, I8, {"shift": 63}, Kind.INVALID_CONSTANT_DATA, "not 2..62"),
        (I32, I8, {"scale": -1}, Kind.INVALID_CONSTANT_DATA, "negative multiplier"),
        (I32, I8, {"per_channel": True}, Kind.INVALID_SHAPE, "needs 3"),
    ],
)
def test_broken_rescales(
    source: DType, target: DType, change: dict[str, Any], kind: Kind, text: str
) -> None:
    options: dict[str, Any] = {"scale32": True, "rounding_mode": 1, **change}
    scale = options.pop("scale", 1 << 14)
    shift = options.pop("shift", 20)
    zero_points = options.pop("zero_points", (0, 0))
    default = I32 if options["scale32"] else DType.INT16
    multiplier = options.pop("multiplier", default)
    b = Builder()
    operands = [
        b.input("x", source, (2, 3)),
        b.const([scale], multiplier),
        b.const([shift], I8),
        b.const([zero_points[0]], source),
        b.const([zero_points[1]], target),
    ]
    found = run(Op.RESCALE, operands, target, (2, 3), builder=b, **options)
    assert found.kind == kind, str(found)
    assert text in str(found)


@pytest.mark.parametrize(
    ("source", "zero_point"), [(DType.INT16, -32768), (I8, -7), (I8, 127)]
)
def test_zero_points_that_rescale_allows(source: DType, zero_point: int) -> None:
    b = Builder()
    b.output(
        b.rescale(
            b.input("x", source, (3,)),
            I8,
            b.const([1 << 30], I32),
            b.const([30], I8),
            input_zp=b.const([zero_point], source),
            input_unsigned=True,
        )
    )
    verify(read_graph(b.build()))


@pytest.mark.parametrize(
    ("op", "dtype", "value", "fine"),
    [
        (Op.NEGATE, I8, -7, True),
        (Op.NEGATE, DType.INT16, 1, False),
        (Op.NEGATE, F32, 1.0, False),
        (Op.NEGATE, F32, -0.0, True),
        (Op.MATMUL, I8, 5, True),
        (Op.MATMUL, DType.INT16, 5, False),
        (Op.MATMUL, DType.FP8E5M2, 1.0, False),
        (Op.AVG_POOL2D, I8, 5, True),
        (Op.AVG_POOL2D, DType.BF16, 1.0, False),
        (Op.CONV2D, I8, 5, True),
        (Op.CONV2D, DType.INT16, 5, False),
    ],
)
def test_zero_points(op: Op, dtype: DType, value: float, *, fine: bool) -> None:
    b = Builder()
    point = b.const([value], dtype)
    attributes: dict[str, Any] = {}
    shape: tuple[int, ...]
    if op is Op.NEGATE:
        inputs = [b.input("x", dtype, (3,)), point, b.zero(dtype)]
        out, shape = dtype, (3,)
    elif op is Op.MATMUL:
        x = b.input("x", dtype, (1, 3, 3))
        inputs = [x, x, b.zero(dtype), point]
        out = {I8: I32, DType.INT16: DType.INT48}.get(dtype, F16)
        shape = (1, 3, 3)
    elif op is Op.AVG_POOL2D:
        inputs = [b.input("x", dtype, (1, 4, 4, 1)), b.zero(dtype), point]
        out, shape = dtype, (1, 3, 3, 1)
        attributes = {**POOL, "acc_type": I32 if dtype is I8 else F32}
    else:
        out = I32 if dtype is I8 else DType.INT48
        inputs = [
            b.input("x", dtype, (1, 3, 3, 1)),
            b.const(np.ones((2, 1, 1, 1), np.int8)),
            b.const([0, 0], out),
            point,
            b.zero(I8),
        ]
        shape, attributes = (1, 3, 3, 2), {**CONV, "acc_type": out}
    if not fine:
        found = run(op, inputs, out, shape, builder=b, **attributes)
        assert found.kind == Kind.INVALID_CONSTANT_DATA
        assert f"of {dtype.name} must be 0" in str(found)
        assert found.tensor == point.name
        return
    b.output(b.op(op, inputs, dtype=out, shape=shape, **attributes))
    verify(read_graph(b.build()))


@pytest.mark.parametrize(
    ("op", "dtype", "amount"),
    [
        (Op.LOGICAL_LEFT_SHIFT, I32, 32),
        (Op.LOGICAL_RIGHT_SHIFT, I8, 8),
        (Op.ARITHMETIC_RIGHT_SHIFT, DType.INT16, 53),
        (Op.ARITHMETIC_RIGHT_SHIFT, DType.INT16, -1),
    ],
)
def test_constant_shifts_out_of_range(op: Op, dtype: DType, amount: int) -> None:
    b = Builder()
    amounts = b.const([0, amount, 1], dtype)
    x = b.input("x", dtype, (3,))
    found = run(op, [x, amounts], dtype, (3,), builder=b)
    assert found.kind == Kind.INVALID_CONSTANT_DATA
    assert f"shifts by {amount}" in str(found)


@pytest.mark.parametrize(("dtype", "shift"), [(I32, 64), (I32, -1), (F32, 1), (I8, 1)])
def test_shifts_of_mul(dtype: DType, shift: int) -> None:
    b = Builder()
    x = b.input("x", dtype, (3,))
    out = F32 if dtype is F32 else I32
    found = run(Op.MUL, [x, x, b.const([shift], I8)], out, (3,), builder=b)
    assert found.kind == Kind.INVALID_CONSTANT_DATA
    assert f"is {shift}" in str(found)


@pytest.mark.parametrize(("height", "width"), [(3, 4), (4, 6), (16384, 1)])
def test_sizes_of_transforms(height: int, width: int) -> None:
    b = Builder()
    x = b.input("x", F32, (1, height, width))
    b.op_list(Op.FFT2D, [x, x], outputs=[(F32, (1, height, width))] * 2)
    assert refused(b).kind == Kind.INVALID_SHAPE


def test_a_list_of_64_tensors_is_the_limit() -> None:
    b = Builder()
    x = b.input("x", F32, (1,))
    b.output(b.concat([x] * 64, 0))
    verify(read_graph(b.build()))
    found = run(Op.CONCAT, [x] * 65, F32, (65,), builder=b, axis=0)
    assert found.kind == Kind.TENSOR_LIST_LIMIT


def test_concat_of_nothing() -> None:
    found = run(Op.CONCAT, [], F32, (1,), axis=0)
    assert found.kind == Kind.INVALID_ARITY


def test_shapes_must_be_constants() -> None:
    b = Builder()
    x = b.input("x", F32, (3,))
    (shape,) = b.op_list(
        Op.CUSTOM, [x], outputs=[(DType.SHAPE, (1,))], operator_name="shape_of"
    )
    found = run(Op.RESHAPE, [x, shape], F32, (3,), builder=b)
    assert found.kind == Kind.CONSTANT_REQUIRED


def test_a_custom_operator_needs_a_name() -> None:
    found = run(Op.CUSTOM, [(F32, (3,))], F32, (3,))
    assert found.kind == Kind.INVALID_ATTRIBUTE
    assert "operator_name=''" in str(found)


def test_constants_without_data() -> None:
    found = run(Op.CONST, [], F32, (3,))
    assert found.kind == Kind.INVALID_CONSTANT_DATA
    assert "no data" in str(found)


def test_a_variable_must_be_one() -> None:
    found = run(Op.VARIABLE_READ, [(F32, (3,))], F32, (3,))
    assert found.kind == Kind.INVALID_VARIABLE


def test_types_of_the_1_1_draft_need_its_version() -> None:
    b = Builder(version=Version(1, 1, 0, draft=True))
    b.output(b.cast(b.input("x", DType.BOOL, (3,)), F32))
    verify(read_graph(b.build()))


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_every_specification_is_whole(op: Op) -> None:
    spec = SPECS[op]
    assert spec.op is op
    used = {operand.types for operand in (*spec.inputs, *spec.outputs)}
    for row in spec.rows:
        assert len(row.types) == len(spec.variables)
    for variable in spec.variables:
        assert variable in used or variable == "acc_type"
    for kind in used:
        assert kind is None or isinstance(kind, DType) or kind in spec.variables
    assert len(set(spec.rows)) == len(spec.rows)
