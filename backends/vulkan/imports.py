"""Host memory as a buffer: VK_EXT_external_memory_host."""

from __future__ import annotations

from contextlib import ExitStack

from tosavk.backends.vulkan._ffi import (
    NULL,
    Cdata,
    Scratch,
    const,
    ffi,
    pointer_to,
)
from tosavk.backends.vulkan.blocks import Block, address_flags
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.memory import Placement, import_placement
from tosavk.backends.vulkan.probe import buffer_usage
from tosavk.core.errors import Incompatible, ResourceLimit

_KIND = const.EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT


class ImportedBlock(Block):
    """A VkBuffer on memory that the host has allocated.

    It is as long as that memory and always mapped. Freeing it releases the view, after
    the driver has let go.
    """

    __slots__ = ()

    def __init__(self, device: LogicalDevice, data: memoryview) -> None:
        """Imports all of `data`, whose address and size are aligned.

        Raises:
            Incompatible: no memory type takes it.
            ResourceLimit: the driver wants more memory than there is.
            ModelError: the driver refused.
        """
        calls = device.calls
        self._device = device
        self.nbytes = self.allocation_bytes = data.nbytes
        self.pointer = pointer_to(data)
        mask = _takers(device, self.pointer)
        with ExitStack() as undo:
            self.handle = _create_buffer(device, data.nbytes)
            undo.callback(calls.vkDestroyBuffer, device.handle, self.handle, NULL)
            need = ffi.new("VkMemoryRequirements *")
            calls.vkGetBufferMemoryRequirements(device.handle, self.handle, need)
            self.placement = _place(device, mask & int(need.memoryTypeBits))
            if need.size > data.nbytes:
                raise ResourceLimit(
                    f"{device.record.name} wants {need.size} bytes for a buffer of the "
                    f"{data.nbytes} bytes to be imported"
                )
            memory = self._import(device)
            undo.callback(device.free_memory, memory)
            code = calls.vkBindBufferMemory(device.handle, self.handle, memory, 0)
            device.check(code, "vkBindBufferMemory")
            self.alignment = self._measure(device, int(need.alignment))
            self.mapped = data
            self._undo = ExitStack()
            self._undo.callback(data.release)
            self._undo.push(undo.pop_all())

    def _import(self, device: LogicalDevice) -> Cdata:
        scratch = Scratch()
        host = scratch.struct(
            "VkImportMemoryHostPointerInfoEXT",
            pNext=address_flags(device, scratch),
            handleType=_KIND,
            pHostPointer=self.pointer,
        )
        info = scratch.struct(
            "VkMemoryAllocateInfo",
            pNext=host,
            allocationSize=self.nbytes,
            memoryTypeIndex=self.placement.index,
        )
        return device.allocate_memory(
            info,
            f"the import of {self.nbytes} bytes as memory type {self.placement.index}",
        )


def _takers(device: LogicalDevice, pointer: Cdata) -> int:
    """The memory types that take this memory, as a bit mask."""
    out = Scratch().struct("VkMemoryHostPointerPropertiesEXT")
    code = device.calls.vkGetMemoryHostPointerPropertiesEXT(
        device.handle, _KIND, pointer, out
    )
    device.check(code, "vkGetMemoryHostPointerPropertiesEXT")
    return int(out.memoryTypeBits)


def _place(device: LogicalDevice, mask: int) -> Placement:
    placement = import_placement(device.record.memory_types, mask)
    if placement is None:
        raise Incompatible(
            f"{device.record.name} has no host-visible, host-coherent memory type that "
            f"takes this memory (mask {mask:#x})"
        )
    return placement


def _create_buffer(device: LogicalDevice, nbytes: int) -> Cdata:
    scratch = Scratch()
    external = scratch.struct("VkExternalMemoryBufferCreateInfo", handleTypes=_KIND)
    info = scratch.struct(
        "VkBufferCreateInfo",
        pNext=external,
        size=nbytes,
        usage=buffer_usage(device.record.features),
    )
    return device.create("vkCreateBuffer", "VkBuffer", info, what=f"{nbytes} bytes")
