"""Every Vulkan call of every operation fails once, with every kind of result."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness import devices, faults
from harness.fault_operations import OPERATIONS, Room
from harness.faults import CODES, INJECTED, LOST, Operation, Stage, Stages, load
from harness.vulkan_door import Door, KeptInstance, library_of_tests
from tosavk.backends.vulkan import _ffi, probe
from tosavk.backends.vulkan._ffi import NULL, VULK
from tosavk.backends.vulkan.instance import Instance
from tosavk.backends.vulkan.options import VulkanOptions, validation_wanted
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import EventState
from tosavk.core.errors import (
    DeviceLost,
    External,
    InitError,
    ModelError,
    RuntimeUnavailable,
)

PLANS = {"mapped": True, "staged": False}
UNCONCERNED = {
    "vkEnumerateDeviceExtensionProperties",
    "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR",
    "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV",
}
"""What may fail while a device is opened, and yet it is opened."""

# What only a cold device calls.
COLD = (
    "vkCreateDescriptorSetLayout",
    "vkCreatePipelineLayout",
    "vkCreateShaderModule",
    "vkCreateComputePipelines",
)


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    """Operations that drop handles collect garbage: what was there before is none."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptInstance]:
    """One instance for all devices of this file."""
    made = KeptInstance()
    yield made
    made.destroy()
    assert not made.door.live
    assert not made.door.wrong


@pytest.fixture(scope="module")
def stages(kept: KeptInstance) -> Iterator[dict[tuple[str, bool], Stages]]:
    """A stage for each lane and memory plan, made when it is wanted."""
    del kept
    made: dict[tuple[str, bool], Stages] = {}
    yield made
    for each in made.values():
        each.bury()


@pytest.fixture
def alone(kept: KeptInstance, stages: dict[tuple[str, bool], Stages]) -> KeptInstance:
    """The instance, without a device."""
    for each in stages.values():
        each.bury()  # one device at a time: all handles are seen by one door
    kept.door.arm(0)
    return kept


def counted(error: InitError, door: Door) -> None:
    """Counts a fault, which the error must name."""
    INJECTED[door.failed] += 1
    assert door.failed in str(error)


def nothing_left(door: Door) -> None:
    """Checks that no device is left, nor anything of one."""
    assert not door.wrong
    left = {name for name, _ in door.live}
    assert left <= {"vkCreateInstance", "vkCreateDebugUtilsMessengerEXT"}, left


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@pytest.mark.parametrize("plan", PLANS)
def test_every_call_may_fail(
    vulkan_device: str,
    plan: str,
    operation: Operation,
    kept: KeptInstance,
    stages: dict[tuple[str, bool], Stages],
) -> None:
    unified = PLANS[plan]
    here = stages.setdefault(
        (vulkan_device, unified), Stages(kept, vulkan_device, unified)
    )
    for other in stages.values():
        if other is not here:
            other.bury()
    try:
        for code in CODES:
            faults.campaign(here, operation, code)
    except BaseException:
        here.abandon()
        raise


@pytest.mark.parametrize("code", CODES)
def test_every_call_of_making_an_instance_may_fail(code: str) -> None:
    door = Door()
    fail = 0
    while True:
        fail += 1
        door.arm(fail, code=CODES[code][0])
        try:
            loader = _ffi.open_loader(wrap=door)
            instance = Instance(loader, validation=validation_wanted())
        except InitError as error:
            counted(error, door)
            assert not door.live, door.failed
            continue
        instance.close()
        assert not door.failed
        assert not door.live
        assert not door.wrong
        break
    assert fail > 3


def test_a_loader_that_finds_no_driver_is_no_surprise() -> None:
    door = Door()
    code = _ffi.const.ERROR_INCOMPATIBLE_DRIVER
    door.arm(1, code=code, only="vkCreateInstance")
    with pytest.raises(RuntimeUnavailable, match="finds no usable driver"):
        Instance(_ffi.open_loader(wrap=door), validation=False)
    assert not door.live


@pytest.mark.parametrize("plan", PLANS)
def test_every_call_of_opening_a_device_may_fail(
    vulkan_device: str, plan: str, alone: KeptInstance
) -> None:
    door = alone.door
    options = VulkanOptions(map_unified_device_memory=PLANS[plan], pipeline_cache=False)
    for code in CODES:
        fail = 0
        while True:
            fail += 1
            door.arm(fail, code=CODES[code][0])
            try:
                device = alone.open(vulkan_device, options, library_of_tests())
            except InitError as error:
                counted(error, door)
                nothing_left(door)
                continue
            failed = door.failed
            door.arm(0)
            device.close()
            nothing_left(door)
            if not failed:
                break
            # Extensions of another device that cannot be read are not our concern, and
            # a device that does not tell its matrix shapes is used without matrices.
            INJECTED[failed] += 1
            assert failed in UNCONCERNED
        assert fail > 5


@pytest.mark.parametrize("function", COLD)
def test_the_first_load_of_a_device_may_fail(
    vulkan_device: str, function: str, alone: KeptInstance
) -> None:
    for code in CODES:
        number, expected = CODES[code]
        stage = ColdStage(alone, vulkan_device)
        door = stage.door
        door.arm(1, code=number, only=function)
        with pytest.raises(expected, match=function) as caught:
            load(stage.context)
        assert door.failed == function
        INJECTED[function] += 1
        door.arm(0)
        if isinstance(caught.value, External):
            assert (caught.value.domain, caught.value.code) == (VULK, number)
        assert stage.accelerator.live_resources().programs == 0
        assert stage.accelerator.is_poisoned == (number == LOST)
        if number == LOST:
            with pytest.raises(DeviceLost):
                load(stage.context)
        else:
            load(stage.context).release()
        stage.accelerator.close()
        nothing_left(door)


class ColdStage:
    """A device on which nothing was loaded yet."""

    def __init__(
        self, kept: KeptInstance, spec: str, *, pipeline_cache: bool = False
    ) -> None:
        self.door = kept.door
        options = VulkanOptions(pipeline_cache=pipeline_cache)
        device = kept.open(spec, options, library_of_tests())
        self.accelerator = Accelerator(device)
        self.context = self.accelerator.create_context()


@pytest.mark.parametrize("plan", PLANS)
def test_every_call_of_closing_may_fail(
    vulkan_device: str, plan: str, alone: KeptInstance
) -> None:
    for code in CODES:
        fail = 0
        while True:
            fail += 1
            stage = Stage(alone, vulkan_device, unified=PLANS[plan])
            room = Room(stage)
            events = [
                room.submit(),
                stage.queue.submit(stage.program, stage.bindings()),
            ]
            door = stage.door
            door.arm(fail, code=CODES[code][0])
            stage.accelerator.close()
            failed = door.failed
            door.arm(0)
            nothing_left(door)
            for event in events:
                assert event.poll() is not EventState.PENDING
                event.release()
            if not failed:
                assert all(event.error is None for event in events)
                break
            INJECTED[failed] += 1
        assert fail > 4


@pytest.mark.parametrize("code", CODES)
def test_the_last_resort_of_waiting_may_fail(
    vulkan_device: str, code: str, alone: KeptInstance
) -> None:
    stage = Stage(alone, vulkan_device, unified=True)
    event = stage.queue.submit(stage.program, stage.bindings())
    assert event.wait(60) is EventState.COMPLETE
    event.release()
    stage.check()
    door = stage.door
    door.stuck = "vkQueueSubmit2"
    door.arm(1, code=CODES["OUT_OF_HOST_MEMORY"][0], only="vkDeviceWaitIdle")
    # The code of both; which error it is has no meaning for a wait that never raises.
    door.code = CODES[code][0]
    if door.code == LOST:
        door.code = CODES["OUT_OF_DEVICE_MEMORY"][0]
    stage.accelerator.device.wait_idle()
    assert door.failed == "vkDeviceWaitIdle"
    INJECTED[door.failed] += 1
    door.stuck = ""
    stage.bury()


def test_a_pipeline_cache_that_cannot_be_read_or_made_is_done_without(
    vulkan_device: str,
    alone: KeptInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for code in CODES:
        number = CODES[code][0]
        folder = tmp_path / code
        monkeypatch.setenv("TOSAVK_CACHE_DIR", str(folder))
        for fail in (1, 2):
            stage = ColdStage(alone, vulkan_device, pipeline_cache=True)
            stage.door.arm(fail, code=number, only="vkGetPipelineCacheData")
            program = load(stage.context)
            assert stage.door.failed == "vkGetPipelineCacheData"
            INJECTED[stage.door.failed] += 1
            stage.door.arm(0)
            assert stage.accelerator.is_poisoned == (number == LOST)
            program.release()
            stage.accelerator.close()
            nothing_left(stage.door)
            assert not list(folder.glob("*.cache"))
        stage = ColdStage(alone, vulkan_device, pipeline_cache=True)
        load(stage.context).release()
        stage.accelerator.close()
        assert list(folder.glob("*.cache"))
        stage.door.arm(1, code=number, only="vkCreatePipelineCache")
        stage = ColdStage(alone, vulkan_device, pipeline_cache=True)
        assert stage.door.failed == "vkCreatePipelineCache"
        INJECTED[stage.door.failed] += 1
        stage.door.arm(0)
        load(stage.context).release()
        stage.accelerator.close()
        nothing_left(stage.door)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", "matrix_shapes"),
        (
            "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV",
            "_matrix_grids",
        ),
    ],
)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("fail", [1, 2])
def test_a_device_that_cannot_tell_its_matrix_shapes_has_none(
    code: str, fail: int, name: str, ask: str
) -> None:
    asked = 0

    def query(device: Any, count: Any, found: Any) -> int:  # noqa: ANN401
        nonlocal asked
        del device, found
        asked += 1
        count[0] = 1
        return CODES[code][0] if asked == fail else 0

    calls = cast(_ffi.Calls, SimpleNamespace(**{name: query}))
    assert getattr(probe, ask)(calls, NULL) == ()
    assert asked == fail
    INJECTED[name] += 1


def test_every_function_of_the_backend_was_made_to_fail(
    request: pytest.FixtureRequest,
) -> None:
    """Compares what the backend may call with what has failed in the tests above."""
    ran = {
        item.originalname
        for item in cast("list[pytest.Function]", request.session.items)
        if item.path == request.path
    }
    everything = {name for name in globals() if name.startswith("test_")}
    if ran != everything or not INJECTED["vkQueueSubmit2"]:
        pytest.skip("only a part of this file was asked for, or there is no device")
    assert set(INJECTED) == faults.checked_functions()
    total = sum(INJECTED.values())
    drivers = [s for s in devices.available() if s.startswith("vulkan")]
    assert total > 1500 * len(drivers), total


def test_a_fault_is_told_by_its_code() -> None:
    """Codes that no header names are kept as they are."""
    error = _ffi.error_of(faults.UNKNOWN, "vkSomething")
    assert isinstance(error, External)
    assert isinstance(error, ModelError)
    assert error.code == faults.UNKNOWN
    assert str(faults.UNKNOWN) in str(error)
