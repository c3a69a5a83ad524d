"""The door to Vulkan, as far as it goes without a driver."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tosavk.backends.vulkan import _ffi
from tosavk.backends.vulkan._ffi import const, error_of, ffi
from tosavk.core.errors import (
    DeviceLost,
    External,
    Incompatible,
    ModelError,
    OutOfMemory,
    ResourceLimit,
    RuntimeUnavailable,
)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("ERROR_OUT_OF_HOST_MEMORY", OutOfMemory),
        ("ERROR_OUT_OF_DEVICE_MEMORY", OutOfMemory),
        ("ERROR_TOO_MANY_OBJECTS", ResourceLimit),
        ("ERROR_DEVICE_LOST", DeviceLost),
        ("ERROR_MEMORY_MAP_FAILED", Incompatible),
        ("ERROR_OUT_OF_POOL_MEMORY", External),
        ("ERROR_FRAGMENTATION", External),
        ("ERROR_INVALID_EXTERNAL_HANDLE", External),
        ("ERROR_UNKNOWN", External),
    ],
)
def test_results_become_the_models_errors(name: str, error: type[ModelError]) -> None:
    code = getattr(const, name)
    made = error_of(code, "vkDoIt (5 bytes)")
    assert type(made) is error
    assert f"vkDoIt (5 bytes) failed: VK_{name}" in str(made)
    if isinstance(made, External):
        assert (made.domain, made.code) == (0x56554C4B, code)


def test_a_result_nobody_knows_keeps_its_number() -> None:
    made = error_of(-424242, "vkDoIt")
    assert isinstance(made, External)
    assert "-424242" in str(made)


@pytest.mark.parametrize(
    ("struct", "value"),
    [
        ("VkApplicationInfo", 0),
        ("VkSubmitInfo2", 1000314004),
        ("VkPhysicalDeviceVulkan11Properties", 50),
        ("VkPhysicalDeviceVulkan12Features", 51),
        ("VkPhysicalDeviceVulkan13Features", 53),
        ("VkPhysicalDeviceProperties2", 1000059001),
        ("VkMemoryBarrier2", 1000314000),
        ("VkDescriptorSetLayoutCreateInfo", 32),
        ("VkDebugUtilsMessengerCreateInfoEXT", 1000128004),
    ],
)
def test_structure_types_follow_from_names(struct: str, value: int) -> None:
    assert _ffi.structure_type(struct) == value


def test_constants_come_from_the_headers() -> None:
    assert const.ERROR_OUT_OF_POOL_MEMORY == -1000069000
    assert const.PIPELINE_STAGE_2_COPY_BIT == 1 << 32
    with pytest.raises(AttributeError, match="VK_NO_SUCH_THING"):
        _ = const.NO_SUCH_THING


def test_scratch_keeps_what_structs_point_to() -> None:
    scratch = _ffi.Scratch()
    infos = [
        scratch.struct(
            "VkDeviceQueueCreateInfo",
            queueCount=1,
            pQueuePriorities=scratch.array("float", [float(i)]),
        )
        for i in range(500)
    ]
    gc.collect()
    _noise = [ffi.new("float[]", [-1.0] * 4) for _ in range(5000)]
    assert [info.pQueuePriorities[0] for info in infos] == list(range(500))


def test_a_missing_loader_says_what_to_install() -> None:
    with pytest.raises(RuntimeUnavailable, match="no Vulkan loader") as caught:
        _ffi.open_loader(names=["libnothing.so.9", "libless.so"])
    assert "libnothing.so.9, libless.so" in str(caught.value)
    assert _ffi.install_hint(sys.platform) in str(caught.value)


@pytest.mark.parametrize("platform", ["linux", "win32", "darwin", "android"])
def test_every_platform_has_names_and_advice(platform: str) -> None:
    assert _ffi.loader_names(platform)
    assert "install" in _ffi.install_hint(platform)


class FakeLibrary:
    """A loader that knows some functions."""

    def __init__(self, known: set[bytes]) -> None:
        self.known = known

    def vkGetInstanceProcAddr(  # noqa: N802 - Vulkan's name
        self,
        instance: _ffi.Cdata,
        name: bytes,
    ) -> _ffi.Cdata:
        return ffi.cast("void *", 16 if name in self.known else 0)


def test_a_loader_without_a_needed_function_is_refused() -> None:
    known = {name.encode() for name in _ffi.GLOBAL_FUNCTIONS}
    _ffi.Loader(FakeLibrary(known))
    with pytest.raises(RuntimeUnavailable, match="vkEnumerateInstanceVersion"):
        _ffi.Loader(FakeLibrary(known - {b"vkEnumerateInstanceVersion"}))


def test_functions_keep_their_library_loaded() -> None:
    library = FakeLibrary({name.encode() for name in _ffi.GLOBAL_FUNCTIONS})
    calls, kept = _ffi.Loader(library).calls, weakref.ref(library)
    del library
    gc.collect()
    assert kept() is not None
    del calls
    gc.collect()
    assert kept() is None


def test_a_wrapper_sees_every_function_once() -> None:
    seen: list[str] = []

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        seen.append(name)
        return lambda *args: ("wrapped", function(*args))

    table = {"vkOne": lambda: 1, "vkTwo": lambda: 2}
    calls = _ffi.Calls(["vkOne"], table.get, wrap, optional=["vkTwo", "vkThree"])
    assert seen == ["vkOne", "vkTwo"]
    assert calls.vkTwo() == ("wrapped", 2)
    with pytest.raises(AttributeError):
        calls.vkThree()


def test_importing_the_backend_loads_nothing() -> None:
    script = (
        "import sys, tosavk.backends.vulkan\n"
        "loaded = [m for m in sys.modules if m == 'vulkan' or '_ffi' in m]\n"
        "assert not [m for m in loaded if 'tosavk' in m or m == 'vulkan'], loaded\n"
        "import tosavk.backends.vulkan._ffi\n"
        "assert 'vulkan' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
