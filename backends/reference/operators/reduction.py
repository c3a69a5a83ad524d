"""Reductions: TOSA 1.0 sections 2.2.1 and 2.9. The reduced axis stays, with size 1."""

from __future__ import annotations

import numpy as np

from tosavk.backends.reference.call import Call, Handler
from tosavk.backends.reference.values import Array
from tosavk.lowering.graph import Op


def _argmax(call: Call) -> list[Array]:
    """The lowest index of the largest value.

    PROPAGATE takes the first NaN; IGNORE passes over NaNs and gives 0 if all are.
    """
    x, axis = call[0], call.integer("axis")
    if call.dtype.is_float and not call.propagate:
        x = np.where(np.isnan(x), -np.inf, x)
        numbers = ~np.isnan(call[0])
        # Only NaNs and -inf before the first -inf: the first number still wins.
        best = np.argmax(x, axis=axis)
        floor = np.max(x, axis=axis) == -np.inf
        first = np.argmax(numbers, axis=axis)
        return [np.where(floor, np.where(numbers.any(axis=axis), first, 0), best)]
    return [np.argmax(x, axis=axis)]


def _reduce_max(call: Call) -> list[Array]:
    fold = np.maximum if call.propagate else np.fmax
    return [fold.reduce(call[0], axis=call.integer("axis"), keepdims=True)]


def _reduce_min(call: Call) -> list[Array]:
    fold = np.minimum if call.propagate else np.fmin
    return [fold.reduce(call[0], axis=call.integer("axis"), keepdims=True)]


def _reduce_sum(call: Call) -> list[Array]:
    total = np.sum(call[0], axis=call.integer("axis"), keepdims=True)
    if not call.dtype.is_float:
        call.check_range(total, call.out_type)
    return [total]


def _reduce_product(call: Call) -> list[Array]:
    return [np.prod(call[0], axis=call.integer("axis"), keepdims=True)]


def _reduce_all(call: Call) -> list[Array]:
    return [np.all(call[0], axis=call.integer("axis"), keepdims=True)]


def _reduce_any(call: Call) -> list[Array]:
    return [np.any(call[0], axis=call.integer("axis"), keepdims=True)]


HANDLERS: dict[Op, Handler] = {
    Op.ARGMAX: _argmax,
    Op.REDUCE_ALL: _reduce_all,
    Op.REDUCE_ANY: _reduce_any,
    Op.REDUCE_MAX: _reduce_max,
    Op.REDUCE_MIN: _reduce_min,
    Op.REDUCE_PRODUCT: _reduce_product,
    Op.REDUCE_SUM: _reduce_sum,
}
