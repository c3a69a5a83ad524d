"""What the contract suite cannot do through the model alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from tosavk.core.descriptors import Binding
from tosavk.core.errors import Unsupported
from tosavk.core.shared import LiveResources
from tosavk.testing.protocols import AcceleratorHandle, EventHandle, Gate

PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Running totals of an accelerator.

    Attributes:
        direct: bindings of accepted submissions that named the exact allocation.
        staged: bytes or bindings that a submission copied on the way; must stay 0.
        explicit: bytes moved by reads and writes that succeeded.
    """

    direct: int
    staged: int
    explicit: int


def wait_for(event: EventHandle) -> None:
    """Waits for the end of a submission, at most `PATIENCE_S` seconds."""
    event.wait(PATIENCE_S)


def live_resources(accelerator: AcceleratorHandle) -> LiveResources:
    """The counts of an accelerator that has `live_resources`."""
    return cast(LiveResources, accelerator.live_resources())  # type: ignore[attr-defined]  # optional


class HostGate:
    """A gate of an accelerator that has `create_gate`, at value 1."""

    def __init__(self, accelerator: Any) -> None:  # noqa: ANN401 - not in the protocol
        """Makes it.

        Raises:
            Unsupported: the backend has none after all.
        """
        self._gate: Any = accelerator.create_gate()
        self._signal: Any = self._gate.signal()

    def submit(
        self,
        queue: Any,  # noqa: ANN401 - of any implementation
        program: Any,  # noqa: ANN401 - of any implementation
        bindings: Iterable[Binding],
    ) -> EventHandle:
        """Submits work that waits for the gate."""
        return cast(EventHandle, queue.submit_after(program, bindings, self._gate, 1))

    def open(self) -> None:
        """Raises the gate."""
        self._signal.raise_to(1)

    def close(self) -> None:
        """Releases the gate."""
        self._gate.release()


def host_gate(accelerator: AcceleratorHandle) -> Gate | None:
    """The accelerator's own gates, where it has any."""
    if not hasattr(accelerator, "create_gate"):
        return None
    try:
        return HostGate(accelerator)
    except Unsupported:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """How the suite looks at and acts on an implementation from outside.

    Attributes:
        complete: brings a pending event to its end, within reasonable time.
        counts: what is live on an accelerator; None skips the cases that only count.
        diagnostics: totals of an accelerator, or None.
        gate: makes a `Gate`, with which pending work can be tested for certain, or says
            None. Without one, a case only checks what holds whether or not the work has
            ended. By default the gates of the model are used.
        lose: makes the device of an accelerator be lost, or be found lost by the next
            submission.
        alignment: bytes that offsets of bindings must be a multiple of.
        one_thread: whether handles belong to the thread that made the accelerator.
    """

    complete: Callable[[EventHandle], None] = wait_for
    counts: Callable[[AcceleratorHandle], LiveResources] | None = live_resources
    diagnostics: Callable[[AcceleratorHandle], Diagnostics] | None = None
    gate: Callable[[AcceleratorHandle], Gate | None] | None = host_gate
    lose: Callable[[AcceleratorHandle], None] | None = None
    alignment: int = 256
    one_thread: bool = True
