"""From a case that differs to the smallest one, in a folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.files import FolderStore
from tosavk.differential.fuzz.filing import Evidence, Setting, file_finding
from tosavk.differential.fuzz.inside import look_inside
from tosavk.differential.fuzz.judge import Finding, Key, Kind, named_key
from tosavk.differential.fuzz.reduce import BUDGET, digest, reduce_case
from tosavk.differential.fuzz.shrink import weight


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a reduction came to.

    Attributes:
        key: what differs, or None where the backends agree.
        text: the difference in one line.
        backends: labels that take part in it.
        folder: where the reduced case is.
        before: operators, elements and data that is not zero, of the given case.
        after: of the reduced one.
        tried: programs that were judged.
        finished: whether nothing smaller was left to try.
    """

    key: Key | None
    text: str = ""
    backends: tuple[str, ...] = ()
    folder: str = ""
    before: tuple[int, int, int] = (0, 0, 0)
    after: tuple[int, int, int] = (0, 0, 0)
    tried: int = 0
    finished: bool = True

    def document(self) -> dict[str, object]:
        """The result as JSON data (docs/json.md)."""
        names = ("operators", "elements", "not_zero")
        return {
            "format": "tosavk.reduce",
            "version": 1,
            "verdict": "agreed" if self.key is None else "different",
            "finding": None if self.key is None else dataclasses.asdict(self.key),
            "text": self.text,
            "backends": list(self.backends),
            "folder": self.folder,
            "before": dict(zip(names, self.before, strict=True)),
            "after": dict(zip(names, self.after, strict=True)),
            "tried": self.tried,
            "finished": self.finished,
        }


class Examining(Protocol):
    """What says what is wrong with a case: a `Judge`, or a bench."""

    @property
    def specs(self) -> tuple[str, ...]:
        """The specification of each backend."""
        ...

    @property
    def devices(self) -> dict[str, str]:
        """Device and driver of each backend."""
        ...

    @property
    def numerics(self) -> Numerics:
        """Mode."""
        ...

    @property
    def stderr(self) -> str:
        """What drivers said of the last case to standard error, where that is known."""
        ...

    def examine(self, case: Case, kind: Kind | None) -> tuple[Finding, ...]:
        """What is wrong with a case."""
        ...


def reduce_finding(
    case: Case,
    bench: Examining,
    folder: Path,
    *,
    budget: int = BUDGET,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Reduces the first finding of a case, or goes on with what is in the folder.

    Args:
        case: the case.
        bench: the backends.
        folder: for the reduced case, and for what an interruption must not lose.
        budget: programs that are judged at most.
        progress: told how far it is.
    """
    progress("judging the program")
    findings = bench.examine(case, None)
    if not findings:
        return Outcome(None)

    def examine(other: Case) -> Sequence[Finding]:
        return bench.examine(other, None)

    inside = look_inside(case, findings, examine)
    given = case
    if inside is not None:
        case, findings = inside
    finding = findings[0]
    key = finding.key
    # Work of another case or finding is of no use.
    work = folder / f"work-{digest(case)[:16]}-{str(key).replace(' ', '-')}"
    store = FolderStore(work, title=str(key))
    start = store.resumed() or case

    def shows(other: Case) -> bool:
        return any(f.key == finding.key for f in bench.examine(other, finding.key.kind))

    found = reduce_case(
        start,
        shows,
        target=key.op,
        budget=budget,
        store=store,
        progress=progress,
    )
    again = bench.examine(found.case, key.kind)
    text = next((f.text for f in again if f.key == key), finding.text)
    if not key.op:
        # What ends a process says of no operator that it was the one.
        key = named_key(found.case, key.kind)
    outcome = Outcome(
        key,
        text,
        finding.backends,
        str(folder),
        weight(given),
        weight(found.case),
        found.tried,
        found.finished,
    )
    file_finding(
        folder,
        key,
        text,
        finding.backends,
        case=found.case,
        setting=Setting(
            specs=bench.specs, devices=bench.devices, numerics=bench.numerics
        ),
        evidence=Evidence(stderr=bench.stderr),
        about={
            "operators": outcome.after[0],
            "elements": outcome.after[1],
            "tried": found.tried,
        },
    )
    return outcome
