"""Numbers that operators are given: scales, zero points, shifts."""

from typing import Any

import numpy as np
import pytest

from harness.refusals import CONV, F16, F32, I8, I32, POOL, run
from tosavk.core.dtypes import DType
from tosavk.lowering.errors import Kind
from tosavk.lowering.graph import Op
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.verify import verify


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
