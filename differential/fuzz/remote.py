"""A bench in a process of its own: what a driver does to it is a finding, not the end.

The process keeps its devices open over many programs, so it costs nothing while all goes
well. After one that crashed, hung or was lost, the next question starts another; and so
it is after many programs, since drivers keep what they have compiled.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from tosavk.core import errors
from tosavk.core.errors import InitError, InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.bench import Judged, Progress, Smaller
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.coverage import Point
from tosavk.differential.fuzz.files import read_case, write_case
from tosavk.differential.fuzz.generator import SPAN
from tosavk.differential.fuzz.judge import Finding, Key, Kind
from tosavk.differential.process import Message, Process, ProcessEnded, Refused
from tosavk.differential.result import Ending

LIMIT_S = 60.0
"""How long a process may give no sign of life, in seconds."""

RENEWED = 20 * SPAN
"""Programs after which a process is replaced by another."""

_SHORT_S = 15.0
_STDERR = "stderr.txt"
_TAIL_BYTES = 4096
COMMAND = (sys.executable, "-P", "-m", "tosavk.differential.fuzz.worker")
"""The process that answers; -P: modules of the working folder are not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a process is to open, and how long it may be silent.

    Attributes:
        seed: of the programs.
        backends: specifications.
        optional: leave out those that are not there.
        numerics: mode.
        limit_s: seconds.
        command: program and arguments that answer.
        labels: what the backends are called, as `Judge` has it.
        least: how many there must be.
    """

    seed: int
    backends: tuple[str, ...]
    optional: bool = False
    numerics: Numerics = Numerics.STRICT
    limit_s: float = LIMIT_S
    command: tuple[str, ...] = COMMAND
    labels: tuple[str, ...] = ()
    least: int = 2

    def question(self) -> Message:
        """The words that open it."""
        return {
            "do": "open",
            "seed": self.seed,
            "backends": list(self.backends),
            "optional": self.optional,
            "numerics": self.numerics.value,
            "labels": list(self.labels),
            "least": self.least,
        }


class Died(Exception):
    """The process ended, hung, or lost a device during a program.

    Attributes:
        kind: what that is as a finding.
        backend: label of the backend that was at work, or "".
        stderr: its last words.
    """

    def __init__(self, kind: Kind, text: str, backend: str, stderr: str) -> None:
        """How it ended, in one line."""
        super().__init__(text)
        self.kind = kind
        self.backend = backend
        self.stderr = stderr

    def finding(self, labels: tuple[str, ...]) -> Finding:
        """The same as a finding; of all these backends where it is not known whose."""
        backends = (self.backend,) if self.backend else labels
        return Finding(Key(self.kind, "", ""), str(self), backends)


class RemoteBench:
    """Backends that stay open in a process of their own.

    Use it as a context manager, or `close` it.

    Args:
        wanted: what it opens.

    Attributes:
        first: number of the first program that the process judged.
        stderr: the end of what drivers said of the last case to standard error.

    Raises:
        InvalidArgument: fewer backends.
        InitError: one cannot be opened and is not optional.
    """

    def __init__(self, wanted: Wanted) -> None:
        """Starts the process."""
        self._wanted = wanted
        self._files = tempfile.TemporaryDirectory(prefix="tosavk-fuzz-")
        self._folder = Path(self._files.name)
        self._process: Process | None = None
        self._judged = 0
        self._at = ""
        self._left_out: list[str] = []
        self.first = 0
        self.stderr = ""
        self.labels: tuple[str, ...] = ()
        self.specs: tuple[str, ...] = ()
        self.devices: dict[str, str] = {}
        self.missing: list[str] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def judge(self, index: int) -> Judged:
        """Judges a program.

        Raises:
            Died: the process did not survive it.
        """
        if self._judged >= RENEWED and index % SPAN == 0:
            self._stop()
        if self._process is None or not self._judged:
            self.first = index
        return self.ask_for(about_program(index))

    def ask_for(self, question: Message) -> Judged:
        """Judges what `about_program` or `about_case` ask about.

        Raises:
            Died: the process did not survive it.
        """
        before = self._written()
        answer = self._ask(question)
        self._judged += 1
        self.missing = [*self._left_out, *_texts(answer["missing"])]
        judged = judged_of(answer)
        # Only what is wrong needs what drivers said of it.
        if judged.findings:
            judged = replace(judged, stderr=self._stderr_from(before))
        return judged

    def reduce(self, index: int, key: Key, budget: int, progress: Progress) -> Smaller:
        """The smallest case with a finding, which a fresh process must show too.

        Raises:
            Died: the process did not survive it.
        """
        found = self._reduce(index, key, budget, progress, plain=True)
        if not found.again:
            other = self._reduce(index, key, budget, progress, plain=False)
            if other.again:
                return other
        return found

    def _reduce(
        self, index: int, key: Key, budget: int, progress: Progress, *, plain: bool
    ) -> Smaller:
        folder = self._folder / "reduced"
        question: Message = {
            "do": "reduce",
            "index": index,
            "key": asdict(key),
            "budget": budget,
            "folder": str(folder),
            "plain": plain,
        }
        tried = int(str(self._ask(question, progress)["tried"]))
        try:
            answer = _afresh(self._wanted, folder, key.kind)
            again = str(key) in _texts(answer["keys"])
        except (ProcessEnded, Refused):
            again = False
        return Smaller(read_case(folder), tried, again)

    def examine(self, case: Case, kind: Kind | None) -> tuple[Finding, ...]:
        """What is wrong with a case; also that the process does not survive it."""
        folder = self._folder / "examined"
        write_case(folder, case, title="", about={}, scripted=False)
        question: Message = {
            "do": "examine",
            "folder": str(folder),
            "kind": "" if kind is None else kind.value,
        }
        self.stderr, before = "", self._written()
        try:
            answer = self._ask(question)
        except Died as death:
            self.stderr = death.stderr
            return (death.finding(self.labels),)
        self.stderr = self._stderr_from(before)
        found = cast("list[dict[str, object]]", answer["findings"])
        return tuple(_finding(item) for item in found)

    @property
    def wanted(self) -> Wanted:
        """What it opens."""
        return self._wanted

    @property
    def numerics(self) -> Numerics:
        """Mode."""
        return self._wanted.numerics

    def close(self) -> None:
        """Ends the process."""
        self._stop()
        self._files.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _stop(self) -> None:
        if self._process is not None:
            # That it crashes while it gives everything back is not about a program.
            self._process.close()
            self._process = None

    def _start(self) -> None:
        """Starts a process; a backend that ends it is left out if it may be."""
        backends = self._wanted.backends
        while True:
            open_ones = [s for s in backends if s not in self._gone()]
            question = {**self._wanted.question(), "backends": open_ones}
            self._judged, self._at = 0, ""
            self._process = Process(
                self._wanted.command,
                stderr=self._folder / _STDERR,
                limit_s=self._wanted.limit_s,
            )
            try:
                answer = self._process.ask(question, self._watch)
            except Refused as error:
                self._drop()
                kind = getattr(errors, error.kind, InitError)
                raise kind(str(error)) from None
            except ProcessEnded as error:
                self._drop()
                spec = self._at.removeprefix("opening ")
                if not self._wanted.optional or spec not in open_ones:
                    last = error.stderr.splitlines()[-1:]
                    text = ": ".join([spec or "fuzz", str(error), *last])
                    raise InitError(text) from None
                self._left_out.append(f"{spec}: {error}")
                continue
            break
        labels = tuple(_texts(answer["labels"]))
        if self.labels and labels != self.labels:
            raise InitError(
                f"backends were {', '.join(self.labels)}, and are {', '.join(labels)} "
                "in a new process"
            )
        self.labels = labels
        self.specs = tuple(_texts(answer["specs"]))
        self.devices = cast("dict[str, str]", answer["devices"])
        self.missing = [*self._left_out, *_texts(answer["missing"])]

    def _gone(self) -> set[str]:
        return {text.partition(": ")[0] for text in self._left_out}

    def _watch(self, text: str) -> None:
        self._at = text

    def _ask(self, question: Message, progress: Progress = lambda _: None) -> Message:
        if self._process is None:
            self._start()
        assert self._process is not None
        self._at = ""

        def watch(text: str) -> None:
            self._at = text
            if text.startswith("reducing"):
                progress(text)

        try:
            return self._process.ask(question, watch)
        except ProcessEnded as error:
            self._drop()
            raise self._died(error, error.stderr) from None
        except Refused as error:
            if error.kind == InvalidArgument.__name__:
                raise
            tail = self._process.stderr_tail()
            self._drop()
            raise self._died(error, tail) from None

    def _written(self) -> int:
        """Bytes that the process has written to standard error."""
        if self._process is None:
            return 0
        return (self._folder / _STDERR).stat().st_size

    def _stderr_from(self, start: int) -> str:
        with (self._folder / _STDERR).open("rb") as file:
            file.seek(max(start, self._written() - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()

    def _died(self, error: ProcessEnded | Refused, stderr: str) -> Died:
        # One label may begin another.
        there = [label for label in self.labels if self._at.startswith(label)]
        at = max(there, key=len, default="")
        return Died(kind_of(error), ending_text(error, self._at), at, stderr)

    def _drop(self) -> None:
        """Forgets a process that is of no use any more."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def kills(wanted: Wanted, case: Case, kind: Kind) -> bool:
    """Whether a case ends a process that is started for it in the same way."""
    patient = replace(wanted, limit_s=shorter(wanted.limit_s))
    with tempfile.TemporaryDirectory(prefix="tosavk-tried-") as name:
        write_case(Path(name), case, title="", about={}, scripted=False)
        try:
            _afresh(patient, Path(name), kind)
        except (ProcessEnded, Refused) as error:
            return kind_of(error) is kind
    return False


def _afresh(wanted: Wanted, folder: Path, kind: Kind) -> Message:
    """What a process that is started for it says of a case."""
    question: Message = {
        "do": "case",
        "folder": str(folder),
        "backends": list(wanted.backends),
        "numerics": wanted.numerics.value,
        "kind": kind.value,
        "least": wanted.least,
    }
    process = Process(
        wanted.command, stderr=folder / "stderr.txt", limit_s=wanted.limit_s
    )
    try:
        return process.ask(question)
    finally:
        process.kill()


def about_program(index: int, keep: Path | None = None) -> Message:
    """The question about a program.

    Args:
        index: its number.
        keep: folder for what it gives, or None.
    """
    return {
        "do": "judge",
        "index": index,
        "folder": "",
        "keep": "" if keep is None else str(keep),
    }


def about_case(folder: Path, kind: str = "", keep: Path | None = None) -> Message:
    """The question about a case in a folder.

    Args:
        folder: where it is.
        kind: the kind of finding that is looked for, or "".
        keep: folder for what it gives, or None.
    """
    question = about_program(0, keep)
    return {**question, "folder": str(folder.absolute()), "kind": kind}


def judged_of(answer: Message) -> Judged:
    """What an answer says of a program."""
    findings = cast("list[dict[str, object]]", answer["findings"])
    found = cast("list[dict[str, str]]", answer["points"])
    return Judged(
        tuple(_finding(item) for item in findings),
        tuple(Point(**words) for words in found),
        int(str(answer["exceptions"])),
        int(str(answer["unpredictable"])),
        str(answer["left_out"]),
        bool(answer["validated"]),
    )


def shorter(limit_s: float) -> float:
    """Patience with what hung before, in seconds."""
    return min(limit_s or _SHORT_S, _SHORT_S)


def ending_text(error: ProcessEnded | Refused, at: str) -> str:
    """How a process ended, in one line, and what was at work then."""
    what = f"{error.kind}: " if isinstance(error, Refused) else ""
    text = f"{what}{error}"
    if not at:
        return text
    working = f" while {at} was at work"
    # What hung is told with what it said last.
    if error.ending is Ending.HUNG and f" while {at};" in text:
        return text.replace(f" while {at};", f"{working};")
    return text + working


def kind_of(error: ProcessEnded | Refused) -> Kind:
    """How a process ended, as a finding."""
    match error.ending:
        case Ending.HUNG:
            return Kind.HUNG
        case Ending.OUT_OF_MEMORY:
            return Kind.MEMORY
        case Ending.LOST:
            return Kind.LOST
        case Ending.FAILED:
            return Kind.FAILED
        case _:
            return Kind.CRASHED


def _finding(data: dict[str, object]) -> Finding:
    words = cast("dict[str, str]", data["key"])
    return Finding(
        Key(Kind(words["kind"]), words["op"], words["dtype"]),
        str(data["text"]),
        tuple(_texts(data["backends"])),
        int(str(data["sample"])),
        int(str(data["operator"])),
    )


def _texts(value: object) -> Sequence[str]:
    return [str(item) for item in cast("list[object]", value)]
