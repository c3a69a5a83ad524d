"""A run of the fuzzer: programs one after the other, findings reduced and filed.

A journal in the folder says how far it is, so that the same command goes on after an
interruption. A program that ends or blocks the process is a finding itself: at once
where programs are judged in a process of their own, else when it has done so twice.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.bench import Bench, Judged, Judging
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.coverage import Coverage, Point
from tosavk.differential.fuzz.files import write_case
from tosavk.differential.fuzz.generator import Generator, Made
from tosavk.differential.fuzz.judge import Finding, Key, Kind, named_key
from tosavk.differential.fuzz.reduce import reduce_case
from tosavk.differential.fuzz.remote import COMMAND, LIMIT_S, Died, RemoteBench, Wanted
from tosavk.differential.fuzz.shrink import weight

JOURNAL = "journal.jsonl"
REDUCING = 300
"""Programs that are tried to reduce one finding."""

_CRASHES = 2
_DEATHS_REDUCED = 3
_DEATH_TRIES = {Kind.HUNG: 16}
_DEATH_TRIES_ELSE = 80


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
        DeviceLost: a device is gone, unless programs have a process of their own; the
            same command goes on behind that program.
    """
    bench = _bench(request)
    try:
        return _Campaign(request, bench, progress, notice).run()
    finally:
        bench.close()


def _bench(request: Request) -> Judging:
    if not request.apart:
        return Bench(
            request.seed,
            request.backends,
            optional=request.optional,
            numerics=request.numerics,
        )
    wanted = Wanted(
        seed=request.seed,
        backends=request.backends,
        optional=request.optional,
        numerics=request.numerics,
        limit_s=request.limit_s,
        command=request.command or COMMAND,
    )
    return RemoteBench(wanted)


class _Campaign:
    def __init__(
        self,
        request: Request,
        bench: Judging,
        progress: Callable[[str], None],
        notice: Callable[[Filed], None],
    ) -> None:
        self._request = request
        self._bench = bench
        self._progress = progress
        self._notice = notice
        self._generator = Generator(request.seed)
        self._journal = _Journal(request, bench.labels)
        self._deaths = 0
        self._result = Result(request, backends=bench.labels, devices=bench.devices)

    def run(self) -> Result:
        result, request = self._result, self._request
        first = self._journal.resume(result)
        crashed = self._journal.crashed
        if crashed is not None:
            text = f"the process ended twice during program {crashed}"
            self._died(crashed, Died(Kind.CRASHED, text, "", ""))
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
        result.missing = tuple(self._bench.missing)
        return result

    def _one(self, index: int) -> None:
        judged = self._judged(index)
        if judged is None:
            return
        result = self._result
        fresh = result.add(index, judged)
        # Only the first: what is behind it may follow from it.
        for finding in judged.findings[:1]:
            self._found(index, finding)
        self._journal.end(index, judged, fresh)

    def _judged(self, index: int) -> Judged | None:
        """What is said of a program, or None where it ended the process."""
        try:
            return self._bench.judge(index)
        except Died as death:
            if death.kind is Kind.HUNG:
                self._died(index, death)
                return None
            first = death
        try:
            judged = self._bench.judge(index)
        except Died as again:
            self._died(index, again)
            return None
        self._died_once(index, first)
        return judged

    def _found(self, index: int, finding: Finding) -> None:
        if self._seen(index, finding.key):
            return
        made = self._generator.make(index)
        filed = Filed(
            finding.key, finding.text, finding.backends, made.seed, [made.index]
        )
        case = made.case
        if self._request.reducing:
            # What ends the process while it is reduced stays as it is.
            with contextlib.suppress(Died):
                found = self._bench.reduce(
                    index, finding.key, self._request.reducing, self._progress
                )
                case, filed.tried = found.case, found.tried
                if found.again is False:
                    filed.text += " (not in a fresh process)"
        self._file(filed, case, made)

    def _seen(self, index: int, key: Key) -> bool:
        """Whether a finding is filed already; then the program is added to it."""
        filed = self._result.findings.get(key)
        if filed is None:
            return False
        filed.graphs.append(index)
        self._journal.finding(filed)
        return True

    def _file(
        self, filed: Filed, case: Case, made: Made, stderr: str | None = None
    ) -> None:
        folder = self._request.folder
        filed.operators, filed.elements, _ = weight(case)
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
            if stderr is not None:
                about["stderr"] = stderr
            write_case(folder / name, case, title=str(filed.key), about=about)
            (folder / name / "original.tosa").write_bytes(made.data)
        self._journal.finding(filed)
        self._notice(filed)

    def _died(self, index: int, death: Died) -> None:
        """Files a program that the process did not survive."""
        made = self._generator.make(index)
        text = f"{death} (program {index} of seed {made.seed})"
        case, tried = self._smaller(made.case, death)
        key = named_key(case, death.kind)
        if not self._seen(index, key):
            labels = (death.backend,) if death.backend else self._bench.labels
            filed = Filed(key, text, labels, made.seed, [index], tried=tried)
            self._file(filed, case, made, stderr=death.stderr)
        self._journal.end(index, Judged(()), [])

    def _died_once(self, index: int, death: Died) -> None:
        """Files what happened once, and not when the program was run again."""
        made = self._generator.make(index)
        key = Key(death.kind, "", "")
        if self._seen(index, key):
            return
        text = (
            f"{death}, once: when program {index} of seed {made.seed} was run again it "
            "did not"
        )
        labels = (death.backend,) if death.backend else self._bench.labels
        filed = Filed(key, text, labels, made.seed, [index])
        self._file(filed, made.case, made, stderr=death.stderr)

    def _smaller(self, case: Case, death: Died) -> tuple[Case, int]:
        """The smallest case that ends a process in the same way, each tried in its own.

        That takes a second each, so it is done for the first few only.
        """
        bench, kind = self._bench, death.kind
        self._deaths += 1
        many = self._deaths > _DEATHS_REDUCED
        if many or not self._request.reducing or not isinstance(bench, RemoteBench):
            return case, 0
        if not bench.kills(case, kind):
            return case, 1
        found = reduce_case(
            case,
            lambda c: bench.kills(c, kind),
            budget=min(
                self._request.reducing, _DEATH_TRIES.get(kind, _DEATH_TRIES_ELSE)
            ),
            progress=lambda text: self._progress(f"reducing {kind}: {text}"),
        )
        return found.case, found.tried


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
                result.exceptions += entry.get("exceptions", 0)
                result.unpredictable += entry.get("open", 0)
                result.validated += entry.get("validated", 0)
                if "left_out" in entry:
                    result.left_out[entry["end"]] = entry["left_out"]
            elif "finding" in entry:
                self._recall(result, entry["finding"])
        # Once it may have been anybody who ended the process. One that judges apart is
        # ended by people only.
        for index, times in begun.items():
            if times >= _CRASHES and not self._request.apart:
                self.crashed = index
                first = max(first, index + 1)
        return first

    def begin(self, index: int) -> None:
        self._write({"begin": index})

    def end(self, index: int, judged: Judged, fresh: Sequence[Point]) -> None:
        entry: dict[str, object] = {"end": index}
        numbers: dict[str, object] = {
            "exceptions": judged.exceptions,
            "open": judged.unpredictable,
            "validated": int(judged.validated),
            "left_out": judged.left_out,
        }
        entry |= {name: number for name, number in numbers.items() if number}
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
