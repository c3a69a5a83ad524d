"""What is inside of control flow, as programs of their own.

A branch or a loop that differs says little: what differs is an operator of a region it
calls. So each region is tried alone, with the operands that it is called with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tosavk.backends.reference.evaluate import Evaluator
from tosavk.backends.reference.values import Precision
from tosavk.core.errors import Error
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.flowcheck import FLOW_OPS
from tosavk.differential.fuzz.judge import Finding
from tosavk.lowering.control import CALLS, called_region
from tosavk.lowering.graph import Block, Graph, Op, Operator, Region
from tosavk.lowering.program import load_graph

Array = NDArray[Any]

_TURNS = 4
"""Turns of a loop that are tried."""


def look_inside(
    case: Case,
    findings: Sequence[Finding],
    examine: Callable[[Case], Sequence[Finding]],
) -> tuple[Case, tuple[Finding, ...]] | None:
    """The region that shows alone what an operator of control flow shows first.

    Args:
        case: a case.
        findings: what is wrong with it.
        examine: says what is wrong with another one.

    Returns:
        The region as a case, with what is wrong with it; None where the first finding
        is about another operator, or the regions are fine.
    """
    if not findings or findings[0].key.op not in {op.name for op in FLOW_OPS}:
        return None
    for inner in all_inside(case):
        found = examine(inner)
        if found:
            return look_inside(inner, found, examine) or (inner, tuple(found))
    return None


def all_inside(case: Case) -> Iterator[Case]:
    """The regions that operators of control flow call, as cases."""
    graph = case.graph
    evaluator = Evaluator(graph, Precision.NATIVE)
    flows = [op for op in graph.main.operators if op.op in FLOW_OPS]
    if not flows:
        return
    try:
        values = [evaluator.block(graph.main, sample) for sample in case.samples]
    except Error:
        return
    for op in flows:
        operands = [[found[n] for n in op.inputs] for found in values]
        for region, calls in _calls(evaluator, op, operands):
            made = _as_program(case, region, calls)
            if made is not None:
                yield made


def _calls(
    evaluator: Evaluator, op: Operator, operands: list[list[Array]]
) -> Iterator[tuple[Region, list[list[Array]]]]:
    """Each region with the operands of its calls."""
    assert evaluator.graph is not None
    first, second = (
        called_region(evaluator.graph, op, attribute) for attribute in CALLS[op.op]
    )
    if op.op is Op.COND_IF:
        given = [values[1:] for values in operands]
        yield first, given
        yield second, given
        return
    turns: list[list[Array]] = []
    for state in operands:
        now = state
        for _ in range(_TURNS):
            turns.append(now)
            if not bool(_run(evaluator, first, now)[0].reshape(-1)[0]):
                break
            now = _run(evaluator, second, now)
    yield first, turns
    yield second, turns


def _run(evaluator: Evaluator, region: Region, given: list[Array]) -> list[Array]:
    block = region.blocks[0]
    found = evaluator.block(block, dict(zip(block.inputs, given, strict=True)))
    return [found[name] for name in block.outputs]


def _as_program(case: Case, region: Region, calls: list[list[Array]]) -> Case | None:
    block: Block = region.blocks[0]
    main = Region("main", (dataclasses.replace(block, name="main"),))
    others = tuple(r for r in case.graph.regions if r.name not in ("main", region.name))
    try:
        graph: Graph = load_graph(
            dataclasses.replace(case.graph, regions=(main, *others))
        )
    except Error:
        return None
    samples: tuple[Mapping[str, Array], ...] = tuple(
        dict(zip(block.inputs, given, strict=True)) for given in calls
    )
    return dataclasses.replace(case, graph=graph, samples=samples)
