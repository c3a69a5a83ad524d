"""What the contract suite cannot do through the model alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

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
    return cast(LiveResources, accelerator.live_resources())  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """How the suite looks at and acts on an implementation from outside.

    Attributes:
        complete: brings a pending event to its end, within reasonable time.
        counts: what is live on an accelerator; None skips the cases that only count.
        diagnostics: totals of an accelerator, or None.
        gate: makes a `Gate`, with which pending work can be tested for certain. Without
            one, a case only checks what holds whether or not the work has ended.
        lose: makes the device of an accelerator be lost, or be found lost by the next
            submission.
        alignment: bytes that offsets of bindings must be a multiple of.
    """

    complete: Callable[[EventHandle], None] = wait_for
    counts: Callable[[AcceleratorHandle], LiveResources] | None = live_resources
    diagnostics: Callable[[AcceleratorHandle], Diagnostics] | None = None
    gate: Callable[[AcceleratorHandle], Gate] | None = None
    lose: Callable[[AcceleratorHandle], None] | None = None
    alignment: int = 256
