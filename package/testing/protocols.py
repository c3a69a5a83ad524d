"""What the contract suite uses of an implementation of the Accelerator model.

`tosavk.core` has one implementation; anything else of this shape can be tested too.
Requests, errors and states are the values of `tosavk.core.descriptors` and
`tosavk.core.errors`. Handles go in as `Any`: each implementation takes its own only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tosavk.core.descriptors import (
    Artifact,
    Binding,
    BufferDesc,
    BufferInfo,
    ContextDesc,
    DeviceInfo,
    EventState,
    QueueDesc,
    Timeout,
)
from tosavk.core.shared import LiveResources


class Handle(Protocol):
    """Something that is released once."""

    def release(self) -> None:
        """Gives it back; raises Busy, and stays live, while it is in use."""
        ...


class BufferHandle(Handle, Protocol):
    """A buffer."""

    @property
    def info(self) -> BufferInfo:
        """What was allocated."""
        ...

    def write(self, offset: int, data: Any) -> None:  # noqa: ANN401 - bytes or a port
        """Copies bytes into the buffer."""
        ...

    def read(self, offset: int, nbytes: int) -> bytes:
        """Copies bytes out of the buffer."""
        ...

    def read_into(self, offset: int, out: Any) -> None:  # noqa: ANN401 - as write
        """Fills `out` with bytes of the buffer."""
        ...


class ProgramHandle(Handle, Protocol):
    """A loaded program."""


class EventHandle(Handle, Protocol):
    """A submission."""

    @property
    def error(self) -> Exception | None:
        """Why it failed, once FAILED has been seen."""
        ...

    def poll(self) -> EventState:
        """The state, without blocking."""
        ...

    def wait(self, timeout_s: float | None = None) -> EventState:
        """The state when it ends, or when the time is over."""
        ...


class QueueHandle(Handle, Protocol):
    """A queue."""

    def submit(
        self,
        program: Any,  # noqa: ANN401 - see the module
        bindings: Iterable[Binding],
        *,
        timeout: Timeout | None = None,
    ) -> EventHandle:
        """Runs a program on bound buffers; never blocks."""
        ...


class ContextHandle(Handle, Protocol):
    """A context."""

    def allocate_buffer(self, desc: BufferDesc) -> BufferHandle:
        """Allocates a buffer."""
        ...

    def load_program(self, source: Artifact) -> ProgramHandle:
        """Loads a program."""
        ...

    def create_queue(self, desc: QueueDesc | None = None) -> QueueHandle:
        """Creates a queue."""
        ...


class AcceleratorHandle(Protocol):
    """An open device."""

    @property
    def info(self) -> DeviceInfo:
        """What the device tells of itself."""
        ...

    def create_context(self, desc: ContextDesc | None = None) -> ContextHandle:
        """Creates a context."""
        ...

    def close(self) -> None:
        """Ends everything on it."""
        ...


class PreparedHandle(Handle, Protocol):
    """A prepared submission, where contexts have a method `prepare`."""

    def submit(self) -> EventHandle:
        """Launches it once more."""
        ...


class CancellingEvent(EventHandle, Protocol):
    """An event of a device with EVENT_CANCELLATION."""

    def cancel(self) -> None:
        """Asks for an early end; no promise that it comes."""
        ...


class Gate(Protocol):
    """Holds submissions back, so that they are pending for certain."""

    def submit(
        self,
        queue: Any,  # noqa: ANN401 - see the module
        program: Any,  # noqa: ANN401 - see the module
        bindings: Iterable[Binding],
    ) -> EventHandle:
        """Submits work that cannot end before `open`; must not block."""
        ...

    def open(self) -> None:
        """Lets the work go on; again is fine."""
        ...

    def close(self) -> None:
        """Gives back what the gate is made of; it is open."""
        ...


Factory = Callable[[], AcceleratorHandle]
"""Makes a fresh accelerator; every case gets its own, and closes it."""

Counts = LiveResources
