#!/usr/bin/env python3
"""Streams expert weights from a file to the device, read straight into its memory.

    expert_streaming.py                          makes a file of experts and streams it
    expert_streaming.py --backend vulkan:llvmpipe --experts 64 --inner 1024 --width 1024
    expert_streaming.py --file weights.bin --slots 8

Two ways of running y = x @ w for many matrices w that do not fit the device at once:

*plain*: read a matrix into host memory, write it to a buffer, submit, wait, next.

*gated*: a few buffers are imported host memory. A thread reads matrices from the file into
that memory, without a copy, and raises a gate after each; this thread queues the products
behind the gate before their weights are there, so neither waits for the other.

Each way is run with reads past the page cache (O_DIRECT), where the file allows it, and
with ordinary ones. All must give the same bits, and the first matrix what NumPy gives, up
to rounding.

Exit codes: 0 the results agree, 1 they do not, 2 the device cannot do it, or the file or
a number is wrong.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tosavk
from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    BufferUsage,
    EventState,
    MemoryDomain,
)
from tosavk.core.events import Event
from tosavk.core.imports import aligned_array
from tosavk.core.prepared import Prepared
from tosavk.core.programs import Program
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

Floats = NDArray[np.float32]
UNIT = 4096
"""What unbuffered reads, and most devices, want addresses and sizes to be."""

INPUT = BufferUsage.TRANSFER_DESTINATION | BufferUsage.PROGRAM_INPUT
OUTPUT = BufferUsage.TRANSFER_SOURCE | BufferUsage.PROGRAM_OUTPUT


@dataclass(frozen=True, slots=True)
class Layout:
    """Experts in a file, one after the other, each starting at a multiple of UNIT.

    Attributes:
        experts: how many.
        tokens: rows of x.
        inner: columns of x, rows of w.
        width: columns of w.
    """

    experts: int
    tokens: int
    inner: int
    width: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of one matrix."""
        return 4 * self.inner * self.width

    @property
    def stride(self) -> int:
        """Bytes from one matrix to the next."""
        return -(-self.weight_bytes // UNIT) * UNIT

    @property
    def result_shape(self) -> tuple[int, int, int]:
        """All results."""
        return (self.experts, self.tokens, self.width)


class File:
    """A file of experts that is read at given places, by any thread.

    Args:
        path: the file.
        direct: past the page cache; OSError where that cannot be.
    """

    def __init__(self, path: Path, *, direct: bool) -> None:
        flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if direct else 0)
        if direct and not hasattr(os, "O_DIRECT"):
            raise OSError("this system has no O_DIRECT")
        self._file = os.open(path, flags)
        if direct:  # some file systems only refuse the first read
            try:
                self.read(0, aligned_array(UNIT))
            except OSError:
                self.close()
                raise

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Fills `out`; address, size and offset are multiples of UNIT.

        Raises:
            EOFError: the file is too short.
        """
        view = out.data
        while view.nbytes:
            count = os.preadv(self._file, [view], offset)
            if not count:
                raise EOFError(f"the file ends before byte {offset + view.nbytes}")
            view, offset = view[count:], offset + count

    def close(self) -> None:
        """Closes it."""
        os.close(self._file)


def make_file(path: Path, layout: Layout) -> None:
    """Writes random matrices of small whole numbers, whose products are exact."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(layout.experts):
            matrix = rng.integers(-2, 3, (layout.inner, layout.width), np.int8)
            file.write(matrix.astype(np.float32).tobytes().ljust(layout.stride, b"\0"))


def model(layout: Layout) -> bytes:
    """y = x @ w."""
    builder = tosavk.Builder()
    x = builder.input("x", tosavk.DType.FP32, (1, layout.tokens, layout.inner))
    w = builder.input("w", tosavk.DType.FP32, (1, layout.inner, layout.width))
    builder.output(builder.matmul(x, w))
    return builder.build()


class Runner:
    """The program on a device, with what both ways need."""

    def __init__(self, accelerator: Accelerator, layout: Layout, x: Floats) -> None:
        self.accelerator = accelerator
        self.layout = layout
        self.context: Context = accelerator.create_context()
        limits = accelerator.device.plan_limits
        lowered = lower_graph(load_graph(model(layout)), limits=limits)
        self.program: Program = self.context.load_program(lowered)
        self.x = self.buffer(x.nbytes, INPUT)
        self.x.write(0, x)

    def buffer(self, nbytes: int, usage: BufferUsage) -> Buffer:
        """A buffer in host memory that the device sees."""
        return self.context.allocate_buffer(
            BufferDesc(nbytes, usage, MemoryDomain.HOST)
        )

    def output(self) -> Buffer:
        """A buffer for the result of one expert."""
        return self.buffer(4 * self.layout.tokens * self.layout.width, OUTPUT)

    def prepare(self, w: Buffer, y: Buffer) -> Prepared:
        """The product with w, ready to be launched again and again."""
        buffers = [
            (self.x, AccessMode.READ),
            (w, AccessMode.READ),
            (y, AccessMode.WRITE),
        ]
        return self.context.prepare(
            self.program,
            [
                Binding(slot.index, buffer, BufferRange(0, slot.nbytes), access)
                for slot, (buffer, access) in zip(
                    self.program.slots, buffers, strict=True
                )
            ],
        )


class Plain:
    """Read, write, submit, wait; one matrix after the other."""

    def __init__(self, runner: Runner) -> None:
        self._layout = runner.layout
        self._staging = aligned_array(runner.layout.stride)
        self._w = runner.buffer(runner.layout.weight_bytes, INPUT)
        self._y = runner.output()
        self._work = runner.prepare(self._w, self._y)

    def run(self, file: File, results: Floats) -> None:
        """Fills the results of all experts."""
        layout = self._layout
        for expert in range(layout.experts):
            file.read(expert * layout.stride, self._staging)
            self._w.write(0, self._staging[: layout.weight_bytes])
            finish(self._work.submit())
            self._y.read_into(0, results[expert])


class Gated:
    """Read by a thread into imported memory; queued here, behind a gate."""

    def __init__(self, runner: Runner, slots: int) -> None:
        layout = runner.layout
        self._layout = layout
        self._accelerator = runner.accelerator
        unit = max(UNIT, runner.accelerator.host_import_alignment or UNIT)
        self._arrays = [
            aligned_array(-(-layout.stride // unit) * unit, alignment=unit)
            for _ in range(min(slots, layout.experts))
        ]
        desc = BufferDesc(layout.weight_bytes, INPUT, MemoryDomain.HOST)
        self._ys = [runner.output() for _ in self._arrays]
        self._works = [
            runner.prepare(runner.context.import_host_buffer(desc, array), y)
            for array, y in zip(self._arrays, self._ys, strict=True)
        ]

    def run(self, file: File, results: Floats) -> None:
        """Fills the results of all experts."""
        experts, count = self._layout.experts, len(self._arrays)
        with (
            self._accelerator.create_gate() as gate,
            Reader(file, self._layout, self._arrays, gate.signal().raise_to) as reader,
        ):
            events: list[Event | None] = [None] * count
            # Work goes round the slots; the last round only collects.
            for expert in range(experts + count):
                slot = expert % count
                event = events[slot]
                if event is not None:
                    finish(event)
                    self._ys[slot].read_into(0, results[expert - count])
                    events[slot] = None
                if expert < experts:
                    # The weights are not there yet: so many of them will be when the
                    # gate has been raised to that number.
                    events[slot] = self._works[slot].submit_after(gate, expert + 1)
                    reader.want(expert, slot)


class Reader:
    """The thread that reads matrices, and raises the gate after each.

    Args:
        file: where from.
        layout: what is in it.
        arrays: memory of the slots.
        raise_to: raises the gate.
    """

    def __init__(
        self,
        file: File,
        layout: Layout,
        arrays: list[NDArray[Any]],
        raise_to: Callable[[int], bool],
    ) -> None:
        self._file = file
        self._layout = layout
        self._arrays = arrays
        self._raise_to = raise_to
        self._wanted: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="reader")

    def want(self, expert: int, slot: int) -> None:
        """Has an expert read into a slot, which is free."""
        self._wanted.put((expert, slot))

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._wanted.put(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (job := self._wanted.get()) is not None:
            expert, slot = job
            try:
                if self._failure is None:
                    offset = expert * self._layout.stride
                    self._file.read(offset, self._arrays[slot][: self._layout.stride])
            except Exception as error:  # noqa: BLE001 - the other thread raises it
                self._failure = error
            # After a failure too: nobody may wait for ever.
            self._raise_to(expert + 1)


def finish(event: Event) -> None:
    """Waits for the end of a submission.

    Raises:
        ModelError: it failed.
    """
    with event:
        if event.wait() is not EventState.COMPLETE and event.error is not None:
            raise event.error


def compare(
    accelerator: Accelerator, path: Path, layout: Layout, *, slots: int, rounds: int
) -> bool:
    """Runs both ways with both kinds of reads, prints a table, compares the results."""
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (layout.tokens, layout.inner)).astype(np.float32)
    runner = Runner(accelerator, layout, x)
    first = np.fromfile(path, np.float32, layout.inner * layout.width)
    w = first.reshape(layout.inner, layout.width).astype(np.float64)
    expected, magnitude = x @ w, np.abs(x) @ np.abs(w)
    allowed = layout.inner * 2.0**-23 * magnitude
    total = layout.experts * layout.stride
    print(
        f"{accelerator.name}\n{layout.experts} experts of {layout.stride >> 10} KiB, "
        f"{layout.tokens} tokens, {slots} slots"
    )
    ways = {"plain": Plain(runner).run, "gated": Gated(runner, slots).run}
    agree = True
    reference: Floats | None = None
    for direct in (True, False):
        name = "O_DIRECT" if direct else "page cache"
        try:
            file = File(path, direct=direct)
        except OSError as error:
            print(f"{name:10}  not here: {error.strerror or error}")
            continue
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(rounds + 1):  # the first one warms up
            for way, run in ways.items():
                out = np.full(layout.result_shape, np.nan, np.float32)
                start = time.perf_counter()
                run(file, out)
                if turn or not rounds:
                    times[way].append(time.perf_counter() - start)
                reference = out if reference is None else reference
                agree &= np.array_equal(out, reference)
                agree &= bool((np.abs(out[0] - expected) <= allowed).all())
        file.close()
        best = {way: min(seconds) for way, seconds in times.items()}
        for way, seconds in best.items():
            rate = total / seconds / (1 << 20)
            gain = f"  {best['plain'] / seconds:.2f} x plain" if way == "gated" else ""
            print(f"{name:10}  {way}  {rate:8.1f} MiB/s{gain}")
    print("results agree" if agree else "RESULTS DIFFER")
    return agree


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="vulkan", help="default vulkan")
    parser.add_argument("--file", type=Path, help="FP32 matrices, each padded to 4 KiB")
    numbers = {"experts": 32, "tokens": 8, "inner": 512, "width": 512, "slots": 4}
    for name, number in (numbers | {"rounds": 3}).items():
        parser.add_argument(
            f"--{name}", type=int, default=number, help=f"default {number}"
        )
    options = parser.parse_args()
    for name, least in (dict.fromkeys(numbers, 1) | {"rounds": 0}).items():
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: give {least} or more")
    layout = Layout(options.experts, options.tokens, options.inner, options.width)
    with ExitStack() as undo:
        path = options.file
        if path is None:
            # Not under /tmp, which often is memory and then has no O_DIRECT.
            folder = undo.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp"))
            path = Path(folder) / "experts.bin"
            make_file(path, layout)
        needed = layout.experts * layout.stride
        if not path.is_file() or path.stat().st_size < needed:
            parser.error(
                f"--file {path} is no file of at least {needed} bytes, as --experts, "
                "--inner and --width say"
            )
        try:
            accelerator = undo.enter_context(tosavk.open(options.backend))
            agree = compare(
                accelerator, path, layout, slots=options.slots, rounds=options.rounds
            )
        except tosavk.Error as error:
            print(f"expert_streaming: {error}", file=sys.stderr)
            return 2
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
