"""Rules for reductions and ARGMAX."""

from __future__ import annotations

import math

from tosavk.core.dtypes import elements
from tosavk.lowering.builder import PlanBuilder, destination_words
from tosavk.lowering.graph import Operator


def reduce(op: Operator, build: PlanBuilder) -> None:
    """REDUCE_* and ARGMAX over (outer, axis, inner)."""
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    source, target = build.value(op.inputs[0]), build.result(op.outputs[0])
    mode = op.attributes.get("nan_mode", 0)
    assert isinstance(mode, int)
    count = elements(target.shape)
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
            "axis": source.shape[axis],
            "inner": math.prod(source.shape[axis + 1 :]),
        },
        operands=(source, target),
        columns=destination_words(target.dtype, count),
    )
