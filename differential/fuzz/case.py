"""A program with inputs: what the fuzzer makes, judges, reduces and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.lowering.graph import Graph

Array = NDArray[np.generic]
Sample = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Case:
    """A program and what it is run with.

    Attributes:
        graph: a verified graph.
        samples: an array for each input, for one or more runs.
        segment_bytes: cap of an arena segment, or None for the device's own.
    """

    graph: Graph
    samples: tuple[Sample, ...]
    segment_bytes: int | None = None
