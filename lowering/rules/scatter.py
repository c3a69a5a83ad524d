"""The rule of SCATTER.

First it is noted which row of the input goes to which place, then every element is
fetched. So packed types need no atomics, and it does not take rows * places steps.
"""

from __future__ import annotations

import numpy as np

from tosavk.core.dtypes import DType
from tosavk.lowering.builder import PlanBuilder, destination_words, whole_words
from tosavk.lowering.graph import Operator


def scatter(op: Operator, build: PlanBuilder) -> None:
    """SCATTER: values [N, K, C], indices [N, W], input [N, W, C] to [N, K, C].

    An index outside 0..K-1 writes nothing; of equal ones the last one wins.
    """
    values, indices, source = (build.value(name) for name in op.inputs)
    target = build.result(op.outputs[0])
    n, k, c = target.shape
    w = indices.shape[1]
    none = build.literal(("no row",), DType.INT32, np.zeros(1, np.int32))
    rows = build.temporary(DType.INT32, (n * k,))
    build.move(none, rows, (0,), 0)
    build.emit(
        "scatter_rows",
        spec={},
        params={"count": n * w, "k": k, "w": w},
        operands=(indices, rows),
        columns=n * w,
    )
    dtype, lanes = whole_words(target.dtype, c)
    c //= lanes
    count = n * k * c
    build.emit(
        "scatter",
        spec={"TYPE": dtype},
        params={"count": count, "k": k, "w": w, "c": c},
        operands=(values, rows, source, target),
        columns=destination_words(dtype, count),
    )
