"""The only door to Vulkan: C types, constants, function pointers, results.

Types and enum values come from the cffi module of the `vulkan` package. The package
itself is not imported: its wrappers are slow, drop references that structs need, and
raise KeyError for some results. The loader library is opened here, and every function
is fetched through `vkGetInstanceProcAddr` and `vkGetDeviceProcAddr`.

All functions of an instance or device stand in one `Calls` table. A `Wrapper` put round
the table sees every call by name, so it can count objects or answer in the driver's
place.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosavk.core.errors import (
    DeviceLost,
    External,
    Incompatible,
    ModelError,
    OutOfMemory,
    ResourceLimit,
    RuntimeUnavailable,
)

Cdata = Any
Function = Callable[..., Any]
Wrapper = Callable[[str, Function], Function]

VULK = 0x56554C4B
WHOLE_SIZE = 2**64 - 1


def _load_types() -> Cdata:
    spec = importlib.util.find_spec("vulkan")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "_vulkancache.py"
        types = importlib.util.spec_from_file_location("_tosavk_vulkan_types", path)
        if path.is_file() and types is not None and types.loader is not None:
            module = importlib.util.module_from_spec(types)
            types.loader.exec_module(module)
            return module.ffi
    raise ImportError("the package 'vulkan' is missing or has no _vulkancache.py")


ffi = _load_types()
NULL: Cdata = ffi.NULL


class Constants:
    """Vulkan's enum values and flag bits: `const.QUEUE_COMPUTE_BIT` and so on.

    They are known without a loader. The Python constants of the `vulkan` package are
    not used, since some of them are wrong.
    """

    def __getattr__(self, name: str) -> int:
        """Looks VK_`name` up, once."""
        try:
            value = int(ffi.integer_const(f"VK_{name}"))
        except AttributeError:
            raise AttributeError(f"Vulkan has no constant VK_{name}") from None
        setattr(self, name, value)
        return value


const = Constants()


@cache
def structure_type(name: str) -> int:
    """The sType value of a struct, by the specification's naming rule."""
    ends = r"(?<=[a-z])(?=[A-Z0-9])|(?<=[0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    snake = re.sub(ends, "_", name[2:])
    snake = re.sub(r"VULKAN_1(\d)", r"VULKAN_1_\1", snake.upper())
    return int(getattr(const, f"STRUCTURE_TYPE_{snake}"))


class Scratch:
    """Owner of C data: whatever it made lives as long as it does.

    cffi keeps nothing alive that a struct points to, so everything that one call
    reaches is made by one `Scratch`, which outlives the call.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[Cdata] = []

    def keep(self, made: Cdata) -> Cdata:
        """Keeps what was made elsewhere."""
        self._kept.append(made)
        return made

    def new(self, ctype: str, value: object = None) -> Cdata:
        """Like `ffi.new`, and keeps the result."""
        return self.keep(ffi.new(ctype) if value is None else ffi.new(ctype, value))

    def struct(self, name: str, **fields: object) -> Cdata:
        """A pointer to a new struct with sType set; None fields stay zero."""
        values = {key: value for key, value in fields.items() if value is not None}
        return self.new(f"{name} *", {"sType": structure_type(name), **values})

    def array(self, ctype: str, values: Sequence[Any]) -> Cdata:
        """A new array, or NULL if it would be empty."""
        return self.new(f"{ctype}[]", list(values)) if values else NULL

    def text(self, value: str) -> Cdata:
        """A new zero-terminated string."""
        return self.new("char[]", value.encode())

    def texts(self, values: Iterable[str]) -> Cdata:
        """A new array of strings, or NULL if it would be empty."""
        return self.array("char *", [self.text(value) for value in values])

    def bytes(self, data: bytes | memoryview) -> Cdata:
        """A new copy of `data` as `uint32_t[]`, padded with zeros."""
        made = self.new("uint32_t[]", -(-len(data) // 4))
        ffi.memmove(made, data, len(data))
        return made

    def handle(self, ctype: str, value: Cdata) -> Cdata:
        """A new array that holds one handle."""
        return self.new(f"{ctype}[1]", [value])


def text_of(chars: Cdata) -> str:
    """The text of a C string or of a fixed array of characters."""
    raw = ffi.string(chars)
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def address_of(pointer: Cdata) -> int:
    """A pointer as a number."""
    return int(ffi.cast("uintptr_t", pointer))


def view(pointer: Cdata, nbytes: int) -> memoryview:
    """Writable bytes at `pointer`; nothing keeps the memory alive."""
    return memoryview(ffi.buffer(ffi.cast("char *", pointer), nbytes)).cast("B")


def pointer_to(data: memoryview) -> Cdata:
    """A `char *` to flat, writable bytes; it does not keep them."""
    return ffi.cast("char *", address_of(ffi.from_buffer(data)))


def copy_in(pointer: Cdata, data: memoryview) -> None:
    """Copies `data` to `pointer`."""
    ffi.memmove(pointer, data, len(data))


def result_name(code: int) -> str:
    """The specification's name of a VkResult, or its number."""
    names: dict[int, str] = ffi.typeof("VkResult").elements
    return names.get(code, f"VkResult {code}")


def error_of(code: int, call: str) -> ModelError:
    """The model's error for a failed call.

    Args:
        code: a VkResult, not VK_SUCCESS.
        call: the function, and what it was asked for.
    """
    message = f"{call} failed: {result_name(code)}"
    if code in (const.ERROR_OUT_OF_HOST_MEMORY, const.ERROR_OUT_OF_DEVICE_MEMORY):
        return OutOfMemory(message)
    if code == const.ERROR_TOO_MANY_OBJECTS:
        return ResourceLimit(message)
    if code == const.ERROR_DEVICE_LOST:
        return DeviceLost(f"{message}: discard the accelerator and open a new one")
    if code == const.ERROR_MEMORY_MAP_FAILED:
        return Incompatible(message)
    return External(message, domain=VULK, code=code)


class Calls:
    """Function pointers by their Vulkan names, each fetched once.

    Args:
        names: functions that must be there.
        resolve: gives the callable function of a name, or None.
        wrap: put round every function.
        optional: functions that may be missing; asking for one that is raises
            AttributeError.
        library: kept while the table lives: when it goes, cffi unloads the functions.

    Raises:
        RuntimeUnavailable: a function of `names` is missing.
    """

    def __init__(
        self,
        names: Iterable[str],
        resolve: Callable[[str], Function | None],
        wrap: Wrapper,
        *,
        optional: Iterable[str] = (),
        library: object = None,
    ) -> None:
        self._library = library
        for name in names:
            function = resolve(name)
            if function is None:
                raise RuntimeUnavailable(
                    f"the Vulkan driver does not offer {name}: install a driver "
                    "for Vulkan 1.3"
                )
            setattr(self, name, wrap(name, function))
        for name in optional:
            function = resolve(name)
            if function is not None:
                setattr(self, name, wrap(name, function))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Function:
            """Any function that was asked for."""
            ...


GLOBAL_FUNCTIONS = (
    "vkEnumerateInstanceVersion",
    "vkEnumerateInstanceExtensionProperties",
    "vkEnumerateInstanceLayerProperties",
    "vkCreateInstance",
)
INSTANCE_FUNCTIONS = (
    "vkDestroyInstance",
    "vkEnumeratePhysicalDevices",
    "vkEnumerateDeviceExtensionProperties",
    "vkGetPhysicalDeviceProperties",
    "vkGetPhysicalDeviceProperties2",
    "vkGetPhysicalDeviceFeatures2",
    "vkGetPhysicalDeviceMemoryProperties",
    "vkGetPhysicalDeviceMemoryProperties2",
    "vkGetPhysicalDeviceQueueFamilyProperties",
    "vkGetPhysicalDeviceExternalBufferProperties",
    "vkCreateDevice",
    "vkGetDeviceProcAddr",
)
INSTANCE_OPTIONAL = (
    "vkCreateDebugUtilsMessengerEXT",
    "vkDestroyDebugUtilsMessengerEXT",
    "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR",
    "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV",
)
_NEWER_TYPES = {
    "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV": (
        "VkResult (*)(VkPhysicalDevice, uint32_t *, uint32_t *)"
    )
}
"""Functions that the C types lack; structures are given as words."""

DEVICE_FUNCTIONS = (
    "vkAllocateCommandBuffers",
    "vkAllocateDescriptorSets",
    "vkAllocateMemory",
    "vkBeginCommandBuffer",
    "vkBindBufferMemory",
    "vkCmdBindDescriptorSets",
    "vkCmdBindPipeline",
    "vkCmdCopyBuffer",
    "vkCmdDispatch",
    "vkCmdDispatchBase",
    "vkCmdPipelineBarrier2",
    "vkCmdPushConstants",
    "vkCreateBuffer",
    "vkCreateCommandPool",
    "vkCreateComputePipelines",
    "vkCreateDescriptorPool",
    "vkCreateDescriptorSetLayout",
    "vkCreateFence",
    "vkCreatePipelineCache",
    "vkCreatePipelineLayout",
    "vkCreateSemaphore",
    "vkCreateShaderModule",
    "vkDestroyBuffer",
    "vkDestroyCommandPool",
    "vkDestroyDescriptorPool",
    "vkDestroyDescriptorSetLayout",
    "vkDestroyDevice",
    "vkDestroyFence",
    "vkDestroyPipeline",
    "vkDestroyPipelineCache",
    "vkDestroyPipelineLayout",
    "vkDestroySemaphore",
    "vkDestroyShaderModule",
    "vkDeviceWaitIdle",
    "vkEndCommandBuffer",
    "vkFreeCommandBuffers",
    "vkFreeMemory",
    "vkGetBufferDeviceAddress",
    "vkGetBufferMemoryRequirements",
    "vkGetDeviceQueue",
    "vkGetFenceStatus",
    "vkGetPipelineCacheData",
    "vkMapMemory",
    "vkQueueSubmit2",
    "vkResetFences",
    "vkSignalSemaphore",
    "vkUnmapMemory",
    "vkUpdateDescriptorSets",
    "vkWaitForFences",
)
DEVICE_OPTIONAL = ("vkGetMemoryHostPointerPropertiesEXT",)


def unwrapped(name: str, function: Function) -> Function:
    """The wrapper that adds nothing."""
    del name
    return function


class Loader:
    """An open loader library with the functions that need no instance.

    Attributes:
        calls: `GLOBAL_FUNCTIONS`.
    """

    def __init__(self, library: Cdata, wrap: Wrapper = unwrapped) -> None:
        self._library = library
        self._get: Function = library.vkGetInstanceProcAddr
        self._wrap = wrap
        self.calls = Calls(
            GLOBAL_FUNCTIONS, self._resolver(NULL), wrap, library=library
        )

    def instance_calls(self, instance: Cdata) -> Calls:
        """The functions of an instance."""
        return Calls(
            INSTANCE_FUNCTIONS,
            self._resolver(instance),
            self._wrap,
            optional=INSTANCE_OPTIONAL,
            library=self._library,
        )

    def device_calls(self, instance_calls: Calls, device: Cdata) -> Calls:
        """The functions of a device."""
        get = instance_calls.vkGetDeviceProcAddr

        def resolve(name: str) -> Function | None:
            return _typed(name, get(device, name.encode()))

        return Calls(
            DEVICE_FUNCTIONS,
            resolve,
            self._wrap,
            optional=DEVICE_OPTIONAL,
            library=self._library,
        )

    def _resolver(self, instance: Cdata) -> Callable[[str], Function | None]:
        def resolve(name: str) -> Function | None:
            return _typed(name, self._get(instance, name.encode()))

        return resolve


def prototype(name: str) -> str:
    """The C type of a pointer to a Vulkan function."""
    return _NEWER_TYPES.get(name, f"PFN_{name}")


def _typed(name: str, pointer: Cdata) -> Function | None:
    if pointer == NULL:
        return None
    function: Function = ffi.cast(prototype(name), pointer)
    return function


def loader_names(platform: str) -> tuple[str, ...]:
    """Where the loader library may be, by `sys.platform`, best first."""
    if platform == "win32":
        return ("vulkan-1.dll",)
    if platform == "darwin":
        return (
            "libvulkan.1.dylib",
            "libvulkan.dylib",
            "/opt/homebrew/lib/libvulkan.1.dylib",
            "/usr/local/lib/libvulkan.1.dylib",
            "libMoltenVK.dylib",
            "/opt/homebrew/lib/libMoltenVK.dylib",
        )
    return ("libvulkan.so.1", "libvulkan.so")


def install_hint(platform: str) -> str:
    """What to install when there is no loader or no driver, by `sys.platform`."""
    if platform == "win32":
        return "install or update the graphics driver, which brings vulkan-1.dll"
    if platform == "darwin":
        return "brew install vulkan-loader molten-vk"
    return (
        "install the loader and a driver: Debian and Ubuntu: libvulkan1 "
        "mesa-vulkan-drivers; Fedora: vulkan-loader mesa-vulkan-drivers; Arch: "
        "vulkan-icd-loader with vulkan-swrast, vulkan-radeon, vulkan-intel or "
        "nvidia-utils"
    )


def open_loader(
    *, names: Sequence[str] | None = None, wrap: Wrapper = unwrapped
) -> Loader:
    """Opens the loader library.

    Args:
        names: libraries to try in order; None for those of this platform.
        wrap: put round every function of every table.

    Raises:
        RuntimeUnavailable: none of them is there, or it is older than Vulkan 1.1.
    """
    tried = loader_names(sys.platform) if names is None else tuple(names)
    for name in tried:
        try:
            library = ffi.dlopen(name)
        except OSError:
            continue
        return Loader(library, wrap)
    raise RuntimeUnavailable(
        f"no Vulkan loader library (tried {', '.join(tried)}): "
        f"{install_hint(sys.platform)}"
    )
