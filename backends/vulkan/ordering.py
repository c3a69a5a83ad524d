"""Order between submissions for the eyes of the validation layer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Protocol

from tosavk.backends.vulkan._ffi import NULL, Calls, Cdata, Scratch, const, ffi
from tosavk.backends.vulkan.commands import EVERYTHING, Barrier, submit_info


class Maker(Protocol):
    """What is needed of a `LogicalDevice`."""

    calls: Calls
    handle: Cdata

    def create(self, call: str, ctype: str, info: Cdata, *, what: str = "") -> Cdata:
        """Makes an object."""
        ...

    def check(self, code: int, call: str) -> None:
        """Raises if `code` is an error."""
        ...


class Ordering:
    """`vkQueueSubmit2` with a barrier in front, once work has waited for a gate.

    Layers that look across submissions lose track of the fence of work that waited for
    a timeline semaphore (1.4.364), and report hazards with later work although the host
    has waited for that fence. Without such work, submissions go through unchanged.
    """

    def __init__(self, device: Maker, family: int) -> None:
        """Records the barrier.

        Raises:
            ModelError: the driver refused.
        """
        calls, handle = device.calls, device.handle
        self._submit = calls.vkQueueSubmit2
        self._active = False
        self._scratch = scratch = Scratch()
        info = scratch.struct("VkCommandPoolCreateInfo", queueFamilyIndex=family)
        pool = device.create("vkCreateCommandPool", "VkCommandPool", info)
        with ExitStack() as undo:
            undo.callback(calls.vkDestroyCommandPool, handle, pool, NULL)
            info = scratch.struct(
                "VkCommandBufferAllocateInfo",
                commandPool=pool,
                level=const.COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            )
            commands = scratch.new("VkCommandBuffer[1]")
            code = calls.vkAllocateCommandBuffers(handle, info, commands)
            device.check(code, "vkAllocateCommandBuffers")
            begin = scratch.struct(
                "VkCommandBufferBeginInfo",
                flags=const.COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT,
            )
            code = calls.vkBeginCommandBuffer(commands[0], begin)
            device.check(code, "vkBeginCommandBuffer")
            barrier = Barrier(scratch, EVERYTHING)
            calls.vkCmdPipelineBarrier2(commands[0], barrier.info)
            code = calls.vkEndCommandBuffer(commands[0])
            device.check(code, "vkEndCommandBuffer")
            self._first = submit_info(scratch, commands[0])[0]
            self._undo = undo.pop_all()

    def begin(self) -> None:
        """Work that waits for a gate was submitted."""
        self._active = True

    def submit(self, queue: Cdata, count: int, info: Cdata, fence: Cdata) -> int:
        """In place of `vkQueueSubmit2`."""
        if not self._active:
            return int(self._submit(queue, count, info, fence))
        every = [self._first, *(info[i] for i in range(count))]
        infos = ffi.new("VkSubmitInfo2[]", every)
        return int(self._submit(queue, len(every), infos, fence))

    def free(self) -> None:
        """Gives everything back; the queue is idle."""
        self._undo.close()
