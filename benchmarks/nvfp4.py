"""NVFP4 products: every kernel, beside cuBLAS and the time that memory alone would take.

    python benchmarks/nvfp4.py [--device NAME] [--shapes 4096x14336 ...] [--m 1 256 ...]
                               [--kernels gemv khr ...] [--json FILE]

Shapes are rows x columns of the weights, n x k. Kernels and tiles are those that the
product would take on the device (lowering/nvfp4); "*" marks its choice in fast mode.
Times are device timestamps around many products in a row with a barrier after every
dispatch, so they include the rounding of activations where that is a dispatch of its
own; medians of five, after 0.3 s of the same work. Weights and activations come in turn
from as many copies as pass 230 MB. "free" is without barriers between products.

The floor is packed codes, block scales, activations and results over the copy bandwidth
measured in the same run. cuBLAS (FP16, dequantised weights, a CUDA graph, copies in turn)
needs PyTorch with CUDA; where it is lacking, so is its column. The copy bandwidth is the
best of PyTorch's copy, Vulkan's, and what the kernel that rounds activations moves.
Every product is compared with binary64 at 64 rows first; what is off says WRONG.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from device_clock import Buffer, Device, Step, check
from numpy.typing import NDArray

from tosavk.backends.registry import open_accelerator
from tosavk.core.errors import ModelError
from tosavk.core.plan import Numerics, Plan, PlanLimits
from tosavk.lowering.nvfp4.artifact import Projection
from tosavk.lowering.nvfp4.kernels import NAMES, STRICT_KERNELS
from tosavk.lowering.nvfp4.lower import LoweredNvfp4, lower_nvfp4
from tosavk.shaders.catalogue import Work, kernels

SHAPES = ("4096x4096", "14336x4096", "4096x14336")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
ENOUGH_BYTES = 230e6
MOST_COPIES = 64
COPY_BYTES = 1 << 30
SAMPLE = 64
SCALE = 0.013
MOST_FREE = 64
"""Tokens up to which products are also timed without barriers."""

Record = dict[str, Any]


def code_values() -> NDArray[np.float32]:
    """The values of the 16 codes."""
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.concatenate([sizes, -sizes])


def scale_values() -> NDArray[np.float32]:
    """The values of the 256 scales, NaNs left out."""
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    normal = (8 + fraction) * 2.0 ** (exponent - 10)
    sizes = np.where(exponent == 0, fraction * 2.0**-9, normal)
    return np.concatenate([sizes, -sizes]).astype(np.float32)


class Cublas:
    """FP16 products of PyTorch."""

    def __init__(self) -> None:
        """Raises ImportError without PyTorch and CUDA."""
        self.torch: Any = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise ImportError("CUDA is not available to PyTorch")

    def _graph(self, calls: Sequence[Any], count: int) -> float:
        """Seconds of a call, of `count` in a CUDA graph, when warm."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        calls[0]()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for i in range(count):
                calls[i % len(calls)]()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            graph.replay()
            torch.cuda.synchronize()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        found: list[float] = []
        for _ in range(5):
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(stop) * 1e-3 / count)
        return statistics.median(found)

    def copied(self) -> float:
        """Bytes a second of a copy on the device, read and written ones counted."""
        a = self.torch.zeros(COPY_BYTES, dtype=self.torch.uint8, device="cuda")
        b = self.torch.empty_like(a)
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Not in a graph: there it would be a copy of another kind, and slower.
        for _ in range(100):
            b.copy_(a)
        start.record()
        for _ in range(20):
            b.copy_(a)
        stop.record()
        self.torch.cuda.synchronize()
        return 40 * COPY_BYTES / (float(start.elapsed_time(stop)) * 1e-3)

    def seconds(
        self, weights: NDArray[np.float16], tokens: Sequence[int]
    ) -> list[float]:
        """Seconds of products with weights [n, k]."""
        torch = self.torch
        first = torch.from_numpy(weights).cuda()
        several = math.ceil(ENOUGH_BYTES / weights.nbytes) + 1
        copies = [first, *(first.clone() for _ in range(several - 1))]
        found: list[float] = []
        for m in tokens:
            x = torch.randn(m, weights.shape[1], device="cuda", dtype=torch.float16)
            y = torch.empty(m, weights.shape[0], device="cuda", dtype=torch.float16)
            calls = [lambda w=w, x=x, y=y: torch.mm(x, w.t(), out=y) for w in copies]
            found.append(self._graph(calls, 40 if m <= 512 else 8))
        return found


def rounded(device: Device, nbytes: int) -> float:
    """Bytes a second of the kernel that rounds activations, read and written."""
    k = 4096
    m = max(nbytes // (4 * k), 1)
    count = m * k // 8
    x, y = device.buffer(4 * m * k), device.buffer(2 * m * k)
    step: Step = (
        device.pipeline("nvfp4_halves", {0: 128, 1: 0}),
        device.bind([(x, 0), (y, 0)]),
        (count, m, k, k),
        (k // 8 // 128, m, 1),
    )
    seconds = device.seconds([[step]], 4, barriers=True)
    device.free(x)
    device.free(y)
    return 6 * m * k / seconds


@dataclass
class Problem:
    """Random weights [n, k] on the device in several copies."""

    device: Device
    n: int
    k: int
    pipelines: dict[tuple[str, tuple[int, ...]], Any] = field(
        default_factory=dict[tuple[str, tuple[int, ...]], Any]
    )

    def __post_init__(self) -> None:
        """Makes the weights and a sample of their values, [rows, k]."""
        draw = np.random.default_rng(7)
        self.packed = draw.integers(0, 256, (self.n, self.k // 2), np.uint8)
        self.scales = draw.integers(0x20, 0x50, (self.n, self.k // 16), np.uint8)
        self.bytes = self.packed.nbytes + self.scales.nbytes
        self.copies = [
            (self.device.upload(self.packed), self.device.upload(self.scales))
            for _ in range(min(MOST_COPIES, math.ceil(ENOUGH_BYTES / self.bytes)))
        ]
        self.scale = self.device.upload(np.array([SCALE], np.float32))
        rows = draw.integers(0, self.n, SAMPLE - 2)
        self.rows = np.unique(np.r_[0, self.n - 1, rows])
        self.sample = self.values(self.rows).astype(np.float64)

    def values(self, rows: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        """The values of some rows, without the tensor scale."""
        codes = self.packed[rows]
        found = np.empty((len(codes), self.k), np.float32)
        found[:, 0::2] = code_values()[codes & 15]
        found[:, 1::2] = code_values()[codes >> 4]
        found *= np.repeat(scale_values()[self.scales[rows]], 16, axis=1)
        return found

    def steps(
        self, plan: Plan, slots: Sequence[Buffer], arena: Sequence[Buffer]
    ) -> list[Step]:
        """The dispatches of a plan with buffers for its slots and segments."""
        found: list[Step] = []
        for dispatch in plan.dispatches:
            kernel = kernels()[dispatch.kernel]
            width = dispatch.width or kernel.workgroup
            words = (width, *dispatch.spec)
            key = kernel.name, words
            if key not in self.pipelines:
                self.pipelines[key] = self.device.pipeline(
                    kernel.name, dict(enumerate(words))
                )
            columns = math.ceil(dispatch.columns / width)
            groups = (columns, dispatch.tiles, dispatch.layers)
            if kernel.work is Work.LINEAR:
                high = math.ceil(columns / 65_535)
                groups = (math.ceil(columns / high), high, 1)
            memory = [*slots, *arena]
            bound = self.device.bind(
                [(memory[o.buffer], 4 * o.word) for o in dispatch.operands]
            )
            found.append((self.pipelines[key], bound, dispatch.params, groups))
        return found


@dataclass(frozen=True)
class Tokens:
    """Activations [m, k] in several copies, and room for results."""

    values: NDArray[np.float32]
    copies: Sequence[Buffer]
    y: Buffer


def measure(problem: Problem, lowered: LoweredNvfp4, tokens: Tokens) -> Record:
    """Checks and times one product.

    Returns:
        us, free_us, error (relative L2), bound (largest share of the bound).
    """
    device, plan, m = problem.device, lowered.plan, len(tokens.values)
    arena = [device.buffer(size) for size in plan.segments]
    products = [
        problem.steps(
            plan,
            [tokens.copies[i % len(tokens.copies)], *pair, problem.scale, tokens.y],
            arena,
        )
        for i, pair in enumerate(problem.copies)
    ]
    commands = device.begin()
    for step in products[0]:
        device.record(commands, step)
        device.barrier(commands)
    check(device.command("vkEndCommandBuffer", commands))
    start = time.monotonic()
    device.submit(commands)
    taken = time.monotonic() - start
    got = device.download(tokens.y, m * problem.n).reshape(m, problem.n)
    error, share = compare(problem, lowered, tokens.values, got[:, problem.rows])
    count = max(1, min(105, math.ceil(3e-2 / max(taken, 1e-6)), 30_000 // m))
    us = device.seconds(products, count, barriers=True) * 1e6
    record: Record = {"us": us, "error": error, "bound": share}
    if m <= MOST_FREE:
        record["free_us"] = device.seconds(products, count, barriers=False) * 1e6
    for buffer in arena:
        device.free(buffer)
    return record


def compare(
    problem: Problem,
    lowered: LoweredNvfp4,
    x: NDArray[np.float32],
    got: NDArray[np.float32],
) -> tuple[float, float]:
    """Relative L2 error, and the largest error by the kernel's bound."""
    strict = lowered.choice.kernel in STRICT_KERNELS
    seen = x.astype(np.float64) if strict else x.astype(np.float16).astype(np.float64)
    want = seen @ problem.sample.T * SCALE
    size = np.abs(seen) @ np.abs(problem.sample).T * SCALE
    unit = 2.0**-23 if strict else 2.0**-22
    off = np.abs(got - want)
    share = float((off / ((problem.k + 64) * unit * size)).max())
    return float(np.linalg.norm(off) / np.linalg.norm(want)), share


def shape_records(
    device: Device,
    limits: PlanLimits,
    shape: str,
    options: argparse.Namespace,
    cublas: Cublas | None,
    bandwidth: float,
) -> list[Record]:
    """Measures all kernels of a shape, and prints a table."""
    n, k = (int(part) for part in shape.split("x"))
    problem = Problem(device, n, k)
    names: list[str] = options.kernels
    floor = "floor"
    print(f"\nweights [{n} out, {k} in], microseconds")
    print(f"{'m':>5} {floor:>7}" + "".join(f" {name:>11}" for name in names), end="")
    print(f" {'cuBLAS':>9}  {'free':>8} {'of floor':>8} {'TFLOP/s':>8}  choice")
    fp16: list[float] = []
    if cublas is not None:
        weights = (problem.values(slice(None)) * SCALE).astype(np.float16)
        fp16 = cublas.seconds(weights, options.m)
    records: list[Record] = []
    for place, m in enumerate(options.m):
        values = np.random.default_rng(m).standard_normal((m, k), np.float32)
        several = max(1, min(len(problem.copies), int(5e8 / values.nbytes)))
        copies = [device.upload(values) for _ in range(several)]
        tokens = Tokens(values, copies, device.buffer(4 * m * n))
        program = Projection(m=m, n=n, k=k)
        best = lower_nvfp4(program, limits=limits, numerics=Numerics.FAST).choice
        record: Record = {"n": n, "k": k, "m": m, "choice": best.kernel}
        record["floor_us"] = (problem.bytes + 4 * m * (k + n)) / bandwidth * 1e6
        record["kernels"] = {}
        for name in names:
            try:
                lowered = lower_nvfp4(
                    program,
                    limits=limits,
                    numerics=Numerics.FAST,
                    asked=NAMES[name],
                )
                record["kernels"][name] = measure(problem, lowered, tokens)
            except (ModelError, RuntimeError) as error:
                record["kernels"][name] = {"not": str(error)}
        if fp16:
            record["cublas_us"] = fp16[place] * 1e6
        records.append(record)
        print_row(record, names)
        for buffer in (*copies, tokens.y):
            device.free(buffer)
    for pair in problem.copies:
        for buffer in pair:
            device.free(buffer)
    return records


def print_row(record: Record, names: Sequence[str]) -> None:
    """A line of the table."""
    line = f"{record['m']:5d} {record['floor_us']:7.1f}"
    chosen: Record = {}
    for name in names:
        found: Record = record["kernels"][name]
        if "us" not in found:
            line += f" {'-':>11}"
            continue
        mark = "*" if NAMES[name] == record["choice"] else ""
        chosen = found if mark else chosen
        wrong = "" if found["bound"] <= 1 else " WRONG"
        line += f" {found['us']:10.1f}{mark or ' '}{wrong}"
    cublas = f"{record['cublas_us']:9.1f}" if "cublas_us" in record else f"{'-':>9}"
    line += f" {cublas}"
    if chosen:
        flops = 2 * record["m"] * record["n"] * record["k"]
        free = f"{chosen['free_us']:8.1f}" if "free_us" in chosen else f"{'-':>8}"
        line += f"  {free} {record['floor_us'] / chosen['us']:8.0%}"
        line += f" {flops / chosen['us'] * 1e-6:8.1f}"
    print(f"{line}  {record['choice']}", flush=True)


def main() -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="", help="part of the device's name")
    parser.add_argument("--shapes", nargs="*", default=SHAPES, help="n x k, as 64x128")
    parser.add_argument("--m", type=int, nargs="*", default=TOKENS, help="tokens")
    parser.add_argument(
        "--kernels", nargs="*", choices=NAMES, default=list(NAMES), help="default: all"
    )
    parser.add_argument("--json", default="", help="file for all numbers")
    parser.add_argument("--no-cublas", action="store_true", help="leave PyTorch out")
    options = parser.parse_args()
    with open_accelerator(f"vulkan:{options.device}".rstrip(":")) as accelerator:
        limits: PlanLimits = accelerator.device.plan_limits
        name = accelerator.name
    device = Device(options.device)
    print(f"{name}; {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}")
    cublas = None
    if not options.no_cublas:
        try:
            cublas = Cublas()
        except ImportError as error:
            print(f"no cuBLAS column: {error}")
    nbytes = min(COPY_BYTES, int(4 * ENOUGH_BYTES))
    speeds = {"vkCmdCopyBuffer": device.copied(nbytes)}
    if limits.shared_bytes and not limits.lack("matrices"):
        speeds["nvfp4_halves"] = rounded(device, min(nbytes, 1 << 28))
    if cublas is not None:
        speeds["PyTorch"] = cublas.copied()
    for which, speed in speeds.items():
        print(f"copy by {which}: {speed * 1e-12:.3f} TB/s, read and written")
    records: list[Record] = []
    for shape in options.shapes:
        records += shape_records(
            device, limits, shape, options, cublas, max(speeds.values())
        )
    if options.json:
        head = {"device": name, "copies": speeds, "command": " ".join(sys.argv)}
        Path(options.json).write_text(
            json.dumps({**head, "products": records}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
