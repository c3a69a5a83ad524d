"""A run of the fuzzer as data: what is asked for, what is found, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.bench import Judged
from tosavk.differential.fuzz.coverage import Coverage, Point
from tosavk.differential.fuzz.finding import Key
from tosavk.differential.fuzz.remote import LIMIT_S

REDUCING = 300
"""Programs that are tried to reduce one finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run.

    Attributes:
        seed: of the programs.
        count: how many programs, from the first one of the seed.
        start: number of the first program.
        backends: specifications.
        optional: whether backends that are not there are left out.
        numerics: mode.
        folder: for journal and findings, or None.
        reducing: programs tried to reduce a finding; 0 to file them as they are.
        most: findings after which the run ends; 0 for no end.
        apart: judge programs in a process of their own.
        limit_s: seconds without a sign of life after which that process is killed.
        command: program and arguments of that process; empty: this interpreter with
            `tosavk.differential.fuzz.worker`. Another one calls its `main` in the end.
    """

    seed: int
    count: int
    start: int = 0
    backends: tuple[str, ...]
    optional: bool = False
    numerics: Numerics = Numerics.STRICT
    folder: Path | None = None
    reducing: int = REDUCING
    most: int = 0
    apart: bool = False
    limit_s: float = LIMIT_S
    command: tuple[str, ...] = ()


@dataclass(slots=True)
class Filed:
    """A finding with what became of it.

    Attributes:
        key: what it is about.
        text: the finding in one line, of the program as it was made.
        backends: labels.
        seed: of the run.
        graphs: numbers of the programs that show it.
        operators: operators of the reduced program.
        elements: of all its tensors.
        tried: programs that the reduction judged.
        folder: where it is filed, or "".
    """

    key: Key
    text: str
    backends: tuple[str, ...]
    seed: int
    graphs: list[int] = field(default_factory=list[int])
    operators: int = 0
    elements: int = 0
    tried: int = 0
    folder: str = ""


@dataclass(slots=True)
class Result:
    """What a run found.

    Attributes:
        request: what was asked for.
        backends: labels that took part.
        devices: device and driver by label.
        missing: backends that were left out, with the reason.
        done: programs judged, earlier ones of a resumed run included.
        fresh: of them those of this run.
        seconds: of this run.
        findings: each kind once.
        coverage: what was judged.
        exceptions: comparisons that differ by a known exception only.
        unpredictable: comparisons that TOSA leaves open.
        validated: programs that synchronization validation saw.
        left_out: programs that a backend did not support, with the reason.
    """

    request: Request
    backends: tuple[str, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    missing: tuple[str, ...] = ()
    done: int = 0
    seconds: float = 0.0
    findings: dict[Key, Filed] = field(default_factory=dict[Key, Filed])
    coverage: Coverage = field(default_factory=Coverage)
    exceptions: int = 0
    unpredictable: int = 0
    validated: int = 0
    left_out: dict[int, str] = field(default_factory=dict[int, str])
    fresh: int = 0

    def document(self) -> dict[str, object]:
        """The result as JSON data (docs/json.md)."""
        return {
            "format": "tosavk.fuzz",
            "version": 1,
            "verdict": "different" if self.findings else "agreed",
            "seed": self.request.seed,
            "start": self.request.start,
            "count": self.request.count,
            "graphs": self.done,
            "seconds": self.seconds,
            "graphs_per_minute": self.rate,
            "numerics": self.request.numerics.value,
            "backends": [
                {"label": label, "device": self.devices.get(label, "")}
                for label in self.backends
            ],
            "missing": list(self.missing),
            "known_exceptions": self.exceptions,
            "unpredictable": self.unpredictable,
            "validated": self.validated,
            "unsupported": [
                {"graph": index, "reason": reason}
                for index, reason in self.left_out.items()
            ],
            "findings": [
                {**asdict(filed), "key": asdict(filed.key)}
                for filed in self.findings.values()
            ],
            "coverage": self.coverage.document(),
        }

    def add(self, index: int, judged: Judged) -> list[Point]:
        """Adds what was said of a program; the points of coverage that are new."""
        self.exceptions += judged.exceptions
        self.unpredictable += judged.unpredictable
        self.validated += judged.validated
        if judged.left_out:
            self.left_out[index] = judged.left_out
        return self.coverage.add(index, judged.points)

    @property
    def rate(self) -> float:
        """Programs a minute, of this run."""
        return 60 * self.fresh / self.seconds if self.seconds else 0.0
