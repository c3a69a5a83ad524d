"""Rules of the pooling operators."""

from __future__ import annotations

from tosavk.core.dtypes import elements
from tosavk.lowering.builder import PlanBuilder, destination_words
from tosavk.lowering.graph import NanMode, Operator
from tosavk.lowering.rules import scaling
from tosavk.lowering.rules.operands import pair, quad, require_float


def max_pool2d(op: Operator, build: PlanBuilder) -> None:
    """MAX_POOL2D of floats and integers."""
    mode = NanMode.PROPAGATE
    if build.tensor(op.inputs[0]).dtype.is_float:
        attribute = op.attributes.get("nan_mode", NanMode.PROPAGATE)
        assert isinstance(attribute, int)
        mode = NanMode(attribute)
    _pool(op, build, mode)


def avg_pool2d(op: Operator, build: PlanBuilder) -> None:
    """AVG_POOL2D of floats."""
    if build.tensor(op.inputs[0]).dtype.is_integer:
        scaling.avg_pool2d(op, build)
        return
    require_float(op, build, op.inputs)
    _pool(op, build, NanMode.PROPAGATE)


def _pool(op: Operator, build: PlanBuilder, mode: NanMode) -> None:
    x = build.value(op.inputs[0])
    y = build.result(op.outputs[0])
    kh, kw = pair(op, "kernel")
    sh, sw = pair(op, "stride")
    pad_top, _, pad_left, _ = quad(op, "pad")
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
            "kh": kh,
            "kw": kw,
            "sh": sh,
            "sw": sw,
            "pad_top": pad_top,
            "pad_left": pad_left,
        },
        operands=(x, y),
        columns=destination_words(y.dtype, count),
    )
