"""A bench in a process of its own: what a driver does to it is a finding, not the end.

The process keeps its devices open over many programs, so it costs nothing while all goes
well. After one that crashed, hung or was lost, the next question starts another; and so
it is after many programs, since drivers keep what they have compiled.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
    """

    seed: int
    backends: tuple[str, ...]
    optional: bool = False
    numerics: Numerics = Numerics.STRICT
    limit_s: float = LIMIT_S
    command: tuple[str, ...] = COMMAND

    def question(self) -> Message:
        """The words that open it."""
        return {
            "do": "open",
            "seed": self.seed,
            "backends": list(self.backends),
            "optional": self.optional,
            "numerics": self.numerics.value,
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


class RemoteBench:
    """Backends that stay open in a process of their own.

    Use it as a context manager, or `close` it.

    Args:
        wanted: what it opens.

    Raises:
        InvalidArgument: fewer than two backends.
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
        self.labels: tuple[str, ...] = ()
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
        answer = self._ask({"do": "judge", "index": index})
        self._judged += 1
        self.missing = [*self._left_out, *_texts(answer["missing"])]
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
            answer = self._afresh(folder, self._wanted.limit_s, key.kind)
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
        try:
            answer = self._ask(question)
        except Died as death:
            backends = (death.backend,) if death.backend else self.labels
            return (Finding(Key(death.kind, "", ""), str(death), backends),)
        found = cast("list[dict[str, object]]", answer["findings"])
        return tuple(_finding(item) for item in found)

    def kills(self, case: Case, kind: Kind) -> bool:
        """Whether a case ends a fresh process in the same way."""
        folder = self._folder / "tried"
        write_case(folder, case, title="", about={}, scripted=False)
        try:
            self._afresh(folder, min(self._wanted.limit_s or _SHORT_S, _SHORT_S), kind)
        except (ProcessEnded, Refused) as error:
            return _kind(error) is kind
        return False

    def _afresh(self, folder: Path, limit_s: float, kind: Kind) -> Message:
        """What a process that was started for it says of a case."""
        question: Message = {
            "do": "case",
            "folder": str(folder),
            "backends": list(self._wanted.backends),
            "numerics": self._wanted.numerics.value,
            "kind": kind.value,
        }
        process = Process(
            self._wanted.command, stderr=self._folder / "tried.txt", limit_s=limit_s
        )
        try:
            return process.ask(question)
        finally:
            process.kill()

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
                stderr=self._folder / "stderr.txt",
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

    def _died(self, error: ProcessEnded | Refused, stderr: str) -> Died:
        at = next((label for label in self.labels if self._at.startswith(label)), "")
        where = f" while {self._at} was at work" if self._at else ""
        what = f"{error.kind}: " if isinstance(error, Refused) else ""
        return Died(_kind(error), f"{what}{error}{where}", at, stderr)

    def _drop(self) -> None:
        """Forgets a process that is of no use any more."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def _kind(error: ProcessEnded | Refused) -> Kind:
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
