"""Rules of NEGATE and MUL whose small operands are known at run time only (EXT-DYNAMIC).

Their kernels take zero points and shifts as parameters; here they are tensors. Other
operators' kernels take theirs as tensors always (`lowering.rules.integers`).
"""

from __future__ import annotations

from tosavk.core.dtypes import DType, elements
from tosavk.lowering.builder import (
    PlanBuilder,
    Value,
    broadcast_strides,
    destination_words,
)
from tosavk.lowering.graph import Op, Operator
from tosavk.lowering.rules import elementwise


def negate(op: Operator, build: PlanBuilder) -> None:
    """NEGATE, with zero points that may be tensors."""
    dtype = build.tensor(op.inputs[0]).dtype
    if all(build.constant(name) is not None for name in op.inputs[1:]):
        elementwise.negate(op, build)
    elif dtype is DType.INT8:
        _negate_by_tensors(op, build)
    else:
        # Other types' zero points must be 0, so they say nothing.
        elementwise.unary(op, build)


def mul(op: Operator, build: PlanBuilder) -> None:
    """MUL, with a shift that may be a tensor."""
    dtype = build.tensor(op.inputs[0]).dtype
    if dtype is DType.INT32 and build.constant(op.inputs[2]) is None:
        _mul_by_tensor(op, build)
    else:
        elementwise.mul(op, build)


def _negate_by_tensors(op: Operator, build: PlanBuilder) -> None:
    """(input zero point + output zero point) - x in INT32, then saturated."""
    x, zero_in, zero_out = (
        _cast(build, build.value(name), DType.INT32) for name in op.inputs
    )
    both = build.temporary(DType.INT32, (1,))
    elementwise.emit_binary(build, Op.ADD, (zero_in, zero_out), both)
    spread = Value(both.dtype, (1,) * len(x.shape), both.memory)
    result = build.temporary(DType.INT32, x.shape)
    elementwise.emit_binary(build, Op.SUB, (spread, x), result)
    limited = build.temporary(DType.INT32, x.shape)
    build.emit(
        "unary",
        spec={"OP": Op.CLAMP, "TYPE": DType.INT32, "MODE": 0},
        params={"count": elements(x.shape), "lo": -128, "hi": 127},
        operands=(result, limited),
        columns=elements(x.shape),
    )
    _cast_into(build, limited, build.result(op.outputs[0]))


def _mul_by_tensor(op: Operator, build: PlanBuilder) -> None:
    y = build.result(op.outputs[0])
    a, b = (_spread(build, build.value(name), y.shape) for name in op.inputs[:2])
    count = elements(y.shape)
    build.emit(
        "mul_shift",
        spec={},
        params={"count": count},
        operands=(a, b, build.value(op.inputs[2]), y),
        columns=count,
    )


def _spread(build: PlanBuilder, source: Value, shape: tuple[int, ...]) -> Value:
    """A value broadcast to a shape."""
    if source.shape == shape:
        return source
    target = build.temporary(source.dtype, shape)
    build.move(source, target, broadcast_strides(source.shape, shape), 0)
    return target


def _cast(build: PlanBuilder, source: Value, dtype: DType) -> Value:
    target = build.temporary(dtype, source.shape)
    _cast_into(build, source, target)
    return target


def _cast_into(build: PlanBuilder, source: Value, target: Value) -> None:
    count = elements(target.shape)
    build.emit(
        "cast",
        spec={"X_TYPE": source.dtype, "Y_TYPE": target.dtype},
        params={"count": count},
        operands=(source, target),
        columns=destination_words(target.dtype, count),
    )
