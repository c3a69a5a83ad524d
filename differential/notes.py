"""What is known of a backend while a diff runs, whatever process it is in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import parse_spec
from tosavk.differential.exceptions import Trait
from tosavk.differential.result import BackendRun, Ending

Array = NDArray[np.generic]

REFERENCE = "reference"


@dataclass(slots=True)
class Notes:
    """What a side's record is made of; `BackendRun` says what the members mean."""

    device: str = ""
    ending: Ending = Ending.RAN
    failure: str = ""
    stderr: str = ""
    load_s: float = 0.0
    first_s: float = 0.0
    steady_s: float = 0.0
    repeatable: bool = True
    traits: frozenset[Trait] | None = field(default=None)

    def end(self, ending: Ending, kind: str, text: str) -> None:
        """Notes what ended it.

        Args:
            ending: how.
            kind: name of the error's class, or "".
            text: what it says.
        """
        self.ending = ending
        # That a value breaks a rule is said in full.
        named = kind and ending is not Ending.REFUSED
        self.failure = f"{kind}: {text}" if named else text

    def time(self, *, load_s: float, first_s: float, steady_s: float) -> None:
        """Notes the times of the first run."""
        if not self.first_s:
            self.load_s, self.first_s, self.steady_s = load_s, first_s, steady_s

    def record(self, label: str, spec: str, *, compared: bool) -> BackendRun:
        """The record."""
        return BackendRun(
            label=label,
            spec=spec,
            device=self.device,
            ending=self.ending,
            load_s=self.load_s,
            first_s=self.first_s,
            steady_s=self.steady_s,
            repeatable=self.repeatable,
            failure=self.failure,
            traits=tuple(sorted(self.traits or ())),
            stderr=self.stderr,
            compared=compared,
        )


class Noted:
    """A backend of a diff: what it is called, and what it said.

    Args:
        label: what it is called in the result.
        spec: backend specification as given.
        notes: what is known of it already.

    Attributes:
        outputs: final outputs by name, as the program as a whole gives them, of the
            last run.
        tensors: inputs, outputs and exposed intermediates by name, of the last `probe`.
        changed: outputs whose bits changed when intermediates were kept.
        unprobed: why the intermediates could not be read, or "".
    """

    def __init__(self, label: str, spec: str, notes: Notes) -> None:
        """One that has not run."""
        self.label = label
        self.spec = spec
        self.outputs: dict[str, Array] = {}
        self.tensors: dict[str, Array] = {}
        self.changed: list[str] = []
        self.unprobed = ""
        self._notes = notes
        self._compared = False

    @property
    def is_reference(self) -> bool:
        """Whether it is the NumPy reference."""
        return parse_spec(self.spec)[0] == REFERENCE

    @property
    def ran(self) -> bool:
        """Whether nothing has ended it so far."""
        return self._notes.ending is Ending.RAN

    @property
    def record(self) -> BackendRun:
        """Its part, as data."""
        return self._notes.record(self.label, self.spec, compared=self._compared)
