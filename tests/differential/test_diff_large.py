"""A model with 100 MB of weights: little memory, and progress that is seen."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from process_memory import memory_mb, tree

from tosavk.core.dtypes import DType
from tosavk.lowering.tosa.builder import Builder

WEIGHTS_MB = 100
LAYERS = 4
LIMIT_MB = 1500


def large(path: Path) -> None:
    """Layers of 25 MB each."""
    width = int((WEIGHTS_MB * 1e6 / LAYERS / 4) ** 0.5)
    rng = np.random.default_rng(1)
    b = Builder()
    x = b.input("x", DType.FP32, (1, 3, width))
    for i in range(LAYERS):
        weight = rng.random((1, width, width), dtype=np.float32) / 32 - 1 / 64
        product = b.matmul(x, b.const(weight), name=f"layer{i}/matmul")
        x = b.clamp(product, -3.0, 3.0, name=f"layer{i}/clip")
    b.output(x)
    path.write_bytes(b.build())


def test_100_mb_of_weights(tmp_path: Path, available_devices: tuple[str, ...]) -> None:
    model, result = tmp_path / "large.tosa", tmp_path / "result.json"
    large(model)
    assert model.stat().st_size > WEIGHTS_MB * 0.99e6
    specs = [d for d in available_devices if "SwiftShader" not in d]
    specs = [*(d for d in specs if d != "reference"), "reference"]
    words = ["-m", "tosavk", "diff", str(model), "--json", str(result)]
    for spec in specs:
        words += ["--backend", spec]
    ours, theirs = pty.openpty()
    shown, peak = b"", 0.0
    with subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(theirs)
        while process.poll() is None:
            peak = max(peak, sum(map(memory_mb, tree(process.pid))))
            until = time.monotonic() + 0.1
            while (left := until - time.monotonic()) > 0:
                if not select.select([ours], [], [], left)[0]:
                    break
                try:
                    shown += os.read(ours, 1 << 16)
                except OSError:
                    time.sleep(left)
                    break
    os.close(ours)
    assert process.returncode == 0, shown
    document = json.loads(result.read_text(encoding="utf-8"))
    assert document["verdict"] == "agreed"
    assert len(document["operators"]) == 2 * LAYERS
    assert len(document["runs"]) == len(specs)
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("this system does not tell how much memory is used")
    assert WEIGHTS_MB < peak < LIMIT_MB, peak
    text = shown.decode("utf-8", "replace")
    for spec in specs:
        assert f"{spec}: " in text
    assert f"of {2 * LAYERS}, " in text
