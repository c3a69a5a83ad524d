"""Where programs are judged: open backends with the generator, in this process or another.

`Bench` works in this process. `RemoteBench` (`remote`) asks a process of its own, which a
driver may end or block without harm to the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.coverage import Point, points
from tosavk.differential.fuzz.generator import Generator
from tosavk.differential.fuzz.inside import all_inside, look_inside
from tosavk.differential.fuzz.judge import Finding, Judge, Key, Kind
from tosavk.differential.fuzz.reduce import reduce_case
from tosavk.differential.fuzz.validated import EVERY

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Judged:
    """What judging a program gave, without anything large.

    Attributes:
        findings: what is wrong, most telling first.
        points: what it covered.
        exceptions: comparisons that differ by a known exception only.
        unpredictable: comparisons that TOSA leaves open.
        left_out: backends that do not support it, with the reason.
        validated: whether synchronization validation saw it.
        stderr: the end of what its process wrote to standard error meanwhile.
    """

    findings: tuple[Finding, ...]
    points: tuple[Point, ...] = ()
    exceptions: int = 0
    unpredictable: int = 0
    left_out: str = ""
    validated: bool = False
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Smaller:
    """What reducing a program gave.

    Attributes:
        case: the smallest case with the finding.
        tried: programs that were judged for it.
        again: whether a fresh process shows the finding too; None where that was not
            tried.
    """

    case: Case
    tried: int
    again: bool | None = None


class Judging(Protocol):
    """A bench, wherever it is."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The backends that take part."""
        ...

    @property
    def specs(self) -> tuple[str, ...]:
        """The specification of each."""
        ...

    @property
    def devices(self) -> dict[str, str]:
        """Device and driver of each."""
        ...

    @property
    def missing(self) -> list[str]:
        """Backends that were left out, and validation, with the reason."""
        ...

    def judge(self, index: int) -> Judged:
        """Judges a program."""
        ...

    def reduce(self, index: int, key: Key, budget: int, progress: Progress) -> Smaller:
        """The smallest case with a finding."""
        ...

    def examine(self, case: Case, kind: Kind | None) -> tuple[Finding, ...]:
        """What is wrong with a case."""
        ...

    def close(self) -> None:
        """Closes the backends."""
        ...


class Bench:
    """Backends that stay open in this process. Use it as a context manager.

    Args:
        seed: of the programs.
        backends: specifications.
        optional: leave out those that are not there.
        numerics: mode.
        watch: told which backend is at work.
        labels: what they are called, as `Judge` has it.
        least: how many there must be.

    Attributes:
        outputs: what the last program gave, by label, for each sample.

    Raises:
        InvalidArgument: fewer backends.
        InitError: one cannot be opened and is not optional.
    """

    def __init__(
        self,
        seed: int,
        backends: Sequence[str],
        *,
        optional: bool = False,
        numerics: Numerics = Numerics.STRICT,
        watch: Progress = lambda _: None,
        labels: Sequence[str] = (),
        least: int = 2,
    ) -> None:
        """Opens the backends."""
        self._generator = Generator(seed)
        self.outputs: Mapping[str, Sequence[Mapping[str, NDArray[Any]]]] = {}
        self._judge = Judge(
            backends,
            optional=optional,
            numerics=numerics,
            watch=watch,
            labels=labels,
            least=least,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The backends that take part."""
        return self._judge.labels

    @property
    def specs(self) -> tuple[str, ...]:
        """The specification of each."""
        return self._judge.specs

    @property
    def numerics(self) -> Numerics:
        """Mode."""
        return self._judge.numerics

    @property
    def stderr(self) -> str:
        """What drivers said to standard error goes there, and is not known here."""
        return ""

    @property
    def devices(self) -> dict[str, str]:
        """Device and driver of each."""
        return self._judge.devices

    @property
    def missing(self) -> list[str]:
        """Backends that were left out, and validation, with the reason."""
        return [*self._judge.missing, *self._judge.unvalidated]

    def judge(self, index: int) -> Judged:
        """Judges a program; one of many under synchronization validation too.

        Raises:
            DeviceLost: a device is gone.
        """
        case = self._generator.make(index).case
        return self.judge_case(case, validating=index % EVERY == 0)

    def judge_case(self, case: Case, *, validating: bool) -> Judged:
        """Judges a case that is given.

        Raises:
            DeviceLost: a device is gone.
        """
        verdict = self._judge.judge(case, validating=validating)
        self.outputs = verdict.outputs
        findings = verdict.findings
        inside = look_inside(case, findings, self._judge.examine)
        return Judged(
            findings if inside is None else inside[1],
            tuple(points(case.graph, verdict)),
            verdict.exceptions,
            verdict.unpredictable,
            "; ".join(verdict.left_out),
            validating and self._judge.validates,
        )

    def reduce(
        self,
        index: int,
        key: Key,
        budget: int,
        progress: Progress,
        *,
        plain: bool = True,
    ) -> Smaller:
        """The smallest case with a finding."""
        case = self._with(self._generator.make(index).case, key)
        found = reduce_case(
            case,
            lambda c: any(f.key == key for f in self.examine(c, key.kind)),
            target=key.op,
            budget=budget,
            progress=lambda text: progress(f"reducing {key}: {text}"),
            plain=plain,
        )
        return Smaller(found.case, found.tried)

    def _with(self, case: Case, key: Key) -> Case:
        """The program, or the region of it that shows a finding."""
        if any(f.key == key for f in self._judge.examine(case, key.kind)):
            return case
        for inner in all_inside(case):
            if any(f.key == key for f in self._judge.examine(inner)):
                return inner
        return case

    def examine(self, case: Case, kind: Kind | None) -> tuple[Finding, ...]:
        """What is wrong with a case; see `Judge.examine`."""
        return self._judge.examine(case, kind)

    def close(self) -> None:
        """Closes the backends."""
        self._judge.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
