"""Rule for RESIZE."""

from __future__ import annotations

from tosavk.core.dtypes import DType, elements
from tosavk.lowering.builder import PlanBuilder, destination_words, whole_words
from tosavk.lowering.graph import Operator, ResizeMode


def resize(op: Operator, build: PlanBuilder) -> None:
    """RESIZE of NHWC; scale, offset and border are known at load."""
    source, target = build.value(op.inputs[0]), build.result(op.outputs[0])
    scale = build.integers(op, op.inputs[1])
    offset = build.integers(op, op.inputs[2])
    mode = op.attributes["mode"]
    assert isinstance(mode, int)
    types = source.dtype, target.dtype
    channels = source.shape[3]
    if mode == ResizeMode.NEAREST and types[0] is types[1]:
        dtype, lanes = whole_words(types[0], channels)
        channels //= lanes
        # Moved as they are, words may well be called FP32: that kernel is specialised.
        types = (DType.FP32,) * 2 if lanes > 1 else (dtype, dtype)
    count = elements((*target.shape[:3], channels))
    build.emit(
        "resize",
        spec={"MODE": mode, "TYPE": types[0], "Y_TYPE": types[1]},
        params={
            "count": count,
            "ih": source.shape[1],
            "iw": source.shape[2],
            "c": channels,
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
        columns=destination_words(types[1], count),
    )
