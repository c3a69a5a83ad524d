"""The rule of CONV3D."""

from __future__ import annotations

import numpy as np

from tosavk.lowering.builder import PlanBuilder
from tosavk.lowering.graph import Operator
from tosavk.lowering.rules import quantized
from tosavk.lowering.rules.operands import (
    bias_row,
    filled,
    narrow,
    require_float,
    result_of,
    round_up,
    widened,
)
from tosavk.lowering.rules.parts import parts

TILE = 4
"""Pixels of one invocation."""

_CHANNELS = 4


def conv3d(op: Operator, build: PlanBuilder) -> None:
    """CONV3D of NDHWC; weight [OC, KD, KH, KW, IC]."""
    if build.tensor(op.inputs[0]).dtype.is_integer:
        quantized.conv3d(op, build)
        return
    require_float(op, build, op.inputs)
    oc, kd, kh, kw, ic = build.shape(op.inputs[1])
    stride, dilation, pad = (
        _numbers(op, field) for field in ("stride", "dilation", "pad")
    )
    width = round_up(oc, _CHANNELS)
    x = widened(build, op.inputs[0])
    w = filled(
        build,
        op.inputs[1],
        seen_as=(oc, kd, kh, kw, ic),
        axes=(1, 2, 3, 4, 0),
        shape=(kd, kh, kw, ic, width),
    )
    bias = bias_row(build, op.inputs[2], oc, width)
    y = result_of(op, build)
    columns = width // _CHANNELS
    batch, od, oh, ow, _ = y.shape
    tiles = -(-ow // TILE)
    count = batch * od * oh * tiles * columns
    skip = int(any(pad) and not _finite(op, build))
    every = parts(z=kd, y=kh, x=kw, c=ic)
    for part in every:
        build.emit(
            "conv3d",
            spec={"SKIP": skip, "PART": int(len(every) > 1)},
            params={
                "count": count,
                "columns": columns,
                "tiles": tiles,
                **dict(zip(("id", "ih", "iw", "ic"), x.shape[1:], strict=True)),
                **dict(zip(("od", "oh", "ow", "oc"), y.shape[1:], strict=True)),
                "kd": kd,
                "kh": kh,
                "kw": kw,
                **dict(zip(("sz", "sy", "sx"), stride, strict=True)),
                **dict(zip(("dz", "dy", "dx"), dilation, strict=True)),
                **dict(
                    zip(("pad_front", "pad_top", "pad_left"), pad[::2], strict=True)
                ),
                **part,
            },
            operands=(x, w, bias, y),
            columns=count,
        )
    narrow(op, build, y)


def _numbers(op: Operator, field: str) -> tuple[int, ...]:
    value = op.attributes[field]
    assert isinstance(value, tuple)
    return value


def _finite(op: Operator, build: PlanBuilder) -> bool:
    """Whether the weights are known to be finite, so that 0 * w is always 0."""
    weights = build.constant(op.inputs[1])
    return weights is not None and bool(np.isfinite(weights.astype(np.float32)).all())
