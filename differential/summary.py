"""The verdict of a diff in one sentence, for terminal and report."""

from __future__ import annotations

from tosavk.differential.result import DiffResult, Verdict

_REFERENCE = "reference"


def summary(result: DiffResult) -> str:
    """The verdict in one sentence."""
    ran = [run.label for run in result.runs if run.ran]
    if result.verdict is Verdict.FAILED:
        reasons = "; ".join(
            f"{run.label} {run.ending}: {run.failure}"
            for run in result.runs
            if not run.ran
        )
        return (
            f"Fewer than two backends gave a result, so nothing was compared: {reasons}"
        )
    text = f"{len(ran)} backends ({', '.join(ran)}): "
    if result.verdict is Verdict.DIFFERENT:
        count = len(result.findings)
        text += f"{count} finding{'s' * (count != 1)}"
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
        parts.append(f"all {len(result.operators)} operators agree on equal inputs")
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
