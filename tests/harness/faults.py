"""Faults put into the Vulkan calls of one operation, each call in turn.

A `Stage` is an accelerator behind a door, with something of everything on it. An
`Operation` is one call of the model. `campaign` makes the first Vulkan call in it fail,
then the second, and so on until the operation no longer makes as many; after each fault
it compares errors, counts and handles, and tries the operation again.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from harness import vulkan_plans as plans
from harness.vulkan_door import Door, KeptInstance, library_of_tests
from harness.vulkan_plans import Made, Words
from tosavk.backends.vulkan import _ffi
from tosavk.backends.vulkan._ffi import VULK, const
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    USAGE_ALL,
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    EventState,
    MemoryDomain,
)
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    External,
    Incompatible,
    Indeterminate,
    ModelError,
    OutOfMemory,
    ResourceLimit,
)
from tosavk.core.events import Event
from tosavk.core.imports import aligned_array
from tosavk.core.programs import Program
from tosavk.core.shared import LiveResources

N = 67
WORDS: Words = np.arange(N, dtype=np.uint32)
NBYTES = 4 * N
LOST = int(const.ERROR_DEVICE_LOST)
UNKNOWN = -1_000_999_888

CODES: dict[str, tuple[int, type[ModelError]]] = {
    "OUT_OF_HOST_MEMORY": (int(const.ERROR_OUT_OF_HOST_MEMORY), OutOfMemory),
    "OUT_OF_DEVICE_MEMORY": (int(const.ERROR_OUT_OF_DEVICE_MEMORY), OutOfMemory),
    "DEVICE_LOST": (LOST, DeviceLost),
    "TOO_MANY_OBJECTS": (int(const.ERROR_TOO_MANY_OBJECTS), ResourceLimit),
    "MEMORY_MAP_FAILED": (int(const.ERROR_MEMORY_MAP_FAILED), Incompatible),
    "INITIALIZATION_FAILED": (int(const.ERROR_INITIALIZATION_FAILED), External),
    "unknown": (UNKNOWN, External),
}

OBSERVING = frozenset({"vkGetFenceStatus", "vkWaitForFences"})

INJECTED: Counter[str] = Counter()
"""How often each Vulkan function was made to fail, in this process."""

# What a device keeps once made, or what is not the device's.
_KEPT = ("Pipeline", "Layout", "vkCreateInstance", "Messenger")


def checked_functions() -> frozenset[str]:
    """Every Vulkan function that the backend may call and that returns a VkResult."""
    names = (
        *_ffi.GLOBAL_FUNCTIONS,
        *_ffi.INSTANCE_FUNCTIONS,
        *_ffi.INSTANCE_OPTIONAL,
        *_ffi.DEVICE_FUNCTIONS,
        *getattr(_ffi, "DEVICE_OPTIONAL", ()),
    )
    return frozenset(
        name
        for name in names
        if _ffi.ffi.typeof(_ffi.prototype(name)).result.cname == "enum VkResult"
    )


def of_device(door: Door) -> Counter[str]:
    """What lives on devices, by the function that made it; without what is kept."""
    names = (name for name, _ in door.live)
    return Counter(n for n in names if not any(word in n for word in _KEPT))


class Stage:
    """An accelerator with a context, a queue, a program and buffers for it.

    Attributes:
        door: what stands before the driver.
        accelerator: the accelerator.
        context: its context.
        queue: a queue.
        program: `vulkan_plans.chain_plan`.
        sets: two sets of buffers, filled, whose bindings fit the program.
        transfer: a buffer of each domain.
        local: what an operation's set-up made.
    """

    def __init__(self, kept: KeptInstance, spec: str, *, unified: bool) -> None:
        """Opens it, with the buffers for transfers."""
        self.door = kept.door
        self.door.arm(0)
        options = VulkanOptions(map_unified_device_memory=unified, pipeline_cache=False)
        device = kept.open(spec, options, library_of_tests())
        self.accelerator = Accelerator(device)
        self.info = self.accelerator.info
        self.context = self.accelerator.create_context()
        self.queue = self.context.create_queue()
        self.transfer = {
            domain: self.context.allocate_buffer(BufferDesc(NBYTES, USAGE_ALL, domain))
            for domain in self.info.domains
        }
        self.local: Any = None
        self.turn = 0

    @cached_property
    def program(self) -> Program:
        """The program; most operations that only move bytes do without."""
        return load(self.context)

    @cached_property
    def sets(self) -> list[list[Buffer]]:
        """The sets of buffers."""
        return [inputs(self.context, number) for number in range(2)]

    def fill(self) -> None:
        """Makes program and sets."""
        assert not self.program.is_released
        assert self.sets

    def state(self) -> tuple[LiveResources, Counter[str]]:
        """What lives in the model and in Vulkan."""
        return self.accelerator.live_resources(), of_device(self.door)

    def bindings(self, number: int = 0) -> list[Binding]:
        """Bindings of a set of buffers."""
        return bind(self.sets[number])

    def check(self, number: int = 0) -> None:
        """Compares the output of a set, and spoils it for the next time."""
        check_output(self.sets[number], number)

    def bury(self) -> None:
        """Releases one by one what a stage is made of, then closes."""
        door = self.door
        door.arm(0)
        self.local = None
        handles: list[Any] = [*self.transfer.values()]
        if "sets" in vars(self):
            handles += [*self.sets[0], *self.sets[1]]
        if "program" in vars(self):
            handles.append(self.program)
        for handle in (*handles, self.queue):
            # What an operation had begun may still hold it; closing ends that.
            with suppress(Busy):
                handle.release()
        self.accelerator.close()
        gc.collect()
        left = {key for key in door.live if not _of_instance(key[0])}
        assert not left, left
        assert not door.wrong, door.wrong


def _of_instance(name: str) -> bool:
    return name in ("vkCreateInstance", "vkCreateDebugUtilsMessengerEXT")


def load(context: Context, factor: int = 3) -> Program:
    """Loads the chain, whose second kernel has a factor of its own."""
    plan = plans.chain_plan(N, WORDS)
    if factor != 3:
        x0, k, h = plan.dispatches[0].operands
        first = plans.mix(x0, k, h, bias=5, factor=factor)
        plan = plans.replaced(plan, dispatches=(first, plan.dispatches[1]))
    return context.load_program(Made(plan))


def inputs(context: Context, number: int) -> list[Buffer]:
    """Buffers in DEVICE memory for the chain, filled."""
    desc = BufferDesc(NBYTES, USAGE_ALL, MemoryDomain.DEVICE)
    made = [context.allocate_buffer(desc) for _ in range(3)]
    for buffer, values in zip(made, _values(number), strict=False):
        buffer.write(0, values)
    return made


def bind(buffers: list[Buffer]) -> list[Binding]:
    """Bindings of whole buffers to the slots of the chain."""
    read, write = AccessMode.READ, AccessMode.WRITE
    return [
        Binding(slot, buffer, BufferRange(0, NBYTES), access)
        for slot, buffer, access in zip(
            range(3), buffers, (read, read, write), strict=True
        )
    ]


def check_output(buffers: list[Buffer], number: int) -> None:
    """Compares what the chain has written."""
    wanted = plans.chain_result(*_values(number), WORDS)
    assert buffers[2].read(0, NBYTES) == wanted.tobytes()
    buffers[2].write(0, bytes(NBYTES))


def _values(number: int) -> tuple[Words, Words]:
    return WORDS + np.uint32(number), WORDS * np.uint32(number + 2)


Act = Callable[[Stage], Any]


def nothing(stage: Stage) -> None:
    """No set-up."""
    del stage


def dropped(stage: Stage, result: Any) -> None:  # noqa: ANN401 - see Operation.undo
    """Nothing to undo."""
    del stage, result


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the model.

    Attributes:
        name: for the test's name.
        act: the call; faults hit only this.
        setup: makes what it works on, anew for each fault.
        undo: looks at the result of a success, and takes everything back.
        absorbs: functions whose failure the call rightly outlives: it returns.
        keeps: what may stay behind, or be gone, for the next time.
        observes: a lost device is the state FAILED of an event, not an error.
        poisons: whether a lost device is noted as lost.
        bare: whether it needs no program; a new stage is cheaper without.
    """

    name: str
    act: Act
    setup: Act = nothing
    undo: Callable[[Stage, Any], object] = dropped
    absorbs: frozenset[str] = field(default_factory=frozenset[str])
    keeps: Counter[str] = field(default_factory=Counter[str])
    observes: bool = False
    poisons: bool = True
    bare: bool = False

    def __str__(self) -> str:
        """The name."""
        return self.name


@dataclass(slots=True)
class Stages:
    """Makes a new stage when the last one is gone.

    Attributes:
        kept: the instance.
        spec: the lane.
        unified: whether DEVICE memory is mapped.
    """

    kept: KeptInstance
    spec: str
    unified: bool
    current: Stage | None = None

    def get(self) -> Stage:
        """The stage."""
        if self.current is None:
            self.current = Stage(self.kept, self.spec, unified=self.unified)
        return self.current

    def abandon(self) -> None:
        """Ends a stage that nobody knows any more what is left on."""
        stage, self.current = self.current, None
        door = self.kept.door
        door.arm(0)
        if stage is not None:
            with suppress(Exception):
                stage.accelerator.close()
        door.live.difference_update([k for k in door.live if not _of_instance(k[0])])
        door.wrong.clear()

    def bury(self) -> None:
        """Ends it."""
        stage, self.current = self.current, None
        if stage is not None:
            stage.bury()


def campaign(stages: Stages, operation: Operation, code_name: str) -> int:
    """Fails every Vulkan call of an operation in turn.

    Returns:
        How many faults were injected.
    """
    code, _ = CODES[code_name]
    count = 0
    if code != LOST:
        # What is kept for the next time is there after two rounds.
        for _ in range(2):
            _play(stages.get(), operation)
    while True:
        stage = stages.get()
        if not operation.bare:
            stage.fill()
        door = stage.door
        base = stage.state()
        operation.setup(stage)
        before = stage.state()
        door.arm(count + 1, code=code)
        outcome = _attempt(operation, stage)
        failed = door.failed
        door.arm(0)
        if not failed:
            assert not isinstance(outcome, Exception), outcome
            operation.undo(stage, outcome)
            if code != LOST:
                _same(stage, base, operation, f"after {operation} without a fault")
            return count
        count += 1
        INJECTED[failed] += 1
        where = f"fault {count} of {operation}: {failed} with {code_name}"
        _judge(operation, outcome, failed, code_name, where)
        if code == LOST:
            assert stage.accelerator.is_poisoned == operation.poisons, where
            if operation.poisons:
                lost(stage, where, before[0], outcome)
            stages.bury()
            continue
        live, handles = stage.state()
        if isinstance(outcome, Exception):
            assert live == before[0], where
            left = handles - before[1] - operation.keeps
            assert not left, f"{where}: left {left}"
            outcome = operation.act(stage)
        operation.undo(stage, outcome)
        _same(stage, base, operation, f"{where}, after the next try")


def lost(stage: Stage, where: str, before: LiveResources, outcome: object) -> None:
    """Looks at an accelerator whose device was lost."""
    accelerator, door = stage.accelerator, stage.door
    if isinstance(outcome, Exception):
        assert accelerator.live_resources() == before, where
    buffer = next(iter(stage.transfer.values()))
    context, queue = stage.context, stage.queue
    desc = BufferDesc(4, USAGE_ALL, MemoryDomain.HOST)
    out = bytearray(4)
    calls: list[Callable[[], object]] = [
        accelerator.create_context,
        lambda: context.allocate_buffer(desc),
        lambda: load(context),
        context.create_queue,
        lambda: buffer.write(0, b"abcd"),
        lambda: buffer.read(0, 4),
        lambda: buffer.read_into(0, out),
        accelerator.create_gate,
    ]
    if "sets" in vars(stage):
        calls += [
            lambda: queue.submit(stage.program, stage.bindings(1)),
            lambda: context.prepare(stage.program, stage.bindings(1)),
        ]
    alignment = accelerator.host_import_alignment
    if alignment is not None:
        array = aligned_array(alignment, alignment=alignment)
        host = BufferDesc(alignment, USAGE_ALL, MemoryDomain.HOST)
        calls.append(lambda: context.import_host_buffer(host, array))
    driver = sum(door.calls.values())
    for number, call in enumerate(calls):
        try:
            call()
        except DeviceLost:
            continue
        raise AssertionError(f"{where}: call {number} worked on a lost device")
    assert sum(door.calls.values()) == driver, "a lost device was asked again"
    assert accelerator.info == stage.info


def _play(stage: Stage, operation: Operation) -> None:
    operation.setup(stage)
    operation.undo(stage, operation.act(stage))


def _attempt(operation: Operation, stage: Stage) -> Any:  # noqa: ANN401
    try:
        return operation.act(stage)
    except ModelError as error:
        return error.with_traceback(None)


def _judge(
    operation: Operation,
    outcome: object,
    failed: str,
    code_name: str,
    where: str,
) -> None:
    """Whether the outcome of an operation is right for a fault."""
    code, wanted = CODES[code_name]
    if isinstance(outcome, Indeterminate):
        assert code == LOST, where
        assert isinstance(outcome.error, DeviceLost), where
        event = outcome.event
        assert isinstance(event, Event)
        assert event.poll() is EventState.FAILED
        event.release()
    elif isinstance(outcome, Exception):
        assert type(outcome) is wanted, f"{where}: {outcome!r}"
        assert failed in str(outcome), f"{where}: {outcome}"
        if isinstance(outcome, External):
            assert (outcome.domain, outcome.code) == (VULK, code), where
    elif code == LOST and operation.observes and failed in OBSERVING:
        assert outcome in (EventState.FAILED, None), where
    else:
        assert failed in operation.absorbs, f"{where} was swallowed: {outcome!r}"


def _same(
    stage: Stage,
    wanted: tuple[LiveResources, Counter[str]],
    operation: Operation,
    when: str,
) -> None:
    live, handles = stage.state()
    assert live == wanted[0], when
    more = handles - wanted[1] - operation.keeps
    less = wanted[1] - handles - operation.keeps
    assert not more, f"{when}: too many {dict(more)}"
    assert not less, f"{when}: too few {dict(less)}"
