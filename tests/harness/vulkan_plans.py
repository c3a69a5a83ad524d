"""Small plans for the kernels of `harness.vulkan_door`, and a way to run them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.vulkan.kit import VulkanKit
from tosavk.core.descriptors import BufferDesc, BufferUsage, MemoryDomain
from tosavk.core.device import BoundSlot
from tosavk.core.dtypes import DType
from tosavk.core.plan import (
    Constant,
    Dispatch,
    Numerics,
    Operand,
    OperatorName,
    Plan,
    Slot,
    SlotRole,
)

Words = NDArray[np.uint32]
ALL = BufferUsage(31)


@dataclass(frozen=True, slots=True)
class Made:
    """A plan in the form that kits load (`core.device.Lowered`)."""

    plan: Plan


def words(values: Sequence[int] | Words) -> Words:
    """32-bit words."""
    return np.asarray(values, np.uint32)


def slot(index: int, count: int, role: SlotRole) -> Slot:
    """A slot of `count` words."""
    return Slot(index, f"t{index}", role, DType.INT32, (count,), 4 * count)


def mix(
    a: Operand, b: Operand, y: Operand, *, bias: int, factor: int, barrier: bool = False
) -> Dispatch:
    """y = a * factor + b + bias."""
    count = y.words
    return Dispatch("mix", (factor,), (count, bias), (a, b, y), count, 1, barrier, 0)


def place(words_before: int) -> int:
    """The next word an arena tensor may start at."""
    return -(-words_before // 64) * 64


def chain_plan(count: int, constant: Words) -> Plan:
    """Three slots and an arena: prologue, then two dependent dispatches.

    Slots x0, x1 (inputs) and y2. Prologue: k = constant * 2 + constant + 1. Then
    h = x0 * 3 + k + 5 in the arena, and y = h * 7 + x1 + 11.
    """
    first = place(count)
    second = first + place(count)
    x0, x1, y = (Operand(i, 0, count) for i in range(3))
    c = Operand(3, 0, count)
    k = Operand(3, first, count)
    h = Operand(4, 64, count)
    return Plan(
        slots=(
            slot(0, count, SlotRole.INPUT),
            slot(1, count, SlotRole.INPUT),
            slot(2, count, SlotRole.OUTPUT),
        ),
        segments=(4 * second, 4 * (64 + place(count))),
        constants=(Constant(0, 0, words(constant).data.cast("B")),),
        prologue=(mix(c, c, k, bias=1, factor=2),),
        dispatches=(
            mix(x0, k, h, bias=5, factor=3),
            mix(h, x1, y, bias=11, factor=7, barrier=True),
        ),
        operators=(OperatorName(0, "ADD", "t2"),),
        numerics=Numerics.STRICT,
    )


def replaced(plan: Plan, *, dispatches: tuple[Dispatch, ...]) -> Plan:
    """A plan with other dispatches."""
    return replace(plan, dispatches=dispatches)


def chain_result(x0: Words, x1: Words, constant: Words) -> Words:
    """What `chain_plan` computes."""
    hidden = x0 * 3 + (constant * 3 + 1) + 5
    return words(hidden * 7 + x1 + 11)


def one_plan(dispatch: Dispatch, counts: Sequence[int]) -> Plan:
    """A plan of one dispatch without an arena; the last slot is the output."""
    last = len(counts) - 1
    roles = [SlotRole.INPUT] * last + [SlotRole.OUTPUT]
    return Plan(
        slots=tuple(slot(i, n, roles[i]) for i, n in enumerate(counts)),
        segments=(),
        constants=(),
        prologue=(),
        dispatches=(dispatch,),
        operators=(OperatorName(0, "ADD", f"t{last}"),),
        numerics=Numerics.STRICT,
    )


def run(
    kit: VulkanKit,
    plan: Plan,
    inputs: Sequence[Words],
    *,
    domain: MemoryDomain = MemoryDomain.DEVICE,
    launches: int = 1,
    settle: Callable[[], None] = lambda: None,
) -> Words:
    """Loads and runs a plan with one output; frees everything, also when it fails.

    Args:
        kit: a context's kit.
        plan: what to run.
        inputs: words of the input slots.
        domain: where the buffers lie.
        launches: how often to run it.
        settle: waits for the device before anything is freed.
    """
    with ExitStack() as undo:
        program = kit.load(Made(plan))
        undo.callback(program.free)
        bound: list[BoundSlot] = []
        for wanted in plan.slots:
            desc = BufferDesc(nbytes=wanted.nbytes, usage=ALL, domain=domain)
            buffer = kit.allocate(desc)
            undo.callback(buffer.free)
            bound.append(BoundSlot(buffer, 0, wanted.nbytes))
        for part, values in zip(bound, inputs, strict=False):
            part.allocation.write(0, words(values).data.cast("B"))
        recording = kit.record(program, bound, None)
        undo.callback(recording.free)
        undo.callback(settle)
        for _ in range(launches):
            recording.launch()
            assert recording.wait(30_000_000_000)
            assert recording.poll()
            recording.retire()
        out = bytearray(bound[-1].nbytes)
        bound[-1].allocation.read(0, memoryview(out))
        return np.frombuffer(bytes(out), np.uint32)
