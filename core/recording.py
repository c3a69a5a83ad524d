"""Recording a submission into a slot of the ring."""

# The classes of the model are friends: they use each other's private attributes.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence

from tosavk.core.bindings import Resolved
from tosavk.core.descriptors import BufferDesc, BufferUsage, MemoryDomain
from tosavk.core.device import Allocation, BoundSlot, LoadedProgram, Recording
from tosavk.core.errors import Incompatible, Unsupported
from tosavk.core.imports import accepted
from tosavk.core.ring import RingSlot
from tosavk.core.rules import Checked, CheckedRecording
from tosavk.core.scope import Scope

_DOMAINS = (MemoryDomain.HOST, MemoryDomain.SHARED, MemoryDomain.DEVICE)
_USAGE = BufferUsage.TRANSFER_SOURCE | BufferUsage.PROGRAM_OUTPUT


def record(
    scope: Scope, slot: RingSlot, loaded: LoadedProgram, resolved: Resolved
) -> Recording:
    """Records bindings into a slot, over what it held before.

    Raises:
        ModelError: the device refused; the slot's old recording cannot be launched.
    """
    slot.key = None
    checked = resolved.program._checked
    with scope.shared:
        recording = _record(scope, loaded, resolved.bound(), checked, slot.recording)
    slot.recording = recording
    slot.key = resolved.key
    return recording


def _record(
    scope: Scope,
    loaded: LoadedProgram,
    bound: Sequence[BoundSlot],
    checked: Checked | None,
    reuse: Recording | None,
) -> Recording:
    """A recording, with memory of its own for what is checked about it."""
    old: Allocation | None = None
    if isinstance(reuse, CheckedRecording):
        old = reuse.room
        reuse = reuse.inner
    if checked is None:
        made: Recording = scope.kit.record(loaded, bound, reuse)
    else:
        room = _allocate(scope, checked.nbytes)
        try:
            inner = scope.kit.record(loaded, [*bound, *checked.bound(room)], reuse)
        except BaseException:
            room.free()
            raise
        made = CheckedRecording(inner, checked, room)
    if old is not None:
        old.free()
    return made


def _allocate(scope: Scope, nbytes: int) -> Allocation:
    """Memory that programs write and the host reads; mapped, if there is such.

    Raises:
        ModelError: there is none.
    """
    offered = scope.shared.info.domains
    refused: Incompatible | None = None
    for domain in _DOMAINS:
        if domain not in offered:
            continue
        desc = BufferDesc(nbytes, _USAGE, domain=domain)
        try:
            return accepted(desc, scope.kit.allocate(desc))
        except Incompatible as error:  # the host sees it, but programs do not
            refused = error
    raise refused or Unsupported("the device offers no memory domain")
