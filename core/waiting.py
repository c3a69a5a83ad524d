"""Waiting for several events at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from tosavk.core.descriptors import EventState
from tosavk.core.errors import InvalidArgument
from tosavk.core.events import Event

_SHORTEST_S = 100e-6
_LONGEST_S = 2e-3


def wait_any(
    events: Iterable[Event], timeout_s: float | None = None
) -> tuple[Event, ...]:
    """Waits until at least one event has ended.

    The device is waited for in short steps, on one event after the other, so an event
    may be told up to 2 ms late; Ctrl-C is answered.

    Args:
        events: live events, also of several accelerators of this thread.
        timeout_s: seconds to wait at most, or None for no limit.

    Returns:
        Those that have ended, complete or failed, in their order; none if the time is
        over or there were no events.

    Raises:
        Released: an event is released.
        WrongThread: the caller is not the owner of one of them.
        InvalidArgument: the time is not a number.
        DeviceLost: a device is poisoned and its work does not end.
        ModelError: a device could not answer.
    """
    watched = tuple(events)
    deadline = _deadline(timeout_s)
    step = _SHORTEST_S
    turn = 0
    while True:
        ended = tuple(e for e in watched if e.poll() is not EventState.PENDING)
        left = deadline - time.monotonic()
        if ended or not watched or left <= 0:
            return ended
        for event in watched:
            event.require_device()
        watched[turn % len(watched)].wait(min(step, left))
        turn += 1
        step = min(step * 1.25, _LONGEST_S)


def wait_all(events: Iterable[Event], timeout_s: float | None = None) -> bool:
    """Waits until all events have ended, complete or failed.

    Args:
        events: live events, also of several accelerators of this thread.
        timeout_s: seconds to wait at most, or None for no limit.

    Returns:
        Whether all have ended; False if the time is over before.

    Raises:
        Released: an event is released.
        WrongThread: the caller is not the owner of one of them.
        InvalidArgument: the time is not a number.
        DeviceLost: a device is poisoned and its work does not end.
        ModelError: a device could not answer.
    """
    deadline = _deadline(timeout_s)
    ended = True
    for event in tuple(events):
        left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
        ended &= event.wait(left) is not EventState.PENDING
    return ended


def _deadline(timeout_s: float | None) -> float:
    if timeout_s is None:
        return math.inf
    if math.isnan(timeout_s):
        raise InvalidArgument("timeout_s must be a number of seconds, got NaN")
    return time.monotonic() + timeout_s
