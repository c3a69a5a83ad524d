"""The operations that faults are put into."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

from harness.faults import (
    NBYTES,
    Operation,
    Stage,
    bind,
    check_output,
    inputs,
    load,
)
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    USAGE_ALL,
    BufferDesc,
    EventState,
    MemoryDomain,
)
from tosavk.core.events import Event
from tosavk.core.gates import Gate
from tosavk.core.imports import aligned_array
from tosavk.core.ports import Segments
from tosavk.core.prepared import Prepared
from tosavk.core.programs import Program

DATA = bytes(i * 5 & 255 for i in range(NBYTES))
START, COUNT = 3, 57
ENDED_S = 60.0

# What waiting for an idle device may outlive.
IDLE = frozenset(
    {"vkResetFences", "vkQueueSubmit2", "vkWaitForFences", "vkDeviceWaitIdle"}
)
# A recording that could not be launched stays in its slot.
RECORDING = Counter(
    vkAllocateCommandBuffers=1,
    vkAllocateDescriptorSets=2,
    vkCreateDescriptorPool=1,
    vkCreateFence=1,
)
RETIRE = frozenset({"vkResetFences"})


def release(stage: Stage, made: Any) -> None:  # noqa: ANN401
    """Releases what was made."""
    del stage
    made.release()


def _allocate(domain: MemoryDomain) -> Operation:
    desc = BufferDesc(NBYTES, USAGE_ALL, domain)
    return Operation(
        f"allocate-{domain.name}",
        lambda stage: stage.context.allocate_buffer(desc),
        undo=release,
        bare=True,
    )


def _write(domain: MemoryDomain) -> Operation:
    def setup(stage: Stage) -> None:
        stage.transfer[domain].write(0, bytes(NBYTES))

    def undo(stage: Stage, result: object) -> None:
        del result
        wanted = bytearray(NBYTES)
        wanted[START : START + COUNT] = DATA[:COUNT]
        assert stage.transfer[domain].read(0, NBYTES) == bytes(wanted)

    return Operation(
        f"write-{domain.name}",
        lambda stage: stage.transfer[domain].write(START, DATA[:COUNT]),
        setup,
        undo,
        bare=True,
    )


def _read(domain: MemoryDomain) -> Operation:
    def setup(stage: Stage) -> None:
        stage.transfer[domain].write(0, DATA)

    def undo(stage: Stage, result: bytes) -> None:
        assert result == DATA[START : START + COUNT]
        assert stage.transfer[domain].read(0, NBYTES) == DATA

    return Operation(
        f"read-{domain.name}",
        lambda stage: stage.transfer[domain].read(START, COUNT),
        setup,
        undo,
        bare=True,
    )


def _ports(stage: Stage) -> bytes:
    buffer = stage.transfer[MemoryDomain.DEVICE]
    buffer.write(0, Segments([DATA[:101], DATA[101:]]))
    out = bytearray(NBYTES)
    buffer.read_into(0, Segments([memoryview(out)[:7], memoryview(out)[7:]]))
    return bytes(out)


def _same_data(stage: Stage, result: bytes) -> None:
    del stage
    assert result == DATA


def _loaded(stage: Stage, program: Program) -> None:
    event = stage.queue.submit(program, stage.bindings())
    assert event.wait(ENDED_S) is EventState.COMPLETE
    event.release()
    program.release()
    stage.sets[0][2].write(0, bytes(NBYTES))


def _load_new(stage: Stage) -> Program:
    stage.turn += 1
    return load(stage.context, 100 + stage.turn)


def _finish(number: int) -> Callable[[Stage, Any], None]:
    def undo(stage: Stage, event: Event) -> None:
        assert event.wait(ENDED_S) is EventState.COMPLETE
        stage.check(number)
        event.release()

    return undo


def _submit(number: int) -> Callable[[Stage], Event]:
    return lambda stage: stage.queue.submit(stage.program, stage.bindings(number))


def _other_bindings(stage: Stage) -> None:
    """Leaves the slot with a recording of the other buffers."""
    _finish(1)(stage, _submit(1)(stage))


def _other_program(stage: Stage) -> None:
    """Leaves the slot with a recording of another program."""
    program = load(stage.context)
    event = stage.queue.submit(program, stage.bindings())
    event.wait(ENDED_S)
    event.release()
    stage.local = program


def _and_unload(stage: Stage, event: Event) -> None:
    _finish(0)(stage, event)
    stage.local.release()
    stage.local = None


class Room:
    """A context of its own, with everything that a submission needs."""

    def __init__(self, stage: Stage) -> None:
        self.context: Context = stage.accelerator.create_context()
        self.queue = self.context.create_queue()
        self.program = load(self.context)
        self.buffers = inputs(self.context, 0)

    def submit(self) -> Event:
        return self.queue.submit(self.program, bind(self.buffers))


def _room(stage: Stage) -> None:
    stage.local = Room(stage)


def _leave(stage: Stage, event: Event) -> None:
    assert event.wait(ENDED_S) is EventState.COMPLETE
    check_output(stage.local.buffers, 0)
    event.release()
    stage.local.context.close()
    stage.local = None


def _prepared(stage: Stage, prepared: Any) -> None:  # noqa: ANN401
    for _ in range(2):
        event = prepared.submit()
        assert event.wait(ENDED_S) is EventState.COMPLETE
        event.release()
        stage.check()
    prepared.release()


def _prepare(stage: Stage) -> None:
    stage.local = stage.context.prepare(stage.program, stage.bindings())


def _launched(stage: Stage, event: Event) -> None:
    _finish(0)(stage, event)
    _prepared(stage, stage.local)
    stage.local = None


def _ended_work(stage: Stage) -> None:
    stage.local = _submit(0)(stage)
    stage.accelerator.device.wait_idle()


def _observe(stage: Stage, state: EventState) -> None:
    assert state is EventState.COMPLETE
    _finish(0)(stage, stage.local)
    stage.local = None


def _released(stage: Stage, result: object) -> None:
    del result
    assert stage.local.is_released
    stage.local = None
    stage.check()


def _used_buffer(stage: Stage) -> None:
    """A buffer that a recording names."""
    buffers = [*stage.sets[0][:2], *inputs(stage.context, 0)[2:]]
    event = stage.queue.submit(stage.program, bind(buffers))
    event.wait(ENDED_S)
    event.release()
    stage.local = buffers[2]


def _gone(stage: Stage, result: object) -> None:
    del result
    assert stage.local.is_released
    stage.local = None


def _busy_room(stage: Stage) -> None:
    stage.local = Room(stage)
    stage.local.event = stage.local.submit()


def _closed(stage: Stage, result: object) -> None:
    del result
    # A wait that fails ends the work as lost; a closed context has no other way.
    assert stage.local.event.poll() is not EventState.PENDING
    stage.local.event.release()
    assert stage.local.context.is_released
    stage.local = None


def _flying(stage: Stage) -> None:
    stage.local = [_submit(0)(stage)]


def _forget(stage: Stage) -> None:
    """Lets the pending event die."""
    stage.local.clear()
    gc.collect()


def _forgotten(stage: Stage, result: object) -> None:
    del result
    stage.check()


def _flying_buffers(stage: Stage) -> None:
    buffers = inputs(stage.context, 0)
    stage.local = [buffers, stage.queue.submit(stage.program, bind(buffers))]


def _forget_cycle(stage: Stage) -> None:
    """Lets buffers and event die in a cycle, in whatever order."""
    stage.local.append(stage.local)
    stage.local = None
    gc.collect()


def _nothing_left(stage: Stage, result: object) -> None:
    del stage, result


def _new_context(stage: Stage) -> None:
    stage.local = stage.accelerator.create_context()


class Gated:
    """A gate, and work behind it on the first set of buffers."""

    def __init__(self, stage: Stage) -> None:
        gate = stage.accelerator.create_gate()
        self.gate: Gate | None = gate
        self.signal = gate.signal()
        self.event: Event | None = None
        self.prepared: Prepared | None = None

    def launch(self) -> Event:
        assert self.prepared is not None
        assert self.gate is not None
        return self.prepared.submit_after(self.gate, 1)

    def submit(self, stage: Stage) -> Event:
        assert self.gate is not None
        return stage.queue.submit_after(stage.program, stage.bindings(), self.gate, 1)


def _gate(stage: Stage) -> None:
    stage.local = Gated(stage)


def _gated(stage: Stage) -> None:
    stage.local = gated = Gated(stage)
    gated.event = gated.submit(stage)


def _let_go(stage: Stage, event: Event) -> None:
    assert event.poll() is EventState.PENDING
    assert stage.local.signal.raise_to(1)
    _finish(0)(stage, event)
    stage.local.gate.release()
    stage.local = None


def _gated_prepared(stage: Stage) -> None:
    stage.local = gated = Gated(stage)
    gated.prepared = stage.context.prepare(stage.program, stage.bindings())


def _let_prepared_go(stage: Stage, event: Event) -> None:
    prepared = stage.local.prepared
    _let_go(stage, event)
    _prepared(stage, prepared)


def _forget_gate(stage: Stage) -> None:
    """Lets a gate die that work waits for."""
    stage.local.gate = None
    gc.collect()


def _gate_forgotten(stage: Stage, result: object) -> None:
    del result
    assert not stage.local.signal.raise_to(9)
    _finish(0)(stage, stage.local.event)
    stage.local = None


def _raised(stage: Stage, result: object) -> None:
    assert result
    _finish(0)(stage, stage.local.event)
    stage.local.gate.release()
    stage.local = None


def _gate_released(stage: Stage, result: object) -> None:
    del result
    assert stage.local.gate.is_released
    _finish(0)(stage, stage.local.event)
    stage.local = None


def _import(stage: Stage) -> Buffer | None:
    alignment = stage.accelerator.host_import_alignment
    if alignment is None:
        return None
    array = aligned_array(alignment, alignment=alignment)
    array[:] = 7
    desc = BufferDesc(alignment, USAGE_ALL, MemoryDomain.HOST)
    return stage.context.import_host_buffer(desc, array)


def _imported(stage: Stage, made: Buffer | None) -> None:
    del stage
    if made is not None:
        assert made.read(1, 2) == b"\7\7"
        made.release()


OPERATIONS = (
    Operation(
        "create-context",
        lambda stage: stage.accelerator.create_context(),
        undo=release,
        bare=True,
    ),
    *(_allocate(domain) for domain in MemoryDomain),
    *(_write(domain) for domain in MemoryDomain),
    *(_read(domain) for domain in MemoryDomain),
    Operation("transfer-by-ports", _ports, undo=_same_data, bare=True),
    Operation("load", lambda stage: load(stage.context), undo=_loaded),
    Operation("load-new-kernels", _load_new, undo=_loaded),
    Operation("submit-again", _submit(0), undo=_finish(0)),
    Operation("submit-other-buffers", _submit(0), _other_bindings, _finish(0)),
    Operation("submit-other-program", _submit(0), _other_program, _and_unload),
    Operation(
        "submit-first",
        lambda stage: stage.local.submit(),
        _room,
        _leave,
        keeps=RECORDING,
    ),
    Operation(
        "prepare",
        lambda stage: stage.context.prepare(stage.program, stage.bindings()),
        _other_bindings,
        _prepared,
    ),
    Operation(
        "launch-prepared", lambda stage: stage.local.submit(), _prepare, _launched
    ),
    Operation(
        "poll",
        lambda stage: stage.local.poll(),
        _ended_work,
        _observe,
        absorbs=RETIRE,
        observes=True,
    ),
    Operation(
        "wait",
        lambda stage: stage.local.wait(ENDED_S),
        _ended_work,
        _observe,
        absorbs=RETIRE,
        observes=True,
    ),
    Operation(
        "release-event",
        lambda stage: stage.local.release(),
        _ended_work,
        _released,
        absorbs=RETIRE,
        observes=True,
    ),
    Operation(
        "create-gate",
        lambda stage: stage.accelerator.create_gate(),
        undo=release,
        bare=True,
    ),
    Operation(
        "submit-after",
        lambda stage: stage.local.submit(stage),
        _gate,
        _let_go,
    ),
    Operation(
        "launch-prepared-after",
        lambda stage: stage.local.launch(),
        _gated_prepared,
        _let_prepared_go,
    ),
    Operation(
        "drop-gate",
        _forget_gate,
        _gated,
        _gate_forgotten,
        absorbs=frozenset({"vkSignalSemaphore"}),
    ),
    Operation(
        "raise-gate",
        lambda stage: stage.local.signal.raise_to(1),
        _gated,
        _raised,
        poisons=False,
    ),
    Operation(
        "release-gate",
        lambda stage: stage.local.gate.release(),
        _gated,
        _gate_released,
        absorbs=frozenset({"vkSignalSemaphore"}),
    ),
    Operation("import", _import, undo=_imported, bare=True),
    Operation(
        "release-buffer",
        lambda stage: stage.local.release(),
        _used_buffer,
        _gone,
    ),
    Operation(
        "unload",
        lambda stage: stage.local.release(),
        _other_program,
        _gone,
    ),
    Operation(
        "release-context",
        lambda stage: stage.local.release(),
        _new_context,
        _gone,
        bare=True,
    ),
    Operation(
        "close-context",
        lambda stage: stage.local.context.close(),
        _busy_room,
        _closed,
        absorbs=IDLE,
    ),
    Operation("drop-event", _forget, _flying, _forgotten, absorbs=IDLE),
    Operation(
        "drop-everything",
        _forget_cycle,
        _flying_buffers,
        _nothing_left,
        absorbs=IDLE,
        keeps=RECORDING,
    ),
)
