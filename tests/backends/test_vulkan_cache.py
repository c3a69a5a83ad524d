"""The pipeline cache on disk, with a driver behind it."""

import logging
from pathlib import Path

import numpy as np
import pytest

from harness import vulkan_plans as plans
from harness.vulkan_door import Door, open_device
from tosavk.backends.vulkan._ffi import const
from tosavk.backends.vulkan.cachefile import CacheIdentity, cache_folder, load
from tosavk.backends.vulkan.options import VulkanOptions

N = 67
WORDS = np.arange(N, dtype=np.uint32)


def run_once(spec: str, door: Door) -> CacheIdentity:
    device = open_device(spec, wrap=door, options=VulkanOptions())
    kit = device.create_kit()
    found = plans.run(kit, plans.chain_plan(N, WORDS), [WORDS, WORDS])
    assert np.array_equal(found, plans.chain_result(WORDS, WORDS, WORDS))
    kit.free()
    identity = CacheIdentity.of(device.record)
    device.close()
    assert not door.live
    folder = cache_folder()
    is_kept = folder is None or (folder / identity.file_name).exists()
    if not is_kept and not door.failed:
        pytest.skip("the driver gives no data to keep")
    return identity


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("TOSAVK_CACHE_DIR", str(path))
    return path


def test_a_second_run_starts_from_the_first_ones_file(
    vulkan_device: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity = run_once(vulkan_device, Door())
    stored = load(folder, identity)
    assert len(stored) >= 32
    run_once(vulkan_device, Door())
    assert not caplog.records


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped"])
def test_a_damaged_file_is_one_line_and_replaced(
    vulkan_device: str, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    identity = run_once(vulkan_device, Door())
    path = folder / identity.file_name
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[-1] ^= 1
    path.write_bytes(content[: {"empty": 0, "cut": 31}.get(damage)])
    run_once(vulkan_device, Door())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert load(folder, identity)


def test_a_driver_that_refuses_the_data_gets_an_empty_cache(
    vulkan_device: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_once(vulkan_device, Door())
    door = Door()
    door.arm(1, code=const.ERROR_OUT_OF_HOST_MEMORY, only="vkCreatePipelineCache")
    run_once(vulkan_device, door)
    assert door.failed == "vkCreatePipelineCache"
    assert "refuses its own pipeline cache" in caplog.text


def test_a_cache_that_cannot_be_read_back_is_only_a_line(
    vulkan_device: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door()
    door.arm(1, code=const.ERROR_OUT_OF_HOST_MEMORY, only="vkGetPipelineCacheData")
    run_once(vulkan_device, door)
    assert "pipeline cache is not written" in caplog.text


def test_the_cache_can_be_turned_off(
    vulkan_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOSAVK_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run_once(vulkan_device, Door())
    # Drivers have caches of their own in that folder.
    assert not (tmp_path / "tosavk").exists()
