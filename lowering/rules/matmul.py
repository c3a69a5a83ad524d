"""The rule of MATMUL."""

from __future__ import annotations

from tosavk.lowering.builder import PlanBuilder
from tosavk.lowering.graph import Operator
from tosavk.lowering.rules import quantized
from tosavk.lowering.rules.operands import (
    filled,
    narrow,
    require_float,
    result_of,
    round_up,
    widened,
)
from tosavk.lowering.rules.parts import parts

TILE = 8
"""Rows of one invocation."""

_COLUMNS = 8
_VECTOR = 4


def matmul(op: Operator, build: PlanBuilder) -> None:
    """MATMUL [N, H, C] x [N, C, W]; rows of the second are filled up to vectors."""
    if build.tensor(op.inputs[0]).dtype.is_integer:
        quantized.matmul(op, build)
        return
    require_float(op, build, op.inputs)
    n, h, c = build.shape(op.inputs[0])
    w = build.shape(op.inputs[1])[2]
    row = round_up(w, _VECTOR)
    a = widened(build, op.inputs[0])
    b = filled(
        build, op.inputs[1], seen_as=(n, c, w), axes=(0, 1, 2), shape=(n, c, row)
    )
    y = result_of(op, build)
    columns = -(-w // _COLUMNS)
    tiles = -(-h // TILE)
    count = n * tiles * columns
    every = parts(c=c)
    for part in every:
        build.emit(
            "matmul",
            spec={"FOURS": int(c % _VECTOR == 0), "PART": int(len(every) > 1)},
            params={
                "count": count,
                "columns": columns,
                "tiles": tiles,
                "h": h,
                "c": c,
                "w": w,
                "row": row // _VECTOR,
                **part,
            },
            operands=(a, b, y),
            columns=count,
        )
    narrow(op, build, y)
