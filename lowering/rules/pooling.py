"""Rules of the pooling operators."""

from __future__ import annotations

from dataclasses import dataclass

from tosavk.core.dtypes import elements
from tosavk.lowering.builder import PlanBuilder, Value, destination_words
from tosavk.lowering.graph import NanMode, Operator
from tosavk.lowering.rules import scaling
from tosavk.lowering.rules.operands import (
    narrow,
    pair,
    quad,
    require_float,
    result_of,
    widened,
)
from tosavk.lowering.rules.parts import parts

_LARGEST_WINDOW = 1 << 13
"""Most taps of a window in one dispatch, whose invocations make up to four elements
each (docs/known-issues.md, loops)."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A window, (y, x) each."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]


def _window(op: Operator) -> _Window:
    top, _, left, _ = quad(op, "pad")
    return _Window(pair(op, "kernel"), pair(op, "stride"), (top, left))


def max_pool2d(op: Operator, build: PlanBuilder) -> None:
    """MAX_POOL2D of floats and integers; large windows go along x, then along y."""
    mode = NanMode.PROPAGATE
    if build.tensor(op.inputs[0]).dtype.is_float:
        attribute = op.attributes.get("nan_mode", NanMode.PROPAGATE)
        assert isinstance(attribute, int)
        mode = NanMode(attribute)
    x, y = build.value(op.inputs[0]), build.result(op.outputs[0])
    window = _window(op)
    (kh, kw), (sh, sw), (top, left) = window.kernel, window.stride, window.before
    batch, ih, iw, c = x.shape
    if min(kh, ih) * (min(kw, iw) + 1) <= _LARGEST_WINDOW:
        _pool(op, build, (x, y), window, mode)
        return
    # The first of equal elements is the same in both orders.
    rows = build.temporary(x.dtype, (batch, ih, y.shape[2], c))
    _pool(op, build, (x, rows), _Window((1, kw), (1, sw), (0, left)), mode)
    _pool(op, build, (rows, y), _Window((kh, 1), (sh, 1), (top, 0)), mode)


def avg_pool2d(op: Operator, build: PlanBuilder) -> None:
    """AVG_POOL2D of floats; the sums of large windows are dealt out in FP32."""
    if build.tensor(op.inputs[0]).dtype.is_integer:
        scaling.avg_pool2d(op, build)
        return
    require_float(op, build, op.inputs)
    window = _window(op)
    (kh, kw), x = window.kernel, build.value(op.inputs[0])
    if kh * (kw + 1) <= _LARGEST_WINDOW:
        operands = x, build.result(op.outputs[0])
        _pool(op, build, operands, window, NanMode.PROPAGATE)
        return
    y = result_of(op, build)
    wide = widened(build, op.inputs[0])
    # A row of taps always fits (level 8K).
    for part in parts(y=kh, x=kw):
        rows = part["y_first"], part["y_last"]
        _pool(op, build, (wide, y), window, NanMode.PROPAGATE, rows=rows)
    narrow(op, build, y)


def _pool(
    op: Operator,
    build: PlanBuilder,
    operands: tuple[Value, Value],
    window: _Window,
    mode: NanMode,
    *,
    rows: tuple[int, int] | None = None,
) -> None:
    """Pools; `rows` is the part of the window's rows that is summed, if not all."""
    x, y = operands
    first, last = rows or (0, window.kernel[0])
    count = elements(y.shape)
    build.emit(
        "pool2d",
        spec={"OP": op.op, "TYPE": x.dtype, "MODE": mode},
        params={
            "count": count,
            "ih": x.shape[1],
            "iw": x.shape[2],
            "c": x.shape[3],
            "oh": y.shape[1],
            "ow": y.shape[2],
            "kh": window.kernel[0],
            "kw": window.kernel[1],
            "sh": window.stride[0],
            "sw": window.stride[1],
            "pad_top": window.before[0],
            "pad_left": window.before[1],
            "y_first": first,
            "y_last": last,
        },
        operands=operands,
        columns=destination_words(y.dtype, count),
    )
