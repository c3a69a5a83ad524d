"""A second implementation of the Accelerator model, small, slow and breakable.

It shares no code with `core`'s handles, guards and rings: it keeps sets of users instead
of counters. With a `flaw` it breaks one promise, at the place where the promise is kept;
the contract suite must find every one of `FLAWS`. It evaluates graphs with NumPy, ends
work at the second look, cancels events, can be gated, and can be lost.
"""

# Doubles of handles take whatever they are given.
# ruff: noqa: ANN401

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from harness.toy_checks import (
    LIMITS,
    Taken,
    buffer_of,
    drop,
    resolve,
    take,
)
from tosavk.backends.reference import evaluate
from tosavk.backends.reference.device import GraphProgram, ReferenceDevice
from tosavk.core.checks import validate_buffer_desc
from tosavk.core.descriptors import (
    FORMAT_TOSA,
    RESIDENT_UNBOUNDED,
    Artifact,
    Binding,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    BufferUsage,
    Capabilities,
    ContextDesc,
    DeviceIdentity,
    DeviceInfo,
    EventState,
    QueueDesc,
    Timeout,
)
from tosavk.core.dtypes import pack, unpack
from tosavk.core.errors import (
    Busy,
    DeadlineExpired,
    DeviceLost,
    InvalidArgument,
    OutOfBounds,
    PermissionDenied,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.plan import Slot, SlotRole
from tosavk.core.ports import byte_view, is_sink, is_source
from tosavk.core.shared import LiveResources

CAPABILITIES = (
    Capabilities.HOST_VISIBLE_MEMORY
    | Capabilities.SHARED_MEMORY
    | Capabilities.EVENT_CANCELLATION
)


class ToyAccelerator:
    """The device and its contexts.

    Args:
        flaw: one of `FLAWS`, or "" for none.
    """

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        self.lost = False
        self.closed = False
        self.gated = False
        self.direct = self.staged = self.explicit = 0
        self.contexts: weakref.WeakSet[ToyContext] = weakref.WeakSet()
        self.live_contexts = 0
        self._asked = 0

    @property
    def info(self) -> DeviceInfo:
        self._asked += 1
        limits, capabilities = LIMITS, CAPABILITIES
        if self.flaw == "info changes" and self._asked > 1:
            limits = replace(LIMITS, max_buffer_bytes=LIMITS.max_buffer_bytes + 4)
        if self.flaw == "info has a zero limit":
            limits = replace(LIMITS, max_queues_per_context=0)
        if self.flaw == "info has a reserved capability":
            capabilities |= Capabilities.SECURE_CONTEXTS
        return DeviceInfo(DeviceIdentity(bytes(16)), limits, capabilities)

    def live_resources(self) -> LiveResources:
        contexts = list(self.contexts)
        return LiveResources(
            self.live_contexts,
            sum(len(c.buffers) + c.ghosts for c in contexts),
            sum(len(c.programs) for c in contexts),
            sum(c.queues for c in contexts),
            sum(c.used for c in contexts),
        )

    def require(self, what: str) -> None:
        if self.lost and not (self.flaw == "loss is not sticky" and what == "allocate"):
            raise DeviceLost(f"cannot {what}: lost")

    def create_context(self, desc: ContextDesc | None = None) -> ToyContext:
        if self.closed:
            raise Released("closed")
        if desc is not None and desc.flags and self.flaw != "flags are ignored":
            raise Unsupported("flags")
        self.require("create a context")
        if (
            self.live_contexts >= LIMITS.max_contexts
            and self.flaw != "no context limit"
        ):
            raise ResourceLimit("contexts")
        made = ToyContext(self)
        self.contexts.add(made)
        self.live_contexts += 1
        return made

    def close(self) -> None:
        self.closed = True
        self.gated = False
        for context in list(self.contexts):
            context.close()
            if self.flaw != "close leaves contexts":
                self.drop(context)

    def drop(self, context: ToyContext) -> None:
        if not context.gone:
            context.gone = True
            self.live_contexts -= 1


class ToyContext:
    """Buffers, programs, queues and slots."""

    def __init__(self, accelerator: ToyAccelerator) -> None:
        self.accelerator = accelerator
        self.flaw = accelerator.flaw
        self.buffers: set[int] = set()
        self.programs: set[int] = set()
        self.queues = 0
        self.used = 0
        self.ghosts = 0
        self.released = False
        self.gone = False
        self.handles: weakref.WeakSet[Any] = weakref.WeakSet()

    def check(self) -> None:
        if self.released and self.flaw != "released contexts work":
            raise Released("context")

    def allocate_buffer(self, desc: BufferDesc) -> ToyBuffer:
        self.check()
        if self.flaw == "allocates any domain":
            info = self.accelerator.info
            wide = replace(info, capabilities=info.capabilities | Capabilities(2))
            validate_buffer_desc(wide, desc)
        elif self.flaw == "domain before size":
            validate_buffer_desc(self.accelerator.info, replace(desc, nbytes=1))
            validate_buffer_desc(self.accelerator.info, desc)
        else:
            validate_buffer_desc(self.accelerator.info, desc)
        self.accelerator.require("allocate")
        count = len(self.buffers)
        if self.flaw == "limits hold for all contexts together":
            count = sum(len(c.buffers) for c in self.accelerator.contexts)
        if count >= LIMITS.max_buffers_per_context and self.flaw != "no buffer limit":
            raise ResourceLimit("buffers")
        if desc.alignment > 1 << 20:
            if self.flaw == "a failed allocation leaks":
                self.ghosts += 1
            raise ResourceLimit("alignment")
        return ToyBuffer(self, desc)

    def load_program(self, source: Artifact) -> ToyProgram:
        self.check()
        if self.flaw == "reads before the size check":
            source.view()
        if source.payload_bytes > LIMITS.max_artifact_bytes:
            raise ResourceLimit("payload")
        bounded = source.resident_bytes != RESIDENT_UNBOUNDED
        if bounded and self.flaw != "resident_bytes is ignored":
            raise ResourceLimit("resident_bytes")
        self.accelerator.require("load")
        if len(self.programs) >= LIMITS.max_programs_per_context:
            raise ResourceLimit("programs")
        number = 0
        if self.flaw == "a failed load leaks":
            number = -len(self.programs) - 1
            self.programs.add(number)
        payload = bytes(source.view())
        artifact = replace(source, payload=payload)
        if source.format != FORMAT_TOSA and self.flaw == "any format is TOSA":
            artifact = replace(artifact, format=FORMAT_TOSA)
        if self.flaw == "target words are ignored":
            words = (FORMAT_TOSA, 1, 1, 0, 0, 2, 1, 0, 0, 0, 0, 0)
            artifact = replace(artifact, target=words)
        graph = ReferenceDevice().lower(artifact)
        if not isinstance(graph, GraphProgram):
            raise Unsupported("a toy runs TOSA only")
        self.programs.discard(number)
        return ToyProgram(self, graph)

    def create_queue(self, desc: QueueDesc | None = None) -> ToyQueue:
        self.check()
        if desc is not None and desc.flags:
            raise Unsupported("flags")
        self.accelerator.require("create a queue")
        if self.queues >= LIMITS.max_queues_per_context:
            raise ResourceLimit("queues")
        return ToyQueue(self)

    def prepare(self, program: ToyProgram, bindings: Iterable[Binding]) -> ToyPrepared:
        self.check()
        listed = tuple(bindings)
        resolve(self, program, listed)
        if self.used >= LIMITS.max_events_per_context:
            raise ResourceLimit("ring")
        return ToyPrepared(self, program, listed)

    def release(self) -> None:
        if self.released:
            raise Released("context")
        children = self.buffers or self.programs or self.queues or self.used
        if children and self.flaw != "a context goes before its children":
            raise Busy("children")
        self.released = True
        self.accelerator.drop(self)

    def close(self) -> None:
        for handle in list(self.handles):
            handle.end()
        self.released = True

    def __del__(self) -> None:
        self.accelerator.drop(self)


class ToyHandle:
    """What buffers, programs, queues and prepared submissions have in common."""

    def __init__(self, context: ToyContext) -> None:
        self.context = context
        self.flaw = context.flaw
        self.released = False
        self.users: set[object] = set()
        context.handles.add(self)

    def check(self) -> None:
        if self.released and self.flaw != "released handles work":
            raise Released(type(self).__name__)

    def busy(self) -> bool:
        return bool(self.users)

    def release(self) -> None:
        if self.released:
            if self.flaw == "double release is fine":
                return
            raise Released(type(self).__name__)
        if self.busy():
            raise Busy(type(self).__name__)
        self.end()

    def end(self) -> None:
        if not self.released:
            self.released = True
            self.uncount()

    def uncount(self) -> None:
        raise NotImplementedError

    def __del__(self) -> None:
        if self.flaw != "dead handles are never uncounted":
            self.end()


class ToyBuffer(ToyHandle):
    """Bytes, with the submissions that read and write them."""

    def __init__(self, context: ToyContext, desc: BufferDesc) -> None:
        super().__init__(context)
        self.desc = desc
        self.data = bytearray(desc.nbytes)
        self.readers: set[object] = set()
        self.writers: set[object] = set()
        context.buffers.add(id(self))

    @property
    def info(self) -> BufferInfo:
        properties = BufferProperties.HOST_VISIBLE | BufferProperties.DIRECT_BINDING
        nbytes, alignment = len(self.data), max(256, self.desc.alignment)
        if self.flaw == "allocations are too small on paper":
            nbytes -= 1
        if self.flaw == "alignment is a lie":
            alignment = 3
        if self.flaw == "host memory is not host-visible":
            properties = BufferProperties.DIRECT_BINDING
        return BufferInfo(nbytes, alignment, properties)

    def busy(self) -> bool:
        if self.flaw == "buffers in use can be released":
            return False
        return bool(self.readers or self.writers or self.users)

    def uncount(self) -> None:
        self.context.buffers.discard(id(self))

    def range(self, offset: int, nbytes: int, usage: BufferUsage) -> None:
        self.check()
        self.context.accelerator.require("allocate")
        allowed = bool(self.desc.usage & usage) or self.flaw == "usage is ignored"
        if self.flaw != "guards before permission" and not allowed:
            raise PermissionDenied("usage")
        if self.readers or self.writers:
            forgiven = self.flaw == "transfers in flight are fine"
            forgiven |= self.flaw == "readers may be overwritten" and not self.writers
            if not forgiven:
                raise Busy("in flight")
        if not allowed:
            raise PermissionDenied("usage")
        self.context.accelerator.require("transfer")
        if self.flaw == "bounds before length" and offset + nbytes > len(self.data):
            raise OutOfBounds("range")
        if nbytes <= 0 or offset < 0:
            raise InvalidArgument("range")
        slack = 4 if self.flaw == "bounds are rounded up" else 0
        if self.flaw == "bounds are not checked":
            return
        if offset + nbytes > len(self.data) + slack:
            raise OutOfBounds("range")

    def write(self, offset: int, data: Any) -> None:
        if is_source(data):
            self.range(offset, data.nbytes, BufferUsage.TRANSFER_DESTINATION)
            piece = bytearray(data.nbytes)
            if self.flaw == "errors of ports are swallowed":
                try:
                    data.read_at(0, memoryview(piece))
                except Exception:  # noqa: BLE001 - the flaw
                    return
            data.read_at(0, memoryview(piece))
        else:
            piece = bytearray(byte_view(data))
            self.range(offset, len(piece), BufferUsage.TRANSFER_DESTINATION)
        end = offset + len(piece)
        if self.flaw == "writes are rounded to words":
            end = min(-(-end // 4) * 4, len(self.data))
            piece += bytes(end - offset - len(piece))
        if self.flaw == "a write is lost" and len(piece) == 4:
            piece = self.data[offset:end]
        self.data[offset:end] = piece
        self.context.accelerator.explicit += len(piece)
        if self.flaw == "transfers are counted twice":
            self.context.accelerator.explicit += len(piece)

    def read(self, offset: int, nbytes: int) -> bytes:
        self.range(offset, nbytes, BufferUsage.TRANSFER_SOURCE)
        self.context.accelerator.explicit += nbytes
        return bytes(self.data[offset : offset + nbytes])

    def read_into(self, offset: int, out: Any) -> None:
        if is_sink(out):
            self.range(offset, out.nbytes, BufferUsage.TRANSFER_SOURCE)
            out.write_at(0, memoryview(self.data)[offset : offset + out.nbytes])
            nbytes = out.nbytes
        else:
            view = byte_view(out)
            if view.readonly:
                raise InvalidArgument("read-only")
            nbytes = view.nbytes
            self.range(offset, nbytes, BufferUsage.TRANSFER_SOURCE)
            view[:] = self.data[offset : offset + nbytes]
        self.context.accelerator.explicit += nbytes


class ToyProgram(ToyHandle):
    """A graph."""

    def __init__(self, context: ToyContext, program: GraphProgram) -> None:
        super().__init__(context)
        self.graph = program.graph
        self.slots: tuple[Slot, ...] = program.plan.slots
        context.programs.add(id(self))

    def busy(self) -> bool:
        return super().busy() and self.flaw != "programs in use can be released"

    def uncount(self) -> None:
        self.context.programs.discard(id(self))

    def run(self, bindings: tuple[Binding, ...]) -> None:
        inputs: dict[str, Any] = {}
        by_slot = {b.slot: b for b in bindings}
        if self.flaw == "list order has a meaning":
            by_slot = {i: replace(b, slot=i) for i, b in enumerate(bindings)}
        for slot in self.slots:
            if slot.role is SlotRole.INPUT:
                place = by_slot.get(slot.index, bindings[0])
                raw = buffer_of(place).data[place.range.offset : place.range.end]
                raw = raw[: slot.nbytes].ljust(slot.nbytes, b"\0")
                inputs[slot.name] = unpack(slot.dtype, bytes(raw), slot.shape)
        values = evaluate(self.graph, inputs, precise=False)
        for slot in self.slots:
            if slot.role is SlotRole.OUTPUT:
                place = by_slot.get(slot.index, bindings[0])
                data = bytes(pack(slot.dtype, values[slot.name]))
                if self.flaw == "packed outputs fill their words":
                    data += bytes(-len(data) % 4)
                if self.flaw == "offsets are ignored":
                    place = replace(place, range=replace(place.range, offset=0))
                start = place.range.offset
                target = buffer_of(place).data
                end = min(start + len(data), len(target))
                target[start:end] = data[: end - start]
                if self.flaw == "inputs are scribbled on":
                    buffer_of(by_slot[0]).data[0] ^= 1


class ToyQueue(ToyHandle):
    """Submits."""

    def __init__(self, context: ToyContext) -> None:
        super().__init__(context)
        context.queues += 1

    def uncount(self) -> None:
        self.context.queues -= 1

    def submit(
        self,
        program: ToyProgram,
        bindings: Iterable[Binding],
        *,
        timeout: Timeout | None = None,
    ) -> ToyEvent:
        self.check()
        program.check()
        context, accelerator = self.context, self.context.accelerator
        accelerator.require("submit")
        if timeout is not None and timeout.is_finite:
            if self.flaw == "deadlines are Unsupported":
                raise Unsupported("deadline")
            raise DeadlineExpired("deadline")
        listed = tuple(bindings)
        resolve(context, program, listed)
        full = context.used >= LIMITS.max_events_per_context
        if full and self.flaw not in {"no ring limit", "guards before the ring"}:
            raise ResourceLimit("ring")
        try:
            taken = take(program, listed)
        except Busy:
            if self.flaw == "a busy submission keeps its slot":
                context.used += 1
            raise
        if full and self.flaw == "guards before the ring":
            drop(taken)
            raise ResourceLimit("ring")
        accelerator.direct += len(listed)
        if self.flaw == "copies through a bounce buffer":
            accelerator.staged += sum(b.range.nbytes for b in listed)
        return ToyEvent(context, program, listed, taken, owns=True)


class ToyPrepared(ToyHandle):
    """A submission to be launched again and again."""

    def __init__(
        self, context: ToyContext, program: ToyProgram, listed: tuple[Binding, ...]
    ) -> None:
        super().__init__(context)
        self.program = program
        self.listed = listed
        self.kept: list[ToyHandle] = [program, *(buffer_of(b) for b in listed)]
        context.used += 1
        if self.flaw != "prepared buffers can be released":
            for handle in self.kept:
                handle.users.add(self)

    def uncount(self) -> None:
        self.context.used -= 1
        for handle in self.kept:
            handle.users.discard(self)

    def submit(self) -> ToyEvent:
        self.check()
        self.context.accelerator.require("submit")
        if self.users:
            raise Busy("last launch")
        taken = take(self.program, self.listed)
        self.context.accelerator.direct += len(self.listed)
        self.users.add(taken)
        event = ToyEvent(self.context, self.program, self.listed, taken, owns=False)
        event.launcher = self
        return event


class ToyEvent:
    """Work that is done at the second look, unless it is gated."""

    def __init__(
        self,
        context: ToyContext,
        program: ToyProgram,
        listed: tuple[Binding, ...],
        taken: Taken,
        *,
        owns: bool,
    ) -> None:
        self.context = context
        self.flaw = context.flaw
        self.program = program
        self.listed = listed
        self.error: Exception | None = None
        self.released = False
        self.launcher: ToyPrepared | None = None
        self._taken: Taken | None = taken
        self._owns = owns
        self._state = EventState.PENDING
        self._looks = 0
        if owns:
            context.used += 1
        context.handles.add(self)
        if self.flaw == "guards end with the work":
            self.finish()
            self._state = EventState.PENDING

    def poll(self) -> EventState:
        if self.released:
            raise Released("event")
        self._looks += 1
        if self._state is not EventState.PENDING:
            if self._taken is not None:
                self.let_go()
            if self.flaw == "terminal states wear off" and self._looks % 3 == 0:
                return EventState.PENDING
            return self._state
        accelerator = self.context.accelerator
        if accelerator.lost:
            if self.flaw == "lost work stays pending":
                return self._state
            return self.finish(EventState.FAILED)
        if accelerator.gated and self.flaw != "gates are ignored":
            return self._state
        if self.flaw == "polls count as transfers":
            accelerator.explicit += 1
        if self._looks >= 2:
            self.finish()
        return self._state

    def wait(self, timeout_s: float | None = None) -> EventState:
        if timeout_s is None or timeout_s > 1:
            for _ in range(3):
                self.poll()
        return self.poll()

    def cancel(self) -> None:
        if self._state is EventState.PENDING:
            self.finish(EventState.CANCELLED)
            if self.flaw == "cancelled work keeps its buffers":
                take(self.program, self.listed)
        elif self.flaw == "cancelling undoes the end":
            self._state = EventState.CANCELLED

    def finish(self, state: EventState = EventState.COMPLETE) -> EventState:
        if self.flaw != "guards after the latch":
            self.let_go()
        if state is EventState.COMPLETE and self.flaw != "work is forgotten":
            self.program.run(self.listed)
        if state is EventState.FAILED:
            self.error = DeviceLost("lost")
        self._state = state
        return state

    def let_go(self) -> None:
        if self._taken is not None:
            drop(self._taken)
            if self.launcher is not None:
                self.launcher.users.discard(self._taken)
            self._taken = None

    def release(self) -> None:
        if self.released:
            raise Released("event")
        state = self.poll()
        if (
            state is EventState.PENDING
            and self.flaw != "pending events can be released"
        ):
            raise Busy("pending")
        self.end()

    def end(self) -> None:
        if self.released or self.context.accelerator.closed:
            if self._state is EventState.PENDING:
                if self.flaw != "close forgets events":
                    self.finish()
                if self._owns:
                    self.context.used -= 1
                    self._owns = False
            return
        self.let_go()
        self.released = True
        if self._owns and self.flaw != "a released event keeps its slot":
            self.context.used -= 1

    def __del__(self) -> None:
        if not self.released:
            if self._state is EventState.PENDING:
                self.finish()
            self.end()


class ToyGate:
    """Holds everything back."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = cast(ToyAccelerator, accelerator)
        self._accelerator.gated = True

    def submit(self, queue: Any, program: Any, bindings: Iterable[Binding]) -> Any:
        return queue.submit(program, bindings)

    def open(self) -> None:
        self._accelerator.gated = False

    def close(self) -> None:
        pass


def lose(accelerator: Any) -> None:
    """Loses a toy."""
    cast(ToyAccelerator, accelerator).lost = True
