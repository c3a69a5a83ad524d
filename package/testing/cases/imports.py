"""Imported host memory and mapped views, where implementations have them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from tosavk.core.descriptors import (
    USAGE_ALL,
    BufferDesc,
    BufferUsage,
    EventState,
    MemoryDomain,
)
from tosavk.core.errors import (
    Busy,
    InvalidArgument,
    OutOfMemory,
    PermissionDenied,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.imports import aligned_array
from tosavk.testing.bench import Bench, binding, needs, refuses, require, same
from tosavk.testing.fixture import ProgramFixture
from tosavk.testing.protocols import BufferHandle
from tosavk.testing.report import Case, Requirement, Skip


def shared_bytes(bench: Bench) -> None:
    """The device uses the memory itself: what is stored there is what it reads."""
    alignment = _alignment(bench)
    context: Any = bench.context()
    work = bench.work(context)
    part = work.fixture.bindings[work.input]
    target = work.fixture.primary
    arrays = [aligned_array(alignment, alignment=alignment) for _ in range(2)]
    domain = _domain(bench)
    source, sink = (
        bench.keep(
            cast(
                BufferHandle,
                context.import_host_buffer(
                    BufferDesc(alignment, USAGE_ALL, domain), array
                ),
            )
        )
        for array in arrays
    )
    arrays[0][: part.nbytes] = np.frombuffer(part.initial, np.uint8)
    listed = work.but(work.input, binding(part, source))
    listed[work.output] = binding(target, sink)
    event = bench.submit(bench.queue(context), work, listed)
    bench.complete(event)
    got = arrays[1][: target.nbytes].tobytes()
    same(got, target.result, "bytes that the device stored to imported memory")
    same(sink.read(0, target.nbytes), target.result, "bytes read from such a buffer")
    require(
        not arrays[1][target.nbytes :].any(), "bytes beside the output have changed"
    )
    source.write(0, b"xyz")
    same(arrays[0][:3].tobytes(), b"xyz", "bytes written to such a buffer")
    bench.release(event, source, sink)
    arrays[0][:] = 1  # the memory is the caller's again


def kept_alive(bench: Bench) -> None:
    """The buffer keeps its memory alive."""
    alignment = _alignment(bench)
    context: Any = bench.context()
    array = aligned_array(alignment, alignment=alignment)
    array[:] = 9
    desc = BufferDesc(alignment, USAGE_ALL, _domain(bench))
    made = bench.keep(cast(BufferHandle, context.import_host_buffer(desc, array)))
    del array
    same(made.read(0, 4), b"\x09" * 4, "bytes of memory that only the buffer holds")


def refused_memory(bench: Bench) -> None:
    """Memory that cannot be shared is refused, and nothing is left."""
    alignment = _alignment(bench)
    context: Any = bench.context()
    room = aligned_array(2 * alignment, alignment=alignment)
    desc = BufferDesc(alignment, USAGE_ALL, _domain(bench))
    frozen = room[:alignment].view()
    frozen.flags.writeable = False
    for what, memory in (
        ("read-only memory", frozen),
        ("memory at an odd address", room[4 : 4 + alignment]),
        ("memory that is too small", room[: alignment // 2]),
        ("memory with gaps", room[::2]),
        ("no memory", 17),
    ):
        bench.refused(
            f"the import of {what}",
            partial(context.import_host_buffer, desc, memory),
            InvalidArgument,
        )
    if MemoryDomain.DEVICE in bench.accelerator.info.domains:
        device = BufferDesc(alignment, USAGE_ALL, MemoryDomain.DEVICE)
        bench.refused(
            "an import into DEVICE memory",
            partial(context.import_host_buffer, device, room),
            Unsupported,
        )
    aligned = BufferDesc(alignment, USAGE_ALL, _domain(bench), 1 << 62)
    bench.refused(
        "an import with an alignment of 2**62",
        partial(context.import_host_buffer, aligned, room[:alignment]),
        ResourceLimit,
        OutOfMemory,
    )


def views(bench: Bench) -> None:
    """A view shows the buffer's bytes, keeps others out, and ends with its block."""
    context = bench.context()
    queue = bench.queue(context)
    work = bench.work(context, _mapped(bench))
    buffer: Any = work.buffers[work.output]
    with buffer.map() as array:
        array[0] = 77
    same(buffer.read(0, 1), b"M", "a byte stored through a view")
    before = bench.counts()
    with buffer.map() as array:
        same(int(array[0]), 77, "a byte seen through a view")
        for what, call in {
            "a write to a mapped buffer": partial(buffer.write, 0, b"a"),
            "a read of a mapped buffer": partial(buffer.read, 0, 1),
            "the release of a mapped buffer": buffer.release,
            "a submission with a mapped buffer": partial(
                queue.submit, work.program, work.bindings
            ),
        }.items():
            refuses(what, call, Busy)
    refuses(
        "a store through a view after its block",
        partial(_store, array),
        InvalidArgument,
    )
    bench.counted(before, "after a view")
    event = bench.submit(queue, work)
    refuses("a view of a buffer in use", partial(_enter, buffer), Busy)
    bench.complete(event)
    same(event.poll(), EventState.COMPLETE, "work after a view")
    work.check()
    mute: Any = bench.buffer(context, 16, BufferUsage.PROGRAM_INPUT)
    refuses("a view without a transfer usage", partial(_enter, mute), PermissionDenied)


def _mapped(bench: Bench) -> ProgramFixture:
    """The program with its buffers in a domain that is mapped."""
    fixture = bench.fixture.program
    context = bench.context()
    for domain in bench.accelerator.info.domains:
        probe: Any = bench.buffer(context, 16, domain=domain)
        needs(hasattr(probe, "map"), "buffers have no views")
        try:
            _enter(probe)
        except Unsupported:
            continue
        parts = tuple(replace(part, domain=domain) for part in fixture.bindings)
        return ProgramFixture(fixture.artifact, parts)
    raise Skip("no memory of this device is mapped")


def _store(array: Any) -> None:  # noqa: ANN401 - whatever a view is
    array[0] = 1


def _enter(buffer: Any) -> None:  # noqa: ANN401 - buffers of any implementation
    with buffer.map():
        pass


def _alignment(bench: Bench) -> int:
    alignment = getattr(bench.accelerator, "host_import_alignment", None)
    needs(alignment, "the device does not import host memory")
    return int(cast(int, alignment))


def _domain(bench: Bench) -> MemoryDomain:
    domains = bench.accelerator.info.domains
    return MemoryDomain.HOST if MemoryDomain.HOST in domains else MemoryDomain.SHARED


CASES = (
    Case(
        "import.shared-bytes",
        Requirement.CAPABILITY,
        "the device uses imported memory itself",
        shared_bytes,
    ),
    Case(
        "import.kept-alive",
        Requirement.CAPABILITY,
        "a buffer keeps imported memory alive",
        kept_alive,
    ),
    Case(
        "import.refused-memory",
        Requirement.CAPABILITY,
        "memory that cannot be shared is refused",
        refused_memory,
    ),
    Case(
        "buffer.views",
        Requirement.CAPABILITY,
        "a view shows the bytes, keeps others out, and ends with its block",
        views,
    ),
)
