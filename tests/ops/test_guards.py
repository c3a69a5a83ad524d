"""Nothing is written outside a tensor, and bad operands do no harm."""

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
import pytest

from harness import families
from harness.running import Array, Devices, Program, same_values
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import (
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    BufferUsage,
    MemoryDomain,
)
from tosavk.core.dtypes import DType, coerce, pack, unpack
from tosavk.core.plan import Slot, SlotRole
from tosavk.lowering.lower import Lowered
from tosavk.lowering.tosa.builder import Builder

OFFSET = 512
"""Where a tensor begins in its buffer; a multiple of every device's alignment."""
BEHIND = 67
USAGE = BufferUsage(31)

# Those whose results do not fill whole words, one for each kernel.
GUARDED = (
    *("moves BOOL", "moves INT8", "moves FP16", "logic BOOL", "unary FP16"),
    *("comparing FP32", "comparing BF16", "arithmetic FP16", "extremes FP16"),
    *("totals BF16", "windows FP16", "images FP16", "convolutions FP8E4M3"),
    *("products FP16", "float casts FP32", "integer casts INT32"),
)


def image_of(slot: Slot, given: Mapping[str, Array]) -> Array:
    """The bytes of a slot's buffer before the run.

    Outputs are noise. Inputs lie between bytes that are NaN in every float type.
    """
    total = OFFSET + slot.nbytes + BEHIND
    image = np.random.default_rng(slot.index).integers(0, 256, total, np.uint8)
    if slot.role is SlotRole.INPUT:
        image.fill(0xFF)
        array = coerce(slot.name, slot.dtype, given[slot.name], canonical_bool=False)
        data = pack(slot.dtype, array)
        image[OFFSET : OFFSET + slot.nbytes] = np.frombuffer(data, np.uint8)
    return image


def run_guarded(
    accelerator: Accelerator, lowered: Lowered, given: Mapping[str, Array]
) -> dict[str, Array]:
    """Runs a program on buffers that are larger than its tensors.

    Raises:
        AssertionError: a byte changed that is not a result's.
    """
    slots = lowered.plan.slots
    domain = MemoryDomain.DEVICE
    with ExitStack() as closing:
        context = closing.enter_context(accelerator.create_context())
        queue = closing.enter_context(context.create_queue())
        program = context.load_program(lowered)
        images = [image_of(slot, given) for slot in slots]
        buffers = [
            context.allocate_buffer(
                BufferDesc(nbytes=image.size, usage=USAGE, domain=domain)
            )
            for image in images
        ]
        for buffer, image in zip(buffers, images, strict=True):
            buffer.write(0, image.data)
        bindings = [
            Binding(
                slot.index,
                buffer,
                BufferRange(OFFSET, slot.nbytes),
                AccessMode.READ if slot.role is SlotRole.INPUT else AccessMode.WRITE,
            )
            for slot, buffer in zip(slots, buffers, strict=True)
        ]
        with queue.submit(program, bindings) as event:
            event.wait()
            assert event.error is None
        results: dict[str, Array] = {}
        for slot, buffer, image in zip(slots, buffers, images, strict=True):
            after = np.frombuffer(buffer.read(0, image.size), np.uint8)
            tensor = slice(OFFSET, OFFSET + slot.nbytes)
            expected = image.copy()
            if slot.role is SlotRole.OUTPUT:
                expected[tensor] = after[tensor]
                results[slot.name] = unpack(
                    slot.dtype, after[tensor].tobytes(), slot.shape
                )
            changed = np.flatnonzero(after != expected) - OFFSET
            assert not changed.size, f"{slot}: bytes {changed[:9]} were written"
    return results


def guarded(
    opened: Devices, spec: str, program: Program, given: Mapping[str, Array]
) -> dict[str, Array]:
    lowered = opened.lower(spec, program)
    return run_guarded(opened.accelerator(spec), lowered, given)


@pytest.mark.parametrize("name", GUARDED)
def test_neighbours_are_left_alone(opened: Devices, gpu_device: str, name: str) -> None:
    family = families.make(name)
    program = family.build.build()
    results = guarded(opened, gpu_device, program, family.inputs)
    usual = opened.run(gpu_device, program, family.inputs)
    assert all(same_values(usual[key], array) for key, array in results.items())


def test_five_bools(opened: Devices, gpu_device: str) -> None:
    """Results are 0 or 1, operands are true unless 0."""
    b = Builder()
    x, y = b.input("x", DType.BOOL, (5,)), b.input("y", DType.BOOL, (5,))
    names = ("and", "or", "xor", "not", "copy", "chosen")
    b.output(b.logical_and(x, y, name="and"))
    b.output(b.logical_or(x, y, name="or"))
    b.output(b.logical_xor(x, y, name="xor"))
    b.output(b.logical_not(x, name="not"))
    b.output(b.reverse(x, 0, name="copy"))
    b.output(b.select(x, y, x, name="chosen"))
    bytes_x = np.array([0, 1, 2, 128, 255], np.uint8)
    bytes_y = np.array([64, 0, 1, 255, 3], np.uint8)
    results = guarded(opened, gpu_device, b.build(), {"x": bytes_x, "y": bytes_y})
    found = {name: results[name].view(np.uint8).tolist() for name in names}
    assert found == {
        "and": [0, 0, 1, 1, 1],
        "or": [1, 1, 1, 1, 1],
        "xor": [1, 1, 0, 0, 0],
        "not": [1, 0, 0, 0, 0],
        "copy": [1, 1, 1, 1, 0],
        "chosen": [0, 0, 1, 1, 1],
    }


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.INT8])
@pytest.mark.parametrize("index", [-1, 4, -(2**31), 2**31 - 1])
def test_bad_indices(
    opened: Devices, gpu_device: str, dtype: DType, index: int
) -> None:
    """TOSA leaves the result open; the memory around it and the device live on."""
    b = Builder()
    values, indices = b.input("v", dtype, (1, 4, 3)), b.input("i", DType.INT32, (1, 3))
    b.output(b.gather(values, indices, name="y"))
    rows = np.arange(1, 13).reshape(1, 4, 3).astype(dtype.numpy)
    program = b.build()
    at = np.array([[2, index, 0]], np.int32)
    result = guarded(opened, gpu_device, program, {"v": rows, "i": at})["y"]
    # Ours: a bad index reads 0, and good ones are as good as ever.
    assert result.tolist() == [[rows[0, 2].tolist(), [0, 0, 0], rows[0, 0].tolist()]]
    at = np.array([[3, 1, 0]], np.int32)
    result = guarded(opened, gpu_device, program, {"v": rows, "i": at})["y"]
    assert result.tolist() == rows[:, [3, 1, 0]].tolist()


def test_a_program_reads_what_lies_in_its_range_only(
    opened: Devices, gpu_device: str
) -> None:
    """NaN around the operands must not reach sums, whatever their length."""
    b = Builder()
    x = b.input("x", DType.FP32, (1, 5, 7, 3))
    weight = b.const(np.ones((5, 3, 3, 3), np.float32))
    b.output(b.conv2d(x, weight, b.const(np.zeros(5, np.float32)), name="y"))
    b.output(b.reduce_sum(x, 3, name="sum"))
    b.output(b.avg_pool2d(x, (2, 3), pad=(1, 0, 1, 1), name="mean"))
    image = np.random.default_rng(5).integers(-9, 9, (1, 5, 7, 3)).astype(np.float32)
    results = guarded(opened, gpu_device, b.build(), {"x": image})
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))
    sums = windows.sum((3, 4, 5))
    assert results["y"].tolist() == np.repeat(sums[..., None], 5, 3).tolist()
    assert results["sum"].tolist() == image.sum(3, keepdims=True).tolist()
    assert np.isfinite(results["mean"]).all()
