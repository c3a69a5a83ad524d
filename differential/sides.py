"""One backend's side of a diff: an open device, and what it said.

Everything that touches the device is behind a side, and every failure of it ends as
data. `Side` runs in this process; `ChildSide` (`childside`) does the same in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tosavk.core.accelerator import Accelerator
from tosavk.core.errors import Error
from tosavk.core.plan import Numerics
from tosavk.differential.compare import same_bits
from tosavk.differential.exceptions import Trait, traits
from tosavk.differential.notes import REFERENCE, Noted, Notes
from tosavk.differential.result import BackendRun, Ending, ending_of
from tosavk.differential.station import Station, keeps_state, run_alone
from tosavk.lowering.graph import Block, Graph, Operator

__all__ = [
    "REFERENCE",
    "Party",
    "Sample",
    "Side",
    "ending_of",
    "keeps_state",
    "run_alone",
    "same_bits",
]

Array = NDArray[np.generic]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sample:
    """The inputs of one run.

    Attributes:
        arrays: by input name.
        folder: where their files are, for other processes; None where there are none.
    """

    arrays: Mapping[str, Array]
    folder: Path | None = None


class Compared(Protocol):
    """A side as the comparison of operators sees it."""

    label: str
    tensors: dict[str, Array]

    def rerun(
        self,
        op: Operator,
        block: Block,
        graph: Graph,
        operands: Mapping[str, Array],
        constants: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Runs one operator alone, as `Side.rerun`."""
        ...

    def traits(self) -> frozenset[Trait]:
        """What a known-answer test finds out about the device."""
        ...


class Party(Compared, Protocol):
    """A side as a diff sees it; `Side` says what the members mean."""

    spec: str
    outputs: dict[str, Array]
    changed: list[str]
    unprobed: str
    concurrent: bool

    @property
    def is_reference(self) -> bool:
        """Whether it is the NumPy reference."""
        ...

    @property
    def ran(self) -> bool:
        """Whether nothing has ended it so far."""
        ...

    @property
    def room(self) -> int:
        """Inputs and outputs that a program can have there."""
        ...

    @property
    def record(self) -> BackendRun:
        """Its part, as data."""
        ...

    def open(self, graph: Graph, progress: Progress) -> None:
        """Opens the device."""
        ...

    def run(self, sample: Sample, *, repeats: int, progress: Progress) -> None:
        """Runs the program; fills `outputs`."""
        ...

    def expose(self, names: Sequence[str], progress: Progress) -> None:
        """Loads the program with these intermediates as outputs."""
        ...

    def probe(
        self, sample: Sample, outputs: Mapping[str, Array], progress: Progress
    ) -> None:
        """Reads the intermediates; fills `tensors`."""
        ...

    def release(self) -> None:
        """Unloads the program, whose memory is wanted for the comparison."""
        ...

    def dismiss(self) -> None:
        """Begins to close, without waiting."""
        ...

    def close(self) -> None:
        """Gives everything back."""
        ...

    def kill(self) -> None:
        """Ends what it waits for, from another thread."""
        ...


class Side(Noted):
    """A backend while a diff runs, in this process.

    Args:
        label: what it is called in the result.
        spec: backend specification as given.
        accelerator: its open device, or None.
        ending: how opening it ended.
        failure: why there is no device, or "".
        numerics: mode.

    Attributes:
        concurrent: whether another thread may call it; here only the one that made it.
    """

    concurrent = False

    def __init__(
        self,
        label: str,
        spec: str,
        accelerator: Accelerator | None,
        *,
        numerics: Numerics,
        ending: Ending = Ending.RAN,
        failure: str = "",
    ) -> None:
        """A side that has not run."""
        super().__init__(label, spec, Notes(ending=ending, failure=failure))
        self._accelerator = accelerator
        self._numerics = numerics
        if accelerator is not None:
            self._notes.device = accelerator.name
        self._station: Station | None = None

    @property
    def room(self) -> int:
        """Inputs and outputs that a program can have there."""
        return self._station.room if self._station else 1

    def open(self, graph: Graph, progress: Progress) -> None:
        """Takes the program."""
        del progress
        if self._accelerator is not None:
            self._station = Station(self._accelerator, graph, numerics=self._numerics)

    def run(self, sample: Sample, *, repeats: int, progress: Progress) -> None:
        """Runs the program; what it ends by is noted and raises nothing."""
        if not self.ran or self._station is None:
            return
        try:
            ran = self._station.run(
                sample.arrays,
                repeats=repeats,
                progress=lambda text: progress(f"{self.label}: {text}"),
            )
        except Exception as error:  # noqa: BLE001 - a backend that breaks is a finding
            self._note(error)
            return
        self.outputs = ran.outputs
        self._compared = True
        self._notes.repeatable &= ran.repeatable
        self._notes.time(load_s=ran.load_s, first_s=ran.first_s, steady_s=ran.steady_s)

    def expose(self, names: Sequence[str], progress: Progress) -> None:
        """Loads the program with these intermediates as outputs.

        What the device cannot do is noted in `unprobed`.
        """
        self.tensors = {}
        if not self.ran or self._station is None or self.unprobed:
            return
        progress(f"{self.label}: reading intermediates")
        try:
            self._station.expose(names)
        except Exception as error:  # noqa: BLE001 - a backend that breaks is a finding
            self._note_probing(error)

    def probe(
        self, sample: Sample, outputs: Mapping[str, Array], progress: Progress
    ) -> None:
        """Reads the intermediates.

        Args:
            sample: the inputs.
            outputs: what the program gave for them without intermediates.
            progress: told what is under way.
        """
        del progress
        self.tensors = {}
        if not self.ran or self._station is None or self.unprobed:
            return
        try:
            found = self._station.probe(sample.arrays)
        except Exception as error:  # noqa: BLE001 - a backend that breaks is a finding
            self._note_probing(error)
            return
        self.changed += changes(outputs, found, self.changed)
        self.tensors = {**sample.arrays, **found}

    def release(self) -> None:
        """Unloads the program."""
        if self._station is not None:
            self._station.close()

    def rerun(
        self,
        op: Operator,
        block: Block,
        graph: Graph,
        operands: Mapping[str, Array],
        constants: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Runs one operator alone.

        Args:
            op: the operator.
            block: gives the types of its tensors.
            graph: the program it is from.
            operands: values of its inputs that are known at run time only.
            constants: values of its other inputs.

        Returns:
            Its results by name; empty when the device failed, which is noted.
        """
        if not self.ran or self._accelerator is None:
            return {}
        try:
            return run_alone(
                self._accelerator,
                op,
                block,
                graph,
                operands,
                constants,
                numerics=self._numerics,
            )
        except Exception as error:  # noqa: BLE001 - a backend that breaks is a finding
            self._note(error)
            return {}

    def traits(self) -> frozenset[Trait]:
        """What a known-answer test finds out about the device; asked once."""
        if self._notes.traits is None:
            self._notes.traits = frozenset()
            if self._accelerator is not None and not self.is_reference:
                try:
                    self._notes.traits = traits(self._accelerator)
                except Error as error:
                    # It excuses nothing then.
                    if ending_of(error) is Ending.LOST:
                        self._note(error)
        return self._notes.traits

    def dismiss(self) -> None:
        """Nothing to begin."""

    def kill(self) -> None:
        """Nothing that waits."""

    def close(self) -> None:
        """Unloads the program and closes the device."""
        if self._station is not None:
            self._station.close()
        if self._accelerator is not None:
            self._accelerator.close()

    def _note(self, error: Exception) -> None:
        self._notes.end(ending_of(error), type(error).__name__, str(error))

    def _note_probing(self, error: Exception) -> None:
        """More intermediates than the device can do are no fault of it."""
        if isinstance(error, Error) and ending_of(error) in TOO_MUCH:
            self.unprobed = f"{type(error).__name__}: {error}"
        else:
            self._note(error)


TOO_MUCH = frozenset({Ending.RESOURCE, Ending.UNSUPPORTED, Ending.OUT_OF_MEMORY})
"""Endings of reading intermediates that say nothing against a device."""


def changes(
    before: Mapping[str, Array], after: Mapping[str, Array], known: Sequence[str]
) -> list[str]:
    """Outputs whose bits changed, and that are not known yet."""
    return [
        name
        for name, array in before.items()
        if name not in known and name in after and not same_bits(after[name], array)
    ]
