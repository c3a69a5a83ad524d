"""The reference backend as a device, below the Accelerator model."""

import threading

import numpy as np
import pytest

from tosavk.backends import reference
from tosavk.backends.reference.device import GraphProgram, ReferenceDevice, slots_of
from tosavk.core.checks import check_buffer_info, validate_device_info
from tosavk.core.descriptors import BufferDesc, BufferUsage
from tosavk.core.device import BoundSlot, Device
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceLost, DeviceUnavailable, Unsupported
from tosavk.core.plan import Numerics, Plan
from tosavk.lowering.graph import Block, Graph, Op, Operator, Region, Tensor, Version


def program(op: Op, dtype: DType, count: int) -> GraphProgram:
    tensors = {name: Tensor(name, dtype, (count,)) for name in ("a", "b", "y")}
    operator = Operator(0, op, ("a", "b"), ("y",))
    block = Block("main", (operator,), tensors, ("a", "b"), ("y",))
    graph = Graph(Version(1, 0, 0, False), (Region("main", (block,)),))
    slots = slots_of(block)
    plan = Plan(slots, (), (), (), (), (), Numerics.STRICT)
    return GraphProgram(graph, plan, rules=None)


def desc(nbytes: int) -> BufferDesc:
    return BufferDesc(nbytes=nbytes, usage=BufferUsage(31))


def test_it_is_listed_and_opens_by_index_name_and_uuid() -> None:
    (listing,) = reference.list_devices()
    assert listing.usable
    for selector in (None, "0", "numpy", "REFERENCE", listing.uuid):
        device: Device = reference.open_device(selector)
        validate_device_info(device.info)
        assert device.info.identity.uuid.hex() == listing.uuid
        device.close()
    for selector in ("1", "llvmpipe"):
        with pytest.raises(DeviceUnavailable, match=selector):
            reference.open_device(selector)


def test_allocations_are_whole_aligned_words() -> None:
    kit = ReferenceDevice().create_kit()
    request = BufferDesc(nbytes=5, usage=BufferUsage(31), alignment=1 << 16)
    allocation = kit.allocate(request)
    check_buffer_info(request, allocation.info)
    assert allocation.info.allocation_bytes == 8
    mapped = allocation.mapped
    assert mapped is not None
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    assert address % (1 << 16) == 0
    allocation.write(1, memoryview(b"abc"))
    assert bytes(mapped) == b"\0abc\0\0\0\0"
    out = bytearray(2)
    allocation.read(2, memoryview(out))
    assert out == b"bc"


def test_a_launch_evaluates_in_its_own_thread() -> None:
    before = set(threading.enumerate())
    device = ReferenceDevice()
    kit = device.create_kit()
    loaded = kit.load(program(Op.ADD, DType.FP16, 3))
    memory = [kit.allocate(desc(64)) for _ in range(3)]
    bound = [BoundSlot(m, 8, 6) for m in memory]
    recording = kit.record(loaded, bound, None)
    for factor in (1, 2):
        for m in memory[:2]:
            values = np.array([1, 2, 3], np.float16) * np.float16(factor)
            m.write(8, memoryview(values.tobytes()))
        recording.launch()
        assert recording.wait(10**10)
        recording.retire()
        out = bytearray(6)
        memory[2].read(8, memoryview(out))
        assert np.frombuffer(out, np.float16).tolist() == [
            2 * factor,
            4 * factor,
            6 * factor,
        ]
    guard = bytearray(8)
    memory[2].read(0, memoryview(guard))
    assert guard == bytes(8)
    device.close()
    started = set(threading.enumerate()) - before
    assert not any(t.name == "tosavk-reference" for t in started)


def test_launching_does_not_block() -> None:
    device = ReferenceDevice()
    kit = device.create_kit()
    loaded = kit.load(program(Op.ADD, DType.INT32, 1))
    memory = [kit.allocate(desc(4)) for _ in range(3)]
    recording = kit.record(loaded, [BoundSlot(m, 0, 4) for m in memory], None)
    hold = threading.Event()

    def block() -> None:
        hold.wait()

    device.worker.submit(block)
    recording.launch()
    assert not recording.poll()
    assert not recording.wait(1000)
    hold.set()
    device.wait_idle()
    assert recording.poll()
    device.close()


def test_a_failed_evaluation_loses_the_device() -> None:
    device = ReferenceDevice()
    kit = device.create_kit()
    loaded = kit.load(program(Op.ADD, DType.INT32, 4))
    memory = [kit.allocate(desc(16)) for _ in range(3)]
    recording = kit.record(loaded, [BoundSlot(m, 0, 16) for m in memory], None)
    memory[0].free()
    recording.launch()
    device.wait_idle()
    with pytest.raises(DeviceLost, match="evaluation failed"):
        recording.poll()
    assert device.poisoned
    with pytest.raises(DeviceLost):
        recording.launch()
    device.close()


def test_operators_without_a_reference_are_refused_at_load() -> None:
    kit = ReferenceDevice().create_kit()
    with pytest.raises(Unsupported, match="operator 0 CUSTOM"):
        kit.load(program(Op.CUSTOM, DType.FP32, 1))
