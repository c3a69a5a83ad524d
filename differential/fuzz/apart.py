"""A program with a process for each backend, after it ended the one that had them all.

So it is known who it was, what the others gave is kept, and these are compared.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tosavk.core.errors import InitError
from tosavk.differential.fuzz.bench import Judged
from tosavk.differential.fuzz.finding import Finding, Key, Kind
from tosavk.differential.fuzz.judge import COMPARING
from tosavk.differential.fuzz.remote import (
    Died,
    RemoteBench,
    Wanted,
    ending_text,
    judged_of,
    kind_of,
    shorter,
)
from tosavk.differential.process import Message, Process, ProcessEnded, Refused
from tosavk.differential.sides import REFERENCE

Question = Callable[[Path | None], Message]
"""What is asked of a process; it keeps what the program gives in the folder."""


@dataclass(frozen=True, slots=True)
class Party:
    """A backend that takes part: what it is called, and its specification."""

    label: str
    spec: str

    @property
    def is_reference(self) -> bool:
        """Whether it is the NumPy reference."""
        return self.spec.partition(":")[0] == REFERENCE


@dataclass(frozen=True, slots=True)
class Standing:
    """What became of one backend in a process of its own.

    Attributes:
        party: the backend.
        kind: how its process ended; None where it did not.
        text: the same in one line.
        stderr: the end of what it wrote to standard error.
        judged: what is said of it alone, beside the reference where that takes part.
        results: folder with what the program gave (`files.write_outputs`), or None.
        comparing: whether the process ended while results were compared.
    """

    party: Party
    kind: Kind | None = None
    text: str = ""
    stderr: str = ""
    judged: Judged = Judged(())  # noqa: RUF009 - frozen
    results: Path | None = None
    comparing: bool = False

    @property
    def ending(self) -> str:
        """How it ended, in a word."""
        return "ran" if self.kind is None else self.kind.value

    def finding(self) -> Finding:
        """How its process ended, as a finding."""
        assert self.kind is not None
        label = self.party.label
        return Finding(Key(self.kind, "", ""), f"{label}: {self.text}", (label,))


class Apart:
    """Runs a program so, and keeps what came of it until it is closed.

    Args:
        wanted: how processes are started; its backends do not count.
        parties: the backends.
        ask: the question about the program.
        suspect: label of the one that hung before, which is not waited for as long
            again; or "".

    Attributes:
        standings: what became of each backend.
        judged: what is said of those that lived, compared.
        died: how the process that had these together ended, or None.
    """

    def __init__(
        self,
        wanted: Wanted,
        parties: Sequence[Party],
        ask: Question,
        *,
        suspect: str = "",
    ) -> None:
        """Runs it; returns when all is known."""
        self._wanted = wanted
        self._ask = ask
        self._suspect = suspect
        self._files = tempfile.TemporaryDirectory(prefix="tosavk-apart-")
        self._folder = Path(self._files.name)
        self._numbers = itertools.count()
        self._bench: RemoteBench | None = None
        self.died: Died | None = None
        try:
            self.standings = self._each(parties)
            self.judged = self._together()
        except BaseException:
            self.close()
            raise

    @property
    def dead(self) -> list[Standing]:
        """The backends whose process ended."""
        return [standing for standing in self.standings if standing.kind is not None]

    @property
    def bench(self) -> RemoteBench:
        """Those that lived, open together.

        Raises:
            InitError: one cannot be opened again.
        """
        if self._bench is None:
            living = [s.party for s in self.standings if s.kind is None]
            self._bench = RemoteBench(wanted_of(self._wanted, living))
        return self._bench

    def close(self) -> None:
        """Ends what was started, and removes what was kept."""
        if self._bench is not None:
            self._bench.close()
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

    def _each(self, parties: Sequence[Party]) -> tuple[Standing, ...]:
        rules = [party for party in parties if party.is_reference]
        devices = [party for party in parties if not party.is_reference]
        # The reference also judges in the process of each device.
        found = self._round(
            [[party, *rules] for party in devices] + [[p] for p in rules]
        )
        if not rules:
            return tuple(found)
        *found, reference = found
        doubtful = [s for s in found if s.comparing]
        again = {s.party: s for s in self._round([[s.party] for s in doubtful])}
        # What lives without the reference did not end the process.
        blamed = [s for s in doubtful if again[s.party].kind is None]
        if blamed and reference.kind is None:
            text = f"judging {blamed[0].party.label}: {blamed[0].text}"
            reference = replace(blamed[0], party=reference.party, text=text)
        return (*(again.get(s.party, s) for s in found), reference)

    def _round(self, groups: Sequence[Sequence[Party]]) -> list[Standing]:
        """The first of each group in a process, all at the same time."""
        started: list[Process] = []
        with ThreadPoolExecutor(max(1, len(groups))) as pool:
            try:
                waiting: list[Future[Standing]] = []
                for group in groups:
                    number = next(self._numbers)
                    hung = self._suspect == group[0].label
                    limit = self._wanted.limit_s
                    process = Process(
                        self._wanted.command,
                        stderr=self._folder / f"stderr{number}.txt",
                        limit_s=shorter(limit) if hung else limit,
                    )
                    started.append(process)
                    keep = self._folder / f"results{number}"
                    waiting.append(pool.submit(self._one, process, group, keep))
                return [future.result() for future in waiting]
            finally:
                for process in started:
                    process.kill()

    def _one(self, process: Process, group: Sequence[Party], keep: Path) -> Standing:
        party = group[0]
        heard = [""]
        try:
            question = wanted_of(self._wanted, group).question()
            process.ask(question, heard.append)
            heard.append("")
            answer = process.ask(self._ask(keep), heard.append)
        except (ProcessEnded, Refused) as error:
            return Standing(
                party,
                kind_of(error),
                ending_text(error, heard[-1]),
                process.stderr_tail(),
                comparing=heard[-1] == COMPARING,
            )
        return Standing(
            party,
            stderr=process.stderr_tail(),
            judged=judged_of(answer),
            results=keep if answer["files"] else None,
        )

    def _together(self) -> Judged:
        """What is said of the devices that lived."""
        living = [s for s in self.standings if s.kind is None]
        devices = [s for s in living if not s.party.is_reference]
        if len(devices) < 2:
            return merged([s.judged for s in devices])
        try:
            return self.bench.ask_for(self._ask(None))
        except Died as death:
            self.died = death
        except InitError as error:
            self.died = Died(Kind.FAILED, str(error), "", "")
        return merged([s.judged for s in devices])


def wanted_of(wanted: Wanted, parties: Sequence[Party]) -> Wanted:
    """The same with other backends, of which one is enough."""
    return replace(
        wanted,
        backends=tuple(party.spec for party in parties),
        labels=tuple(party.label for party in parties),
        optional=False,
        least=1,
    )


def merged(parts: Sequence[Judged]) -> Judged:
    """What is said of backends one by one, as if it were of all."""
    findings: dict[Key, Finding] = {}
    for part in parts:
        for finding in part.findings:
            first = findings.setdefault(finding.key, finding)
            labels = dict.fromkeys((*first.backends, *finding.backends))
            findings[finding.key] = replace(first, backends=tuple(labels))
    return Judged(
        tuple(findings.values()),
        tuple(dict.fromkeys(point for part in parts for point in part.points)),
        sum(part.exceptions for part in parts),
        sum(part.unpredictable for part in parts),
        "; ".join(part.left_out for part in parts if part.left_out),
        any(part.validated for part in parts),
        "\n".join(part.stderr for part in parts if part.stderr),
    )
