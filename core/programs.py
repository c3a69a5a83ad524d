"""Programs: lowered graphs that are loaded on a device."""

from __future__ import annotations

from typing import final

from tosavk.core.blocks import Releasing
from tosavk.core.device import LoadedProgram
from tosavk.core.errors import Busy, Released
from tosavk.core.guards import DEAD, Guard
from tosavk.core.plan import Slot, SlotRole
from tosavk.core.rules import Checked
from tosavk.core.scope import Scope


@final
class Program(Releasing):
    """A handle of a loaded program; made by `Context.load_program`.

    A context manager: see `core.blocks.Releasing`.
    """

    __slots__ = (
        "__weakref__",
        "_arena_bytes",
        "_checked",
        "_dispatch_count",
        "_guard",
        "_loaded",
        "_scope",
        "_slots",
    )

    def __init__(
        self, scope: Scope, loaded: LoadedProgram, checked: Checked | None
    ) -> None:
        """Takes a loaded program over; only the model calls this."""
        self._scope = scope
        self._checked = checked
        self._slots = tuple(s for s in loaded.slots if s.role is not SlotRole.CHECKED)
        self._dispatch_count = loaded.dispatch_count
        self._arena_bytes = loaded.arena_bytes
        self._guard = Guard()
        self._loaded: LoadedProgram | None = loaded
        scope.programs += 1
        scope.members.add(self)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The boundary tensors: inputs, then outputs."""
        return self._slots

    @property
    def dispatch_count(self) -> int:
        """Kernel launches of one submission."""
        return self._dispatch_count

    @property
    def arena_bytes(self) -> int:
        """Device bytes that the program retains for constants and intermediates."""
        return self._arena_bytes

    @property
    def is_released(self) -> bool:
        """Whether the handle has been released."""
        return self._loaded is None

    def release(self) -> None:
        """Unloads the program.

        Raises:
            Released: it has been released before.
            Busy: unobserved work or a prepared submission uses it; it stays live.
        """
        self._scope.shared.begin()
        if self._loaded is None:
            raise Released(f"{self!r} was used after its release")
        if self._guard.state:
            raise Busy(
                f"{self!r} cannot be released: {self._guard.state} submissions are "
                "unobserved; poll or wait for their events first"
            )
        if self._guard.prepared:
            raise Busy(
                f"{self!r} is named by {self._guard.prepared} prepared submissions; "
                "release those first"
            )
        self._free()

    def end(self) -> None:
        """Frees it with its context; only the model calls this."""
        if self._loaded is not None:
            self._free()

    def __del__(self) -> None:
        """Unloads the program, after the device is idle if it is in flight."""
        if getattr(self, "_loaded", None) is not None:
            self._scope.shared.finalise(self._bury)

    def __repr__(self) -> str:
        """Size and whether it is released."""
        end = ", released" if self._loaded is None else ""
        return (
            f"<Program of {len(self._slots)} slots, "
            f"{self._dispatch_count} dispatches{end}>"
        )

    def _free(self) -> None:
        loaded, self._loaded = self._loaded, None
        scope = self._scope
        self._guard.state |= DEAD
        scope.programs -= 1
        try:
            with scope.shared:
                try:
                    scope.ring.forget(self._guard)
                finally:
                    if loaded is not None:
                        loaded.free()
        finally:
            scope.destroy_if_unused()

    def _bury(self) -> None:
        if self._guard.state:
            shared = self._scope.shared
            if shared.blocked:
                shared.put_off(self._bury)
                return
            shared.wait_idle()
        if self._loaded is not None:
            self._free()
