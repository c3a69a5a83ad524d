"""Implementations that break one promise each must fail the contract at that promise."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import contract, toy
from tosavk import testing
from tosavk.backends.reference.device import ReferenceAllocation, ReferenceKit
from tosavk.core import bindings, buffers, contexts, events, imports, queues
from tosavk.core.accelerator import Accelerator
from tosavk.core.gates import GateState
from tosavk.core.prepared import Prepared
from tosavk.core.programs import Program
from tosavk.core.ring import Ring
from tosavk.core.scope import Scope
from tosavk.core.shared import LiveResources, Shared
from tosavk.core.views import View

FIXTURE = testing.standard_fixture()

# Flaw of the toy: the case that must fail, and a part of what it must say.
FLAWS: dict[str, tuple[str, str]] = {
    "a busy submission keeps its slot": (
        "guards.writer-excludes",
        "live resources after the refusal of an output that is being written",
    ),
    "a context goes before its children": (
        "handle.children-first",
        "the release of a context with a queue: expected Busy",
    ),
    "a failed allocation leaks": (
        "buffer.impossible-requests",
        "live resources after the refusal of an alignment of 2**62",
    ),
    "a failed load leaks": (
        "program.rejected-artifacts",
        "live resources after the refusal of an unknown format",
    ),
    "a released event keeps its slot": (
        "accounting.resource-lifecycle",
        "live resources after the event's release",
    ),
    "a write is lost": ("buffer.partial-transfers", "all bytes in HOST"),
    "accepts OUT_OF_BOUNDS": (
        "submission.binding-validation",
        "slot 0 beyond its buffer: expected OutOfBounds, got Incompatible",
    ),
    "access before duplicates": (
        "order.submissions",
        "duplicate slot before access: expected InvalidArgument, got Incompatible",
    ),
    "access is ignored": (
        "submission.binding-validation",
        "slot 0 with WRITE: expected Incompatible",
    ),
    "aliasing before bindings": (
        "order.submissions",
        "bounds before aliasing: expected OutOfBounds, got Incompatible",
    ),
    "aliasing is fine": (
        "submission.aliasing",
        "one buffer read and written in overlapping ranges: expected Incompatible",
    ),
    "alignment is a lie": ("memory.host", "dishonest"),
    "allocates any domain": (
        "memory.unavailable-domains",
        "a buffer in DEVICE: expected Unsupported",
    ),
    "allocations are too small on paper": ("memory.host", "dishonest"),
    "an empty list is Incompatible": (
        "submission.binding-validation",
        "an empty list: expected ResourceLimit, got Incompatible",
    ),
    "any format is TOSA": (
        "program.rejected-artifacts",
        "an unknown format: expected Unsupported",
    ),
    "any length is fine": (
        "submission.binding-validation",
        "a short range for slot 0: expected Incompatible",
    ),
    "any offset is fine": (
        "submission.lengths-and-offsets",
        "slot 0 with offset 1: expected Incompatible",
    ),
    "bounds are not checked": (
        "buffer.segmented-transfer-bounds",
        "a write past the end: expected OutOfBounds",
    ),
    "bounds are rounded up": (
        "buffer.segmented-transfer-bounds",
        "a write past the end: expected OutOfBounds",
    ),
    "bounds before length": (
        "order.transfers",
        "length before bounds in a write: expected InvalidArgument, got OutOfBounds",
    ),
    "bounds before usage": (
        "order.submissions",
        "usage before bounds: expected PermissionDenied, got OutOfBounds",
    ),
    "buffers in use can be released": (
        "guards.busy-until-observed",
        "the release of slot 0 in use, at once: expected Busy",
    ),
    "cancelled work keeps its buffers": (
        "event.cancellation-races",
        "unexpected Busy: in flight",
    ),
    "cancelling undoes the end": (
        "event.cancellation-races",
        "cancelled work ended as cancelled",
    ),
    "close forgets events": (
        "lifecycle.close-with-work",
        "work of a closed accelerator is pending",
    ),
    "close leaves contexts": (
        "lifecycle.close-ends-everything",
        "counts after the close",
    ),
    "copies through a bounce buffer": (
        "submission.copy-path-diagnostics",
        "staged copies of a submission in HOST: expected 0, got 8",
    ),
    "count before bindings": (
        "order.submissions",
        "bounds before a missing slot: expected OutOfBounds, got Incompatible",
    ),
    "dead handles are never uncounted": (
        "lifecycle.garbage-collection",
        "live resources after handles died (0)",
    ),
    "deadlines are Unsupported": (
        "timeout.finite-admission",
        "unexpected Unsupported: deadline",
    ),
    "domain before size": (
        "order.allocations",
        "the size before the domain: expected ResourceLimit, got Unsupported",
    ),
    "double release is fine": (
        "handle.double-release",
        "the second release of a prepared submission: expected InvalidArgument",
    ),
    "duplicates are fine": (
        "submission.binding-validation",
        "a slot bound twice: expected InvalidArgument, got Incompatible",
    ),
    "errors of ports are swallowed": (
        "buffer.failing-ports",
        "the error of a port was lost in a write",
    ),
    "flags are ignored": (
        "intent.reserved-flags",
        "a SECURE context: expected Unsupported",
    ),
    "foreign accelerators are fine": (
        "submission.foreign-accelerator",
        "a buffer of another accelerator: expected InvalidArgument",
    ),
    "foreign buffers are fine": (
        "submission.context-isolation",
        "a buffer of another context: expected InvalidArgument",
    ),
    "foreign programs are fine": (
        "submission.context-isolation",
        "a program of another context: expected InvalidArgument",
    ),
    "gates are ignored": (
        "event.pending-release-terminal-stability",
        "the release of a pending event: expected Busy",
    ),
    "guards after the latch": (
        "guards.released-before-latch",
        "unexpected Busy: in flight",
    ),
    "guards before permission": (
        "order.transfers",
        "permission before guards: expected PermissionDenied, got Busy",
    ),
    "guards before the ring": (
        "ring.exhaustion",
        "a submission with buffers in use, with a full ring: expected ResourceLimit, got Busy",
    ),
    "guards end with the work": (
        "guards.busy-until-observed",
        "a write to slot 0 in use, at once: expected Busy",
    ),
    "host memory is not host-visible": ("memory.host", "dishonest"),
    "info changes": ("metadata.stable-valid", "the second device info"),
    "info has a reserved capability": (
        "metadata.stable-valid",
        "the device info is not valid: device advertises reserved capabilities <Capabilities.SECURE_CONTEXTS",
    ),
    "info has a zero limit": (
        "metadata.stable-valid",
        "the device info is not valid: device limit max_queues_per_context must not be zero",
    ),
    "inputs are scribbled on": ("submission.list-order", "slot 0 after the run"),
    "limits hold for all contexts together": (
        "limits.buffers",
        "unexpected ResourceLimit: buffers",
    ),
    "list order has a meaning": ("submission.list-order", "slot 0 after the run"),
    "loss is not sticky": (
        "loss.sticky",
        "an allocation on a lost device: expected DeviceLost",
    ),
    "lost work stays pending": ("loss.sticky", "work of a lost device stays pending"),
    "missing slots are fine": (
        "submission.binding-validation",
        "no binding for slot 0: expected Incompatible",
    ),
    "no buffer limit": ("limits.buffers", "buffer 41: expected ResourceLimit"),
    "no context limit": ("limits.contexts", "context 5: expected ResourceLimit"),
    "no guards": (
        "guards.writer-excludes",
        "an output that is being written: expected Busy",
    ),
    "no ring limit": ("ring.exhaustion", "submission 9: expected ResourceLimit"),
    "offsets are ignored": (
        "submission.offset-bindings",
        "the HOST buffer round slot 1",
    ),
    "packed outputs fill their words": (
        "submission.packed-neighbours",
        "the HOST buffer round slot 2",
    ),
    "pending events can be released": (
        "event.pending-release-terminal-stability",
        "the release of a pending event: expected Busy",
    ),
    "polls count as transfers": ("event.polls-change-nothing", "totals after polls"),
    "prepared buffers can be released": (
        "prepared.ownership",
        "the release of a prepared buffer: expected Busy",
    ),
    "programs are not guarded": (
        "guards.busy-until-observed",
        "the unload of a program in use, at once: expected Busy",
    ),
    "programs in use can be released": (
        "guards.busy-until-observed",
        "the unload of a program in use, at once: expected Busy",
    ),
    "readers may be overwritten": (
        "guards.busy-until-observed",
        "a write to slot 0 in use, at once: expected Busy",
    ),
    "reads are never released": ("guards.readers-share", "unexpected Busy: in flight"),
    "reads before the size check": (
        "program.segmented-artifact-bounds",
        "a payload of 65537 bytes: expected ResourceLimit, got PortFault",
    ),
    "released contexts work": (
        "handle.use-after-release",
        "an allocation on a released context: expected InvalidArgument",
    ),
    "released handles work": (
        "handle.use-after-release",
        "a write after release: expected InvalidArgument",
    ),
    "resident_bytes is ignored": (
        "program.rejected-artifacts",
        "a bounded resident_bytes: expected ResourceLimit",
    ),
    "target words are ignored": (
        "program.rejected-artifacts",
        "foreign target words: expected Incompatible",
    ),
    "terminal states wear off": (
        "event.pending-release-terminal-stability",
        "a poll after COMPLETE: expected <EventState.COMPLETE",
    ),
    "transfers are counted twice": (
        "accounting.transfer-totals",
        "bytes counted by transfers: expected 38, got 46",
    ),
    "transfers in flight are fine": (
        "guards.busy-until-observed",
        "a write to slot 0 in use, at once: expected Busy",
    ),
    "usage is ignored": (
        "buffer.transfer-permissions",
        "a write without TRANSFER_DESTINATION: expected PermissionDenied",
    ),
    "work is forgotten": ("submission.binding-validation", "slot 1 after the run"),
    "writers do not wait for readers": (
        "guards.writer-excludes",
        "an input that is being read as an output: expected Busy",
    ),
    "writes are rounded to words": ("buffer.partial-transfers", "all bytes in HOST"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_found(flaw: str) -> None:
    name, message = FLAWS[flaw]
    broken = contract.toys(flaw)
    report = testing.run_contract(broken.make, FIXTURE, broken.hooks, only=[name])
    assert len(report.failed) == 1, report
    assert message in report.failed[0].message
    with pytest.raises(testing.ContractFailure, match=re.escape(name)):
        report.check()


def test_every_flaw_of_the_toy_is_tried() -> None:
    files = Path(toy.__file__).parent.glob("toy*.py")
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    built_in = set(re.findall(r'flaw (?:==|!=) "([^"]+)"', source))
    for listed in re.findall(r"flaw not in \{([^}]+)\}", source):
        built_in |= set(re.findall(r'"([^"]+)"', listed))
    assert set(FLAWS) == built_in
    assert len(FLAWS) > 70


def nothing(*args: Any, **named: Any) -> None:  # noqa: ANN401
    """Does nothing."""


def stale(resolved: Any, program: Any, listed: Any) -> None:  # noqa: ANN401
    """Recordings that do not depend on what is bound."""
    _INIT(resolved, program, listed)
    resolved.key = (program._guard,)


def first(self: object, offset: Any, nbytes: int) -> Any:  # noqa: ANN401
    """The offset, unchecked."""
    del self, nbytes
    return offset


def uncounted(self: object) -> LiveResources:
    """Zeros."""
    del self
    return LiveResources()


def shortened(self: Any, offset: int, data: Any) -> None:  # noqa: ANN401
    """Writes all bytes but the last."""
    _WRITE(self, offset, data[:-1])


def reversed_record(self: Any, program: Any, bound: Any, reuse: Any) -> Any:  # noqa: ANN401
    """Records the bindings in the wrong order."""
    return _RECORD(self, program, bound[::-1], reuse)


def launched_at_once(self: object, slot: Any, value: int) -> None:  # noqa: ANN401
    """Launches without the gate."""
    del self, value
    slot.recording.launch()


def unchecked_gate(shared: object, gate: Any, value: int) -> Any:  # noqa: ANN401
    """Takes any gate."""
    del shared
    return gate._state, value


def copied(self: Any, desc: Any, data: memoryview) -> Any:  # noqa: ANN401
    """A buffer of its own with the same bytes."""
    made = self.allocate(desc)
    made.write(0, data[: desc.nbytes])
    return made


_INIT: Callable[..., None] = bindings.Resolved.__init__
_WRITE: Callable[..., None] = ReferenceAllocation.write
_RECORD: Callable[..., Any] = ReferenceKit.record

# A promise of the real model, taken out: where, what instead, and the case to fail.
MUTANTS: dict[str, tuple[object, str, Callable[..., Any], str]] = {
    "guards are never dropped": (
        events,
        "drop",
        nothing,
        "guards.released-before-latch",
    ),
    "guards are never taken": (queues, "take", nothing, "guards.busy-until-observed"),
    "guards never conflict": (
        queues,
        "conflict",
        nothing,
        "guards.writer-excludes",
    ),
    "slots never come back": (Ring, "give_back", nothing, "ring.refusals-return-slots"),
    "a lost device is used on": (Shared, "require_device", nothing, "loss.sticky"),
    "written buffers may alias": (
        bindings,
        "_check_aliasing",
        nothing,
        "submission.aliasing",
    ),
    "any buffer may be asked for": (
        contexts,
        "validate_buffer_desc",
        nothing,
        "memory.unavailable-domains",
    ),
    "ranges are not checked": (
        buffers.Buffer,
        "_range",
        first,
        "buffer.segmented-transfer-bounds",
    ),
    "transfers do not look at guards": (
        buffers.Buffer,
        "_refuse_in_flight",
        nothing,
        "guards.readers-share",
    ),
    "dead buffers stay": (
        buffers.Buffer,
        "__del__",
        nothing,
        "lifecycle.garbage-collection",
    ),
    "dead events stay": (
        events.Event,
        "__del__",
        nothing,
        "lifecycle.garbage-collection",
    ),
    "dead programs stay": (
        Program,
        "__del__",
        nothing,
        "lifecycle.garbage-collection",
    ),
    "recordings are stale": (
        bindings.Resolved,
        "__init__",
        stale,
        "submission.repeated-runs",
    ),
    "prepared submissions never end": (Prepared, "end", nothing, "prepared.slots"),
    "closed contexts live on": (
        Scope,
        "close",
        nothing,
        "lifecycle.close-ends-everything",
    ),
    "nothing is counted": (
        Shared,
        "live",
        uncounted,
        "accounting.resource-lifecycle",
    ),
    "closing closes nothing": (
        Accelerator,
        "close",
        nothing,
        "lifecycle.close-ends-everything",
    ),
    "gates hold nothing back": (GateState, "launch", launched_at_once, "gate.holds"),
    "signals do not tell": (GateState, "raise_to", nothing, "gate.other-threads"),
    "any gate will do": (queues, "admit", unchecked_gate, "gate.refused"),
    "any thread will do": (Shared, "begin", nothing, "handle.one-thread"),
    "any memory can be imported": (
        imports,
        "_check_memory",
        nothing,
        "import.refused-memory",
    ),
    "imported memory is copied": (
        ReferenceKit,
        "import_memory",
        copied,
        "import.shared-bytes",
    ),
    "views do not end": (View, "close", nothing, "buffer.views"),
    "mapped buffers can be used": (
        buffers.Buffer,
        "_refuse_in_flight",
        nothing,
        "buffer.views",
    ),
    "the last byte is lost": (
        ReferenceAllocation,
        "write",
        shortened,
        "buffer.partial-transfers",
    ),
    "the device mixes its bindings up": (
        ReferenceKit,
        "record",
        reversed_record,
        "submission.binding-validation",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_model_is_found(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, instead, case = MUTANTS[mutant]
    whole = contract.reference()
    only = [case]
    sound = testing.run_contract(whole.make, FIXTURE, whole.hooks, only=only)
    assert not sound.failed, sound
    assert not sound.skipped, sound
    with monkeypatch.context() as patch:
        patch.setattr(where, name, instead)
        broken = testing.run_contract(whole.make, FIXTURE, whole.hooks, only=only)
    assert len(broken.failed) == 1, broken
