"""A program on an open device: runs, intermediates and single operators.

What breaks here raises; `sides` makes a finding of it, in this process or from another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.session import Session
from tosavk.core.accelerator import Accelerator
from tosavk.core.plan import Numerics
from tosavk.differential.compare import same_bits
from tosavk.lowering.graph import Block, Graph, Op, Operator
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import expose
from tosavk.lowering.single import single

Array = NDArray[np.generic]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ran:
    """What running a program gave.

    Attributes:
        outputs: final outputs by name.
        load_s: seconds to lower and load; 0 where it was loaded already.
        first_s: seconds of the first run.
        steady_s: median seconds of the further runs, NumPy to NumPy; 0 without them.
        repeatable: whether further runs gave the same bits.
    """

    outputs: dict[str, Array]
    load_s: float
    first_s: float
    steady_s: float
    repeatable: bool


class Station:
    """A program on a device; `close` gives back what it loaded, not the device.

    Args:
        accelerator: the open device.
        graph: a verified program.
        numerics: mode.
    """

    def __init__(
        self, accelerator: Accelerator, graph: Graph, *, numerics: Numerics
    ) -> None:
        """Loads nothing yet."""
        self._accelerator = accelerator
        self._graph = graph
        self._numerics = numerics
        self._stateful = keeps_state(graph)
        self._session: Session | None = None
        self._loaded = graph
        limits = accelerator.info.limits
        self.room = min(
            limits.max_bindings_per_submission, limits.max_buffers_per_context
        )
        """Inputs and outputs that a program can have here."""

    def run(
        self, inputs: Mapping[str, Array], *, repeats: int, progress: Progress
    ) -> Ran:
        """Runs the program as it is.

        Args:
            inputs: an array for every input.
            repeats: further runs for latency and repeatability.
            progress: told what is under way.

        Raises:
            Error: whatever the device has to say.
        """
        name = self._accelerator.name
        start = time.perf_counter()
        if self._session is None or self._loaded is not self._graph:
            progress(f"loading on {name}")
        session = self._load(self._graph)
        loaded = time.perf_counter()
        progress(f"running on {name}")
        outputs = session.run(inputs)
        first = time.perf_counter()
        seconds: list[float] = []
        repeatable = True
        for number in range(0 if self._stateful else repeats):
            progress(f"running on {name} again, {number + 1} of {repeats}")
            begin = time.perf_counter()
            again = session.run(inputs)
            seconds.append(time.perf_counter() - begin)
            repeatable &= all(
                same_bits(again[name], array) for name, array in outputs.items()
            )
        steady = statistics.median(seconds) if seconds else 0.0
        return Ran(outputs, loaded - start, first - loaded, steady, repeatable)

    def expose(self, names: Sequence[str]) -> None:
        """Makes these intermediates outputs besides, for `probe`."""
        self._load(expose(self._graph, names))

    def probe(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs and what was exposed, by name."""
        return self._load(self._loaded).run(inputs)

    def rerun(
        self,
        op: Operator,
        operands: Mapping[str, Array],
        constants: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Runs one operator of the main block alone; `run_alone` says how."""
        return run_alone(
            self._accelerator,
            op,
            self._graph.main,
            self._graph,
            operands,
            constants,
            numerics=self._numerics,
        )

    def close(self) -> None:
        """Unloads the program."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _load(self, graph: Graph) -> Session:
        """A session of this graph; a new one where state must not be kept."""
        if self._session is not None and self._loaded is graph and not self._stateful:
            return self._session
        # First, so that two never take memory at once.
        self.close()
        self._loaded = graph
        limits = self._accelerator.device.plan_limits
        lowered = lower_graph(graph, limits=limits, numerics=self._numerics)
        self._session = Session(self._accelerator, lowered)
        return self._session


def run_alone(
    accelerator: Accelerator,
    op: Operator,
    block: Block,
    graph: Graph,
    operands: Mapping[str, Array],
    constants: Mapping[str, Array],
    *,
    numerics: Numerics,
) -> dict[str, Array]:
    """Runs one operator alone.

    Args:
        accelerator: where.
        op: the operator.
        block: gives the types of its tensors.
        graph: the program it is from.
        operands: values of its inputs that are known at run time only.
        constants: values of its other inputs.
        numerics: mode.

    Returns:
        Its results by name.
    """
    alone = single(op, block, graph, operands, constants)
    limits = accelerator.device.plan_limits
    lowered = lower_graph(alone, limits=limits, numerics=numerics)
    with Session(accelerator, lowered) as session:
        return session.run(operands)


def keeps_state(graph: Graph) -> bool:
    """Whether a run may change what the next one gives."""
    return any(
        op.op is Op.VARIABLE_WRITE
        for region in graph.regions
        for block in region.blocks
        for op in block.operators
    )
