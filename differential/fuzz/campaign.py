"""A run of the fuzzer: programs one after the other, findings reduced and filed.

A journal in the folder says how far it is, so that the same command goes on after an
interruption. A program that ends or blocks the process is a finding itself: where
programs are judged in a process of their own it is run again with one for each backend,
which says who it was, and the others are compared; else it is one when it has done so
twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tosavk.core.errors import InitError
from tosavk.differential.fuzz.apart import Apart, Party, Standing, wanted_of
from tosavk.differential.fuzz.bench import Bench, Judged, Judging
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.filing import Evidence, Setting, file_finding, name_also
from tosavk.differential.fuzz.finding import Finding, Key, Kind
from tosavk.differential.fuzz.generator import Generator, Made
from tosavk.differential.fuzz.journal import JOURNAL, Journal
from tosavk.differential.fuzz.judge import named_key
from tosavk.differential.fuzz.record import REDUCING, Filed, Request, Result
from tosavk.differential.fuzz.reduce import reduce_case
from tosavk.differential.fuzz.remote import (
    COMMAND,
    Died,
    RemoteBench,
    Wanted,
    about_program,
    kills,
)
from tosavk.differential.fuzz.shrink import weight

__all__ = ["JOURNAL", "REDUCING", "Filed", "Request", "Result", "fuzz"]

_DEATHS_REDUCED = 3
_DEATH_TRIES = {Kind.HUNG: 16}
_DEATH_TRIES_ELSE = 80


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
        self._journal = Journal(request, bench.labels)
        self._deaths = 0
        self._result = Result(request, backends=bench.labels, devices=bench.devices)

    def run(self) -> Result:
        result, request = self._result, self._request
        first = self._journal.resume(result)
        crashed = self._journal.crashed
        if crashed is not None:
            text = f"the process ended twice during program {crashed}"
            self._ended(crashed, Died(Kind.CRASHED, text, "", ""), ())
            self._journal.end(crashed, Judged(()), [])
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
        try:
            judged = self._bench.judge(index)
        except Died as death:
            self._apart(index, death)
        else:
            self._said(index, judged, self._bench)

    def _apart(self, index: int, death: Died) -> None:
        """Runs a program that ended the process with one for each backend.

        Where none of these ends, it is run once more as it was.
        """
        bench = self._bench
        assert isinstance(bench, RemoteBench)
        first = bench.first
        self._progress(f"program {index}: {death}; each backend in its own process")
        with Apart(
            bench.wanted,
            [Party(*words) for words in zip(bench.labels, bench.specs, strict=True)],
            lambda keep: about_program(index, keep),
            suspect=death.backend if death.kind is Kind.HUNG else "",
        ) as apart:
            if not apart.dead:
                try:
                    judged = bench.judge(index)
                except Died as again:
                    text = f"{again}; in a process of its own each backend lives"
                    found = Died(again.kind, text, again.backend, again.stderr)
                    self._ended(index, found, apart.standings)
                else:
                    evidence = Evidence(
                        stderr=death.stderr, standings=apart.standings, first=first
                    )
                    self._ended_once(index, death, evidence)
                    self._said(index, judged, bench)
                    return
            for kind in dict.fromkeys(standing.kind for standing in apart.dead):
                self._ended_alone(
                    index, [s for s in apart.dead if s.kind is kind], apart.standings
                )
            if apart.died is not None:
                self._ended(index, apart.died, apart.standings)
            self._said(index, apart.judged, apart)

    def _said(self, index: int, judged: Judged, where: Judging | Apart) -> None:
        """Notes what is said of a program, and files what is wrong."""
        fresh = self._result.add(index, judged)
        # Only the first: what is behind it may follow from it.
        for finding in judged.findings[:1]:
            self._found(index, finding, judged.stderr, where)
        self._journal.end(index, judged, fresh)

    def _found(
        self, index: int, finding: Finding, stderr: str, where: Judging | Apart
    ) -> None:
        if self._seen(index, finding.key, finding.backends):
            return
        made = self._generator.make(index)
        filed = Filed(
            finding.key, finding.text, finding.backends, made.seed, [made.index]
        )
        case, first = made.case, None
        # What ends the process while it is reduced stays as it is.
        with contextlib.suppress(Died, InitError):
            bench = where.bench if isinstance(where, Apart) else where
            before = bench.first if isinstance(bench, RemoteBench) else None
            if self._request.reducing:
                found = bench.reduce(
                    index, finding.key, self._request.reducing, self._progress
                )
                case, filed.tried = found.case, found.tried
                if found.again is False:
                    filed.text += " (not in a fresh process)"
                    first = before
        standings = where.standings if isinstance(where, Apart) else ()
        evidence = Evidence(stderr=stderr, standings=standings, first=first)
        self._file(filed, case, made, evidence)

    def _seen(self, index: int, key: Key, backends: Sequence[str]) -> bool:
        """Whether a finding is filed already; then the program is added to it."""
        filed = self._result.findings.get(key)
        if filed is None:
            return False
        filed.graphs.append(index)
        everybody = tuple(dict.fromkeys((*filed.backends, *backends)))
        if everybody != filed.backends:
            filed.backends = everybody
            if filed.folder:
                name_also(Path(filed.folder), everybody)
        self._journal.finding(filed)
        return True

    def _file(self, filed: Filed, case: Case, made: Made, evidence: Evidence) -> None:
        folder = self._request.folder
        filed.operators, filed.elements, _ = weight(case)
        self._result.findings[filed.key] = filed
        if folder is not None:
            number = len(self._result.findings)
            name = f"{number:03}-{filed.key}".replace(" ", "-")
            filed.folder = str(folder / name)
            bench = self._bench
            file_finding(
                folder / name,
                filed.key,
                filed.text,
                filed.backends,
                case=case,
                setting=Setting(
                    specs=bench.specs,
                    devices=bench.devices,
                    numerics=self._request.numerics,
                ),
                evidence=evidence,
                made=made,
                about={
                    "operators": filed.operators,
                    "elements": filed.elements,
                    "tried": filed.tried,
                },
            )
        self._journal.finding(filed)
        self._notice(filed)

    def _ended_alone(
        self, index: int, dead: Sequence[Standing], standings: tuple[Standing, ...]
    ) -> None:
        """Files a program that ended processes of single backends in one way."""
        first = dead[0]
        assert first.kind is not None
        text = "; ".join(f"{s.party.label}: {s.text}" for s in dead)
        parts = [
            s.stderr if len(dead) == 1 else f"{s.party.label}:\n{s.stderr}"
            for s in dead
        ]
        rules = [s.party for s in standings if s.party.is_reference and s.kind is None]
        assert isinstance(self._bench, RemoteBench)
        wanted = self._bench.wanted
        if not first.party.is_reference:
            wanted = wanted_of(wanted, [first.party, *rules])
        death = Died(first.kind, text, first.party.label, "\n".join(parts))
        labels = tuple(s.party.label for s in dead)
        self._ended(index, death, standings, wanted=wanted, labels=labels)

    def _ended(
        self,
        index: int,
        death: Died,
        standings: tuple[Standing, ...],
        *,
        wanted: Wanted | None = None,
        labels: tuple[str, ...] = (),
    ) -> None:
        """Files a program that a process did not survive.

        Args:
            index: its number.
            death: how that ended.
            standings: what became of each backend in a process of its own.
            wanted: the process that does not survive it; None: that of all backends.
            labels: the backends that it is about; empty: as `death` has it.
        """
        made = self._generator.make(index)
        if wanted is None and isinstance(self._bench, RemoteBench):
            wanted = self._bench.wanted
        case, tried = self._smaller(made.case, death.kind, wanted)
        key = named_key(case, death.kind)
        labels = labels or self._about(death)
        if self._seen(index, key, labels):
            return
        text = f"{death} (program {index} of seed {made.seed})"
        filed = Filed(key, text, labels, made.seed, [index], tried=tried)
        evidence = Evidence(stderr=death.stderr, standings=standings)
        self._file(filed, case, made, evidence)

    def _ended_once(self, index: int, death: Died, evidence: Evidence) -> None:
        """Files what happened once, and not when the program was run again."""
        made = self._generator.make(index)
        key = Key(death.kind, "", "")
        if self._seen(index, key, self._about(death)):
            return
        text = (
            f"{death}, once: when program {index} of seed {made.seed} was run again it "
            "did not"
        )
        filed = Filed(key, text, self._about(death), made.seed, [index])
        self._file(filed, made.case, made, evidence)

    def _about(self, death: Died) -> tuple[str, ...]:
        return (death.backend,) if death.backend else self._bench.labels

    def _smaller(
        self, case: Case, kind: Kind, wanted: Wanted | None
    ) -> tuple[Case, int]:
        """The smallest case that ends a process in the same way, each tried in its own.

        That takes a second each, so it is done for the first few only.
        """
        self._deaths += 1
        many = self._deaths > _DEATHS_REDUCED
        if many or not self._request.reducing or wanted is None:
            return case, 0
        if not kills(wanted, case, kind):
            return case, 1
        found = reduce_case(
            case,
            lambda c: kills(wanted, c, kind),
            budget=min(
                self._request.reducing, _DEATH_TRIES.get(kind, _DEATH_TRIES_ELSE)
            ),
            progress=lambda text: self._progress(f"reducing {kind}: {text}"),
        )
        return found.case, found.tried
