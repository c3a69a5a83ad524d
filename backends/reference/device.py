"""The reference as a device of the Accelerator model.

Buffers are host bytes; a launch evaluates the graph in a worker thread. Results are in
native mode: each operator rounded once to its own type. There are no dispatches, so the
plan's kernels and arena are not used.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, cast

import numpy as np

from tosavk.backends.nvfp4_oracle import evaluate
from tosavk.backends.reference.evaluate import TURNS, Evaluator, Turns
from tosavk.backends.reference.gates import ReferenceGate
from tosavk.backends.reference.operators import COMPUTING, MOVING
from tosavk.backends.reference.values import Array, Precision
from tosavk.backends.reference.worker import Worker
from tosavk.core.descriptors import (
    FORMAT_NVFP4,
    FORMAT_TOSA,
    Artifact,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    Capabilities,
    DeviceIdentity,
    DeviceInfo,
    DeviceLimits,
)
from tosavk.core.device import (
    BoundSlot,
    DeviceGate,
    LoadedProgram,
    Lowered,
    Recording,
)
from tosavk.core.dtypes import DType, pack, storage_bytes, unpack
from tosavk.core.errors import (
    DeviceLost,
    DeviceUnavailable,
    InvalidArgument,
    OutOfMemory,
    Unsupported,
)
from tosavk.core.plan import Numerics, Plan, PlanLimits, Slot, SlotRole
from tosavk.lowering import target
from tosavk.lowering.control import needs_flow
from tosavk.lowering.graph import Block, Graph, Op
from tosavk.lowering.late import LateChecks
from tosavk.lowering.lower import value_rules, with_outputs
from tosavk.lowering.nvfp4.artifact import Program, check_target, read_program
from tosavk.lowering.nvfp4.lower import LoweredNvfp4, lower_nvfp4
from tosavk.lowering.program import load_graph

UUID = b"tosavk-reference"
_MAX_BUFFER_BYTES = 1 << 40
_PAGE = 4096
_EVALUATED = (
    frozenset(COMPUTING)
    | frozenset(MOVING)
    | {
        Op.COND_IF,
        Op.CONST,
        Op.CONST_SHAPE,
        Op.VARIABLE,
        Op.VARIABLE_READ,
        Op.VARIABLE_WRITE,
        Op.WHILE_LOOP,
    }
)


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """Options of `open_device`; there are none yet."""


@dataclass(frozen=True, slots=True)
class DeviceListing:
    """The one device of this backend, for a list that people read.

    Attributes:
        index: 0.
        name: name of the device.
        driver: NumPy and its version.
        uuid: hexadecimal.
        usable: whether it can be opened: always.
        reason: why not: "".
    """

    index: int
    name: str
    driver: str
    uuid: str
    usable: bool = True
    reason: str = ""


def listing() -> DeviceListing:
    """The device."""
    return DeviceListing(0, "reference", f"NumPy {np.__version__}", UUID.hex())


class WithGraph(Protocol):
    """A lowered program that still knows its graph; `lowering.lower` makes such."""

    @property
    def graph(self) -> Graph:
        """The verified graph."""
        ...

    @property
    def plan(self) -> Plan:
        """The plan; only its slots are used here."""
        ...


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """A verified graph with a plan that has slots and nothing to dispatch.

    Attributes:
        graph: the graph.
        plan: its slots.
        rules: what is forbidden of the values in the checked slots.
    """

    graph: Graph
    plan: Plan
    rules: LateChecks | None


def slots_of(block: Block, checked: Sequence[str] = ()) -> tuple[Slot, ...]:
    """The slots of a verified entry block: inputs, outputs, and what is checked."""
    slots: list[Slot] = []
    for role, names in (
        (SlotRole.INPUT, block.inputs),
        (SlotRole.OUTPUT, block.outputs),
        (SlotRole.CHECKED, checked),
    ):
        for name in names:
            tensor = block.tensors[name]
            if tensor.shape is None:
                raise InvalidArgument(f"{role.value} {name!r} has no shape")
            nbytes = storage_bytes(tensor.dtype, tensor.shape)
            slots.append(
                Slot(len(slots), name, role, tensor.dtype, tensor.shape, nbytes)
            )
    return tuple(slots)


def zeroed(desc: BufferDesc) -> ReferenceAllocation:
    """Zeroed bytes, whole words, aligned to `desc.alignment`, at least to a page.

    Raises:
        OutOfMemory: there is no room.
    """
    alignment = max(desc.alignment, _PAGE)
    size = -(-desc.nbytes // 4) * 4
    try:
        raw = np.zeros(size + alignment, np.uint8)
    except MemoryError as error:
        raise OutOfMemory(f"no host memory for a buffer of {size} bytes") from error
    start = -raw.ctypes.data % alignment
    # The view keeps the array alive.
    return ReferenceAllocation(memoryview(raw.data)[start : start + size], alignment)


class ReferenceAllocation:
    """Host bytes, the device's own or imported ones.

    Args:
        data: writable bytes; they are kept, and released when this is freed.
        alignment: what their address is a multiple of.
    """

    def __init__(self, data: memoryview, alignment: int) -> None:
        """Takes the bytes over."""
        self._bytes = data
        self._info = BufferInfo(
            data.nbytes,
            alignment,
            BufferProperties.HOST_VISIBLE | BufferProperties.DIRECT_BINDING,
        )

    @property
    def info(self) -> BufferInfo:
        """What was allocated."""
        return self._info

    @property
    def mapped(self) -> memoryview | None:
        """All bytes, writable."""
        return self._bytes

    def write(self, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset`."""
        self._bytes[offset : offset + data.nbytes] = data.cast("B")

    def read(self, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset`."""
        out.cast("B")[:] = self._bytes[offset : offset + out.nbytes]

    def free(self) -> None:
        """Drops the bytes."""
        self._bytes.release()


@dataclass(slots=True)
class ReferenceProgram:
    """A graph to evaluate, and the values of its VARIABLEs.

    Attributes:
        graph: the verified graph, which also gives what is checked.
        slots: inputs, outputs, and what is checked.
        variables: kept from launch to launch.
        turns: how many turns all loops of one launch may take.
    """

    graph: Graph
    slots: tuple[Slot, ...]
    variables: dict[str, Array] = field(default_factory=dict[str, Array])
    turns: int = TURNS

    @property
    def dispatch_count(self) -> int:
        """No kernels are launched."""
        return 0

    @property
    def arena_bytes(self) -> int:
        """No arena is kept."""
        return 0

    def free(self) -> None:
        """Drops the variables."""
        self.variables.clear()

    def evaluate(self, bound: Sequence[BoundSlot]) -> None:
        """Reads the input slots, evaluates, writes the output slots."""
        inputs: dict[str, Array] = {}
        for slot, place in zip(self.slots, bound, strict=True):
            if slot.role is SlotRole.INPUT:
                raw = bytearray(slot.nbytes)
                place.allocation.read(place.offset, memoryview(raw))
                inputs[slot.name] = unpack(slot.dtype, raw, slot.shape)
        evaluator = Evaluator(
            self.graph,
            Precision.NATIVE,
            variables=self.variables,
            turns=Turns(self.turns),
        )
        wanted = {s.name for s in self.slots if s.role is not SlotRole.INPUT}
        values = evaluator.block(self.graph.main, inputs, keep=wanted)
        del inputs
        for slot, place in zip(self.slots, bound, strict=True):
            if slot.role is not SlotRole.INPUT:
                data = pack(slot.dtype, values[slot.name])
                place.allocation.write(place.offset, data)


@dataclass(slots=True)
class ReferenceNvfp4:
    """An NVFP4 program to evaluate.

    Attributes:
        program: what the artifact holds.
        slots: inputs, then the output.
    """

    program: Program
    slots: tuple[Slot, ...]

    @property
    def dispatch_count(self) -> int:
        """No kernels are launched."""
        return 0

    @property
    def arena_bytes(self) -> int:
        """No arena is kept."""
        return 0

    def free(self) -> None:
        """Nothing is kept."""

    def evaluate(self, bound: Sequence[BoundSlot]) -> None:
        """Reads the input slots, evaluates in binary64, writes FP32."""
        given: dict[str, Array] = {}
        for slot, place in zip(self.slots, bound, strict=True):
            if slot.role is SlotRole.INPUT:
                raw = np.empty(slot.nbytes, np.uint8)
                place.allocation.read(place.offset, raw.data)
                kind = np.float32 if slot.dtype is DType.FP32 else np.uint8
                given[slot.name] = raw.view(kind).reshape(slot.shape)
        with np.errstate(all="ignore"):
            result = evaluate(self.program, given).y.astype(np.float32)
        place = bound[-1]
        place.allocation.write(place.offset, memoryview(result.tobytes()))


class ReferenceRecording:
    """One submission: a program with its bindings."""

    def __init__(
        self,
        device: ReferenceDevice,
        program: ReferenceProgram | ReferenceNvfp4,
        bound: Sequence[BoundSlot],
    ) -> None:
        """Records `program` on `bound`, one place a slot."""
        self._device = device
        self._program = program
        self._bound = tuple(bound)
        self._done = threading.Event()
        self._failure: BaseException | None = None

    def launch(self) -> None:
        """Queues the evaluation; never blocks.

        Raises:
            DeviceLost: an earlier evaluation failed.
        """
        if self._device.poisoned:
            raise DeviceLost("the reference device failed before; open a new one")
        self._done.clear()
        self._failure = None
        self._device.worker.submit(self._evaluate)

    def launch_after(self, gate: DeviceGate, value: int) -> None:
        """Queues the evaluation, and lets the queue wait for a gate in front of it.

        Raises:
            DeviceLost: an earlier evaluation failed.
        """
        if not self._device.poisoned:
            self._device.worker.submit(partial(cast(ReferenceGate, gate).wait, value))
        self.launch()

    def poll(self) -> bool:
        """Whether the last launch is complete.

        Raises:
            DeviceLost: it failed.
        """
        if not self._done.is_set():
            return False
        if self._failure is not None:
            raise DeviceLost(
                f"evaluation failed: {type(self._failure).__name__}: {self._failure}"
            ) from self._failure
        return True

    def wait(self, timeout_ns: int) -> bool:
        """Waits at most `timeout_ns` and polls."""
        self._done.wait(timeout_ns / 1e9)
        return self.poll()

    def retire(self) -> None:
        """Nothing is kept of a launch."""

    def free(self) -> None:
        """Drops the bindings."""
        self._bound = ()

    def _evaluate(self) -> None:
        try:
            self._program.evaluate(self._bound)
        except BaseException as error:  # noqa: BLE001 - the owner's thread reports it
            self._failure = error
            self._device.poison()
        finally:
            self._done.set()


class ReferenceKit:
    """The objects of one context."""

    def __init__(self, device: ReferenceDevice) -> None:
        """A kit of `device`."""
        self._device = device

    def allocate(self, desc: BufferDesc) -> ReferenceAllocation:
        """Allocates host bytes."""
        return zeroed(desc)

    def import_memory(self, desc: BufferDesc, data: memoryview) -> ReferenceAllocation:
        """Uses the bytes as they are."""
        del desc
        return ReferenceAllocation(data, _PAGE)

    def load(self, lowered: Lowered) -> ReferenceProgram | ReferenceNvfp4:
        """Takes the program's graph, or the NVFP4 program.

        Raises:
            Unsupported: the program has no graph, or an operator has no reference.
        """
        if isinstance(lowered, LoweredNvfp4):
            return ReferenceNvfp4(lowered.program, lowered.plan.slots)
        if not isinstance(getattr(lowered, "graph", None), Graph):
            raise Unsupported(
                f"the reference evaluates graphs; {type(lowered).__name__} has none"
            )
        graph = cast(WithGraph, lowered).graph
        for region in graph.regions:
            for block in region.blocks:
                for operator in block.operators:
                    if operator.op not in _EVALUATED:
                        raise Unsupported(f"{operator}: the reference has no such")
        slots = lowered.plan.slots
        checked = [s.name for s in slots if s.role is SlotRole.CHECKED]
        return ReferenceProgram(
            with_outputs(graph, checked), slots, turns=self._device.turns
        )

    def record(
        self,
        program: LoadedProgram,
        bound: Sequence[BoundSlot],
        reuse: Recording | None,
    ) -> ReferenceRecording:
        """Records a submission; there is nothing worth reusing."""
        if reuse is not None:
            reuse.free()
        mine = cast("ReferenceProgram | ReferenceNvfp4", program)
        return ReferenceRecording(self._device, mine, bound)

    def free(self) -> None:
        """Nothing is kept."""


class ReferenceDevice:
    """NumPy as a device.

    Attributes:
        worker: the thread that evaluates.
        turns: how many turns the loops of programs may take that are loaded now.
    """

    def __init__(self) -> None:
        """Opens it; the worker thread starts with the first launch."""
        self.worker = Worker()
        self.turns = TURNS
        self._poisoned = False
        self._info = DeviceInfo(
            DeviceIdentity(UUID),
            DeviceLimits(max_buffer_bytes=_MAX_BUFFER_BYTES),
            Capabilities.HOST_VISIBLE_MEMORY | Capabilities.SHARED_MEMORY,
        )

    @property
    def info(self) -> DeviceInfo:
        """Identity, limits, capabilities."""
        return self._info

    @property
    def name(self) -> str:
        """Name of the device for people."""
        return f"reference (NumPy {np.__version__})"

    @property
    def plan_limits(self) -> PlanLimits:
        """Wide enough for any plan: it is not run."""
        return PlanLimits(
            max_storage_buffer_range=_MAX_BUFFER_BYTES,
            lacks=(("kernels", "NumPy in binary64"),),
        )

    def limit_turns(self, turns: int) -> None:
        """Says how many turns the loops of programs may take that are loaded now."""
        self.turns = turns

    def abandon(self, what: str) -> None:
        """Gives up work that does not end: nothing waits for it any more.

        Its thread goes on until the process ends.
        """
        del what
        self.poison()
        self.worker.abandon()

    @property
    def evaluates_graphs(self) -> bool:
        """Whole graphs are evaluated, control flow and all."""
        return True

    @property
    def binding_alignment(self) -> int:
        """Bound ranges start at whole words."""
        return 4

    @property
    def host_import_alignment(self) -> int:
        """Whole pages, as real devices want them; nothing here needs it."""
        return _PAGE

    def create_gate(self) -> ReferenceGate:
        """Makes a counter that queued work can wait for."""
        return ReferenceGate()

    @property
    def poisoned(self) -> bool:
        """Whether an evaluation failed; sticky."""
        return self._poisoned

    def poison(self) -> None:
        """Marks the device as lost."""
        self._poisoned = True

    def lower(self, artifact: Artifact) -> GraphProgram | LoweredNvfp4:
        """Reads and verifies an artifact; operators without a kernel are welcome.

        Raises:
            Unsupported: the format is unknown, or there are rules about values that
                only a run brings in a program with control flow or variables.
            Incompatible: the target words are wrong.
            InvalidArgument: the payload is not a sound program.
        """
        if artifact.format == FORMAT_NVFP4:
            check_target(artifact.target)
            return lower_nvfp4(read_program(artifact.view()), limits=self.plan_limits)
        if artifact.format != FORMAT_TOSA:
            raise Unsupported(
                f"artifact format {artifact.format:#x} is unknown to the reference; "
                f"TOSA is {FORMAT_TOSA:#x}, NVFP4 {FORMAT_NVFP4:#x}"
            )
        target.decode(artifact.target)
        graph = load_graph(artifact.view())
        if needs_flow(graph):
            _require_no_rules(graph)
            rules = None
        else:
            rules = value_rules(graph)
        slots = slots_of(graph.main, rules.names if rules else ())
        plan = Plan(slots, (), (), (), (), (), Numerics.STRICT)
        return GraphProgram(graph, plan, rules)

    def create_kit(self) -> ReferenceKit:
        """The objects of a context."""
        return ReferenceKit(self)

    def wait_idle(self) -> None:
        """Waits until every evaluation has ended."""
        self.worker.wait_idle()

    def close(self) -> None:
        """Ends the worker thread."""
        self.worker.close()


def _require_no_rules(graph: Graph) -> None:
    """Refuses what only a session looks at.

    Raises:
        Unsupported: operands of the graph must not have every value, and only a run
            brings their values.
    """
    for region in graph.regions:
        for block in region.blocks:
            for name in LateChecks.of(block).names:
                raise Unsupported(
                    f"{name!r} must not have every value, and only a run of this "
                    "program with control flow or variables brings its value; load it "
                    "with tosavk.load, not into a context"
                )


def open_reference(selector: str | None) -> ReferenceDevice:
    """Opens the device.

    Raises:
        DeviceUnavailable: `selector` names another one.
    """
    only = listing()
    wanted = (selector or "0").casefold()
    names = f"{only.name} {only.driver} {only.uuid}".casefold()
    if wanted != "0" and (wanted.isdecimal() or wanted not in names):
        raise DeviceUnavailable(
            f"the reference backend has no device {selector!r}; its only device is 0, "
            f"{only.name} ({only.driver})"
        )
    return ReferenceDevice()
