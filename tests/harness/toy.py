"""A second implementation of the Accelerator model, small, slow and breakable.

It shares no code with `core`'s handles, guards and rings: it keeps sets of users instead
of counters. With a `flaw` it breaks one promise, at the place where the promise is kept;
the contract suite must find every one of `FLAWS`. It evaluates graphs with NumPy, ends
work at the second look, cancels events, can be gated, and can be lost.
"""

# Doubles of handles take whatever they are given.
# ruff: noqa: ANN401

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from harness.toy_buffers import ToyBuffer
from harness.toy_checks import (
    LIMITS,
    resolve,
)
from harness.toy_work import ToyPrepared, ToyProgram, ToyQueue
from tosavk.backends.reference.device import GraphProgram, ReferenceDevice
from tosavk.core.checks import validate_buffer_desc
from tosavk.core.descriptors import (
    FORMAT_TOSA,
    RESIDENT_UNBOUNDED,
    Artifact,
    Binding,
    BufferDesc,
    Capabilities,
    ContextDesc,
    DeviceIdentity,
    DeviceInfo,
    QueueDesc,
)
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.shared import LiveResources

CAPABILITIES = (
    Capabilities.HOST_VISIBLE_MEMORY
    | Capabilities.SHARED_MEMORY
    | Capabilities.EVENT_CANCELLATION
)


class ToyAccelerator:
    """The device and its contexts.

    Args:
        flaw: one of `FLAWS`, or "" for none.
    """

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        self.lost = False
        self.closed = False
        self.gated = False
        self.direct = self.staged = self.explicit = 0
        self.contexts: weakref.WeakSet[ToyContext] = weakref.WeakSet()
        self.live_contexts = 0
        self._asked = 0

    @property
    def info(self) -> DeviceInfo:
        self._asked += 1
        limits, capabilities = LIMITS, CAPABILITIES
        if self.flaw == "info changes" and self._asked > 1:
            limits = replace(LIMITS, max_buffer_bytes=LIMITS.max_buffer_bytes + 4)
        if self.flaw == "info has a zero limit":
            limits = replace(LIMITS, max_queues_per_context=0)
        if self.flaw == "info has a reserved capability":
            capabilities |= Capabilities.SECURE_CONTEXTS
        return DeviceInfo(DeviceIdentity(bytes(16)), limits, capabilities)

    def live_resources(self) -> LiveResources:
        contexts = list(self.contexts)
        return LiveResources(
            self.live_contexts,
            sum(len(c.buffers) + c.ghosts for c in contexts),
            sum(len(c.programs) for c in contexts),
            sum(c.queues for c in contexts),
            sum(c.used for c in contexts),
        )

    def require(self, what: str) -> None:
        if self.lost and not (self.flaw == "loss is not sticky" and what == "allocate"):
            raise DeviceLost(f"cannot {what}: lost")

    def create_context(self, desc: ContextDesc | None = None) -> ToyContext:
        if self.closed:
            raise Released("closed")
        if desc is not None and desc.flags and self.flaw != "flags are ignored":
            raise Unsupported("flags")
        self.require("create a context")
        if (
            self.live_contexts >= LIMITS.max_contexts
            and self.flaw != "no context limit"
        ):
            raise ResourceLimit("contexts")
        made = ToyContext(self)
        self.contexts.add(made)
        self.live_contexts += 1
        return made

    def close(self) -> None:
        self.closed = True
        self.gated = False
        for context in list(self.contexts):
            context.close()
            if self.flaw != "close leaves contexts":
                self.drop(context)

    def drop(self, context: ToyContext) -> None:
        if not context.gone:
            context.gone = True
            self.live_contexts -= 1


class ToyContext:
    """Buffers, programs, queues and slots."""

    def __init__(self, accelerator: ToyAccelerator) -> None:
        self.accelerator = accelerator
        self.flaw = accelerator.flaw
        self.buffers: set[int] = set()
        self.programs: set[int] = set()
        self.queues = 0
        self.used = 0
        self.ghosts = 0
        self.released = False
        self.gone = False
        self.handles: weakref.WeakSet[Any] = weakref.WeakSet()

    def check(self) -> None:
        if self.released and self.flaw != "released contexts work":
            raise Released("context")

    def allocate_buffer(self, desc: BufferDesc) -> ToyBuffer:
        self.check()
        if self.flaw == "allocates any domain":
            info = self.accelerator.info
            wide = replace(info, capabilities=info.capabilities | Capabilities(2))
            validate_buffer_desc(wide, desc)
        elif self.flaw == "domain before size":
            validate_buffer_desc(self.accelerator.info, replace(desc, nbytes=1))
            validate_buffer_desc(self.accelerator.info, desc)
        else:
            validate_buffer_desc(self.accelerator.info, desc)
        self.accelerator.require("allocate")
        count = len(self.buffers)
        if self.flaw == "limits hold for all contexts together":
            count = sum(len(c.buffers) for c in self.accelerator.contexts)
        if count >= LIMITS.max_buffers_per_context and self.flaw != "no buffer limit":
            raise ResourceLimit("buffers")
        if desc.alignment > 1 << 20:
            if self.flaw == "a failed allocation leaks":
                self.ghosts += 1
            raise ResourceLimit("alignment")
        return ToyBuffer(self, desc)

    def load_program(self, source: Artifact) -> ToyProgram:
        self.check()
        if self.flaw == "reads before the size check":
            source.view()
        if source.payload_bytes > LIMITS.max_artifact_bytes:
            raise ResourceLimit("payload")
        bounded = source.resident_bytes != RESIDENT_UNBOUNDED
        if bounded and self.flaw != "resident_bytes is ignored":
            raise ResourceLimit("resident_bytes")
        self.accelerator.require("load")
        if len(self.programs) >= LIMITS.max_programs_per_context:
            raise ResourceLimit("programs")
        number = 0
        if self.flaw == "a failed load leaks":
            number = -len(self.programs) - 1
            self.programs.add(number)
        payload = bytes(source.view())
        artifact = replace(source, payload=payload)
        if source.format != FORMAT_TOSA and self.flaw == "any format is TOSA":
            artifact = replace(artifact, format=FORMAT_TOSA)
        if self.flaw == "target words are ignored":
            words = (FORMAT_TOSA, 1, 1, 0, 0, 2, 1, 0, 0, 0, 0, 0)
            artifact = replace(artifact, target=words)
        graph = ReferenceDevice().lower(artifact)
        if not isinstance(graph, GraphProgram):
            raise Unsupported("a toy runs TOSA only")
        self.programs.discard(number)
        return ToyProgram(self, graph)

    def create_queue(self, desc: QueueDesc | None = None) -> ToyQueue:
        self.check()
        if desc is not None and desc.flags:
            raise Unsupported("flags")
        self.accelerator.require("create a queue")
        if self.queues >= LIMITS.max_queues_per_context:
            raise ResourceLimit("queues")
        return ToyQueue(self)

    def prepare(self, program: ToyProgram, bindings: Iterable[Binding]) -> ToyPrepared:
        self.check()
        listed = tuple(bindings)
        resolve(self, program, listed)
        if self.used >= LIMITS.max_events_per_context:
            raise ResourceLimit("ring")
        return ToyPrepared(self, program, listed)

    def release(self) -> None:
        if self.released:
            raise Released("context")
        children = self.buffers or self.programs or self.queues or self.used
        if children and self.flaw != "a context goes before its children":
            raise Busy("children")
        self.released = True
        self.accelerator.drop(self)

    def close(self) -> None:
        for handle in list(self.handles):
            handle.end()
        self.released = True

    def __del__(self) -> None:
        self.accelerator.drop(self)


class ToyGate:
    """Holds everything back."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = cast(ToyAccelerator, accelerator)
        self._accelerator.gated = True

    def submit(self, queue: Any, program: Any, bindings: Iterable[Binding]) -> Any:
        return queue.submit(program, bindings)

    def open(self) -> None:
        self._accelerator.gated = False

    def close(self) -> None:
        pass


def lose(accelerator: Any) -> None:
    """Loses a toy."""
    cast(ToyAccelerator, accelerator).lost = True
