"""Submissions of programs that compute values which rules are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.fake_device import (
    SLOT_BYTES,
    Bench,
    FakeAllocation,
    FakeDevice,
    FakeKit,
    FakeLowered,
    bindings,
    buffer,
)
from tosavk.core.buffers import Buffer
from tosavk.core.descriptors import (
    USAGE_ALL,
    Binding,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    EventState,
    MemoryDomain,
)
from tosavk.core.device import ContextKit
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceLost, InvalidArgument, OutOfMemory
from tosavk.core.plan import Plan, Slot, SlotRole

SHAPES = ((3,), (1,))
"""Of the checked slots; the second starts where the device's alignment lets it."""


class NoneIsThree:
    """A rule like those of TOSA."""

    def __init__(self) -> None:
        self.seen: list[dict[str, list[int]]] = []

    def check(self, values: Mapping[str, NDArray[np.generic]]) -> None:
        self.seen.append({name: value.tolist() for name, value in values.items()})
        for name, value in values.items():
            if (value == 3).any():
                raise InvalidArgument(f"{name} must not be 3")


class Ruled(FakeLowered):
    """A program with two checked slots of INT16."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = NoneIsThree()
        self.checked = [
            Slot(3 + i, f"zp{i}", SlotRole.CHECKED, DType.INT16, shape, 2 * shape[0])
            for i, shape in enumerate(SHAPES)
        ]

    @property
    def plan(self) -> Plan:
        plan = super().plan
        return replace(plan, slots=(*plan.slots, *self.checked))


class Lab(Bench):
    """A bench with such a program; `compute` plays the device's part."""

    def __init__(self, device: FakeDevice | None = None) -> None:
        super().__init__(device)
        self.lowered = Ruled()
        self.ruled = self.context.load_program(self.lowered)
        self.base = dict(self.device.live)

    def request(self) -> list[Binding]:
        return bindings(self.ruled, [buffer(self.context) for _ in self.ruled.slots])

    def compute(self, *values: int) -> None:
        """Ends the running work with values of the checked slots."""
        (work,) = self.device.running
        first, second = work.bound[3:]
        assert first.allocation is second.allocation
        room = first.allocation
        data = np.array(values, "<i2").tobytes()
        room.write(first.offset, memoryview(data[:6]))
        room.write(second.offset, memoryview(data[6:]))
        work.finish()


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_the_checked_slots_are_the_model_s_own(lab: Lab) -> None:
    assert [slot.name for slot in lab.ruled.slots] == ["t0", "t1", "t2"]
    with lab.queue.submit(lab.ruled, lab.request()):
        assert len(lab.device.running[0].bound) == 5


@pytest.mark.parametrize("values", [(1, 2, 4, 3), (3, 0, 0, 0)])
def test_a_forbidden_value_fails_the_submission(
    lab: Lab, values: tuple[int, ...]
) -> None:
    request = lab.request()
    event = lab.queue.submit(lab.ruled, request)
    assert event.poll() is EventState.PENDING
    lab.compute(*values)
    assert event.poll() is EventState.FAILED
    assert isinstance(event.error, InvalidArgument)
    assert "must not be 3" in str(event.error)
    assert event.wait() is EventState.FAILED
    request[0].buffer.write(0, b"free")
    event.release()


def test_an_allowed_value_completes_it(lab: Lab) -> None:
    event = lab.queue.submit(lab.ruled, lab.request())
    lab.compute(1, 2, 4, 5)
    assert event.wait() is EventState.COMPLETE
    assert event.error is None
    assert lab.lowered.rules.seen == [{"zp0": [1, 2, 4], "zp1": [5]}]


def test_every_launch_of_a_prepared_submission_is_judged_anew(lab: Lab) -> None:
    prepared = lab.context.prepare(lab.ruled, lab.request())
    for last in (5, 3, 3, 5):
        event = prepared.submit()
        lab.compute(0, 0, 0, last)
        want = EventState.FAILED if last == 3 else EventState.COMPLETE
        assert event.wait() is want
        assert (event.error is None) is (last != 3)


def test_a_submission_behind_a_gate_is_judged(lab: Lab) -> None:
    gate = lab.accelerator.create_gate()
    event = lab.queue.submit_after(lab.ruled, lab.request(), gate, 1)
    assert event.poll() is EventState.PENDING
    gate.signal().raise_to(1)
    lab.compute(0, 0, 0, 3)
    assert event.poll() is EventState.FAILED


def test_the_same_bindings_again_record_nothing(lab: Lab) -> None:
    request = lab.request()
    for _ in range(3):
        with lab.queue.submit(lab.ruled, request):
            lab.compute(0, 0, 0, 0)
    assert lab.device.recorded == 1


def test_nothing_is_left(lab: Lab) -> None:
    """The memory goes with the recording: replaced, forgotten, or closed."""
    device = lab.device
    request, other = lab.request(), lab.request()
    plain = lab.bindings()
    for program, bound in (
        (lab.ruled, request),
        (lab.ruled, other),
        (lab.program, plain),
        (lab.ruled, request),
    ):
        with lab.queue.submit(program, bound):
            device.finish_all()
        rooms = device.live["allocation"] - 9
        assert rooms == (program is lab.ruled)
    lab.ruled.release()
    assert device.live["allocation"] == 9
    assert device.live["recording"] == 0
    lab.accelerator.close()
    assert device.closed


def test_a_context_that_is_closed_has_judged_its_work(lab: Lab) -> None:
    good = lab.queue.submit(lab.ruled, lab.request())
    lab.compute(0, 0, 0, 0)
    bad = lab.queue.submit(lab.ruled, lab.request())
    lab.compute(0, 0, 0, 3)
    lab.context.close()
    assert good.poll() is EventState.COMPLETE
    assert bad.poll() is EventState.FAILED
    assert isinstance(bad.error, InvalidArgument)
    good.release()
    bad.release()
    lab.accelerator.close()


def test_a_device_that_cannot_answer_is_asked_again(lab: Lab) -> None:
    event = lab.queue.submit(lab.ruled, lab.request())
    lab.compute(0, 0, 0, 3)
    lab.device.fail("read", OutOfMemory("no staging"))
    with pytest.raises(OutOfMemory):
        event.poll()
    assert event.poll() is EventState.FAILED
    assert isinstance(event.error, InvalidArgument)


def test_a_device_lost_in_the_reading_fails_it(lab: Lab) -> None:
    event = lab.queue.submit(lab.ruled, lab.request())
    lab.compute(0, 0, 0, 0)
    lab.device.fail("read", DeviceLost("gone"))
    assert event.poll() is EventState.FAILED
    assert isinstance(event.error, DeviceLost)
    lab.accelerator.close()
    assert lab.device.closed


def test_a_device_lost_in_the_retiring_hides_no_fault(lab: Lab) -> None:
    event = lab.queue.submit(lab.ruled, lab.request())
    lab.compute(0, 0, 0, 3)
    lab.device.fail("retire", DeviceLost("gone"))
    assert event.poll() is EventState.FAILED
    assert isinstance(event.error, InvalidArgument)
    assert lab.accelerator.is_poisoned
    lab.accelerator.close()


@pytest.mark.parametrize("call", ["allocate", "record"])
def test_a_refused_recording_leaves_nothing(lab: Lab, call: str) -> None:
    request = lab.request()
    before = dict(lab.device.live)
    lab.device.fail(call, OutOfMemory("none left"))
    with pytest.raises(OutOfMemory):
        lab.queue.submit(lab.ruled, request)
    assert lab.device.live == before
    with lab.queue.submit(lab.ruled, request) as event:
        lab.compute(0, 0, 0, 0)
    assert event.error is None


class Unbindable(FakeKit):
    """Its HOST memory is nothing that programs can write, as with WebGPU."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self.device = device

    def allocate(self, desc: BufferDesc) -> FakeAllocation:
        if desc.domain is MemoryDomain.HOST:
            seen = BufferProperties.HOST_VISIBLE
            self.device.next_info = BufferInfo(desc.nbytes, 256, seen)
        try:
            return super().allocate(desc)
        finally:
            self.device.next_info = None


class UnbindableDevice(FakeDevice):
    """A device with such kits."""

    def create_kit(self) -> ContextKit:
        return Unbindable(self)


def device_buffers(lab: Lab) -> list[Buffer]:
    desc = BufferDesc(SLOT_BYTES, USAGE_ALL, MemoryDomain.DEVICE)
    return [lab.context.allocate_buffer(desc) for _ in lab.ruled.slots]


def test_memory_that_programs_can_write_is_taken() -> None:
    lab = Lab(UnbindableDevice())
    buffers = device_buffers(lab)
    live = lab.device.live["allocation"]
    event = lab.queue.submit(lab.ruled, bindings(lab.ruled, buffers))
    assert lab.device.live["allocation"] == live + 1
    lab.compute(0, 0, 0, 3)
    assert event.poll() is EventState.FAILED


def test_checked_slots_need_rules(lab: Lab) -> None:
    lowered = Ruled()
    del lowered.rules
    with pytest.raises(InvalidArgument, match=r"'zp0'.*no rules"):
        lab.context.load_program(lowered)
