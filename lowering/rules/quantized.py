"""Rules of convolutions and the matrix product of integers.

INT8 operands are summed in INT32, INT16 ones in INT48. Where the device has integer dot
products, INT8 convolutions and products take them (`lowering.rules.dot`). Otherwise
weights are laid out so that a word holds four neighbouring output channels.

Long sums are dealt out to several dispatches (`lowering.rules.parts`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tosavk.core.dtypes import DType
from tosavk.lowering.builder import PlanBuilder, element_strides
from tosavk.lowering.graph import Operator
from tosavk.lowering.rules.dot import (
    dot_bias,
    dot_weights,
    takes_dots,
    zero_point_sums,
)
from tosavk.lowering.rules.integers import (
    filled_bytes,
    filled_rows,
    filled_up,
    number_row,
)
from tosavk.lowering.rules.operands import round_up
from tosavk.lowering.rules.parts import parts

_PIXELS = 4
_CHANNELS = 8
_DEPTHWISE_CHANNELS = 4
_ROWS = 8
_GROUP = 4
_WIDEST_ROW = 5


@dataclass(frozen=True, slots=True)
class _Window:
    """How the kernel steps over a volume, (z, y, x) each; an image has depth 1."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]

    def params(self) -> Mapping[str, int]:
        """The parameter words."""
        words: dict[str, int] = {}
        for field, values in (
            (("kh", "kw"), self.size[1:]),
            (("sz", "sy", "sx"), self.stride),
            (("dz", "dy", "dx"), self.dilation),
            (("pad_front", "pad_top", "pad_left"), self.before),
        ):
            words.update(zip(field, values, strict=True))
        return words


def _numbers(op: Operator, field: str) -> tuple[int, ...]:
    value = op.attributes[field]
    assert isinstance(value, tuple)
    return value


def conv2d(op: Operator, build: PlanBuilder) -> None:
    """CONV2D; weight [OC, KH, KW, IC]."""
    _, *kernel, _ = build.shape(op.inputs[1])
    window = _Window(
        (1, *kernel),
        (1, *_numbers(op, "stride")),
        (1, *_numbers(op, "dilation")),
        (0, *_numbers(op, "pad")[::2]),
    )
    _convolve(op, build, window)


def conv3d(op: Operator, build: PlanBuilder) -> None:
    """CONV3D; weight [OC, KD, KH, KW, IC]."""
    _, *kernel, _ = build.shape(op.inputs[1])
    window = _Window(
        tuple(kernel),
        _numbers(op, "stride"),
        _numbers(op, "dilation"),
        _numbers(op, "pad")[::2],
    )
    _convolve(op, build, window)


def transpose_conv2d(op: Operator, build: PlanBuilder) -> None:
    """TRANSPOSE_CONV2D in gather form; weight [OC, KH, KW, IC]."""
    _, *kernel, _ = build.shape(op.inputs[1])
    window = _Window(
        (1, *kernel),
        (1, *_numbers(op, "stride")),
        (1, 1, 1),
        (0, *_numbers(op, "out_pad")[::2]),
    )
    _convolve(op, build, window)


def _convolve(op: Operator, build: PlanBuilder, window: _Window) -> None:
    oc, *_, ic = build.shape(op.inputs[1])
    width = round_up(oc, _CHANNELS)
    x, y = build.value(op.inputs[0]), build.result(op.outputs[0])
    spec = {"OP": int(op.op), "FOURS": int(ic % _GROUP == 0)}
    if takes_dots(build, x.dtype):
        kernel = "conv_dot"
        weights = dot_weights(build, op.inputs[1], width=width)
        row, step, spec["SUMS"] = dot_bias(op, build)
    else:
        kernel = "conv_int"
        spec["X_TYPE"] = int(x.dtype)
        weights = filled_bytes(
            build,
            op.inputs[1],
            seen_as=(oc, math.prod(window.size), ic),
            axes=(1, 2, 0),
            width=width,
        )
        row = number_row(build, (op.inputs[3], op.inputs[4], op.inputs[2]))
        step = int(build.shape(op.inputs[2])[0] > 1)
    source, target = _volume(x.shape), _volume(y.shape)
    columns = width // _CHANNELS
    tiles = -(-math.prod(target) // _PIXELS)
    count = y.shape[0] * tiles * columns
    for part in parts(**dict(zip("zyx", window.size, strict=True)), c=ic):
        build.emit(
            kernel,
            spec=spec,
            params={
                "count": count,
                "columns": columns,
                "tiles": tiles,
                **dict(zip(("id", "ih", "iw"), source, strict=True)),
                "ic": ic,
                **dict(zip(("od", "oh", "ow"), target, strict=True)),
                "oc": oc,
                **window.params(),
                **part,
                "bias_step": step,
            },
            operands=(x, weights, row, y),
            columns=count,
        )


def _volume(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Depth, height and width of NHWC or NDHWC."""
    return shape[1:4] if len(shape) == 5 else (1, *shape[1:3])


def depthwise_conv2d(op: Operator, build: PlanBuilder) -> None:
    """DEPTHWISE_CONV2D; weight [KH, KW, C, M], output channel c * M + m."""
    kh, kw, ic, multiplier = build.shape(op.inputs[1])
    sy, sx = _numbers(op, "stride")
    dy, dx = _numbers(op, "dilation")
    top, _, left, _ = _numbers(op, "pad")
    oc = ic * multiplier
    width = round_up(oc, _DEPTHWISE_CHANNELS)
    x, y = build.value(op.inputs[0]), build.result(op.outputs[0])
    weights = filled_bytes(
        build, op.inputs[1], seen_as=(kh * kw, oc), axes=(0, 1), width=width
    )
    row = number_row(build, (op.inputs[3], op.inputs[4], op.inputs[2]))
    columns = width // _DEPTHWISE_CHANNELS
    tiles = -(-y.shape[2] // _PIXELS)
    count = y.shape[0] * y.shape[1] * tiles * columns
    fours = multiplier == 1 and width == oc
    by_rows = fours and dx == 1 and sx <= 2 and 1 < kw <= _WIDEST_ROW
    for part in parts(y=kh, x=kw):
        build.emit(
            "depthwise_int",
            spec={
                "X_TYPE": x.dtype,
                "KW": kw if by_rows else 0,
                "SX": sx if by_rows else 0,
                "FOURS": int(fours),
            },
            params={
                "count": count,
                "columns": columns,
                "tiles": tiles,
                "ih": x.shape[1],
                "iw": x.shape[2],
                "ic": ic,
                "oh": y.shape[1],
                "ow": y.shape[2],
                "oc": oc,
                "kh": part["y_last"],
                "kw": kw,
                "sy": sy,
                "sx": sx,
                "dy": dy,
                "dx": dx,
                "pad_top": top,
                "pad_left": left,
                "multiplier": multiplier,
                "bias_step": int(build.shape(op.inputs[2])[0] > 1),
                "y_first": part["y_first"],
            },
            operands=(x, weights, row, y),
            columns=count,
        )


def matmul(op: Operator, build: PlanBuilder) -> None:
    """MATMUL [N, H, C] x [N, C, W]; rows of the second are filled up to fours."""
    n, h, c = build.shape(op.inputs[0])
    w = build.shape(op.inputs[1])[2]
    groups = -(-w // _GROUP)
    tiles = -(-h // _ROWS)
    count = n * tiles * groups
    x, y = build.value(op.inputs[0]), build.result(op.outputs[0])
    constant = build.constant(op.inputs[1])
    dtype: DType = build.tensor(op.inputs[1]).dtype
    if constant is not None:
        filled = filled_up(constant, _GROUP * groups)
        b = build.literal(("rows", op.inputs[1]), dtype, filled)
    else:
        b = build.value(op.inputs[1])
        if w % _GROUP:
            strides = element_strides(b.shape)
            b = filled_rows(build, b, b.shape, strides, _GROUP * groups)
    zeros = number_row(build, op.inputs[2:4])
    spec = {"FOURS": int(c % _GROUP == 0)}
    dots = takes_dots(build, x.dtype)
    if dots:
        spec["SUMS"] = zero_point_sums(build, op.inputs[2], op.inputs[3])
    else:
        spec["X_TYPE"] = int(x.dtype)
    for part in parts(c=c):
        build.emit(
            "matmul_dot" if dots else "matmul_int",
            spec=spec,
            params={
                "count": count,
                "tiles": tiles,
                "h": h,
                "c": c,
                "w": w,
                "row": groups,
                **part,
            },
            operands=(x, b, zeros, y),
            columns=count,
        )
