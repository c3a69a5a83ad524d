"""What the toy of `harness.toy` checks and takes when work is submitted to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tosavk.core.descriptors import AccessMode, Binding, DeviceLimits
from tosavk.core.errors import (
    Busy,
    Incompatible,
    InvalidArgument,
    OutOfBounds,
    PermissionDenied,
    ResourceLimit,
)
from tosavk.core.plan import SlotRole

if TYPE_CHECKING:
    from harness.toy import ToyContext
    from harness.toy_buffers import ToyBuffer
    from harness.toy_work import ToyProgram

LIMITS = DeviceLimits(
    max_buffer_bytes=1 << 16,
    max_contexts=4,
    max_buffers_per_context=40,
    max_programs_per_context=5,
    max_queues_per_context=3,
    max_events_per_context=8,
    max_bindings_per_submission=12,
    max_artifact_bytes=1 << 16,
)
ALIGNMENT = 16


def buffer_of(place: Binding) -> ToyBuffer:
    """The toy's buffer of a binding."""
    return cast("ToyBuffer", cast(Any, place.buffer))


class Taken:
    """The guards of one submission."""

    def __init__(self, program: ToyProgram, listed: tuple[Binding, ...]) -> None:
        self.program = program
        self.listed = listed


def take(program: ToyProgram, listed: tuple[Binding, ...]) -> Taken:
    taken = Taken(program, listed)
    for place in listed:
        buffer = buffer_of(place)
        in_use = buffer.writers
        if place.access is not AccessMode.READ:
            in_use = in_use | buffer.readers
            if buffer.flaw == "writers do not wait for readers":
                in_use = buffer.writers
        if in_use and buffer.flaw != "no guards":
            raise Busy("in use")
    for place in listed:
        buffer = buffer_of(place)
        users = buffer.readers if place.access is AccessMode.READ else buffer.writers
        users.add(taken)
    if program.flaw != "programs are not guarded":
        program.users.add(taken)
    return taken


def drop(taken: Taken) -> None:
    taken.program.users.discard(taken)
    for place in taken.listed:
        if taken.program.flaw == "reads are never released":
            buffer_of(place).writers.discard(taken)
            continue
        buffer_of(place).readers.discard(taken)
        buffer_of(place).writers.discard(taken)


def resolve(
    context: ToyContext, program: ToyProgram, listed: tuple[Binding, ...]
) -> None:
    """The checks of a submission's list, in the documented order."""
    flaw = context.flaw
    if not listed:
        if flaw == "an empty list is Incompatible":
            raise Incompatible("empty")
        raise ResourceLimit("empty")
    if len(listed) > LIMITS.max_bindings_per_submission:
        raise ResourceLimit("too many")
    if flaw == "count before bindings" and len(listed) != len(program.slots):
        raise Incompatible("count")
    if program.context is not context and flaw != "foreign programs are fine":
        raise InvalidArgument("program of another context")
    if flaw == "aliasing before bindings":
        _alias(listed)
    seen: set[int] = set()
    for place in listed:
        _check(context, program, place, seen)
        seen.add(place.slot)
    if len(listed) != len(program.slots) and flaw != "missing slots are fine":
        raise Incompatible("count")
    if flaw != "aliasing is fine":
        _alias(listed)


def _alias(listed: tuple[Binding, ...]) -> None:
    for place in listed:
        for other in listed:
            same = other is not place and other.buffer is place.buffer
            if same and place.access is not AccessMode.READ:
                raise Incompatible("aliasing")


def _check(
    context: ToyContext, program: ToyProgram, place: Binding, seen: set[int]
) -> None:
    flaw = context.flaw
    buffer, slots = buffer_of(place), program.slots
    buffer.check()

    def bounds() -> None:
        if place.range.end > len(buffer.data) and flaw != "accepts OUT_OF_BOUNDS":
            raise OutOfBounds("range")

    if buffer.context is not context and flaw != "foreign buffers are fine":
        if flaw != "foreign accelerators are fine":
            raise InvalidArgument("buffer of another context")
        if buffer.context.accelerator is context.accelerator:
            raise InvalidArgument("buffer of another context")
    if flaw == "bounds before usage":
        bounds()
    if not buffer.desc.usage.allows(place.access) and flaw != "usage is ignored":
        raise PermissionDenied("usage")
    bounds()
    if place.slot >= len(slots):
        raise Incompatible("unknown slot")
    slot = slots[place.slot]
    wanted = AccessMode.READ if slot.role is SlotRole.INPUT else AccessMode.WRITE
    wrong = place.access is not wanted and flaw != "access is ignored"
    if wrong and flaw == "access before duplicates":
        raise Incompatible("access")
    if place.slot in seen and flaw != "duplicates are fine":
        raise InvalidArgument("duplicate")
    if wrong:
        raise Incompatible("access")
    if place.range.nbytes != slot.nbytes and flaw != "any length is fine":
        raise Incompatible("length")
    if place.range.offset % ALIGNMENT and flaw != "any offset is fine":
        raise Incompatible("offset")
