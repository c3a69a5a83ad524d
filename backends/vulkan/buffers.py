"""The memory of one buffer, as the model sees it."""

from __future__ import annotations

from tosavk.backends.vulkan.blocks import Block
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.memory import DEVICE_LOCAL, MemoryPlan
from tosavk.backends.vulkan.staging import Transfers
from tosavk.core.descriptors import BufferDesc, BufferInfo, BufferProperties
from tosavk.core.errors import ResourceLimit, Unsupported


class VulkanAllocation:
    """The memory of one buffer (`core.device.Allocation`).

    Args:
        block: the VkBuffer and its memory; they belong to this object.
        transfers: for copies to memory that is not mapped.

    Attributes:
        info: what was really allocated.
        block: the VkBuffer and its memory.
    """

    __slots__ = ("_transfers", "block", "info")

    def __init__(self, block: Block, transfers: Transfers) -> None:
        """Takes a block over."""
        properties = BufferProperties.DIRECT_BINDING
        if block.placement.mapped:
            properties |= BufferProperties.HOST_VISIBLE
        if block.placement.flags & DEVICE_LOCAL:
            properties |= BufferProperties.DEVICE_LOCAL
        self.info = BufferInfo(block.allocation_bytes, block.alignment, properties)
        self.block = block
        self._transfers = transfers

    @property
    def mapped(self) -> memoryview | None:
        """The writable host mapping, if it is mapped."""
        return self.block.mapped

    def write(self, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset`; staged where the memory is not mapped."""
        if self.block.mapped is not None:
            self.block.write(offset, data)
        else:
            self._transfers.write(self.block, offset, data)

    def read(self, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset`."""
        if self.block.mapped is not None:
            self.block.read(offset, out)
        else:
            self._transfers.read(self.block, offset, out)

    def free(self) -> None:
        """Gives the memory back; the device no longer uses it."""
        self.block.free()


def allocate(
    device: LogicalDevice, plan: MemoryPlan, transfers: Transfers, desc: BufferDesc
) -> VulkanAllocation:
    """Allocates the memory of a buffer.

    Raises:
        Unsupported: the domain has no memory type.
        ResourceLimit: too large, or the alignment cannot be had.
        ModelError: the driver refused.
    """
    placement = plan.placement(desc.domain)
    if placement is None:
        raise Unsupported(
            f"{device.record.name} has no memory for the domain {desc.domain.name}"
        )
    block = Block(device, desc.nbytes, placement)
    if block.alignment < desc.alignment:
        got = block.alignment
        block.free()
        raise ResourceLimit(
            f"alignment {desc.alignment} was asked for, the driver gave {got}"
        )
    return VulkanAllocation(block, transfers)
