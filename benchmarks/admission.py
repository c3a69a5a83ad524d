"""Admission of a one-dispatch program, against the C floor, in one run.

    python benchmarks/admission.py [--backend vulkan:llvmpipe] [--samples 3000]

The floor is the same vkResetFences + vkQueueSubmit2 on the same device with the same
recorded commands, called from C (benchmarks/floor.c; needs a C compiler). Both sides wait
for completion between samples, and take turns, so that load hits them alike.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import tosavk
from tosavk.core.descriptors import (
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    BufferUsage,
    MemoryDomain,
)
from tosavk.core.events import Event
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

ROUNDS = 10


def program() -> bytes:
    """An FP32 IDENTITY of 256 elements: one dispatch."""
    builder = tosavk.Builder()
    x = builder.input("x", tosavk.DType.FP32, (256,))
    builder.output(builder.identity(x))
    return builder.build()


def build_floor(folder: str) -> ctypes.CDLL:
    """Compiles floor.c."""
    library = Path(folder) / "floor.so"
    source = Path(__file__).with_name("floor.c")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def address(handle: Any) -> int:  # noqa: ANN401 - a cffi pointer or handle
    """The number behind a cffi pointer."""
    from tosavk.backends.vulkan._ffi import ffi

    return int(ffi.cast("uintptr_t", handle))


def floor_samples(floor: ctypes.CDLL, recording: Any, samples: int) -> list[int]:  # noqa: ANN401 - a cffi object
    """Admission times of the C loop in nanoseconds, with a recording's own objects."""
    device = recording._device
    calls = device.calls
    out = (ctypes.c_int64 * samples)()
    fence = (ctypes.c_uint64 * 1)(address(recording._fence))
    code = floor.measure(
        ctypes.c_void_p(address(calls.vkResetFences)),
        ctypes.c_void_p(address(calls.vkQueueSubmit2)),
        ctypes.c_void_p(address(calls.vkWaitForFences)),
        ctypes.c_void_p(address(device.handle)),
        ctypes.c_void_p(address(device.queue)),
        fence,
        ctypes.c_void_p(address(recording._info)),
        samples,
        out,
    )
    if code != 0:
        raise RuntimeError(f"the C loop stopped with VkResult {code}")
    if calls.vkResetFences(device.handle, 1, recording._fences) != 0:
        raise RuntimeError("vkResetFences failed")
    return list(out)


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", default="vulkan:llvmpipe", help="default vulkan:llvmpipe"
    )
    parser.add_argument("--samples", type=int, default=3000, help="default 3000")
    options = parser.parse_args()
    usage = (
        BufferUsage.TRANSFER_SOURCE
        | BufferUsage.TRANSFER_DESTINATION
        | BufferUsage.PROGRAM_INPUT
        | BufferUsage.PROGRAM_OUTPUT
    )
    graph = load_graph(program())
    with tempfile.TemporaryDirectory() as folder, tosavk.open(options.backend) as acc:
        floor = build_floor(folder)
        context = acc.create_context()
        loaded = context.load_program(lower_graph(graph, limits=acc.device.plan_limits))
        queue = context.create_queue()
        buffers = [
            context.allocate_buffer(BufferDesc(1024, usage, MemoryDomain.HOST))
            for _ in range(2)
        ]
        bindings = [
            Binding(0, buffers[0], BufferRange(0, 1024), AccessMode.READ),
            Binding(1, buffers[1], BufferRange(0, 1024), AccessMode.WRITE),
        ]
        prepared = context.prepare(loaded, bindings)
        # The floor uses the very objects of this submission, which nobody else sees.
        slot: Any = getattr(prepared, "_slot")  # noqa: B009 - private on purpose
        recording = slot.recording
        each = max(1, options.samples // ROUNDS)
        times: dict[str, list[int]] = {"C floor": [], "prepared": [], "checked": []}

        def submit_prepared() -> Event:
            return prepared.submit()

        def submit_checked() -> Event:
            return queue.submit(loaded, bindings)

        for turn in range(ROUNDS + 1):
            times["C floor"] += floor_samples(floor, recording, each)
            for name, submit in (
                ("prepared", submit_prepared),
                ("checked", submit_checked),
            ):
                for _ in range(each):
                    start = time.perf_counter_ns()
                    event = submit()
                    times[name].append(time.perf_counter_ns() - start)
                    event.wait()
                    event.release()
            if turn == 0:  # that was the warm-up
                for values in times.values():
                    values.clear()
        print(f"{acc.name}, {len(times['prepared'])} samples")
        base = statistics.median(times["C floor"])
        for name, values in times.items():
            median = statistics.median(values)
            high = sorted(values)[len(values) * 99 // 100]
            print(
                f"{name:10} p50 {median / 1e3:7.2f} us  p99 {high / 1e3:8.2f} us  "
                f"{median / base:5.1f} x floor"
            )


if __name__ == "__main__":
    main()
