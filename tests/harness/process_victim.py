"""A process of its own that meets one of Python's dangers; see test_processes.

Run as `python process_victim.py SPECIFICATION DANGER[,DANGER...]`. It prints what it has seen; the
exit status must be 0 and nothing else may stand in the output.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np

import tosavk
from tosavk.core.accelerator import Accelerator
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    USAGE_ALL,
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    EventState,
)
from tosavk.core.errors import Unsupported, WrongProcess
from tosavk.core.events import Event
from tosavk.core.gates import Gate
from tosavk.core.programs import Program
from tosavk.core.queues import Queue
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

SIDE = 144
STAGES = 24
HANG_S = 20.0


def model() -> bytes:
    """Some matrix products, one after the other: work that takes a while."""
    builder = tosavk.Builder()
    x = builder.input("x", tosavk.DType.FP32, (1, SIDE, SIDE))
    y = x
    for _ in range(STAGES):
        y = builder.matmul(y, x)
    builder.output(y)
    return builder.build()


class Victim:
    """An accelerator with a program, ready to submit."""

    def __init__(self, spec: str) -> None:
        self.accelerator: Accelerator = tosavk.open(spec)
        self.context: Context = self.accelerator.create_context()
        limits = self.accelerator.device.plan_limits
        lowered = lower_graph(load_graph(model()), limits=limits)
        self.program: Program = self.context.load_program(lowered)
        nbytes = 4 * SIDE * SIDE
        domain = self.accelerator.info.domains[0]
        self.buffers = [
            self.context.allocate_buffer(BufferDesc(nbytes, USAGE_ALL, domain))
            for _ in range(2)
        ]
        self.buffers[0].write(0, np.eye(SIDE, dtype=np.float32))
        self.queue: Queue = self.context.create_queue()
        self.bindings = [
            Binding(i, buffer, BufferRange(0, nbytes), access)
            for i, (buffer, access) in enumerate(
                zip(self.buffers, (AccessMode.READ, AccessMode.WRITE), strict=True)
            )
        ]

    def submit(self) -> Event:
        """Starts the work."""
        return self.queue.submit(self.program, self.bindings)

    def gate(self) -> Gate | None:
        """A gate, where there are such."""
        try:
            return self.accelerator.create_gate()
        except Unsupported:
            return None

    def check(self) -> None:
        """Compares the result."""
        got = np.frombuffer(self.buffers[1].read(0, 4 * SIDE * SIDE), np.float32)
        assert np.array_equal(got.reshape(SIDE, SIDE), np.eye(SIDE))


def _must_be_refused(uses: list[Callable[[], object]]) -> None:
    for use in uses:
        try:
            use()
        except WrongProcess:
            continue
        sys.stderr.write(f"a forked process could go on: {use}\n")
        os._exit(1)


def fork(spec: str, *, leave: Callable[[], NoReturn]) -> None:
    """The child gets errors, and the parent goes on."""
    victim = Victim(spec)
    event = victim.submit()
    gate = victim.gate()
    raises = [] if gate is None else [partial(gate.signal().raise_to, 1)]
    with warnings.catch_warnings():
        # Python 3.12 says that forking a process with threads is unwise. Indeed.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        uses: list[Callable[[], object]] = [
            event.poll,
            event.wait,
            event.release,
            victim.submit,
            victim.buffers[0].release,
            lambda: victim.buffers[1].read(0, 4),
            victim.accelerator.create_context,
            victim.accelerator.close,
            *raises,
        ]
        _must_be_refused(uses)
        with victim.accelerator, victim.context, event:
            pass
        del event, victim, gate, raises, uses
        gc.collect()
        leave()
    assert event.wait() is EventState.COMPLETE
    victim.check()
    end = time.monotonic() + HANG_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the forked process hangs")
        time.sleep(0.02)
    assert status == 0, status
    event.release()
    with victim.submit() as event:
        assert event.wait() is EventState.COMPLETE
    victim.check()
    victim.accelerator.close()


KEPT: list[object] = []


def exit_pending(spec: str) -> None:
    """The interpreter exits in the middle of the work."""
    victim = Victim(spec)
    KEPT.extend([victim, victim.submit()])


def exit_gated(spec: str) -> None:
    """It exits while work waits for a gate that nobody raises."""
    victim = Victim(spec)
    gate = victim.gate()
    if gate is not None:
        event = victim.queue.submit_after(victim.program, victim.bindings, gate, 7)
        KEPT.extend([victim, gate, event])


def exit_by_exception(spec: str) -> None:
    """An exception that nobody handles ends it, from inside the blocks."""
    victim = Victim(spec)
    gate = victim.gate()

    def silent(*unused: object) -> None:
        del unused

    sys.excepthook = silent
    with victim.accelerator, victim.context:
        if gate is not None:
            KEPT.append(
                victim.queue.submit_after(victim.program, victim.bindings, gate, 1)
            )
        else:
            KEPT.append(victim.submit())
        sys.exit(0)


def exit_mapped(spec: str) -> None:
    """Arrays in mapped memory are alive at the end."""
    victim = Victim(spec)
    manager = victim.buffers[0].map(np.float32)
    try:
        view = manager.__enter__()
    except Unsupported:
        return
    KEPT.extend([manager, view, np.asarray(view), victim])


def exit_daemon(spec: str) -> None:
    """A daemon thread is using an accelerator of its own at the end."""
    started = threading.Event()
    threading.excepthook = lambda _: None

    def run() -> None:
        victim = Victim(spec)
        started.set()
        while True:
            with victim.submit() as event:
                event.wait()

    threading.Thread(target=run, daemon=True).start()
    assert started.wait(HANG_S)
    time.sleep(0.05)


def collect(spec: str) -> None:
    """Handles die in every order, in cycles, in another thread, with work pending."""
    for turn in range(12):
        victim: Any = Victim(spec) if turn % 4 == 0 else None
        parts: list[object] = []
        if victim is not None:
            held = cast("dict[str, object]", vars(victim))
            parts = [*held.values(), victim.submit()]
            parts = parts[turn % 7 :] + parts[: turn % 7]
            if turn % 8 == 0:
                parts.append(parts)
            del victim
        if turn % 3 == 0:
            thread = threading.Thread(target=parts.clear)
            thread.start()
            thread.join()
        while parts:
            parts.pop()
        gc.collect()


DANGERS: dict[str, Callable[[str], None]] = {
    "fork": lambda spec: fork(spec, leave=lambda: os._exit(0)),
    "fork_exit": lambda spec: fork(spec, leave=lambda: sys.exit(0)),
    "exit_pending": exit_pending,
    "exit_gated": exit_gated,
    "exit_by_exception": exit_by_exception,
    "exit_mapped": exit_mapped,
    "exit_daemon": exit_daemon,
    "collect": collect,
}


if __name__ == "__main__":
    for danger in sys.argv[2].split(","):
        DANGERS[danger](sys.argv[1])
    sys.stdout.write("reached the end\n")
