"""A lost device: what still works, and what does not."""

from __future__ import annotations

from collections.abc import Callable

from tosavk.core.descriptors import USAGE_ALL, BufferDesc, EventState
from tosavk.core.errors import DeviceLost, Indeterminate
from tosavk.testing.bench import (
    Bench,
    needs,
    refuses,
    require,
    same,
    settle_indeterminate,
)
from tosavk.testing.report import Case, ContractFailure, Requirement


def sticky(bench: Bench) -> None:
    """New work and transfers say DeviceLost; information and releases still work."""
    needs(bench.hooks.lose, "the hook `lose` is not given")
    assert bench.hooks.lose is not None
    info = bench.accelerator.info
    context = bench.context()
    queue = bench.queue(context)
    ended, flying, idle = (bench.work(context) for _ in range(3))
    done = bench.submit(queue, ended)
    bench.complete(done)
    event = bench.submit(queue, flying)
    before = bench.counts()
    bench.hooks.lose(bench.accelerator)
    try:
        found = queue.submit(idle.program, idle.bindings)
    except Indeterminate as error:
        require(
            isinstance(error.error, DeviceLost),
            f"the cause of {error!r} is another one",
        )
        settle_indeterminate(error)
    except DeviceLost:
        pass
    else:
        bench.keep(found)
        raise ContractFailure("a lost device accepted a submission")
    bench.counted(before, "after the loss was found")
    desc = BufferDesc(16, USAGE_ALL, info.domains[0])
    artifact = bench.fixture.program.artifact
    buffer = idle.buffers[0]
    calls: dict[str, Callable[[], object]] = {
        "a new context": bench.accelerator.create_context,
        "an allocation": lambda: context.allocate_buffer(desc),
        "a load": lambda: context.load_program(artifact),
        "a queue": context.create_queue,
        "a write": lambda: buffer.write(0, b"a"),
        "a read": lambda: buffer.read(0, 1),
        "an empty write": lambda: buffer.write(0, b""),
        "a submission": lambda: queue.submit(idle.program, idle.bindings),
        "an empty submission": lambda: queue.submit(idle.program, []),
    }
    for what, call in calls.items():
        bench.refused(f"{what} on a lost device", call, DeviceLost)
    same(bench.accelerator.info, info, "the device info after the loss")
    same(done.poll(), EventState.COMPLETE, "work that was seen to end before the loss")
    bench.hooks.complete(event)
    state = event.poll()
    require(state is not EventState.PENDING, "work of a lost device stays pending")
    same(event.poll(), state, "the second poll of an event after the loss")
    if state is EventState.FAILED:
        require(isinstance(event.error, DeviceLost), f"it failed with {event.error!r}")
    bench.release(done, event, *idle.buffers, *ended.buffers, *flying.buffers)
    bench.release(idle.program, ended.program, flying.program, queue, context)
    refuses(
        "a new context after all releases", bench.accelerator.create_context, DeviceLost
    )


CASES = (
    Case(
        "loss.sticky",
        Requirement.HOOK,
        "a lost device refuses everything but information, polls and releases",
        sticky,
    ),
)
