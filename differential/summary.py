"""The verdict of a diff in one sentence, for terminal and report."""

from __future__ import annotations

from tosavk.differential.result import Comparison, DiffResult, Verdict
from tosavk.differential.text import counted

_REFERENCE = "reference"


def distance(c: Comparison) -> str:
    """How far apart the worst element of a comparison is, and what is allowed."""
    worst = c.worst
    if worst is None:
        return "equal"
    if worst.ulp is None:
        text = "one side is no finite number"
    else:
        text = f"{worst.ulp:.6g} units in the last place apart"
    if worst.allowed_ulp is not None:
        text += f"; the rule ({c.rule}) allows {worst.allowed_ulp:.6g}"
    elif c.rule in ("same bits", "exact"):
        text += f"; the rule ({c.rule}) allows none"
    if worst.excess is not None and not c.agreed:
        text += f", so this is {worst.excess:.3g} times as much"
    return text


def summary(result: DiffResult) -> str:
    """The verdict in one sentence."""
    ran = [run.label for run in result.runs if run.compared]
    if result.verdict is Verdict.FAILED:
        reasons = "; ".join(
            f"{run.label} {run.ending}: {run.failure}"
            for run in result.runs
            if not run.compared
        )
        return (
            f"Fewer than two backends gave a result, so nothing was compared: {reasons}"
        )
    text = f"{len(ran)} backends ({', '.join(ran)}): "
    if result.verdict is Verdict.DIFFERENT:
        text += counted(len(result.findings), "finding")
        faults = [f"{r.label} {r.ending}" for r in result.runs if r.ending.is_fault]
        if faults:
            text += f"; {', '.join(faults)}"
        first = result.first_different
        if first is not None:
            text += (
                f"; the first operator that differs on equal inputs is {first.index} "
                f"{first.op}"
            )
        return f"{text}."
    parts: list[str] = []
    exact = [c for c in result.outputs if c.rule == "same bits"]
    if exact and all(c.outcome == "equal" for c in exact):
        parts.append("the devices give the same bits")
    elif exact:
        parts.append("the devices differ by known exceptions only")
    if result.operators:
        count = len(result.operators)
        which = "the operator agrees" if count == 1 else f"all {count} operators agree"
        parts.append(f"{which} on equal inputs")
    against = [c for c in result.outputs if c.right == _REFERENCE]
    if against and all(c.outcome == "equal" for c in against):
        parts.append("the outputs are equal to the reference's")
    elif against:
        largest = max(c.relative for c in against)
        parts.append(
            f"the largest error against the reference is {largest:.1e} of an output's "
            "peak"
        )
    missing = [f"{run.label} ({run.ending})" for run in result.runs if not run.ran]
    if missing:
        parts.append(f"no result from {', '.join(missing)}")
    if result.exceptions:
        parts.append(f"{result.exceptions} comparisons are known exceptions")
    return f"{text}{', '.join(parts) or 'nothing differs'}."
