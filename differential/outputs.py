"""Compares final outputs, and puts the comparisons of several runs together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType
from tosavk.core.plan import Numerics
from tosavk.differential.exceptions import Trait, excuses_output
from tosavk.differential.operators import LOAD
from tosavk.differential.request import DiffRequest
from tosavk.differential.result import (
    KNOWN_EXCEPTION,
    Comparison,
    OperatorComparison,
    Share,
)
from tosavk.differential.sides import REFERENCE, Party
from tosavk.differential.tensors import compare_exactly, compare_with_reference
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import live_operators

Array = NDArray[np.generic]
Outputs = Mapping[str, Mapping[str, Array]]
"""Final outputs of one run, by label and name."""


def compare_outputs(
    request: DiffRequest,
    sides: Sequence[Party],
    samples: Sequence[Outputs],
    judged: Iterable[str],
    operators: Sequence[OperatorComparison],
) -> tuple[Comparison, ...]:
    """Compares the final outputs of all runs.

    Args:
        request: what was asked for.
        sides: the backends.
        samples: what they gave, for each run.
        judged: labels of devices whose operators were judged.
        operators: comparisons of the operators of all runs.
    """
    known = frozenset(judged)
    exact = not has_floats(request.graph)
    return merged(
        [
            _compare(request, sides, outputs, known, operators, exact=exact)
            for outputs in samples
        ]
    )


def _compare(
    request: DiffRequest,
    sides: Sequence[Party],
    outputs: Outputs,
    judged: frozenset[str],
    operators: Sequence[OperatorComparison],
    *,
    exact: bool,
) -> tuple[Comparison, ...]:
    """The comparisons of one run."""
    done = [side for side in sides if side.label in outputs]
    devices = [side for side in done if not side.is_reference]
    references = [side for side in done if side.is_reference]
    tensors = request.graph.main.tensors
    result: list[Comparison] = []
    for name in dict.fromkeys(request.graph.main.outputs):
        tensor = tensors[name]
        if request.numerics is Numerics.STRICT:
            for other in devices[1:]:
                comparison = compare_exactly(
                    tensor,
                    (other.label, outputs[other.label][name]),
                    (devices[0].label, outputs[devices[0].label][name]),
                )
                if not comparison.agreed:
                    comparison = _excused(
                        comparison, other, devices[0], outputs, operators
                    )
                result.append(comparison)
        result += [
            compare_with_reference(
                tensor,
                (side.label, outputs[side.label][name]),
                (reference.label, outputs[reference.label][name]),
                exact=exact,
                sound=_is_sound(side, operators),
                judged=side.label in judged,
            )
            for reference in references[:1]
            for side in (*devices, *references[1:])
        ]
    return tuple(result)


def _excused(
    comparison: Comparison,
    left: Party,
    right: Party,
    outputs: Outputs,
    operators: Sequence[OperatorComparison],
) -> Comparison:
    """An output's difference, as a known exception if operators or values explain it.

    Operators are compared on equal inputs. So when all of them agree between the two
    sides, and one does by a known exception, that is where the difference comes from.
    """
    labels = {left.label, right.label}
    between = [
        c
        for item in operators
        for c in item.comparisons
        if labels & {c.left, c.right} and c.right != REFERENCE
    ]
    inner = [c for c in between if c.outcome == KNOWN_EXCEPTION]
    if between:
        note = inner[0].note if inner and all(c.agreed for c in between) else ""
    else:
        name = comparison.tensor
        used = excuses_output(
            DType[comparison.dtype],
            outputs[left.label][name],
            outputs[right.label][name],
            frozenset[Trait]().union(left.traits(), right.traits()),
        )
        note = f"explained by: {', '.join(used)}" if used else ""
    if not note:
        return comparison
    return dataclasses.replace(
        comparison, agreed=True, outcome=KNOWN_EXCEPTION, note=note
    )


def _is_sound(side: Party, operators: Sequence[OperatorComparison]) -> bool:
    """Whether the reference agrees with all of a side's operators."""
    return all(
        c.agreed
        for item in operators
        for c in item.comparisons
        if c.left in (side.label, LOAD) and c.right == REFERENCE
    )


def has_floats(graph: Graph) -> bool:
    """Whether any value that the outputs depend on is a float."""
    tensors = graph.main.tensors
    return any(
        tensors[name].dtype.is_float
        for op in live_operators(graph.main)
        for name in (*op.inputs, *op.outputs)
    )


def merged(runs: Sequence[Sequence[Comparison]]) -> tuple[Comparison, ...]:
    """One comparison for each tensor and pair of backends, over all runs.

    The worst run gives the worst element and the picture; elements are counted over
    all.
    """
    if len(runs) == 1:
        return tuple(
            c if c.agreed else dataclasses.replace(c, samples=(0,)) for c in runs[0]
        )
    groups: dict[tuple[str, str, str], list[tuple[int, Comparison]]] = {}
    for number, comparisons in enumerate(runs):
        for c in comparisons:
            # The base of the devices may be another one in another run.
            against = c.right if c.right == REFERENCE else ""
            groups.setdefault((c.tensor, c.left, against), []).append((number, c))
    return tuple(_worst(group) for group in groups.values())


def _worst(group: Sequence[tuple[int, Comparison]]) -> Comparison:
    sample, worst = max(group, key=lambda item: (_weight(item[1]), -item[0]))
    counts = [c.histogram for _, c in group if c.histogram is not None]
    histogram = None
    if counts:
        equal = sum(c.elements for _, c in group if c.histogram is None)
        totals = [sum(column) for column in zip(*counts, strict=True)]
        histogram = (totals[0] + equal, *totals[1:])
    return dataclasses.replace(
        worst,
        sample=sample,
        samples=tuple(number for number, c in group if not c.agreed),
        differing=sum(c.differing for _, c in group),
        elements=sum(c.elements for _, c in group),
        relative=max(c.relative for _, c in group),
        histogram=histogram,
        rerun=any(c.rerun for _, c in group),
    )


def _weight(c: Comparison) -> tuple[bool, bool, float]:
    ulp = 0.0 if c.worst is None else c.worst.ulp
    return not c.agreed, c.outcome != "equal", float("inf") if ulp is None else ulp


def merged_operators(
    runs: Sequence[Sequence[OperatorComparison]],
) -> tuple[OperatorComparison, ...]:
    """One comparison for each operator, over all runs, in the order of execution."""
    found: dict[int, list[tuple[OperatorComparison, ...]]] = {}
    order: list[int] = []
    for number, items in enumerate(runs):
        for item in items:
            index = item.operator.index
            if index not in found:
                found[index] = [()] * len(runs)
                order.append(index)
            found[index][number] = (item,)
    order.sort()
    return tuple(_together(found[index]) for index in order)


def _together(runs: Sequence[tuple[OperatorComparison, ...]]) -> OperatorComparison:
    items = [item for run in runs for item in run]
    comparisons = merged([run[0].comparisons if run else () for run in runs])
    return OperatorComparison(items[0].operator, comparisons, _largest(items))


def _largest(items: Sequence[OperatorComparison]) -> tuple[Share, ...]:
    if len(items) == 1:
        return items[0].shares
    found: dict[tuple[str, str], Share] = {}
    for share in (share for item in items for share in item.shares):
        key = (share.tensor, share.backend)
        old = found.get(key)
        found[key] = share if old is None else _larger(old, share)
    return tuple(found.values())


def _larger(one: Share, other: Share) -> Share:
    return dataclasses.replace(
        one,
        contributed=max(one.contributed, other.contributed),
        inherited=max(one.inherited, other.inherited),
        total=max(one.total, other.total),
    )
