"""Whether a program breaks a rule of TOSA by a value that only a run brings.

Backends refuse such a program, rightly; one that refuses another has a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import open_accelerator
from tosavk.backends.session import load_on
from tosavk.core.errors import Error
from tosavk.differential.sides import REFERENCE
from tosavk.lowering.errors import VerifyError
from tosavk.lowering.graph import Graph
from tosavk.lowering.late import LateChecks

Array = NDArray[np.generic]


def refusal(graph: Graph, samples: Sequence[Mapping[str, Array]]) -> VerifyError | None:
    """The rule that a program breaks by what the reference computes, or None.

    Args:
        graph: a verified program.
        samples: inputs of its runs.
    """
    blocks = [block for region in graph.regions for block in region.blocks]
    if not any(LateChecks.of(block).names for block in blocks):
        return None
    try:
        with load_on(open_accelerator(REFERENCE), graph) as session:
            for sample in samples:
                session.run(sample)
    except VerifyError as error:
        return error
    except Error:
        # What the reference cannot run it does not know.
        return None
    return None
