"""Writes `docs/mutation-study.md` from the results of the mutation study.

What is missed is explained in `mutation_notes.toml`, by hand: fault by fault.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation_tree import ANY, ROOT, Fault

DOCUMENT = ROOT / "docs/mutation-study.md"
NOTES = Path(__file__).with_name("mutation_notes.toml")
MOST_OPERATORS = 3
FOUND, NAMED = 58 / 60, 55 / 60
"""Parts of all faults that must be found, and named."""

_PLACES = {"glsl": "GLSL", "wgsl": "WGSL", "lower": "lowering", "plan": "plan"}

Data = Mapping[str, Any]

_HEAD = """# Mutation study

Does `tosavk fuzz` find what is wrong? Single faults are planted in copies of the GLSL, the WGSL, the lowering and what makes
the plan; `fuzz` runs on each copy as anybody would run it, told nothing: the same seed ({seed}), at most {count} programs,
`{backends}`. It ends at the first finding, which it reduces. The reduced program with its inputs then goes
to `tosavk diff`, of the same copy. Where more than three operators are left, fuzz goes on to its next findings, up to the
eighth, for a smaller one.

    make mutation                                   # what has no result yet; then this page
    .venv/bin/python tools/mutation.py --only ID    # one fault again

The faults are data: `tools/mutation_faults.toml` (a test keeps them in line with the sources). A fault in GLSL is
compiled into the modules of its kernel, general and specialised. This page is written by the tool from
`build/mutation/results.json`.

**What judges does not have the fault.** Kernels differ between the two languages, and from the reference. Faults of the
lowering are on both devices alike: the reference does not take part in lowering, it evaluates operator by operator on
the operands that the device itself had, and a branch or loop as a whole. Plans are judged without a device by a check
that shares nothing with what makes them ([fuzzing](fuzzing.md)). The tool refuses faults in code that the reference or
that check uses.

A text that is replaced need not change a result. Two of the first table did not (a sum written the other way round; a
column that the next part of a CONCAT writes again): they were no faults, and others took their place.

`diff` compares results, it does not look at plans: a missing barrier or a reused place shows there by chance only.

**The right operator** is fixed in the table beforehand. For a fault of the plan (marked *) it is one whose dispatch has another
barrier, place or value in the reduced program than what the unchanged tree makes of it.
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures.

    Attributes:
        text: in one line.
        holds: whether they are what they must be.
    """

    text: str
    holds: bool


def write(
    faults: Sequence[Fault], results: Mapping[str, Data], document: Path = DOCUMENT
) -> Summary:
    """Writes the document from the results that there are."""
    notes: dict[str, str] = tomllib.loads(NOTES.read_text(encoding="utf-8"))
    known = [(fault, results[fault.id]) for fault in faults if fault.id in results]
    summary = _summary(known, len(faults))
    control = results.get("control")
    first = known[0][1] if known else control
    lines: list[str] = []
    if first is not None:
        settings = first["settings"]
        lines.append(
            _HEAD.format(
                seed=settings["seed"],
                count=f"{settings['count']:,}",
                backends="`, `".join(settings["backends"]),
            )
        )
    lines += ["## Result", "", summary.text, ""]
    if control is not None:
        said = "a finding, which is wrong" if control["found"] else "no finding"
        lines += [
            f"Control: the unchanged tree, {control['graphs']:,} programs: {said} "
            f"({control['seconds']:.0f} s).",
            "",
        ]
        if control.get("where"):
            lines += [f"{control['where']}.", ""]
    lines += _by_kind(known)
    lines += _missed(known, notes)
    lines += _table(known)
    document.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return summary


def _summary(known: Sequence[tuple[Fault, Data]], faults: int) -> Summary:
    total = len(known)
    found = [data for _, data in known if data["found"]]
    named = [data for data in found if data["right"]]
    small = [data for data in found if data["operators"] <= MOST_OPERATORS]
    shown = [data for data in found if data["diff"] == "different"]
    programs = sorted(data["graphs"] for data in found) or [0]
    seconds = sum(data["seconds"] for _, data in known)
    text = (
        f"Of {faults} faults, {total} were run; {len(found)} were found, {len(named)} "
        f"with the right operator named first, {len(small)} of those found reduced to "
        f"at most {MOST_OPERATORS} operators. `diff` shows {len(shown)} of the reduced "
        f"programs. Half of them were found within {programs[len(programs) // 2]} "
        f"programs; all runs together took {seconds / 60:.0f} minutes."
    )
    holds = (
        total == faults
        and len(found) >= FOUND * total
        and len(named) >= NAMED * total
        and len(small) == len(found)
    )
    return Summary(text, holds)


def _by_kind(known: Sequence[tuple[Fault, Data]]) -> list[str]:
    places = list(_PLACES)
    total: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for fault, data in known:
        total[fault.kind, fault.where] += 1
        found[fault.kind, fault.where] += bool(data["found"])
    lines = [
        f"| found of planted | {' | '.join(_PLACES.values())} |",
        "|---|" + "---|" * len(places),
    ]
    for kind in sorted({kind for kind, _ in total}):
        cells = [
            f"{found[kind, where]} of {total[kind, where]}"
            if total[kind, where]
            else ""
            for where in places
        ]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return [*lines, ""]


def _missed(known: Sequence[tuple[Fault, Data]], notes: Mapping[str, str]) -> list[str]:
    lines = ["## What was missed, or named wrongly", ""]
    for fault, data in known:
        if data["trouble"]:
            lines.append(f"- `{fault.id}`: {data['trouble']}")
        elif not data["found"]:
            lines.append(
                f"- `{fault.id}`, missed: {notes.get(fault.id, 'unexplained')}"
            )
        elif not data["right"]:
            lines.append(
                f"- `{fault.id}`, found, but {data['operator'] or 'no operator'} named "
                f"first: {notes.get(fault.id, 'unexplained')}"
            )
        elif data["operators"] > MOST_OPERATORS:
            lines.append(
                f"- `{fault.id}`, {data['operators']} operators left: "
                f"{notes.get(fault.id, 'unexplained')}"
            )
    if len(lines) == 2:
        lines.append("Nothing.")
    return [*lines, ""]


def _left(data: Data) -> str:
    """Operators that are left, and of which finding if not the first."""
    if not data["found"]:
        return ""
    later = data["findings"]
    return str(data["operators"]) + (f" (finding {later})" if later > 1 else "")


def _table(known: Sequence[tuple[Fault, Data]]) -> list[str]:
    lines = [
        "## Faults",
        "",
        "Found by: kind of finding of `fuzz`; `diff` where that shows it too. Programs: up to the one that shows it. Seconds:",
        "of `fuzz`, from the start of the process to the end of the reduction. Left: operators of the reduced program.",
        "",
        "| fault | kind | place | found by | programs | seconds | named first | left |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for fault, data in known:
        source = (ROOT / fault.file).read_text(encoding="utf-8")
        place = f"{fault.file}:{fault.line(source)}"
        by = ", ".join(
            part
            for part in (
                f"fuzz ({data['finding']})" if data["found"] else "",
                "diff" if data["diff"] == "different" else "",
            )
            if part
        )
        star = "\\*" if ANY in fault.operators else ""
        named = f"{data['operator']} {data['types']}".strip() + star
        if data["found"] and not data["right"]:
            named += " (wrong)"
        cells = (
            f"`{fault.id}`",
            fault.kind,
            place,
            by or "missed",
            str(data["graphs"]),
            f"{data['seconds']:.0f}",
            named if data["found"] else "",
            _left(data),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
