"""Control flow against the reference: a branch or a loop as a whole, on a device's operands.

TOSA has no rule for COND_IF and WHILE_LOOP, which stand for other operators. Those that
the fuzzer puts into their regions have results without any freedom, but for what a NaN
looks like and for subnormals, which a device may take for zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference.evaluate import Evaluator
from tosavk.backends.reference.values import Precision
from tosavk.core.dtypes import DType
from tosavk.core.errors import Error
from tosavk.lowering.graph import Graph, Op, Operator

Array = NDArray[np.generic]

FLOW_OPS = frozenset({Op.COND_IF, Op.WHILE_LOOP})

_SMALLEST = {DType.FP32: 2.0**-126, DType.BF16: 2.0**-126, DType.FP16: 2.0**-14}


def flow_differences(
    graph: Graph,
    op: Operator,
    operands: Mapping[str, Array],
    results: Mapping[str, Array],
) -> list[str]:
    """What is wrong with the results of an operator of control flow.

    Args:
        graph: its program.
        op: the operator.
        operands: the values that the device gave it.
        results: what the device made of them.

    Returns:
        A line for each result that differs; none where the reference has no answer.
    """
    block = graph.main
    evaluator = Evaluator(graph, Precision.NATIVE)
    try:
        expected = evaluator.operator(op, block, [operands[n] for n in op.inputs])
    except Error:
        return []
    if evaluator.notes:
        return []
    found: list[str] = []
    for name, right in zip(op.outputs, expected, strict=True):
        if name not in results:
            continue
        dtype = block.tensors[name].dtype
        ours, theirs = (_plain(dtype, a) for a in (results[name], right))
        differ = np.argwhere(ours != theirs)
        if differ.size:
            at = tuple(int(i) for i in differ[0])
            found.append(
                f"{name!r}: {len(differ)} of {ours.size} elements are not what the "
                f"reference makes of the same operands; at {at} it is "
                f"{results[name][at]}, not {right[at]}"
            )
    return found


def _plain(dtype: DType, array: Array) -> Array:
    """An array in which what may differ is equal."""
    if not dtype.is_float:
        return array
    wide = np.array(array, np.float64)
    wide[np.abs(wide) < _SMALLEST.get(dtype, 0.0)] = 0.0
    # No number of these types; NaN is not equal to itself.
    wide[np.isnan(wide)] = 1e300
    return wide
