"""Compares every operator on equal inputs.

Between devices: an operator whose inputs have the same bits must give the same bits
(strict mode). Against the reference: given the inputs that the device itself computed,
its result must obey TOSA's rule for the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference import expect
from tosavk.core.errors import Unsupported
from tosavk.differential.result import Comparison, OperatorComparison
from tosavk.differential.tensors import compare_exactly, judge_operator
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.errors import operator_name
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Block, Graph, Operator
from tosavk.lowering.lower import live_operators

Array = NDArray[np.generic]


def check_operators(
    graph: Graph,
    sides: Mapping[str, Mapping[str, Array]],
    *,
    against_reference: bool,
    exact: bool,
    progress: Callable[[str], None],
) -> tuple[OperatorComparison, ...]:
    """Compares all live operators that are computed at run time.

    Args:
        graph: a verified graph.
        sides: every device's tensors by name, by backend specification.
        against_reference: judge each device by TOSA's rules.
        exact: compare devices bit for bit with the first one.
        progress: told which operator is being looked at.
    """
    block = graph.main
    live = live_operators(block)
    constants = fold(block, live)
    work = [
        op
        for op in live
        if op.op not in CONSTANT_OPS
        and not all(name in constants for name in op.outputs)
    ]
    result: list[OperatorComparison] = []
    for number, op in enumerate(work):
        progress(f"comparing operator {number + 1} of {len(work)}, {op.op.name}")
        found = _between_devices(op, block, sides) if exact else []
        if against_reference:
            for spec, tensors in sides.items():
                found += _against_reference(graph, op, spec, {**constants, **tensors})
        if found:
            result.append(OperatorComparison(operator_name(op), tuple(found)))
    return tuple(result)


def _between_devices(
    op: Operator, block: Block, sides: Mapping[str, Mapping[str, Array]]
) -> list[Comparison]:
    specs = list(sides)
    found: list[Comparison] = []
    for other in specs[1:]:
        left, right = sides[specs[0]], sides[other]
        same_inputs = all(
            name not in left
            or compare_exactly(
                block.tensors[name], (specs[0], left[name]), (other, right[name])
            ).agreed
            for name in op.inputs
        )
        if not same_inputs:
            continue
        found += [
            compare_exactly(
                block.tensors[name], (specs[0], left[name]), (other, right[name])
            )
            for name in op.outputs
            if name in left
        ]
    return found


def _against_reference(
    graph: Graph, op: Operator, spec: str, tensors: Mapping[str, Array]
) -> list[Comparison]:
    block = graph.main
    operands = [tensors[name] for name in op.inputs]
    try:
        expected = expect(op, block, operands, graph=graph)
    except Unsupported:
        return []
    return [
        judge_operator(op, block, position, expected[position], (spec, tensors[name]))
        for position, name in enumerate(op.outputs)
        if name in tensors
    ]
