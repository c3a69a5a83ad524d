"""Judges operators of a program by TOSA's rules, given the operands that they had."""

from collections.abc import Mapping

import numpy as np

from harness.running import Array
from tosavk.backends.reference import Note, expect
from tosavk.core.dtypes import coerce
from tosavk.differential.rules import judge, rule_for
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import live_operators


def complaints(graph: Graph, tensors: Mapping[str, Array]) -> list[str]:
    """What is wrong with the results of a program's operators.

    Operators are judged whose operands are known, by those results that are known:
    inputs, constants and outputs.

    Args:
        graph: a verified graph.
        tensors: its inputs and outputs by name.

    Returns:
        A line for each result that breaks its rule.

    Raises:
        AssertionError: nothing could be judged, or TOSA leaves a result open.
    """
    block = graph.main
    live = live_operators(block)
    work = [op for op in live if op.op not in CONSTANT_OPS]
    known = {**fold(block, live), **tensors}
    for name in block.inputs:
        known[name] = coerce(name, block.tensors[name].dtype, known[name])
    found: list[str] = []
    notes: list[Note] = []
    judged = 0
    for op in work:
        if not all(name in known for name in op.inputs):
            continue
        if known.keys().isdisjoint(op.outputs):
            continue
        operands = [known[name] for name in op.inputs]
        with np.errstate(all="ignore"):
            results = expect(op, block, operands, graph=graph, notes=notes)
            for position, expected in enumerate(results):
                if op.outputs[position] not in known:
                    continue
                rule = rule_for(op, block, expected, position)
                actual = known[op.outputs[position]]
                verdict = judge(rule, expected.reference, expected.bound, actual)
                judged += 1
                if not verdict.outcome.agrees:
                    found.append(f"{op}: {rule}: {verdict}")
    assert judged or not work, "nothing was judged"
    assert not notes, notes
    return found
