"""Rules of the convolutions.

Weights are laid out so that neighbouring invocations read neighbouring output
channels, and are filled up with zero channels to whole vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tosavk.lowering.builder import PlanBuilder, Value
from tosavk.lowering.graph import Operator
from tosavk.lowering.rules import quantized
from tosavk.lowering.rules.operands import (
    bias_row,
    filled,
    narrow,
    pair,
    quad,
    require_float,
    result_of,
    round_up,
    widened,
)
from tosavk.lowering.rules.parts import parts

TILE = 4
"""Pixels of one invocation, in conv2d and depthwise_conv2d."""

_CHANNELS = 8
_DEPTHWISE_CHANNELS = 4
_WIDEST_ROW = 5


@dataclass(frozen=True, slots=True)
class _Window:
    """How the kernel steps over the image, (y, x) each."""

    size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]

    def params(self, x: Value, y: Value) -> Mapping[str, int]:
        """The parameter words that all convolutions share."""
        return {
            "ih": x.shape[1],
            "iw": x.shape[2],
            "ic": x.shape[3],
            "oh": y.shape[1],
            "ow": y.shape[2],
            "oc": y.shape[3],
            "kh": self.size[0],
            "kw": self.size[1],
            "sy": self.stride[0],
            "sx": self.stride[1],
            "dy": self.dilation[0],
            "dx": self.dilation[1],
            "pad_top": self.pads[0],
            "pad_left": self.pads[2],
        }


def conv2d(op: Operator, build: PlanBuilder) -> None:
    """CONV2D; weight [OC, KH, KW, IC]."""
    if build.tensor(op.inputs[0]).dtype.is_integer:
        quantized.conv2d(op, build)
        return
    _, kh, kw, _ = build.shape(op.inputs[1])
    window = _Window(
        (kh, kw), pair(op, "stride"), pair(op, "dilation"), quad(op, "pad")
    )
    _convolve(op, build, window, leaves_image=any(window.pads))


def transpose_conv2d(op: Operator, build: PlanBuilder) -> None:
    """TRANSPOSE_CONV2D in gather form; weight [OC, KH, KW, IC]."""
    if build.tensor(op.inputs[0]).dtype.is_integer:
        quantized.transpose_conv2d(op, build)
        return
    _, kh, kw, _ = build.shape(op.inputs[1])
    window = _Window((kh, kw), pair(op, "stride"), (1, 1), quad(op, "out_pad"))
    _convolve(op, build, window, leaves_image=True)


def _convolve(
    op: Operator, build: PlanBuilder, window: _Window, *, leaves_image: bool
) -> None:
    require_float(op, build, op.inputs)
    oc, kh, kw, ic = build.shape(op.inputs[1])
    width = round_up(oc, _CHANNELS)
    x = widened(build, op.inputs[0])
    w = filled(
        build,
        op.inputs[1],
        seen_as=(oc, kh, kw, ic),
        axes=(1, 2, 3, 0),
        shape=(kh, kw, ic, width),
    )
    bias = bias_row(build, op.inputs[2], oc, width)
    y = result_of(op, build)
    columns = width // _CHANNELS
    tiles = -(-y.shape[1] * y.shape[2] // TILE)
    count = y.shape[0] * tiles * columns
    skip = int(leaves_image and not _finite(op, build))
    every = parts(y=kh, x=kw, c=ic)
    for part in every:
        build.emit(
            "conv2d",
            spec={
                "OP": op.op,
                "FOURS": int(ic % 4 == 0),
                "SKIP": skip,
                "PART": int(len(every) > 1),
            },
            params={
                "count": count,
                "columns": columns,
                "tiles": tiles,
                **window.params(x, y),
                **part,
            },
            operands=(x, w, bias, y),
            columns=count,
        )
    narrow(op, build, y)


def depthwise_conv2d(op: Operator, build: PlanBuilder) -> None:
    """DEPTHWISE_CONV2D; weight [KH, KW, C, M], output channel c * M + m."""
    if build.tensor(op.inputs[0]).dtype.is_integer:
        quantized.depthwise_conv2d(op, build)
        return
    require_float(op, build, op.inputs)
    kh, kw, c, multiplier = build.shape(op.inputs[1])
    window = _Window(
        (kh, kw), pair(op, "stride"), pair(op, "dilation"), quad(op, "pad")
    )
    oc = c * multiplier
    width = round_up(oc, _DEPTHWISE_CHANNELS)
    x = widened(build, op.inputs[0])
    w = filled(
        build,
        op.inputs[1],
        seen_as=(kh, kw, oc),
        axes=(0, 1, 2),
        shape=(kh, kw, width),
    )
    bias = bias_row(build, op.inputs[2], oc, width)
    y = result_of(op, build)
    columns = width // _DEPTHWISE_CHANNELS
    tiles = -(-y.shape[2] // TILE)
    count = y.shape[0] * y.shape[1] * tiles * columns
    fours = multiplier == 1 and width == oc
    sx, dx = window.stride[1], window.dilation[1]
    by_rows = fours and dx == 1 and sx <= 2 and 1 < kw <= _WIDEST_ROW
    skip = int(any(window.pads) and not _finite(op, build))
    # A row of taps always fits (level 8K).
    every = parts(y=kh, x=kw)
    for part in every:
        build.emit(
            "depthwise_conv2d",
            spec={
                "KW": kw if by_rows else 0,
                "SX": sx if by_rows else 0,
                "FOURS": int(fours),
                "SKIP": skip,
                "PART": int(len(every) > 1),
            },
            params={
                "count": count,
                "columns": columns,
                "tiles": tiles,
                **window.params(x, y),
                "multiplier": multiplier,
                "y_first": part["y_first"],
                "y_last": part["y_last"],
            },
            operands=(x, w, bias, y),
            columns=count,
        )
    narrow(op, build, y)


def _finite(op: Operator, build: PlanBuilder) -> bool:
    """Whether the weights are known to be finite, so that 0 * w is always 0."""
    weights = build.constant(op.inputs[1])
    return weights is not None and bool(np.isfinite(weights.astype(np.float32)).all())
