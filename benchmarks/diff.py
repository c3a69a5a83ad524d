"""What `tosavk diff` costs on a model of large tensors.

    python benchmarks/diff.py [--elements 9500000] [--backend vulkan:llvmpipe]...

The model has 16 elementwise operators on FP32. *Processor time* is that of `tosavk` and
of all processes that it starts. *Memory* is the largest sum of what they hold, where
what several hold counts in parts (Pss in /proc/PID/smaps_rollup), looked at ten times a
second.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from process_memory import memory_mb, tree

from tosavk import Builder, DType

BACKENDS = ["vulkan:llvmpipe", "wgpu:llvmpipe", "reference"]


def write_model(path: Path, elements: int) -> None:
    """A chain of operators, each of them on tensors of so many elements."""
    b = Builder()
    x, y = (b.input(name, DType.FP32, (1, elements // 1000, 1000)) for name in "xy")
    t = b.clamp(b.sub(b.mul(b.add(x, y), x), y), -3.0, 3.0)
    t = b.exp(b.minimum(b.maximum(b.abs(t), x), y))
    t = b.sigmoid(b.mul(b.tanh(b.add(t, x)), y))
    t = b.mul(b.add(b.negate(b.reverse(t, 2)), x), x)
    b.output(t)
    path.write_bytes(b.build())


def main() -> None:
    """Measures and prints a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=9_500_000)
    parser.add_argument("--backend", action="append")
    options = parser.parse_args()
    words = [sys.executable, "-m", "tosavk", "diff"]
    for spec in options.backend or BACKENDS:
        words += ["--backend", spec]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.tosa"
        write_model(model, options.elements)
        words += [str(model), "--json", os.devnull]
        begin, peak, own, status = time.perf_counter(), 0.0, 0.0, 0
        pid = subprocess.Popen(words, stdout=subprocess.DEVNULL).pid
        while True:
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                break
            peak = max(peak, sum(map(memory_mb, tree(pid))))
            own = own_seconds(pid) or own
            time.sleep(0.1)
    print(
        f"{options.elements:,} elements a tensor: exit code "
        f"{os.waitstatus_to_exitcode(status)}, "
        f"{usage.ru_utime + usage.ru_stime:.1f} s of processor time, of these "
        f"{own:.1f} s in the process that judges; "
        f"{time.perf_counter() - begin:.1f} s in all; {peak:,.0f} MB"
    )


def own_seconds(pid: int) -> float:
    """Processor time of a process without those that it started."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
