"""Runs whole programs on devices that stay open for the session.

An accelerator keeps its pipelines, so a test that shares one pays for each kind of
kernel once.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tosavk.backends.registry import open_accelerator
from tosavk.backends.session import Session
from tosavk.core.accelerator import Accelerator
from tosavk.core.plan import PlanLimits
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import Lowered, lower_graph
from tosavk.lowering.program import load_graph

Array = NDArray[Any]
Program = bytes | memoryview | Graph


class Devices:
    """The accelerators of a session, opened when first wanted."""

    def __init__(self) -> None:
        """Opens nothing yet."""
        self._open: dict[str, Accelerator] = {}

    def accelerator(self, spec: str) -> Accelerator:
        """The accelerator of a specification."""
        if spec not in self._open:
            self._open[spec] = open_accelerator(spec)
        return self._open[spec]

    def lower(
        self, spec: str, program: Program, *, limits: PlanLimits | None = None
    ) -> Lowered:
        """Reads, verifies and lowers a program for a device.

        Args:
            spec: the device.
            program: the program.
            limits: instead of the device's own.
        """
        own = self.accelerator(spec).device.plan_limits
        return lower_graph(load_graph(program), limits=limits or own)

    def session(
        self, spec: str, program: Program, *, limits: PlanLimits | None = None
    ) -> Session:
        """A program, loaded; the caller closes it."""
        lowered = self.lower(spec, program, limits=limits)
        return Session(self.accelerator(spec), lowered)

    def run(
        self,
        spec: str,
        program: Program,
        inputs: Mapping[str, object] | None = None,
        *,
        limits: PlanLimits | None = None,
    ) -> dict[str, Array]:
        """Runs a program once and gives its outputs."""
        with self.session(spec, program, limits=limits) as session:
            return session.run(inputs)

    def close(self) -> None:
        """Closes all accelerators."""
        for accelerator in self._open.values():
            accelerator.close()
        self._open.clear()


@pytest.fixture(scope="session")
def opened() -> Iterator[Devices]:
    """The devices that stay open for the session."""
    devices = Devices()
    yield devices
    devices.close()


def same_values(left: Array, right: Array) -> bool:
    """Whether two arrays have equal elements; NaN equals NaN, -0 equals +0."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    equal = np.asarray(left == right)
    if left.dtype.kind in "fV":
        equal = equal | (np.isnan(left) & np.isnan(right))
    return bool(equal.all())
