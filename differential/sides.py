"""One backend's side of a diff: an open device, and what it said.

Everything that touches the device is here, and every failure of it ends as data.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import parse_spec
from tosavk.backends.session import Session
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import pack_serialized
from tosavk.core.errors import Error, OutOfMemory, ResourceLimit, Unsupported
from tosavk.core.plan import Numerics
from tosavk.differential.compare import bits_of
from tosavk.differential.exceptions import Trait, traits
from tosavk.differential.result import BackendRun, Ending
from tosavk.lowering.graph import Block, Graph, Op, Operator
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import expose, intermediates

Array = NDArray[np.generic]
Progress = Callable[[str], None]

REFERENCE = "reference"


class Side:
    """A backend while a diff runs.

    Args:
        label: what it is called in the result.
        spec: backend specification as given.
        accelerator: its open device, or None.
        ending: how opening it ended.
        failure: why there is no device, or "".
        numerics: mode.

    Attributes:
        outputs: final outputs by name, as the program as a whole gives them.
        tensors: inputs, intermediates and outputs by name, filled by `probe`.
        changed: outputs whose bits changed when intermediates were kept.
        unprobed: why the intermediates could not be read, or "".
    """

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
        self.label = label
        self.spec = spec
        self.outputs: dict[str, Array] = {}
        self.tensors: dict[str, Array] = {}
        self.changed: list[str] = []
        self.unprobed = ""
        self._accelerator = accelerator
        self._numerics = numerics
        self._ending = ending
        self._failure = failure
        self._times = (0.0, 0.0, 0.0)
        self._repeatable = True
        self._traits: frozenset[Trait] | None = None

    @property
    def is_reference(self) -> bool:
        """Whether it is the NumPy reference."""
        return parse_spec(self.spec)[0] == REFERENCE

    @property
    def ran(self) -> bool:
        """Whether it has a result."""
        return self._ending is Ending.RAN

    @property
    def record(self) -> BackendRun:
        """Its part, as data."""
        load_s, first_s, steady_s = self._times
        return BackendRun(
            label=self.label,
            spec=self.spec,
            device="" if self._accelerator is None else self._accelerator.name,
            ending=self._ending,
            load_s=load_s,
            first_s=first_s,
            steady_s=steady_s,
            repeatable=self._repeatable,
            failure=self._failure,
            traits=tuple(sorted(self._traits or ())),
        )

    def run(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        *,
        repeats: int,
        probing: bool,
        progress: Progress,
    ) -> None:
        """Runs the program, several times, and reads the intermediates if `probing`.

        A failure is noted and raises nothing.
        """
        if not self.ran:
            return
        try:
            self._run(graph, inputs, repeats, progress)
            if probing and not self.is_reference:
                progress(f"{self.label}: reading every intermediate")
                self._try_probe(graph, inputs)
        except Exception as error:  # noqa: BLE001 - a backend that breaks is a finding
            self._note(error)

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
            single = _alone(op, block, graph, operands, constants)
            return self._once(single, operands)
        except Exception as error:  # noqa: BLE001 - a backend that breaks is a finding
            self._note(error)
            return {}

    def traits(self) -> frozenset[Trait]:
        """What a known-answer test finds out about the device; asked once."""
        if self._traits is None:
            self._traits = frozenset()
            if self._accelerator is not None and not self.is_reference:
                try:
                    self._traits = traits(self._accelerator)
                except Error:
                    # It excuses nothing then.
                    self._traits = frozenset()
        return self._traits

    def _run(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        repeats: int,
        progress: Progress,
    ) -> None:
        accelerator = self._open()
        progress(f"{self.label}: loading on {accelerator.name}")
        start = time.perf_counter()
        lowered = lower_graph(
            graph, limits=accelerator.device.plan_limits, numerics=self._numerics
        )
        with Session(accelerator, lowered) as session:
            loaded = time.perf_counter()
            progress(f"{self.label}: running on {accelerator.name}")
            self.outputs = session.run(inputs)
            first = time.perf_counter()
            seconds: list[float] = []
            for _ in range(0 if keeps_state(graph) else repeats):
                begin = time.perf_counter()
                again = session.run(inputs)
                seconds.append(time.perf_counter() - begin)
                self._repeatable &= all(
                    same_bits(again[name], array)
                    for name, array in self.outputs.items()
                )
        steady = statistics.median(seconds) if seconds else 0.0
        self._times = (loaded - start, first - loaded, steady)

    def _try_probe(self, graph: Graph, inputs: Mapping[str, Array]) -> None:
        """Reads the intermediates, unless that is more than the device can do."""
        try:
            self._probe(graph, inputs)
        except Error as error:
            if ending_of(error) is Ending.FAILED:
                raise
            self.tensors = {}
            self.unprobed = f"{type(error).__name__}: {error}"

    def _probe(self, graph: Graph, inputs: Mapping[str, Array]) -> None:
        """Reads all intermediates, by plans that have them as outputs."""
        limits = self._open().info.limits
        known = graph.main.tensors
        names = [name for name in intermediates(graph) if not known[name].variable]
        room = min(limits.max_bindings_per_submission, limits.max_buffers_per_context)
        chunk = max(1, room - len(graph.main.inputs) - len(graph.main.outputs))
        self.tensors = dict(inputs)
        for start in range(0, max(1, len(names)), chunk):
            found = self._once(expose(graph, names[start : start + chunk]), inputs)
            for name, array in self.outputs.items():
                if name not in self.changed and not same_bits(found[name], array):
                    self.changed.append(name)
            self.tensors.update(found)

    def _once(self, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        accelerator = self._open()
        lowered = lower_graph(
            graph, limits=accelerator.device.plan_limits, numerics=self._numerics
        )
        with Session(accelerator, lowered) as session:
            return session.run(inputs)

    def _open(self) -> Accelerator:
        assert self._accelerator is not None
        return self._accelerator

    def _note(self, error: Exception) -> None:
        self._ending = ending_of(error)
        self._failure = f"{type(error).__name__}: {error}"


def ending_of(error: Exception) -> Ending:
    """How a backend ended that raised `error`."""
    if isinstance(error, Unsupported):
        return Ending.UNSUPPORTED
    if isinstance(error, ResourceLimit | OutOfMemory):
        return Ending.RESOURCE
    return Ending.FAILED


def keeps_state(graph: Graph) -> bool:
    """Whether a run may change what the next one gives."""
    return any(
        op.op is Op.VARIABLE_WRITE
        for region in graph.regions
        for block in region.blocks
        for op in block.operators
    )


def same_bits(left: Array, right: Array) -> bool:
    """Whether two arrays have the same bits, NaNs included."""
    return bool(np.array_equal(bits_of(left), bits_of(right)))


def _alone(
    op: Operator,
    block: Block,
    graph: Graph,
    operands: Mapping[str, Array],
    constants: Mapping[str, Array],
) -> Graph:
    """A program of one operator, with its constants and the others as inputs."""
    names = dict.fromkeys((*op.inputs, *op.outputs))
    tensors = {name: block.tensors[name] for name in names}
    for name in op.inputs:
        if name in operands:
            tensors[name] = replace(tensors[name], data=None)
        elif name in constants:
            data = pack_serialized(tensors[name].dtype, constants[name])
            tensors[name] = replace(tensors[name], data=memoryview(data))
    single = Block(
        name=block.name,
        operators=(op,),
        tensors=tensors,
        inputs=tuple(dict.fromkeys(n for n in op.inputs if n in operands)),
        outputs=op.outputs,
    )
    # Operators of control flow call the other regions.
    regions = tuple(
        replace(region, blocks=(single,)) if block in region.blocks else region
        for region in graph.regions
    )
    return replace(graph, regions=regions)
