"""The operators of the reference backend, one file a family."""

from __future__ import annotations

from tosavk.backends.reference.call import Handler
from tosavk.backends.reference.operators import (
    conversion,
    convolution,
    elementwise,
    movement,
    pooling,
    reduction,
    scaling,
    transforms,
)
from tosavk.lowering.graph import Op

COMPUTING: dict[Op, Handler] = {
    **elementwise.HANDLERS,
    **convolution.HANDLERS,
    **pooling.HANDLERS,
    **scaling.HANDLERS,
    **reduction.HANDLERS,
    **conversion.HANDLERS,
    **transforms.HANDLERS,
}
"""Operators that compute: operands widened, results rounded to their type."""

MOVING: dict[Op, Handler] = movement.HANDLERS
"""Operators that move elements: operands and results as stored."""

ELEMENTWISE = frozenset({*elementwise.HANDLERS, Op.CAST} - {Op.TABLE})
"""Operators of one result, each element of which is made of the same of each operand."""
