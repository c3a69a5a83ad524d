"""A recorded submission: recorded once, launched many times."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tosavk.backends.vulkan._ffi import NULL, Cdata, Function, Scratch, const
from tosavk.backends.vulkan.commands import submit_info, wait_info
from tosavk.backends.vulkan.descriptors import DescriptorSets, Range
from tosavk.backends.vulkan.gates import VulkanGate
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.programs import VulkanProgram
from tosavk.core.device import DeviceGate
from tosavk.core.errors import InvalidArgument


class VulkanRecording:
    """`core.device.Recording`: a command buffer, a fence, and the sets it binds.

    `launch` is the hot path: everything it needs stands in attributes, and the fence
    is reset by `retire`, after the last launch.
    """

    __slots__ = (
        "_begin",
        "_behind",
        "_commands",
        "_device",
        "_fence",
        "_fences",
        "_handle",
        "_info",
        "_program",
        "_queue",
        "_scratch",
        "_sets",
        "_status",
        "_submit",
        "_undo",
        "_wait",
    )

    def __init__(self, device: LogicalDevice, pool: Cdata) -> None:
        """Makes an empty recording.

        Args:
            device: the device.
            pool: the context's VkCommandPool.

        Raises:
            ModelError: the driver refused.
        """
        calls, handle = device.calls, device.handle
        self._device = device
        self._handle = handle
        self._queue = device.queue
        self._submit: Function = device.submit
        self._status: Function = calls.vkGetFenceStatus
        self._program: VulkanProgram | None = None
        self._sets: DescriptorSets | None = None
        self._scratch = scratch = Scratch()
        self._begin = scratch.struct("VkCommandBufferBeginInfo")
        with ExitStack() as undo:
            info = scratch.struct(
                "VkCommandBufferAllocateInfo",
                commandPool=pool,
                level=const.COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            )
            commands = scratch.new("VkCommandBuffer[1]")
            code = calls.vkAllocateCommandBuffers(handle, info, commands)
            device.check(code, "vkAllocateCommandBuffers")
            undo.callback(calls.vkFreeCommandBuffers, handle, pool, 1, commands)
            self._commands = commands[0]
            self._info = submit_info(scratch, self._commands)
            self._wait: Cdata = None
            self._behind: Cdata = None
            self._fence = device.create_fence()
            undo.callback(calls.vkDestroyFence, handle, self._fence, NULL)
            self._fences = scratch.handle("VkFence", self._fence)
            self._undo = undo.pop_all()

    def rebind(self, program: VulkanProgram, bound: Sequence[Range]) -> None:
        """Records a program with the memory of its slots; the last launch is over.

        Raises:
            ModelError: the driver refused; it must not be launched, only recorded
                again or freed.
        """
        calls, device = self._device.calls, self._device
        if self._sets is None or self._program is not program:
            if self._sets is not None:
                self._sets.free()
                self._sets = None
            self._sets = DescriptorSets(device, program.moving_layouts)
            self._program = program
        self._sets.write([program.ranges(part, bound) for part in program.moving])
        # Beginning resets what was recorded before.
        code = calls.vkBeginCommandBuffer(self._commands, self._begin)
        device.check(code, "vkBeginCommandBuffer")
        program.record(self._commands, self._sets.sets)
        code = calls.vkEndCommandBuffer(self._commands)
        device.check(code, "vkEndCommandBuffer")

    def launch(self) -> None:
        """Hands the work to the queue; never blocks.

        Raises:
            DeviceLost: the work may have been accepted.
            ModelError: any other; nothing was accepted.
        """
        code = self._submit(self._queue, 1, self._info, self._fence)
        if code:
            raise self._device.failure(code, "vkQueueSubmit2")

    def launch_after(self, gate: DeviceGate, value: int) -> None:
        """Hands the work to the queue, to start when a gate has reached a value.

        Raises:
            InvalidArgument: a gate of another backend.
            DeviceLost: the work may have been accepted.
            ModelError: any other; nothing was accepted.
        """
        if not isinstance(gate, VulkanGate):
            raise InvalidArgument(f"{gate!r} is not a gate of this backend")
        if self._behind is None:
            self._wait = wait_info(self._scratch)
            self._behind = submit_info(self._scratch, self._commands, self._wait)
        self._wait.semaphore = gate.handle
        self._wait.value = value
        code = self._submit(self._queue, 1, self._behind, self._fence)
        if code:
            raise self._device.failure(code, "vkQueueSubmit2")
        gate.hold(value)
        self._device.note_gated()

    def poll(self) -> bool:
        """Whether the last launch is complete; never blocks.

        Raises:
            ModelError: the driver failed to say.
        """
        code = self._status(self._handle, self._fence)
        if not code:
            return True
        self._device.check(code, "vkGetFenceStatus")
        return False

    def wait(self, timeout_ns: int) -> bool:
        """Waits at most `timeout_ns` and polls; other threads run meanwhile.

        Raises:
            ModelError: the wait failed.
        """
        return self._device.wait_fence(self._fences, timeout_ns)

    def retire(self) -> None:
        """Makes it launchable again, after completion was observed."""
        code = self._device.calls.vkResetFences(self._handle, 1, self._fences)
        if code:
            # The completed work stays complete; the next launch has to try again.
            self._device.failure(code, "vkResetFences")
            self._submit = self._reset_and_submit

    def free(self) -> None:
        """Gives everything back; the last launch is complete."""
        self._program = None
        if self._sets is not None:
            self._sets.free()
            self._sets = None
        self._device.dispose(self._undo.close)

    def _reset_and_submit(self, *args: Cdata) -> int:
        """vkQueueSubmit2, once the fence has been reset."""
        code = self._device.calls.vkResetFences(self._handle, 1, self._fences)
        if code:
            raise self._device.failure(code, "vkResetFences")
        self._submit = self._device.submit
        return int(self._submit(*args))
