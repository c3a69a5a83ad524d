"""Raw Vulkan for benchmarks: one device and queue, buffers, pipelines, device timestamps.

It runs modules of shaders/spirv without the rest of tosavk, so that times are those of the
kernels alone.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.vulkan._ffi import ffi

SPIRV = Path(__file__).resolve().parents[1] / "shaders" / "spirv"
BINDINGS = 7
PARAMETER_BYTES = 128
COMPUTE = 0x800
MATRICES = "VK_KHR_cooperative_matrix"
MATRICES_2 = "VK_NV_cooperative_matrix2"
MATRICES_2_TYPE = 1000593000
WARM_SECONDS = 0.3
SLOW_SECONDS = 0.5

lib: Any = ffi.dlopen("libvulkan.so.1")

Spec = dict[int, int]
Step = tuple[Any, Any, Sequence[int], tuple[int, int, int]]
"""A dispatch: pipeline, descriptor set, parameters, work groups."""


def check(result: int) -> None:
    """Raises RuntimeError for a VkResult that is no success."""
    if result:
        raise RuntimeError(f"a Vulkan call returned {result}")


def struct(name: str, stype: int, **fields: Any) -> Any:  # noqa: ANN401 - cffi structs
    """A pointer to a new structure with a type."""
    return ffi.new(f"{name} *", {"sType": stype, **fields})


@dataclass
class Buffer:
    """A buffer of the device; `bytes` are its contents where they are mapped."""

    handle: Any
    size: int
    memory: Any
    bytes: NDArray[np.uint8] | None = None


class Device:
    """One device with one queue: buffers, pipelines, timed command buffers."""

    def __init__(self, wanted: str) -> None:
        """Opens the first device whose name contains `wanted`."""
        info = struct("VkApplicationInfo", 0, apiVersion=1 << 22 | 3 << 12)
        create = struct("VkInstanceCreateInfo", 1, pApplicationInfo=info)
        self.physical, self.name = self._find(
            self._made("VkInstance", lib.vkCreateInstance, create), wanted
        )
        self._open()
        properties = struct("VkPhysicalDeviceSubgroupProperties", 1000094000)
        both = struct("VkPhysicalDeviceProperties2", 1000059001)
        both.pNext = ffi.cast("void *", properties)
        lib.vkGetPhysicalDeviceProperties2(self.physical, both)
        self.subgroup = int(properties.subgroupSize)
        self.tick = both.properties.limits.timestampPeriod * 1e-9
        self.staging = self.buffer(64 << 20, wanted=(14, 6))

    @staticmethod
    def _made(kind: str, function: Any, *arguments: Any) -> Any:  # noqa: ANN401 - a cffi object
        """What a vkCreate... call makes."""
        out = ffi.new(f"{kind} *")
        check(function(*arguments, ffi.NULL, out))
        return out[0]

    @staticmethod
    def _find(instance: Any, wanted: str) -> tuple[Any, str]:  # noqa: ANN401 - a cffi object
        count = ffi.new("uint32_t *")
        check(lib.vkEnumeratePhysicalDevices(instance, count, ffi.NULL))
        devices = ffi.new("VkPhysicalDevice[]", count[0])
        check(lib.vkEnumeratePhysicalDevices(instance, count, devices))
        for device in devices:
            properties = ffi.new("VkPhysicalDeviceProperties *")
            lib.vkGetPhysicalDeviceProperties(device, properties)
            name = ffi.string(properties.deviceName).decode()
            if wanted in name:
                return device, name
        raise SystemExit(f"no device's name contains {wanted!r}")

    def _extensions(self) -> set[str]:
        """Names of the device's extensions."""
        count = ffi.new("uint32_t *")
        call = lib.vkEnumerateDeviceExtensionProperties
        check(call(self.physical, ffi.NULL, count, ffi.NULL))
        found = ffi.new("VkExtensionProperties[]", count[0])
        check(call(self.physical, ffi.NULL, count, found))
        return {ffi.string(one.extensionName).decode() for one in found}

    def _open(self) -> None:
        """Makes the device with every feature of 1.1 to 1.3 and of its matrices."""
        chain = [
            struct("VkPhysicalDeviceVulkan11Features", 49),
            struct("VkPhysicalDeviceVulkan12Features", 51),
            struct("VkPhysicalDeviceVulkan13Features", 53),
        ]
        offered = self._extensions()
        wanted = [name for name in (MATRICES, MATRICES_2) if name in offered]
        if MATRICES in wanted:
            chain.append(
                struct("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", 1000506000)
            )
        for before, after in zip(chain[1:], chain, strict=False):
            before.pNext = ffi.cast("void *", after)
        top = ffi.cast("void *", chain[-1])
        # A structure that the binding does not know: type, next, seven flags.
        raw = ffi.new("uint64_t[6]")
        if MATRICES_2 in wanted:
            raw[0] = MATRICES_2_TYPE
            raw[1] = int(ffi.cast("uintptr_t", top))
            top = ffi.cast("void *", raw)
        features = struct("VkPhysicalDeviceFeatures2", 1000059000)
        features.pNext = top
        lib.vkGetPhysicalDeviceFeatures2(self.physical, features)
        features.features.robustBufferAccess = 0
        priority = ffi.new("float[]", [1.0])
        queue = struct(
            "VkDeviceQueueCreateInfo", 2, queueCount=1, pQueuePriorities=priority
        )
        texts = [ffi.new("char[]", name.encode()) for name in wanted]
        names = ffi.new("char *[]", texts)
        create = struct(
            "VkDeviceCreateInfo",
            3,
            pNext=ffi.cast("void *", features),
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue,
            enabledExtensionCount=len(wanted),
            ppEnabledExtensionNames=names,
        )
        self.device = self._made(
            "VkDevice",
            functools.partial(lib.vkCreateDevice, self.physical),
            create,
        )
        out = ffi.new("VkQueue *")
        self.call("vkGetDeviceQueue", 0, 0, out)
        self.queue = out[0]
        memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
        lib.vkGetPhysicalDeviceMemoryProperties(self.physical, memory)
        self.types = [t.propertyFlags for t in memory.memoryTypes][
            : memory.memoryTypeCount
        ]
        self.pool = self.make("VkCommandPool", 39, flags=2)
        self.queries = self.make("VkQueryPool", 11, queryType=2, queryCount=2)
        one = {"descriptorType": 7, "descriptorCount": 1, "stageFlags": 32}
        many = [{"binding": i, **one} for i in range(BINDINGS)]
        bindings = ffi.new("VkDescriptorSetLayoutBinding[]", many)
        self.sets = self.make(
            "VkDescriptorSetLayout", 32, bindingCount=BINDINGS, pBindings=bindings
        )
        layouts = ffi.new("VkDescriptorSetLayout[]", [self.sets])
        ranges = ffi.new(
            "VkPushConstantRange *", {"stageFlags": 32, "size": PARAMETER_BYTES}
        )
        self.layout = self.make(
            "VkPipelineLayout",
            30,
            setLayoutCount=1,
            pSetLayouts=layouts,
            pushConstantRangeCount=1,
            pPushConstantRanges=ranges,
        )
        size = ffi.new("VkDescriptorPoolSize *", {"type": 7, "descriptorCount": 50_000})
        self.descriptors = self.make(
            "VkDescriptorPool", 33, maxSets=20_000, poolSizeCount=1, pPoolSizes=size
        )

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - a cffi object
        """Calls a device function."""
        address = lib.vkGetDeviceProcAddr(self.device, name.encode())
        return ffi.cast(f"PFN_{name}", address)(self.device, *arguments)

    def command(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - a cffi object
        """Calls a function of a queue or command buffer, its first argument."""
        address = lib.vkGetDeviceProcAddr(self.device, name.encode())
        return ffi.cast(f"PFN_{name}", address)(*arguments)

    def make(self, kind: str, stype: int, **fields: Any) -> Any:  # noqa: ANN401 - a cffi object
        """Makes an object that a VkKindCreateInfo describes."""
        create = struct(f"{kind}CreateInfo", stype, **fields)
        return self._made(
            kind, functools.partial(self.call, f"vkCreate{kind[2:]}"), create
        )

    def buffer(self, size: int, *, wanted: Sequence[int] = (1, 0)) -> Buffer:
        """A storage buffer in the first memory type with all of some flags."""
        size = max(size, 64)
        handle = self.make("VkBuffer", 12, size=size, usage=0x23)
        needs = ffi.new("VkMemoryRequirements *")
        self.call("vkGetBufferMemoryRequirements", handle, needs)
        index = next(
            i
            for flags in wanted
            for i, have in enumerate(self.types)
            if needs.memoryTypeBits >> i & 1 and have & flags == flags
        )
        allocate = struct(
            "VkMemoryAllocateInfo",
            5,
            allocationSize=needs.size,
            memoryTypeIndex=index,
        )
        memory = self._made(
            "VkDeviceMemory",
            functools.partial(self.call, "vkAllocateMemory"),
            allocate,
        )
        check(self.call("vkBindBufferMemory", handle, memory, 0))
        if wanted == (1, 0):
            return Buffer(handle, size, memory)
        pointer = ffi.new("void **")
        check(self.call("vkMapMemory", memory, 0, size, 0, pointer))
        mapped = np.frombuffer(ffi.buffer(pointer[0], size), np.uint8)
        return Buffer(handle, size, memory, mapped)

    def free(self, buffer: Buffer) -> None:
        """Gives a buffer back."""
        self.call("vkDestroyBuffer", buffer.handle, ffi.NULL)
        self.call("vkFreeMemory", buffer.memory, ffi.NULL)

    def begin(self) -> Any:  # noqa: ANN401 - a cffi object
        """A new command buffer that records."""
        allocate = struct(
            "VkCommandBufferAllocateInfo",
            40,
            commandPool=self.pool,
            commandBufferCount=1,
        )
        out = ffi.new("VkCommandBuffer *")
        check(self.call("vkAllocateCommandBuffers", allocate, out))
        check(
            self.command(
                "vkBeginCommandBuffer", out[0], struct("VkCommandBufferBeginInfo", 42)
            )
        )
        return out[0]

    def submit(self, commands: Any) -> None:  # noqa: ANN401 - a cffi object
        """Runs recorded commands and waits."""
        many = ffi.new("VkCommandBuffer[]", [commands])
        info = struct("VkSubmitInfo", 4, commandBufferCount=1, pCommandBuffers=many)
        check(self.command("vkQueueSubmit", self.queue, 1, info, ffi.NULL))
        check(self.command("vkQueueWaitIdle", self.queue))

    def copy(self, source: Buffer, target: Buffer, size: int, *, at: int = 0) -> None:
        """Copies bytes to the place `at`, or from there into the staging buffer."""
        region = ffi.new("VkBufferCopy *", {"size": size})
        if target is self.staging:
            region.srcOffset = at
        else:
            region.dstOffset = at
        commands = self.begin()
        self.command(
            "vkCmdCopyBuffer", commands, source.handle, target.handle, 1, region
        )
        check(self.command("vkEndCommandBuffer", commands))
        self.submit(commands)

    def upload(self, values: NDArray[Any]) -> Buffer:
        """A new buffer with some values."""
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        target = self.buffer(data.size)
        assert self.staging.bytes is not None
        for at in range(0, data.size, self.staging.size):
            part = data[at : at + self.staging.size]
            self.staging.bytes[: part.size] = part
            self.copy(self.staging, target, part.size, at=at)
        return target

    def download(self, source: Buffer, count: int) -> NDArray[np.float32]:
        """The first floats of a buffer."""
        out = np.empty(4 * count, np.uint8)
        assert self.staging.bytes is not None
        for at in range(0, out.size, self.staging.size):
            size = min(self.staging.size, out.size - at)
            self.copy(source, self.staging, size, at=at)
            out[at : at + size] = self.staging.bytes[:size]
        return out.view(np.float32)

    def pipeline(self, kernel: str, spec: Spec) -> Any:  # noqa: ANN401 - a cffi object
        """A pipeline of a module with its specialization words."""
        code = (SPIRV / f"{kernel}.spv").read_bytes()
        words = ffi.new("uint32_t[]", len(code) // 4)
        ffi.memmove(words, code, len(code))
        module = self.make("VkShaderModule", 16, codeSize=len(code), pCode=words)
        entries = ffi.new(
            "VkSpecializationMapEntry[]",
            [
                {"constantID": number, "offset": 4 * i, "size": 4}
                for i, number in enumerate(spec)
            ],
        )
        data = ffi.new("uint32_t[]", list(spec.values()))
        special = ffi.new(
            "VkSpecializationInfo *",
            {
                "mapEntryCount": len(spec),
                "pMapEntries": entries,
                "dataSize": 4 * len(spec),
                "pData": data,
            },
        )
        name = ffi.new("char[]", b"main")
        create = struct("VkComputePipelineCreateInfo", 29, layout=self.layout)
        create.stage.sType = 18
        create.stage.stage = 32
        create.stage.module = module
        create.stage.pName = name
        create.stage.pSpecializationInfo = special
        return self._made(
            "VkPipeline",
            functools.partial(self.call, "vkCreateComputePipelines", ffi.NULL, 1),
            create,
        )

    def bind(self, operands: Sequence[tuple[Buffer, int]]) -> Any:  # noqa: ANN401 - a cffi object
        """A descriptor set of buffers from some byte on; the first fills what is over."""
        layouts = ffi.new("VkDescriptorSetLayout[]", [self.sets])
        allocate = struct(
            "VkDescriptorSetAllocateInfo",
            34,
            descriptorPool=self.descriptors,
            descriptorSetCount=1,
            pSetLayouts=layouts,
        )
        out = ffi.new("VkDescriptorSet *")
        check(self.call("vkAllocateDescriptorSets", allocate, out))
        everything = [*operands, *[operands[0]] * (BINDINGS - len(operands))]
        infos = ffi.new(
            "VkDescriptorBufferInfo[]",
            [
                {"buffer": buffer.handle, "offset": at, "range": 2**64 - 1}
                for buffer, at in everything
            ],
        )
        writes = ffi.new(
            "VkWriteDescriptorSet[]",
            [
                {
                    "sType": 35,
                    "dstSet": out[0],
                    "dstBinding": i,
                    "descriptorCount": 1,
                    "descriptorType": 7,
                    "pBufferInfo": infos + i,
                }
                for i in range(BINDINGS)
            ],
        )
        self.call("vkUpdateDescriptorSets", BINDINGS, writes, 0, ffi.NULL)
        return out[0]

    def barrier(self, commands: Any) -> None:  # noqa: ANN401 - a cffi object
        """Lets a dispatch see what those before it wrote."""
        memory = struct("VkMemoryBarrier", 46, srcAccessMask=64, dstAccessMask=96)
        self.command(
            "vkCmdPipelineBarrier",
            *(commands, COMPUTE, COMPUTE, 0, 1, memory, 0, ffi.NULL, 0, ffi.NULL),
        )

    def record(self, commands: Any, step: Step) -> None:  # noqa: ANN401 - a cffi object
        """Records a dispatch."""
        pipeline, bound, params, groups = step
        sets = ffi.new("VkDescriptorSet[]", [bound])
        words = ffi.new("uint32_t[]", list(params))
        self.command("vkCmdBindPipeline", commands, 1, pipeline)
        self.command(
            "vkCmdBindDescriptorSets",
            *(commands, 1, self.layout, 0, 1, sets, 0, ffi.NULL),
        )
        self.command(
            "vkCmdPushConstants", commands, self.layout, 32, 0, 4 * len(params), words
        )
        self.command("vkCmdDispatch", commands, *groups)

    def measured(self, record: Callable[[Any], None], count: int) -> float:
        """Median seconds of one of `count` things that `record` puts into commands."""
        commands = self.begin()
        self.command("vkCmdResetQueryPool", commands, self.queries, 0, 2)
        self.command("vkCmdWriteTimestamp", commands, 0x2000, self.queries, 0)
        record(commands)
        self.command("vkCmdWriteTimestamp", commands, 0x2000, self.queries, 1)
        check(self.command("vkEndCommandBuffer", commands))
        end = time.monotonic() + WARM_SECONDS
        start = time.monotonic()
        self.submit(commands)
        spent = time.monotonic() - start
        while time.monotonic() < end:
            self.submit(commands)
        found: list[float] = []
        out = ffi.new("uint64_t[]", 2)
        # Slow ones hardly vary.
        for _ in range(5 if spent < SLOW_SECONDS else 2):
            self.submit(commands)
            check(self.call("vkGetQueryPoolResults", self.queries, 0, 2, 16, out, 8, 3))
            found.append((out[1] - out[0]) * self.tick / count)
        many = ffi.new("VkCommandBuffer[]", [commands])
        self.call("vkFreeCommandBuffers", self.pool, 1, many)
        return statistics.median(found)

    def seconds(
        self, products: Sequence[Sequence[Step]], count: int, *, barriers: bool
    ) -> float:
        """Median time of a product, of `count` in a row, used in turn, when warm."""

        def record(commands: Any) -> None:  # noqa: ANN401 - a cffi object
            for i in range(count):
                product = products[i % len(products)]
                for j, step in enumerate(product):
                    self.record(commands, step)
                    if barriers or j + 1 < len(product):
                        self.barrier(commands)

        return self.measured(record, count)

    def copied(self, nbytes: int) -> float:
        """Bytes a second of vkCmdCopyBuffer, read and written ones counted."""
        source, target = self.buffer(nbytes), self.buffer(nbytes)
        region = ffi.new("VkBufferCopy *", {"size": nbytes})

        def record(commands: Any) -> None:  # noqa: ANN401 - a cffi object
            for _ in range(4):
                self.command(
                    "vkCmdCopyBuffer", commands, source.handle, target.handle, 1, region
                )

        speed = 2 * nbytes / self.measured(record, 4)
        self.free(source)
        self.free(target)
        return speed
