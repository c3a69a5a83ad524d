"""CAST and RESIZE: TOSA 1.0 sections 2.12.1 and 2.13."""

from __future__ import annotations

import numpy as np

from tosavk.backends.reference.call import Call, Handler
from tosavk.backends.reference.values import Array, integer_range
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Op, ResizeMode


def _cast(call: Call) -> list[Array]:
    """Float to integer is to nearest even and saturates; integers wrap."""
    x, target = call[0], call.out_type
    if target is DType.BOOL:
        return [x != 0]
    if call.dtype.is_float and not target.is_float:
        low, high = integer_range(target)
        call.unpredictable_if(np.isnan(x), "NaN has no integer value")
        whole = np.nan_to_num(np.rint(x), nan=0.0, posinf=np.inf, neginf=-np.inf)
        return [np.clip(whole, low, high).astype(np.int64)]
    if target.is_float:
        return [x.astype(np.float64)]
    return [x.astype(np.int64)]


def _positions(
    out: int, size: int, numerator: int, denominator: int, offset: int
) -> tuple[Array, Array, Array]:
    """Lower and upper input index and the remainder, for each output position."""
    scaled = np.arange(out, dtype=np.int64) * denominator + offset
    index = scaled // numerator
    lower = np.clip(index, 0, size - 1)
    upper = np.clip(index + 1, 0, size - 1)
    return lower, upper, scaled - index * numerator


def _resize(call: Call) -> list[Array]:
    """X (N, IH, IW, C); scale (y_n, y_d, x_n, x_d), offset (y, x), border (y, x)."""
    x = call[0]
    y_n, y_d, x_n, x_d = call.sizes(1)
    offset, border = call.sizes(2), call.sizes(3)
    high = ((x.shape[1] - 1) * y_n - offset[0] + border[0]) // y_d + 1
    wide = ((x.shape[2] - 1) * x_n - offset[1] + border[1]) // x_d + 1
    y0, y1, dy = _positions(high, x.shape[1], y_n, y_d, offset[0])
    x0, x1, dx = _positions(wide, x.shape[2], x_n, x_d, offset[1])
    if call.integer("mode") == ResizeMode.NEAREST:
        rows = np.where(2 * dy >= y_n, y1, y0)
        columns = np.where(2 * dx >= x_n, x1, x0)
        return [x[:, rows][:, :, columns]]
    if call.dtype.is_float:
        down, right = dy / y_n, dx / x_n
        up, left = 1.0 - down, 1.0 - right
    else:
        down, right, up, left = dy, dx, y_n - dy, x_n - dx
    down, up = down[None, :, None, None], up[None, :, None, None]
    right, left = right[None, None, :, None], left[None, None, :, None]
    top, bottom = x[:, y0], x[:, y1]
    total = top[:, :, x0] * up * left
    total = total + top[:, :, x1] * up * right
    total = total + bottom[:, :, x0] * down * left
    return [total + bottom[:, :, x1] * down * right]


HANDLERS: dict[Op, Handler] = {Op.CAST: _cast, Op.RESIZE: _resize}
