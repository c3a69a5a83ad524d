"""Times the fast NVFP4 kernels on a Vulkan device, each checked against binary64 first.

    python benchmarks/nvfp4_kernels.py [--device NAME] [--n 14336 --k 4096] [--m 1 4096]

The modules in shaders/spirv are run through raw Vulkan calls, without the rest of tosavk, so
the times are those of the kernels alone: device timestamps around many products in a row,
a barrier after every dispatch ("serial"), and again without barriers between products
("free"). Inputs are used in turn from as many copies as pass 230 MB, so that no cache
holds them. Times include the rounding of activations where it is a dispatch of its own.
For what the columns mean and for results, see docs/nvfp4-kernels.md.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.vulkan._ffi import ffi

SPIRV = Path(__file__).resolve().parents[1] / "shaders" / "spirv"
ENOUGH_BYTES = 230e6
SHARED_BYTES = 48 << 10
BINDINGS = 5
COMPUTE = 0x800
MULTIPROCESSORS = 132

lib: Any = ffi.dlopen("libvulkan.so.1")

Spec = dict[int, int]
Step = tuple[Any, Any, Sequence[int], tuple[int, int, int]]
"""A dispatch: pipeline, descriptor set, parameters, work groups."""


def up(value: int, unit: int) -> int:
    """value / unit, rounded up."""
    return -(-value // unit)


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
    def _made(kind: str, function: Any, *arguments: Any) -> Any:  # noqa: ANN401
        """What a vkCreate... call makes."""
        out = ffi.new(f"{kind} *")
        check(function(*arguments, ffi.NULL, out))
        return out[0]

    @staticmethod
    def _find(instance: Any, wanted: str) -> tuple[Any, str]:  # noqa: ANN401
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

    def _open(self) -> None:
        """Makes the device with every feature of 1.1 to 1.3 and cooperative matrices."""
        chain = [
            struct("VkPhysicalDeviceVulkan11Features", 49),
            struct("VkPhysicalDeviceVulkan12Features", 51),
            struct("VkPhysicalDeviceVulkan13Features", 53),
            struct("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", 1000506000),
        ]
        for before, after in zip(chain[1:], chain, strict=False):
            before.pNext = ffi.cast("void *", after)
        features = struct("VkPhysicalDeviceFeatures2", 1000059000)
        features.pNext = ffi.cast("void *", chain[-1])
        lib.vkGetPhysicalDeviceFeatures2(self.physical, features)
        features.features.robustBufferAccess = 0
        priority = ffi.new("float[]", [1.0])
        queue = struct(
            "VkDeviceQueueCreateInfo", 2, queueCount=1, pQueuePriorities=priority
        )
        name = ffi.new("char[]", b"VK_KHR_cooperative_matrix")
        names = ffi.new("char *[]", [name])
        create = struct(
            "VkDeviceCreateInfo",
            3,
            pNext=ffi.cast("void *", features),
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue,
            enabledExtensionCount=1,
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
        ranges = ffi.new("VkPushConstantRange *", {"stageFlags": 32, "size": 32})
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
            "VkDescriptorPool", 33, maxSets=10_000, poolSizeCount=1, pPoolSizes=size
        )

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401
        """Calls a device function."""
        address = lib.vkGetDeviceProcAddr(self.device, name.encode())
        return ffi.cast(f"PFN_{name}", address)(self.device, *arguments)

    def command(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401
        """Calls a function of a queue or command buffer, its first argument."""
        address = lib.vkGetDeviceProcAddr(self.device, name.encode())
        return ffi.cast(f"PFN_{name}", address)(*arguments)

    def make(self, kind: str, stype: int, **fields: Any) -> Any:  # noqa: ANN401
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
            return Buffer(handle, size)
        pointer = ffi.new("void **")
        check(self.call("vkMapMemory", memory, 0, size, 0, pointer))
        mapped = np.frombuffer(ffi.buffer(pointer[0], size), np.uint8)
        return Buffer(handle, size, mapped)

    def begin(self) -> Any:  # noqa: ANN401
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

    def submit(self, commands: Any) -> None:  # noqa: ANN401
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

    def pipeline(self, kernel: str, spec: Spec) -> Any:  # noqa: ANN401
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

    def bind(self, buffers: Sequence[Buffer]) -> Any:  # noqa: ANN401
        """A descriptor set of some buffers; the first fills what is over."""
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
        all_buffers = [*buffers, *[buffers[0]] * (BINDINGS - len(buffers))]
        infos = ffi.new(
            "VkDescriptorBufferInfo[]",
            [{"buffer": b.handle, "range": 2**64 - 1} for b in all_buffers],
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

    def barrier(self, commands: Any) -> None:  # noqa: ANN401
        """Lets a dispatch see what those before it wrote."""
        memory = struct("VkMemoryBarrier", 46, srcAccessMask=64, dstAccessMask=96)
        self.command(
            "vkCmdPipelineBarrier",
            *(commands, COMPUTE, COMPUTE, 0, 1, memory, 0, ffi.NULL, 0, ffi.NULL),
        )

    def record(self, commands: Any, step: Step) -> None:  # noqa: ANN401
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

    def seconds(
        self, products: Sequence[Sequence[Step]], count: int, *, barriers: bool
    ) -> float:
        """Median time of a product, of `count` in a row, used in turn, when warm."""
        commands = self.begin()
        self.command("vkCmdResetQueryPool", commands, self.queries, 0, 2)
        self.command("vkCmdWriteTimestamp", commands, 0x2000, self.queries, 0)
        for i in range(count):
            product = products[i % len(products)]
            for j, step in enumerate(product):
                self.record(commands, step)
                if barriers or j + 1 < len(product):
                    self.barrier(commands)
        self.command("vkCmdWriteTimestamp", commands, 0x2000, self.queries, 1)
        check(self.command("vkEndCommandBuffer", commands))
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            self.submit(commands)
        found: list[float] = []
        out = ffi.new("uint64_t[]", 2)
        for _ in range(5):
            self.submit(commands)
            check(self.call("vkGetQueryPoolResults", self.queries, 0, 2, 16, out, 8, 3))
            found.append((out[1] - out[0]) * self.tick / count)
        return statistics.median(found)


@dataclass(frozen=True)
class Choice:
    """A kernel with its words, and how `nvfp4_halves` fills up its activations."""

    kernel: str
    spec: Spec
    groups: tuple[int, int, int]
    order: int | None = None
    rows: int = 0
    depth: int = 0

    def __str__(self) -> str:
        """The kernel and its words in order."""
        return f"{self.kernel} {list(self.spec.values())[:-1]}"


def few(m: int, n: int, k: int, *, halves: bool, tiles: int = 1) -> Choice | None:
    """The kernel for few tokens with groups for all multiprocessors, where it fits."""
    row_groups = min(max(up(n, 16 * MULTIPROCESSORS), 1), 8 if tiles == 1 else 2)
    width = 32 * row_groups * (32 // tiles // row_groups)
    chunks = up(k, 128)
    room = 0 if halves else m * (16 * chunks + 4) * 16
    if max(room, width // 32 * tiles * 512) + 16 > SHARED_BYTES:
        return None
    words = [width, 1, tiles, row_groups, int(halves), m, chunks, 0]
    rows = up(m, 8 * tiles) * 8 * tiles
    groups = (up(n, 16 * row_groups), up(m, 8 * tiles), 1)
    return Choice(
        "nvfp4_gemv",
        dict(enumerate(words)),
        groups,
        3 if halves else None,
        rows,
        128 * chunks,
    )


def many(m: int, n: int, k: int, *, width: int, tokens: int, tiles: int) -> Choice:
    """The kernel for many tokens that knows the order of elements."""
    words = [width, tokens, tokens, tiles, 0]
    rows = up(m, tokens) * tokens
    groups = (rows // tokens, up(n, width // 32 * 16 * tiles), 1)
    spec = dict(enumerate(words))
    return Choice("nvfp4_gemm_fragments", spec, groups, 2, rows, up(k, 128) * 128)


def any_matrix(m: int, n: int, k: int, *, size: int, subgroup: int) -> Choice:
    """The kernel for many tokens and cubic matrices of any size."""
    tile = 8 * size
    words = [8 * subgroup, tile, tile, 64, tile // 2, tile // 4, size, size, size, 1, 0]
    rows = up(m, tile) * tile
    groups = (rows // tile, up(n, tile), 1)
    spec = dict(enumerate(words))
    return Choice("nvfp4_gemm_khr", spec, groups, 1, rows, up(k, 64) * 64)


def choices(m: int, n: int, k: int, *, subgroup: int) -> Iterator[Choice]:
    """What is worth a try."""
    if subgroup != 32:
        yield any_matrix(m, n, k, size=8, subgroup=subgroup)
        return
    if m <= 8:
        found = (few(m, n, k, halves=halves) for halves in (False, True))
        yield from (choice for choice in found if choice is not None)
    elif m <= 32:
        choice = few(m, n, k, halves=True, tiles=up(m, 8))
        if choice is not None:
            yield choice
    if m > 8:
        yield many(m, n, k, width=256, tokens=32, tiles=1)
    if m > 32:
        yield many(m, n, k, width=128, tokens=64, tiles=2)
        yield many(m, n, k, width=128, tokens=64, tiles=4)
    if m > 64:
        yield many(m, n, k, width=256, tokens=128, tiles=2)
        yield any_matrix(m, n, k, size=16, subgroup=subgroup)


def code_values() -> NDArray[np.float32]:
    """The values of the 16 codes."""
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.concatenate([sizes, -sizes])


def scale_values() -> NDArray[np.float32]:
    """The values of the 256 scales, NaNs left out."""
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    normal = (8 + fraction) * 2.0 ** (exponent - 10)
    sizes = np.where(exponent == 0, fraction * 2.0**-9, normal)
    return np.concatenate([sizes, -sizes]).astype(np.float32)


@dataclass
class Problem:
    """Random weights [n, k] in several copies, and pipelines made so far."""

    device: Device
    n: int
    k: int
    copies: list[tuple[Buffer, Buffer]] = field(
        default_factory=list[tuple[Buffer, Buffer]]
    )
    pipelines: dict[tuple[str, tuple[int, ...]], Any] = field(
        default_factory=dict[tuple[str, tuple[int, ...]], Any]
    )

    def __post_init__(self) -> None:
        """Makes the weights and a sample of their values, [rows, k]."""
        draw = np.random.default_rng(7)
        packed = draw.integers(0, 256, (self.n, self.k // 2), np.uint8)
        scales = draw.integers(0x20, 0x50, (self.n, self.k // 16), np.uint8)
        self.bytes = packed.nbytes + scales.nbytes
        for _ in range(up(int(ENOUGH_BYTES), self.bytes)):
            pair = self.device.upload(packed), self.device.upload(scales)
            self.copies.append(pair)
        self.scale = self.device.upload(np.array([0.013], np.float32))
        self.rows = np.unique(np.r_[0, self.n - 1, draw.integers(0, self.n, 62)])
        codes = packed[self.rows]
        values = np.empty((len(self.rows), self.k))
        values[:, 0::2] = code_values()[codes & 15]
        values[:, 1::2] = code_values()[codes >> 4]
        self.sample = values * np.repeat(scale_values()[scales[self.rows]], 16, axis=1)

    def pipeline(self, kernel: str, spec: Spec) -> Any:  # noqa: ANN401
        """A pipeline, made once."""
        key = kernel, tuple(spec.values())
        if key not in self.pipelines:
            self.pipelines[key] = self.device.pipeline(kernel, spec)
        return self.pipelines[key]

    def products(
        self, choice: Choice, m: int, x: Buffer, y: Buffer
    ) -> list[list[Step]]:
        """The dispatches of a product for each copy of the weights."""
        first: list[Step] = []
        source = x
        if choice.order is not None:
            source = self.device.buffer(2 * choice.rows * choice.depth)
            count = choice.rows * choice.depth // 8
            high = up(up(count, 128), 65_535)
            groups = (up(up(count, 128), high), high, 1)
            halves = self.pipeline("nvfp4_halves", {0: 128, 1: choice.order})
            params = (count, m, self.k, choice.depth)
            first = [(halves, self.device.bind([x, source]), params, groups)]
        made = self.pipeline(choice.kernel, choice.spec)
        found: list[list[Step]] = []
        for w, s in self.copies:
            bound = self.device.bind([source, w, s, self.scale, y])
            params = (m, self.n, self.k, choice.depth)
            found.append([*first, (made, bound, params, choice.groups)])
        return found

    def measure(self, m: int, bandwidth: float) -> None:
        """Prints a line for each choice."""
        values = np.random.default_rng(m).standard_normal((m, self.k), np.float32)
        x, y = self.device.upload(values), self.device.buffer(4 * m * self.n)
        want = values.astype(np.float16).astype(np.float64) @ self.sample.T * 0.013
        moved = self.bytes + 4 * m * (self.k + self.n)
        for choice in choices(m, self.n, self.k, subgroup=self.device.subgroup):
            products = self.products(choice, m, x, y)
            commands = self.device.begin()
            for step in products[0]:
                self.device.record(commands, step)
                self.device.barrier(commands)
            check(self.device.command("vkEndCommandBuffer", commands))
            self.device.submit(commands)
            got = self.device.download(y, m * self.n).reshape(m, self.n)[:, self.rows]
            error = np.linalg.norm(got - want) / np.linalg.norm(want)
            count = max(4, min(105, 30_000 // m))
            serial = self.device.seconds(products, count, barriers=True)
            free = self.device.seconds(products, count, barriers=False)
            rate = 2 * m * self.n * self.k / serial * 1e-12
            share = moved / bandwidth / serial
            print(
                f"n={self.n} k={self.k} m={m:5d} {serial * 1e6:9.2f} us"
                f" {free * 1e6:9.2f} free {rate:6.1f} TFLOP/s {share:5.0%} of the floor"
                f" error {error:.1e}{'' if error < 1e-4 else ' WRONG'} {choice}",
                flush=True,
            )


def main() -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="", help="part of the device's name")
    parser.add_argument("--n", type=int, default=14336, help="rows of the weights")
    parser.add_argument("--k", type=int, default=4096, help="their length")
    parser.add_argument("--m", type=int, nargs="*", help="numbers of tokens")
    parser.add_argument(
        "--bandwidth", type=float, default=4.23e12, help="bytes a second of a copy"
    )
    options = parser.parse_args()
    device = Device(options.device)
    print(device.name)
    problem = Problem(device, options.n, options.k)
    for m in options.m or (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        problem.measure(m, options.bandwidth)


if __name__ == "__main__":
    main()
