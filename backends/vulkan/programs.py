"""A program on the device: arena with constants, pipelines, fixed descriptor sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tosavk.backends.vulkan._ffi import NULL, Calls, Cdata, Scratch, const
from tosavk.backends.vulkan.blocks import Block
from tosavk.backends.vulkan.commands import BETWEEN, FINAL, PARTS, VISIBLE, Barrier
from tosavk.backends.vulkan.descriptors import DescriptorSets, Range
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.memory import Placement
from tosavk.backends.vulkan.pipelines import (
    MAX_INVOCATIONS,
    Layout,
    PipelineKey,
    Pipelines,
    group_counts,
    group_width,
)
from tosavk.backends.vulkan.portions import (
    SUBMISSION_WORK,
    Rows,
    can_be_cut,
    narrowed,
    portions,
    turns,
)
from tosavk.backends.vulkan.records import Limits
from tosavk.backends.vulkan.staging import Transfers, Upload
from tosavk.core.errors import InvalidArgument, ResourceLimit
from tosavk.core.plan import Dispatch, Operand, Plan, Slot
from tosavk.shaders.catalogue import Kernel

PROLOGUE_TIMEOUT_NS = 300_000_000_000
"""Bound for the dispatches that run once at load; the first of them may compile."""

Operands = tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch, ready to be recorded.

    Attributes:
        pipeline: the VkPipeline.
        layout: its layouts.
        params: push constants as `uint32_t[]`, or NULL.
        groups: work groups along x, y and z.
        cut: whether it is dealt out to several submissions.
        barrier: the barrier that goes in front, or None.
        fixed: the set of a dispatch that touches only the arena, as
            `VkDescriptorSet[1]`; None if its set belongs to the recording.
        moving: number of the recording's set, if `fixed` is None.
    """

    pipeline: Cdata
    layout: Layout
    params: Cdata
    groups: tuple[int, int, int]
    cut: bool
    barrier: Barrier | None
    fixed: Cdata | None
    moving: int

    def record(self, calls: Calls, commands: Cdata, bound: Cdata, rows: Rows) -> None:
        """Writes bind, parameters and dispatch.

        Args:
            calls: the device's functions.
            commands: the VkCommandBuffer.
            bound: the `VkDescriptorSet[1]` to use.
            rows: which rows of work groups.
        """
        compute = const.PIPELINE_BIND_POINT_COMPUTE
        layout = self.layout.pipeline
        calls.vkCmdBindPipeline(commands, compute, self.pipeline)
        calls.vkCmdBindDescriptorSets(commands, compute, layout, 0, 1, bound, 0, NULL)
        if self.layout.parameter_bytes:
            calls.vkCmdPushConstants(
                commands,
                layout,
                const.SHADER_STAGE_COMPUTE_BIT,
                0,
                self.layout.parameter_bytes,
                self.params,
            )
        if self.cut:
            across, _, deep = self.groups
            calls.vkCmdDispatchBase(
                commands, 0, rows.first, 0, across, rows.count, deep
            )
        else:
            calls.vkCmdDispatch(commands, *self.groups)


@dataclass(frozen=True, slots=True)
class _Job:
    """A dispatch with its kernel, pipeline key, groups, and turns of one group."""

    dispatch: Dispatch
    kernel: Kernel
    key: PipelineKey
    groups: tuple[int, int, int]
    turns: int


class VulkanProgram:
    """`core.device.LoadedProgram`.

    Attributes:
        steps: the dispatches of a run, in order.
        portions: the rows of work groups of each submission of a run.
        moving: the operands of each set that a recording must bring along.
        moving_layouts: their layouts.
    """

    def __init__(
        self,
        device: LogicalDevice,
        plan: Plan,
        pipelines: Pipelines,
        transfers: Transfers,
        placement: Placement,
        *,
        work: int = SUBMISSION_WORK,
    ) -> None:
        """Loads a plan: checks, arena, constants, pipelines, sets, prologue.

        Args:
            device: the device.
            plan: what to load.
            pipelines: of the device.
            transfers: of the context.
            placement: where the arena lies.
            work: see `portions`.

        Raises:
            ResourceLimit: the plan asks for more than the device has.
            InvalidArgument: the plan does not fit the kernel catalogue.
            ModelError: the driver refused; nothing is left behind.
        """
        self._device = device
        self._slots = plan.slots
        self._arena_bytes = plan.arena_bytes
        self._scratch = Scratch()
        self._between = Barrier(self._scratch, BETWEEN)
        self._parts = Barrier(self._scratch, PARTS)
        self._final = Barrier(self._scratch, FINAL)
        limits = device.record.limits
        prologue = [_job(d, plan, pipelines, limits, work) for d in plan.prologue]
        main = [_job(d, plan, pipelines, limits, work) for d in plan.dispatches]
        with ExitStack() as undo:
            self._blocks = [
                undo.enter_context(Block(device, nbytes, placement))
                for nbytes in plan.segments
            ]
            transfers.upload(
                [
                    Upload(self._blocks[constant.segment], constant.offset, data)
                    for constant in plan.constants
                    if (data := constant.data).nbytes
                ]
            )
            made = pipelines.prepare(job.key for job in (*prologue, *main))
            sets = _SetPlan(len(self._slots))
            numbers = [sets.add(pipelines, job) for job in (*prologue, *main)]
            fixed = DescriptorSets(device, sets.fixed_layouts)
            undo.callback(fixed.free)
            fixed.write([self.ranges(operands) for operands in sets.fixed])
            steps: list[Step] = []
            last: _Job | None = None
            for job, number in zip((*prologue, *main), numbers, strict=True):
                barrier = self._barrier(job, last)
                step = self._step(pipelines, job, made[job.key], barrier, fixed, number)
                steps.append(step)
                last = job
            self._run_once(steps[: len(prologue)], _dealt(prologue, work), transfers)
            self.steps = steps[len(prologue) :]
            self.portions = _dealt(main, work)
            ordered = _needs_order(main, len(self._slots))
            self._opening = Barrier(self._scratch, BETWEEN if ordered else VISIBLE)
            self.moving = sets.moving
            self.moving_layouts = sets.moving_layouts
            self._undo = undo.pop_all()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The program's slots in order."""
        return self._slots

    @property
    def dispatch_count(self) -> int:
        """Kernel launches of one submission."""
        return len(self.steps)

    @property
    def arena_bytes(self) -> int:
        """Device bytes that the program retains for its arena."""
        return self._arena_bytes

    def ranges(self, operands: Operands, bound: Sequence[Range] = ()) -> list[Range]:
        """What the descriptors of a dispatch cover.

        Args:
            operands: in binding order.
            bound: the memory of each slot; none is needed for arena operands.
        """
        slots = len(self._slots)
        found: list[Range] = []
        for operand in operands:
            offset, nbytes = 4 * operand.word, 4 * operand.words
            if operand.buffer < slots:
                slot = bound[operand.buffer]
                found.append(Range(slot.buffer, slot.offset + offset, nbytes))
            else:
                block = self._blocks[operand.buffer - slots]
                found.append(Range(block.handle, offset, nbytes))
        return found

    def record(self, commands: Sequence[Cdata], moving: Sequence[Cdata]) -> None:
        """Writes all dispatches and barriers into command buffers that have begun.

        Args:
            commands: the VkCommandBuffer of each portion.
            moving: the recording's `VkDescriptorSet[1]`, one for each of `moving`.
        """
        calls = self._device.calls
        calls.vkCmdPipelineBarrier2(commands[0], self._opening.info)
        for buffer, portion in zip(commands, self.portions, strict=True):
            self._write(buffer, self.steps, portion, moving)
        calls.vkCmdPipelineBarrier2(commands[-1], self._final.info)

    def free(self) -> None:
        """Gives everything back; the device no longer uses it."""
        self._device.dispose(self._undo.close)

    def _barrier(self, job: _Job, last: _Job | None) -> Barrier | None:
        """What stands between a dispatch and the last one."""
        if job.dispatch.barrier:
            return self._between
        if self._device.validates and last is not None and _is_next_part(job, last):
            return self._parts
        return None

    def _step(
        self,
        pipelines: Pipelines,
        job: _Job,
        pipeline: Cdata,
        barrier: Barrier | None,
        fixed: DescriptorSets,
        number: tuple[bool, int],
    ) -> Step:
        is_fixed, index = number
        return Step(
            pipeline=pipeline,
            layout=pipelines.layout(job.kernel),
            params=self._scratch.array("uint32_t", job.dispatch.params),
            groups=job.groups,
            cut=job.key.cut,
            barrier=barrier,
            fixed=fixed.sets[index] if is_fixed else None,
            moving=index,
        )

    def _write(
        self,
        commands: Cdata,
        steps: Sequence[Step],
        portion: Sequence[Rows],
        moving: Sequence[Cdata],
    ) -> None:
        calls = self._device.calls
        for rows in portion:
            step = steps[rows.step]
            barrier = step.barrier
            if rows.first:
                # The rows of a dispatch write disjoint words, as the parts of a CONCAT.
                barrier = self._parts if self._device.validates else None
            if barrier is not None:
                calls.vkCmdPipelineBarrier2(commands, barrier.info)
            bound = moving[step.moving] if step.fixed is None else step.fixed
            step.record(calls, commands, bound, rows)

    def _run_once(
        self,
        steps: Sequence[Step],
        dealt: Sequence[Sequence[Rows]],
        transfers: Transfers,
    ) -> None:
        if any(step.fixed is None for step in steps):
            raise InvalidArgument("a prologue dispatch of the plan touches a slot")
        if not steps:
            return
        for portion in dealt:

            def write(commands: Cdata, portion: Sequence[Rows] = portion) -> None:
                self._write(commands, steps, portion, ())
                self._device.calls.vkCmdPipelineBarrier2(commands, self._final.info)

            transfers.run(
                write,
                f"the preparation of constants in {len(steps)} dispatches",
                PROLOGUE_TIMEOUT_NS,
            )


class _SetPlan:
    """Which dispatches share a descriptor set, and who owns it.

    Attributes:
        fixed: operands of each set that touches only the arena; the program's.
        fixed_layouts: their layouts.
        moving: operands of each set that touches a slot; the recordings'.
        moving_layouts: their layouts.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._numbers: dict[Operands, tuple[bool, int]] = {}
        self.fixed: list[Operands] = []
        self.fixed_layouts: list[Layout] = []
        self.moving: list[Operands] = []
        self.moving_layouts: list[Layout] = []

    def add(self, pipelines: Pipelines, job: _Job) -> tuple[bool, int]:
        """Whether the set of a dispatch is fixed, and its number."""
        operands = job.dispatch.operands
        found = self._numbers.get(operands)
        if found is None:
            is_fixed = all(operand.buffer >= self._slots for operand in operands)
            sets = self.fixed if is_fixed else self.moving
            layouts = self.fixed_layouts if is_fixed else self.moving_layouts
            found = (is_fixed, len(sets))
            sets.append(operands)
            layouts.append(pipelines.layout(job.kernel))
            self._numbers[operands] = found
        return found


def _dealt(jobs: Sequence[_Job], work: int) -> tuple[tuple[Rows, ...], ...]:
    whole = [(job.groups if job.key.cut else (1, 1, 1)) for job in jobs]
    costs = [
        job.turns if job.key.cut else job.turns * math.prod(job.groups) for job in jobs
    ]
    return portions(list(zip(whole, costs, strict=True)), work)


def _job(
    dispatch: Dispatch, plan: Plan, pipelines: Pipelines, limits: Limits, work: int
) -> _Job:
    """Checks a dispatch against the catalogue and the device.

    Raises:
        InvalidArgument: it does not fit its kernel or its buffers.
        ResourceLimit: the device cannot do it.
    """
    kernel = pipelines.library.kernel(dispatch.kernel)
    counts = (len(dispatch.spec), len(dispatch.params), len(dispatch.operands))
    wanted = (len(kernel.spec), len(kernel.params), len(kernel.bindings))
    where = f"dispatch of kernel {kernel.name}{_origin(dispatch, plan)}"
    if counts != wanted:
        raise InvalidArgument(
            f"{where} has {counts} specialization words, parameters and operands, the "
            f"catalogue says {wanted}"
        )
    most = min(limits.stage_storage_buffers, limits.set_storage_buffers)
    if len(dispatch.operands) > most:
        raise ResourceLimit(
            f"{where} binds {len(dispatch.operands)} storage buffers, the device "
            f"allows {most}"
        )
    if 4 * len(dispatch.params) > limits.push_constant_bytes:
        raise ResourceLimit(
            f"{where} takes {4 * len(dispatch.params)} bytes of parameters, the "
            f"device allows {limits.push_constant_bytes}"
        )
    sizes = [-(-slot.nbytes // 4) for slot in plan.slots]
    sizes += [nbytes // 4 for nbytes in plan.segments]
    for name, operand in zip(kernel.bindings, dispatch.operands, strict=True):
        _check_operand(f"operand {name} of {where}", operand, sizes, limits)
    width = dispatch.width or group_width(kernel, limits)
    if width > min(limits.group_invocations, limits.group_size[0]):
        raise ResourceLimit(
            f"{where} has work groups of {width}, the device allows "
            f"{min(limits.group_invocations, limits.group_size[0])}"
        )
    groups = group_counts(kernel, width, dispatch, limits)
    cost = width * turns(kernel, dispatch)
    cut = math.prod(groups) * cost > work and can_be_cut(kernel)
    if cut:
        rows = narrowed(groups, cost, limits.group_count[1], work)
        if math.prod(rows) * width <= MAX_INVOCATIONS:
            groups = rows
    key = PipelineKey(kernel.name, dispatch.spec, width, cut)
    return _Job(dispatch, kernel, key, groups, cost)


def _needs_order(jobs: Sequence[_Job], slots: int) -> bool:
    """Whether submissions of a program must not overlap.

    Submissions that are under way at once meet only in memory of the program itself;
    so that is what one of the dispatches writes to.
    """
    return any(
        operand.buffer >= slots
        for job in jobs
        for operand in job.dispatch.operands[-job.kernel.outputs :]
    )


def _is_next_part(job: _Job, last: _Job) -> bool:
    """Whether two dispatches write parts of one CONCAT."""
    one, two = last.dispatch, job.dispatch
    return (
        one.kernel == two.kernel == "concat"
        and one.operator == two.operator
        and one.operands[-1] == two.operands[-1]
    )


def _check_operand(
    what: str, operand: Operand, sizes: Sequence[int], limits: Limits
) -> None:
    nbytes = 4 * operand.words
    if nbytes > limits.storage_buffer_range:
        raise ResourceLimit(
            f"{what} has {nbytes} bytes, one storage buffer of this device may have "
            f"{limits.storage_buffer_range} (maxStorageBufferRange)"
        )
    if not 0 <= operand.buffer < len(sizes) or (
        operand.word + operand.words > sizes[operand.buffer]
    ):
        raise InvalidArgument(
            f"{what} covers words {operand.word} to {operand.word + operand.words} of "
            f"buffer {operand.buffer}, which has not as many"
        )


def _origin(dispatch: Dispatch, plan: Plan) -> str:
    if not 0 <= dispatch.operator < len(plan.operators):
        return ""
    name = plan.operators[dispatch.operator]
    return f" (operator {name.index} {name.op}, {name.output!r})"
