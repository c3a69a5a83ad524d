"""What a diff says is wrong, and what a reader must know besides."""

from __future__ import annotations

from collections.abc import Sequence

from tosavk.differential.request import DiffRequest
from tosavk.differential.result import (
    KNOWN_EXCEPTION,
    NOT_JUDGED,
    Comparison,
    Ending,
    Finding,
    FindingKind,
    OperatorComparison,
)
from tosavk.differential.sides import Party
from tosavk.differential.station import keeps_state

_FAULTS = {
    Ending.CRASHED: FindingKind.CRASH,
    Ending.HUNG: FindingKind.HANG,
    Ending.LOST: FindingKind.LOST,
    Ending.OUT_OF_MEMORY: FindingKind.MEMORY,
    Ending.FAILED: FindingKind.BACKEND,
    Ending.REFUSED: FindingKind.REFUSED,
}


def findings(
    sides: Sequence[Party],
    outputs: Sequence[Comparison],
    operators: Sequence[OperatorComparison],
) -> list[Finding]:
    """Everything that is wrong, in order of importance."""
    faults = [
        Finding(
            kind,
            f"{side.label}: {kind}: {side.record.failure}",
            (side.label,),
            stderr=side.record.stderr,
        )
        for side in sides
        if (kind := _FAULTS.get(side.record.ending)) is not None
    ]
    order = list(FindingKind)
    found = sorted(faults, key=lambda fault: order.index(fault.kind))
    for item in operators:
        where = f"operator {item.operator.index} {item.operator.op}"
        if item.operator.location:
            where += f" at {item.operator.location}"
        found += [
            Finding(
                FindingKind.OPERATOR,
                f"{where}: {c}",
                (c.left, c.right),
                c.tensor,
                item.operator,
                sample=c.sample,
            )
            for c in item.comparisons
            if not c.agreed
        ]
    found += [
        Finding(
            FindingKind.PLAN,
            f"{side.label}: output {name!r} changes when every intermediate is kept; "
            f"arena reuse or a barrier of the plan is wrong",
            (side.label,),
            name,
        )
        for side in sides
        for name in side.changed
    ]
    found += [
        Finding(
            FindingKind.REPEATABILITY,
            f"{side.label} gives different bits from run to run",
            (side.label,),
        )
        for side in sides
        if not side.record.repeatable
    ]
    found += [
        Finding(
            FindingKind.OUTPUT,
            f"output {c}",
            (c.left, c.right),
            c.tensor,
            sample=c.sample,
        )
        for c in outputs
        if not c.agreed
    ]
    return found


def notes(
    request: DiffRequest,
    sides: Sequence[Party],
    outputs: Sequence[Comparison],
    operators: Sequence[OperatorComparison],
) -> list[str]:
    """What a reader must know besides, each once."""
    found: dict[str, None] = {}
    for side in sides:
        ending = side.record.ending
        if ending is not Ending.RAN and not ending.is_fault:
            found[f"{side.label}: {ending}: {side.record.failure}"] = None
    for c in outputs:
        if c.note:
            found[f"output {c.tensor!r}: {c.note}"] = None
    for item in operators:
        for c in item.comparisons:
            if c.outcome in (KNOWN_EXCEPTION, NOT_JUDGED, "unpredictable"):
                text = f"operator {item.operator.index} {item.operator.op}"
                found[f"{text}: {c.outcome}: {c.note}"] = None
    for side in sides:
        if side.unprobed:
            text = "the intermediates could not be read, so no operator was compared"
            found[f"{side.label}: {text}: {side.unprobed}"] = None
    if keeps_state(request.graph):
        found["the program keeps state, so it was run once only"] = None
    if not request.probing and any(not c.agreed for c in outputs):
        found["--node-by-node names the operator that differs"] = None
    return list(found)
