"""Weights read from a file into imported memory by a thread, behind gates."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tosavk
from harness.lanes import Floats, allocate, bind, floats, load, open_for_threads
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import (
    USAGE_ALL,
    BufferDesc,
    EventState,
    MemoryDomain,
)
from tosavk.core.events import Event
from tosavk.core.gates import GateSignal
from tosavk.core.imports import aligned_array
from tosavk.core.waiting import wait_all, wait_any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "expert_streaming.py"
PAGE = 4096
EXPERTS, TOKENS, INNER, WIDTH = 4, 3, 16, 12
ROUNDS = 1000


@pytest.fixture(scope="module")
def accelerator(device: str) -> Iterator[Accelerator]:
    if device.startswith("wgpu"):
        pytest.skip("no gates and no import")
    with open_for_threads(device) as opened:
        yield opened


def example() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("expert_streaming", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


class Interleaving:
    """One random order of reads, raises and submissions, and its right results.

    Expert i waits for the value `values[i]`. A raise to v may come when every expert
    that waits for v or less has been read.
    """

    def __init__(self, seed: int, path: Path, file: int) -> None:
        self.random = random.Random(seed)
        self.path, self.file = path, file
        rng = np.random.default_rng(seed)
        self.weights = rng.integers(-4, 5, (EXPERTS, INNER, WIDTH)).astype(np.float32)
        padded = np.zeros((EXPERTS, PAGE), np.uint8)
        padded[:, : 4 * INNER * WIDTH] = self.weights.reshape(EXPERTS, -1).view(
            np.uint8
        )
        os.pwrite(file, padded.data, 0)
        # Values in any order, some equal, some far apart.
        self.values = [self.random.choice((1, 2, 3, 5, 900)) for _ in range(EXPERTS)]

    def read_and_raise(self, arrays: list[Floats], signal: GateSignal) -> None:
        """What the reading thread does."""
        order = list(range(EXPERTS))
        self.random.shuffle(order)
        unread = set(order)
        pauses = random.Random(self.values[0])
        for expert in order:
            target = arrays[expert].view(np.uint8).data
            assert os.preadv(self.file, [target], expert * PAGE) == PAGE
            unread.discard(expert)
            ready = min((self.values[i] for i in unread), default=1001) - 1
            if pauses.random() < 0.7 or not unread:
                # Also values in between, and again what has been raised before.
                for value in {ready, max(0, ready - 1)}:
                    assert signal.raise_to(value)
            if pauses.random() < 0.2:
                time.sleep(pauses.random() * 1e-4)
        assert signal.raise_to(1000)


def finish(events: list[Event], how: int) -> None:
    """Waits for all events in one of several ways."""
    if how == 0:
        assert wait_all(events, 30)
    elif how == 1:
        left = list(events)
        while left:
            ended = wait_any(left, 30)
            assert ended
            left = [event for event in left if event not in ended]
    elif how == 2:
        for event in reversed(events):
            assert event.wait(30) is EventState.COMPLETE
    else:
        end = time.monotonic() + 30
        while any(event.poll() is EventState.PENDING for event in events):
            assert time.monotonic() < end
            time.sleep(1e-4)


def test_random_interleavings_of_reads_raises_and_submits(
    accelerator: Accelerator, tmp_path: Path
) -> None:
    builder = tosavk.Builder()
    x = builder.input("x", tosavk.DType.FP32, (1, TOKENS, INNER))
    w = builder.input("w", tosavk.DType.FP32, (1, INNER, WIDTH))
    builder.output(builder.matmul(x, w))
    context = accelerator.create_context()
    program = load(accelerator, context, builder.build())
    queue = context.create_queue()
    rng = np.random.default_rng(0)
    data = rng.integers(-4, 5, (TOKENS, INNER)).astype(np.float32)
    host = MemoryDomain.HOST
    source = allocate(context, data.nbytes, host, data)
    arrays: list[Floats] = [
        aligned_array(PAGE, alignment=PAGE).view(np.float32) for _ in range(EXPERTS)
    ]
    desc = BufferDesc(4 * INNER * WIDTH, USAGE_ALL, host)
    weights = [context.import_host_buffer(desc, array) for array in arrays]
    targets = [allocate(context, 4 * TOKENS * WIDTH, host) for _ in range(EXPERTS)]
    requests = [
        bind(program, [source, w, y]) for w, y in zip(weights, targets, strict=True)
    ]
    prepared = [context.prepare(program, request) for request in requests]
    path = tmp_path / "experts.bin"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    for seed in range(ROUNDS):
        case = Interleaving(seed, path, file)
        gate = accelerator.create_gate()
        thread = threading.Thread(
            target=case.read_and_raise, args=(arrays, gate.signal())
        )
        chance = random.Random(seed)
        order = chance.sample(range(EXPERTS), EXPERTS)
        start = chance.randrange(EXPERTS + 1)
        events: list[Event] = []
        for position, expert in enumerate(order):
            if position == start:
                thread.start()
            value = case.values[expert]
            events.append(
                prepared[expert].submit_after(gate, value)
                if chance.random() < 0.5
                else queue.submit_after(program, requests[expert], gate, value)
            )
        if start == EXPERTS:
            thread.start()
        finish(events, chance.randrange(4))
        thread.join()
        for event in events:
            event.release()
        for expert, target in enumerate(targets):
            want = data @ case.weights[expert]
            got = floats(target).reshape(TOKENS, WIDTH)
            assert np.array_equal(got, want), f"seed {seed}, expert {expert}"
            target.write(0, np.full(TOKENS * WIDTH, np.nan, np.float32))
        gate.release()
    os.close(file)
    assert accelerator.live_resources().gates == 0


@pytest.mark.parametrize("real", [False, True], ids=["whole", "real"])
def test_the_example_runs(
    accelerator: Accelerator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    real: bool,
) -> None:
    module = example()
    layout = module.Layout(experts=7, tokens=3, inner=20, width=30)
    path = tmp_path / "experts.bin"
    module.make_file(path, layout)
    if real:  # a file of one's own, whose products are not exact
        size = path.stat().st_size // 4
        np.random.default_rng(3).standard_normal(size, np.float32).tofile(path)
    assert module.compare(accelerator, path, layout, slots=3, rounds=0)
    text = capsys.readouterr().out
    assert "page cache  gated" in text
    assert "results agree" in text


def test_the_example_survives_a_file_that_is_too_short(
    accelerator: Accelerator, tmp_path: Path
) -> None:
    module = example()
    layout = module.Layout(experts=5, tokens=3, inner=20, width=30)
    path = tmp_path / "experts.bin"
    module.make_file(path, layout)
    os.truncate(path, 3 * layout.stride)
    runner = module.Runner(accelerator, layout, np.ones((3, 20), np.float32))
    file = module.File(path, direct=False)
    results = np.zeros(layout.result_shape, np.float32)
    with pytest.raises(EOFError):
        module.Gated(runner, 2).run(file, results)
    file.close()
    assert accelerator.live_resources().gates == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--slots", "0"], "--slots 0"), (["--file", "nowhere"], "--file nowhere is no")],
)
def test_the_example_refuses_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["expert_streaming.py", *words])
    with pytest.raises(SystemExit) as stop:
        example().main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_the_example_as_a_command(wgpu_device: str) -> None:
    assert tosavk.__file__ is not None
    root = str(Path(tosavk.__file__).absolute().parents[1])
    result = subprocess.run(
        [sys.executable, str(EXAMPLE), "--backend", wgpu_device, "--experts", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 2
    assert "cannot import host memory" in result.stderr
