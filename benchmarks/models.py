"""First result and steady latency of real models, each in a process of its own.

    python benchmarks/models.py MODEL.tosa... [--backend vulkan:llvmpipe]... [--runs 30]

*Cold* starts with empty caches (the driver's and ours), *warm* with the caches that the
cold process left. First result: from before NumPy is imported to the first output.
Load: parse + verify, lower, open the device, load (pipelines, constants), first run.
Steady: NumPy to NumPy, median. The processes run one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import json, sys, time
start = time.perf_counter()
import numpy as np
numpy_done = time.perf_counter()
from tosavk.backends.registry import open_accelerator
from tosavk.backends.session import Session
from tosavk.differential.inputs import fill_inputs
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
imported = time.perf_counter()
path, spec, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(path, "rb") as stream:
    graph = load_graph(stream.read())
parsed = time.perf_counter()
accelerator = open_accelerator(spec)
opened = time.perf_counter()
lowered = lower_graph(graph, limits=accelerator.device.plan_limits)
lowered_at = time.perf_counter()
with Session(accelerator, lowered, owns_accelerator=True) as session:
    loaded = time.perf_counter()
    inputs = fill_inputs(session.inputs, {}, seed=7)
    session.run(inputs)
    first = time.perf_counter()
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        session.run(inputs)
        seconds.append(time.perf_counter() - begin)
print(json.dumps({
    "first": first - start, "numpy": numpy_done - start,
    "import": imported - numpy_done, "parse": parsed - imported,
    "open": opened - parsed, "lower": lowered_at - opened,
    "load": loaded - lowered_at, "run": first - loaded,
    "steady": sorted(seconds)[len(seconds) // 2] if seconds else 0.0,
}))
"""
COLUMNS = ("numpy", "import", "parse", "open", "lower", "load", "run", "first")


def measure(model: str, spec: str, runs: int, caches: str) -> dict[str, float]:
    """One process; seconds by phase."""
    environment = dict(
        os.environ,
        MESA_SHADER_CACHE_DIR=str(Path(caches, "mesa")),
        TOSAVK_CACHE_DIR=str(Path(caches, "tosavk")),
        XDG_CACHE_HOME=caches,
    )
    answer = subprocess.run(
        [sys.executable, "-c", CHILD, model, spec, str(runs)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    times: dict[str, float] = json.loads(answer.stdout)
    return times


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument(
        "--backend",
        action="append",
        help="repeatable; default vulkan:llvmpipe and wgpu:llvmpipe",
    )
    parser.add_argument("--runs", type=int, default=30, help="default 30")
    parser.add_argument(
        "--repeats", type=int, default=3, help="warm processes (default 3)"
    )
    options = parser.parse_args()
    print(
        f"{'model, backend':44}{'':6}"
        + "".join(f"{c:>8}" for c in COLUMNS)
        + "   steady (ms)"
    )
    for model in options.models:
        for spec in options.backend or ["vulkan:llvmpipe", "wgpu:llvmpipe"]:
            name = f"{Path(model).name}, {spec}"
            with tempfile.TemporaryDirectory() as caches:
                for turn in range(1 + options.repeats):
                    t = measure(model, spec, options.runs, caches)
                    print(
                        f"{name:44}{'cold' if turn == 0 else 'warm':6}"
                        + "".join(f"{t[c] * 1e3:8.0f}" for c in COLUMNS)
                        + f"{t['steady'] * 1e3:10.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
