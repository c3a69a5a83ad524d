"""Waiting for events in coroutines: one timer for all events of a loop, no thread.

The timer polls every pending event and then pauses for a part of the time that the
youngest wait has lasted, so that short waits stay short and long ones cost little.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol
from weakref import WeakKeyDictionary

from tosavk.core.descriptors import EventState
from tosavk.core.errors import ModelError

SHORTEST_S = 50e-6
LONGEST_S = 5e-3


class Watched(Protocol):
    """An event, as far as this module is concerned."""

    def poll(self) -> EventState:
        """The state."""
        ...

    def require_device(self) -> None:
        """Raises if the work will not end, since the device is lost."""
        ...


class Poller:
    """The timer of one loop.

    Args:
        loop: a running loop.
    """

    __slots__ = ("_began", "_loop", "_timer", "_waits")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """A timer that does not run yet."""
        self._loop = loop
        self._waits: list[tuple[Watched, asyncio.Future[EventState]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0

    def add(self, event: Watched) -> asyncio.Future[EventState]:
        """A future that is done when the event is no longer pending."""
        future: asyncio.Future[EventState] = self._loop.create_future()
        self._waits.append((event, future))
        self._began = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(SHORTEST_S, self._tick)
        return future

    def _tick(self) -> None:
        self._timer = None
        self._waits = [wait for wait in self._waits if not _settle(*wait)]
        if self._waits:
            pause = (time.monotonic() - self._began) / 4
            pause = min(max(pause, SHORTEST_S), LONGEST_S)
            self._timer = self._loop.call_later(pause, self._tick)


def _settle(event: Watched, future: asyncio.Future[EventState]) -> bool:
    """Whether a wait is over: its future is done, or was cancelled."""
    if future.done():
        return True
    try:
        state = event.poll()
        if state is EventState.PENDING:
            event.require_device()
            return False
    except ModelError as error:
        future.set_exception(error)
    else:
        future.set_result(state)
    return True


_POLLERS: WeakKeyDictionary[asyncio.AbstractEventLoop, Poller] = WeakKeyDictionary()


async def watch(event: Watched) -> EventState:
    """The terminal state of an event, once it has one.

    Raises:
        ModelError: as `Event.wait`.
    """
    state = event.poll()
    if state is not EventState.PENDING:
        return state
    loop = asyncio.get_running_loop()
    poller = _POLLERS.get(loop)
    if poller is None:
        poller = _POLLERS[loop] = Poller(loop)
    return await poller.add(event)
