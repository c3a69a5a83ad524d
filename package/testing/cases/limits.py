"""Limits: each context has its own, and a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tosavk.core.descriptors import (
    BufferDesc,
    ContextDesc,
    ContextFlags,
    QueueDesc,
    QueueFlags,
)
from tosavk.core.errors import ResourceLimit, Unsupported
from tosavk.testing.bench import TRANSFERS, Bench, needs
from tosavk.testing.cases.programs import UNKNOWN_FORMAT
from tosavk.testing.protocols import ContextHandle, Handle
from tosavk.testing.report import Case, Requirement

MOST = 1024


def contexts(bench: Bench) -> None:
    """One context too many is refused; a release makes room."""
    limit = bench.accelerator.info.limits.max_contexts
    needs(limit <= MOST, f"{limit} contexts are too many to make")
    made = [bench.context() for _ in range(limit)]
    create = bench.accelerator.create_context
    bench.refused(f"context {limit + 1}", create, ResourceLimit)
    secure = ContextDesc(ContextFlags.SECURE)
    bench.refused("flags before the limit", lambda: create(secure), Unsupported)
    bench.release(made.pop())
    last = bench.context()
    bench.run(bench.queue(last), bench.work(last))


def buffers(bench: Bench) -> None:
    """One buffer too many is refused, in this context only."""
    limits = bench.accelerator.info.limits
    desc = BufferDesc(4, TRANSFERS, bench.accelerator.info.domains[0])
    _fill(
        bench,
        "buffer",
        limits.max_buffers_per_context,
        lambda context: context.allocate_buffer(desc),
    )
    large = replace(desc, nbytes=limits.max_buffer_bytes + 1)
    context = bench.context()
    bench.refused(
        "a buffer that is too large",
        lambda: context.allocate_buffer(large),
        ResourceLimit,
    )


def programs(bench: Bench) -> None:
    """One program too many is refused, in this context only."""
    artifact = bench.fixture.program.artifact
    context = _fill(
        bench,
        "program",
        bench.accelerator.info.limits.max_programs_per_context,
        lambda context: context.load_program(artifact),
    )
    strange = replace(artifact, format=UNKNOWN_FORMAT)
    bench.refused(
        "the limit before the format",
        lambda: context.load_program(strange),
        ResourceLimit,
    )


def queues(bench: Bench) -> None:
    """One queue too many is refused, in this context only."""
    context = _fill(
        bench,
        "queue",
        bench.accelerator.info.limits.max_queues_per_context,
        lambda context: context.create_queue(),
    )
    in_order = QueueDesc(QueueFlags.IN_ORDER)
    bench.refused(
        "flags before the limit", lambda: context.create_queue(in_order), Unsupported
    )


def _fill(
    bench: Bench, what: str, limit: int, make: Callable[[ContextHandle], Handle]
) -> ContextHandle:
    """Fills a context with one kind of thing, and leaves it full."""
    needs(limit <= MOST, f"{limit} times a {what} are too many to make")
    full, other = bench.context(), bench.context()
    made = [bench.keep(make(full)) for _ in range(limit)]
    bench.refused(f"{what} {limit + 1}", lambda: make(full), ResourceLimit)
    bench.keep(make(other))
    bench.release(made.pop())
    bench.keep(make(full))
    bench.refused(f"{what} {limit + 1} again", lambda: make(full), ResourceLimit)
    return full


CASES = (
    Case(
        "limits.contexts",
        Requirement.CAPABILITY,
        "there are at most max_contexts",
        contexts,
    ),
    Case(
        "limits.buffers",
        Requirement.CAPABILITY,
        "each context has at most max_buffers_per_context",
        buffers,
    ),
    Case(
        "limits.programs",
        Requirement.CAPABILITY,
        "each context has at most max_programs_per_context",
        programs,
    ),
    Case(
        "limits.queues",
        Requirement.CAPABILITY,
        "each context has at most max_queues_per_context",
        queues,
    ),
)
