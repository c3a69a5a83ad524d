"""Bindings: the checks that join a program with buffers, in the documented order.

Source: docs/accelerator.md, "Order of checks", submit 3 to 7.
"""

# The classes of the model are friends: they use each other's private attributes.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from tosavk.core.buffers import Buffer
from tosavk.core.descriptors import AccessMode, Binding
from tosavk.core.device import Allocation, BoundSlot
from tosavk.core.errors import (
    Incompatible,
    InvalidArgument,
    OutOfBounds,
    PermissionDenied,
    Released,
    ResourceLimit,
)
from tosavk.core.guards import Guard
from tosavk.core.plan import Slot, SlotRole
from tosavk.core.programs import Program
from tosavk.core.scope import Scope


class Resolved:
    """Bindings that fit their program.

    Args:
        program: the program.
        listed: its bindings as the caller listed them, checked.

    Attributes:
        program: the program.
        listed: the bindings in the caller's order.
        key: what a recording of them depends on: guards and offsets in slot order.
        reads: guards that a launch takes for reading, each once.
        writes: guards that a launch takes for writing.
        keep: handles that must live while the work is pending.
    """

    __slots__ = ("_ordered", "keep", "key", "listed", "program", "reads", "writes")

    def __init__(self, program: Program, listed: tuple[Binding, ...]) -> None:
        """Sorts the bindings by slot and collects their guards."""
        self.program = program
        self.listed = listed
        self._ordered = sorted(listed, key=lambda binding: binding.slot)
        key: list[object] = [program._guard]
        # A buffer that several slots read is taken once: its guard stands for them all.
        reads: dict[Guard, None] = {program._guard: None}
        writes: list[Guard] = []
        for binding in self._ordered:
            guard = binding.buffer._guard
            key += (guard, binding.range.offset)
            if binding.access is AccessMode.READ:
                reads[guard] = None
            else:
                writes.append(guard)
        self.key = tuple(key)
        self.reads = tuple(reads)
        self.writes = tuple(writes)
        self.keep = (program, *(binding.buffer for binding in listed))

    def bound(self) -> tuple[BoundSlot, ...]:
        """The memory of every slot, in slot order."""
        return tuple(
            BoundSlot(_allocation(b.buffer), b.range.offset, b.range.nbytes)
            for b in self._ordered
        )

    def order(self) -> tuple[Guard, ...]:
        """The buffers' guards in the caller's order."""
        return tuple(binding.buffer._guard for binding in self.listed)


def resolve(scope: Scope, program: Program, bindings: tuple[Binding, ...]) -> Resolved:
    """Checks bindings against a program, in the documented order.

    Args:
        scope: the context of the queue, or the one that prepares.
        program: a live program.
        bindings: in the caller's order.

    Raises:
        ResourceLimit: no binding, or too many.
        InvalidArgument: the program or a buffer is of another context; a slot twice;
            something that is no binding or no buffer.
        Released: a buffer is released.
        PermissionDenied: the buffer's usage does not allow the access.
        OutOfBounds: the range leaves the buffer.
        Incompatible: an unknown slot, wrong access, wrong length or offset, a slot
            without binding, or a written buffer that is bound twice.
    """
    limit = scope.shared.info.limits.max_bindings_per_submission
    if not bindings:
        raise ResourceLimit("a submission needs at least one binding")
    if len(bindings) > limit:
        raise ResourceLimit(
            f"{len(bindings)} bindings exceed max_bindings_per_submission = {limit}"
        )
    if program._scope is not scope:
        raise InvalidArgument(
            f"{program!r} belongs to another context ({program._scope.id}, "
            f"not {scope.id} of this submission)"
        )
    slots = program.slots
    seen: set[int] = set()
    for binding in bindings:
        _check_type(binding)
        slot = _check_binding(scope, binding, slots, seen)
        seen.add(slot.index)
    if len(bindings) != len(slots):
        missing = ", ".join(
            f"{s.index} ({s.name!r})" for s in slots if s.index not in seen
        )
        raise Incompatible(f"{program!r}: no binding for slot {missing}")
    _check_aliasing(bindings)
    return Resolved(program, bindings)


def describe(program: Program, binding: Binding) -> str:
    """A binding, for a message."""
    name = ""
    if binding.slot < len(program.slots):
        name = f" ({program.slots[binding.slot].name!r})"
    return f"slot {binding.slot}{name}: {binding.buffer!r}"


def _check_type(binding: object) -> None:
    if not isinstance(binding, Binding) or not _is_buffer(binding.buffer):
        raise InvalidArgument(f"not a binding of a buffer: {binding!r}")


def _is_buffer(value: object) -> bool:
    return isinstance(value, Buffer)


def _check_binding(
    scope: Scope, binding: Binding, slots: tuple[Slot, ...], seen: set[int]
) -> Slot:
    number, buffer, extent = binding.slot, binding.buffer, binding.range
    if buffer.is_released:
        raise Released(f"slot {number}: {buffer!r} was used after its release")
    if buffer._scope is not scope:
        raise InvalidArgument(
            f"slot {number}: {buffer!r} belongs to another context "
            f"({buffer._scope.id}, not {scope.id} of this submission)"
        )
    if not buffer.desc.usage.allows(binding.access):
        raise PermissionDenied(
            f"slot {number}: usage {buffer.desc.usage!r} of {buffer!r} does not allow "
            f"{binding.access.name}"
        )
    if extent.end > buffer.desc.nbytes:
        raise OutOfBounds(
            f"slot {number}: bytes {extent.offset}..{extent.end} leave {buffer!r}"
        )
    if number >= len(slots):
        raise Incompatible(f"slot {number} is unknown; the program has {len(slots)}")
    slot = slots[number]
    if number in seen:
        raise InvalidArgument(f"slot {number} ({slot.name!r}) is bound twice")
    wanted = AccessMode.READ if slot.role is SlotRole.INPUT else AccessMode.WRITE
    if binding.access is not wanted:
        raise Incompatible(
            f"slot {number} ({slot.name!r}) is an {slot.role.value} and takes "
            f"{wanted.name}, got {binding.access.name}"
        )
    if extent.nbytes != slot.nbytes:
        raise Incompatible(
            f"slot {number} ({slot.name!r}) takes exactly {slot.nbytes} bytes, "
            f"got {extent.nbytes}"
        )
    alignment = scope.shared.binding_alignment
    if extent.offset % alignment:
        raise Incompatible(
            f"slot {number} ({slot.name!r}): offset {extent.offset} is no multiple of "
            f"{alignment}, which this device asks for"
        )
    return slot


def _check_aliasing(bindings: tuple[Binding, ...]) -> None:
    written = {
        id(b.buffer): b.slot for b in bindings if b.access is not AccessMode.READ
    }
    for binding in bindings:
        other = written.get(id(binding.buffer), binding.slot)
        if other != binding.slot:
            raise Incompatible(
                f"{binding.buffer!r} is bound to slots {binding.slot} and {other} and "
                "written; use a buffer of its own for each output"
            )


def _allocation(buffer: Buffer) -> Allocation:
    allocation = buffer._allocation
    if allocation is None:
        raise Released(f"{buffer!r} was used after its release")
    return allocation
