"""Runs one model on several backends and compares what they say.

Device backends are compared bit for bit in strict mode. With `reference` among the
backends, or node by node, every operator is also checked on its own: given the very
inputs that the device's own intermediates are, its result must obey TOSA's rule for that
operator, so errors of earlier operators neither hide nor add to later ones.

Each backend runs in a process of its own; one that ends, hangs or loses its device is a
finding, and the others go on.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import open_accelerator
from tosavk.core.dtypes import pack
from tosavk.core.errors import DeviceUnavailable, InitError, InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.arrays import write_arrays
from tosavk.differential.childside import ChildSide
from tosavk.differential.findings import findings, notes
from tosavk.differential.operators import OperatorCheck
from tosavk.differential.outputs import compare_outputs, merged_operators
from tosavk.differential.request import DiffRequest, Given
from tosavk.differential.result import (
    DiffResult,
    Ending,
    InputOrigin,
    OperatorComparison,
)
from tosavk.differential.sides import Party, Sample, Side, ending_of
from tosavk.differential.windows import Window, windows
from tosavk.lowering.custom import custom
from tosavk.lowering.tosa.writer import write_graph

__all__ = ["DiffRequest", "Given", "Watch", "diff"]

Array = NDArray[np.generic]


class Progress(Protocol):
    """What is told how far a diff is."""

    def __call__(self, text: str, /) -> None:
        """What is under way."""
        ...


class Watch(Protocol):
    """What sees the arrays of a diff while they are there."""

    def outputs(self, number: int, found: Mapping[str, Mapping[str, Array]]) -> None:
        """Final outputs of one run, by label and name."""
        ...

    def tensors(self, number: int, sides: Sequence[Party]) -> None:
        """The `tensors` of the sides for one run; some of them at a time."""
        ...

    def done(self, sides: Sequence[Party]) -> None:
        """Everything has run, and the sides are still open."""
        ...


def diff(
    request: DiffRequest,
    progress: Progress = lambda _: None,
    *,
    watch: Watch | None = None,
) -> DiffResult:
    """Runs the comparison.

    Args:
        request: what to compare.
        progress: told what is under way.
        watch: shown the arrays.

    Raises:
        InvalidArgument: fewer than two backends, or inputs that do not fit; or all
            backends say that the program computes a value from them that an operator
            must not be given.
        DeviceUnavailable: a backend specification names no device, or several.
    """
    request.check()
    with (
        tempfile.TemporaryDirectory(
            prefix="tosavk-diff-", ignore_cleanup_errors=True
        ) as folder,
        ExitStack() as stack,
    ):
        lab = _Lab(request, Path(folder), stack, progress, watch)
        lab.begin()
        lab.run()
        if watch is not None:
            for number, found in enumerate(lab.outputs):
                watch.outputs(number, found)
        operators = lab.compare_operators() if request.probing else ()
        progress("comparing outputs")
        outputs = compare_outputs(
            request, lab.sides, lab.outputs, lab.judged, operators
        )
        if watch is not None:
            watch.done(lab.sides)
        lab.end()
        return DiffResult(
            model=request.model,
            model_sha256=request.model_sha256,
            numerics=request.numerics.value,
            inputs=tuple(lab.origins),
            runs=tuple(side.record for side in lab.sides),
            outputs=outputs,
            operators=operators,
            findings=tuple(findings(lab.sides, outputs, operators)),
            notes=tuple(notes(request, lab.sides, outputs, operators)),
            command=request.command,
            environment=request.environment,
            samples=request.count,
        )


class _Lab:
    """The sides of one diff, and what is known of them.

    Args:
        request: what to compare.
        folder: for files.
        stack: closes the sides, also when something goes wrong.
        progress: told what is under way.
        watch: shown the arrays, or None.

    Attributes:
        sides: the backends.
        outputs: final outputs of each run, by label and name.
        origins: where the inputs come from.
        judged: labels of the devices whose operators were compared.
    """

    def __init__(
        self,
        request: DiffRequest,
        folder: Path,
        stack: ExitStack,
        progress: Progress,
        watch: Watch | None,
    ) -> None:
        self._request = request
        self._watch = watch
        self._folder = folder
        self._stack = stack
        self._progress = progress
        self._samples: list[Sample] = []
        self.sides: list[Party] = []
        self.outputs: list[dict[str, dict[str, Array]]] = []
        self.origins: list[InputOrigin] = []
        self.judged: list[str] = []

    def begin(self) -> None:
        """Opens all backends at the same time, and makes the inputs meanwhile."""
        request = self._request
        if request.children is None:
            self._open_here()
        else:
            self._start()
        for number in range(request.count):
            arrays = request.inputs(number)
            self.origins += _origins(request, number, arrays)
            folder = None
            if request.children is not None:
                folder = self._folder / f"inputs{number}"
                write_arrays(folder, arrays)
            self._samples.append(Sample(arrays, folder))
        self._progress("opening the devices")
        for side in self.sides:
            side.open(request.graph, self._progress)

    def run(self) -> None:
        """Runs the program on every backend, one after the other, for its times' sake."""
        for number, sample in enumerate(self._samples):
            found: dict[str, dict[str, Array]] = {}
            for side in self.sides:
                if not side.ran:
                    continue
                repeats = self._request.repeats if number == 0 else 0
                side.run(sample, repeats=repeats, progress=self._told(number))
                if side.ran:
                    found[side.label] = side.outputs
            self._require_accepted(number)
            self.outputs.append(found)

    def _require_accepted(self, number: int) -> None:
        """Whether anybody accepts what the program makes of its inputs.

        Raises:
            InvalidArgument: all say that it breaks a rule of TOSA, so it does.
        """
        records = [side.record for side in self.sides]
        refused = [r for r in records if r.ending is Ending.REFUSED]
        others = (r for r in records if r.ending is not Ending.REFUSED)
        if refused and not any(r.ran or r.ending.is_fault for r in others):
            run = self._request.of_run(number)
            raise InvalidArgument(f"{run}{refused[0].failure}")

    def compare_operators(self) -> tuple[OperatorComparison, ...]:
        """Compares every operator, for every run."""
        request = self._request
        done = [side for side in self.sides if side.ran]
        check = OperatorCheck(
            request.graph,
            against_reference=any(side.is_reference for side in done),
            exact=request.numerics is Numerics.STRICT,
            shares=True,
        )
        found: list[list[OperatorComparison]] = [[] for _ in self._samples]
        parts = windows(
            request.graph.main,
            check.live,
            check.constants,
            room=min((side.room for side in done), default=1),
            budget=request.window_bytes,
        )
        for part in parts:
            self._compare_window(check, part, found)
        return merged_operators(found)

    def _compare_window(
        self,
        check: OperatorCheck,
        part: Window,
        found: Sequence[list[OperatorComparison]],
    ) -> None:
        self._together(lambda side: side.expose(part.names, self._progress))
        for number, sample in enumerate(self._samples):
            outputs = self.outputs[number]
            told = self._told(number)

            def probe(
                side: Party,
                sample: Sample = sample,
                outputs: Mapping[str, Mapping[str, Array]] = outputs,
                told: Progress = told,
            ) -> None:
                side.probe(sample, outputs.get(side.label, {}), told)

            self._together(probe)
            if self._watch is not None:
                self._watch.tensors(number, self.sides)
            if number == len(self._samples) - 1:
                self._together(lambda side: side.release())
            devices = [s for s in self.sides if s.tensors and not s.is_reference]
            for side in devices:
                if side.label not in self.judged:
                    self.judged.append(side.label)
            reference = next(
                (s.tensors for s in self.sides if s.is_reference and s.tensors), None
            )
            found[number].extend(
                check.check(part.operators, devices, told, reference=reference)
            )

    def end(self) -> None:
        """Closes the backends at the same time; what they end by is still noted."""
        self._progress("closing the devices")
        for side in self.sides:
            side.dismiss()
        for side in self.sides:
            side.close()

    def _told(self, number: int) -> Progress:
        """Progress of one run, which says its number where there are several."""
        run = self._request.of_run(number)
        return lambda text: self._progress(f"{run}{text}")

    def _together(self, action: Callable[[Party], None]) -> None:
        """Does something with every side, at the same time where that is possible."""
        able = [side for side in self.sides if side.ran and side.concurrent]
        with ThreadPoolExecutor(max(1, len(able))) as pool:
            try:
                waiting = [pool.submit(action, side) for side in able]
                for side in self.sides:
                    if side.ran and not side.concurrent:
                        action(side)
                for future in waiting:
                    future.result()
            except BaseException:
                # An interrupt does not wait for a driver.
                for side in able:
                    side.kill()
                raise

    def _start(self) -> None:
        """Starts a process for each backend."""
        request = self._request
        assert request.children is not None
        model = Path(request.source)
        # Other processes do not know the CUSTOM operators of this one; in its graph
        # there are none left.
        if not request.source or custom.names:
            model = self._folder / "model.tosa"
            model.write_bytes(write_graph(request.graph))
        for number, (label, spec) in enumerate(_labelled(request.backends)):
            side = ChildSide(
                label,
                spec,
                folder=self._folder / f"side{number}",
                model=model,
                shapes=request.shapes if model == Path(request.source) else {},
                numerics=request.numerics,
                children=request.children,
                optional=request.optional,
            )
            self._stack.enter_context(side)
            self.sides.append(side)

    def _open_here(self) -> None:
        """Opens every backend in this process."""
        request = self._request
        for label, spec in _labelled(request.backends):
            self._progress(f"{label}: opening the device")
            ending, failure, accelerator = Ending.RAN, "", None
            try:
                accelerator = open_accelerator(spec)
            except InitError as error:
                if isinstance(error, DeviceUnavailable) and not request.optional:
                    raise
                ending = Ending.LEFT_OUT if request.optional else Ending.FAILED
                failure = f"{type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001 - what breaks is a finding
                ending = ending_of(error)
                failure = f"{type(error).__name__}: {error}"
            side = Side(
                label,
                spec,
                accelerator,
                numerics=request.numerics,
                ending=ending,
                failure=failure,
            )
            self._stack.callback(side.close)
            self.sides.append(side)


def _labelled(backends: Sequence[str]) -> list[tuple[str, str]]:
    """The backends, with a number where one takes part several times."""
    seen: Counter[str] = Counter()
    found: list[tuple[str, str]] = []
    for spec in backends:
        seen[spec] += 1
        found.append((spec if seen[spec] == 1 else f"{spec} ({seen[spec]})", spec))
    return found


def _origins(
    request: DiffRequest, number: int, inputs: Mapping[str, Array]
) -> list[InputOrigin]:
    tensors = request.graph.main.tensors
    given = request.given_in(number)
    styles = request.styles(number)
    return [
        InputOrigin(
            name=name,
            dtype=tensors[name].dtype.name,
            shape=array.shape,
            seed=None if name in given.arrays else request.seed + number,
            path=given.paths.get(name, ""),
            sha256=hashlib.sha256(pack(tensors[name].dtype, array)).hexdigest(),
            sample=number,
            style=styles[name].value if name in styles else "",
        )
        for name, array in inputs.items()
    ]
