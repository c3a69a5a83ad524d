"""Prepared submissions: validated once, launched many times."""

from __future__ import annotations

from typing import cast

from tosavk.core.descriptors import Binding
from tosavk.core.errors import (
    Busy,
    Incompatible,
    InvalidArgument,
    OutOfBounds,
    ResourceLimit,
)
from tosavk.core.shared import LiveResources
from tosavk.testing.bench import Bench, Work, binding, needs, refuses, same
from tosavk.testing.cases.guards import MOST_EVENTS
from tosavk.testing.protocols import ContextHandle, PreparedHandle
from tosavk.testing.report import Case, Requirement

LAUNCHES = 4


def relaunch(bench: Bench) -> None:
    """Launched again and again, with what is in the buffers at the time."""
    context, work = _scene(bench)
    totals = bench.diagnostics()
    prepared = _prepare(bench, context, work)
    live = LiveResources(1, len(work.buffers), 1, 0, 1)
    bench.counted(live, "with a prepared submission")
    same(bench.diagnostics(), totals, "totals after a preparation")
    work.reset()
    for _ in range(LAUNCHES):
        event = bench.keep(prepared.submit())
        bench.counted(live, "with a launched prepared submission")
        refuses("a launch before the last was observed", prepared.submit, Busy)
        refuses("the release of one in flight", prepared.release, Busy)
        bench.complete(event)
        work.check()
        work.reset()
        bench.release(event)
        bench.counted(live, "after a launch")
    event = bench.keep(prepared.submit())
    bench.complete(event)
    work.check()
    if totals is not None:
        now = bench.diagnostics()
        assert now is not None
        launched = (LAUNCHES + 1) * len(work.bindings)
        same(now.direct - totals.direct, launched, "direct bindings of all launches")
    bench.release(event, prepared)
    bench.run(bench.queue(context), work)


def ownership(bench: Bench) -> None:
    """It keeps program and buffers, but takes no guards while it rests."""
    context, work = _scene(bench)
    prepared = _prepare(bench, context, work)
    for buffer in work.buffers:
        refuses("the release of a prepared buffer", buffer.release, Busy)
        buffer.write(0, b"a")
    refuses("the unload of a prepared program", work.program.release, Busy)
    refuses("the release of the context", context.release, Busy)
    for part, buffer in zip(work.fixture.bindings, work.buffers, strict=True):
        buffer.write(0, part.initial)
    queue = bench.queue(context)
    other = bench.submit(queue, work)
    refuses("a launch with buffers in use", prepared.submit, Busy)
    bench.complete(other)
    work.check()
    bench.release(other, prepared)
    bench.release(*work.buffers, work.program)


def validation(bench: Bench) -> None:
    """It is validated like a submission, and a refusal retains nothing."""
    context, work = _scene(bench)
    other = bench.context()
    foreign = bench.work(other)
    part = work.fixture.primary
    beyond = work.but(
        work.output, binding(part, work.buffers[work.output], part.nbytes)
    )
    for what, program, listed, error in (
        ("an empty list", work.program, [], ResourceLimit),
        (
            "a program of another context",
            foreign.program,
            work.bindings,
            InvalidArgument,
        ),
        ("foreign buffers", work.program, foreign.bindings, InvalidArgument),
        ("a range past the end", work.program, beyond, OutOfBounds),
        ("a missing slot", work.program, work.bindings[1:], Incompatible),
    ):

        def prepare(
            program: object = program, listed: list[Binding] = listed
        ) -> object:
            return context.prepare(program, listed)  # type: ignore[attr-defined]  # see needs

        bench.refused(what, prepare, error)
    bench.run(bench.queue(context), work)


def slots(bench: Bench) -> None:
    """Each owns a slot of the ring until its release."""
    context, work = _scene(bench)
    limit = bench.accelerator.info.limits.max_events_per_context
    needs(limit <= MOST_EVENTS, f"a ring of {limit} slots is too long to fill")
    made = [_prepare(bench, context, work) for _ in range(limit)]
    queue = bench.queue(context)
    bench.refused(
        "a preparation with a full ring",
        lambda: context.prepare(work.program, work.bindings),  # type: ignore[attr-defined]  # see needs
        ResourceLimit,
    )
    bench.refused(
        "a submission with a full ring",
        lambda: queue.submit(work.program, work.bindings),
        ResourceLimit,
    )
    event = bench.keep(made[-1].submit())
    bench.complete(event)
    work.check()
    bench.release(event, made.pop())
    work.reset()
    bench.run(queue, work)
    bench.release(*made)


def _scene(bench: Bench) -> tuple[ContextHandle, Work]:
    context = bench.context()
    needs(hasattr(context, "prepare"), "contexts do not prepare submissions")
    return context, bench.work(context)


def _prepare(bench: Bench, context: ContextHandle, work: Work) -> PreparedHandle:
    made = context.prepare(work.program, work.bindings)  # type: ignore[attr-defined]  # see needs
    return bench.keep(cast(PreparedHandle, made))


CASES = (
    Case(
        "prepared.relaunch",
        Requirement.CAPABILITY,
        "a prepared submission runs again and again on what its buffers hold",
        relaunch,
    ),
    Case(
        "prepared.ownership",
        Requirement.CAPABILITY,
        "it keeps program and buffers alive, and takes guards only in flight",
        ownership,
    ),
    Case(
        "prepared.validation",
        Requirement.CAPABILITY,
        "preparation refuses what a submission refuses",
        validation,
    ),
    Case(
        "prepared.slots",
        Requirement.CAPABILITY,
        "it owns a slot of the ring until its release",
        slots,
    ),
)
