"""Bytes written to and read from a mapped buffer, against numpy.copyto, in one run.

    python benchmarks/transfer.py [--backend vulkan:llvmpipe] [--mebibytes 64]

All rows copy the same bytes between the same host array and either another host array
(the floor) or the buffer: by `write` and `read_into`, and by `copyto` through a mapped
view. They take turns, so that load hits them alike; the best time of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

import tosavk
from tosavk.core.buffers import Buffer
from tosavk.core.descriptors import BufferDesc, BufferUsage, MemoryDomain
from tosavk.core.errors import Unsupported
from tosavk.core.imports import aligned_array

USAGE = (
    BufferUsage.TRANSFER_SOURCE
    | BufferUsage.TRANSFER_DESTINATION
    | BufferUsage.PROGRAM_INPUT
)
TARGET = 0.7


def measure(rows: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of the fastest of `rounds` calls of each row."""
    best = dict.fromkeys(rows, float("inf"))
    for turn in range(rounds + 1):
        for name, call in rows.items():
            start = time.perf_counter()
            call()
            if turn:  # the first round touches all pages
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="vulkan", help="default vulkan")
    parser.add_argument("--mebibytes", type=int, default=64, help="default 64")
    parser.add_argument("--rounds", type=int, default=20, help="default 20")
    options = parser.parse_args()
    nbytes = options.mebibytes << 20
    with tosavk.open(options.backend) as accelerator:
        context = accelerator.create_context()
        ours, other = aligned_array(nbytes), aligned_array(nbytes)
        ours[:] = np.arange(nbytes, dtype=np.uint8)
        buffers: dict[str, Buffer] = {}
        for domain in accelerator.info.domains:
            with suppress(tosavk.Error):
                desc = BufferDesc(nbytes, USAGE, domain)
                buffers[domain.name] = context.allocate_buffer(desc)
        with suppress(Unsupported):
            desc = BufferDesc(nbytes, USAGE, MemoryDomain.HOST)
            buffers["imported"] = context.import_host_buffer(
                desc, aligned_array(nbytes)
            )
        print(f"{accelerator.name}, {options.mebibytes} MiB, best of {options.rounds}")
        for name, buffer in buffers.items():
            show(name, buffer, ours, other, options.rounds)


def show(
    name: str,
    buffer: Buffer,
    ours: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    other: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    rounds: int,
) -> None:
    """Measures one buffer and prints its lines."""

    def map_in() -> None:
        with buffer.map() as view:
            np.copyto(view, ours)

    def map_out() -> None:
        with buffer.map() as view:
            np.copyto(other, view)

    rows: dict[str, Callable[[], object]] = {
        "numpy.copyto": lambda: np.copyto(other, ours),
        "write": lambda: buffer.write(0, ours),
        "read_into": lambda: buffer.read_into(0, other),
        "map, copy in": map_in,
        "map, copy out": map_out,
    }
    try:
        map_out()
    except Unsupported:
        del rows["map, copy in"], rows["map, copy out"]
    best = measure(rows, rounds)
    floor = best.pop("numpy.copyto")
    gib = ours.nbytes / (1 << 30)
    print(f"{name:9} {'numpy.copyto':14} {gib / floor:7.2f} GiB/s")
    for row, seconds in best.items():
        part = floor / seconds
        mark = "" if part >= TARGET else f"  below {TARGET:.0%}"
        print(f"{name:9} {row:14} {gib / seconds:7.2f} GiB/s {part:6.0%}{mark}")


if __name__ == "__main__":
    main()
