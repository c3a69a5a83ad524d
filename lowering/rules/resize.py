"""Rule for RESIZE."""

from __future__ import annotations

from tosavk.core.dtypes import elements
from tosavk.lowering.builder import PlanBuilder, destination_words
from tosavk.lowering.graph import Operator


def resize(op: Operator, build: PlanBuilder) -> None:
    """RESIZE of NHWC; scale, offset and border are known at load."""
    source, target = build.value(op.inputs[0]), build.result(op.outputs[0])
    scale = build.integers(op, op.inputs[1])
    offset = build.integers(op, op.inputs[2])
    mode = op.attributes["mode"]
    assert isinstance(mode, int)
    count = elements(target.shape)
    build.emit(
        "resize",
        spec={"MODE": mode, "TYPE": source.dtype, "Y_TYPE": target.dtype},
        params={
            "count": count,
            "ih": source.shape[1],
            "iw": source.shape[2],
            "c": source.shape[3],
            "oh": target.shape[1],
            "ow": target.shape[2],
            "scale_y_n": scale[0],
            "scale_y_d": scale[1],
            "scale_x_n": scale[2],
            "scale_x_d": scale[3],
            "offset_y": offset[0],
            "offset_x": offset[1],
        },
        operands=(source, target),
        columns=destination_words(target.dtype, count),
    )
