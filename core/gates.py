"""Host gates: counters that the host raises and that submissions wait for.

The owner submits work behind a gate before its inputs are there; whoever produces them,
in any thread, raises the gate when they are. Source: docs/accelerator.md, "Gates".
"""

# The classes of the model are friends: they use each other's private attributes.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from threading import RLock, get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast, final

from tosavk.core import logs
from tosavk.core.descriptors import U64_MAX, unsigned
from tosavk.core.device import DeviceGate, GatedRecording
from tosavk.core.errors import (
    DeviceLost,
    InvalidArgument,
    ModelError,
    Released,
    ResourceLimit,
)

if TYPE_CHECKING:
    from tosavk.core.ring import RingSlot
    from tosavk.core.shared import Shared

MAX_STEPS = 1024
"""A raise may take so many steps where the device limits how far one step goes."""


class GateState:
    """What a gate, its signals and the work behind it share.

    Args:
        shared: the accelerator's state.
        device: the device's counter, at 0; it belongs to this object.

    Attributes:
        raised: the counter.
        awaited: the largest value that accepted work has named.
        closed: whether the gate is gone; then it holds nothing back.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_flights",
        "_freed",
        "_lock",
        "_raiser",
        "_shared",
        "_tainted",
        "awaited",
        "closed",
        "raised",
    )

    def __init__(self, shared: Shared, device: DeviceGate) -> None:
        """Takes the device's counter over."""
        self._shared = shared
        self._device = device
        # Reentrant: a signal handler may raise while it interrupts a raise.
        self._lock = RLock()
        self._raiser = 0
        self._flights: dict[RingSlot, int] = {}
        self._freed = False
        self._tainted = False
        self.raised = 0
        self.awaited = 0
        self.closed = False
        shared.gates.add(self)

    @property
    def shared(self) -> Shared:
        """The accelerator's state."""
        return self._shared

    @property
    def blocking(self) -> bool:
        """Whether unobserved work waits for a value that has not been reached."""
        return any(value > self.raised for value in tuple(self._flights.values()))

    @property
    def raising(self) -> bool:
        """Whether the caller is inside `raise_to`, as a finaliser may be."""
        return self._raiser == get_ident()

    def raise_to(self, value: int) -> bool:
        """See `GateSignal.raise_to`."""
        value = unsigned("gate value", value)
        # In a forked process the lock may be held by a thread that is not there.
        if self._shared.forked:
            raise self._shared.wrong_thread()
        with self._lock:
            if self.closed:
                return False
            outer, self._raiser = self._raiser, get_ident()
            try:
                self._check_raise(value)
                self._step_to(value)
            finally:
                self._raiser = outer
        return True

    def check_wait(self, value: int) -> None:
        """Refuses a wait for a value that is too far away for the device.

        Raises:
            ResourceLimit: see `Queue.submit_after`.
        """
        most = self._device.max_difference
        values = tuple(self._flights.values())
        low = min((self.raised, *values))
        high = max((self.raised, *values))
        if max(high - value, value - low) > most:
            raise ResourceLimit(
                f"gate value {value}: the gate is at {self.raised} and unobserved work "
                f"awaits {low} to {high}; this device allows differences up to {most} "
                "(maxTimelineSemaphoreValueDifference): use smaller steps, or observe "
                "earlier work first"
            )

    def launch(self, slot: RingSlot, value: int) -> None:
        """Launches the recording of a slot behind the gate.

        Raises:
            ModelError: as `core.device.GatedRecording.launch_after`.
        """
        recording = cast(GatedRecording, slot.recording)
        with self._lock:
            self._flights[slot] = value
            slot.gate = self
        recording.launch_after(self._device, value)
        self.awaited = max(self.awaited, value)

    def landed(self, slot: RingSlot) -> None:
        """Notes that nothing of a slot's launch waits any more."""
        with self._lock:
            self._flights.pop(slot, None)
        # On a lost device, work that counts as failed may still be under way.
        self._tainted |= self._shared.poisoned
        if self.closed:
            self._free_if_unused()

    def release(self) -> None:
        """Ends the gate: nothing waits for it, and it waits for nothing.

        Raises:
            ModelError: the device refused to let the waiting work go; the gate stays.
        """
        with self._lock:
            if self.closed:
                return
            try:
                self._step_to(max((self.awaited, *self._flights.values())))
            except DeviceLost as error:
                # Unlike a raise, this is a call of the owner.
                self._shared.lost = True
                logs.debug("tosavk", "%s", error)
            self.closed = True
        self._free_if_unused()

    def shut(self) -> None:
        """Ends the gate for certain, since everything else ends; never raises."""
        for _ in range(2):  # the driver may fail once, for want of memory
            try:
                self.release()
            except ModelError as error:
                logs.debug("tosavk", "%s", error)
            else:
                return
        # What waits will never run: the device is of no use any more.
        self._shared.lost = True
        self.closed = True

    def free(self) -> None:
        """Destroys the device's counter; nothing waits for it."""
        if not self._freed:
            self._freed = True
            self._shared.gates.discard(self)
            with self._shared:
                self._device.free()
            self._shared.close_if_unused()

    def _free_if_unused(self) -> None:
        if not self._flights and not self._tainted:
            self.free()

    def _check_raise(self, value: int) -> None:
        most = self._device.max_difference
        if most >= U64_MAX or value <= self.raised:
            return
        low = min((self.raised, *self._flights.values()))
        if self._flights and value - low > most:
            raise ResourceLimit(
                f"gate value {value}: unobserved work awaits {low}, and this device "
                f"allows differences up to {most} (maxTimelineSemaphoreValueDifference)"
                ": observe that work first, or raise less"
            )
        if value - self.raised > most * MAX_STEPS:
            raise ResourceLimit(
                f"gate value {value} is more than {MAX_STEPS} steps of {most} "
                f"(maxTimelineSemaphoreValueDifference) above {self.raised}"
            )

    def _step_to(self, value: int) -> None:
        while self.raised < value and not self._freed:
            step = min(value, self.raised + self._device.max_difference)
            self._device.signal(step)
            self.raised = step


@final
class GateSignal:
    """Raises a gate, from any thread; made by `Gate.signal`.

    It may be shared and copied freely. It does not keep the gate: when that is gone,
    raising does nothing.
    """

    __slots__ = ("_state",)

    def __init__(self, state: GateState) -> None:
        """A signal of a gate; only the model calls this."""
        self._state = state

    def raise_to(self, value: int) -> bool:
        """Raises the gate to at least `value`: work that waits for less may start.

        What this thread has stored to memory before is seen by that work.

        Args:
            value: an unsigned 64-bit number. Raises may come in any order; a value that
                has been reached before has no effect.

        Returns:
            Whether the gate still exists.

        Raises:
            InvalidArgument: no such number.
            ResourceLimit: too large a step for the device.
            WrongProcess: the process was forked from the accelerator's.
            ModelError: the device refused; what is told is not noted as the device's
                loss. The gate is at a value below `value`.
        """
        return self._state.raise_to(value)

    def __repr__(self) -> str:
        """How far the gate has been raised, and whether it is gone."""
        return f"<GateSignal at {self._state.raised}{_end(self._state)}>"


@final
class Gate:
    """A handle of a gate; made by `Accelerator.create_gate`.

    It starts at 0 and only goes up. A context manager: leaving the block releases it.
    """

    __slots__ = ("__weakref__", "_released", "_state")

    def __init__(self, state: GateState) -> None:
        """Takes a gate over; only the model calls this."""
        self._state = state
        self._released = False

    @property
    def raised(self) -> int:
        """The value that the gate has reached."""
        return self._state.raised

    @property
    def awaited(self) -> int:
        """The largest value that accepted work has waited for."""
        return self._state.awaited

    @property
    def is_released(self) -> bool:
        """Whether the handle has been released, or its accelerator closed."""
        return self._released or self._state.closed

    def signal(self) -> GateSignal:
        """A handle that raises the gate, for other threads.

        Raises:
            Released: the gate is released.
        """
        self._state.shared.begin()
        return GateSignal(live_gate(self))

    def release(self) -> None:
        """Ends the gate. Work that still waits for it is let go, as if it was raised.

        Nothing is waited for, neither that work nor another gate.

        Raises:
            Released: it has been released before.
            ModelError: the device refused to let the work go; the gate stays live.
        """
        self._state.shared.begin()
        live_gate(self)
        self._state.release()
        self._released = True

    def __enter__(self) -> Self:
        """The gate itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases the gate unless that has been done."""
        if not self.is_released and not self._state.shared.forked:
            self.release()

    def __del__(self) -> None:
        """Ends the gate and lets the work behind it go."""
        state = getattr(self, "_state", None)
        if state is not None and not self._released and not state.closed:
            state.shared.finalise(self._bury)

    def __repr__(self) -> str:
        """Where it is, and whether it is released."""
        return f"<Gate at {self.raised}, awaited {self.awaited}{_end(self._state)}>"

    def _bury(self) -> None:
        if self._state.raising:
            # The collector ran inside a raise of this very gate.
            self._state.shared.put_off(self._bury)
        else:
            self._state.shut()


def live_gate(gate: object) -> GateState:
    """The state of a live gate.

    Raises:
        InvalidArgument: it is no gate.
        Released: it is released.
    """
    if not isinstance(gate, Gate):
        raise InvalidArgument(f"not a gate: {gate!r}")
    if gate.is_released:
        raise Released(f"{gate!r} was used after its release")
    return gate._state


def admit(shared: Shared, gate: object, value: int) -> tuple[GateState, int]:
    """Checks the gate and value of a submission.

    Raises:
        InvalidArgument: no gate, one of another accelerator, or no such value.
        Released: the gate is released.
    """
    state = live_gate(gate)
    if state.shared is not shared:
        raise InvalidArgument(f"{gate!r} belongs to another accelerator")
    return state, unsigned("gate value", value)


def _end(state: GateState) -> str:
    return ", released" if state.closed else ""
