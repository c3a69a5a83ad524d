"""Host gates, where accelerators have a method `create_gate`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from tosavk.core.descriptors import EventState
from tosavk.core.errors import Busy, InvalidArgument, OutOfBounds, Unsupported
from tosavk.testing.bench import Bench, Work, binding, needs, refuses, require, same
from tosavk.testing.hooks import PATIENCE_S
from tosavk.testing.protocols import EventHandle
from tosavk.testing.report import Case, Requirement, Skip

# Gates are no part of the protocol of all implementations.
AnyGate = Any


class Scene:
    """An accelerator with gates, a queue, and work to put behind them."""

    def __init__(self, bench: Bench) -> None:
        """Makes it, or skips the case."""
        self.bench = bench
        self.accelerator: Any = bench.accelerator
        needs(hasattr(self.accelerator, "create_gate"), "accelerators have no gates")
        self.gate = self.make()
        self.context = bench.context()
        self.queue: Any = bench.queue(self.context)
        self.work = bench.work(self.context)

    def make(self) -> AnyGate:
        """A gate."""
        try:
            return self.accelerator.create_gate()
        except Unsupported:
            raise Skip("the backend has no gates") from None

    def submit(
        self, gate: AnyGate, value: int, work: Work | None = None
    ) -> EventHandle:
        """Work behind a gate."""
        chosen = work or self.work
        event = self.queue.submit_after(chosen.program, chosen.bindings, gate, value)
        return self.bench.keep(cast(EventHandle, event))

    def finish(self, event: EventHandle, work: Work | None = None) -> None:
        """Waits, compares, and makes the work ready for the next time."""
        chosen = work or self.work
        self.bench.complete(event)
        chosen.check()
        chosen.reset()
        self.bench.release(event)


def holds(bench: Bench) -> None:
    """Work waits for its value, no less, and holds what it uses meanwhile."""
    scene = Scene(bench)
    gate, work = scene.gate, scene.work
    signal = gate.signal()
    event = scene.submit(gate, 5)
    same(event.poll(), EventState.PENDING, "work behind a closed gate")
    require(signal.raise_to(4), "the signal of a live gate says that it is gone")
    same(event.wait(0.02), EventState.PENDING, "work that waits for 5 with a gate at 4")
    for buffer in work.buffers:
        refuses(
            "a write to a buffer of gated work", partial(buffer.write, 0, b"a"), Busy
        )
        refuses("the release of a buffer of gated work", buffer.release, Busy)
    refuses("the unload of a gated program", work.program.release, Busy)
    refuses("the release of gated work", event.release, Busy)
    signal.raise_to(7)
    scene.finish(event)
    gate.release()


def any_order(bench: Bench) -> None:
    """Raises come in any order; what has been reached waits for nothing."""
    scene = Scene(bench)
    gate = scene.gate
    signal = gate.signal()
    scene.finish(scene.submit(gate, 0))
    signal.raise_to(10)
    require(signal.raise_to(3), "a lower raise says that the gate is gone")
    for value in (3, 10):
        scene.finish(scene.submit(gate, value))
    event = scene.submit(gate, 11)
    same(event.poll(), EventState.PENDING, "work that waits for one more")
    signal.raise_to(11)
    scene.finish(event)
    gate.release()


def other_threads(bench: Bench) -> None:
    """A signal is for any thread."""
    scene = Scene(bench)
    gate = scene.gate
    signal = gate.signal()
    event = scene.submit(gate, 1)
    with ThreadPoolExecutor(1) as pool:
        require(pool.submit(signal.raise_to, 1).result(PATIENCE_S), "the gate is gone")
    scene.finish(event)
    gate.release()


def release_lets_go(bench: Bench) -> None:
    """A gate's end lets its work go, waits for nothing, and leaves others alone."""
    scene = Scene(bench)
    first, second = scene.gate, scene.make()
    signal = first.signal()
    other = bench.work(scene.context, program=scene.work.program)
    one = scene.submit(first, 3)
    two = scene.submit(second, 1, other)
    first.release()
    require(not signal.raise_to(9), "the signal of a released gate says that it lives")
    scene.finish(one)
    same(two.poll(), EventState.PENDING, "work behind another gate")
    second.signal().raise_to(1)
    scene.finish(two, other)
    second.release()


def transfers_go_on(bench: Bench) -> None:
    """An unraised gate may refuse a transfer, but hangs and loses nothing."""
    scene = Scene(bench)
    free = [
        bench.buffer(scene.context, 64, domain=domain)
        for domain in bench.accelerator.info.domains
    ]
    data = bytes(range(64))
    event = scene.submit(scene.gate, 1)
    for buffer in free:
        try:
            buffer.write(0, data)
            same(buffer.read(0, 64), data, "bytes moved behind an unraised gate")
        except Busy:
            bench.notes.append("staged transfers are Busy behind an unraised gate")
    scene.gate.signal().raise_to(1)
    scene.finish(event)
    for buffer in free:
        buffer.write(0, data)
        same(buffer.read(0, 64), data, "bytes moved after the raise")
    scene.gate.release()


def refused(bench: Bench) -> None:
    """Gates of others, released gates and bad lists are refused."""
    scene = Scene(bench)
    gate, work = scene.gate, scene.work
    submit = scene.queue.submit_after
    foreign = cast(Any, bench.another()).create_gate()
    bench.refused(
        "a gate of another accelerator",
        partial(submit, work.program, work.bindings, foreign, 1),
        InvalidArgument,
    )
    bench.refused(
        "a negative value",
        partial(submit, work.program, work.bindings, gate, -1),
        InvalidArgument,
    )
    part = work.fixture.primary
    target = work.buffers[work.output]
    outside = work.but(work.output, binding(part, target, part.nbytes))
    bench.refused(
        "a range past the end behind a gate",
        partial(submit, work.program, outside, gate, 1),
        OutOfBounds,
    )
    # The refused submission must not be waited for.
    gate.release()
    bench.refused(
        "a submission behind a released gate",
        partial(submit, work.program, work.bindings, gate, 1),
        InvalidArgument,
    )
    bench.refused("the second release of a gate", gate.release, InvalidArgument)
    bench.run(scene.queue, work)


def close_lets_go(bench: Bench) -> None:
    """Closing an accelerator lets go what its gates hold back."""
    other: Any = bench.another()
    needs(hasattr(other, "create_gate"), "accelerators have no gates")
    try:
        gate = other.create_gate()
    except Unsupported:
        raise Skip("the backend has no gates") from None
    context = other.create_context()
    queue = context.create_queue()
    work = Work(bench, context, bench.fixture.program, bench.program(context))
    for handle in (work.program, *work.buffers):
        bench.forget(handle)
    event = queue.submit_after(work.program, work.bindings, gate, 1)
    other.close()
    require(
        event.poll() is not EventState.PENDING, "gated work is pending after a close"
    )


CASES = (
    Case(
        "gate.holds",
        Requirement.CAPABILITY,
        "work behind a gate waits for its value, and holds what it uses",
        holds,
    ),
    Case(
        "gate.any-order",
        Requirement.CAPABILITY,
        "raises come in any order, and reached values wait for nothing",
        any_order,
    ),
    Case(
        "gate.other-threads",
        Requirement.CAPABILITY,
        "any thread may raise a gate",
        other_threads,
    ),
    Case(
        "gate.release-lets-go",
        Requirement.CAPABILITY,
        "a gate's end lets its work go and waits for no other gate",
        release_lets_go,
    ),
    Case(
        "gate.transfers-go-on",
        Requirement.CAPABILITY,
        "an unraised gate never hangs a transfer or loses the device",
        transfers_go_on,
    ),
    Case(
        "gate.refused",
        Requirement.CAPABILITY,
        "foreign and released gates are InvalidArgument",
        refused,
    ),
    Case(
        "gate.close-lets-go",
        Requirement.CAPABILITY,
        "closing an accelerator lets go what its gates hold back",
        close_lets_go,
    ),
)
