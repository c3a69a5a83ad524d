"""What is filed of a finding: enough for somebody who has nothing but the folder."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.apart import Standing
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.files import (
    FINDING,
    MODEL,
    input_file,
    original_input_file,
    write_case,
    write_original,
)
from tosavk.differential.fuzz.finding import Key, Kind
from tosavk.differential.fuzz.generator import Made
from tosavk.differential.sides import keeps_state
from tosavk.differential.variables import driver_environment

SUMMARY = "finding.txt"

_DIFF_SHOWS = (
    Kind.BITS,
    Kind.RULE,
    Kind.FAILED,
    Kind.LOST,
    Kind.MEMORY,
    Kind.HUNG,
    Kind.CRASHED,
)
"""What `tosavk diff` shows too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a finding was made.

    Attributes:
        specs: specifications of all backends of the run.
        devices: device and driver, by label.
        numerics: mode.
    """

    specs: tuple[str, ...]
    devices: Mapping[str, str]
    numerics: Numerics

    def words(self) -> list[str]:
        """The options that say so."""
        words = [word for spec in self.specs for word in ("--backend", spec)]
        if self.numerics is not Numerics.STRICT:
            words += ["--numerics", self.numerics.value]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a finding besides.

    Attributes:
        stderr: the end of what drivers wrote to standard error.
        standings: what became of each backend in a process of its own, where the
            program was run so.
        first: the first program of the process that showed it, where a fresh process
            does not; else None.
    """

    stderr: str = ""
    standings: tuple[Standing, ...] = ()
    first: int | None = None


def file_finding(
    folder: Path,
    key: Key,
    text: str,
    backends: Sequence[str],
    *,
    case: Case,
    setting: Setting,
    evidence: Evidence = Evidence(),
    made: Made | None = None,
    about: Mapping[str, object] | None = None,
) -> None:
    """Writes the folder of a finding.

    Args:
        folder: where; made if it is not there.
        key: what it is about.
        text: the finding in one line.
        backends: labels of the backends that it is about.
        case: the reduced program with its inputs.
        setting: where it was made.
        evidence: what is known besides.
        made: the program as the fuzzer made it, or None.
        about: what goes into `finding.json` besides.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept: list[dict[str, object]] = []
    for number, standing in enumerate(evidence.standings):
        kept.append(
            {
                "label": standing.party.label,
                "ending": standing.ending,
                "text": standing.text,
                "stderr": standing.stderr,
                "results": _kept(standing, folder, f"backend{number}"),
            }
        )
    document: dict[str, object] = {
        "kind": key.kind.value,
        "meaning": key.kind.meaning,
        "operator": key.op,
        "dtype": key.dtype,
        "text": text,
        "backends": list(backends),
        "devices": dict(setting.devices),
        "compared": list(setting.specs),
        "numerics": setting.numerics.value,
        "stderr": evidence.stderr,
        "apart": kept,
        "environment": driver_environment(),
        "commands": _commands(key, case, setting, evidence, made),
        **(about or {}),
    }
    if made is not None:
        document |= {"seed": made.seed, "graph": made.index, "pattern": made.pattern}
        write_original(folder, made.data, made.case)
    write_case(folder, case, title=str(key), about=document)
    (folder / SUMMARY).write_text(summary(document), encoding="utf-8")


def name_also(folder: Path, backends: Sequence[str]) -> None:
    """Says in a folder that the finding is about these backends, if it is still there."""
    path = folder / FINDING
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(path.read_text("utf-8"))
        document["backends"] = list(backends)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (folder / SUMMARY).write_text(summary(document), encoding="utf-8")


def summary(document: Mapping[str, Any]) -> str:
    """A finding for people, from what `finding.json` says."""
    words = (document["kind"], document["operator"], document["dtype"])
    lines = [f"{' '.join(filter(None, words))}: {document['meaning']}"]
    lines += [document["text"], "", f"About: {', '.join(document['backends'])}"]
    lines += [f"{n}: {device}" for n, device in document["devices"].items() if device]
    if document["apart"]:
        lines += ["", "Each backend in a process of its own:"]
    for standing in document["apart"]:
        text = f": {standing['text']}" if standing["text"] else ""
        files = standing["results"]
        kept = (
            f"; it gave {' to '.join(dict.fromkeys((files[0], files[-1])))}"
            if files
            else ""
        )
        lines.append(f"  {standing['label']}: {standing['ending']}{text}{kept}")
    if document["stderr"]:
        lines += ["", "Standard error ends:", document["stderr"]]
    lines += ["", "To see it again, in this folder:"]
    for what, command in document["commands"].items():
        lines += [f"  # {_COMMANDS[what]}", f"  {command}"]
    if document["environment"]:
        lines += ["", "It was seen with:"]
        for name, value in document["environment"].items():
            lines.append(f"  {name}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


_COMMANDS = {
    "replay": "the reduced program, judged as it was",
    "diff": "the reduced program, operator by operator",
    "original": "the program as it was made",
    "original_diff": "the program as it was made, from its files",
    "process": "with the programs before it in one process",
}


def _commands(
    key: Key, case: Case, setting: Setting, evidence: Evidence, made: Made | None
) -> dict[str, str]:
    """Commands that show it again, in the folder of the finding."""
    words = setting.words()
    found = {"replay": shlex.join(["tosavk", "fuzz", "--replay", ".", *words])}
    if _diff_shows(key, case):
        files = _inputs(case, input_file)
        found["diff"] = shlex.join(["tosavk", "diff", MODEL, *words, *files])
    if made is None:
        return found
    seed = ["tosavk", "fuzz", "--seed", str(made.seed)]
    one = ["--start", str(made.index), "--count", "1"]
    found["original"] = shlex.join([*seed, *one, *words])
    if _diff_shows(key, made.case):
        files = _inputs(made.case, original_input_file)
        found["original_diff"] = shlex.join(
            ["tosavk", "diff", "original.tosa", *words, *files]
        )
    if evidence.first is not None and evidence.first < made.index:
        count = made.index - evidence.first + 1
        many = ["--start", str(evidence.first), "--count", str(count)]
        found["process"] = shlex.join([*seed, *many, *words])
    return found


def _diff_shows(key: Key, case: Case) -> bool:
    return (
        key.kind in _DIFF_SHOWS
        and case.segment_bytes is None
        and not keeps_state(case.graph)
    )


def _inputs(case: Case, file: Callable[[int, int], str]) -> list[str]:
    return [
        word
        for number in range(len(case.samples))
        for position, name in enumerate(case.graph.main.inputs)
        for word in ("--input", f"{name}={file(position, number)}")
    ]


def _kept(standing: Standing, folder: Path, prefix: str) -> list[str]:
    """Copies what a backend gave; the names of the files."""
    if standing.results is None:
        return []
    names: list[str] = []
    for path in sorted(standing.results.glob("*.npy")):
        names.append(f"{prefix}-{path.name}")
        shutil.copyfile(path, folder / names[-1])
    return names
