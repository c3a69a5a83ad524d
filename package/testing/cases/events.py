"""Events: pending, terminal for good, cancelled."""

from __future__ import annotations

from functools import partial
from typing import cast

from tosavk.core.descriptors import Capabilities, EventState
from tosavk.core.errors import Busy, ModelError
from tosavk.testing.bench import Bench, Work, needs, refuses, require, same
from tosavk.testing.protocols import (
    CancellingEvent,
    ContextHandle,
    EventHandle,
    Gate,
    QueueHandle,
)
from tosavk.testing.report import Case, Requirement

POLLS = 5


def pending_release(bench: Bench) -> None:
    """A pending event is not released; the first terminal state stays."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    gate = bench.gate()
    if gate is None:
        event = bench.submit(queue, work)
        # Before the first poll the work is unobserved, whether it has ended or not.
        _held(context, work)
        if event.poll() is EventState.PENDING:
            _held(context, work)
        bench.notes.append("no gate: that a pending event is kept was not forced")
    else:
        event = _behind(gate, bench, context, queue, work)
    bench.complete(event)
    for _ in range(POLLS):
        same(event.poll(), EventState.COMPLETE, "a poll after COMPLETE")
        same(event.wait(0), EventState.COMPLETE, "a wait after COMPLETE")
    same(event.error, None, "the error of complete work")
    work.check()
    same(event.poll(), EventState.COMPLETE, "a poll after the buffers were read")
    bench.forget(event)
    event.release()


def pending_waits_end(bench: Bench) -> None:
    """A wait with a limit ends in time and says PENDING."""
    gate = bench.gate()
    needs(gate, "there is no gate")
    assert gate is not None
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    try:
        event = bench.keep(gate.submit(queue, work.program, work.bindings))
        for timeout in (0, 0.001, 0.06):
            same(event.wait(timeout), EventState.PENDING, f"a wait of {timeout} s")
    finally:
        gate.open()
    bench.complete(event)
    work.check()


def cancellation(bench: Bench) -> None:
    """Cancelled work ends, as CANCELLED or COMPLETE, and stays so."""
    needs(
        bench.accelerator.info.capabilities & Capabilities.EVENT_CANCELLATION,
        "the device does not cancel events",
    )
    context = bench.context()
    queue = bench.queue(context)
    for early in (True, False):
        work = bench.work(context)
        event = bench.submit(queue, work)
        if not early:
            bench.complete(event)
        cast(CancellingEvent, event).cancel()
        bench.hooks.complete(event)
        state = event.poll()
        wanted = {EventState.COMPLETE, EventState.CANCELLED}
        if not early:
            wanted.discard(EventState.CANCELLED)
        require(state in wanted, f"cancelled work ended as {state.value}")
        for _ in range(POLLS):
            same(event.poll(), state, "a poll after the end")
        work.reset()
        bench.release(event)
        bench.run(queue, work)


def _behind(
    gate: Gate, bench: Bench, context: ContextHandle, queue: QueueHandle, work: Work
) -> EventHandle:
    try:
        event = bench.keep(gate.submit(queue, work.program, work.bindings))
        _held(context, work)
        same(event.poll(), EventState.PENDING, "the first poll behind a closed gate")
        refuses("the release of a pending event", event.release, Busy)
        same(event.poll(), EventState.PENDING, "a poll after the refused release")
        same(event.error, None, "the error of pending work")
        _held(context, work)
    finally:
        gate.open()
    return event


def _held(context: ContextHandle, work: Work) -> None:
    refuses("the unload of a program in use", work.program.release, Busy)
    refuses("the release of a context in use", context.release, Busy)
    for buffer in work.buffers:
        refuses("the release of a buffer in use", buffer.release, Busy)
        refuses("a write to a buffer in use", partial(buffer.write, 0, b"a"), Busy)


def polls_are_free(bench: Bench) -> None:
    """Polling changes nothing but the event: no counts, no totals."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    event = bench.submit(queue, work)
    counts, totals = bench.counts(), bench.diagnostics()
    for _ in range(POLLS):
        try:
            event.poll()
        except ModelError as error:
            raise AssertionError(f"a poll raised {error!r}") from error
    bench.complete(event)
    bench.counted(counts, "after polls")
    same(bench.diagnostics(), totals, "totals after polls")
    work.check()


CASES = (
    Case(
        "event.pending-release-terminal-stability",
        Requirement.MANDATORY,
        "a pending event is not released, a terminal state stays",
        pending_release,
    ),
    Case(
        "event.bounded-waits",
        Requirement.HOOK,
        "a wait with a limit ends in time",
        pending_waits_end,
    ),
    Case(
        "event.polls-change-nothing",
        Requirement.MANDATORY,
        "polls change no counts and no totals",
        polls_are_free,
    ),
    Case(
        "event.cancellation-races",
        Requirement.CAPABILITY,
        "cancelled work ends, and its end stays",
        cancellation,
    ),
)
