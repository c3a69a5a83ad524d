"""The validation layer is really on, and sees what the product really submits."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

import tosavk
from harness import validation
from harness import vulkan_plans as plans
from harness.lanes import add_model, allocate, bind, load, open_for_threads
from harness.vulkan_door import Door, KeptInstance, open_device
from tosavk.backends.vulkan import _ffi
from tosavk.backends.vulkan.device import VulkanDevice, open_with
from tosavk.backends.vulkan.layers import VALIDATION_LAYER, Layer, version_text
from tosavk.backends.vulkan.options import VulkanOptions, validation_wanted
from tosavk.backends.vulkan.validation import (
    LOG_VARIABLE,
    NOT_OURS,
    UNSAID_IMPORT,
    layer_switches,
    muted,
    validation_messages,
)
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import EventState, MemoryDomain

N = 1009
BETWEEN = "0x800/0x400000000->0x800/0x600000000"
PARTS = "0x800/0x400000000->0x800/0x400000000"
OLD, NEW = (1 << 22) | (3 << 12) | 239, (1 << 22) | (4 << 12) | 364

needs_layer = pytest.mark.skipif(
    not validation_wanted(), reason="needs the validation layer: TOSAVK_VALIDATION=1"
)


def random_words(seed: int) -> plans.Words:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << 32, N, np.uint32)


@needs_layer
@pytest.mark.parametrize("barrier", [True, False])
def test_a_missing_barrier_is_seen(
    vulkan_device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    barrier: bool,
) -> None:
    """The control of all other tests: synchronization validation is really on."""
    monkeypatch.setenv(LOG_VARIABLE, str(tmp_path / "log"))
    device = open_device(vulkan_device)
    kit = device.create_kit()
    plan = plans.chain_plan(N, random_words(1))
    assert any(dispatch.barrier for dispatch in plan.dispatches)
    if not barrier:
        bare = (dataclasses.replace(d, barrier=False) for d in plan.dispatches)
        plan = plans.replaced(plan, dispatches=tuple(bare))
    plans.run(kit, plan, [random_words(2), random_words(3)])
    kit.free()
    device.close()
    found = [message.name for message in validation_messages()]
    assert found == ([] if barrier else ["SYNC-HAZARD-READ-AFTER-WRITE"])
    if barrier:
        assert not (tmp_path / "log").exists()
    else:
        pid, name, _ = json.loads((tmp_path / "log").read_text(encoding="utf-8"))
        assert (pid, name) == (os.getpid(), found[0])


@needs_layer
def test_a_wrong_call_is_seen(vulkan_device: str) -> None:
    """Not only hazards: the other rules are checked as well."""
    device = open_device(vulkan_device)
    logical = device._logical  # pyright: ignore[reportPrivateUsage]
    info = _ffi.Scratch().struct("VkBufferCreateInfo", size=0, usage=32)
    out = _ffi.ffi.new("VkBuffer *")
    logical.calls.vkCreateBuffer(logical.handle, info, _ffi.NULL, out)
    logical.calls.vkDestroyBuffer(logical.handle, out[0], _ffi.NULL)
    device.close()
    names = {message.name for message in validation_messages()}
    assert "VUID-VkBufferCreateInfo-size-00912" in names


@needs_layer
def test_threads_that_raise_gates_are_watched_by_new_layers(
    vulkan_device: str,
) -> None:
    with open_for_threads(vulkan_device) as accelerator:
        device = accelerator.device
        assert isinstance(device, VulkanDevice)
        logical = device._logical  # pyright: ignore[reportPrivateUsage]
        assert logical.validates == validation.follows_threads()


def opened(spec: str, door: Door, *, validate: bool) -> Accelerator:
    """An accelerator behind a door, with the real kernels."""
    options = VulkanOptions(pipeline_cache=False, validation=validate)
    loader = _ffi.open_loader(wrap=door)
    return Accelerator(open_with(loader, spec.partition(":")[2], options))


@pytest.mark.parametrize("validate", [False, pytest.param(True, marks=needs_layer)])
def test_parts_of_a_concat_are_apart_only_for_the_layer(
    vulkan_device: str, *, validate: bool
) -> None:
    """Their descriptors overlap, the words that they write do not."""
    builder = tosavk.Builder()
    parts = [builder.input(name, tosavk.DType.FP32, (3, 5)) for name in "abc"]
    builder.output(builder.concat(parts, 1))
    door = Door()
    with opened(vulkan_device, door, validate=validate) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, builder.build())
        data = [np.full(15, i, np.float32) for i in range(3)]
        host = MemoryDomain.HOST
        buffers = [allocate(context, 60, host, part) for part in data]
        buffers.append(allocate(context, 180, host))
        door.commands.clear()
        with context.create_queue().submit(program, bind(program, buffers)) as event:
            assert event.wait(30) is EventState.COMPLETE
        result = np.frombuffer(buffers[-1].read(0, 180), np.float32).reshape(3, 15)
    assert np.array_equal(result, np.tile(np.repeat(np.arange(3), 5), (3, 1)))
    dispatches = [i for i, c in enumerate(door.commands) if c == "vkCmdDispatch"]
    assert len(dispatches) == 3
    between = door.commands[dispatches[0] + 1 : dispatches[2]]
    apart = [PARTS, "vkCmdDispatch", PARTS]
    assert between == (apart if validate else ["vkCmdDispatch"])


@pytest.mark.parametrize("validate", [False, pytest.param(True, marks=needs_layer)])
def test_submissions_get_a_barrier_only_for_the_layer_and_behind_gates(
    vulkan_device: str, *, validate: bool
) -> None:
    counts: list[int] = []
    door = Door()

    def wrap(name: str, function: _ffi.Function) -> _ffi.Function:
        inner = door(name, function)

        def submit(queue: object, count: int, *rest: object) -> int:
            if count:
                counts.append(count)
            return int(inner(queue, count, *rest))

        return submit if name == "vkQueueSubmit2" else inner

    options = VulkanOptions(pipeline_cache=False, validation=validate)
    selector = vulkan_device.partition(":")[2]
    device = open_with(_ffi.open_loader(wrap=wrap), selector, options)
    with Accelerator(device) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, add_model(N))
        data = np.ones(N, np.float32)
        buffers = [allocate(context, 4 * N, MemoryDomain.HOST, data) for _ in range(3)]
        queue = context.create_queue()
        request = bind(program, buffers)
        gate = accelerator.create_gate()
        gate.signal().raise_to(1)
        counts.clear()
        for wait in (False, True, False):
            with (
                queue.submit_after(program, request, gate, 1)
                if wait
                else queue.submit(program, request)
            ) as event:
                assert event.wait(30) is EventState.COMPLETE
        gate.release()
    assert counts == [1, 1, 2 if validate else 1]


def test_messages_are_dropped_only_where_they_are_wrong() -> None:
    old = muted(Layer(VALIDATION_LAYER, OLD, frozenset()))
    assert old - NOT_OURS == {
        "VALIDATION-SETTINGS",
        "VUID-VkSemaphoreSignalInfo-value-03259",
    }
    assert muted(Layer(VALIDATION_LAYER, NEW, frozenset())) == NOT_OURS
    assert not old & UNSAID_IMPORT


@needs_layer
def test_only_swiftshader_may_import_unsaid(vulkan_device: str) -> None:
    instance = KeptInstance()
    instance.open(vulkan_device, VulkanOptions(pipeline_cache=False)).close()
    ignored = instance._ignored  # pyright: ignore[reportPrivateUsage]
    instance.destroy()
    assert (ignored >= UNSAID_IMPORT) == vulkan_device.endswith("SwiftShader")


def test_old_and_new_layers_are_switched_on_in_their_own_way() -> None:
    scratch = _ffi.Scratch()
    settings = frozenset({"VK_EXT_layer_settings", "VK_EXT_validation_features"})
    extensions, chain = layer_switches(Layer("new", NEW, settings), scratch)
    assert extensions == []  # loaders older than it refuse VK_EXT_layer_settings
    names = [_ffi.ffi.string(chain.pSettings[i].pSettingName) for i in range(2)]
    assert names == [b"validate_sync", b"syncval_shader_accesses_heuristic"]
    features = frozenset({"VK_EXT_validation_features"})
    extensions, chain = layer_switches(Layer("old", OLD, features), scratch)
    assert extensions == ["VK_EXT_validation_features"]
    assert chain.enabledValidationFeatureCount == 1


def test_a_layer_says_its_version() -> None:
    assert str(Layer("it", NEW, frozenset())) == "it 1.4.364"
    assert version_text(OLD) == "1.3.239"
