"""Recordings: the bind groups of one submission, encoded anew at every launch.

WebGPU's command buffers serve once. What can be kept are the bind groups; encoding from
them costs a few microseconds a dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tosavk.backends.wgpu import _ffi
from tosavk.backends.wgpu._ffi import BufferSlice, Gpu, Step
from tosavk.backends.wgpu.buffers import DeviceAllocation, MappableAllocation, Memory
from tosavk.backends.wgpu.polling import Flag, wait_until
from tosavk.backends.wgpu.programs import Launch, Program
from tosavk.core.device import BoundSlot
from tosavk.core.errors import InvalidArgument, Released

_WORD = 4


class Recording:
    """One submission with fixed bindings: `core.device.Recording`."""

    def __init__(self, gpu: Gpu, program: Program, bound: Sequence[BoundSlot]) -> None:
        """Makes the bind groups of the dispatches that touch a slot.

        Raises:
            ModelError: wgpu refused one; nothing is left.
        """
        self._gpu = gpu
        self._program = program
        self._flag: Flag | None = None
        self._number = 0
        memories = [_memory(slot) for slot in bound]
        self._memories = tuple(memories)
        with ExitStack() as undo:
            self._steps = [
                launch.step or self._bind(launch, bound, memories, undo)
                for launch in program.launches
            ]
            self._undo = undo.pop_all()

    def launch(self) -> None:
        """Encodes and submits.

        Raises:
            Released: the program or a bound buffer is gone.
            DeviceLost: the device is lost.
            ModelError: any other; nothing was accepted.
        """
        # Submitting memory that is gone would end the process.
        if self._program.freed or any(memory.freed for memory in self._memories):
            raise Released("the program or a bound buffer was freed; record again")
        gpu = self._gpu
        gpu.check("a submission")
        gpu.submit(_ffi.encode(gpu, self._steps), "a submission")
        flag = Flag()
        self._flag = flag
        self._number = gpu.when_done(flag.set)

    def poll(self) -> bool:
        """Whether the last launch is complete.

        Raises:
            DeviceLost: the device is lost; work counts as failed even where wgpu says
                that it is done, since it says so of everything then.
        """
        self._gpu.poll()
        self._gpu.check("waiting for a submission")
        return self._flag is None or self._flag.given

    def wait(self, timeout_ns: int) -> bool:
        """Waits at most `timeout_ns`, then polls."""
        flag = self._flag
        if flag is not None:
            wait_until(self._gpu, lambda: flag.given, timeout_ns)
        return self.poll()

    def retire(self) -> None:
        """Makes it launchable again."""
        _ffi.forget(self._number)
        self._flag = None

    def free(self) -> None:
        """Gives the bind groups back."""
        self.retire()
        self._undo.close()

    def _bind(
        self,
        launch: Launch,
        bound: Sequence[BoundSlot],
        memories: Sequence[Memory],
        undo: ExitStack,
    ) -> Step:
        operands: list[BufferSlice] = []
        for operand in launch.dispatch.operands:
            memory = self._program.segment(operand.buffer)
            offset = operand.word * _WORD
            if memory is None:
                memory = memories[operand.buffer]
                offset += bound[operand.buffer].offset
            if memory.freed:
                raise Released("a bound buffer was freed")
            operands.append(memory.slice(offset, operand.words * _WORD))
        step = launch.make_step(self._gpu, operands)
        undo.callback(_ffi.release_group, step.group)
        return step


def _memory(slot: BoundSlot) -> Memory:
    allocation: Any = slot.allocation
    if not isinstance(allocation, DeviceAllocation | MappableAllocation):
        raise InvalidArgument(
            f"a {type(allocation).__name__} is no allocation of the wgpu backend"
        )
    return allocation.memory
