"""A scope: what a context shares with its children.

The children keep the scope alive, not the handle of the context; so the order in which
handles die has no meaning. The device objects go with the last of them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet

from tosavk.core.device import ContextKit
from tosavk.core.errors import DeviceLost, ModelError
from tosavk.core.ring import Ring
from tosavk.core.shared import Shared

SLICE_NS = 50_000_000
"""Longest uninterrupted wait in the driver, so that Ctrl-C is answered."""


class Member(Protocol):
    """A handle that must end with its context."""

    def end(self) -> None:
        """Gives everything back; the device is idle. Again is fine."""
        ...


class Scope:
    """The state behind a `Context` and its children.

    Args:
        shared: the accelerator's state.
        kit: the context's device objects; they belong to this object.

    Attributes:
        shared: the accelerator's state.
        kit: the context's device objects.
        ring: the submission slots.
        id: number of the context, for messages.
        buffers: live buffers.
        programs: live programs.
        queues: live queues.
        members: the live handles, but for events.
        orphaned: whether the context's handle is released or gone.
    """

    __slots__ = (
        "__weakref__",
        "buffers",
        "id",
        "kit",
        "members",
        "orphaned",
        "programs",
        "queues",
        "ring",
        "shared",
    )

    def __init__(self, shared: Shared, kit: ContextKit) -> None:
        """Takes the next number; the caller enters it in `shared.scopes`."""
        self.shared = shared
        self.kit = kit
        self.ring = Ring(shared.info.limits.max_events_per_context)
        self.id = shared.next_id
        self.buffers = 0
        self.programs = 0
        self.queues = 0
        self.members: WeakSet[Member] = WeakSet()
        self.orphaned = False
        shared.next_id += 1

    @property
    def children(self) -> int:
        """Live children of every kind."""
        return self.buffers + self.programs + self.queues + self.ring.used

    def describe_children(self) -> str:
        """The live children, for a message."""
        counts = {
            "buffers": self.buffers,
            "programs": self.programs,
            "queues": self.queues,
            "events or prepared submissions": self.ring.used,
        }
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)

    def abandon(self) -> None:
        """Notes that the context's handle is gone."""
        self.orphaned = True
        self.destroy_if_unused()

    def destroy_if_unused(self) -> None:
        """Destroys the device objects once neither handle nor children need them."""
        shared = self.shared
        if not self.orphaned or self.children or self.id not in shared.scopes:
            return
        del shared.scopes[self.id]
        try:
            with shared:
                try:
                    if self.ring.condemned:
                        shared.wait_idle()
                    self.ring.clear()
                finally:
                    self.kit.free()
        finally:
            shared.close_if_unused()

    def close(self) -> None:
        """Ends the context with everything in it, when its work has ended.

        Handles of it are released; pending events observe how their work ended.
        """
        shared = self.shared
        if self.id not in shared.scopes:
            return
        failure = self._quiesce()
        shared.wait_idle()
        with shared:
            if failure is not None and not shared.poisoned and self._all_ended():
                failure = None  # the wait had failed, not the work
            self.ring.clear(failure)
        with ExitStack() as stack:
            stack.callback(self._destroy)
            for member in list(self.members):
                stack.callback(member.end)

    def _destroy(self) -> None:
        shared = self.shared
        self.orphaned = True
        if self.id in shared.scopes:
            del shared.scopes[self.id]
            with shared:
                self.kit.free()

    def _all_ended(self) -> bool:
        try:
            return all(
                slot.recording is not None and slot.recording.poll()
                for slot in self.ring.flying()
            )
        except ModelError:
            return False

    def _quiesce(self) -> DeviceLost | None:
        """Waits in steps until all launches have ended, or cannot be waited for."""
        try:
            with self.shared:
                for slot in self.ring.flying():
                    recording = slot.recording
                    while recording is not None and not recording.wait(SLICE_NS):
                        self.shared.require_device("wait for the work of a context")
        except DeviceLost as error:
            return error.with_traceback(None)
        except ModelError as error:
            return DeviceLost(f"the wait for the work of a context failed: {error}")
        return None
