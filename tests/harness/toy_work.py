"""What the toy (`harness.toy`) runs: programs, queues, prepared submissions, events."""

# Doubles of handles take whatever they are given.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.toy_buffers import ToyHandle
from harness.toy_checks import (
    LIMITS,
    Taken,
    buffer_of,
    drop,
    resolve,
    take,
)
from tosavk.backends.reference import evaluate
from tosavk.backends.reference.device import GraphProgram
from tosavk.core.descriptors import (
    Binding,
    EventState,
    Timeout,
)
from tosavk.core.dtypes import pack, unpack
from tosavk.core.errors import (
    Busy,
    DeadlineExpired,
    DeviceLost,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.plan import Slot, SlotRole

if TYPE_CHECKING:
    from harness.toy import ToyContext


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
