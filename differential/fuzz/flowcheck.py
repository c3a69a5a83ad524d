"""Control flow and variables against the reference, on a device's own operands.

TOSA has no rule for COND_IF and WHILE_LOOP, which stand for other operators, nor for what
a variable holds. Where all that goes into it leaves no freedom, the result is one that
the reference knows, but for what a NaN looks like and for subnormals, which a device may
take for zero. Elsewhere nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference.evaluate import Evaluator
from tosavk.backends.reference.values import Precision
from tosavk.core.dtypes import DType
from tosavk.core.errors import Error
from tosavk.lowering.control import CALLS, called_region
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Block, Graph, Op, Operator
from tosavk.lowering.lower import live_operators

Array = NDArray[Any]

FLOW_OPS = frozenset(CALLS)

# Far enough above the subnormals that one taken for zero changes no bit of a sum.
_SMALLEST = {DType.FP32: 2.0**-98, DType.BF16: 2.0**-98}
_STATE = frozenset({Op.VARIABLE, Op.VARIABLE_READ, Op.VARIABLE_WRITE})
_EXACT = (
    FLOW_OPS
    | _STATE
    | {Op.CONST, Op.IDENTITY, Op.RESHAPE, Op.REVERSE, Op.TRANSPOSE, Op.SLICE}
    | {Op.ADD, Op.SUB, Op.MAXIMUM, Op.MINIMUM, Op.CLAMP, Op.NEGATE, Op.ABS}
    | {Op.EQUAL, Op.GREATER, Op.GREATER_EQUAL, Op.CEIL, Op.FLOOR, Op.SELECT}
    | {Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR, Op.LOGICAL_NOT}
)
"""Operators whose result TOSA fixes, also where they follow one another."""


class FlowCheck:
    """What the reference says of a program's control flow and variables.

    Args:
        graph: a verified graph.
    """

    def __init__(self, graph: Graph) -> None:
        """Looks what can be judged; variables have their first values."""
        self._graph = graph
        self._block: Block = graph.main
        live = live_operators(self._block)
        self._flows = [op for op in live if op.op in FLOW_OPS and self._exact(op)]
        self._reads = [op for op in live if op.op is Op.VARIABLE_READ]
        if self._reads and not self._exact_state():
            self._reads = []
        self._evaluator = Evaluator(graph, Precision.NATIVE)
        self._constants = fold(self._block, live) if self._flows else {}

    def differences(
        self, sample: Mapping[str, Array], tensors: Mapping[str, Array]
    ) -> Iterator[tuple[Operator, str]]:
        """What is wrong with the values of a run, by operator.

        Args:
            sample: the inputs.
            tensors: what the device computed, by name.
        """
        for op in self._flows:
            operands = {**self._constants, **sample, **tensors}
            evaluator = Evaluator(self._graph, Precision.NATIVE)
            try:
                given = [operands[name] for name in op.inputs]
                expected = evaluator.operator(op, self._block, given)
            except (Error, KeyError):
                continue
            if not evaluator.notes:
                yield from self._compare(op, expected, tensors)
        if self._reads:
            found = self._values(sample)
            for op in self._reads if found is not None else ():
                assert found is not None
                yield from self._compare(op, [found[op.outputs[0]]], tensors)

    def advance(self, sample: Mapping[str, Array]) -> None:
        """Lets variables have the values that they have after a run."""
        if self._reads:
            evaluator = self._evaluator
            try:
                evaluator.block(self._block, sample)
            except Error:
                self._reads = []

    def _values(self, sample: Mapping[str, Array]) -> Mapping[str, Array] | None:
        """All values of a run, without its effect on variables."""
        held = dict(self._evaluator.variables)
        evaluator = Evaluator(self._graph, Precision.NATIVE, variables=held)
        try:
            return evaluator.block(self._block, sample)
        except Error:
            return None

    def _exact(self, op: Operator) -> bool:
        """Whether the regions of an operator leave no freedom, and keep no state."""
        return all(
            inner.op in _EXACT - _STATE
            and (inner.op not in FLOW_OPS or self._exact(inner))
            for attribute in CALLS[op.op]
            for block in called_region(self._graph, op, attribute).blocks
            for inner in block.operators
        )

    def _exact_state(self) -> bool:
        """Whether all that variables are given leaves no freedom."""
        if any(
            op.op in _STATE
            for region in self._graph.regions
            for block in region.blocks
            if block is not self._block
            for op in block.operators
        ):
            return False
        producers = {n: op for op in self._block.operators for n in op.outputs}
        waiting = [
            name
            for op in self._block.operators
            if op.op is Op.VARIABLE_WRITE
            for name in op.inputs
        ]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            op = producers.get(name)
            if op is None or name in seen:
                continue
            seen.add(name)
            if op.op not in _EXACT or (op.op in FLOW_OPS and not self._exact(op)):
                return False
            waiting += op.inputs
        return True

    def _compare(
        self, op: Operator, expected: list[Array], tensors: Mapping[str, Array]
    ) -> Iterator[tuple[Operator, str]]:
        for name, right in zip(op.outputs, expected, strict=True):
            if name not in tensors:
                continue
            dtype = self._block.tensors[name].dtype
            ours, theirs = (_plain(dtype, a) for a in (tensors[name], right))
            differ = np.argwhere(ours != theirs)
            if differ.size:
                at = tuple(int(i) for i in differ[0])
                yield (
                    op,
                    f"{name!r}: {len(differ)} of {ours.size} elements are not what the "
                    f"reference makes of the same operands; at {at} it is "
                    f"{tensors[name][at]}, not {right[at]}",
                )


def _plain(dtype: DType, array: Array) -> Array:
    """An array in which what may differ is equal."""
    if not dtype.is_float:
        return array
    wide = np.array(array, np.float64)
    wide[np.abs(wide) < _SMALLEST.get(dtype, 0.0)] = 0.0
    # No number of these types; NaN is not equal to itself.
    wide[np.isnan(wide)] = 1e300
    return wide
