"""Rules about values that only a submission brings.

Some operands that are usually constants (zero points, shifts, multipliers) may be
computed or given at run time, and TOSA forbids some of their values. A program that has
such operands gives them in further slots, which the model binds to memory of its own;
when the end of a submission is observed, the rules are applied to what lies there. A
submission that breaks one has FAILED. Source: docs/accelerator.md, "Values"; ADR 0009.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tosavk.core.device import BoundSlot
from tosavk.core.dtypes import unpack
from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import SlotRole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosavk.core.device import (
        Allocation,
        DeviceGate,
        GatedRecording,
        Lowered,
        Recording,
    )
    from tosavk.core.plan import Slot


class ValueRules(Protocol):
    """What is forbidden about some of a program's values."""

    def check(self, values: Mapping[str, NDArray[np.generic]]) -> None:
        """Applies the rules to values by tensor name.

        Raises:
            InvalidArgument: an operator must not be given such a value.
        """
        ...


class RuleBrokenError(Exception):
    """Tells the event of a launch that its values break a rule; users never see it.

    Attributes:
        fault: what they see.
    """

    def __init__(self, fault: InvalidArgument) -> None:
        """Carries what is to be told."""
        super().__init__(str(fault))
        self.fault = fault


class Checked:
    """The slots of a program that rules are about.

    Attributes:
        slots: the checked slots, which come last in the plan.
        rules: the rules.
        nbytes: bytes of memory that hold all of them.
    """

    __slots__ = ("_places", "nbytes", "rules", "slots")

    def __init__(
        self, slots: Sequence[Slot], rules: ValueRules, *, alignment: int
    ) -> None:
        """Gives every slot a place.

        Args:
            slots: the checked slots.
            rules: the rules about them.
            alignment: what offsets must be multiples of.
        """
        self.slots = tuple(slots)
        self.rules = rules
        self._places: list[int] = []
        end = 0
        for slot in self.slots:
            self._places.append(end)
            end += -(-slot.nbytes // alignment) * alignment
        self.nbytes = end

    @classmethod
    def of(cls, lowered: Lowered, *, alignment: int) -> Checked | None:
        """What is checked of a lowered program, if anything.

        Raises:
            InvalidArgument: it has checked slots, but no rules.
        """
        slots = [s for s in lowered.plan.slots if s.role is SlotRole.CHECKED]
        if not slots:
            return None
        rules = getattr(lowered, "rules", None)
        if rules is None:
            raise InvalidArgument(
                f"slot {slots[0].index} ({slots[0].name!r}) is to be checked, but the "
                "lowered program has no rules"
            )
        return cls(slots, cast("ValueRules", rules), alignment=alignment)

    def bound(self, room: Allocation) -> list[BoundSlot]:
        """The slots, bound to `nbytes` of memory."""
        return [
            BoundSlot(room, place, slot.nbytes)
            for slot, place in zip(self.slots, self._places, strict=True)
        ]

    def fault(self, raw: bytearray) -> InvalidArgument | None:
        """The rule that the bytes of all slots break, if any."""
        values: dict[str, NDArray[np.generic]] = {}
        for slot, place in zip(self.slots, self._places, strict=True):
            data = memoryview(raw)[place : place + slot.nbytes]
            values[slot.name] = unpack(slot.dtype, data, slot.shape)
        try:
            self.rules.check(values)
        except InvalidArgument as error:
            return error.with_traceback(None)
        return None


class CheckedRecording:
    """A recording of a program with checked slots; a `core.device.GatedRecording`.

    Args:
        inner: the device's recording; it belongs to this object.
        checked: what is checked.
        room: the memory that the checked slots are bound to; it belongs to this object.
    """

    __slots__ = ("_checked", "_raw", "inner", "room")

    def __init__(self, inner: Recording, checked: Checked, room: Allocation) -> None:
        """Takes a recording and the memory of its checked slots over."""
        self.inner = inner
        self.room = room
        self._checked = checked
        self._raw: bytearray | None = None

    def launch(self) -> None:
        """Launches; see `core.device.Recording`."""
        self._raw = None
        self.inner.launch()

    def launch_after(self, gate: DeviceGate, value: int) -> None:
        """Launches behind a gate; see `core.device.GatedRecording`."""
        self._raw = None
        cast("GatedRecording", self.inner).launch_after(gate, value)

    def poll(self) -> bool:
        """Whether the last launch is complete, and its values are read."""
        return self.inner.poll() and self._read()

    def wait(self, timeout_ns: int) -> bool:
        """Waits at most `timeout_ns` for the launch, and reads its values."""
        return self.inner.wait(timeout_ns) and self._read()

    def fault(self) -> InvalidArgument | None:
        """The rule that the last launch breaks, if it is complete and breaks one."""
        return None if self._raw is None else self._checked.fault(self._raw)

    def retire(self) -> None:
        """Makes it launchable again.

        Raises:
            RuleBrokenError: the last launch broke a rule; it is launchable all the same.
        """
        self.inner.retire()
        fault = self.fault()
        if fault is not None:
            raise RuleBrokenError(fault)

    def free(self) -> None:
        """Gives the recording and the memory back."""
        try:
            self.inner.free()
        finally:
            self.room.free()

    def _read(self) -> bool:
        if self._raw is None:
            raw = bytearray(self._checked.nbytes)
            self.room.read(0, memoryview(raw))
            self._raw = raw
        return True


def fault_of(recording: Recording | None) -> InvalidArgument | None:
    """The rule that the last, complete launch of any recording breaks, if it does."""
    return recording.fault() if isinstance(recording, CheckedRecording) else None
