"""Queues: where submissions are validated, recorded and launched.

A queue is bookkeeping: all queues of all contexts feed the device's one queue, and
nothing orders submissions among each other. Source: docs/accelerator.md, "Order of
checks".
"""

# The classes of the model are friends: they use each other's private attributes.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self, final

from tosavk.core.bindings import Resolved, resolve
from tosavk.core.descriptors import Binding, Timeout
from tosavk.core.device import LoadedProgram
from tosavk.core.errors import DeadlineExpired, InvalidArgument, Released
from tosavk.core.events import Event, launch_failed, take_off
from tosavk.core.gates import Gate, GateState, admit
from tosavk.core.guards import conflict, take
from tosavk.core.prepared import busy
from tosavk.core.programs import Program
from tosavk.core.recording import record
from tosavk.core.scope import Scope


@final
class Queue:
    """A handle of a queue; made by `Context.create_queue`.

    A context manager: leaving the block releases it. Events outlive their queue.
    """

    __slots__ = ("__weakref__", "_scope", "_was")

    def __init__(self, scope: Scope) -> None:
        """A queue of a context; only the model calls this."""
        self._scope: Scope | None = scope
        self._was = scope.id
        scope.queues += 1
        scope.members.add(self)

    @property
    def is_released(self) -> bool:
        """Whether the handle has been released."""
        return self._scope is None

    def submit(
        self,
        program: Program,
        bindings: Iterable[Binding],
        *,
        timeout: Timeout | None = None,
    ) -> Event:
        """Runs a program on bound buffers; never blocks.

        Args:
            program: a program of the queue's context.
            bindings: one for each slot, in any order.
            timeout: only "no limit" is accepted.

        Returns:
            The event, which owns a slot of the ring until its release.

        Raises:
            Released: queue, program or a buffer is released.
            WrongThread: the caller is not the owner.
            DeviceLost: the device is lost.
            DeadlineExpired: a finite timeout.
            ResourceLimit: no bindings, too many, or no free slot in the ring.
            InvalidArgument: objects of different contexts, or a slot bound twice.
            PermissionDenied: the buffer's usage does not allow the access.
            OutOfBounds: a range leaves its buffer.
            Incompatible: the bindings do not fit the program.
            Busy: unobserved work uses a buffer.
            Indeterminate: the device was lost on the way; see its `event`.
            ModelError: the device refused; nothing was accepted.
        """
        scope = self._scope
        if scope is None:
            raise self._released()
        scope.shared.begin()
        loaded = live_program(program)
        scope.shared.require_device("submit")
        if timeout is not None and timeout.is_finite:
            raise DeadlineExpired(
                f"a deadline of {timeout.nanoseconds} ns cannot be kept: work cannot be "
                "cancelled; submit without one and limit Event.wait"
            )
        resolved = resolve(scope, program, tuple(bindings))
        return _launch(scope, loaded, resolved, None, 0)

    def submit_after(
        self, program: Program, bindings: Iterable[Binding], gate: Gate, value: int
    ) -> Event:
        """Like `submit`, but the work starts when a gate has reached a value.

        Program and buffers are in use from now on. The bytes of *inputs* may still be
        produced until the gate is raised, by stores to imported memory. All queues feed
        the device's one queue: later submissions wait behind this one, and transfers
        and loads that need the queue are refused with Busy until the gate is raised.

        Args:
            program: a program of the queue's context.
            bindings: one for each slot, in any order.
            gate: a gate of the same accelerator.
            value: an unsigned 64-bit number; 0, or what has been reached, waits for
                nothing.

        Raises:
            Released: queue, program, gate or a buffer is released.
            InvalidArgument: the gate is of another accelerator; no such value; or as
                `submit`.
            ResourceLimit: the value is too far away for the device; or as `submit`.
            ModelError: as `submit`.
        """
        scope = self._scope
        if scope is None:
            raise self._released()
        shared = scope.shared
        shared.begin()
        loaded = live_program(program)
        state, value = admit(shared, gate, value)
        shared.require_device("submit")
        resolved = resolve(scope, program, tuple(bindings))
        state.check_wait(value)
        return _launch(scope, loaded, resolved, state, value)

    def release(self) -> None:
        """Releases the queue; its submissions go on.

        Raises:
            Released: it has been released before.
        """
        if self._scope is None:
            raise self._released()
        self._scope.shared.begin()
        self.end()

    def end(self) -> None:
        """Releases it with its context; only the model calls this."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.queues -= 1
            scope.destroy_if_unused()

    def __enter__(self) -> Self:
        """The queue itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases the queue unless that has been done."""
        if self._scope is not None and not self._scope.shared.forked:
            self.release()

    def __del__(self) -> None:
        """Releases the queue."""
        scope = getattr(self, "_scope", None)
        if scope is not None:
            scope.shared.finalise(self.end)

    def __repr__(self) -> str:
        """The context's number and whether it is released."""
        end = ", released" if self._scope is None else ""
        return f"<Queue of context {self._was}{end}>"

    def _released(self) -> Released:
        return Released(f"{self!r} was used after its release")


def live_program(program: object) -> LoadedProgram:
    """The device side of a live program.

    Raises:
        InvalidArgument: it is no program.
        Released: it is released.
    """
    if not isinstance(program, Program):
        raise InvalidArgument(f"not a program: {program!r}")
    loaded = program._loaded
    if loaded is None:
        raise Released(f"{program!r} was used after its release")
    return loaded


def _launch(
    scope: Scope,
    loaded: LoadedProgram,
    resolved: Resolved,
    gate: GateState | None,
    value: int,
) -> Event:
    """Takes slot and guards, records what is not recorded yet, and launches."""
    shared = scope.shared
    slot = scope.ring.acquire()
    if conflict(resolved.reads, resolved.writes, ()) is not None:
        scope.ring.give_back(slot)
        raise busy(resolved)
    take(resolved.reads, resolved.writes)
    recorded = slot.key == resolved.key
    slot.reads = resolved.reads
    slot.writes = resolved.writes
    event = take_off(scope, slot, resolved.keep)
    try:
        if not recorded:
            record(scope, slot, loaded, resolved)
        recording = slot.recording
        assert recording is not None
        with shared:
            if gate is None:
                recording.launch()
            else:
                gate.launch(slot, value)
    except BaseException as error:
        unknown = launch_failed(event, error)
        if unknown is not None:
            raise unknown from error
        raise
    shared.admissions += len(resolved.listed)
    return event
