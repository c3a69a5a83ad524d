"""Waiting without blocking: wgpu's own waiting holds up every submission.

A blocking poll in any thread keeps `wgpuQueueSubmit` from returning until the work that
it waits for is done (measured; docs/wgpu-backend.md). So everything here polls and
sleeps in between: a quarter of the time waited so far, at most a millisecond. So a short
wait is not made much longer, and a long one costs little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tosavk.backends.wgpu._ffi import Gpu
from tosavk.core.errors import DeviceLost

TRANSFER_TIMEOUT_NS = 30 * 10**9
"""How long a transfer may take before the device counts as lost."""

_SHORTEST_PAUSE_NS = 20_000
_LONGEST_PAUSE_NS = 1_000_000


def wait_until(gpu: Gpu, done: Callable[[], bool], timeout_ns: int | None) -> bool:
    """Polls until `done()`, until the device is lost, or at most `timeout_ns`.

    Returns:
        The last answer of `done`.
    """
    start = time.monotonic_ns()
    while True:
        gpu.poll()
        if done():
            return True
        if gpu.lost is not None:
            return False
        waited = time.monotonic_ns() - start
        pause = min(max(waited // 4, _SHORTEST_PAUSE_NS), _LONGEST_PAUSE_NS)
        if timeout_ns is not None:
            if waited >= timeout_ns:
                return False
            pause = min(pause, timeout_ns - waited)
        time.sleep(pause / 1e9)


class Flag:
    """An answer that a callback gives later.

    Attributes:
        given: whether it came.
        good: what it was.
    """

    __slots__ = ("given", "good")

    def __init__(self) -> None:
        """Starts without an answer."""
        self.given = False
        self.good = False

    def set(self, good: bool) -> None:  # noqa: FBT001 - the signature of a callback
        """Takes the answer."""
        self.given = True
        self.good = good


def finish_transfer(gpu: Gpu, flag: Flag, doing: str) -> None:
    """Waits for a transfer's answer, at most 30 s.

    Raises:
        DeviceLost: it did not come, and the device counts as lost from now on; or the
            device was lost, or the transfer failed.
    """
    if not wait_until(gpu, lambda: flag.given, TRANSFER_TIMEOUT_NS):
        gpu.check(doing)
        gpu.lost = f"{doing} took longer than {TRANSFER_TIMEOUT_NS // 10**9} s"
    gpu.check(doing)
    if not flag.good:
        gpu.lost = f"{doing} failed"
        raise DeviceLost(f"{doing} failed; discard the accelerator and open a new one")
