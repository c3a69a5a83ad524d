"""Programs: a plan's arena, parameters, pipelines, and the bind groups that never change.

Dispatches whose operands all lie in the arena get their bind groups here, once; those
that touch a slot get theirs when a submission is recorded (`recordings`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tosavk.backends.wgpu import _ffi
from tosavk.backends.wgpu._ffi import BufferSlice, Gpu, Step
from tosavk.backends.wgpu.buffers import STORAGE, Memory, words
from tosavk.backends.wgpu.pipelines import Pipeline, Pipelines, work_groups
from tosavk.backends.wgpu.probe import PARAMETER_BYTES, PARAMETER_STRIDE
from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Constant, Dispatch, Plan, Slot

_WORD = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """A dispatch of a loaded program.

    Attributes:
        dispatch: what the plan says.
        pipeline: its pipeline.
        counts: work groups along x, y and z.
        parameters: its parameter block.
        step: ready to encode, if it touches no slot.
    """

    dispatch: Dispatch
    pipeline: Pipeline
    counts: tuple[int, ...]
    parameters: BufferSlice
    step: Step | None

    def make_step(self, gpu: Gpu, operands: Sequence[BufferSlice]) -> Step:
        """A step with a new bind group, which the caller gives back."""
        group = gpu.create_group(
            self.pipeline.group_layout, [*operands, self.parameters]
        )
        return Step(self.pipeline.handle, group, *self.counts)


class Program:
    """A plan on the device: `core.device.LoadedProgram`.

    Attributes:
        launches: the dispatches of a submission.
        freed: whether it was given back.
    """

    def __init__(self, gpu: Gpu, pipelines: Pipelines, plan: Plan, most: int) -> None:
        """Creates everything, uploads the constants and runs the prologue.

        Args:
            gpu: the device.
            pipelines: where pipelines come from.
            plan: what to load.
            most: work groups that the device allows along one dimension.

        Raises:
            ModelError: something was refused; nothing is left.
        """
        self._gpu = gpu
        self._plan = plan
        self.freed = False
        self._segments: list[Memory] = []
        with ExitStack() as undo:
            for nbytes in plan.segments:
                segment = Memory(gpu, max(nbytes, _WORD), STORAGE)
                undo.callback(segment.free)
                self._segments.append(segment)
            for constant in plan.constants:
                self._upload(constant)
            everything = (*plan.prologue, *plan.dispatches)
            pipelines.prepare((d.kernel, d.spec) for d in everything)
            parameters = self._parameters(everything, undo)
            launches = [
                self._launch(dispatch, pipelines, block, most, undo)
                for dispatch, block in zip(everything, parameters, strict=True)
            ]
            self.launches = tuple(launches[len(plan.prologue) :])
            self._run_prologue(launches[: len(plan.prologue)])
            self._undo = undo.pop_all()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots in order."""
        return self._plan.slots

    @property
    def dispatch_count(self) -> int:
        """Kernel launches of one submission."""
        return len(self._plan.dispatches)

    @property
    def arena_bytes(self) -> int:
        """Device bytes of the arena."""
        return sum(segment.nbytes for segment in self._segments)

    def free(self) -> None:
        """Gives everything back."""
        if not self.freed:
            self.freed = True
            self._undo.close()

    def segment(self, buffer: int) -> Memory | None:
        """The arena segment of a buffer number, or None for a slot."""
        number = buffer - len(self._plan.slots)
        return self._segments[number] if number >= 0 else None

    def _upload(self, constant: Constant) -> None:
        data = constant.data.cast("B")
        whole = data.nbytes // _WORD * _WORD
        segment = self._segments[constant.segment]
        segment.write_words(constant.offset, data[:whole])
        if whole < data.nbytes:
            # Places in the arena are whole words: nobody owns the bytes behind.
            rest = bytearray(words(data.nbytes) - whole)
            rest[: data.nbytes - whole] = data[whole:]
            segment.write_words(constant.offset + whole, memoryview(rest))

    def _parameters(
        self, dispatches: Sequence[Dispatch], undo: ExitStack
    ) -> list[BufferSlice]:
        """One uniform buffer with a block for each dispatch; the rest of it is zero."""
        if not dispatches:
            return []
        stride = PARAMETER_STRIDE // _WORD
        blocks = array("I", bytes(PARAMETER_STRIDE * len(dispatches)))
        for index, dispatch in enumerate(dispatches):
            start = index * stride
            blocks[start : start + len(dispatch.params)] = array("I", dispatch.params)
        usage = _ffi.USAGE_UNIFORM | _ffi.USAGE_COPY_DST
        memory = Memory(self._gpu, PARAMETER_STRIDE * len(dispatches), usage)
        undo.callback(memory.free)
        memory.write_words(0, memoryview(blocks).cast("B"))
        return [
            memory.slice(index * PARAMETER_STRIDE, PARAMETER_BYTES)
            for index in range(len(dispatches))
        ]

    def _launch(
        self,
        dispatch: Dispatch,
        pipelines: Pipelines,
        parameters: BufferSlice,
        most: int,
        undo: ExitStack,
    ) -> Launch:
        pipeline = pipelines.get(dispatch.kernel, dispatch.spec)
        kernel = pipeline.kernel
        given = (len(dispatch.operands), len(dispatch.params))
        if given != (len(kernel.bindings), len(kernel.params)):
            raise InvalidArgument(
                f"kernel {kernel.name!r} takes {len(kernel.bindings)} operands and "
                f"{len(kernel.params)} parameters, the plan gives {given}"
            )
        counts = work_groups(dispatch, pipeline, most)
        launch = Launch(dispatch, pipeline, counts, parameters, None)
        operands: list[BufferSlice] = []
        for operand in dispatch.operands:
            memory = self.segment(operand.buffer)
            if memory is None:
                return launch
            operands.append(memory.slice(operand.word * _WORD, operand.words * _WORD))
        step = launch.make_step(self._gpu, operands)
        undo.callback(_ffi.release_group, step.group)
        return Launch(dispatch, pipeline, counts, parameters, step)

    def _run_prologue(self, launches: Sequence[Launch]) -> None:
        steps = [launch.step for launch in launches if launch.step is not None]
        if len(steps) != len(launches):
            raise InvalidArgument("a prologue dispatch of the plan touches a slot")
        if steps:
            self._gpu.check("a prologue")
            self._gpu.submit(_ffi.encode(self._gpu, steps), "a prologue")
