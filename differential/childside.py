"""One backend's side of a diff, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from tosavk.core import errors
from tosavk.core.errors import DeviceUnavailable, InitError, InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.arrays import read_arrays, write_arrays
from tosavk.differential.exceptions import Trait
from tosavk.differential.notes import Noted, Notes
from tosavk.differential.process import (
    DEFAULT_LIMIT_S,
    Message,
    Process,
    ProcessEnded,
    Progress,
    Refused,
)
from tosavk.differential.result import Ending
from tosavk.differential.sides import TOO_MUCH, Sample, changes
from tosavk.lowering.graph import Block, Graph, Operator

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Children:
    """How processes for backends are started.

    Attributes:
        command: program and arguments; empty: this interpreter with
            `tosavk.differential.worker`. Another one calls `worker.main` in the end.
        limit_s: seconds without a sign of life after which one is killed; 0: none.
    """

    command: tuple[str, ...] = ()
    limit_s: float = DEFAULT_LIMIT_S

    @property
    def words(self) -> tuple[str, ...]:
        """The command as it is run."""
        # -P: modules of the working folder are not ours.
        worker = (sys.executable, "-P", "-m", "tosavk.differential.worker")
        return self.command or worker


class ChildSide(Noted):
    """A backend in a process of its own; the same as `Side` otherwise.

    The process is started at once and opens the device; `open` waits for it, so that
    several start at the same time. It maps the model from its file, and tensors go
    through files in `folder` which both sides map: nothing large goes through a pipe.
    When the process crashes, hangs, loses the device or runs out of memory, the ending
    is noted with what it wrote to standard error, and every later call does nothing.

        side = ChildSide("vulkan", "vulkan", folder=folder, model=path)
        side.open(graph, print)
        side.run(Sample(inputs, input_folder), repeats=0, progress=print)
        side.record.ending, side.record.failure, side.record.stderr
        side.close()

    Args:
        label: what it is called in the result.
        spec: backend specification.
        folder: an empty or new folder for its files.
        model: the model's file.
        shapes: of inputs whose dimensions the file leaves open.
        numerics: mode.
        children: how it is started.
        optional: whether a backend that is not there is left out; otherwise one that
            names no device makes `open` raise DeviceUnavailable.
    """

    concurrent = True

    def __init__(
        self,
        label: str,
        spec: str,
        *,
        folder: Path,
        model: Path,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        numerics: Numerics = Numerics.STRICT,
        children: Children = Children(),
        optional: bool = False,
    ) -> None:
        """Starts the process."""
        super().__init__(label, spec, Notes())
        self._folder = folder
        self._optional = optional
        self._room = 1
        self._runs = 0
        self._graph: Graph | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._process = Process(
            children.words, stderr=folder / "stderr.txt", limit_s=children.limit_s
        )
        question: Message = {
            "do": "open",
            "spec": spec,
            "model": str(model.absolute()),
            "shapes": {name: list(shape) for name, shape in (shapes or {}).items()},
            "numerics": numerics.value,
        }
        try:
            self._process.send(question)
        except ProcessEnded as error:
            self._note(error)

    @property
    def room(self) -> int:
        """Inputs and outputs that a program can have there."""
        return self._room

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def open(self, graph: Graph, progress: Progress) -> None:
        """Waits until the device is open.

        Raises:
            DeviceUnavailable: the specification names no device, or several.
            InvalidArgument: it names no backend.
        """
        self._graph = graph
        if not self.ran:
            return
        try:
            answer = self._process.receive(self._told(progress))
        except Refused as error:
            kind = getattr(errors, error.kind, Exception)
            if kind is InvalidArgument:
                raise InvalidArgument(str(error)) from None
            if kind is DeviceUnavailable and not self._optional:
                raise DeviceUnavailable(str(error)) from None
            self._note(error)
            if issubclass(kind, InitError) and self._optional:
                self._notes.ending = Ending.LEFT_OUT
        except ProcessEnded as error:
            self._note(error)
        else:
            self._notes.device = str(answer["device"])
            self._room = int(str(answer["room"]))

    def run(self, sample: Sample, *, repeats: int, progress: Progress) -> None:
        """Runs the program; what it ends by is noted and raises nothing."""
        self._runs += 1
        where = self._folder / f"run{self._runs}"
        question = self._with_inputs("run", sample, where)
        answer = self._try({**question, "repeats": repeats}, progress)
        if answer is None:
            return
        found = self._read(where, answer)
        if found is None:
            return
        self.outputs = found
        self._compared = True
        self._notes.repeatable &= bool(answer["repeatable"])
        times = ("load_s", "first_s", "steady_s")
        self._notes.time(**{name: float(str(answer[name])) for name in times})

    def expose(self, names: Sequence[str], progress: Progress) -> None:
        """Loads the program with these intermediates as outputs."""
        self.tensors = {}
        if not self.unprobed:
            question: Message = {"do": "expose", "names": list(names)}
            self._try(question, progress, probing=True)

    def probe(
        self, sample: Sample, outputs: Mapping[str, Array], progress: Progress
    ) -> None:
        """Reads the intermediates; as `Side.probe`."""
        self.tensors = {}
        if self.unprobed:
            return
        where = self._folder / "probe"
        question = self._with_inputs("probe", sample, where)
        answer = self._try(question, progress, probing=True)
        found = None if answer is None else self._read(where, answer)
        if found is not None:
            self.changed += changes(outputs, found, self.changed)
            self.tensors = {**sample.arrays, **found}

    def release(self) -> None:
        """Unloads the program."""
        self._try({"do": "release"}, lambda _: None)

    def rerun(
        self,
        op: Operator,
        block: Block,
        graph: Graph,
        operands: Mapping[str, Array],
        constants: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Runs one operator of the main block alone; as `Side.rerun`.

        The constants are those of the process's own copy of the model.
        """
        del block, graph, constants
        if not self.ran:
            return {}
        given, where = self._folder / "operands", self._folder / "rerun"
        question: Message = {
            "do": "rerun",
            "operator": op.index,
            "operands": str(given),
            "names": write_arrays(given, operands),
            "folder": str(where),
        }
        answer = self._try(question, lambda _: None)
        return {} if answer is None else self._read(where, answer) or {}

    def traits(self) -> frozenset[Trait]:
        """What a known-answer test finds out about the device; asked once."""
        if self._notes.traits is None:
            self._notes.traits = frozenset()
            if self.ran and not self.is_reference:
                try:
                    answer = self._process.ask({"do": "traits"})
                except Refused as error:
                    # It excuses nothing then.
                    if error.ending is Ending.LOST:
                        self._note(error)
                    return frozenset()
                except ProcessEnded as error:
                    self._note(error)
                    return frozenset()
                names = cast("list[str]", answer["traits"])
                self._notes.traits = frozenset(Trait(name) for name in names)
        return self._notes.traits

    def dismiss(self) -> None:
        """Tells the process to end, without waiting."""
        self._process.dismiss()

    def kill(self) -> None:
        """Ends the process by force; who waits for it goes on."""
        self._process.kill()

    def close(self) -> None:
        """Ends the process; that it crashes or hangs while doing so is noted."""
        ended = self._process.close()
        if ended is not None and self.ran:
            self._note(ended)
            self._notes.failure += " (after its last answer)"

    def __enter__(self) -> Self:
        """The side itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the process; where an error is under way, nothing is waited for."""
        if error is not None:
            self.kill()
        else:
            self.close()

    def _told(self, progress: Progress) -> Callable[[str], None]:
        return lambda text: progress(f"{self.label}: {text}")

    def _with_inputs(self, do: str, sample: Sample, where: Path) -> Message:
        assert sample.folder is not None
        return {
            "do": do,
            "inputs": str(sample.folder),
            "names": list(sample.arrays),
            "folder": str(where),
        }

    def _try(
        self, question: Message, progress: Progress, *, probing: bool = False
    ) -> Message | None:
        """The answer, or None; why there is none is noted."""
        if not self.ran:
            return None
        try:
            return self._process.ask(question, self._told(progress))
        except Refused as error:
            if probing and error.ending in TOO_MUCH:
                self.unprobed = f"{error.kind}: {error}"
            else:
                self._note(error)
        except ProcessEnded as error:
            self._note(error)
        return None

    def _read(self, where: Path, answer: Message) -> dict[str, Array] | None:
        """The arrays of an answer, or None if they are not what was asked for."""
        assert self._graph is not None
        names = [str(name) for name in cast("list[object]", answer["names"])]
        try:
            return read_arrays(where, names, self._graph.main)
        except (OSError, InvalidArgument) as error:
            self._notes.ending = Ending.FAILED
            self._notes.failure = f"its answer makes no sense: {error}"
            return None

    def _note(self, error: Refused | ProcessEnded) -> None:
        if isinstance(error, ProcessEnded):
            self._notes.end(error.ending, "", str(error))
            self._notes.stderr = error.stderr
        else:
            self._notes.end(error.ending, error.kind, str(error))
            self._notes.stderr = self._process.stderr_tail()
