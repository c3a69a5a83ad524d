"""The ring: a context's slots for submissions, handed out last in, first out.

A slot remembers its last recording, so that submitting the same program with the same
bindings again records nothing. Source: docs/accelerator.md, "The ring".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tosavk.core.errors import DeviceLost, ResourceLimit
from tosavk.core.rules import RuleBrokenError, fault_of

if TYPE_CHECKING:
    from tosavk.core.device import Recording
    from tosavk.core.errors import InvalidArgument
    from tosavk.core.guards import Guard


class Gatekeeper(Protocol):
    """What a launch waits for before it starts."""

    def landed(self, slot: RingSlot) -> None:
        """Notes that nothing of a slot's launch waits any more."""
        ...


class RingSlot:
    """Room for one submission.

    Attributes:
        index: position in the ring.
        recording: the last recording made in this slot, if it is still there.
        key: what `recording` records: guards and offsets in slot order; None if it must
            not be launched again.
        reads: guards that a launch takes for reading, the program's among them.
        writes: guards that a launch takes for writing.
        flying: whether a launch has not been observed to end.
        held: whether a `Prepared` owns the slot; else the event that uses it does.
        gate: what the launch waits for before it starts, until it has ended.
    """

    __slots__ = (
        "flying",
        "gate",
        "held",
        "index",
        "key",
        "reads",
        "recording",
        "writes",
    )

    def __init__(self, index: int) -> None:
        """An empty slot."""
        self.index = index
        self.recording: Recording | None = None
        self.key: tuple[object, ...] | None = None
        self.reads: tuple[Guard, ...] = ()
        self.writes: tuple[Guard, ...] = ()
        self.flying = False
        self.held = False
        self.gate: Gatekeeper | None = None


class Ended:
    """Stands for the recording of a launch that outlived its context.

    Args:
        error: how the device was lost, or None if the launch is complete.
        fault: the rule about values that it broke, or None.
    """

    __slots__ = ("_error", "_fault")

    def __init__(
        self, error: DeviceLost | None, fault: InvalidArgument | None = None
    ) -> None:
        """Remembers the outcome."""
        self._error = error
        self._fault = fault

    def launch(self) -> None:
        """Never called: its slot is never handed out again.

        Raises:
            DeviceLost: always.
        """
        raise DeviceLost("the context of this recording is closed")

    def poll(self) -> bool:
        """The outcome.

        Raises:
            DeviceLost: the device was lost.
        """
        if self._error is not None:
            raise self._error
        return True

    def wait(self, timeout_ns: int) -> bool:
        """The outcome, at once.

        Raises:
            DeviceLost: the device was lost.
        """
        del timeout_ns
        return self.poll()

    def retire(self) -> None:
        """Nothing is left to do.

        Raises:
            RuleBrokenError: the launch broke a rule about values.
        """
        if self._fault is not None:
            raise RuleBrokenError(self._fault)

    def free(self) -> None:
        """Nothing is left to free."""


class Ring:
    """The slots of one context.

    Args:
        depth: how many slots there are.
    """

    __slots__ = ("_condemned", "_free", "_slots")

    def __init__(self, depth: int) -> None:
        """A ring of `depth` free slots; slot 0 is handed out first."""
        self._slots = tuple(RingSlot(index) for index in range(depth))
        self._free = list(reversed(self._slots))
        self._condemned: list[Recording] = []

    @property
    def used(self) -> int:
        """Slots that live events and prepared submissions own."""
        return len(self._slots) - len(self._free)

    @property
    def condemned(self) -> bool:
        """Whether there are recordings whose last launch may still run."""
        return bool(self._condemned)

    def acquire(self) -> RingSlot:
        """The slot that came back last.

        Raises:
            ResourceLimit: all slots are in use.
        """
        if not self._free:
            raise ResourceLimit(
                f"all {len(self._slots)} submission slots of this context are in use; "
                "release events that have ended, or prepared submissions"
            )
        return self._free.pop()

    def give_back(self, slot: RingSlot) -> None:
        """Takes a slot back; its recording stays for the next time."""
        self._free.append(slot)

    def condemn(self, slot: RingSlot) -> None:
        """Sets a slot's recording aside until the device is idle for good."""
        slot.key = None
        if slot.recording is not None:
            self._condemned.append(slot.recording)
            slot.recording = None

    def forget(self, guard: Guard) -> None:
        """Frees idle recordings that name the buffer or program of `guard`."""
        for slot in self._slots:
            key = slot.key
            if key is not None and not slot.flying and guard in key:
                slot.key = None
                recording, slot.recording = slot.recording, None
                if recording is not None:
                    recording.free()

    def flying(self) -> list[RingSlot]:
        """Slots with a launch that nobody has observed to end."""
        return [slot for slot in self._slots if slot.flying]

    def clear(self, error: DeviceLost | None = None) -> None:
        """Frees every recording; nothing runs any more.

        Pending events will observe that their work is complete, or failed by `error` or
        by the values that it has computed.
        """
        while self._condemned:
            self._condemned.pop().free()
        for slot in self._slots:
            slot.key = None
            recording = slot.recording
            slot.recording = None
            if slot.flying:
                fault = fault_of(recording) if error is None else None
                slot.recording = Ended(error, fault)
            if recording is not None:
                recording.free()
