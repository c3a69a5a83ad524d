"""Immediate work: staged copies to unmapped memory, and dispatches run at load.

One command buffer and one fence of a context serve all of it, one piece of work at a
time, waited for in bounded steps. Source: docs/accelerator.md, "Staging".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tosavk.backends.vulkan._ffi import NULL, Cdata, Scratch, const, ffi
from tosavk.backends.vulkan.blocks import Block
from tosavk.backends.vulkan.commands import (
    STAGED_FOR_DEVICE,
    STAGED_FOR_HOST,
    Barrier,
    submit_info,
)
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.memory import Placement

WORD = 4
STAGING_BYTES = 4 << 20
COPY_TIMEOUT_NS = 30_000_000_000


@dataclass(frozen=True, slots=True)
class Upload:
    """Bytes for byte `offset` of a block."""

    block: Block
    offset: int
    data: memoryview


class Transfers:
    """A command buffer and a fence for work that is waited for at once.

    Args:
        device: the device.
        host: where staging memory lies; mapped.
        pool: the context's VkCommandPool, which also frees the command buffer.
    """

    def __init__(self, device: LogicalDevice, host: Placement, pool: Cdata) -> None:
        self._device = device
        self._host = host
        self._scratch = scratch = Scratch()
        self._begin = scratch.struct(
            "VkCommandBufferBeginInfo",
            flags=const.COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
        )
        info = scratch.struct(
            "VkCommandBufferAllocateInfo",
            commandPool=pool,
            level=const.COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        commands = scratch.new("VkCommandBuffer[1]")
        code = device.calls.vkAllocateCommandBuffers(device.handle, info, commands)
        device.check(code, "vkAllocateCommandBuffers")
        self._commands = commands[0]
        self._submit = submit_info(scratch, self._commands)
        self._for_device = Barrier(scratch, STAGED_FOR_DEVICE)
        self._for_host = Barrier(scratch, STAGED_FOR_HOST)
        with ExitStack() as undo:
            self._fence = device.create_fence()
            undo.callback(device.calls.vkDestroyFence, device.handle, self._fence, NULL)
            self._fences = scratch.handle("VkFence", self._fence)
            self._undo = undo.pop_all()

    def run(self, record: Callable[[Cdata], None], what: str, timeout_ns: int) -> None:
        """Records, submits and waits.

        Args:
            record: writes the commands into the command buffer it gets.
            what: the work, for messages.
            timeout_ns: at most that long; after it the device is poisoned.

        Raises:
            Busy: work that waits for an unraised gate is queued in front.
            DeviceLost: the device was lost, or the work did not end in time.
            ModelError: the driver refused.
        """
        self._device.require_flow(what)
        device, calls = self._device, self._device.calls
        code = calls.vkResetFences(device.handle, 1, self._fences)
        device.check(code, "vkResetFences")
        code = calls.vkBeginCommandBuffer(self._commands, self._begin)
        device.check(code, "vkBeginCommandBuffer")
        record(self._commands)
        code = calls.vkEndCommandBuffer(self._commands)
        device.check(code, "vkEndCommandBuffer")
        code = calls.vkQueueSubmit2(device.queue, 1, self._submit, self._fence)
        device.check(code, f"vkQueueSubmit2 ({what})")
        try:
            ended = device.wait_fence(self._fences, timeout_ns)
        except BaseException:
            # Ctrl-C, say: what the work uses is about to be freed.
            device.settle(what)
            raise
        if not ended:
            raise device.overdue(what)

    def write(self, block: Block, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset` of an unmapped block.

        Raises:
            ModelError: as `run`; part of the bytes may have been written.
        """
        self.upload([Upload(block, offset, data)])

    def upload(self, uploads: list[Upload]) -> None:
        """Several writes through one staging buffer; mapped blocks need none.

        Raises:
            ModelError: as `run`; part of the bytes may have been written.
        """
        staged: list[Upload] = []
        for upload in uploads:
            if upload.block.mapped is None:
                staged.append(upload)
            else:
                upload.block.write(upload.offset, upload.data)
        if not staged:
            return
        with self._staging(max(upload.data.nbytes for upload in staged)) as staging:
            for upload in staged:
                self._write(staging, upload)

    def read(self, block: Block, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset` of an unmapped block.

        Raises:
            ModelError: as `run`; nothing of the block has changed.
        """
        target = out.cast("B")
        with self._staging(len(target)) as staging:
            for word, skip, at, count in pieces(offset, len(target), staging.nbytes):
                span = -(-(skip + count) // WORD) * WORD
                self._copy(block, word, staging, 0, span, self._for_host)
                staging.read(skip, target[at : at + count])

    def free(self) -> None:
        """Destroys the fence; the command buffer goes with its pool."""
        self._device.dispose(self._undo.close)

    @contextmanager
    def _staging(self, nbytes: int) -> Generator[Block]:
        size = max(WORD, min(nbytes, STAGING_BYTES))
        with Block(self._device, size, self._host) as staging:
            yield staging

    def _write(self, staging: Block, upload: Upload) -> None:
        block, data = upload.block, upload.data.cast("B")
        for word, skip, at, count in pieces(upload.offset, len(data), staging.nbytes):
            span = -(-(skip + count) // WORD) * WORD
            if span != count:
                # A word of which only some bytes are ours: keep the others.
                self._copy(block, word, staging, 0, span, self._for_host)
            staging.write(skip, data[at : at + count])
            self._copy(staging, 0, block, word, span, self._for_device)

    def _copy(
        self,
        source: Block,
        source_offset: int,
        target: Block,
        target_offset: int,
        nbytes: int,
        barrier: Barrier,
    ) -> None:
        calls = self._device.calls
        region = ffi.new("VkBufferCopy *", (source_offset, target_offset, nbytes))

        def record(commands: Cdata) -> None:
            calls.vkCmdCopyBuffer(commands, source.handle, target.handle, 1, region)
            calls.vkCmdPipelineBarrier2(commands, barrier.info)

        self.run(record, f"a copy of {nbytes} bytes", COPY_TIMEOUT_NS)


def pieces(
    offset: int, nbytes: int, staging_bytes: int
) -> Iterator[tuple[int, int, int, int]]:
    """Cuts a byte range into whole-word copies: head, body in chunks, tail.

    Args:
        offset: first byte in the device buffer.
        nbytes: length.
        staging_bytes: most bytes of one copy, a multiple of four.

    Yields:
        (first device byte, a multiple of four; bytes of it to skip; position in the
        range; bytes). Only the head skips bytes, and only head and tail are no whole
        words.
    """
    at = 0
    skip = offset % WORD
    if skip:
        count = min(WORD - skip, nbytes)
        yield offset - skip, skip, 0, count
        at = count
    while nbytes - at >= WORD:
        count = min(nbytes - at, staging_bytes) // WORD * WORD
        yield offset + at, 0, at, count
        at += count
    if at < nbytes:
        yield offset + at, 0, at, nbytes - at
