"""The reference backend: evaluates the graph itself with NumPy.

It shares no code with the kernels and does not look at plans, so it checks the lowering
as well as the drivers.
"""

from __future__ import annotations

from tosavk.backends.reference.evaluate import (
    Evaluator,
    Note,
    evaluate,
    evaluate_operator,
)
from tosavk.backends.reference.oracle import Expected, expect

__all__ = [
    "Evaluator",
    "Expected",
    "Note",
    "evaluate",
    "evaluate_operator",
    "expect",
]
