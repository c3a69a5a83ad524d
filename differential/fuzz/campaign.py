"""A run of the fuzzer: programs one after the other, findings reduced and filed.

A journal in the folder says how far it is, so that the same command goes on after an
interruption; a program during which the process ended twice is a finding itself.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.coverage import Coverage, Point
from tosavk.differential.fuzz.files import write_case
from tosavk.differential.fuzz.generator import Generator, Made
from tosavk.differential.fuzz.judge import Finding, Judge, Key, Kind, has_key
from tosavk.differential.fuzz.reduce import reduce_case
from tosavk.differential.fuzz.shrink import weight

JOURNAL = "journal.jsonl"
REDUCING = 300
"""Programs that are tried to reduce one finding."""

_CRASHES = 2
_PLAN_KINDS = (Kind.BARRIER, Kind.ARENA, Kind.REFUSED)


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
        seconds: of this run.
        findings: each kind once.
        coverage: what was judged.
        exceptions: comparisons that differ by a known exception only.
        unpredictable: comparisons that TOSA leaves open.
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

    @property
    def rate(self) -> float:
        """Programs a minute, of this run."""
        return 60 * self.fresh / self.seconds if self.seconds else 0.0


def fuzz(
    request: Request,
    progress: Callable[[str], None] = lambda _: None,
    notice: Callable[[Filed], None] = lambda _: None,
) -> Result:
    """Runs the programs.

    Args:
        request: what to run.
        progress: told how far it is.
        notice: told of each new finding, after it was reduced.

    Raises:
        InvalidArgument: fewer than two backends, or a folder of another run.
        InitError: a backend cannot be opened.
        DeviceLost: a device is gone; the same command goes on behind that program.
    """
    with Judge(
        request.backends, optional=request.optional, numerics=request.numerics
    ) as judge:
        return _Campaign(request, judge, progress, notice).run()


class _Campaign:
    def __init__(
        self,
        request: Request,
        judge: Judge,
        progress: Callable[[str], None],
        notice: Callable[[Filed], None],
    ) -> None:
        self._request = request
        self._judge = judge
        self._progress = progress
        self._notice = notice
        self._generator = Generator(request.seed)
        self._journal = _Journal(request, judge.labels)
        self._result = Result(
            request,
            backends=judge.labels,
            devices=judge.devices,
            missing=tuple(judge.missing),
        )

    def run(self) -> Result:
        result, request = self._result, self._request
        first = self._journal.resume(result)
        crashed = self._journal.crashed
        if crashed is not None:
            self._crash(crashed)
        begin = time.perf_counter()
        for index in range(first, request.start + request.count):
            if 0 < request.most <= len(result.findings):
                break
            self._progress(
                f"program {index - request.start + 1} of {request.count}, "
                f"{len(result.findings)} findings"
            )
            self._journal.begin(index)
            self._one(index)
            result.done += 1
            result.fresh += 1
            result.seconds = time.perf_counter() - begin
        return result

    def _one(self, index: int) -> None:
        made = self._generator.make(index)
        verdict = self._judge.judge(made.case)
        result = self._result
        fresh = result.coverage.add(index, made.case.graph, verdict)
        result.exceptions += verdict.exceptions
        result.unpredictable += verdict.unpredictable
        if verdict.left_out:
            result.left_out[index] = "; ".join(verdict.left_out)
        # Only the first: what is behind it may follow from it.
        for finding in verdict.findings[:1]:
            self._found(made, finding)
        self._journal.end(index, fresh)

    def _found(self, made: Made, finding: Finding) -> None:
        filed = self._result.findings.get(finding.key)
        if filed is not None:
            filed.graphs.append(made.index)
            self._journal.finding(filed)
            return
        filed = Filed(
            finding.key, finding.text, finding.backends, made.seed, [made.index]
        )
        case, filed.tried = self._reduced(made.case, finding.key)
        filed.operators, filed.elements, _ = weight(case)
        self._file(filed, case, made)

    def _reduced(self, case: Case, key: Key) -> tuple[Case, int]:
        if not self._request.reducing:
            return case, 0
        plans_only = key.kind in _PLAN_KINDS
        found = reduce_case(
            case,
            lambda c: has_key(self._judge.judge(c, plans_only=plans_only), key),
            target=key.op,
            budget=self._request.reducing,
            progress=lambda text: self._progress(f"reducing {key}: {text}"),
        )
        return found.case, found.tried

    def _file(self, filed: Filed, case: Case, made: Made) -> None:
        folder = self._request.folder
        self._result.findings[filed.key] = filed
        if folder is not None:
            number = len(self._result.findings)
            name = f"{number:03}-{filed.key}".replace(" ", "-")
            filed.folder = str(folder / name)
            about: dict[str, object] = {
                "kind": filed.key.kind.value,
                "meaning": filed.key.kind.meaning,
                "operator": filed.key.op,
                "dtype": filed.key.dtype,
                "text": filed.text,
                "backends": list(filed.backends),
                "devices": dict(self._result.devices),
                "seed": made.seed,
                "graph": made.index,
                "pattern": made.pattern,
                "operators": filed.operators,
                "elements": filed.elements,
                "tried": filed.tried,
            }
            write_case(folder / name, case, title=str(filed.key), about=about)
            (folder / name / "original.tosa").write_bytes(made.data)
        self._journal.finding(filed)
        self._notice(filed)

    def _crash(self, index: int) -> None:
        """Files the program during which the last run ended."""
        made = self._generator.make(index)
        text = f"the process ended twice during program {index} of seed {made.seed}"
        filed = Filed(
            Key(Kind.CRASHED, "", ""), text, self._judge.labels, made.seed, [index]
        )
        filed.operators, filed.elements, _ = weight(made.case)
        self._file(filed, made.case, made)
        self._journal.end(index, [])


class _Journal:
    """One line for what begins, ends and is found."""

    def __init__(self, request: Request, labels: Sequence[str]) -> None:
        self._request = request
        self._head = {
            "seed": request.seed,
            "start": request.start,
            "backends": list(labels),
            "numerics": request.numerics.value,
        }
        self._path = None if request.folder is None else request.folder / JOURNAL
        self.crashed: int | None = None

    def resume(self, result: Result) -> int:
        """Reads what an earlier run left; the number of the next program.

        Raises:
            InvalidArgument: the folder is of another run.
        """
        first = self._request.start
        if self._path is None:
            return first
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._write(self._head)
            return first
        text = self._path.read_text("utf-8")
        if not text.endswith("\n"):
            with self._path.open("a", encoding="utf-8") as journal:
                journal.write("\n")
        begun: Counter[int] = Counter()
        for number, line in enumerate(text.splitlines()):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line that an interruption cut
            if number == 0:
                if entry != self._head:
                    raise InvalidArgument(
                        f"{self._path.parent} holds another run ({entry}); give the "
                        "same seed and backends, or another folder"
                    )
            elif "begin" in entry:
                begun[entry["begin"]] += 1
            elif "end" in entry:
                del begun[entry["end"]]
                result.done += 1
                first = max(first, entry["end"] + 1)
                for words in entry.get("new", ()):
                    result.coverage.points.setdefault(Point(*words), entry["end"])
            elif "finding" in entry:
                self._recall(result, entry["finding"])
        # Once it may have been anybody who ended the process.
        for index, times in begun.items():
            if times >= _CRASHES:
                self.crashed = index
                first = max(first, index + 1)
        return first

    def begin(self, index: int) -> None:
        self._write({"begin": index})

    def end(self, index: int, fresh: Sequence[Point]) -> None:
        entry: dict[str, object] = {"end": index}
        if fresh:
            entry["new"] = [
                [point.operator, point.dtype, point.rule, point.kernels]
                for point in fresh
            ]
        self._write(entry)

    def finding(self, filed: Filed) -> None:
        self._write({"finding": asdict(filed)})

    def _recall(self, result: Result, data: dict[str, object]) -> None:
        words = cast("dict[str, str]", data["key"])
        key = Key(Kind(words["kind"]), words["op"], words["dtype"])
        backends, graphs = data["backends"], data["graphs"]
        result.findings[key] = Filed(
            key=key,
            text=str(data["text"]),
            backends=tuple(cast("list[str]", backends)),
            seed=int(cast("int", data["seed"])),
            graphs=list(cast("list[int]", graphs)),
            operators=int(cast("int", data["operators"])),
            elements=int(cast("int", data["elements"])),
            tried=int(cast("int", data["tried"])),
            folder=str(data["folder"]),
        )

    def _write(self, entry: Mapping[str, object]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(entry) + "\n")
