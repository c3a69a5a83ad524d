"""Submissions: what is refused, what is bound, and what the work may touch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tosavk.core.descriptors import (
    USAGE_ALL,
    AccessMode,
    Binding,
    BufferDesc,
    MemoryDomain,
    Timeout,
)
from tosavk.core.errors import (
    DeadlineExpired,
    Incompatible,
    Indeterminate,
    InvalidArgument,
    ModelError,
    OutOfBounds,
    ResourceLimit,
)
from tosavk.testing.bench import (
    Bench,
    binding,
    needs,
    same,
    settle_indeterminate,
)
from tosavk.testing.fixture import BindingFixture, ProgramFixture
from tosavk.testing.protocols import ContextHandle
from tosavk.testing.report import Case, Requirement, Skip

ROUNDS = 3
SENTINEL = 0xA5


def binding_validation(bench: Bench) -> None:
    """Bad lists are refused, then the good one runs."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    limit = bench.accelerator.info.limits.max_bindings_per_submission

    def refused(what: str, listed: Sequence[Binding], error: type[ModelError]) -> None:
        bench.refused(what, lambda: queue.submit(work.program, listed), error)

    refused("an empty list", [], ResourceLimit)
    if len(work.bindings) < limit:
        twice = [*work.bindings, work.bindings[0]]
        refused("a slot bound twice", twice, InvalidArgument)
    else:
        bench.notes.append("no room for a duplicated slot under the limit")
    if limit < 4096:
        many = work.bindings[:1] * (limit + 1)
        refused("too many bindings", many, ResourceLimit)
    for position, part in enumerate(work.fixture.bindings):
        buffer = work.buffers[position]
        name = f"slot {part.slot}"
        beyond = work.but(position, binding(part, buffer, part.nbytes))
        refused(f"{name} beyond its buffer", beyond, OutOfBounds)
        for access in AccessMode:
            if access is not part.access:
                flipped = work.but(position, binding(part, buffer, access=access))
                refused(f"{name} with {access.name}", flipped, Incompatible)
        if part.nbytes > 1:
            short = work.but(position, binding(part, buffer, nbytes=part.nbytes - 1))
            refused(f"a short range for {name}", short, Incompatible)
        rest = [b for i, b in enumerate(work.bindings) if i != position]
        if rest:
            refused(f"no binding for {name}", rest, Incompatible)
        unknown = work.but(position, binding(part, buffer, slot=10_000))
        refused("an unknown slot", unknown, Incompatible)
    bench.run(queue, work)


def lengths_and_offsets(bench: Bench) -> None:
    """Ranges have exactly the tensor's length, at an aligned offset."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    for position, part in enumerate(work.fixture.bindings):
        large = bench.buffer(context, part.nbytes + bench.hooks.alignment)
        for what, changed in {
            "a range that is too long": binding(part, large, nbytes=part.nbytes + 1),
            "offset 1": binding(part, large, 1),
            "offset 2": binding(part, large, 2),
        }.items():
            listed = work.but(position, changed)
            bench.refused(
                f"slot {part.slot} with {what}",
                partial(queue.submit, work.program, listed),
                Incompatible,
            )
    bench.run(queue, work)


def aliasing(bench: Bench) -> None:
    """A buffer that is written is bound once."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    source, target = (
        work.fixture.bindings[work.input],
        work.fixture.bindings[work.output],
    )
    step = bench.hooks.alignment * (1 + source.nbytes // bench.hooks.alignment)
    both = bench.buffer(context, step + target.nbytes)
    both.write(0, source.initial)
    for what, offset in (("overlapping ranges", 0), ("disjoint ranges", step)):
        listed = work.but(work.input, binding(source, both))
        listed[work.output] = binding(target, both, offset)
        bench.refused(
            f"one buffer read and written in {what}",
            partial(queue.submit, work.program, listed),
            Incompatible,
        )
    bench.run(queue, work)


def shared_reads(bench: Bench) -> None:
    """Two inputs may be one buffer."""
    fixture = bench.fixture.sharing
    needs(fixture, "the fixture has no program with two equal inputs")
    assert fixture is not None
    context = bench.context()
    work = bench.work(context, fixture)
    first, second = (fixture.bindings.index(part) for part in _equal_inputs(fixture))
    listed = work.but(second, binding(fixture.bindings[second], work.buffers[first]))
    event = bench.submit(bench.queue(context), work, listed)
    bench.complete(event)
    work.check()


def list_order(bench: Bench) -> None:
    """The order of the list means nothing."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context, bench.fixture.sharing or bench.fixture.program)
    event = bench.submit(queue, work, work.bindings[::-1])
    bench.complete(event)
    work.check()


def offset_bindings(bench: Bench) -> None:
    """Work inside larger buffers leaves the rest alone, in every domain."""
    context = bench.context()
    fixtures = [bench.fixture.program]
    if bench.fixture.packed is not None:
        fixtures.append(bench.fixture.packed)
    for domain in bench.accelerator.info.domains:
        for fixture in fixtures:
            _run_inside(bench, context, fixture, domain)


def packed_neighbours(bench: Bench) -> None:
    """Bytes beside an output of odd length are kept."""
    fixture = bench.fixture.packed
    needs(fixture, "the fixture has no packed program")
    assert fixture is not None
    needs(fixture.primary.nbytes % 4, "the packed output fills whole words")
    context = bench.context()
    for domain in bench.accelerator.info.domains:
        _run_inside(bench, context, fixture, domain)


def copy_path(bench: Bench) -> None:
    """Submissions bind exactly the buffers they name, and copy nothing."""
    needs(bench.hooks.diagnostics, "the hook `diagnostics` is not given")
    context = bench.context()
    queue = bench.queue(context)
    for domain in bench.accelerator.info.domains:
        work = bench.work(context)
        work.buffers[:] = [
            bench.buffer(context, part.nbytes, domain=domain)
            for part in work.fixture.bindings
        ]
        work.bindings[:] = [
            binding(part, buffer)
            for part, buffer in zip(work.fixture.bindings, work.buffers, strict=True)
        ]
        for part, buffer in zip(work.fixture.bindings, work.buffers, strict=True):
            buffer.write(0, part.initial)
        before = bench.diagnostics()
        assert before is not None
        event = bench.submit(queue, work)
        at_submit = bench.diagnostics()
        assert at_submit is not None
        direct = at_submit.direct - before.direct
        same(direct, len(work.bindings), "direct bindings counted at submit")
        bench.complete(event)
        after = bench.diagnostics()
        assert after is not None
        same(after.staged, 0, f"staged copies of a submission in {domain.name}")
        same(after.direct, at_submit.direct, "direct bindings after the end")
        same(after.explicit, before.explicit, "explicit transfers by a submission")
        work.check()
        last = bench.diagnostics()
        assert last is not None
        moved = sum(part.nbytes for part in work.fixture.bindings)
        same(last.explicit - after.explicit, moved, "bytes counted by reads")
        bench.release(event)


def context_isolation(bench: Bench) -> None:
    """Things of different contexts do not meet."""
    first, second = bench.context(), bench.context()
    queue, other_queue = bench.queue(first), bench.queue(second)
    work = bench.work(first)
    foreign = bench.work(second)
    program, listed = work.program, work.bindings
    for position in range(len(listed)):
        mixed = work.but(position, foreign.bindings[position])
        bench.refused(
            "a buffer of another context",
            partial(queue.submit, program, mixed),
            InvalidArgument,
        )
    for theirs in (listed, foreign.bindings):
        bench.refused(
            "a program of another context",
            partial(queue.submit, foreign.program, theirs),
            InvalidArgument,
        )
    bench.refused(
        "a queue of another context",
        lambda: other_queue.submit(program, listed),
        InvalidArgument,
    )
    bench.run(queue, work)
    bench.run(other_queue, foreign)


def foreign_accelerator(bench: Bench) -> None:
    """Things of different accelerators do not meet either."""
    other = bench.another()
    theirs = other.create_context()
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    program = theirs.load_program(bench.fixture.program.artifact)
    bench.refused(
        "a program of another accelerator",
        lambda: queue.submit(program, work.bindings),
        InvalidArgument,
    )
    part = work.fixture.primary
    domain = bench.accelerator.info.domains[0]
    strange = theirs.allocate_buffer(BufferDesc(part.nbytes, USAGE_ALL, domain))
    mixed = work.but(work.output, binding(part, strange))
    bench.refused(
        "a buffer of another accelerator",
        lambda: queue.submit(work.program, mixed),
        InvalidArgument,
    )
    bench.run(queue, work)


def overlapping_arena(bench: Bench) -> None:
    """Submissions of one program in flight together do not share intermediates."""
    variants = bench.fixture.overlapping
    needs(variants, "the fixture has no overlapping programs")
    context = bench.context()
    queues = [bench.queue(context), bench.queue(context)]
    program = bench.program(context, variants[0])
    room = bench.accelerator.info.limits.max_events_per_context
    works = [bench.work(context, variant, program) for variant in variants[:room]]
    for _ in range(ROUNDS):
        events = [
            bench.submit(queues[number % 2], work) for number, work in enumerate(works)
        ]
        for event in reversed(events):
            bench.complete(event)
        for work, event in zip(works, events, strict=True):
            work.check()
            bench.release(event)
            work.reset()


def repeated_runs(bench: Bench) -> None:
    """The same submission again and again reads and writes what is there now."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    for _ in range(ROUNDS):
        bench.run(queue, work)
        work.reset()
    twin = bench.work(context, program=work.program)
    bench.run(queue, twin)
    bench.release(*twin.buffers)
    fresh = bench.work(context, program=work.program)
    bench.run(queue, fresh)
    bench.run(queue, work)


def finite_admission(bench: Bench) -> None:
    """A deadline of a nanosecond is kept, or refused as what it is."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    before = bench.counts()
    try:
        event = queue.submit(work.program, work.bindings, timeout=Timeout(1))
    except DeadlineExpired:
        bench.counted(before, "after a refused deadline")
    except Indeterminate as error:
        settle_indeterminate(error)
        bench.notes.append("a deadline has an indeterminate outcome")
    else:
        bench.keep(event)
        bench.hooks.complete(event)
        bench.notes.append("deadlines are accepted")
        bench.release(event)
    work.reset()
    bench.run(queue, work)


def _run_inside(
    bench: Bench, context: ContextHandle, fixture: ProgramFixture, domain: MemoryDomain
) -> None:
    """Runs a program on ranges in the middle of buffers full of sentinels."""
    program = bench.program(context, fixture)
    start = bench.hooks.alignment
    margin = bytes([SENTINEL]) * start
    buffers = [
        bench.buffer(context, part.nbytes + 2 * start, domain=domain)
        for part in fixture.bindings
    ]
    for part, buffer in zip(fixture.bindings, buffers, strict=True):
        buffer.write(0, margin + part.initial + margin)
    listed = [
        binding(part, buffer, start)
        for part, buffer in zip(fixture.bindings, buffers, strict=True)
    ]
    queue = bench.queue(context)
    event = bench.keep(queue.submit(program, listed))
    bench.complete(event)
    for part, buffer in zip(fixture.bindings, buffers, strict=True):
        same(
            buffer.read(0, part.nbytes + 2 * start),
            margin + part.result + margin,
            f"the {domain.name} buffer round slot {part.slot}",
        )
    bench.release(event, queue, program, *buffers)


def _equal_inputs(fixture: ProgramFixture) -> tuple[BindingFixture, BindingFixture]:
    inputs = fixture.inputs
    for number, part in enumerate(inputs):
        for other in inputs[number + 1 :]:
            if part.initial == other.initial:
                return part, other
    raise Skip("the fixture has no program with two equal inputs")


CASES = (
    Case(
        "submission.binding-validation",
        Requirement.MANDATORY,
        "bad binding lists are refused with the right error, then the good one runs",
        binding_validation,
    ),
    Case(
        "submission.lengths-and-offsets",
        Requirement.MANDATORY,
        "ranges of another length or alignment are Incompatible",
        lengths_and_offsets,
    ),
    Case(
        "submission.aliasing",
        Requirement.MANDATORY,
        "a written buffer is bound once",
        aliasing,
    ),
    Case(
        "submission.shared-reads",
        Requirement.FIXTURE,
        "two inputs may be one buffer",
        shared_reads,
    ),
    Case(
        "submission.list-order",
        Requirement.MANDATORY,
        "the order of bindings means nothing",
        list_order,
    ),
    Case(
        "submission.offset-bindings",
        Requirement.MANDATORY,
        "work inside larger buffers leaves the rest alone",
        offset_bindings,
    ),
    Case(
        "submission.packed-neighbours",
        Requirement.FIXTURE,
        "bytes beside an output of odd length are kept",
        packed_neighbours,
    ),
    Case(
        "submission.copy-path-diagnostics",
        Requirement.HOOK,
        "submissions bind the exact allocations and copy nothing",
        copy_path,
    ),
    Case(
        "submission.context-isolation",
        Requirement.MANDATORY,
        "things of different contexts do not meet",
        context_isolation,
    ),
    Case(
        "submission.foreign-accelerator",
        Requirement.MANDATORY,
        "things of different accelerators do not meet",
        foreign_accelerator,
    ),
    Case(
        "submission.overlapping-arena",
        Requirement.FIXTURE,
        "submissions of one program in flight together do not share intermediates",
        overlapping_arena,
    ),
    Case(
        "submission.repeated-runs",
        Requirement.MANDATORY,
        "a submission reads and writes what is there now, not what was",
        repeated_runs,
    ),
    Case(
        "timeout.finite-admission",
        Requirement.MANDATORY,
        "a finite deadline is kept or refused as DeadlineExpired",
        finite_admission,
    ),
)
