"""What all handles of one accelerator share: the device, its loss, and the counts.

Handles keep it alive; it closes the device when the accelerator and the last context
are gone, in whatever order that happens. What is still open when the interpreter exits
is ended then (`process`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from tosavk.core.device import DEFAULT_BINDING_ALIGNMENT, Device
from tosavk.core.errors import DeviceLost, WrongProcess, WrongThread
from tosavk.core.process import NOBODY, guard, release

if TYPE_CHECKING:
    from tosavk.core.scope import Scope


@dataclass(frozen=True, slots=True)
class LiveResources:
    """Counts of what is live on an accelerator.

    Attributes:
        contexts: contexts, also those whose handle is gone but whose children live.
        buffers: buffers.
        programs: programs.
        queues: queues.
        events: slots of the rings in use: events and prepared submissions.
        gates: gates, also released ones that unobserved work has waited for.
    """

    contexts: int = 0
    buffers: int = 0
    programs: int = 0
    queues: int = 0
    events: int = 0
    gates: int = 0


class OpenGate(Protocol):
    """A gate, as far as this module is concerned."""

    @property
    def blocking(self) -> bool:
        """Whether unobserved work waits for a value that has not been reached."""
        ...

    def shut(self) -> None:
        """Ends it and lets go what waits; never raises."""
        ...

    def free(self) -> None:
        """Gives its device object back."""
        ...


class Shared:
    """The state behind an `Accelerator` and everything made from it.

    It is also a context manager around calls into the device, which notices a lost
    device and keeps finalisers out of the call.

    Args:
        device: an open device; from now on it belongs to this object.

    Attributes:
        device: the device.
        info: what it told of itself at open.
        binding_alignment: bytes that offsets of bindings must be a multiple of.
        lost: whether a device call answered DeviceLost; sticky.
        admissions: bindings of all accepted submissions.
        transferred: bytes moved by reads and writes that succeeded.
        scopes: the live contexts by id.
        gates: the gates whose device objects live.
        leases: memory of released buffers that arrays of a mapped view still show.
        owner: the thread that all handles belong to, or NOBODY after a fork.
        next_id: id of the next context.
        orphaned: whether the accelerator's handle is closed or gone.
        closed: whether the device is closed.
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_graveyard",
        "admissions",
        "binding_alignment",
        "closed",
        "device",
        "gates",
        "info",
        "leases",
        "lost",
        "next_id",
        "orphaned",
        "owner",
        "scopes",
        "transferred",
    )

    def __init__(self, device: Device) -> None:
        """Takes an open device over."""
        self.device = device
        self.info = device.info
        self.binding_alignment = int(
            getattr(device, "binding_alignment", DEFAULT_BINDING_ALIGNMENT)
        )
        self.lost = False
        self.admissions = 0
        self.transferred = 0
        self.scopes: dict[int, Scope] = {}
        self.gates: set[OpenGate] = set()
        self.leases = 0
        self.next_id = 1
        self.orphaned = False
        self.closed = False
        self.owner = get_ident()
        self._calls = 0
        self._graveyard: deque[Callable[[], None]] = deque()
        guard(self)

    @property
    def poisoned(self) -> bool:
        """Whether the device is lost; sticky."""
        return self.lost or self.device.poisoned

    def require_device(self, what: str) -> None:
        """Refuses `what` on a lost device.

        Raises:
            DeviceLost: the device is lost.
        """
        if self.lost or self.device.poisoned:
            raise DeviceLost(
                f"cannot {what}: the device was lost; discard this accelerator and "
                "open a new one"
            )

    def live(self) -> LiveResources:
        """Counts of what is live."""
        scopes = self.scopes.values()
        return LiveResources(
            contexts=len(scopes),
            buffers=sum(s.buffers for s in scopes),
            programs=sum(s.programs for s in scopes),
            queues=sum(s.queues for s in scopes),
            events=sum(s.ring.used for s in scopes),
            gates=len(self.gates),
        )

    @property
    def blocked(self) -> bool:
        """Whether accepted work waits for a gate that has not been raised."""
        return any(gate.blocking for gate in self.gates)

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked process, which must not be used."""
        return self.owner == NOBODY

    @property
    def busy(self) -> bool:
        """Whether a call into the device is under way."""
        return self._calls > 0

    def begin(self) -> None:
        """Starts a call of the owner: buries what died at a bad moment.

        Raises:
            WrongThread: the caller is not the owner.
        """
        if get_ident() != self.owner:
            raise self.wrong_thread()
        if self._graveyard and not self._calls:
            self._tidy()

    def wrong_thread(self) -> WrongThread:
        """The error for a call of somebody who is not the owner."""
        if self.owner == NOBODY:
            return WrongProcess(
                "the accelerator was opened before this process was forked and belongs "
                "to the parent process (or the interpreter exits); open a new one here"
            )
        return WrongThread(
            f"the accelerator belongs to thread {self.owner}, this is thread "
            f"{get_ident()}; use its handles in the thread that opened it (only "
            "GateSignal.raise_to may be called anywhere), or open one for this thread"
        )

    def put_off(self, bury: Callable[[], None]) -> None:
        """Leaves a clean-up to a later call of the owner."""
        self._graveyard.append(bury)

    def finalise(
        self, bury: Callable[[], None], *, ident: Callable[[], int] = get_ident
    ) -> None:
        """Runs the clean-up of a handle that died unreleased.

        It runs at once, or at the owner's next call when this is another thread (the
        garbage collector runs wherever it likes) or the inside of a device call.

        Args:
            bury: the clean-up.
            ident: bound early, since modules lose their names while the interpreter
                exits.
        """
        if self._calls or ident() != self.owner:
            self._graveyard.append(bury)
        else:
            bury()

    def __enter__(self) -> None:
        """Enters a call into the device."""
        self._calls += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves a call into the device; remembers if the device was lost in it."""
        self._calls -= 1
        if isinstance(error, DeviceLost):
            self.lost = True

    def wait_idle(self) -> None:
        """Waits until nothing runs on the device; at once when it is closed."""
        if not self.closed:
            with self:
                self.device.wait_idle()

    def end(self) -> None:
        """Ends all gates and contexts and closes the device; again is fine."""
        if self.closed:
            return
        for gate in list(self.gates):
            gate.shut()
        for scope in list(self.scopes.values()):
            scope.close()
        for gate in list(self.gates):
            gate.free()
        self._tidy()
        self.orphaned = True
        self.close_if_unused()

    def close_if_unused(self) -> None:
        """Closes the device once nothing needs it any more."""
        if not self.orphaned or self.scopes or self.gates or self.leases or self.closed:
            return
        self.closed = True
        release(self)
        with self:
            self.device.wait_idle()
            self.device.close()

    def _tidy(self) -> None:
        # What is put off once more goes to the end, and waits for the next call.
        for _ in range(len(self._graveyard)):
            self._graveyard.popleft()()
