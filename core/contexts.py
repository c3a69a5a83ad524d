"""Contexts: isolated sets of buffers, programs, queues and submissions.

Source: docs/accelerator.md, "Order of checks".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self, final

from tosavk.core.bindings import resolve
from tosavk.core.buffers import Buffer
from tosavk.core.checks import validate_buffer_desc
from tosavk.core.descriptors import (
    FORMAT_NVFP4,
    FORMAT_TOSA,
    RESIDENT_UNBOUNDED,
    Artifact,
    Binding,
    BufferDesc,
    QueueDesc,
)
from tosavk.core.device import Lowered
from tosavk.core.errors import (
    Busy,
    OutOfMemory,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.imports import accepted, import_memory, require_room
from tosavk.core.prepared import Prepared
from tosavk.core.programs import Program
from tosavk.core.queues import Queue, live_program
from tosavk.core.recording import record
from tosavk.core.rules import Checked
from tosavk.core.scope import Scope
from tosavk.core.shared import Shared


@final
class Context:
    """A handle of a context; made by `Accelerator.create_context`.

    A context manager: leaving the block closes it with everything in it. If the block is
    left by an exception while work waits for an unraised gate, the context is only
    given up: it goes with its last child, or when the accelerator is closed.
    """

    __slots__ = ("__weakref__", "_id", "_scope")

    def __init__(self, scope: Scope) -> None:
        """Takes a scope over; only the model calls this."""
        self._scope: Scope | None = scope
        self._id = scope.id
        scope.members.add(self)

    @property
    def is_released(self) -> bool:
        """Whether the handle has been released."""
        return self._scope is None

    def allocate_buffer(self, desc: BufferDesc) -> Buffer:
        """Allocates a buffer.

        Raises:
            Released: the context is released.
            ResourceLimit: too large, too many buffers, or the memory is not aligned as
                asked.
            Unsupported: the device does not offer the memory domain.
            DeviceLost: the device is lost.
            Incompatible: the memory of this domain cannot hold such a buffer.
            OutOfMemory: the driver has no memory left.
        """
        scope, shared = self._begin()
        validate_buffer_desc(shared.info, desc)
        shared.require_device("allocate a buffer")
        require_room(scope)
        with shared:
            allocation = accepted(desc, scope.kit.allocate(desc))
        return Buffer(scope, desc, allocation)

    def import_host_buffer(self, desc: BufferDesc, data: object) -> Buffer:
        """Makes memory of the host a buffer: the device uses it where it lies.

        The buffer keeps `data` alive; what can be resized or closed (a bytearray, an
        mmap) refuses that until the buffer is released. While work is in flight, the
        host stores nothing that it reads and reads nothing that it writes; but inputs
        of work behind a gate may be stored until the raise. The memory must be ordinary
        memory of the process, not a mapping of a device or, on some drivers, of a file.

        Args:
            desc: of the domain HOST or SHARED; it may be smaller than `data`.
            data: a writable, C-contiguous object with the buffer protocol; address and
                size are multiples of `Accelerator.host_import_alignment`.

        Raises:
            Released: the context is released.
            ResourceLimit: too large, too many buffers, or not aligned as `desc` asks.
            Unsupported: the device cannot import, or not into this domain.
            DeviceLost: the device is lost.
            InvalidArgument: read-only, not aligned, too small, or no bytes at all.
            Incompatible: no memory type takes this memory.
            ModelError: the driver refused it.
        """
        scope, _ = self._begin()
        return Buffer(scope, desc, import_memory(scope, desc, data))

    def load_program(self, source: Lowered | Artifact) -> Program:
        """Loads a program.

        Args:
            source: a lowered program, or an artifact, which is lowered first.

        Raises:
            Released: the context is released.
            ResourceLimit: the artifact is too large, authorises a bounded
                `resident_bytes`, or needs more than the device has; too many programs.
            DeviceLost: the device is lost.
            OutOfMemory: no memory to gather the payload or for the program.
            Unsupported: unknown artifact format, or something in the program that is
                not supported.
            Incompatible: the artifact is for another target.
            InvalidArgument: the artifact is malformed.
        """
        scope, shared = self._begin()
        limits = shared.info.limits
        if isinstance(source, Artifact):
            if source.payload_bytes > limits.max_artifact_bytes:
                raise ResourceLimit(
                    f"artifact of {source.payload_bytes} bytes exceeds "
                    f"max_artifact_bytes = {limits.max_artifact_bytes}"
                )
            if source.resident_bytes != RESIDENT_UNBOUNDED:
                raise ResourceLimit(
                    f"resident_bytes = {source.resident_bytes} cannot be kept: no "
                    "driver tells what its pipelines retain; authorise "
                    "RESIDENT_UNBOUNDED"
                )
        shared.require_device("load a program")
        if scope.programs >= limits.max_programs_per_context:
            raise ResourceLimit(
                f"context {scope.id} has {scope.programs} programs, which is "
                "max_programs_per_context; release one"
            )
        with shared:
            lowered = _lower(shared, source) if isinstance(source, Artifact) else source
            _require_plan(shared, lowered)
            checked = Checked.of(lowered, alignment=shared.binding_alignment)
            slots = len(lowered.plan.slots) - len(checked.slots if checked else ())
            if slots > limits.max_bindings_per_submission:
                raise ResourceLimit(
                    f"the program has {slots} slots, more than "
                    "max_bindings_per_submission = "
                    f"{limits.max_bindings_per_submission}"
                )
            loaded = scope.kit.load(lowered)
        return Program(scope, loaded, checked)

    def create_queue(self, desc: QueueDesc | None = None) -> Queue:
        """Creates a queue.

        Raises:
            Released: the context is released.
            Unsupported: any flag is set.
            DeviceLost: the device is lost.
            ResourceLimit: too many queues.
        """
        scope, shared = self._begin()
        if desc is not None and desc.flags:
            raise Unsupported(f"queue flags {desc.flags!r} are not supported")
        shared.require_device("create a queue")
        limit = shared.info.limits.max_queues_per_context
        if scope.queues >= limit:
            raise ResourceLimit(
                f"context {scope.id} has {limit} queues, which is "
                "max_queues_per_context; release one"
            )
        return Queue(scope)

    def prepare(self, program: Program, bindings: Iterable[Binding]) -> Prepared:
        """Validates and records a submission that is launched many times.

        Nothing is submitted and no buffer is taken; `Prepared.submit` does that. It owns
        one of the `max_events_per_context` slots until its release.

        Args:
            program: a program of this context.
            bindings: one for each slot, in any order.

        Raises:
            Released: context, program or a buffer is released.
            DeviceLost: the device is lost.
            ResourceLimit: no bindings, too many, or no free slot in the ring.
            InvalidArgument: objects of different contexts, or a slot bound twice.
            PermissionDenied: the buffer's usage does not allow the access.
            OutOfBounds: a range leaves its buffer.
            Incompatible: the bindings do not fit the program.
            ModelError: the device refused to record.
        """
        scope, shared = self._begin()
        loaded = live_program(program)
        shared.require_device("prepare a submission")
        resolved = resolve(scope, program, tuple(bindings))
        slot = scope.ring.acquire()
        recording = slot.recording if slot.key == resolved.key else None
        if recording is None:
            try:
                recording = record(scope, slot, loaded, resolved)
            except BaseException:
                scope.ring.give_back(slot)
                raise
        slot.reads = resolved.reads
        slot.writes = resolved.writes
        return Prepared(scope, slot, resolved, recording)

    def release(self) -> None:
        """Destroys the context.

        Raises:
            Released: it has been released before.
            Busy: children live; release them first. The context stays live.
        """
        scope, _ = self._begin()
        if scope.children:
            raise Busy(
                f"context {scope.id} still has {scope.describe_children()}; "
                "release them first"
            )
        self._abandon()

    def close(self) -> None:
        """Waits for the context's work and ends everything in it; again is fine.

        Its handles are released by this; pending events observe how their work ended.
        """
        scope = self._scope
        if scope is not None:
            scope.shared.begin()
            scope.close()

    def end(self) -> None:
        """Notes that the context is closed; only the model calls this."""
        self._scope = None

    def __enter__(self) -> Self:
        """The context itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the context, or gives it up."""
        scope = self._scope
        if scope is None or scope.shared.forked:
            return
        if error is not None and scope.shared.blocked:
            self._abandon()
        else:
            self.close()

    def __del__(self) -> None:
        """Leaves the context to its children, or destroys it."""
        scope = getattr(self, "_scope", None)
        if scope is not None:
            scope.shared.finalise(self._abandon)

    def __repr__(self) -> str:
        """Number and whether it is released."""
        end = ", released" if self._scope is None else ""
        return f"<Context {self._id}{end}>"

    def _begin(self) -> tuple[Scope, Shared]:
        scope = self._scope
        if scope is None:
            raise Released(f"{self!r} was used after its release")
        scope.shared.begin()
        return scope, scope.shared

    def _abandon(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.abandon()


def _require_plan(shared: Shared, lowered: Lowered) -> None:
    """Refuses programs that a plan alone does not describe."""
    flow = getattr(lowered, "flow", None)
    if flow is None:
        return
    # Rules about values inside of regions are steps of the flow.
    if flow.checks or not getattr(shared.device, "evaluates_graphs", False):
        raise Unsupported(
            "a program with control flow or variables is several submissions that the "
            "host chooses; load it with tosavk.load, not into a context"
        )


def _lower(shared: Shared, artifact: Artifact) -> Lowered:
    try:
        payload = artifact.view()
    except MemoryError:
        raise OutOfMemory(
            f"no host memory to gather an artifact of {artifact.payload_bytes} bytes"
        ) from None
    if artifact.format not in {FORMAT_TOSA, FORMAT_NVFP4}:
        raise Unsupported(
            f"artifact format {artifact.format:#010x} is unknown; "
            f"TOSA {FORMAT_TOSA:#010x} and NVFP4 {FORMAT_NVFP4:#010x} are supported"
        )
    return shared.device.lower(replace(artifact, payload=payload))
