"""Pooling: TOSA 1.0 sections 2.2.2 and 2.2.8. Padded taps are skipped."""

from __future__ import annotations

import numpy as np

from tosavk.backends.reference.call import Call, Handler
from tosavk.backends.reference.operators.elementwise import maximum
from tosavk.backends.reference.operators.scaling import (
    Rounding,
    apply_scale,
    reciprocal_scale,
)
from tosavk.backends.reference.operators.windows import Axis, axes, taps
from tosavk.backends.reference.values import Array, integer_range
from tosavk.lowering.graph import Op


def _window(call: Call) -> tuple[Axis, ...]:
    return axes(
        call[0].shape[1:3],
        call.numbers("kernel"),
        call.numbers("stride"),
        (1, 1),
        call.numbers("pad"),
    )


def _max_pool2d(call: Call) -> list[Array]:
    x, window = call[0], _window(call)
    shape = (x.shape[0], *(a.out for a in window), x.shape[3])
    start: float = integer_range(call.dtype)[0] if not call.dtype.is_float else -np.inf
    if call.dtype.is_float and not call.propagate:
        start = np.nan  # stays only where every tap is NaN
    out = np.full(shape, start, x.dtype)
    for _, source, target in taps(window):
        chosen = (slice(None), *target)
        taken = x[(slice(None), *source)]
        out[chosen] = maximum(out[chosen], taken, propagate=call.propagate)
    return [out]


def _avg_pool2d(call: Call) -> list[Array]:
    x, window = call[0], _window(call)
    shape = (x.shape[0], *(a.out for a in window), x.shape[3])
    sums = np.zeros(shape, x.dtype)
    counts = np.zeros((1, *shape[1:3], 1), np.int64)
    shifted = x if call.dtype.is_float else x - call.scalar(1)
    for _, source, target in taps(window):
        sums[(slice(None), *target)] += shifted[(slice(None), *source)]
        counts[(slice(None), *target)] += 1
    if call.dtype.is_float:
        return [sums / counts]
    multiplier, shift = reciprocal_scale(np.maximum(counts, 1))
    mean, _ = apply_scale(sums, multiplier, shift, Rounding.SINGLE)
    low, high = integer_range(call.out_type)
    return [np.clip(mean + call.scalar(2), low, high)]


HANDLERS: dict[Op, Handler] = {
    Op.AVG_POOL2D: _avg_pool2d,
    Op.MAX_POOL2D: _max_pool2d,
}
