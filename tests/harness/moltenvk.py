"""MoltenVK without a Mac: a function table that answers as MoltenVK does.

`Molten` answers the questions about a physical device from MoltenVK's public sources and
documentation (docs/moltenvk.md lists each number with its origin). `Disguise` puts these
answers in front of a real CPU driver, keeps MoltenVK's rules about memory, and notes what
the backend asks for: so whole programs run on a device that looks like a Mac's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.vulkan_door import Door
from tosavk.backends.vulkan import _ffi
from tosavk.backends.vulkan._ffi import Cdata, const, ffi, structure_type
from tosavk.backends.vulkan.probe import read_record
from tosavk.backends.vulkan.records import DeviceRecord

PORTABILITY_SUBSET = "VK_KHR_portability_subset"
HOST_MEMORY = "VK_EXT_external_memory_host"
UNDEFINED = 1 << 30
"""kMVKUndefinedLargeUInt32, MoltenVK's "no limit"."""

DEVICE_LOCAL, HOST_VISIBLE, COHERENT, CACHED, LAZY = 1, 2, 4, 8, 16
PRIVATE, SHARED, MEMORYLESS = 0, 1, 2
BUFFER_TYPES = 1 << PRIVATE | 1 << SHARED
"""MVKBuffer: memoryless memory is for images only."""

EXTENSIONS = (
    "VK_KHR_16bit_storage",
    "VK_KHR_8bit_storage",
    "VK_KHR_buffer_device_address",
    PORTABILITY_SUBSET,
    "VK_KHR_shader_float_controls",
    "VK_KHR_shader_integer_dot_product",
    "VK_KHR_synchronization2",
    "VK_KHR_timeline_semaphore",
    HOST_MEMORY,
    "VK_EXT_memory_budget",
    "VK_EXT_metal_objects",
    "VK_EXT_subgroup_size_control",
)
_GENERAL_QUEUE = 1 | 2 | 4
_VENDOR = 0x106B
_PAGE = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Mac:
    """What differs between devices.

    Attributes:
        name: MTLDevice.name.
        memory: bytes of the machine.
        buffer: MTLDevice.maxBufferLength.
        device_id: OS version and GPU families, packed.
        version: packed Vulkan version that MoltenVK advertises.
        driver: MoltenVK's version.
    """

    name: str
    memory: int
    buffer: int
    device_id: int
    version: int = (1 << 22) | (3 << 12) | 309
    driver: str = "1.3.0"


M1 = Mac(name="Apple M1", memory=8 << 30, buffer=4 << 30, device_id=0x0E00_0207)
M3 = Mac(
    name="Apple M3",
    memory=16 << 30,
    buffer=9_534_832_640,
    device_id=0x0F00_0209,
    version=(1 << 22) | (4 << 12) | 323,
    driver="1.4.0",
)
OLD = Mac(
    name="Apple M1",
    memory=8 << 30,
    buffer=4 << 30,
    device_id=0x0C00_0207,
    version=(1 << 22) | (2 << 12) | 290,
    driver="1.2.11",
)


class Molten:
    """The functions of a physical device, as MoltenVK answers them."""

    def __init__(self, mac: Mac) -> None:
        self.mac = mac
        most = min(mac.buffer, 2**32 - 1)
        self._limits: dict[str, Any] = {
            "maxStorageBufferRange": most,
            "maxUniformBufferRange": most,
            "maxPerStageDescriptorStorageBuffers": 31,
            "maxDescriptorSetStorageBuffers": 31 * 5,
            "maxPushConstantsSize": 4096,
            "maxComputeWorkGroupCount": [UNDEFINED] * 3,
            "maxComputeWorkGroupSize": [1024, 1024, 1024],
            "maxComputeWorkGroupInvocations": 1024,
            "maxComputeSharedMemorySize": 32768,
            "maxMemoryAllocationCount": UNDEFINED,
            "minStorageBufferOffsetAlignment": 16,
            "minUniformBufferOffsetAlignment": 16,
            "minMemoryMapAlignment": 64,
            "nonCoherentAtomSize": 16,
            "maxBoundDescriptorSets": 8,
            "timestampPeriod": 1.0,
        }
        shuffles = const.SUBGROUP_FEATURE_BASIC_BIT | const.SUBGROUP_FEATURE_VOTE_BIT
        shuffles |= const.SUBGROUP_FEATURE_BALLOT_BIT
        shuffles |= const.SUBGROUP_FEATURE_SHUFFLE_BIT
        shuffles |= const.SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT
        shuffles |= const.SUBGROUP_FEATURE_ARITHMETIC_BIT
        stages = const.SHADER_STAGE_COMPUTE_BIT | const.SHADER_STAGE_FRAGMENT_BIT
        self._properties: dict[str, dict[str, Any]] = {
            "VkPhysicalDeviceVulkan11Properties": {
                "deviceUUID": list(range(16)),
                "subgroupSize": 32,
                "subgroupSupportedStages": stages,
                "subgroupSupportedOperations": shuffles,
                "maxMemoryAllocationSize": mac.buffer,
            },
            "VkPhysicalDeviceMaintenance3Properties": {
                "maxMemoryAllocationSize": mac.buffer
            },
            "VkPhysicalDeviceVulkan12Properties": {
                "driverID": const.DRIVER_ID_MOLTENVK,
                "driverName": b"MoltenVK",
                "driverInfo": mac.driver.encode(),
                "shaderSignedZeroInfNanPreserveFloat16": 1,
                "shaderSignedZeroInfNanPreserveFloat32": 1,
                "shaderRoundingModeRTEFloat32": 1,
                "maxTimelineSemaphoreValueDifference": 2**64 - 1,
            },
            "VkPhysicalDeviceVulkan13Properties": {
                "minSubgroupSize": 4,
                "maxSubgroupSize": 32,
                "requiredSubgroupSizeStages": 0,
                "maxBufferSize": mac.buffer,
            },
            "VkPhysicalDeviceExternalMemoryHostPropertiesEXT": {
                "minImportedHostPointerAlignment": _PAGE
            },
        }
        self._features: dict[str, dict[str, Any]] = {
            "VkPhysicalDeviceVulkan11Features": {
                "storageBuffer16BitAccess": 1,
                "uniformAndStorageBuffer16BitAccess": 1,
                "variablePointers": 1,
            },
            "VkPhysicalDeviceVulkan12Features": {
                "storageBuffer8BitAccess": 1,
                "shaderFloat16": 1,
                "shaderInt8": 1,
                "timelineSemaphore": 1,
                "bufferDeviceAddress": 1,
                "vulkanMemoryModel": 1,
            },
            "VkPhysicalDeviceVulkan13Features": {
                "subgroupSizeControl": 1,
                "computeFullSubgroups": 1,
                "synchronization2": 1,
                "shaderIntegerDotProduct": 1,
                "maintenance4": 1,
            },
        }

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions by their Vulkan names."""
        return {
            "vkGetPhysicalDeviceProperties": self._get_properties,
            "vkGetPhysicalDeviceProperties2": self._get_properties_2,
            "vkGetPhysicalDeviceFeatures2": self._get_features_2,
            "vkGetPhysicalDeviceMemoryProperties": self._get_memory,
            "vkGetPhysicalDeviceQueueFamilyProperties": self._get_queues,
            "vkEnumerateDeviceExtensionProperties": self._get_extensions,
            "vkGetPhysicalDeviceExternalBufferProperties": self._get_external,
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function by its Vulkan name."""
        try:
            return self.functions()[name]
        except KeyError:
            raise AttributeError(name) from None

    def record(self) -> DeviceRecord:
        """What the backend finds when it asks."""
        calls: Any = self
        return read_record(calls, ffi.NULL, index=0)

    def _get_properties(self, handle: object, out: Cdata) -> None:
        del handle
        out.apiVersion = self.mac.version
        out.driverVersion = 10300
        out.vendorID = _VENDOR
        out.deviceID = self.mac.device_id
        out.deviceType = 1
        out.deviceName = self.mac.name.encode()
        out.pipelineCacheUUID = list(range(16, 32))
        ffi.memmove(
            ffi.addressof(out.limits),
            bytes(ffi.sizeof(out.limits)),
            ffi.sizeof(out.limits),
        )
        for name, value in self._limits.items():
            setattr(out.limits, name, value)

    def _get_properties_2(self, handle: object, out: Cdata) -> None:
        self._get_properties(handle, ffi.addressof(out.properties))
        _fill_chain(out.pNext, self._properties)

    def _get_features_2(self, handle: object, out: Cdata) -> None:
        del handle
        core = ffi.addressof(out.features)
        ffi.memmove(core, bytes(ffi.sizeof(out.features)), ffi.sizeof(out.features))
        core.robustBufferAccess = core.shaderInt16 = core.shaderInt64 = 1
        _fill_chain(out.pNext, self._features)

    def _get_memory(self, handle: object, out: Cdata) -> None:
        del handle
        kinds = (
            DEVICE_LOCAL,
            DEVICE_LOCAL | HOST_VISIBLE | COHERENT | CACHED,
            DEVICE_LOCAL | LAZY,
        )
        out.memoryTypeCount = len(kinds)
        for index, flags in enumerate(kinds):
            out.memoryTypes[index].propertyFlags = flags
            out.memoryTypes[index].heapIndex = 0
        out.memoryHeapCount = 1
        out.memoryHeaps[0].size = self.mac.memory
        out.memoryHeaps[0].flags = 1

    def _get_queues(self, handle: object, count: Cdata, out: Cdata) -> None:
        del handle
        if out == ffi.NULL:
            count[0] = 4
            return
        for index in range(min(4, count[0])):
            out[index].queueFlags = _GENERAL_QUEUE
            out[index].queueCount = 1
        count[0] = min(4, count[0])

    def _get_extensions(
        self, handle: object, layer: object, count: Cdata, out: Cdata
    ) -> int:
        del handle, layer
        if out == ffi.NULL:
            count[0] = len(EXTENSIONS)
            return 0
        for index, name in enumerate(EXTENSIONS):
            out[index].extensionName = name.encode()
        count[0] = len(EXTENSIONS)
        return 0

    def _get_external(self, handle: object, asked: Cdata, out: Cdata) -> None:
        del handle, asked
        importable = const.EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT
        out.externalMemoryProperties.externalMemoryFeatures = importable


def _fill_chain(pointer: Cdata, values: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the known structs of a chain; unknown ones are no struct of MoltenVK's."""
    by_type = {structure_type(name): name for name in values}
    while pointer != ffi.NULL:
        head = ffi.cast("VkPhysicalDeviceProperties2 *", pointer)
        name = by_type.get(int(head.sType))
        if name is not None:
            struct = ffi.cast(f"{name} *", pointer)
            for field, value in values[name].items():
                setattr(struct, field, value)
        pointer = head.pNext


class Disguise(Door):
    """A real driver that looks like MoltenVK.

    Attributes:
        instance: names of the instance extensions that were enabled, and the flags.
        device: names of the device extensions that were enabled.
        allocated: memory types of the live allocations by handle.
        stages: of each pipeline, the flags of its stage and whether it has a chain.
        mapped: memory types that were mapped.
        behind: flags of the memory types of the driver behind it.
    """

    def __init__(self, mac: Mac) -> None:
        super().__init__()
        self.molten = Molten(mac)
        self.instance: tuple[list[str], int] = ([], 0)
        self.device: list[str] = []
        self.allocated: dict[int, int] = {}
        self.mapped: set[int] = set()
        self.behind: list[int] = []
        self._usable = 0
        self.stages: list[tuple[int, bool]] = []
        self._kept = _ffi.Scratch()

    def __call__(self, name: str, function: _ffi.Function) -> _ffi.Function:
        """Wraps one function."""
        fake = self.molten.functions().get(name)
        own: _ffi.Function | None = getattr(self, f"_on_{name}", None)
        if name == "vkGetPhysicalDeviceMemoryProperties":
            return super().__call__(name, self._memory(function))
        if fake is not None:
            return super().__call__(name, fake)
        if own is not None:
            inner = function

            def call(*args: Cdata) -> Any:  # noqa: ANN401 - whatever the function takes
                assert own is not None
                return own(inner, *args)

            return super().__call__(name, call)
        return super().__call__(name, function)

    def _on_vkCreateInstance(  # noqa: N802
        self, call: _ffi.Function, info: Cdata, *rest: Cdata
    ) -> int:
        self.instance = (_names(info), int(info.flags))
        return int(call(info, *rest))

    def _on_vkCreateDevice(  # noqa: N802
        self, call: _ffi.Function, physical: Cdata, info: Cdata, *rest: Cdata
    ) -> int:
        self.device = _names(info)
        assert set(self.device) <= set(EXTENSIONS), "an extension that is not offered"
        if PORTABILITY_SUBSET in EXTENSIONS and PORTABILITY_SUBSET not in self.device:
            return int(const.ERROR_INITIALIZATION_FAILED)
        # The driver behind it has no such extension.
        names = [name for name in self.device if name != PORTABILITY_SUBSET]
        info.enabledExtensionCount = len(names)
        info.ppEnabledExtensionNames = self._kept.texts(names)
        return int(call(physical, info, *rest))

    def _memory(self, call: _ffi.Function) -> _ffi.Function:
        """Answers as MoltenVK, and notes the types of the driver behind."""

        def get(handle: Cdata, out: Cdata) -> None:
            call(handle, out)
            count = int(out.memoryTypeCount)
            self.behind = [int(out.memoryTypes[i].propertyFlags) for i in range(count)]
            self.molten.functions()["vkGetPhysicalDeviceMemoryProperties"](handle, out)

        return get

    def _type_behind(self, kind: int) -> int:
        """The driver's memory type that stands for one of MoltenVK's."""
        wanted = HOST_VISIBLE | COHERENT if kind == SHARED else 0
        for index, flags in enumerate(self.behind):
            if self._usable >> index & 1 and flags & wanted == wanted:
                return index
        raise AssertionError("the driver behind has no such memory")

    def _on_vkGetBufferMemoryRequirements(  # noqa: N802
        self, call: _ffi.Function, device: Cdata, buffer: Cdata, out: Cdata
    ) -> None:
        call(device, buffer, out)
        self._usable = int(out.memoryTypeBits)
        out.memoryTypeBits = BUFFER_TYPES

    def _on_vkAllocateMemory(  # noqa: N802
        self,
        call: _ffi.Function,
        device: Cdata,
        info: Cdata,
        allocator: Cdata,
        out: Cdata,
    ) -> int:
        kind = int(info.memoryTypeIndex)
        assert BUFFER_TYPES >> kind & 1, f"memory of type {kind} for a buffer"
        assert info.allocationSize <= self.molten.mac.buffer
        info.memoryTypeIndex = self._type_behind(kind)
        code = int(call(device, info, allocator, out))
        info.memoryTypeIndex = kind
        if code >= 0:
            self.allocated[_ffi.address_of(out[0])] = kind
        return code

    def _on_vkMapMemory(  # noqa: N802
        self, call: _ffi.Function, device: Cdata, memory: Cdata, *rest: Cdata
    ) -> int:
        kind = self.allocated[_ffi.address_of(memory)]
        if kind != SHARED:
            return int(const.ERROR_MEMORY_MAP_FAILED)
        self.mapped.add(kind)
        return int(call(device, memory, *rest))

    def _on_vkGetMemoryHostPointerPropertiesEXT(  # noqa: N802
        self,
        call: _ffi.Function,
        device: Cdata,
        kind: Cdata,
        pointer: Cdata,
        out: Cdata,
    ) -> int:
        code = int(call(device, kind, pointer, out))
        out.memoryTypeBits = 1 << SHARED
        return code

    def _on_vkCreateComputePipelines(  # noqa: N802
        self,
        call: _ffi.Function,
        device: Cdata,
        cache: Cdata,
        count: int,
        infos: Cdata,
        *rest: Cdata,
    ) -> int:
        for info in infos[0:count]:
            self.stages.append((int(info.stage.flags), info.stage.pNext != ffi.NULL))
        return int(call(device, cache, count, infos, *rest))


def _names(info: Cdata) -> list[str]:
    return [
        _ffi.text_of(info.ppEnabledExtensionNames[i])
        for i in range(info.enabledExtensionCount)
    ]
