"""Forks and the exit of the interpreter: what must happen to open accelerators.

A forked child has copies of all handles, but the driver's threads and its connection to
the device stayed in the parent: every use of such a copy is refused, and its finalisers
do nothing. At exit, open accelerators are ended while the interpreter still works: some
drivers crash when the process ends in the middle of their work.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Protocol

from tosavk.core import logs

NOBODY = 0
"""The owner of a copy that a fork has made, or at exit; no thread has this number."""

_GRACE_S = 0.15
_PATIENCE_S = 5.0


class Guarded(Protocol):
    """An open accelerator.

    Attributes:
        owner: the only thread that may use it, or NOBODY.
    """

    owner: int

    @property
    def busy(self) -> bool:
        """Whether its owner is inside a call into the device."""
        ...

    def end(self) -> None:
        """Waits for all work and closes it."""
        ...


_OPEN: dict[int, Guarded] = {}


def guard(accelerator: Guarded) -> None:
    """From now on the accelerator is refused after a fork and ended at exit."""
    _arm()
    _OPEN[id(accelerator)] = accelerator


def release(accelerator: Guarded) -> None:
    """The accelerator is closed."""
    _OPEN.pop(id(accelerator), None)


@cache
def _arm() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_disown)
    atexit.register(_end_all)


def _disown() -> None:
    for accelerator in _OPEN.values():
        accelerator.owner = NOBODY
    # Kept for ever: nothing of a copy may be finalised as if it were the original.
    _COPIES.extend(_OPEN.values())
    _OPEN.clear()


_COPIES: list[Guarded] = []


def _end_all() -> None:
    for accelerator in list(_OPEN.values()):
        try:
            if _take_over(accelerator):
                accelerator.end()
            if id(accelerator) in _OPEN:
                # Arrays still show its memory: it stays open, and nobody touches it.
                accelerator.owner = NOBODY
        except Exception:  # noqa: BLE001 - the others are to be ended too
            logs.warning(
                "tosavk", "an accelerator could not be closed at exit", exc_info=True
            )


def _take_over(accelerator: Guarded) -> bool:
    """Makes this thread the owner; False if the old one does not let go.

    Threads that are not daemons have ended by now. A daemon finds at its next call, or
    next step of a wait, that it is no longer the owner.
    """
    former, accelerator.owner = accelerator.owner, threading.get_ident()
    if former == accelerator.owner:
        return True
    if all(thread.ident != former for thread in threading.enumerate()):
        return True
    end = time.monotonic() + _PATIENCE_S
    with suppress(KeyboardInterrupt):
        time.sleep(_GRACE_S)
        while accelerator.busy and time.monotonic() < end:
            time.sleep(0.01)
    return not accelerator.busy
