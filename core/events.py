"""Events: what becomes of a submission.

A submission is in flight until somebody observes that it ended: by polling, waiting or
releasing. Its guards are dropped strictly before the terminal state can be seen.
Source: docs/accelerator.md, "In flight until observed".
"""

# The classes of the model are friends: they use each other's private attributes.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import time
from collections.abc import Generator
from threading import get_ident
from types import TracebackType
from typing import Any, Self, final

from tosavk.core.descriptors import EventState
from tosavk.core.device import Recording
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    Incompatible,
    Indeterminate,
    InvalidArgument,
    ModelError,
    Released,
)
from tosavk.core.guards import drop
from tosavk.core.ring import RingSlot
from tosavk.core.rules import RuleBrokenError, fault_of
from tosavk.core.scope import SLICE_NS, Scope

SLICE_S = SLICE_NS * 1e-9

_PENDING = EventState.PENDING
_COMPLETE = EventState.COMPLETE
_FAILED = EventState.FAILED
_new = object.__new__


@final
class Event:
    """A handle of a submission; made by `Queue.submit` and `Prepared.submit`.

    It keeps what the submission uses alive until the end is observed. A context
    manager: leaving the block waits for the end and releases the event; if it is left by
    an exception while work waits for an unraised gate, the event stays as it is.
    In a coroutine, `await event` waits without blocking the loop and gives the state.
    """

    # _slot: the ring slot that this event must settle or give back, else None.
    # _scope: None once the event is released.
    # _keep: program and buffers, or the prepared submission, while it is pending.
    __slots__ = ("__weakref__", "_error", "_keep", "_scope", "_slot", "_state")

    _error: ModelError | None
    _keep: object
    _scope: Scope | None
    _slot: RingSlot | None
    _state: EventState

    @property
    def error(self) -> ModelError | None:
        """Why the submission failed, once FAILED has been observed; else None."""
        return self._error

    @property
    def is_released(self) -> bool:
        """Whether the handle has been released."""
        return self._scope is None

    def poll(self) -> EventState:
        """Asks the device once, without blocking; terminal states stay.

        Returns:
            The state. A lost device is the state FAILED, not an error; so is a value
            that an operator must not be given, where the program lets them be computed
            or given (`core.rules`).

        Raises:
            Released: the event is released.
            WrongThread: the caller is not the owner.
            ModelError: the device could not answer; the state is as before.
        """
        scope = self._scope
        if scope is None:
            raise self._released()
        if scope.shared.owner != get_ident():
            raise scope.shared.wrong_thread()
        if self._state is not _PENDING:
            return self._state
        try:
            done = self._recording().poll()
        except DeviceLost as error:
            return self._fail(error)
        return self._complete() if done else _PENDING

    def wait(self, timeout_s: float | None = None) -> EventState:
        """Waits for the end, in steps that let Ctrl-C through.

        Args:
            timeout_s: seconds to wait at most, or None for no limit.

        Returns:
            The state; PENDING if the time is over.

        Raises:
            Released: the event is released.
            WrongThread: the caller is not the owner.
            InvalidArgument: the time is not a number.
            DeviceLost: the device is poisoned and the work does not end; the event
                stays pending.
            ModelError: the device could not answer; the state is as before.
        """
        if self._state is not _PENDING:
            return self.poll()
        if timeout_s is None:
            deadline = None
        elif math.isnan(timeout_s):
            raise InvalidArgument("timeout_s must be a number of seconds, got NaN")
        else:
            deadline = time.monotonic() + timeout_s
        shared = self._live_scope().shared
        shared.begin()
        recording = self._recording()
        while True:
            step = SLICE_NS
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return self.poll()
                if left < SLICE_S:
                    step = int(left * 1e9) + 1
            try:
                done = recording.wait(step)
            except DeviceLost as error:
                return self._fail(error)
            # Waiting lets finalisers run, and one may have observed the end.
            if self._state is not _PENDING:
                return self._state
            if done:
                return self._complete()
            # The interpreter may be about to exit; or a dropped gate held this up.
            shared.begin()
            if self._state is not _PENDING:
                return self._state
            if deadline is None:
                shared.require_device("wait for this event")

    def require_device(self) -> None:
        """Refuses to go on waiting for work of a lost device.

        Raises:
            Released: the event is released.
            DeviceLost: the device is lost.
        """
        self._live_scope().shared.require_device("wait for this event")

    def release(self) -> None:
        """Releases the event and its ring slot; polls first.

        Raises:
            Released: it has been released before.
            Busy: the submission has not ended; the event stays live.
            ModelError: the device could not answer; the event stays live.
        """
        if self._scope is None:
            raise self._released()
        self._scope.shared.begin()
        if self.poll() is _PENDING:
            raise Busy("the event is pending; wait for it before its release")
        self._give_back()

    def __await__(self) -> Generator[Any, None, EventState]:
        """Waits in a coroutine; the events of a loop share one timer, and no thread.

        Raises:
            Released: the event is released, before or meanwhile.
            WrongThread: the loop does not run in the owner's thread.
            DeviceLost: the device is poisoned and the work does not end.
            ModelError: the device could not answer.
        """
        # Those who do not use asyncio need not import it.
        from tosavk.core.polling import watch

        return watch(self).__await__()

    def __enter__(self) -> Self:
        """The event itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Waits for the end and releases the event unless that has been done."""
        scope = self._scope
        if scope is None or scope.shared.forked:
            return
        if error is not None and scope.shared.blocked:
            return
        self.wait()
        self.release()

    def __del__(self) -> None:
        """Waits for the end without a limit, and gives the slot back."""
        if getattr(self, "_slot", None) is not None and self._scope is not None:
            self._scope.shared.finalise(self._bury)

    def __repr__(self) -> str:
        """State and whether it is released."""
        end = ", released" if self._scope is None else ""
        return f"<Event {self._state.value}{end}>"

    def _live_scope(self) -> Scope:
        if self._scope is None:
            raise self._released()
        return self._scope

    def _recording(self) -> Recording:
        # A pending event always has a slot with a recording.
        assert self._slot is not None
        assert self._slot.recording is not None
        return self._slot.recording

    def _complete(self) -> EventState:
        slot = self._slot
        assert slot is not None
        assert slot.recording is not None
        fault: InvalidArgument | None = None
        try:
            slot.recording.retire()
        except RuleBrokenError as broken:
            # It ended, with a value that an operator must not be given.
            fault = broken.fault
        except DeviceLost:
            # The work did end; only the recording cannot be used again.
            fault = fault_of(slot.recording)
            scope = self._live_scope()
            scope.shared.lost = True
            scope.ring.condemn(slot)
        drop(slot.reads, slot.writes)
        self._settle(slot)
        self._error = fault
        self._state = _FAILED if fault else _COMPLETE
        return self._state

    def _fail(self, error: ModelError) -> EventState:
        slot = self._slot
        assert slot is not None
        scope = self._live_scope()
        if isinstance(error, DeviceLost):
            scope.shared.lost = True
        scope.ring.condemn(slot)
        drop(slot.reads, slot.writes)
        self._settle(slot)
        # A kept traceback would keep the frames of all callers and their handles alive.
        self._error = error.with_traceback(None)
        self._state = _FAILED
        return _FAILED

    def _settle(self, slot: RingSlot) -> None:
        slot.flying = False
        if slot.gate is not None:
            leave_gate(slot)
        if slot.held:
            self._slot = None
        self._keep = None

    def _give_back(self) -> None:
        scope, self._scope = self._live_scope(), None
        slot, self._slot = self._slot, None
        if slot is not None:
            scope.ring.give_back(slot)
            scope.destroy_if_unused()

    def _bury(self) -> None:
        if self._state is _PENDING:
            if self._is_held_up():
                # Perhaps it is for this very thread to raise the gate.
                self._live_scope().shared.put_off(self._bury)
                return
            self._outlast()
        self._give_back()

    def _is_held_up(self) -> bool:
        if not self._live_scope().shared.blocked:
            return False
        try:
            return not self._recording().poll()
        except ModelError:
            return False

    def _outlast(self) -> None:
        shared = self._live_scope().shared
        recording = self._recording()
        failure: ModelError = DeviceLost("the wait for an abandoned event failed")
        ended = False
        try:
            with shared:
                while not recording.wait(SLICE_NS):
                    shared.require_device("wait for an abandoned event")
            ended = True
        except ModelError as error:
            failure = error.with_traceback(None)
        finally:
            if not ended:
                shared.wait_idle()
                ended = not isinstance(failure, DeviceLost) and has_ended(recording)
                if not ended:
                    self._fail(failure)
        if ended:
            self._complete()

    def _released(self) -> Released:
        return Released(f"{self!r} was used after its release")


def has_ended(recording: Recording) -> bool:
    """Whether work is known to have ended, after a wait for it has failed."""
    try:
        return recording.poll()
    except ModelError:
        return False


def leave_gate(slot: RingSlot) -> None:
    """Notes that the launch of a slot waits for its gate no longer."""
    gate, slot.gate = slot.gate, None
    if gate is not None:
        gate.landed(slot)


def take_off(scope: Scope, slot: RingSlot, keep: object) -> Event:
    """The pending event of a slot whose guards are taken; the launch comes next.

    It is there before the launch, so that whatever happens in the launch finds the
    submission in a consistent state.
    """
    slot.flying = True
    event = _new(Event)
    event._state = _PENDING
    event._error = None
    event._slot = slot
    event._scope = scope
    event._keep = keep
    return event


def launch_failed(event: Event, error: BaseException) -> ModelError | None:
    """Puts everything right after a record or launch has failed.

    Returns:
        The Indeterminate error to raise if the outcome is unknown; None if the work was
        not accepted, guards and slot are back, and `error` is to be raised again.
    """
    slot = event._slot
    scope = event._scope
    assert slot is not None
    assert scope is not None
    if isinstance(error, DeviceLost):
        event._fail(error)
        return Indeterminate(error, event)
    if not isinstance(error, ModelError):
        # An interrupt or a fault in the backend: nobody knows how far it came.
        scope.shared.wait_idle()
        scope.ring.condemn(slot)
    drop(slot.reads, slot.writes)
    slot.flying = False
    leave_gate(slot)
    event._slot = None
    event._scope = None
    event._keep = None
    event._state = _FAILED
    if not slot.held:
        scope.ring.give_back(slot)
    return None


def broken_launch() -> None:
    """Stands for the launch of a prepared submission whose recording is gone.

    Raises:
        Incompatible: always.
    """
    raise Incompatible(
        "an earlier launch of this prepared submission was interrupted; release it and "
        "prepare it again"
    )
