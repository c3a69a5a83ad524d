"""A recorded submission: recorded once, launched many times."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tosavk.backends.vulkan._ffi import NULL, Cdata, Function, Scratch, const, ffi
from tosavk.backends.vulkan.commands import submit_info, wait_info
from tosavk.backends.vulkan.descriptors import DescriptorSets, Range
from tosavk.backends.vulkan.gates import VulkanGate
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.programs import VulkanProgram
from tosavk.core.device import DeviceGate
from tosavk.core.errors import InvalidArgument


class VulkanRecording:
    """`core.device.Recording`: command buffers, a fence, and the sets they bind.

    Most programs are one submission; long ones are several (`portions`), of which the
    last one signals the fence.

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
        "_more",
        "_pool",
        "_program",
        "_queue",
        "_rest",
        "_scratch",
        "_sets",
        "_status",
        "_submit",
        "_undo",
        "_usual",
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
        self._usual: Function = device.submit
        self._submit: Function = self._usual
        self._status: Function = calls.vkGetFenceStatus
        self._pool = pool
        # Command buffers and VkSubmitInfo2 of the portions behind the first one.
        self._more: list[tuple[Cdata, Cdata]] = []
        self._rest: list[Cdata] = []
        self._program: VulkanProgram | None = None
        self._sets: DescriptorSets | None = None
        self._scratch = scratch = Scratch()
        self._begin = scratch.struct("VkCommandBufferBeginInfo")
        with ExitStack() as undo:
            self._commands = self._allocate(undo)
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
        more = len(program.portions) - 1
        while len(self._more) < more:
            buffer = self._allocate(self._undo)
            self._more.append((buffer, submit_info(self._scratch, buffer)))
        buffers = [self._commands, *(buffer for buffer, _ in self._more[:more])]
        # Beginning resets what was recorded before.
        for buffer in buffers:
            code = calls.vkBeginCommandBuffer(buffer, self._begin)
            device.check(code, "vkBeginCommandBuffer")
        program.record(buffers, self._sets.sets)
        for buffer in buffers:
            code = calls.vkEndCommandBuffer(buffer)
            device.check(code, "vkEndCommandBuffer")
        self._rest = [info for _, info in self._more[:more]]
        self._usual = self._submit_portions if more else device.submit
        self._submit = self._usual

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
        behind, count = self._behind, 1 + len(self._rest)
        if count > 1:
            # In one call: what waits for a gate cannot be waited for when a later
            # portion is refused.
            parts = [behind[0], *(part[0] for part in self._rest)]
            behind = ffi.new("VkSubmitInfo2[]", parts)
        code = self._submit(self._queue, count, behind, self._fence)
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
        self._submit = self._usual
        return int(self._submit(*args))

    def _submit_portions(
        self, queue: Cdata, count: int, info: Cdata, fence: Cdata
    ) -> int:
        """In place of vkQueueSubmit2, for programs of several submissions."""
        submit = self._device.submit
        if count > 1:
            return int(submit(queue, count, info, fence))
        fences = [*[NULL] * len(self._rest), fence]
        for number, (part, signalled) in enumerate(
            zip((info, *self._rest), fences, strict=True)
        ):
            code = int(submit(queue, count, part, signalled))
            if not code:
                continue
            if number:
                # What was accepted ends first, so that nothing of it is left.
                self._device.wait_idle()
            return code
        return 0

    def _allocate(self, undo: ExitStack) -> Cdata:
        """A command buffer.

        Raises:
            ModelError: the driver refused.
        """
        calls = self._device.calls
        info = self._scratch.struct(
            "VkCommandBufferAllocateInfo",
            commandPool=self._pool,
            level=const.COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        commands = self._scratch.new("VkCommandBuffer[1]")
        code = calls.vkAllocateCommandBuffers(self._handle, info, commands)
        self._device.check(code, "vkAllocateCommandBuffers")
        undo.callback(calls.vkFreeCommandBuffers, self._handle, self._pool, 1, commands)
        return commands[0]
