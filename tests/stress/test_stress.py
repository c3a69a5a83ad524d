"""Many submissions with random lives: memory stays flat, and no handle is left.

TOSAVK_STRESS says how many submissions there are; `make stress` asks for 200,000.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest

from harness import devices, stress
from harness.stress import Stress
from harness.vulkan_door import CountingDoor, KeptInstance
from tosavk.backends.registry import open_accelerator
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.core.accelerator import Accelerator
from tosavk.core.shared import LiveResources

SUBMISSIONS = int(os.environ.get("TOSAVK_STRESS", "5000"))
SLACK = (4 if SUBMISSIONS >= 100_000 else 8) << 20
"""Bytes by which the process may grow after the first tenth; pages are not tight."""

MEASURABLE = pytest.mark.skipif(
    not stress.STATM.exists(), reason="resident memory is read from /proc"
)


def report(
    result: stress.Result, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writes the numbers of a long run."""
    if SUBMISSIONS < 100_000:
        return
    samples = ", ".join(
        f"{sample.submissions}: {sample.resident / 2**20:.1f}"
        for sample in result.samples[:: max(1, len(result.samples) // 10)]
    )
    with capsys.disabled():
        sys.stdout.write(
            f"\n{name}: {result.submissions} submissions ({result.gated} behind gates, "
            f"{result.refused} more were refused), {result.contexts} contexts, "
            f"{result.programs} programs, {result.buffers} buffers, {result.checked} "
            f"results checked, {result.dropped} events dropped, "
            f"{result.seconds:.0f} s\nMiB resident: {samples}\n"
            f"growth after the first tenth: {result.growth / 2**20:.2f} MiB\n"
        )


@pytest.fixture(autouse=True)
def quick_collections() -> Iterator[None]:
    """Samples are taken after a collection: what was there before is no garbage."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@MEASURABLE
def test_vulkan(vulkan_device: str, capsys: pytest.CaptureFixture[str]) -> None:
    kept = KeptInstance(CountingDoor())
    device = kept.open(vulkan_device, VulkanOptions(pipeline_cache=False))
    with Accelerator(device) as accelerator:
        result = Stress(accelerator, seed=3).run(SUBMISSIONS)
        assert accelerator.live_resources() == LiveResources()
    kept.destroy()
    report(result, vulkan_device, capsys)
    assert not kept.door.live
    assert not kept.door.wrong
    assert result.growth < SLACK, result.samples
    assert result.checked > SUBMISSIONS // 50
    assert result.contexts > 4


@MEASURABLE
@pytest.mark.parametrize("backend", ["wgpu", "reference"])
def test_other_backends(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = devices.first(backend)
    if not spec:
        pytest.skip(f"no device of {backend}")
    # These are slow: wgpu keeps more books, and NumPy computes.
    count = SUBMISSIONS // 5
    with open_accelerator(spec) as accelerator:
        result = Stress(accelerator, seed=4).run(count)
        assert accelerator.live_resources() == LiveResources()
    report(result, spec, capsys)
    assert result.growth < 2 * SLACK, result.samples
