"""Programs and recordings of the wgpu backend, by plans made by hand.

The plans use the kernel `move`, which is enough to see data pass through slots, arena,
constants and prologue.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.kernels import ALL, WAIT_NS, Made, noise
from tosavk.backends.wgpu import open_device
from tosavk.backends.wgpu._ffi import lib
from tosavk.backends.wgpu.buffers import Allocation
from tosavk.backends.wgpu.device import Kit, WgpuDevice
from tosavk.backends.wgpu.programs import Program
from tosavk.backends.wgpu.recordings import Recording
from tosavk.core.descriptors import BufferDesc, MemoryDomain
from tosavk.core.device import BoundSlot
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceLost, InvalidArgument, ModelError, Released
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
from tosavk.lowering.graph import Op

COUNT = 1009
PLACE = 1024
Words = NDArray[np.uint32]


@pytest.fixture
def opened(wgpu_device: str) -> Iterator[WgpuDevice]:
    device = open_device(wgpu_device.partition(":")[2] or None)
    yield device
    device.wait_idle()
    device.close()


@pytest.fixture
def kit(opened: WgpuDevice) -> Kit:
    return opened.create_kit()


def move(
    x: Operand, y: Operand, *, step: int = 1, offset: int = 0, barrier: bool = True
) -> Dispatch:
    """y[i] = x[offset + i * step], words."""
    dims = (1, 1, 1, 1, 1, y.words)
    strides = (0, 0, 0, 0, 0, step % 2**32)
    params = (y.words, *dims, *strides, offset)
    return Dispatch("move", (DType.INT32,), params, (x, y), y.words, 1, barrier, 0)


def add(a: Operand, b: Operand, y: Operand) -> Dispatch:
    """y = a + b, INT32."""
    spec = (Op.ADD, DType.INT32, DType.INT32, 0, 0)
    params = (y.words, *[0] * 19)
    return Dispatch("binary", spec, params, (a, b, y), y.words, 1, True, 0)


def slot(index: int, role: SlotRole) -> Slot:
    return Slot(index, f"t{index}", role, DType.INT32, (COUNT,), 4 * COUNT)


def plan(
    dispatches: Sequence[Dispatch],
    *,
    inputs: int = 1,
    segments: tuple[int, ...] = (),
    constants: tuple[Constant, ...] = (),
    prologue: tuple[Dispatch, ...] = (),
) -> Plan:
    roles = [SlotRole.INPUT] * inputs + [SlotRole.OUTPUT]
    return Plan(
        slots=tuple(slot(i, role) for i, role in enumerate(roles)),
        segments=segments,
        constants=constants,
        prologue=prologue,
        dispatches=tuple(dispatches),
        operators=(OperatorName(0, "ADD", "y"),),
        numerics=Numerics.STRICT,
    )


def whole(buffer: int, word: int = 0) -> Operand:
    return Operand(buffer, word, COUNT)


@dataclass
class Bench:
    """A loaded plan with its buffers."""

    kit: Kit
    program: Program
    buffers: list[Allocation]

    def record(self, reuse: Recording | None = None) -> Recording:
        bound = [BoundSlot(b, 0, 4 * COUNT) for b in self.buffers]
        return self.kit.record(self.program, bound, reuse)

    def result(self) -> Words:
        out = bytearray(4 * COUNT)
        self.buffers[-1].read(0, memoryview(out))
        return np.frombuffer(bytes(out), np.uint32)

    def free(self) -> None:
        for buffer in self.buffers:
            buffer.free()
        self.program.free()


def bench(
    kit: Kit,
    made: Plan,
    inputs: Sequence[Words],
    *,
    domain: MemoryDomain = MemoryDomain.DEVICE,
) -> Bench:
    request = BufferDesc(nbytes=4 * COUNT, usage=ALL, domain=domain)
    buffers = [kit.allocate(request) for _ in made.slots]
    for buffer, values in zip(buffers, inputs, strict=False):
        buffer.write(0, memoryview(values.tobytes()))
    return Bench(kit, kit.load(Made(made)), buffers)


def finish(recording: Recording) -> None:
    assert recording.wait(WAIT_NS)
    assert recording.poll()
    recording.retire()


def values(seed: int) -> Words:
    return noise(4 * COUNT, seed).view(np.uint32)


@pytest.mark.parametrize("domain", MemoryDomain, ids=lambda d: d.name)
def test_constants_prologue_and_arena(
    opened: WgpuDevice, kit: Kit, domain: MemoryDomain
) -> None:
    if domain not in opened.info.domains:
        pytest.skip(f"{opened.name} does not advertise {domain.name}")
    constant, x = values(1), values(2)
    # Segment 0 (buffer 2): the constant, reversed behind it by the prologue, and an odd
    # constant at the end. Segment 1 (buffer 3): an intermediate.
    made = plan(
        [
            add(whole(0), whole(2, PLACE), whole(3, 64)),
            add(whole(3, 64), whole(3, 64), whole(1)),
        ],
        segments=(4 * (2 * PLACE + 64), 4 * (64 + PLACE)),
        constants=(
            Constant(0, 0, memoryview(constant.tobytes())),
            Constant(0, 8 * PLACE, memoryview(b"seven b")),
        ),
        prologue=(move(whole(2), whole(2, PLACE), step=-1, offset=COUNT - 1),),
    )
    b = bench(kit, made, [x], domain=domain)
    assert b.program.dispatch_count == 2
    assert b.program.arena_bytes == sum(made.segments)
    assert b.program.slots == made.slots
    recording = b.record()
    for _ in range(3):
        recording.launch()
        finish(recording)
    want = 2 * (x + constant[::-1])
    assert np.array_equal(b.result(), want)
    tail = bytearray(8)
    segment = b.program.segment(2)
    assert segment is not None
    segment.read_words(8 * PLACE, memoryview(tail))
    assert bytes(tail) == b"seven b\0"
    recording.free()
    b.free()


def test_one_buffer_bound_to_both_inputs(kit: Kit) -> None:
    b = bench(kit, plan([add(whole(0), whole(1), whole(2))], inputs=2), [values(3)])
    bound = [
        BoundSlot(b.buffers[0], 0, 4 * COUNT),
        BoundSlot(b.buffers[0], 0, 4 * COUNT),
        BoundSlot(b.buffers[2], 0, 4 * COUNT),
    ]
    recording = b.kit.record(b.program, bound, None)
    recording.launch()
    finish(recording)
    assert np.array_equal(b.result(), values(3) * 2)
    recording.free()
    b.free()


def test_overlapping_inputs_in_a_segment(kit: Kit) -> None:
    constant = values(4)
    y = Operand(1, 0, 512)
    made = plan(
        [add(Operand(2, 0, 512), Operand(2, 64, 512), y)],
        segments=(4 * PLACE,),
        constants=(Constant(0, 0, memoryview(constant.tobytes())),),
    )
    b = bench(kit, made, [])
    recording = b.record()
    recording.launch()
    finish(recording)
    assert np.array_equal(b.result()[:512], constant[:512] + constant[64:576])
    assert not b.result()[512:].any()
    recording.free()
    b.free()


def test_a_program_without_dispatches(kit: Kit) -> None:
    b = bench(kit, plan([]), [values(5)])
    recording = b.record()
    recording.launch()
    finish(recording)
    assert b.program.arena_bytes == 0
    recording.free()
    b.free()


def test_recordings_in_flight_together(kit: Kit) -> None:
    reverse = move(whole(0), whole(1), step=-1, offset=COUNT - 1)
    made = plan([reverse])
    benches = [bench(kit, made, [values(10 + i)]) for i in range(8)]
    recordings = [b.record() for b in benches]
    for _ in range(20):
        for recording in recordings:
            recording.launch()
        for recording in reversed(recordings):
            finish(recording)
    for i, (b, recording) in enumerate(zip(benches, recordings, strict=True)):
        assert np.array_equal(b.result(), values(10 + i)[::-1])
        recording.free()
        b.free()


def test_reuse_takes_over_an_idle_recording(kit: Kit) -> None:
    b = bench(kit, plan([move(whole(0), whole(1))]), [values(6)])
    first = b.record()
    first.launch()
    finish(first)
    second = b.record(first)
    second.launch()
    finish(second)
    assert np.array_equal(b.result(), values(6))
    second.free()
    b.free()


def test_wait_is_bounded_and_poll_does_not_block(kit: Kit) -> None:
    work = [move(whole(0), whole(1), step=-1, offset=COUNT - 1)] * 4000
    b = bench(kit, plan(work), [values(7)])
    recording = b.record()
    assert recording.poll()
    recording.launch()
    start = time.monotonic()
    recording.wait(1)
    recording.poll()
    assert time.monotonic() - start < 5
    finish(recording)
    assert np.array_equal(b.result(), values(7)[::-1])
    recording.free()
    b.free()


def test_freed_memory_is_refused_and_not_submitted(kit: Kit) -> None:
    b = bench(kit, plan([move(whole(0), whole(1))]), [values(8)])
    recording = b.record()
    b.buffers[0].free()
    with pytest.raises(Released):
        recording.launch()
    with pytest.raises(Released):
        b.record()
    b.program.free()
    with pytest.raises(Released):
        recording.launch()
    recording.free()
    b.free()


@pytest.mark.parametrize("offset", [4, 20])
def test_a_misaligned_binding_is_refused(kit: Kit, offset: int) -> None:
    b = bench(kit, plan([move(Operand(0, 0, 8), Operand(1, 0, 8))]), [values(9)])
    bound = [BoundSlot(b.buffers[0], offset, 32), BoundSlot(b.buffers[1], 0, 32)]
    with pytest.raises(ModelError, match="alignment"):
        b.kit.record(b.program, bound, None)
    b.record().free()
    b.free()


@pytest.mark.parametrize(
    "bad",
    [
        move(Operand(0, 0, 0), whole(1)),
        move(Operand(0, 0, 4096), whole(1)),
        Dispatch("nothing", (), (), (), 1, 1, False, 0),
        Dispatch("move", (), (), (), 1, 1, False, 0),
        Dispatch("move", (5,), (1,), (whole(0), whole(1)), 1, 1, False, 0),
    ],
    ids=["no words", "beyond", "no kernel", "no spec", "few params"],
)
def test_a_bad_plan_is_an_error_and_nothing_is_left(kit: Kit, bad: Dispatch) -> None:
    with pytest.raises(ModelError):
        bench(kit, plan([bad]), [values(1)]).record()
    b = bench(kit, plan([move(whole(0), whole(1))]), [values(1)])
    recording = b.record()
    recording.launch()
    finish(recording)
    assert np.array_equal(b.result(), values(1))
    recording.free()
    b.free()


def test_the_objects_of_another_backend_are_refused(kit: Kit) -> None:
    class Stranger:
        slots = ()
        dispatch_count = 0
        arena_bytes = 0

        def free(self) -> None:
            pass

    with pytest.raises(InvalidArgument, match="Stranger"):
        kit.record(Stranger(), [], None)


def test_a_lost_device(wgpu_device: str) -> None:
    device = open_device(wgpu_device.partition(":")[2] or None)
    kit = device.create_kit()
    b = bench(kit, plan([move(whole(0), whole(1))]), [values(1)])
    idle, pending = b.record(), b.record()
    pending.launch()
    lib.wgpuDeviceDestroy(device.gpu.device)
    # A submission to a lost device would end the process.
    with pytest.raises(DeviceLost):
        idle.launch()
    assert device.poisoned
    with pytest.raises(DeviceLost):
        pending.poll()
    with pytest.raises(DeviceLost):
        pending.wait(10**9)
    with pytest.raises(DeviceLost):
        b.buffers[0].write(0, memoryview(bytes(8)))
    with pytest.raises(DeviceLost):
        b.buffers[0].read(0, memoryview(bytearray(8)))
    with pytest.raises(DeviceLost):
        kit.allocate(BufferDesc(nbytes=4, usage=ALL, domain=MemoryDomain.DEVICE))
    with pytest.raises(DeviceLost):
        kit.load(Made(plan([move(whole(0), whole(1))])))
    device.wait_idle()
    for recording in (idle, pending):
        recording.free()
    b.free()
    device.close()


def test_two_devices_at_once(wgpu_device: str) -> None:
    selector = wgpu_device.partition(":")[2] or None
    devices = [open_device(selector) for _ in range(2)]
    benches = [
        bench(d.create_kit(), plan([move(whole(0), whole(1))]), [values(20 + i)])
        for i, d in enumerate(devices)
    ]
    recordings = [b.record() for b in benches]
    for recording in recordings:
        recording.launch()
    for i, (b, recording) in enumerate(zip(benches, recordings, strict=True)):
        finish(recording)
        assert np.array_equal(b.result(), values(20 + i))
    recordings[0].free()
    benches[0].free()
    devices[0].close()
    recordings[1].launch()
    finish(recordings[1])
    recordings[1].free()
    benches[1].free()
    devices[1].close()


@pytest.mark.parametrize("ending", ["", "device.close()", "raise SystemExit(0)"])
def test_the_process_may_end_under_pending_work(wgpu_device: str, ending: str) -> None:
    """In a process of its own: a crash would take the test run with it."""
    code = f"""
import sys
from harness.kernels import ALL, Made, kernel_plan
from tosavk.backends.wgpu import open_device
from tosavk.core.descriptors import BufferDesc, MemoryDomain
from tosavk.core.device import BoundSlot
import dataclasses
device = open_device({wgpu_device.partition(":")[2] or None!r})
kit = device.create_kit()
n = 4096
walk = {{f"d{{i}}": 1 for i in range(5)}} | {{f"s{{i}}": 0 for i in range(5)}}
params = walk | dict(count=n, d5=n, s5=1, offset=0)
plan = kernel_plan("move", {{"TYPE": 5}}, params, [4 * n, 4 * n], n)
plan = dataclasses.replace(plan, dispatches=plan.dispatches * 3000)
program = kit.load(Made(plan))
desc = BufferDesc(nbytes=4 * n, usage=ALL, domain=MemoryDomain.DEVICE)
bound = [BoundSlot(kit.allocate(desc), 0, 4 * n) for _ in range(2)]
recordings = [kit.record(program, bound, None) for _ in range(2)]
for recording in recordings:
    recording.launch()
print("launched", flush=True)
{ending}
"""
    answer = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
    )
    assert answer.stdout == "launched\n", answer.stderr
    assert answer.returncode == 0, answer.stderr
