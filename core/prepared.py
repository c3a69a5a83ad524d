"""Prepared submissions: validated and recorded once, launched many times.

`Prepared.submit` is the hot path of the model: it takes guards, makes an event and
launches, and does nothing else. Source: docs/accelerator.md, "Prepared submissions".
"""

# The classes of the model are friends: they use each other's private attributes.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import NoReturn, final

from tosavk.core.bindings import Resolved, describe
from tosavk.core.blocks import Releasing
from tosavk.core.descriptors import EventState
from tosavk.core.device import Recording
from tosavk.core.errors import Busy, Released
from tosavk.core.events import Event, broken_launch, launch_failed
from tosavk.core.gates import Gate, admit
from tosavk.core.guards import WRITER, conflict
from tosavk.core.ring import RingSlot
from tosavk.core.scope import Scope

_PENDING = EventState.PENDING
_new = object.__new__


@final
class Prepared(Releasing):
    """A handle of a prepared submission; made by `Context.prepare`.

    It owns one of the context's submission slots and keeps its program and buffers
    alive; they cannot be released before it. A context manager: see
    `core.blocks.Releasing`.
    """

    __slots__ = (
        "__weakref__",
        "_count",
        "_device",
        "_launch",
        "_reads",
        "_resolved",
        "_scope",
        "_shared",
        "_slot",
        "_writes",
    )

    def __init__(
        self, scope: Scope, slot: RingSlot, resolved: Resolved, recording: Recording
    ) -> None:
        """Takes a ring slot with its recording over; only the model calls this."""
        slot.held = True
        scope.members.add(self)
        self._slot: RingSlot | None = slot
        self._scope = scope
        self._shared = scope.shared
        self._device = scope.shared.device
        self._resolved = resolved
        self._reads = resolved.reads
        self._writes = resolved.writes
        self._count = len(resolved.listed)
        self._launch: Callable[[], None] = recording.launch
        for guard in (*self._reads, *self._writes):
            guard.prepared += 1

    @property
    def is_released(self) -> bool:
        """Whether the handle has been released."""
        return self._slot is None

    def submit(self) -> Event:
        """Launches the recorded work once more; never blocks.

        Returns:
            The event. It needs no release, and does not count as one more event.

        Raises:
            Released: it is released.
            WrongThread: the caller is not the owner.
            DeviceLost: the device is lost.
            Busy: its last launch, or other work that uses its buffers, is unobserved.
            Indeterminate: the device was lost in the launch; see its `event`.
            ModelError: the device refused; nothing was accepted.
        """
        slot = self._slot
        shared = self._shared
        if (
            slot is None
            or shared.owner != get_ident()
            or shared.lost
            or self._device.poisoned
            or slot.flying
        ):
            self._refuse()
        reads = self._reads
        writes = self._writes
        for guard in reads:
            if guard.state >= WRITER:
                self._conflict()
        for guard in writes:
            if guard.state:
                self._conflict()
        for guard in reads:
            guard.state += 1
        for guard in writes:
            guard.state = WRITER
        # `events.take_off`, written out: a call costs a tenth of this method.
        slot.flying = True
        event = _new(Event)
        event._state = _PENDING
        event._error = None
        event._slot = slot
        event._scope = self._scope
        event._keep = self
        try:
            self._launch()
        except BaseException as error:
            unknown = launch_failed(event, error)
            if slot.recording is None:
                self._launch = broken_launch
            if unknown is not None:
                raise unknown from error
            raise
        shared.admissions += self._count
        return event

    def submit_after(self, gate: Gate, value: int) -> Event:
        """Like `submit`, but the work starts when a gate has reached a value.

        Args:
            gate: a gate of the same accelerator.
            value: see `Queue.submit_after`.

        Raises:
            Released: it or the gate is released.
            InvalidArgument: the gate is of another accelerator, or no such value.
            ResourceLimit: the value is too far away for the device.
            ModelError: as `submit`.
        """
        slot = self._slot
        shared = self._shared
        shared.begin()
        if slot is None:
            self._refuse()
        state, value = admit(shared, gate, value)
        shared.require_device("submit")
        if not slot.flying:
            state.check_wait(value)
        plain, behind = self._launch, partial(state.launch, slot, value)
        if plain is not broken_launch:
            self._launch = behind
        try:
            return self.submit()
        finally:
            # A launch that was broken off has put `broken_launch` there.
            if self._launch is behind:
                self._launch = plain

    def release(self) -> None:
        """Gives the recording and its slot back.

        Raises:
            Released: it has been released before.
            Busy: its last launch is unobserved; it stays live.
        """
        self._shared.begin()
        slot = self._slot
        if slot is None:
            raise Released(f"{self!r} was used after its release")
        if slot.flying:
            raise self._in_flight()
        self.end()

    def end(self) -> None:
        """Releases it with its context; only the model calls this."""
        slot, self._slot = self._slot, None
        if slot is None:
            return
        for guard in (*self._reads, *self._writes):
            guard.prepared -= 1
        slot.held = False
        # In flight, the slot goes to the pending event, which gives it back.
        if not slot.flying:
            self._scope.ring.give_back(slot)
            self._scope.destroy_if_unused()

    def __del__(self) -> None:
        """Gives the slot back, or leaves it to the event of its last launch."""
        if getattr(self, "_slot", None) is not None:
            self._shared.finalise(self.end)

    def __repr__(self) -> str:
        """The program and whether it is released."""
        end = ", released" if self._slot is None else ""
        return f"<Prepared {self._resolved.program!r}{end}>"

    def _refuse(self) -> NoReturn:
        self._shared.begin()
        if self._slot is None:
            raise Released(f"{self!r} was used after its release")
        self._shared.require_device("submit")
        raise self._in_flight()

    def _conflict(self) -> NoReturn:
        raise busy(self._resolved)

    def _in_flight(self) -> Busy:
        return Busy(
            f"the last launch of {self!r} is unobserved; poll or wait for its event"
        )


def busy(resolved: Resolved) -> Busy:
    """The error for a submission whose guards conflict with unobserved work."""
    position = conflict(resolved.reads, resolved.writes, resolved.order())
    what = f"{resolved.program!r}"
    if position is not None and position < len(resolved.listed):
        what = describe(resolved.program, resolved.listed[position])
    return Busy(
        f"{what} is in use by unobserved work, or mapped; poll or wait for its event, "
        "or leave the block of the view, first"
    )
