"""Runs one kernel on a device by a plan made by hand, inside guard bytes."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import backend, parse_spec
from tosavk.core.descriptors import BufferDesc, BufferUsage, MemoryDomain
from tosavk.core.device import BoundSlot, ContextKit, Device
from tosavk.core.dtypes import DType
from tosavk.core.plan import (
    Dispatch,
    Numerics,
    Operand,
    OperatorName,
    Plan,
    Slot,
    SlotRole,
)
from tosavk.shaders.catalogue import kernels

GUARD = 256
ALL = BufferUsage(31)
WAIT_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Made:
    """A plan in the form that kits load (`core.device.Lowered`)."""

    plan: Plan


@contextmanager
def open_kit(spec: str) -> Generator[ContextKit, None, None]:
    """Opens a device and makes a kit on it."""
    name, selector = parse_spec(spec)
    device: Device = backend(name).open_device(selector)
    kit = device.create_kit()
    try:
        yield kit
    finally:
        device.wait_idle()
        kit.free()
        device.close()


def destination_words(dtype: DType, count: int) -> int:
    """Words that `count` elements take."""
    return -(-count * dtype.bits // 32)


def noise(nbytes: int, seed: int) -> NDArray[np.uint8]:
    """Bytes that nobody would write by accident."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def bytes_of(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """The bytes of an array, flat."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def kernel_plan(
    kernel: str,
    spec: Mapping[str, int],
    params: Mapping[str, int],
    nbytes: Sequence[int],
    columns: int,
) -> Plan:
    """A plan of one dispatch; operand i is slot i, the last one is the output."""
    entry = kernels()[kernel]
    last = len(nbytes) - 1
    return Plan(
        slots=tuple(
            Slot(
                i,
                entry.bindings[i],
                SlotRole.OUTPUT if i == last else SlotRole.INPUT,
                DType.INT8,
                (size,),
                size,
            )
            for i, size in enumerate(nbytes)
        ),
        segments=(),
        constants=(),
        prologue=(),
        dispatches=(
            Dispatch(
                kernel=kernel,
                spec=tuple(int(spec[name]) for name in entry.spec),
                params=tuple(int(params[name]) % 2**32 for name in entry.params),
                operands=tuple(
                    Operand(i, 0, -(-size // 4)) for i, size in enumerate(nbytes)
                ),
                columns=columns,
                tiles=1,
                barrier=False,
                operator=0,
            ),
        ),
        operators=(OperatorName(0, kernel.upper(), "y"),),
        numerics=Numerics.STRICT,
    )


def run_kernel(
    kit: ContextKit,
    kernel: str,
    *,
    spec: Mapping[str, int],
    params: Mapping[str, int],
    inputs: Sequence[NDArray[np.generic]],
    before: NDArray[np.generic],
    columns: int,
) -> NDArray[np.uint8]:
    """Runs a kernel and returns the bytes of its output.

    Every tensor lies between guard bytes that must not change, and so must the inputs.

    Args:
        kit: where it runs.
        kernel: its name.
        spec: specialization words by name.
        params: parameters by name; negative ones in two's complement.
        inputs: the inputs.
        before: the output's content before.
        columns: invocations.
    """
    tensors = [bytes_of(array) for array in (*inputs, before)]
    plan = kernel_plan(kernel, spec, params, [t.size for t in tensors], columns)
    program = kit.load(Made(plan))
    images = [
        np.concatenate((noise(GUARD, 2 * i), t, noise(GUARD + -t.size % 4, 2 * i + 1)))
        for i, t in enumerate(tensors)
    ]
    buffers = [
        kit.allocate(BufferDesc(nbytes=i.size, usage=ALL, domain=MemoryDomain.DEVICE))
        for i in images
    ]
    for buffer, image in zip(buffers, images, strict=True):
        buffer.write(0, image.data)
    bound = [
        BoundSlot(buffer, GUARD, tensor.size)
        for buffer, tensor in zip(buffers, tensors, strict=True)
    ]
    recording = kit.record(program, bound, None)
    recording.launch()
    assert recording.wait(WAIT_NS), f"{kernel} did not end"
    recording.retire()
    results = [np.empty_like(image) for image in images]
    for buffer, result in zip(buffers, results, strict=True):
        buffer.read(0, result.data)
    recording.free()
    for buffer in buffers:
        buffer.free()
    program.free()
    for name, image, result in zip(
        kernels()[kernel].bindings[:-1], images[:-1], results[:-1], strict=True
    ):
        assert np.array_equal(image, result), f"{kernel} changed its input {name!r}"
    end = GUARD + tensors[-1].size
    assert np.array_equal(images[-1][:GUARD], results[-1][:GUARD]), "bytes in front"
    assert np.array_equal(images[-1][end:], results[-1][end:]), "bytes behind"
    return results[-1][GUARD:end]
