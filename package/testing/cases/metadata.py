"""What a device tells of itself, refused intents, memory domains, counts."""

from __future__ import annotations

from collections.abc import Callable

from tosavk.core.checks import check_buffer_info, validate_device_info
from tosavk.core.descriptors import (
    USAGE_ALL,
    BufferDesc,
    BufferUsage,
    ContextDesc,
    ContextFlags,
    MemoryDomain,
    QueueDesc,
    QueueFlags,
)
from tosavk.core.errors import ModelError, Unsupported
from tosavk.core.shared import LiveResources
from tosavk.testing.bench import TRANSFERS, Bench, needs, require, same
from tosavk.testing.report import Case, ContractFailure, Requirement


def stable_valid(bench: Bench) -> None:
    """Two equal, valid answers; the same after work."""
    accelerator = bench.accelerator
    info = accelerator.info
    try:
        validate_device_info(info)
    except ModelError as error:
        raise ContractFailure(f"the device info is not valid: {error}") from error
    same(accelerator.info, info, "the second device info")
    context = bench.context()
    bench.run(bench.queue(context), bench.work(context))
    same(accelerator.info, info, "the device info after work")


def reserved_flags(bench: Bench) -> None:
    """Flags that nobody supports are refused."""
    secure = ContextDesc(ContextFlags.SECURE)
    in_order = QueueDesc(QueueFlags.IN_ORDER)
    bench.refused(
        "a SECURE context",
        lambda: bench.accelerator.create_context(secure),
        Unsupported,
    )
    context = bench.context()
    bench.refused(
        "an IN_ORDER queue", lambda: context.create_queue(in_order), Unsupported
    )


def _memory(domain: MemoryDomain) -> Callable[[Bench], None]:
    def body(bench: Bench) -> None:
        info = bench.accelerator.info
        needs(domain in info.domains, f"the device does not offer {domain.name} memory")
        context = bench.context()
        usages = (TRANSFERS, USAGE_ALL, TRANSFERS | BufferUsage.PROGRAM_INPUT)
        for nbytes, usage in zip((1, 4096, 77), usages, strict=True):
            buffer = bench.buffer(context, nbytes, usage, domain, 16)
            desc = BufferDesc(nbytes, usage, domain, 16)
            try:
                check_buffer_info(desc, buffer.info)
            except ModelError as error:
                raise ContractFailure(
                    f"{desc}: dishonest info {buffer.info}: {error}"
                ) from error
            data = bytes(i * 7 & 255 for i in range(nbytes))
            buffer.write(0, data)
            same(buffer.read(0, nbytes), data, f"bytes of a {domain.name} buffer")

    return body


def unavailable_domains(bench: Bench) -> None:
    """Domains that are not advertised are refused."""
    info = bench.accelerator.info
    absent = [domain for domain in MemoryDomain if domain not in info.domains]
    needs(absent, "the device offers every memory domain")
    context = bench.context()
    for domain in absent:
        desc = BufferDesc(16, USAGE_ALL, domain)

        def allocate(desc: BufferDesc = desc) -> object:
            return context.allocate_buffer(desc)

        bench.refused(f"a buffer in {domain.name}", allocate, Unsupported)


def resource_lifecycle(bench: Bench) -> None:
    """Every creation and every release is counted, at once."""
    needs(bench.hooks.counts, "the hook `counts` is not given")
    bench.counted(LiveResources(), "at the beginning")
    context = bench.context()
    bench.counted(LiveResources(contexts=1), "with a context")
    other = bench.context()
    queue = bench.queue(context)
    bench.counted(LiveResources(contexts=2, queues=1), "with two contexts and a queue")
    work = bench.work(context)
    live = LiveResources(2, len(work.buffers), 1, 1)
    bench.counted(live, "with a program and its buffers")
    event = bench.submit(queue, work)
    busy = LiveResources(2, len(work.buffers), 1, 1, 1)
    bench.counted(busy, "with an event")
    bench.complete(event)
    bench.counted(busy, "with an event that has ended")
    bench.release(event)
    bench.counted(live, "after the event's release")
    bench.release(*work.buffers)
    bench.counted(LiveResources(2, 0, 1, 1), "after the release of the buffers")
    bench.release(work.program, queue, other)
    bench.counted(LiveResources(1), "with one context left")
    bench.release(context)
    bench.counted(LiveResources(), "after the last release")


def distinct_accelerators(bench: Bench) -> None:
    """What lives on one accelerator is not counted on another."""
    needs(bench.hooks.counts, "the hook `counts` is not given")
    other = bench.another()
    require(other is not bench.accelerator, "the factory gave the same accelerator")
    context = bench.context()
    bench.buffer(context, 64)
    assert bench.hooks.counts is not None
    same(bench.hooks.counts(other), LiveResources(), "live resources of the other one")


_DOMAINS = tuple(
    Case(
        f"memory.{domain.name.lower()}",
        Requirement.CAPABILITY,
        f"{domain.name} buffers hold bytes and describe themselves honestly",
        _memory(domain),
    )
    for domain in MemoryDomain
)

CASES = (
    Case(
        "metadata.stable-valid",
        Requirement.MANDATORY,
        "the device info is valid and never changes",
        stable_valid,
    ),
    Case(
        "intent.reserved-flags",
        Requirement.MANDATORY,
        "SECURE contexts and IN_ORDER queues are Unsupported",
        reserved_flags,
    ),
    *_DOMAINS,
    Case(
        "memory.unavailable-domains",
        Requirement.CAPABILITY,
        "memory domains that are not advertised are Unsupported",
        unavailable_domains,
    ),
    Case(
        "accounting.resource-lifecycle",
        Requirement.HOOK,
        "live resources are counted exactly",
        resource_lifecycle,
    ),
    Case(
        "accounting.separate-accelerators",
        Requirement.HOOK,
        "each accelerator counts its own resources",
        distinct_accelerators,
    ),
)
