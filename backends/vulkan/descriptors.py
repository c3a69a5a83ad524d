"""Descriptor sets: a pool of exactly the sets that somebody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tosavk.backends.vulkan._ffi import NULL, Cdata, Scratch, const
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.pipelines import Layout


@dataclass(frozen=True, slots=True)
class Range:
    """What one descriptor covers: bytes of a VkBuffer."""

    buffer: Cdata
    offset: int
    nbytes: int


class DescriptorSets:
    """Descriptor sets with a pool of their own.

    Attributes:
        sets: a `VkDescriptorSet[1]` for each layout asked for.
    """

    __slots__ = ("_device", "_handles", "_pool", "_scratch", "sets")

    def __init__(self, device: LogicalDevice, layouts: Sequence[Layout]) -> None:
        """Allocates one set for each layout; without layouts there is no pool.

        Raises:
            ModelError: the driver refused.
        """
        self._device = device
        self._scratch = Scratch()
        self._pool: Cdata = NULL
        self.sets: list[Cdata] = []
        if not layouts:
            return
        scratch = Scratch()
        size = scratch.new(
            "VkDescriptorPoolSize *",
            (
                const.DESCRIPTOR_TYPE_STORAGE_BUFFER,
                sum(layout.bindings for layout in layouts),
            ),
        )
        info = scratch.struct(
            "VkDescriptorPoolCreateInfo",
            maxSets=len(layouts),
            poolSizeCount=1,
            pPoolSizes=size,
        )
        what = f"{len(layouts)} sets"
        self._pool = device.create(
            "vkCreateDescriptorPool", "VkDescriptorPool", info, what=what
        )
        info = scratch.struct(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=self._pool,
            descriptorSetCount=len(layouts),
            pSetLayouts=scratch.array(
                "VkDescriptorSetLayout", [layout.sets for layout in layouts]
            ),
        )
        out = scratch.new("VkDescriptorSet[]", len(layouts))
        calls = device.calls
        code = calls.vkAllocateDescriptorSets(device.handle, info, out)
        if code < 0:
            calls.vkDestroyDescriptorPool(device.handle, self._pool, NULL)
            raise device.failure(code, f"vkAllocateDescriptorSets ({what})")
        self.sets = [
            self._scratch.handle("VkDescriptorSet", out[i]) for i in range(len(layouts))
        ]

    def write(self, contents: Sequence[Sequence[Range]]) -> None:
        """Writes every binding of every set, in one call."""
        if not contents:
            return
        scratch = Scratch()
        writes = scratch.new("VkWriteDescriptorSet[]", len(contents))
        for write, target, ranges in zip(writes, self.sets, contents, strict=True):
            write.sType = const.STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET
            write.dstSet = target[0]
            write.descriptorCount = len(ranges)
            write.descriptorType = const.DESCRIPTOR_TYPE_STORAGE_BUFFER
            write.pBufferInfo = scratch.array(
                "VkDescriptorBufferInfo",
                [(part.buffer, part.offset, part.nbytes) for part in ranges],
            )
        device = self._device
        device.calls.vkUpdateDescriptorSets(
            device.handle, len(contents), writes, 0, NULL
        )

    def free(self) -> None:
        """Gives pool and sets back; nothing uses them any more."""
        if self._pool != NULL:
            pool, self._pool = self._pool, NULL
            device = self._device
            device.dispose(
                lambda: device.calls.vkDestroyDescriptorPool(device.handle, pool, NULL)
            )
