"""Who may touch what while a submission has not been observed to end."""

from __future__ import annotations

import time
from functools import partial

from tosavk.core.descriptors import EventState
from tosavk.core.errors import Busy, ResourceLimit
from tosavk.core.shared import LiveResources
from tosavk.testing.bench import Bench, Work, binding, needs, refuses, require, same
from tosavk.testing.hooks import PATIENCE_S
from tosavk.testing.protocols import EventHandle
from tosavk.testing.report import Case, Requirement

MOST_EVENTS = 1024
A_MOMENT_S = 0.02


def busy_until_observed(bench: Bench) -> None:
    """Nothing is free before somebody has looked, however fast the device is."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    event = bench.submit(queue, work)
    _all_busy(work, "at once")
    refuses("the release of a context in use", context.release, Busy)
    time.sleep(A_MOMENT_S)
    _all_busy(work, "after a moment, without a poll")
    bench.complete(event)
    work.check()
    bench.release(work.program, *work.buffers, event)


def released_before_latch(bench: Bench) -> None:
    """Whoever sees COMPLETE may use everything at once, without another call."""
    context = bench.context()
    queue = bench.queue(context)
    for look in (_poll_to_the_end, _wait_to_the_end):
        work = bench.work(context)
        event = bench.submit(queue, work)
        look(event)
        for part, buffer in zip(work.fixture.bindings, work.buffers, strict=True):
            buffer.write(0, part.result)
            same(buffer.read(0, part.nbytes), part.result, "bytes after the end")
        again = bench.submit(queue, work)
        look(again)
        bench.forget(work.program)
        work.program.release()
        for buffer in work.buffers:
            bench.forget(buffer)
            buffer.release()
        bench.release(event, again)


def readers_share(bench: Bench) -> None:
    """Submissions may read one buffer together; it is free after the last of them."""
    context = bench.context()
    queue = bench.queue(context)
    first = bench.work(context)
    second = bench.work(context, program=first.program)
    listed = second.bindings
    for position, part in enumerate(first.fixture.bindings):
        if part.expected is None:
            listed[position] = binding(part, first.buffers[position])
    shared = first.buffers[first.input]
    one, two = bench.submit(queue, first), bench.submit(queue, second, listed)
    refuses("a write under two readers", lambda: shared.write(0, b"a"), Busy)
    bench.complete(two)
    second.check()
    refuses(
        "a write under the reader that is left", lambda: shared.write(0, b"a"), Busy
    )
    refuses("a read under a reader", lambda: shared.read(0, 1), Busy)
    refuses("a release under a reader", shared.release, Busy)
    refuses("the unload of a program in use", first.program.release, Busy)
    bench.complete(one)
    first.check()
    shared.write(0, first.fixture.inputs[0].initial)


def writer_excludes(bench: Bench) -> None:
    """A buffer that is written is bound to nothing else; no implicit chaining."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    other = bench.work(context, program=work.program)
    event = bench.submit(queue, work)
    source, target = other.fixture.inputs[0], other.fixture.primary
    written = work.buffers[work.output]
    read = work.buffers[work.input]
    same_output = other.but(other.output, binding(target, written))
    bench.refused(
        "an output that is being written",
        lambda: queue.submit(other.program, same_output),
        Busy,
    )
    if source.nbytes == target.nbytes:
        chained = other.but(other.input, binding(source, written))
        bench.refused(
            "the unobserved output as an input",
            lambda: queue.submit(other.program, chained),
            Busy,
        )
        overwrite = other.but(other.output, binding(target, read))
        bench.refused(
            "an input that is being read as an output",
            lambda: queue.submit(other.program, overwrite),
            Busy,
        )
    else:
        bench.notes.append("input and output differ in size: no chaining was tried")
    bench.run(queue, other)
    bench.complete(event)
    work.check()
    bench.release(event)
    other.reset()
    shared = bench.keep(queue.submit(other.program, same_output))
    bench.complete(shared)
    same(written.read(0, target.nbytes), target.result, "the output after its turn")


def refusals_return_slots(bench: Bench) -> None:
    """Refused and released submissions give their slot back, every time."""
    limit = bench.accelerator.info.limits.max_events_per_context
    needs(limit <= MOST_EVENTS, f"a ring of {limit} slots is too long to fill")
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    event = bench.submit(queue, work)
    for _ in range(limit + 1):
        refuses(
            "a submission with buffers in use",
            lambda: queue.submit(work.program, work.bindings),
            Busy,
        )
    bench.complete(event)
    bench.release(event)
    for _ in range(limit + 1):
        bench.run(queue, work)


def ring_exhaustion(bench: Bench) -> None:
    """One submission too many is refused, not delayed; a release makes room."""
    limits = bench.accelerator.info.limits
    limit = limits.max_events_per_context
    needs(limit <= MOST_EVENTS, f"a ring of {limit} slots is too long to fill")
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    part = work.fixture.primary
    written = [p for p in work.fixture.bindings if p.expected is not None]
    room = limits.max_buffers_per_context - len(work.buffers)
    needs(len(written) == 1 and room > limit, "too few buffers to fill the ring")
    targets = [bench.buffer(context, part.nbytes) for _ in range(limit + 1)]
    lists = [work.but(work.output, binding(part, target)) for target in targets]
    events = [bench.submit(queue, work, listed) for listed in lists[:limit]]
    over = lists[limit]
    bench.refused(
        f"submission {limit + 1}",
        lambda: queue.submit(work.program, over),
        ResourceLimit,
    )
    counts = bench.counts()
    if counts is not None:
        same(counts.events, limit, "events with a full ring")
    # The checks before the ring are not changed by its being full, nor is the order.
    bench.refused(
        "a submission with buffers in use, with a full ring",
        lambda: queue.submit(work.program, lists[0]),
        ResourceLimit,
    )
    for event in events:
        bench.complete(event)
    bench.refused(
        "a submission while all events have ended but none is released",
        lambda: queue.submit(work.program, over),
        ResourceLimit,
    )
    bench.release(events.pop())
    last = bench.submit(queue, work, over)
    bench.complete(last)
    for target in targets:
        same(target.read(0, part.nbytes), part.result, "an output of the full ring")
    bench.release(last, *events)
    second = bench.context()
    bench.run(bench.queue(second), bench.work(second))


def queue_goes_first(bench: Bench) -> None:
    """Submissions outlive their queue."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    event = bench.submit(queue, work)
    bench.forget(queue)
    queue.release()
    counts = bench.counts()
    live = LiveResources(1, len(work.buffers), 1, 0, 1)
    if counts is not None:
        same(counts, live, "live resources after the queue's release")
    bench.complete(event)
    work.check()
    bench.release(event)


def _all_busy(work: Work, when: str) -> None:
    for part, buffer in zip(work.fixture.bindings, work.buffers, strict=True):
        name = f"slot {part.slot} in use, {when}"
        refuses(f"a write to {name}", partial(buffer.write, 0, b"a"), Busy)
        refuses(f"a read of {name}", partial(buffer.read, 0, 1), Busy)
        refuses(f"the release of {name}", buffer.release, Busy)
    refuses(f"the unload of a program in use, {when}", work.program.release, Busy)


def _poll_to_the_end(event: EventHandle) -> None:
    end = time.monotonic() + PATIENCE_S
    while (state := event.poll()) is EventState.PENDING and time.monotonic() < end:
        time.sleep(0)
    require(state is EventState.COMPLETE, f"work ended as {state.value}")


def _wait_to_the_end(event: EventHandle) -> None:
    state = event.wait(PATIENCE_S)
    require(state is EventState.COMPLETE, f"work ended as {state.value}")


CASES = (
    Case(
        "guards.busy-until-observed",
        Requirement.MANDATORY,
        "what a submission uses is Busy until its end was observed",
        busy_until_observed,
    ),
    Case(
        "guards.released-before-latch",
        Requirement.MANDATORY,
        "everything is free at the moment in which COMPLETE is seen",
        released_before_latch,
    ),
    Case(
        "guards.readers-share",
        Requirement.MANDATORY,
        "submissions may read one buffer together",
        readers_share,
    ),
    Case(
        "guards.writer-excludes",
        Requirement.MANDATORY,
        "a buffer that is written is bound to nothing else",
        writer_excludes,
    ),
    Case(
        "guards.queue-goes-first",
        Requirement.MANDATORY,
        "submissions outlive their queue",
        queue_goes_first,
    ),
    Case(
        "ring.refusals-return-slots",
        Requirement.CAPABILITY,
        "refused and released submissions give their slot back",
        refusals_return_slots,
    ),
    Case(
        "ring.exhaustion",
        Requirement.CAPABILITY,
        "one submission too many is refused with ResourceLimit",
        ring_exhaustion,
    ),
)
