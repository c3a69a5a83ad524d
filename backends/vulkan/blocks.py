"""Blocks: one VkBuffer on one dedicated allocation, bound at offset 0."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from tosavk.backends.vulkan._ffi import (
    NULL,
    WHOLE_SIZE,
    Cdata,
    Scratch,
    address_of,
    const,
    ffi,
    view,
)
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.memory import (
    ALL_TYPES,
    MemoryPlan,
    Placement,
    plan_memory,
)
from tosavk.backends.vulkan.probe import buffer_usage
from tosavk.core.errors import (
    DeviceUnavailable,
    Incompatible,
    ResourceLimit,
)

ALIGNMENT_CAP = 1 << 40


def words(nbytes: int) -> int:
    """Bytes rounded up to whole 32-bit words."""
    return -(-nbytes // 4) * 4


def alignment_of(address: int) -> int:
    """The largest power of two that divides an address, at most `ALIGNMENT_CAP`."""
    return min(address & -address, ALIGNMENT_CAP) if address else ALIGNMENT_CAP


def address_flags(device: LogicalDevice, scratch: Scratch) -> Cdata:
    """What lets the address of memory be asked for, to chain to an allocation."""
    if not device.record.features.buffer_device_address:
        return None
    return scratch.struct(
        "VkMemoryAllocateFlagsInfo", flags=const.MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT
    )


def _create_buffer(device: LogicalDevice, nbytes: int) -> Cdata:
    info = Scratch().struct(
        "VkBufferCreateInfo", size=nbytes, usage=buffer_usage(device.record.features)
    )
    return device.create("vkCreateBuffer", "VkBuffer", info, what=f"{nbytes} bytes")


def usable_types(device: LogicalDevice) -> int:
    """The memory types that buffers of our usage may lie in, as a bit mask."""
    buffer = _create_buffer(device, 4)
    need = ffi.new("VkMemoryRequirements *")
    device.calls.vkGetBufferMemoryRequirements(device.handle, buffer, need)
    device.calls.vkDestroyBuffer(device.handle, buffer, NULL)
    return int(need.memoryTypeBits) & ALL_TYPES


def memory_plan(device: LogicalDevice, *, map_unified: bool) -> MemoryPlan:
    """The device's memory plan, with the types that buffers may really use.

    Raises:
        DeviceUnavailable: no type serves the host.
        ModelError: the throw-away buffer could not be made.
    """
    record = device.record
    plan = plan_memory(
        record.memory_types,
        heaps=len(record.memory_heaps),
        mask=usable_types(device),
        map_unified=map_unified,
    )
    if plan is None:
        raise DeviceUnavailable(
            f"{record.name}: buffers may lie in no memory type that is both "
            "host-visible and host-coherent"
        )
    return plan


class Block:
    """A VkBuffer with its memory.

    Attributes:
        handle: the VkBuffer.
        nbytes: its size, whole words.
        allocation_bytes: size of the memory.
        alignment: of the first byte, as far as it can be observed.
        placement: where it lies.
        mapped: the bytes, if they are mapped.
        pointer: the first byte, or NULL.
    """

    __slots__ = (
        "_device",
        "_undo",
        "alignment",
        "allocation_bytes",
        "handle",
        "mapped",
        "nbytes",
        "placement",
        "pointer",
    )

    def __init__(
        self, device: LogicalDevice, nbytes: int, placement: Placement
    ) -> None:
        """Allocates at least `nbytes`.

        Raises:
            Incompatible: this buffer may not lie in that memory type.
            ResourceLimit: larger than one buffer or allocation may be.
            ModelError: the driver refused.
        """
        self._device = device
        self.placement = placement
        self.nbytes = words(nbytes)
        self.mapped: memoryview | None = None
        self.pointer: Cdata = NULL
        limits = device.record.limits
        limit = min(limits.buffer_bytes, limits.allocation_bytes)
        if self.nbytes > limit:
            raise ResourceLimit(
                f"a buffer of {nbytes} bytes exceeds what {device.record.name} can "
                f"allocate in one piece, {limit} bytes"
            )
        calls = device.calls
        with ExitStack() as undo:
            self.handle = _create_buffer(device, self.nbytes)
            undo.callback(calls.vkDestroyBuffer, device.handle, self.handle, NULL)
            need = ffi.new("VkMemoryRequirements *")
            calls.vkGetBufferMemoryRequirements(device.handle, self.handle, need)
            if not need.memoryTypeBits >> placement.index & 1:
                raise Incompatible(
                    f"a buffer of {nbytes} bytes may not lie in memory type "
                    f"{placement.index} of {device.record.name}"
                )
            self.allocation_bytes = int(need.size)
            memory = self._allocate(device)
            undo.callback(device.free_memory, memory)
            code = calls.vkBindBufferMemory(device.handle, self.handle, memory, 0)
            device.check(code, "vkBindBufferMemory")
            if placement.mapped:
                self._map(device, memory)
                undo.callback(calls.vkUnmapMemory, device.handle, memory)
            self.alignment = self._measure(device, int(need.alignment))
            self._undo = undo.pop_all()

    def free(self) -> None:
        """Destroys it; nothing uses it any more."""
        self.mapped = None
        self._device.dispose(self._undo.close)

    def __enter__(self) -> Self:
        """The block itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Frees it."""
        self.free()

    def write(self, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset` of a mapped block."""
        assert self.mapped is not None
        self.mapped[offset : offset + data.nbytes] = data.cast("B")

    def read(self, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset` of a mapped block."""
        assert self.mapped is not None
        out.cast("B")[:] = self.mapped[offset : offset + out.nbytes]

    def _allocate(self, device: LogicalDevice) -> Cdata:
        scratch = Scratch()
        placement = self.placement
        info = scratch.struct(
            "VkMemoryAllocateInfo",
            pNext=address_flags(device, scratch),
            allocationSize=self.allocation_bytes,
            memoryTypeIndex=placement.index,
        )
        heap = device.record.memory_heaps[placement.heap]
        return device.allocate_memory(
            info,
            f"{self.allocation_bytes} bytes of memory type {placement.index} in heap "
            f"{placement.heap} of {heap.size} bytes",
        )

    def _map(self, device: LogicalDevice, memory: Cdata) -> None:
        out = ffi.new("void **")
        code = device.calls.vkMapMemory(device.handle, memory, 0, WHOLE_SIZE, 0, out)
        device.check(code, "vkMapMemory")
        self.pointer = out[0]
        self.mapped = view(self.pointer, self.nbytes)

    def _measure(self, device: LogicalDevice, required: int) -> int:
        seen: list[int] = []
        if self.pointer != NULL:
            seen.append(alignment_of(address_of(self.pointer)))
        if device.record.features.buffer_device_address:
            info = Scratch().struct("VkBufferDeviceAddressInfo", buffer=self.handle)
            address = device.calls.vkGetBufferDeviceAddress(device.handle, info)
            seen.append(alignment_of(int(address)))
        return min(seen) if seen else required
