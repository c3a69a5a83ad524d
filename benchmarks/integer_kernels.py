"""INT8 kernels with and without integer dot products, and moves by words and by lanes.

    python benchmarks/integer_kernels.py [--backend vulkan:llvmpipe]... [--runs 15]
                                         [--model NETWORK.tosa]... [--match TEXT]

Every program is lowered twice for the same device, and the two take turns: so the ratio
of their times hardly depends on what else the machine does. Times are medians, NumPy to
NumPy; "faster" is by how much the dot product is, or moving whole words. A network of
INT8 layers is what `--model` is for; tests/ops/test_int8_network.py makes one.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tosavk.backends.registry import open_accelerator
from tosavk.backends.session import Session
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import DType
from tosavk.core.plan import PlanLimits
from tosavk.differential.inputs import fill_inputs
from tosavk.lowering import builder
from tosavk.lowering.graph import Graph, Op
from tosavk.lowering.lower import Lowered, lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.rules import layout
from tosavk.lowering.tosa.builder import Builder

NEED = "int8_dot"
RNG = np.random.default_rng(8)


def product(h: int, c: int, w: int, zero: int) -> Graph:
    """MATMUL of two inputs."""
    b = Builder()
    x = b.input("x", DType.INT8, (1, h, c))
    y = b.input("y", DType.INT8, (1, c, w))
    zeros = [b.const(np.array([v], np.int8)) for v in (zero, -zero)]
    b.output(b.matmul(x, y, a_zp=zeros[0], b_zp=zeros[1]))
    return load_graph(b.build())


def convolution(size: int, ic: int, oc: int, kernel: int, zero: int) -> Graph:
    """CONV2D with constant weights, as in a network."""
    b = Builder()
    x = b.input("x", DType.INT8, (1, size, size, ic))
    weights = RNG.integers(-127, 128, (oc, kernel, kernel, ic)).astype(np.int8)
    bias = b.const(RNG.integers(-9999, 9999, oc).astype(np.int32))
    before = kernel // 2
    b.output(
        b.conv2d(
            x,
            b.const(weights),
            bias,
            pad=(before, before, before, before),
            input_zp=b.const(np.array([zero], np.int8)),
        )
    )
    return load_graph(b.build())


def programs(models: list[str]) -> Iterator[tuple[str, Graph]]:
    """Name and graph of everything that is measured."""
    yield "matmul 128x128x128", product(128, 128, 128, 0)
    yield "matmul 256x256x256, zero points", product(256, 256, 256, 3)
    yield "matmul 255x255x255, zero points", product(255, 255, 255, 3)
    yield "conv 1x1 56x56 64 to 64", convolution(56, 64, 64, 1, 0)
    yield "conv 1x1 14x14 256 to 256, zero point", convolution(14, 256, 256, 1, 5)
    yield "conv 3x3 28x28 64 to 64, zero point", convolution(28, 64, 64, 3, -7)
    yield "conv 3x3 56x56 3 to 32, zero point", convolution(56, 3, 32, 3, -7)
    yield "conv 3x3 28x28 30 to 30", convolution(28, 30, 30, 3, 0)
    yield from moves()
    for name in models:
        yield Path(name).name, load_graph(Path(name).read_bytes())


def moves() -> Iterator[tuple[str, Graph]]:
    """Operators that move 1x56x56x64 INT8."""
    shape = (1, 56, 56, 64)
    for op, numbers in (
        (Op.SLICE, ((0, 1, 1, 0), (1, 54, 54, 64))),
        (Op.TILE, ((1, 2, 1, 1),)),
        (Op.PAD, ((0, 0, 1, 1, 1, 1, 0, 0),)),
    ):
        b = Builder()
        operands = [b.input("x", DType.INT8, shape)]
        operands += [b.const_shape(n) for n in numbers]
        if op is Op.PAD:
            operands.append(b.const(np.zeros(1, np.int8)))
        b.output(b.op(op, operands))
        yield f"move {op.name}", load_graph(b.build())
    b = Builder()
    x, y = (b.input(name, DType.INT8, (1, 56, 56, 32)) for name in "xy")
    b.output(b.concat([x, y], 3))
    yield "move CONCAT of channels", load_graph(b.build())
    b = Builder()
    b.output(b.reverse(b.input("x", DType.INT8, shape), axis=2))
    yield "move REVERSE", load_graph(b.build())


@contextmanager
def by_lanes() -> Generator[None]:
    """Lowering that moves packed elements one by one."""
    chosen = builder.whole_words
    homes = (builder, layout)

    def one(dtype: DType, *_: object) -> tuple[DType, int]:
        return dtype, 1

    for module in homes:
        vars(module)["whole_words"] = one
    try:
        yield
    finally:
        for module in homes:
            vars(module)["whole_words"] = chosen


def two_ways(graph: Graph, limits: PlanLimits) -> tuple[Lowered, Lowered]:
    """Without dot products and whole words, and with them."""
    without = dataclasses.replace(
        limits, lacks=(*limits.lacks, (NEED, "left out by the benchmark"))
    )
    with by_lanes():
        plain = lower_graph(graph, limits=without)
    return plain, lower_graph(graph, limits=limits)


def measure(accelerator: Accelerator, graph: Graph, runs: int) -> tuple[float, float]:
    """Seconds of a run in the two ways; checks that both agree."""
    times: tuple[list[float], list[float]] = ([], [])
    plain, better = two_ways(graph, accelerator.device.plan_limits)
    with Session(accelerator, plain) as old, Session(accelerator, better) as new:
        inputs = fill_inputs(old.inputs, {}, seed=3)
        first = [session.run(inputs) for session in (old, new)]
        for name, value in first[0].items():
            assert np.array_equal(value, first[1][name]), name
        for _ in range(runs):
            for session, found in zip((old, new), times, strict=True):
                begin = time.perf_counter()
                session.run(inputs)
                found.append(time.perf_counter() - begin)
    old_time, new_time = map(statistics.median, times)
    return old_time, new_time


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", action="append", default=[], help="repeatable; default vulkan"
    )
    parser.add_argument("--model", action="append", default=[], help="repeatable")
    parser.add_argument("--runs", type=int, default=15, help="default 15")
    parser.add_argument("--match", default="", help="only what has this in its name")
    options = parser.parse_args()
    for spec in options.backend or ["vulkan"]:
        with open_accelerator(spec) as accelerator:
            lack = accelerator.device.plan_limits.lack(NEED)
            print(f"{accelerator.name}{f': {lack}' if lack else ''}")
            print(f"{'':40}{'without':>10}{'with':>10}{'faster':>9}")
            chosen = [p for p in programs(options.model) if options.match in p[0]]
            if not chosen:
                parser.error(
                    f"--match {options.match!r}: no program has that in its name"
                )
            for name, graph in chosen:
                old, new = measure(accelerator, graph, options.runs)
                ratio = old / new
                print(f"{name:40}{old * 1e3:8.2f}ms{new * 1e3:8.2f}ms{ratio:8.2f}x")


if __name__ == "__main__":
    main()
