"""Reduces what a diff found, in a process of its own: a program may end the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.files import SCRIPT, read_case
from tosavk.differential.fuzz.reducing import reduce_finding
from tosavk.differential.fuzz.remote import COMMAND, RemoteBench, Wanted
from tosavk.differential.request import DiffRequest
from tosavk.differential.result import DiffResult, Ending, FindingKind, Reduced

BUDGET = 500
"""Programs that are judged at most."""

_COMPARED = (FindingKind.OPERATOR, FindingKind.PLAN, FindingKind.OUTPUT)


def reduce_result(
    request: DiffRequest,
    result: DiffResult,
    folder: Path,
    *,
    budget: int = BUDGET,
    progress: Callable[[str], None] = lambda _: None,
    command: tuple[str, ...] = COMMAND,
) -> Reduced | None:
    """The smallest program that still differs, over all inputs of the diff.

    What ends a process is reduced where nothing else was found.

    Args:
        request: what was compared.
        result: what was found.
        folder: for the program, its inputs and the script that makes it.
        budget: programs that are tried at most.
        progress: told what is under way.
        command: program and arguments of the process that tries them.

    Returns:
        None where nothing was found, or what was found does not come again.

    Raises:
        Error: a backend cannot be opened again.
    """
    if not result.findings:
        return None
    differs = any(f.kind in _COMPARED for f in result.findings)
    specs = [
        run.spec
        for run in result.runs
        if run.compared or (not differs and run.ending in _DEATHS)
    ]
    samples = tuple(dict(request.inputs(n)) for n in range(request.count))
    limit = request.children.limit_s if request.children is not None else 0.0
    with RemoteBench(
        Wanted(
            seed=0,
            backends=tuple(specs),
            numerics=request.numerics,
            limit_s=limit,
            command=command,
        )
    ) as bench:
        found = reduce_finding(
            Case(request.graph, samples),
            bench,
            folder,
            budget=budget,
            progress=progress,
        )
    if found.key is None:
        return None
    document = found.document()
    script = folder / SCRIPT
    return Reduced(
        folder=str(folder),
        text=found.text,
        operators=tuple(str(op) for op in read_case(folder).graph.main.operators),
        before=_weight(document["before"]),
        after=_weight(document["after"]),
        script=script.read_text(encoding="utf-8") if script.exists() else "",
    )


_DEATHS = frozenset({Ending.CRASHED, Ending.HUNG, Ending.LOST, Ending.OUT_OF_MEMORY})


def _weight(value: object) -> tuple[int, int]:
    numbers = cast("dict[str, int]", value)
    return int(numbers["operators"]), int(numbers["elements"])
