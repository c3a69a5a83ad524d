"""Rules for reductions and ARGMAX."""

from __future__ import annotations

import math

from tosavk.core.dtypes import DType, elements
from tosavk.lowering.builder import PlanBuilder, Value, destination_words
from tosavk.lowering.graph import Op, Operator
from tosavk.lowering.rules.parts import LONGEST

_TOTALS = frozenset({Op.REDUCE_SUM, Op.REDUCE_PRODUCT})


def reduce(op: Operator, build: PlanBuilder) -> None:
    """REDUCE_* and ARGMAX over (outer, axis, inner).

    A long axis is dealt out to several dispatches, each of which goes on from the
    result. Totals of narrow floats are kept in FP32 between them.
    """
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    source, target = build.value(op.inputs[0]), build.result(op.outputs[0])
    # An invocation makes every element of a word.
    step = LONGEST * target.dtype.bits // 32
    length = source.shape[axis]
    if (
        length > step
        and op.op in _TOTALS
        and source.dtype.is_float
        and source.dtype is not DType.FP32
    ):
        wide = build.temporary(DType.FP32, source.shape)
        total = build.temporary(DType.FP32, target.shape)
        _cast(build, source, wide)
        _fold(op, build, wide, total, LONGEST)
        _cast(build, total, target)
        return
    _fold(op, build, source, target, step)


def _fold(
    op: Operator, build: PlanBuilder, source: Value, target: Value, step: int
) -> None:
    axis, mode = op.attributes["axis"], op.attributes.get("nan_mode", 0)
    assert isinstance(axis, int)
    assert isinstance(mode, int)
    count = elements(target.shape)
    length = source.shape[axis]
    for first in range(0, length, step):
        build.emit(
            "reduce",
            spec={
                "OP": op.op,
                "TYPE": source.dtype,
                "Y_TYPE": target.dtype,
                "MODE": mode if source.dtype.is_float else 0,
            },
            params={
                "count": count,
                "axis": length,
                "inner": math.prod(source.shape[axis + 1 :]),
                "first": first,
                "last": min(first + step, length),
            },
            operands=(source, target),
            columns=destination_words(target.dtype, count),
        )


def _cast(build: PlanBuilder, source: Value, target: Value) -> None:
    count = elements(target.shape)
    build.emit(
        "cast",
        spec={"X_TYPE": source.dtype, "Y_TYPE": target.dtype},
        params={"count": count},
        operands=(source, target),
        columns=destination_words(target.dtype, count),
    )
