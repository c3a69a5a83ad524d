"""Barriers and submission structs, built once and used from then on."""

from __future__ import annotations

from dataclasses import dataclass

from tosavk.backends.vulkan._ffi import Cdata, Scratch, const

_COMPUTE = const.PIPELINE_STAGE_2_COMPUTE_SHADER_BIT
_COPY = const.PIPELINE_STAGE_2_COPY_BIT
_HOST = const.PIPELINE_STAGE_2_HOST_BIT
_STORAGE_READ = const.ACCESS_2_SHADER_STORAGE_READ_BIT
_STORAGE_WRITE = const.ACCESS_2_SHADER_STORAGE_WRITE_BIT
_COPY_READ = const.ACCESS_2_TRANSFER_READ_BIT
_COPY_WRITE = const.ACCESS_2_TRANSFER_WRITE_BIT
_HOST_READ = const.ACCESS_2_HOST_READ_BIT


@dataclass(frozen=True, slots=True)
class BarrierScope:
    """A global memory barrier: what came before, and what waits for it.

    Reads never stand in the source access: a write after a read only needs the
    execution dependency that the stages give.
    """

    source_stage: int
    source_access: int
    target_stage: int
    target_access: int


BETWEEN = BarrierScope(
    _COMPUTE, _STORAGE_WRITE, _COMPUTE, _STORAGE_READ | _STORAGE_WRITE
)
"""Between dispatches that depend on each other; also in front of the first one of a
program that writes to its own memory, since the last submission of the same program may
still be under way."""

VISIBLE = BarrierScope(
    const.PIPELINE_STAGE_2_NONE, 0, _COMPUTE, _STORAGE_READ | _STORAGE_WRITE
)
"""In front of the first dispatch of other programs. It waits for nothing, so that
submissions overlap: what they read was made available by a fence that the host has
seen, and is made visible to shaders here."""

FINAL = BarrierScope(
    _COMPUTE,
    _STORAGE_WRITE,
    _HOST | _COPY,
    _HOST_READ | _COPY_READ | _COPY_WRITE,
)
"""After the last dispatch: for the host and for copies."""

PARTS = BarrierScope(_COMPUTE, _STORAGE_WRITE, _COMPUTE, _STORAGE_WRITE)
"""Between the parts of one CONCAT, for validation layers only: they go by the ranges of
descriptors, and do not know that the parts write disjoint words. It makes nothing visible
to reads, so that a barrier missing elsewhere is still seen."""

EVERYTHING = BarrierScope(
    const.PIPELINE_STAGE_2_ALL_COMMANDS_BIT,
    const.ACCESS_2_MEMORY_WRITE_BIT,
    const.PIPELINE_STAGE_2_ALL_COMMANDS_BIT,
    const.ACCESS_2_MEMORY_READ_BIT | const.ACCESS_2_MEMORY_WRITE_BIT,
)
"""Between submissions, see `ordering`."""

STAGED_FOR_HOST = BarrierScope(_COPY, _COPY_WRITE, _HOST, _HOST_READ)
"""After a copy that the host will read."""

STAGED_FOR_DEVICE = BarrierScope(
    _COPY,
    _COPY_WRITE,
    _COMPUTE | _COPY,
    _STORAGE_READ | _STORAGE_WRITE | _COPY_READ | _COPY_WRITE,
)
"""After a copy that the device will use."""


class Barrier:
    """A prebuilt VkDependencyInfo.

    Attributes:
        info: for vkCmdPipelineBarrier2; lives as long as `scratch`.
    """

    __slots__ = ("info",)

    def __init__(self, scratch: Scratch, scope: BarrierScope) -> None:
        barrier = scratch.struct(
            "VkMemoryBarrier2",
            srcStageMask=scope.source_stage,
            srcAccessMask=scope.source_access,
            dstStageMask=scope.target_stage,
            dstAccessMask=scope.target_access,
        )
        self.info: Cdata = scratch.struct(
            "VkDependencyInfo", memoryBarrierCount=1, pMemoryBarriers=barrier
        )


def wait_info(scratch: Scratch) -> Cdata:
    """A VkSemaphoreSubmitInfo for a semaphore to be filled in, that shaders wait for."""
    return scratch.struct("VkSemaphoreSubmitInfo", stageMask=_COMPUTE)


def submit_info(scratch: Scratch, commands: Cdata, wait: Cdata = None) -> Cdata:
    """A VkSubmitInfo2 of one command buffer; lives as long as `scratch`.

    Args:
        scratch: the owner.
        commands: the VkCommandBuffer.
        wait: a `wait_info`, or None to wait for nothing.
    """
    return scratch.struct(
        "VkSubmitInfo2",
        waitSemaphoreInfoCount=int(wait is not None),
        pWaitSemaphoreInfos=wait,
        commandBufferInfoCount=1,
        pCommandBufferInfos=scratch.struct(
            "VkCommandBufferSubmitInfo", commandBuffer=commands
        ),
    )
