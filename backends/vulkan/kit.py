"""The device objects of one context."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tosavk.backends.vulkan._ffi import NULL, Scratch, const
from tosavk.backends.vulkan.buffers import VulkanAllocation, allocate
from tosavk.backends.vulkan.descriptors import Range
from tosavk.backends.vulkan.imports import ImportedBlock
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.memory import MemoryPlan
from tosavk.backends.vulkan.pipelines import Pipelines
from tosavk.backends.vulkan.portions import SUBMISSION_WORK
from tosavk.backends.vulkan.programs import VulkanProgram
from tosavk.backends.vulkan.recordings import VulkanRecording
from tosavk.backends.vulkan.staging import Transfers
from tosavk.core.descriptors import BufferDesc
from tosavk.core.device import BoundSlot, LoadedProgram, Lowered, Recording
from tosavk.core.errors import InvalidArgument


class VulkanKit:
    """`core.device.ContextKit`: a command pool, and the means of staged copies."""

    def __init__(
        self,
        device: LogicalDevice,
        memory: MemoryPlan,
        pipelines: Pipelines,
        *,
        work: int = SUBMISSION_WORK,
    ) -> None:
        """Creates the kit; `work`: see `portions`.

        Raises:
            ModelError: the driver refused.
        """
        self._device = device
        self._memory = memory
        self._pipelines = pipelines
        self._work = work
        info = Scratch().struct(
            "VkCommandPoolCreateInfo",
            flags=const.COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
            queueFamilyIndex=device.queue_family,
        )
        with ExitStack() as undo:
            self._pool = device.create("vkCreateCommandPool", "VkCommandPool", info)
            undo.callback(
                device.calls.vkDestroyCommandPool, device.handle, self._pool, NULL
            )
            self._transfers = Transfers(device, memory.host, self._pool)
            undo.callback(self._transfers.free)
            self._undo = undo.pop_all()

    def allocate(self, desc: BufferDesc) -> VulkanAllocation:
        """Allocates memory for a buffer.

        Raises:
            ModelError: see `buffers.allocate`.
        """
        return allocate(self._device, self._memory, self._transfers, desc)

    def import_memory(self, desc: BufferDesc, data: memoryview) -> VulkanAllocation:
        """Makes host memory a buffer of at least `desc.nbytes`.

        Raises:
            ModelError: see `ImportedBlock`; `data` stays the caller's then.
        """
        del desc  # the whole of `data` is imported
        return VulkanAllocation(ImportedBlock(self._device, data), self._transfers)

    def load(self, lowered: Lowered) -> VulkanProgram:
        """Creates pipelines and arena, uploads constants, runs the prologue.

        Raises:
            ModelError: see `VulkanProgram`.
        """
        return VulkanProgram(
            self._device,
            lowered.plan,
            self._pipelines,
            self._transfers,
            self._memory.arena,
            work=self._work,
        )

    def record(
        self,
        program: LoadedProgram,
        bound: Sequence[BoundSlot],
        reuse: Recording | None,
    ) -> VulkanRecording:
        """Records a submission, with the objects of `reuse` if there is one.

        Raises:
            InvalidArgument: something of another backend.
            ModelError: the driver refused.
        """
        if not isinstance(program, VulkanProgram):
            raise InvalidArgument(f"{program!r} is not a program of this backend")
        ranges = [_range(slot) for slot in bound]
        if reuse is not None:
            if not isinstance(reuse, VulkanRecording):
                raise InvalidArgument(f"{reuse!r} is not a recording of this backend")
            reuse.rebind(program, ranges)
            return reuse
        recording = VulkanRecording(self._device, self._pool)
        try:
            recording.rebind(program, ranges)
        except BaseException:
            recording.free()
            raise
        return recording

    def free(self) -> None:
        """Gives everything back; all children are gone."""
        self._device.dispose(self._undo.close)


def _range(slot: BoundSlot) -> Range:
    allocation = slot.allocation
    if not isinstance(allocation, VulkanAllocation):
        raise InvalidArgument(f"{allocation!r} is not memory of this backend")
    return Range(allocation.block.handle, slot.offset, slot.nbytes)
