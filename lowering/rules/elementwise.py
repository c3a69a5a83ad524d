"""Rules for elementwise operators: unary, binary, SELECT, CLAMP, CAST."""

from __future__ import annotations

import numpy as np

from tosavk.core.dtypes import DType, elements, unpack
from tosavk.lowering.builder import (
    PlanBuilder,
    Value,
    broadcast_strides,
    collapse,
    destination_words,
    float_bits,
    six,
)
from tosavk.lowering.graph import Op, Operator


def unary(op: Operator, build: PlanBuilder) -> None:
    """y[i] = OP(x[i])."""
    _unary(op, build, mode=0, lo=0, hi=0)


def negate(op: Operator, build: PlanBuilder) -> None:
    """NEGATE; the zero points are parameters on integer types."""
    zero_in, zero_out = 0, 0
    if not build.tensor(op.inputs[0]).dtype.is_float:
        (zero_in,) = build.integers(op, op.inputs[1])
        (zero_out,) = build.integers(op, op.inputs[2])
    _unary(op, build, mode=0, lo=zero_in, hi=zero_out)


def clamp(op: Operator, build: PlanBuilder) -> None:
    """CLAMP; the bounds travel as FP32 bits (widened exactly) or as int32."""
    dtype = build.tensor(op.inputs[0]).dtype
    bounds: list[int] = []
    for field in ("min_val", "max_val"):
        raw = op.attributes[field]
        assert isinstance(raw, bytes)
        value = unpack(dtype, raw, ()).item()
        bounds.append(float_bits(float(value)) if dtype.is_float else int(value))
    mode = int(op.attributes.get("nan_mode", 0)) if dtype.is_float else 0  # type: ignore[arg-type]  # verified: an int
    _unary(op, build, mode=mode, lo=bounds[0], hi=bounds[1])


def _unary(op: Operator, build: PlanBuilder, *, mode: int, lo: int, hi: int) -> None:
    x = build.value(op.inputs[0])
    y = build.result(op.outputs[0])
    count = elements(y.shape)
    build.emit(
        "unary",
        spec={"OP": op.op, "TYPE": x.dtype, "MODE": mode},
        params={"count": count, "lo": lo, "hi": hi},
        operands=(x, y),
        columns=destination_words(y.dtype, count),
    )


def cast(op: Operator, build: PlanBuilder) -> None:
    """CAST between two stored types."""
    x = build.value(op.inputs[0])
    y = build.result(op.outputs[0])
    count = elements(y.shape)
    build.emit(
        "cast",
        spec={"X_TYPE": x.dtype, "Y_TYPE": y.dtype},
        params={"count": count},
        operands=(x, y),
        columns=destination_words(y.dtype, count),
    )


def binary(op: Operator, build: PlanBuilder) -> None:
    """y = OP(a, b) with broadcasting."""
    _binary(op, build, mode=0, shift=0)


def extremum(op: Operator, build: PlanBuilder) -> None:
    """MAXIMUM and MINIMUM with their NaN mode."""
    floating = build.tensor(op.inputs[0]).dtype.is_float
    mode = op.attributes.get("nan_mode", 0)
    assert isinstance(mode, int)
    _binary(op, build, mode=mode if floating else 0, shift=0)


def arithmetic_right_shift(op: Operator, build: PlanBuilder) -> None:
    """ARITHMETIC_RIGHT_SHIFT; MODE is 1 for round = true."""
    _binary(op, build, mode=int(bool(op.attributes["round"])), shift=0)


def mul(op: Operator, build: PlanBuilder) -> None:
    """MUL; the shift of INT32 is a parameter, other types must have none."""
    dtype = build.tensor(op.inputs[0]).dtype
    shift = 0
    # Other types' shift must be 0, so one that is known at run time only says nothing.
    if dtype is DType.INT32 or build.constant(op.inputs[2]) is not None:
        (shift,) = build.integers(op, op.inputs[2])
    if shift and dtype is not DType.INT32:
        build.refuse(op, f"MUL of {dtype.name} with shift {shift}; only INT32 shifts")
    _binary(op, build, mode=0, shift=shift)


def _binary(op: Operator, build: PlanBuilder, *, mode: int, shift: int) -> None:
    a, b = build.value(op.inputs[0]), build.value(op.inputs[1])
    emit_binary(build, op.op, (a, b), build.result(op.outputs[0]), mode, shift)


def emit_binary(
    build: PlanBuilder,
    how: Op,
    operands: tuple[Value, Value],
    y: Value,
    mode: int = 0,
    shift: int = 0,
) -> None:
    """Emits y = how(a, b) with broadcasting; all have the same rank."""
    a, b = operands
    count = elements(y.shape)
    same, dims, walks = _walks(y, (a, b))
    build.emit(
        "binary",
        spec={
            "OP": how,
            "TYPE": a.dtype,
            "Y_TYPE": y.dtype,
            "BROADCAST": 0 if same else len(dims),
            "MODE": mode,
        },
        params={
            "count": count,
            **six("d", dims, fill=1),
            **six("a", walks[0], fill=0),
            **six("b", walks[1], fill=0),
            "shift": shift,
        },
        operands=(a, b, y),
        columns=destination_words(y.dtype, count),
    )


def select(op: Operator, build: PlanBuilder) -> None:
    """y = c ? a : b with broadcasting."""
    operands = tuple(build.value(name) for name in op.inputs)
    emit_select(build, operands, build.result(op.outputs[0]))


def emit_select(build: PlanBuilder, operands: tuple[Value, ...], y: Value) -> None:
    """Emits y = c ? a : b for the operands (c, a, b)."""
    count = elements(y.shape)
    same, dims, walks = _walks(y, operands)
    build.emit(
        "select",
        spec={"TYPE": y.dtype, "BROADCAST": 0 if same else len(dims)},
        params={
            "count": count,
            **six("d", dims, fill=1),
            **six("c", walks[0], fill=0),
            **six("a", walks[1], fill=0),
            **six("b", walks[2], fill=0),
        },
        operands=(*operands, y),
        columns=destination_words(y.dtype, count),
    )


def _walks(
    y: Value, operands: tuple[Value, ...]
) -> tuple[bool, tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Whether all operands have y's layout; collapsed dims and strides."""
    same = all(value.shape == y.shape for value in operands)
    strides = tuple(broadcast_strides(value.shape, y.shape) for value in operands)
    dims, walks = collapse(y.shape, strides)
    return same, dims, walks


def no_operation(op: Operator, build: PlanBuilder) -> None:
    """CONST and CONST_SHAPE emit nothing."""
    del op, build


def literal_word(
    dtype: DType, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> int:
    """The raw lane bits of a one-element array, zero-extended to a word."""
    raw = np.ascontiguousarray(array, dtype.numpy).reshape(-1)[:1].view(np.uint8)
    return int.from_bytes(raw.tobytes()[:4], "little")


BINARY_OPS = frozenset(
    {
        Op.ADD,
        Op.SUB,
        Op.POW,
        Op.INTDIV,
        Op.BITWISE_AND,
        Op.BITWISE_OR,
        Op.BITWISE_XOR,
        Op.LOGICAL_AND,
        Op.LOGICAL_OR,
        Op.LOGICAL_XOR,
        Op.LOGICAL_LEFT_SHIFT,
        Op.LOGICAL_RIGHT_SHIFT,
        Op.EQUAL,
        Op.GREATER,
        Op.GREATER_EQUAL,
    }
)
UNARY_OPS = frozenset(
    {
        Op.ABS,
        Op.BITWISE_NOT,
        Op.CEIL,
        Op.CLZ,
        Op.COS,
        Op.ERF,
        Op.EXP,
        Op.FLOOR,
        Op.LOG,
        Op.LOGICAL_NOT,
        Op.RECIPROCAL,
        Op.RSQRT,
        Op.SIGMOID,
        Op.SIN,
        Op.TANH,
    }
)
