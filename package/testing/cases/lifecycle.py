"""Handles: released once, dead afterwards, in whatever order they go."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tosavk.core.descriptors import USAGE_ALL, BufferDesc, EventState
from tosavk.core.errors import Busy, InvalidArgument, WrongThread
from tosavk.core.shared import LiveResources
from tosavk.testing.bench import (
    TRANSFERS,
    Bench,
    binding,
    needs,
    refuses,
    require,
    same,
)
from tosavk.testing.protocols import (
    BufferHandle,
    ContextHandle,
    EventHandle,
    Handle,
    ProgramHandle,
    QueueHandle,
)
from tosavk.testing.report import Case, Requirement


def double_release(bench: Bench) -> None:
    """The second release of a handle is InvalidArgument and changes nothing."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    event = bench.submit(queue, work)
    bench.complete(event)
    handles: list[tuple[str, Handle]] = [("event", event)]
    prepare = getattr(context, "prepare", None)
    if prepare is not None:
        handles.append(
            ("prepared submission", bench.keep(prepare(work.program, work.bindings)))
        )
    handles += [("buffer", buffer) for buffer in work.buffers]
    handles += [("program", work.program), ("queue", queue), ("context", context)]
    for name, handle in handles:
        bench.release(handle)
        for _ in range(2):
            bench.refused(
                f"the second release of a {name}", handle.release, InvalidArgument
            )


def use_after_release(bench: Bench) -> None:
    """A released handle is good for nothing."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    buffer, program = work.buffers[0], work.program
    event = bench.submit(queue, work)
    bench.complete(event)
    bench.release(event)
    bench.refused("a poll after release", event.poll, InvalidArgument)
    bench.refused("a wait after release", lambda: event.wait(0), InvalidArgument)
    bench.release(buffer)
    dead = work.bindings
    uses: dict[str, Callable[[], object]] = {
        "a write": lambda: buffer.write(0, b"a"),
        "a read": lambda: buffer.read(0, 1),
        "a read into bytes": lambda: buffer.read_into(0, bytearray(1)),
        "a submission with a released buffer": lambda: queue.submit(program, dead),
    }
    for what, use in uses.items():
        bench.refused(f"{what} after release", use, InvalidArgument)
    fresh = bench.work(context, program=program)
    bench.release(program)
    bench.refused(
        "a submission of a released program",
        lambda: queue.submit(program, fresh.bindings),
        InvalidArgument,
    )
    bench.release(queue)
    again = bench.program(context)
    bench.refused(
        "a submission on a released queue",
        lambda: queue.submit(again, fresh.bindings),
        InvalidArgument,
    )
    bench.release(again, *fresh.buffers, *work.buffers[1:], context)
    desc = BufferDesc(4, TRANSFERS, bench.accelerator.info.domains[0])
    artifact = bench.fixture.program.artifact
    gone: dict[str, Callable[[], object]] = {
        "an allocation": lambda: context.allocate_buffer(desc),
        "a load": lambda: context.load_program(artifact),
        "a queue": context.create_queue,
    }
    for what, use in gone.items():
        bench.refused(f"{what} on a released context", use, InvalidArgument)


def children_first(bench: Bench) -> None:
    """A context is not released while anything of it lives."""
    context = bench.context()

    def busy(what: str) -> None:
        refuses(f"the release of a context with {what}", context.release, Busy)

    queue = bench.queue(context)
    busy("a queue")
    bench.release(queue)
    buffer = bench.buffer(context, 4)
    busy("a buffer")
    bench.release(buffer)
    program = bench.program(context)
    busy("a program")
    bench.release(program)
    work = bench.work(context)
    queue = bench.queue(context)
    event = bench.submit(queue, work)
    bench.complete(event)
    bench.release(queue, work.program, *work.buffers)
    busy("an event that has ended")
    bench.release(event)
    bench.forget(context)
    context.release()


def one_thread(bench: Bench) -> None:
    """Another thread is told that it is the wrong one, and changes nothing."""
    needs(bench.hooks.one_thread, "handles may be used in any thread")
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    event = bench.submit(queue, work)
    before = bench.counts()
    desc = BufferDesc(4, TRANSFERS, bench.accelerator.info.domains[0])
    artifact = bench.fixture.program.artifact
    buffer = work.buffers[0]
    calls: dict[str, Callable[[], object]] = {
        "a new context": bench.accelerator.create_context,
        "an allocation": partial(context.allocate_buffer, desc),
        "a load": partial(context.load_program, artifact),
        "a new queue": context.create_queue,
        "a submission": partial(queue.submit, work.program, work.bindings),
        "a write": partial(buffer.write, 0, b"a"),
        "a read": partial(buffer.read, 0, 1),
        "a poll": event.poll,
        "a wait": partial(event.wait, 1),
        "an event's release": event.release,
        "a buffer's release": buffer.release,
        "a program's release": work.program.release,
        "a queue's release": queue.release,
        "a context's release": context.release,
        "a close": bench.accelerator.close,
    }
    with ThreadPoolExecutor(1) as pool:
        for what, call in calls.items():
            told = pool.submit(refuses, f"{what} in another thread", call, WrongThread)
            told.result()
    bench.counted(before, "after calls of another thread")
    bench.complete(event)
    work.check()


def close_ends_everything(bench: Bench) -> None:
    """Closing an accelerator ends what lives on it; handles then say so."""
    accelerator = bench.another()
    context = accelerator.create_context()
    domain = accelerator.info.domains[0]
    part = bench.fixture.program
    buffers = [
        context.allocate_buffer(BufferDesc(p.nbytes, TRANSFERS, domain))
        for p in part.bindings
    ]
    program = context.load_program(part.artifact)
    queue = context.create_queue()
    accelerator.close()
    accelerator.close()
    if bench.hooks.counts is not None:
        same(bench.hooks.counts(accelerator), LiveResources(), "counts after the close")
    calls: dict[str, Callable[[], object]] = {
        "a new context": accelerator.create_context,
        "a read": lambda: buffers[0].read(0, 1),
        "a buffer's release": buffers[0].release,
        "a program's release": program.release,
        "a queue's release": queue.release,
        "a context's release": context.release,
    }
    for what, call in calls.items():
        refuses(f"{what} after the close", call, InvalidArgument)
    same(accelerator.info, bench.accelerator.info, "the device info after the close")


def close_with_work(bench: Bench) -> None:
    """Closing waits for work, whose event then has an end."""
    accelerator = bench.another()
    context = accelerator.create_context()
    event, *_ = _submitted(bench, context)
    accelerator.close()
    state = event.poll()
    require(
        state is not EventState.PENDING,
        f"work of a closed accelerator is {state.value}",
    )
    same(event.poll(), state, "the second poll after the close")


def garbage_collection(bench: Bench) -> None:
    """Handles that nobody released give everything back when they die."""
    needs(bench.hooks.counts, "the hook `counts` is not given")
    context = bench.context()
    for order in range(3):
        _drop(bench, context, order)
        gc.collect()
        bench.counted(LiveResources(contexts=1), f"after handles died ({order})")
    whole = bench.accelerator.create_context()
    kept = _submitted(bench, whole)[0]
    del whole
    gc.collect()
    bench.complete(kept)
    kept.release()
    del kept
    gc.collect()
    bench.counted(LiveResources(contexts=1), "after a context died before its event")
    bench.run(bench.queue(context), bench.work(context))


def _drop(bench: Bench, context: ContextHandle, order: int) -> None:
    """Submits, and lets the handles die in one of three orders."""
    things: list[object] = list(_submitted(bench, context))
    while things:
        things.pop((0, len(things) - 1, len(things) // 2)[order])


def _submitted(
    bench: Bench, context: ContextHandle
) -> tuple[EventHandle, QueueHandle, ProgramHandle, list[BufferHandle]]:
    """Work in flight whose handles nobody else holds."""
    fixture = bench.fixture.program
    domain = bench.accelerator.info.domains[0]
    buffers = [
        context.allocate_buffer(BufferDesc(part.nbytes, USAGE_ALL, domain))
        for part in fixture.bindings
    ]
    listed = [
        binding(part, buffer)
        for part, buffer in zip(fixture.bindings, buffers, strict=True)
    ]
    program = context.load_program(fixture.artifact)
    queue = context.create_queue()
    return queue.submit(program, listed), queue, program, buffers


CASES = (
    Case(
        "handle.double-release",
        Requirement.MANDATORY,
        "the second release of a handle is InvalidArgument",
        double_release,
    ),
    Case(
        "handle.use-after-release",
        Requirement.MANDATORY,
        "released handles are InvalidArgument everywhere",
        use_after_release,
    ),
    Case(
        "handle.children-first",
        Requirement.MANDATORY,
        "a context with children is Busy",
        children_first,
    ),
    Case(
        "handle.one-thread",
        Requirement.HOOK,
        "handles belong to the thread that made the accelerator",
        one_thread,
    ),
    Case(
        "lifecycle.close-ends-everything",
        Requirement.MANDATORY,
        "closing an accelerator releases what lives on it",
        close_ends_everything,
    ),
    Case(
        "lifecycle.close-with-work",
        Requirement.MANDATORY,
        "closing waits for work, whose event has an end",
        close_with_work,
    ),
    Case(
        "lifecycle.garbage-collection",
        Requirement.HOOK,
        "handles that die unreleased give everything back, in any order",
        garbage_collection,
    ),
)
