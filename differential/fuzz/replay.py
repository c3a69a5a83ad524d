"""A filed case judged again, by each backend in a process of its own and all together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.apart import Apart, Party
from tosavk.differential.fuzz.files import FINDING, read_case
from tosavk.differential.fuzz.finding import Finding, Kind
from tosavk.differential.fuzz.remote import Died, RemoteBench, Wanted, about_case

_KINDS = frozenset(kind.value for kind in Kind)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a case shows.

    Attributes:
        folder: where it is.
        filed: what it was filed for: kind, operator and types, or "".
        devices: device and driver, by label.
        endings: label, how its process ended, and the same in one line, of each backend
            that was run in a process of its own.
        findings: what is wrong.
    """

    folder: str
    filed: str
    devices: dict[str, str]
    endings: tuple[tuple[str, str, str], ...]
    findings: tuple[Finding, ...]

    @property
    def shown(self) -> bool:
        """Whether it shows what it was filed for, of some operator."""
        kind = self.filed.partition(" ")[0]
        return any(finding.key.kind.value == kind for finding in self.findings)

    def document(self) -> dict[str, object]:
        """The result as JSON data (docs/json.md)."""
        return {
            "format": "tosavk.replay",
            "version": 1,
            "verdict": "different" if self.findings else "agreed",
            "folder": self.folder,
            "filed": self.filed,
            "shown": self.shown,
            "devices": self.devices,
            "endings": [
                {"label": label, "ending": ending, "text": text}
                for label, ending, text in self.endings
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }


def replay(
    folder: Path,
    wanted: Wanted,
    progress: Callable[[str], None] = lambda _: None,
) -> Replayed:
    """Judges a case that `fuzz` or `reduce` has filed.

    Args:
        folder: of the finding.
        wanted: how processes are started; without backends, those that were compared
            then. The numerics are those of then.
        progress: told what is under way.

    Raises:
        InvalidArgument: the folder holds no case, or does not say on which backends.
        InitError: a backend cannot be opened.
    """
    filed = _filed(folder)
    read_case(folder)
    wanted = _as_then(wanted, filed, folder)
    kind = str(filed.get("kind", ""))
    kind = kind if kind in _KINDS else ""
    words = (kind, str(filed.get("operator", "")), str(filed.get("dtype", "")))
    progress("judging the program")
    with RemoteBench(wanted) as bench:
        devices = bench.devices
        endings: tuple[tuple[str, str, str], ...] = ()
        try:
            findings = bench.ask_for(about_case(folder, kind)).findings
        except Died as death:
            progress(f"{death}; each backend in a process of its own")
            findings, endings = _apart(bench, death, folder, kind)
    return Replayed(
        str(folder), " ".join(filter(None, words)), devices, endings, findings
    )


def _apart(
    bench: RemoteBench, death: Died, folder: Path, kind: str
) -> tuple[tuple[Finding, ...], tuple[tuple[str, str, str], ...]]:
    """What is wrong with a program that ends the process, and how each ends."""
    with Apart(
        bench.wanted,
        [Party(*words) for words in zip(bench.labels, bench.specs, strict=True)],
        lambda keep: about_case(folder, kind, keep),
        suspect=death.backend if death.kind is Kind.HUNG else "",
    ) as apart:
        findings = [standing.finding() for standing in apart.dead]
        if not apart.dead:
            findings.append(death.finding(bench.labels))
        if apart.died is not None:
            findings.append(apart.died.finding(bench.labels))
        endings = [(s.party.label, s.ending, s.text) for s in apart.standings]
        return (*findings, *apart.judged.findings), tuple(endings)


def _filed(folder: Path) -> dict[str, Any]:
    try:
        found: object = json.loads((folder / FINDING).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{folder} holds no case: {error}; name the folder of a finding"
        ) from error
    if not isinstance(found, dict):
        raise InvalidArgument(f"{folder / FINDING} does not describe a case")
    return cast("dict[str, Any]", found)


def _as_then(wanted: Wanted, filed: dict[str, Any], folder: Path) -> Wanted:
    compared = filed.get("compared", [])
    if not wanted.backends and not compared:
        raise InvalidArgument(
            f"{folder / FINDING} does not say which backends were compared; give "
            "--backend"
        )
    try:
        then = tuple(str(spec) for spec in cast("list[object]", compared))
        numerics = Numerics(str(filed.get("numerics", wanted.numerics.value)))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{folder / FINDING} is not sound: {error}") from error
    # One is enough: what ends a process needs no other.
    backends = wanted.backends or then
    return dataclasses.replace(wanted, backends=backends, numerics=numerics, least=1)
