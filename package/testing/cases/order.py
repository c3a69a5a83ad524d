"""Which error comes first when a call is wrong in two ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tosavk.core.descriptors import (
    USAGE_ALL,
    Binding,
    BufferDesc,
    BufferUsage,
    MemoryDomain,
    Timeout,
)
from tosavk.core.errors import (
    Busy,
    DeadlineExpired,
    Incompatible,
    InvalidArgument,
    ModelError,
    OutOfBounds,
    PermissionDenied,
    ResourceLimit,
    Unsupported,
)
from tosavk.testing.bench import Bench, binding, needs
from tosavk.testing.cases.buffers import FaultyPort
from tosavk.testing.cases.guards import MOST_EVENTS
from tosavk.testing.cases.programs import GARBAGE, UNKNOWN_FORMAT
from tosavk.testing.report import Case, Requirement


def submissions(bench: Bench) -> None:
    """Deadline, count, program, then each binding in turn, then the whole list."""
    context, other = bench.context(), bench.context()
    queue = bench.queue(context)
    work, foreign = bench.work(context), bench.work(other)
    program = work.program
    source, target = work.input, work.output
    parts = work.fixture.bindings
    domain = bench.accelerator.info.domains[0]
    mute = bench.buffer(context, parts[target].nbytes, BufferUsage.TRANSFER_SOURCE)
    strange = bench.keep(
        other.allocate_buffer(BufferDesc(4, BufferUsage.TRANSFER_SOURCE, domain))
    )
    end = max(part.nbytes for part in parts)

    def with_target(changed: Binding) -> list[Binding]:
        return work.but(target, changed)

    wrong_access = parts[source].access
    outside = binding(parts[target], work.buffers[target], end)
    forbidden = binding(parts[target], mute)
    pairs: tuple[tuple[str, list[Binding], type[ModelError]], ...] = (
        (
            "foreign buffer before usage",
            with_target(binding(parts[target], strange)),
            InvalidArgument,
        ),
        (
            "usage before bounds",
            with_target(binding(parts[target], mute, end)),
            PermissionDenied,
        ),
        (
            "bounds before an unknown slot",
            with_target(binding(parts[target], work.buffers[target], end, slot=9999)),
            OutOfBounds,
        ),
        (
            "duplicate slot before access",
            with_target(
                binding(
                    parts[target],
                    work.buffers[target],
                    slot=parts[source].slot,
                )
            ),
            InvalidArgument,
        ),
        (
            "bounds before aliasing",
            with_target(binding(parts[target], work.buffers[source], end)),
            OutOfBounds,
        ),
        ("bounds before a missing slot", [outside], OutOfBounds),
        ("usage before a missing slot", [forbidden], PermissionDenied),
        (
            "access before a missing slot",
            [binding(parts[target], work.buffers[target], access=wrong_access)],
            Incompatible,
        ),
        (
            "the first binding of the list first (bounds)",
            [outside, forbidden],
            OutOfBounds,
        ),
        (
            "the first binding of the list first (usage)",
            [forbidden, outside],
            PermissionDenied,
        ),
    )
    limit = bench.accelerator.info.limits.max_bindings_per_submission
    for what, listed, error in pairs:
        if len(listed) > limit:
            bench.notes.append(f"no room for the pair: {what}")
            continue
        bench.refused(what, partial(queue.submit, program, listed), error)
    bench.refused(
        "deadline before an empty list",
        lambda: queue.submit(program, [], timeout=Timeout(1)),
        DeadlineExpired,
        ResourceLimit,
    )
    bench.refused(
        "an empty list before a foreign program",
        lambda: queue.submit(foreign.program, []),
        ResourceLimit,
    )
    bench.refused(
        "a foreign program before its bindings",
        lambda: queue.submit(foreign.program, [forbidden]),
        InvalidArgument,
    )
    bench.run(queue, work)


def ring_and_guards(bench: Bench) -> None:
    """The list before the ring, the ring before the guards."""
    limits = bench.accelerator.info.limits
    limit = limits.max_events_per_context
    needs(limit <= MOST_EVENTS, f"a ring of {limit} slots is too long to fill")
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    part = work.fixture.primary
    room = limits.max_buffers_per_context - len(work.buffers)
    written = [p for p in work.fixture.bindings if p.expected is not None]
    needs(len(written) == 1 and room >= limit, "too few buffers to fill the ring")
    targets = [bench.buffer(context, part.nbytes) for _ in range(limit)]
    for target in targets:
        bench.submit(queue, work, work.but(work.output, binding(part, target)))
    busy = work.but(work.output, binding(part, targets[0]))
    outside = work.but(work.output, binding(part, targets[0], part.nbytes))
    source = work.fixture.inputs[0]
    for what, listed, error in (
        ("bounds before the ring", outside, OutOfBounds),
        ("a missing slot before the ring", work.bindings[:-1], Incompatible),
        ("the ring before the guards", busy, ResourceLimit),
    ):
        bench.refused(what, partial(queue.submit, work.program, listed), error)
    if source.nbytes == part.nbytes:
        aliased = work.but(work.input, binding(source, work.buffers[work.output]))
        bench.refused(
            "aliasing before the ring",
            lambda: queue.submit(work.program, aliased),
            Incompatible,
        )


def transfers(bench: Bench) -> None:
    """Permission, then guards, then the range."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context)
    source = work.fixture.inputs[0]
    mute = bench.buffer(context, source.nbytes, BufferUsage.PROGRAM_INPUT)
    bench.submit(queue, work, work.but(work.input, binding(source, mute)))
    target = work.buffers[work.output]
    last = work.fixture.primary.nbytes
    calls: tuple[tuple[str, Callable[[], object], type[ModelError]], ...] = (
        ("permission before guards", lambda: mute.write(0, b"a"), PermissionDenied),
        ("permission before guards", lambda: mute.read(0, 1), PermissionDenied),
        ("permission before length", lambda: mute.write(0, b""), PermissionDenied),
        ("permission before bounds", lambda: mute.read(last, 9), PermissionDenied),
        ("guards before length", lambda: target.write(0, b""), Busy),
        ("guards before length", lambda: target.read(0, 0), Busy),
        ("guards before bounds", lambda: target.write(last, b"a"), Busy),
        ("guards before bounds", lambda: target.read(last, 1), Busy),
    )
    for what, call, error in calls:
        bench.refused(what, call, error)
    free = bench.buffer(context, 8)
    bench.refused(
        "length before bounds in a write", lambda: free.write(9, b""), InvalidArgument
    )
    bench.refused(
        "length before bounds in a read", lambda: free.read(9, 0), InvalidArgument
    )


def loads(bench: Bench) -> None:
    """Bounds before the payload is read, the format before target and payload."""
    context = bench.context()
    good = bench.fixture.program.artifact
    unread = replace(good, payload=FaultyPort(64))
    bad_target = (2**32 - 1,) * 12
    for what, artifact, error in (
        (
            "resident_bytes before the payload is read",
            replace(unread, resident_bytes=1),
            ResourceLimit,
        ),
        (
            "resident_bytes before the format",
            replace(good, resident_bytes=1, format=UNKNOWN_FORMAT),
            ResourceLimit,
        ),
        (
            "the format before the target",
            replace(good, format=UNKNOWN_FORMAT, target=bad_target),
            Unsupported,
        ),
        (
            "the format before the payload",
            replace(good, format=UNKNOWN_FORMAT, payload=GARBAGE),
            Unsupported,
        ),
        (
            "the target before the payload",
            replace(good, target=bad_target, payload=GARBAGE),
            Incompatible,
        ),
    ):
        bench.refused(what, partial(context.load_program, artifact), error)


def allocations(bench: Bench) -> None:
    """The size before the domain."""
    info = bench.accelerator.info
    absent = [domain for domain in MemoryDomain if domain not in info.domains]
    needs(absent, "the device offers every memory domain")
    context = bench.context()
    desc = BufferDesc(info.limits.max_buffer_bytes + 1, USAGE_ALL, absent[0])
    bench.refused(
        "the size before the domain",
        lambda: context.allocate_buffer(desc),
        ResourceLimit,
    )


CASES = (
    Case(
        "order.submissions",
        Requirement.MANDATORY,
        "a submission that is wrong twice gets the documented error",
        submissions,
    ),
    Case(
        "order.ring-and-guards",
        Requirement.CAPABILITY,
        "the list is checked before the ring, the ring before the guards",
        ring_and_guards,
    ),
    Case(
        "order.transfers",
        Requirement.MANDATORY,
        "permission comes before guards, guards before the range",
        transfers,
    ),
    Case(
        "order.loads",
        Requirement.MANDATORY,
        "bounds come before the payload, the format before target and payload",
        loads,
    ),
    Case(
        "order.allocations",
        Requirement.CAPABILITY,
        "the size comes before the domain",
        allocations,
    ),
)
