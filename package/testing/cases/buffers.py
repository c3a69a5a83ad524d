"""Transfers: ranges, permissions, ports, and the bytes around them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from tosavk.core.descriptors import U64_MAX, BufferDesc, BufferUsage
from tosavk.core.errors import (
    InvalidArgument,
    OutOfBounds,
    OutOfMemory,
    PermissionDenied,
    ResourceLimit,
)
from tosavk.core.ports import Segments
from tosavk.testing.bench import TRANSFERS, Bench, needs, same
from tosavk.testing.report import Case, ContractFailure, Requirement

NBYTES = 257
ROUNDS = 24


class PortFault(Exception):
    """Raised by the ports below."""


class FaultyPort:
    """A port that says how long it is, and then fails."""

    def __init__(self, nbytes: int) -> None:
        """A port of `nbytes`."""
        self.nbytes = nbytes

    def read_at(self, offset: int, out: memoryview) -> None:
        """Fails.

        Raises:
            PortFault: always.
        """
        raise PortFault(f"read of {out.nbytes} bytes at {offset}")

    def write_at(self, offset: int, data: memoryview) -> None:
        """Fails.

        Raises:
            PortFault: always.
        """
        raise PortFault(f"write of {data.nbytes} bytes at {offset}")


def segmented_transfer_bounds(bench: Bench) -> None:
    """Two segments in, two out; one byte too many is refused."""
    context = bench.context()
    data = bytes(i & 255 for i in range(NBYTES))
    for domain in bench.accelerator.info.domains:
        buffer = bench.buffer(context, NBYTES, TRANSFERS, domain)
        buffer.write(0, Segments([data[:100], data[100:]]))
        first, second = bytearray(60), bytearray(NBYTES - 60)
        buffer.read_into(0, Segments([first, second]))
        same(bytes(first + second), data, f"segmented bytes in {domain.name}")
        same(buffer.read(0, NBYTES), data, f"bytes in {domain.name}")
        over = Segments([bytearray(100), bytearray(NBYTES - 99)])
        bench.refused(
            "a write past the end", partial(buffer.write, 0, over), OutOfBounds
        )
        bench.refused(
            "a read past the end", partial(buffer.read_into, 0, over), OutOfBounds
        )
        for offset in (1, NBYTES, U64_MAX):
            bench.refused(
                f"a write at {offset}",
                partial(buffer.write, offset, data),
                OutOfBounds,
            )
            bench.refused(
                f"a read at {offset}",
                partial(buffer.read, offset, NBYTES),
                OutOfBounds,
            )
        same(buffer.read(0, NBYTES), data, "bytes after refused transfers")


def transfer_permissions(bench: Bench) -> None:
    """Each direction needs its usage."""
    context = bench.context()
    for domain in bench.accelerator.info.domains:
        source = bench.buffer(context, 16, BufferUsage.TRANSFER_SOURCE, domain)
        target = bench.buffer(context, 16, BufferUsage.TRANSFER_DESTINATION, domain)
        target.write(0, bytes(16))
        source.read(0, 16)
        bench.refused(
            "a write without TRANSFER_DESTINATION",
            partial(source.write, 0, bytes(16)),
            PermissionDenied,
        )
        bench.refused(
            "a read without TRANSFER_SOURCE",
            partial(target.read, 0, 16),
            PermissionDenied,
        )
        bench.refused(
            "a read into a buffer without TRANSFER_SOURCE",
            partial(target.read_into, 0, bytearray(16)),
            PermissionDenied,
        )


def transfer_arguments(bench: Bench) -> None:
    """Nothing can be moved by halves or backwards."""
    buffer = bench.buffer(bench.context(), 16, TRANSFERS)
    for what, call in {
        "a write of no bytes": lambda: buffer.write(0, b""),
        "a read of no bytes": lambda: buffer.read(0, 0),
        "a negative write offset": lambda: buffer.write(-1, b"a"),
        "a negative read offset": lambda: buffer.read(-1, 1),
        "a negative length": lambda: buffer.read(0, -1),
        "a read into read-only bytes": lambda: buffer.read_into(0, b"abcd"),
    }.items():
        bench.refused(what, call, InvalidArgument)


def partial_transfers(bench: Bench) -> None:
    """Odd ranges change exactly their bytes, in every domain."""
    context = bench.context()
    rng = random.Random(8)
    for domain in bench.accelerator.info.domains:
        buffer = bench.buffer(context, NBYTES, TRANSFERS, domain)
        model = bytearray(rng.randbytes(NBYTES))
        buffer.write(0, model)
        for _ in range(ROUNDS):
            start = rng.randrange(NBYTES)
            count = rng.randint(1, min(NBYTES - start, rng.choice((3, 9, NBYTES))))
            if rng.random() < 0.6:
                data = rng.randbytes(count)
                model[start : start + count] = data
                buffer.write(start, data)
            else:
                wanted = bytes(model[start : start + count])
                what = f"bytes {start}..{start + count} in {domain.name}"
                same(buffer.read(start, count), wanted, what)
        same(buffer.read(0, NBYTES), bytes(model), f"all bytes in {domain.name}")


def failing_ports(bench: Bench) -> None:
    """What a port raises comes through, and the buffer stays usable."""
    context = bench.context()
    for domain in bench.accelerator.info.domains:
        buffer = bench.buffer(context, 64, TRANSFERS, domain)
        buffer.write(0, bytes(range(64)))
        totals = bench.diagnostics()
        _raises_fault("write", partial(buffer.write, 0, FaultyPort(32)))
        same(
            buffer.read(32, 32),
            bytes(range(32, 64)),
            "bytes outside the range of a failed write",
        )
        buffer.write(0, bytes(range(64)))
        _raises_fault("read", partial(buffer.read_into, 0, FaultyPort(64)))
        same(buffer.read(0, 64), bytes(range(64)), "bytes after a failed read")
        if totals is not None:
            now = bench.diagnostics()
            assert now is not None
            moved = now.explicit - totals.explicit
            same(moved, 32 + 64 + 64, "bytes counted beside failed transfers")


def impossible_requests(bench: Bench) -> None:
    """Refused allocations leave nothing behind."""
    context = bench.context()
    limits = bench.accelerator.info.limits
    for domain in bench.accelerator.info.domains:
        large = limits.max_buffer_bytes + 1
        if large <= U64_MAX:
            desc = BufferDesc(large, TRANSFERS, domain)
            bench.refused(
                f"a buffer of {large} bytes",
                partial(context.allocate_buffer, desc),
                ResourceLimit,
            )
        aligned = BufferDesc(64, TRANSFERS, domain, 1 << 62)
        bench.refused(
            "an alignment of 2**62",
            partial(context.allocate_buffer, aligned),
            ResourceLimit,
            OutOfMemory,
        )


def transfer_totals(bench: Bench) -> None:
    """Only transfers that succeed are counted, with their length."""
    needs(bench.hooks.diagnostics, "the hook `diagnostics` is not given")
    buffer = bench.buffer(bench.context(), 64, TRANSFERS)
    before = bench.diagnostics()
    buffer.write(1, b"abc")
    buffer.read(0, 10)
    buffer.read_into(0, bytearray(20))
    buffer.write(0, Segments([b"ab", b"cde"]))
    after = bench.diagnostics()
    assert before is not None
    assert after is not None
    same(after.explicit - before.explicit, 38, "bytes counted by transfers")


def _raises_fault(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except PortFault:
        return
    raise ContractFailure(f"the error of a port was lost in a {what}")


CASES = (
    Case(
        "buffer.segmented-transfer-bounds",
        Requirement.MANDATORY,
        "segments go in and out; ranges past the end are OutOfBounds",
        segmented_transfer_bounds,
    ),
    Case(
        "buffer.transfer-permissions",
        Requirement.MANDATORY,
        "transfers without their usage are PermissionDenied",
        transfer_permissions,
    ),
    Case(
        "buffer.transfer-arguments",
        Requirement.MANDATORY,
        "empty and negative transfers are InvalidArgument",
        transfer_arguments,
    ),
    Case(
        "buffer.partial-transfers",
        Requirement.MANDATORY,
        "a transfer touches exactly its bytes, at any offset and length",
        partial_transfers,
    ),
    Case(
        "buffer.failing-ports",
        Requirement.MANDATORY,
        "errors of ports come through, and a failed read changes nothing",
        failing_ports,
    ),
    Case(
        "buffer.impossible-requests",
        Requirement.MANDATORY,
        "a failing allocation retains nothing",
        impossible_requests,
    ),
    Case(
        "accounting.transfer-totals",
        Requirement.HOOK,
        "explicit transfers are counted by their bytes",
        transfer_totals,
    ),
)
