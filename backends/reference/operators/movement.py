"""Operators that move elements and never compute: TOSA 1.0 sections 2.8 and 2.10, 2.11.

They work on tensors as stored, so nothing is rounded on the way.
"""

from __future__ import annotations

import numpy as np

from tosavk.backends.reference.call import Call, Handler
from tosavk.backends.reference.values import Array, canonical_bool
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Op


def _identity(call: Call) -> list[Array]:
    return [call[0].copy()]


def _select(call: Call) -> list[Array]:
    return [np.where(canonical_bool(call[0]), call[1], call[2])]


def _concat(call: Call) -> list[Array]:
    return [np.concatenate(call.operands, axis=call.integer("axis"))]


def _pad(call: Call) -> list[Array]:
    x, pads = call[0], call.sizes(1)
    fill = call[2].reshape(-1)[0] if len(call.operands) > 2 else x.dtype.type(0)
    shape = tuple(n + pads[2 * i] + pads[2 * i + 1] for i, n in enumerate(x.shape))
    out = np.empty(shape, x.dtype)
    out[...] = fill
    inside = tuple(slice(pads[2 * i], pads[2 * i] + n) for i, n in enumerate(x.shape))
    out[inside] = x
    return [out]


def _reshape(call: Call) -> list[Array]:
    return [call[0].reshape(call.sizes(1)).copy()]


def _reverse(call: Call) -> list[Array]:
    return [np.flip(call[0], axis=call.integer("axis")).copy()]


def _slice(call: Call) -> list[Array]:
    start, size = call.sizes(1), call.sizes(2)
    chosen = tuple(slice(b, b + n) for b, n in zip(start, size, strict=True))
    return [call[0][chosen].copy()]


def _tile(call: Call) -> list[Array]:
    return [np.tile(call[0], call.sizes(1))]


def _transpose(call: Call) -> list[Array]:
    return [np.ascontiguousarray(np.transpose(call[0], call.numbers("perms")))]


def _gather(call: Call) -> list[Array]:
    """Values (N, K, C), indices (N, W); a bad index reads as 0."""
    values, indices = call[0], np.asarray(call[1], np.int64)
    bad = (indices < 0) | (indices >= values.shape[1])
    call.unpredictable_if(bad, f"an index is not in 0..{values.shape[1] - 1}")
    batch = np.arange(len(values), dtype=np.int64)[:, None]
    out = values[batch, np.where(bad, 0, indices)].copy()
    out[bad] = np.zeros((), values.dtype)
    return [out]


def _scatter(call: Call) -> list[Array]:
    """values_in (N, K, C), indices (N, W), input (N, W, C); a bad index is dropped."""
    out, indices, source = call[0].copy(), np.asarray(call[1], np.int64), call[2]
    good = (indices >= 0) & (indices < out.shape[1])
    call.unpredictable_if(~good, f"an index is not in 0..{out.shape[1] - 1}")
    for n in range(out.shape[0]):
        chosen = indices[n][good[n]]
        call.unpredictable_if(
            len(np.unique(chosen)) != len(chosen), "an index occurs twice"
        )
        out[n, chosen] = source[n][good[n]]
    return [out]


def _canonical(handler: Handler) -> Handler:
    """BOOL results are 0 or 1, whatever bytes came in."""

    def wrapped(call: Call) -> list[Array]:
        results = handler(call)
        if call.out_type is DType.BOOL:
            return [canonical_bool(result) for result in results]
        return results

    return wrapped


HANDLERS: dict[Op, Handler] = {
    op: _canonical(handler)
    for op, handler in {
        Op.IDENTITY: _identity,
        Op.SELECT: _select,
        Op.CONCAT: _concat,
        Op.PAD: _pad,
        Op.RESHAPE: _reshape,
        Op.REVERSE: _reverse,
        Op.SLICE: _slice,
        Op.TILE: _tile,
        Op.TRANSPOSE: _transpose,
        Op.GATHER: _gather,
        Op.SCATTER: _scatter,
    }.items()
}
