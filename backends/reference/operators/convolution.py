"""Convolutions and matrix products: TOSA 1.0 sections 2.2.3 to 2.2.10.

Products are formed one kernel tap at a time as matrix products in binary64. Integer
operands have at most 16 bits, so their sums are exact there (below 2**53) as long as
fewer than 2**22 products are added; longer ones are summed in int64.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tosavk.backends.reference.call import Call, Handler
from tosavk.backends.reference.operators.windows import Axis, axes, taps
from tosavk.backends.reference.values import Array
from tosavk.lowering.graph import Op

_EXACT = 1 << 22
_ALL: Any = slice(None)


def _operand(call: Call, index: int, zero_point: int) -> Array:
    """A float64 operand with its zero point taken off."""
    value = call[index]
    if not call.types[index].is_float:
        value = value - call.scalar(zero_point)
    return np.asarray(value, np.float64)


def _finish(call: Call, sums: Array, bias: Array | None) -> list[Array]:
    """Adds the bias to the sums and brings integers back to int64."""
    if call.dtype.is_float:
        return [sums if bias is None else sums + bias]
    total = np.rint(sums).astype(np.int64)
    if bias is not None:
        total = total + bias
    return [call.check_range(total, call.out_type)]


def _convolve(call: Call, window: tuple[Axis, ...]) -> list[Array]:
    """CONV2D and CONV3D: x (N, spatial, C), weights (OC, kernel, C), bias (OC or 1)."""
    x, weights = _operand(call, 0, 3), _operand(call, 1, 4)
    out = np.zeros((x.shape[0], *(a.out for a in window), weights.shape[0]))
    for index, source, target in taps(window):
        out[(_ALL, *target)] += x[(_ALL, *source)] @ weights[(_ALL, *index)].T
    return _finish(call, out, call[2])


def _window(call: Call, kernel: tuple[int, ...]) -> tuple[Axis, ...]:
    rank = len(kernel)
    return axes(
        call[0].shape[1 : 1 + rank],
        kernel,
        call.numbers("stride"),
        call.numbers("dilation"),
        call.numbers("pad"),
    )


def _conv2d(call: Call) -> list[Array]:
    return _convolve(call, _window(call, call[1].shape[1:3]))


def _conv3d(call: Call) -> list[Array]:
    return _convolve(call, _window(call, call[1].shape[1:4]))


def _depthwise_conv2d(call: Call) -> list[Array]:
    """Weights (KH, KW, C, M); output channel c * M + m."""
    x, weights = _operand(call, 0, 3), _operand(call, 1, 4)
    window = _window(call, weights.shape[:2])
    multiplier = weights.shape[3]
    out = np.zeros((x.shape[0], *(a.out for a in window), x.shape[3] * multiplier))
    for index, source, target in taps(window):
        part = x[(_ALL, *source)]
        for m in range(multiplier):
            chosen = (_ALL, *target, slice(m, None, multiplier))
            out[chosen] += part * weights[index][:, m]
    return _finish(call, out, call[2])


def _transpose_conv2d(call: Call) -> list[Array]:
    """Each input element adds its kernel to the output; out_pad may be negative."""
    x, weights = _operand(call, 0, 3), _operand(call, 1, 4)
    stride, pad = call.numbers("stride"), call.numbers("out_pad")
    kernel = weights.shape[1:3]
    # The output positions of a tap are the input positions of the window that runs
    # the other way, with the output as its input.
    sizes = tuple(
        (x.shape[1 + i] - 1) * stride[i] + pad[2 * i] + pad[2 * i + 1] + kernel[i]
        for i in range(2)
    )
    out = np.zeros((x.shape[0], *sizes, weights.shape[0]))
    for index in itertools.product(range(kernel[0]), range(kernel[1])):
        spans: list[tuple[slice, slice]] = []
        for i in range(2):
            shift = index[i] + pad[2 * i]
            first = max(0, -(shift // stride[i]))
            last = min(x.shape[1 + i] - 1, (sizes[i] - 1 - shift) // stride[i])
            if last >= first:
                start = first * stride[i] + shift
                stop = last * stride[i] + shift + 1
                spans.append((slice(first, last + 1), slice(start, stop, stride[i])))
        if len(spans) == 2:
            matrix = weights[:, index[0], index[1]].T
            source, target = (s[0] for s in spans), (s[1] for s in spans)
            out[(_ALL, *target)] += x[(_ALL, *source)] @ matrix
    return _finish(call, out, call[2])


def _matmul(call: Call) -> list[Array]:
    if not call.dtype.is_float and call[0].shape[2] >= _EXACT:
        product = (call[0] - call.scalar(2)) @ (call[1] - call.scalar(3))
        return [call.check_range(product, call.out_type)]
    return _finish(call, _operand(call, 0, 2) @ _operand(call, 1, 3), None)


HANDLERS: dict[Op, Handler] = {
    Op.CONV2D: _conv2d,
    Op.CONV3D: _conv3d,
    Op.DEPTHWISE_CONV2D: _depthwise_conv2d,
    Op.TRANSPOSE_CONV2D: _transpose_conv2d,
    Op.MATMUL: _matmul,
}
