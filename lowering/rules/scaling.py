"""Rules of RESCALE, TABLE and AVG_POOL2D of integers."""

from __future__ import annotations

from tosavk.core.dtypes import DType, elements
from tosavk.lowering.builder import PlanBuilder, Value, destination_words
from tosavk.lowering.graph import Operator, RoundingMode
from tosavk.lowering.rules.integers import number_row
from tosavk.lowering.rules.operands import pair, quad

_LARGEST_WINDOW = 1 << 13
"""Most taps of a window in one dispatch, whose invocations make four elements each."""


def rescale(op: Operator, build: PlanBuilder) -> None:
    """RESCALE; INEXACT_ROUND may do what SINGLE_ROUND does."""
    x, y = build.value(op.inputs[0]), build.result(op.outputs[0])
    _, multiplier, shift, x_zero, y_zero = op.inputs
    # INT48 has no zero point; the word in its place is not read.
    first = y_zero if x.dtype is DType.INT48 else x_zero
    count = elements(y.shape)
    build.emit(
        "rescale",
        spec={
            "X_TYPE": x.dtype,
            "Y_TYPE": y.dtype,
            "X_UNSIGNED": _flag(op, "input_unsigned"),
            "Y_UNSIGNED": _flag(op, "output_unsigned"),
            "TWICE": int(op.attributes["rounding_mode"] == RoundingMode.DOUBLE_ROUND),
        },
        params={
            "count": count,
            "channels": x.shape[-1] if _flag(op, "per_channel") else 1,
        },
        operands=(x, number_row(build, (first, y_zero, multiplier, shift)), y),
        columns=destination_words(y.dtype, count),
    )


def _flag(op: Operator, name: str) -> int:
    return int(bool(op.attributes[name]))


def table(op: Operator, build: PlanBuilder) -> None:
    """TABLE: INT8 looked up, INT16 interpolated to INT32."""
    x, entries = build.value(op.inputs[0]), build.value(op.inputs[1])
    y = build.result(op.outputs[0])
    count = elements(y.shape)
    build.emit(
        "table",
        spec={"TYPE": x.dtype},
        params={"count": count},
        operands=(x, entries, y),
        columns=destination_words(y.dtype, count),
    )


def avg_pool2d(op: Operator, build: PlanBuilder) -> None:
    """AVG_POOL2D of INT8 and INT16; large windows are summed along x, then along y."""
    x, y = build.value(op.inputs[0]), build.result(op.outputs[0])
    zeros = number_row(build, op.inputs[1:3])
    kernel = pair(op, "kernel")
    rows, columns = (min(k, n) for k, n in zip(kernel, x.shape[1:3], strict=True))
    if rows * (columns + 1) <= _LARGEST_WINDOW:
        _average(op, build, (x, zeros, y), stage=0, dims=x.shape)
        return
    batch, ih, _, c = x.shape
    sums = build.temporary(DType.INT32, (batch, ih, y.shape[2], c))
    _average(op, build, (x, zeros, sums), stage=1, dims=x.shape)
    _average(op, build, (sums, zeros, y), stage=2, dims=x.shape)


def _average(
    op: Operator,
    build: PlanBuilder,
    operands: tuple[Value, Value, Value],
    *,
    stage: int,
    dims: tuple[int, ...],
) -> None:
    target = operands[2]
    kh, kw = pair(op, "kernel")
    sh, sw = pair(op, "stride")
    pad_top, _, pad_left, _ = quad(op, "pad")
    _, oh, ow, _ = build.shape(op.outputs[0])
    count = elements(target.shape)
    build.emit(
        "avg_pool_int",
        spec={"TYPE": build.tensor(op.inputs[0]).dtype, "STAGE": stage},
        params={
            "count": count,
            "ih": dims[1],
            "iw": dims[2],
            "c": dims[3],
            "oh": oh,
            "ow": ow,
            "kh": kh,
            "kw": kw,
            "sh": sh,
            "sw": sw,
            "pad_top": pad_top,
            "pad_left": pad_left,
        },
        operands=operands,
        columns=destination_words(target.dtype, count),
    )
