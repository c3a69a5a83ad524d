"""Reduces what a diff found, in a process of its own: `python -m tosavk.differential.reduction`.

The reducer tries many programs, and one of them may end the driver.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import cast

from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.files import SCRIPT, read_case, write_case
from tosavk.differential.fuzz.judge import Judge
from tosavk.differential.fuzz.reducing import reduce_finding
from tosavk.differential.process import Message, Process, Progress, answering
from tosavk.differential.request import DiffRequest
from tosavk.differential.result import DiffResult, FindingKind, Reduced

BUDGET = 500
"""Programs that are judged at most."""

_REDUCIBLE = (FindingKind.OPERATOR, FindingKind.PLAN, FindingKind.OUTPUT)


def reduce_result(
    request: DiffRequest,
    result: DiffResult,
    folder: Path,
    *,
    budget: int = BUDGET,
    progress: Progress = lambda _: None,
) -> Reduced | None:
    """The smallest program that still differs, over all inputs of the diff.

    Args:
        request: what was compared.
        result: what was found.
        folder: for the program, its inputs and the script that makes it.
        budget: programs that are tried at most.
        progress: told what is under way.

    Returns:
        None where there is nothing to reduce: all agree, or a backend gave no result.

    Raises:
        ProcessEnded: the driver ended the process.
        Refused: the reduction failed.
    """
    if not any(f.kind in _REDUCIBLE for f in result.findings):
        return None
    with tempfile.TemporaryDirectory(prefix="tosavk-reduce-") as name:
        work = Path(name)
        samples = tuple(request.inputs(number) for number in range(request.count))
        write_case(work / "case", Case(request.graph, samples), title="", about={})
        command = (sys.executable, "-P", "-m", "tosavk.differential.reduction")
        limit = request.children.limit_s if request.children is not None else 0.0
        with Process(command, stderr=work / "stderr.txt", limit_s=limit) as process:
            answer = process.ask(
                {
                    "case": str(work / "case"),
                    "folder": str(folder.absolute()),
                    "backends": [r.spec for r in result.runs if r.compared],
                    "numerics": request.numerics.value,
                    "budget": budget,
                },
                progress,
            )
    if answer["finding"] is None:
        return None
    script = folder / SCRIPT
    return Reduced(
        folder=str(folder),
        text=str(answer["text"]),
        operators=tuple(str(op) for op in read_case(folder).graph.main.operators),
        before=_weight(answer["before"]),
        after=_weight(answer["after"]),
        script=script.read_text(encoding="utf-8") if script.exists() else "",
    )


def _weight(value: object) -> tuple[int, int]:
    numbers = cast("dict[str, int]", value)
    return int(numbers["operators"]), int(numbers["elements"])


def _answer(question: Message, progress: Progress) -> Message:
    case = read_case(Path(str(question["case"])))
    backends = cast("list[str]", question["backends"])
    numerics = Numerics(str(question["numerics"]))
    progress("opening the devices")
    with Judge(tuple(backends), numerics=numerics) as judge:
        found = reduce_finding(
            case,
            judge,
            Path(str(question["folder"])),
            budget=int(str(question["budget"])),
            progress=progress,
        )
    return found.document()


if __name__ == "__main__":
    answering(_answer)
