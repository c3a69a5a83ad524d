"""An accelerator of a lane with small programs, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tosavk
from harness import validation
from tosavk.backends.vulkan import open_device
from tosavk.backends.vulkan.options import VulkanOptions, validation_wanted
from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    USAGE_ALL,
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    MemoryDomain,
)
from tosavk.core.plan import SlotRole
from tosavk.core.programs import Program
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

Floats = NDArray[np.float32]


def add_model(count: int) -> bytes:
    """y = a + b: one dispatch, no memory of its own."""
    builder = tosavk.Builder()
    a = builder.input("a", tosavk.DType.FP32, (count,))
    b = builder.input("b", tosavk.DType.FP32, (count,))
    builder.output(builder.add(a, b))
    return builder.build()


def chain_model(side: int, stages: int) -> bytes:
    """y = ((x @ x) @ x) ...: intermediates in the program's arena."""
    builder = tosavk.Builder()
    x = builder.input("x", tosavk.DType.FP32, (1, side, side))
    y = x
    for _ in range(stages):
        y = builder.matmul(y, x)
    builder.output(y)
    return builder.build()


def open_for_threads(spec: str) -> Accelerator:
    """Opens a device whose gates other threads raise.

    Old validation layers (1.3.239 was seen to) lose track of semaphores that one thread
    signals while another one waits: they stall for seconds and say that this is "most
    likely a validation bug"; 1.4.309 crashes in one of some ten thousand rounds. Newer
    ones (1.4.364) do neither.
    """
    backend, _, selector = spec.partition(":")
    if backend != "vulkan":
        return tosavk.open(spec)
    validate = validation_wanted() and validation.follows_threads()
    options = VulkanOptions(validation=validate)
    return Accelerator(open_device(selector or None, options=options))


def load(accelerator: Accelerator, context: Context, model: bytes) -> Program:
    """Lowers and loads a model."""
    limits = accelerator.device.plan_limits
    return context.load_program(lower_graph(load_graph(model), limits=limits))


def allocate(
    context: Context,
    nbytes: int,
    domain: MemoryDomain,
    data: NDArray[Any] | None = None,
) -> Buffer:
    """A buffer that may be used for everything, filled with `data`."""
    buffer = context.allocate_buffer(BufferDesc(nbytes, USAGE_ALL, domain))
    if data is not None:
        buffer.write(0, data)
    return buffer


def bind(program: Program, buffers: Sequence[Buffer]) -> list[Binding]:
    """Bindings of all slots to the beginnings of buffers, in slot order."""
    return [
        Binding(
            slot.index,
            buffer,
            BufferRange(0, slot.nbytes),
            AccessMode.READ if slot.role is SlotRole.INPUT else AccessMode.WRITE,
        )
        for slot, buffer in zip(program.slots, buffers, strict=True)
    ]


def floats(buffer: Buffer) -> Floats:
    """What is in a buffer."""
    return np.frombuffer(buffer.read(0, buffer.desc.nbytes), np.float32)
