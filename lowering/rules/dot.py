"""Operands of the INT8 kernels that make integer dot products.

A word holds four input channels there, and zero points stay outside the products:

    sum (x - zx) (w - zw) = sum x w - zx * sum w - zw * sum x + n * zx * zw

What the zero point of x adds is the same for every pixel, since a tap outside x counts as
that zero point; where all of it is known at load, it goes into the bias. All sums wrap
around, so the result is exact wherever INT32 is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType
from tosavk.core.plan import Plan
from tosavk.lowering.builder import (
    PlanBuilder,
    Value,
    element_strides,
)
from tosavk.lowering.graph import Op, Operator
from tosavk.lowering.rules.integers import filled_bytes, number_row, padded
from tosavk.lowering.rules.operands import round_up

NEED = "int8_dot"
KERNELS = frozenset({"conv_dot", "matmul_dot"})
X_ZERO = 1
"""Bit of SUMS: the kernel adds what the zero point of x makes."""
W_ZERO = 2
"""Bit of SUMS: the zero point of the weights may be other than 0."""
_LANES = 4


def dispatches_dots(plans: Sequence[Plan]) -> bool:
    """Whether plans run kernels with integer dot products."""
    return any(
        dispatch.kernel in KERNELS
        for plan in plans
        for dispatch in (*plan.prologue, *plan.dispatches)
    )


def takes_dots(build: PlanBuilder, dtype: DType) -> bool:
    """Whether products of this type are made by integer dot products."""
    return dtype is DType.INT8 and not build.limits.lack(NEED)


def zero_point_sums(build: PlanBuilder, x_zero: str, w_zero: str) -> int:
    """The SUMS word, if nothing is in the bias.

    Args:
        build: the plan builder.
        x_zero: the zero point of x.
        w_zero: the zero point of the other factor.
    """
    return X_ZERO * _may_be_other(build, x_zero) | W_ZERO * _may_be_other(build, w_zero)


def dot_bias(op: Operator, build: PlanBuilder) -> tuple[Value, int, int]:
    """The number row of a convolution, its `bias_step` and the SUMS word."""
    weights, bias, x_zero, w_zero = (build.constant(n) for n in op.inputs[1:5])
    sums = zero_point_sums(build, op.inputs[3], op.inputs[4])
    row = number_row(build, (op.inputs[3], op.inputs[4], op.inputs[2]))
    step = int(build.shape(op.inputs[2])[0] > 1)
    # A transposed convolution skips most taps, which it could not with such a bias.
    if (
        op.op is Op.TRANSPOSE_CONV2D
        or not sums & X_ZERO
        or weights is None
        or bias is None
        or x_zero is None
        or w_zero is None
    ):
        return row, step, sums
    channels = weights.reshape(weights.shape[0], -1).astype(np.int64)
    shifted = (channels - int(w_zero.reshape(-1)[0])).sum(axis=1)
    folded = bias.astype(np.int64).reshape(-1) - int(x_zero.reshape(-1)[0]) * shifted
    numbers = np.concatenate([x_zero.reshape(-1), w_zero.reshape(-1), folded])
    key = ("dot bias", *op.inputs[1:5])
    return build.literal(key, DType.INT32, _wrapped(numbers)), 1, sums & ~X_ZERO


def dot_weights(build: PlanBuilder, name: str, *, width: int) -> Value:
    """Weights [OC, ..., IC] as [taps][IC / 4][width] words of four input channels.

    Args:
        build: the plan builder.
        name: an INT8 or INT4 tensor.
        width: output channels, filled up with zeros.
    """
    oc, *size, ic = build.shape(name)
    taps, depth = math.prod(size), round_up(ic, _LANES)
    array = build.constant(name)
    if array is not None:
        room = ((0, width - oc), (0, 0), (0, depth - ic))
        filled = np.pad(array.reshape(oc, taps, ic), room)
        words = filled.reshape(width, taps, depth // _LANES, _LANES)
        return build.literal(
            ("dot weights", name, width), DType.INT8, words.transpose(1, 2, 0, 3)
        )
    rows = filled_bytes(
        build, name, seen_as=(oc, taps, ic), axes=(0, 1, 2), width=depth
    )
    wanted = (taps, depth // _LANES, width, _LANES)
    strides = element_strides((oc, taps, depth // _LANES, _LANES))
    dims = (taps, depth // _LANES, oc, _LANES)
    return padded(build, rows, wanted, dims, [strides[axis] for axis in (1, 2, 0, 3)])


def _may_be_other(build: PlanBuilder, zero_point: str) -> bool:
    """Whether a zero point is other than 0, or not known at load."""
    array = build.constant(zero_point)
    return array is None or bool(np.any(array))


def _wrapped(numbers: NDArray[np.generic]) -> NDArray[np.int32]:
    low = numbers.astype(np.int64) & 0xFFFF_FFFF
    words: NDArray[np.int32] = low.astype(np.uint32).view(np.int32)
    return words
