"""Host gates, imported memory and mapped views on real devices."""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import tosavk
from harness.lanes import Floats, add_model, allocate, bind, floats, load
from tosavk.backends.vulkan import open_device
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    USAGE_ALL,
    BufferDesc,
    BufferProperties,
    EventState,
    MemoryDomain,
)
from tosavk.core.errors import (
    Busy,
    InvalidArgument,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.events import Event
from tosavk.core.gates import Gate
from tosavk.core.imports import aligned_array
from tosavk.core.programs import Program
from tosavk.core.queues import Queue
from tosavk.core.waiting import wait_all, wait_any

N = 1009
PENDING, COMPLETE = EventState.PENDING, EventState.COMPLETE


@dataclass
class Lane:
    """An open accelerator with a program that adds."""

    accelerator: Accelerator
    context: Context
    program: Program
    queue: Queue
    domain: MemoryDomain

    def buffers(self) -> list[Buffer]:
        """Buffers for all slots; the inputs hold 0 to N - 1 and 1."""
        data = (np.arange(N, dtype=np.float32), np.ones(N, np.float32), None)
        return [allocate(self.context, 4 * N, self.domain, part) for part in data]

    def submit(self, buffers: list[Buffer], gate: Gate, value: int) -> Event:
        """Adds, behind a gate."""
        request = bind(self.program, buffers)
        return self.queue.submit_after(self.program, request, gate, value)

    def imported(self) -> tuple[Buffer, Floats]:
        """A buffer in memory of ours, and that memory."""
        array = aligned_array(2 * mmap.PAGESIZE).view(np.float32)
        desc = BufferDesc(4 * N, USAGE_ALL, MemoryDomain.HOST)
        return self.context.import_host_buffer(desc, array), array[:N]


@pytest.fixture(scope="module")
def lane(device: str) -> Iterator[Lane]:
    if device.startswith("wgpu"):
        pytest.skip("wgpu has no gates and no import; another test says so")
    with tosavk.open(device) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, add_model(N))
        queue = context.create_queue()
        yield Lane(accelerator, context, program, queue, accelerator.info.domains[-1])


# ---- gates ---------------------------------------------------------------------------


def test_work_starts_when_the_gate_is_raised(lane: Lane) -> None:
    gate = lane.accelerator.create_gate()
    buffers = lane.buffers()
    event = lane.submit(buffers, gate, 3)
    assert event.wait(0.05) is PENDING
    with pytest.raises(Busy):
        buffers[0].write(0, b"1234")
    signal = gate.signal()
    assert signal.raise_to(2)
    assert event.wait(0.05) is PENDING
    assert signal.raise_to(3)
    assert event.wait(20) is COMPLETE
    assert np.array_equal(floats(buffers[2]), np.arange(1, N + 1))
    event.release()
    with lane.submit(buffers, gate, 1) as event:
        assert event.wait(20) is COMPLETE
    for buffer in buffers:
        buffer.release()
    gate.release()
    assert lane.accelerator.live_resources().gates == 0


def test_later_work_waits_in_the_queue_and_overtakes_nothing(lane: Lane) -> None:
    gate = lane.accelerator.create_gate()
    groups = [lane.buffers() for _ in range(3)]
    events = [lane.submit(b, gate, 3 - i) for i, b in enumerate(groups)]
    plain = lane.buffers()
    events.append(lane.queue.submit(lane.program, bind(lane.program, plain)))
    assert not wait_all(events, 0.05)
    gate.signal().raise_to(1 << 40)
    assert wait_all(events, 20)
    for event in events:
        event.release()
    for buffers in (*groups, plain):
        assert np.array_equal(floats(buffers[2]), np.arange(1, N + 1))
        for buffer in buffers:
            buffer.release()
    gate.release()


def test_a_dropped_gate_lets_its_work_go_and_waits_for_no_other(lane: Lane) -> None:
    first, second = (lane.accelerator.create_gate() for _ in range(2))
    groups = [lane.buffers() for _ in range(2)]
    front = lane.submit(groups[0], second, 1)
    back = lane.submit(groups[1], first, 7)
    start = time.monotonic()
    first.release()
    assert time.monotonic() - start < 5
    assert wait_any([front, back], 0.05) == ()
    second.signal().raise_to(1)
    assert wait_all([front, back], 20)
    front.release()
    back.release()
    second.release()
    for buffers in groups:
        for buffer in buffers:
            buffer.release()
    assert lane.accelerator.live_resources().gates == 0


def test_events_and_gates_in_coroutines(lane: Lane) -> None:
    gate = lane.accelerator.create_gate()
    groups = [lane.buffers() for _ in range(4)]

    async def main() -> list[EventState]:
        events = [lane.submit(b, gate, i + 1) for i, b in enumerate(groups)]
        signal = gate.signal()
        loop = asyncio.get_running_loop()
        for value in range(1, 5):
            loop.call_later(0.01 * value, signal.raise_to, value)
        states = [await event for event in events]
        for event in events:
            event.release()
        return states

    assert asyncio.run(main()) == [COMPLETE] * 4
    for buffers in groups:
        assert np.array_equal(floats(buffers[2]), np.arange(1, N + 1))
        for buffer in buffers:
            buffer.release()
    gate.release()


def test_closing_lets_gated_work_go(device: str) -> None:
    if device.startswith("wgpu"):
        pytest.skip("no gates")
    with tosavk.open(device) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, add_model(N))
        buffers = [
            allocate(context, 4 * N, accelerator.info.domains[0]) for _ in range(3)
        ]
        gate = accelerator.create_gate()
        queue = context.create_queue()
        event = queue.submit_after(program, bind(program, buffers), gate, 5)
    assert event.poll() is COMPLETE
    assert gate.is_released


def test_staged_transfers_are_refused_behind_an_unraised_gate(
    vulkan_device: str,
) -> None:
    options = VulkanOptions(map_unified_device_memory=False, pipeline_cache=False)
    selector = vulkan_device.partition(":")[2]
    with Accelerator(open_device(selector, options=options)) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, add_model(N))
        ones = np.ones(N, np.float32)
        staged = allocate(context, 4 * N, MemoryDomain.DEVICE, ones)
        mapped = allocate(context, 4 * N, MemoryDomain.HOST, ones)
        output = allocate(context, 4 * N, MemoryDomain.DEVICE)
        other = allocate(context, 4 * N, MemoryDomain.DEVICE)
        gate = accelerator.create_gate()
        queue = context.create_queue()
        request = bind(program, [staged, mapped, output])
        event = queue.submit_after(program, request, gate, 1)
        with pytest.raises(Busy, match="unraised gate"):
            other.write(0, ones)
        with pytest.raises(Busy, match="unraised gate"):
            other.read(0, 4)
        free = allocate(context, 4 * N, MemoryDomain.HOST, ones)
        assert np.array_equal(floats(free), ones)
        assert not accelerator.is_poisoned
        gate.signal().raise_to(1)
        # The work may still be under way; that is no reason to refuse.
        other.write(0, ones)
        assert event.wait(20) is COMPLETE
        assert np.array_equal(floats(output), ones + ones)
        event.release()


def test_values_too_far_apart_are_refused(vulkan_device: str) -> None:
    device = open_device(vulkan_device.partition(":")[2])
    object.__setattr__(device.record.limits, "semaphore_difference", 100)
    with Accelerator(device) as accelerator:
        context = accelerator.create_context()
        program = load(accelerator, context, add_model(N))
        buffers = [allocate(context, 4 * N, MemoryDomain.HOST) for _ in range(3)]
        queue = context.create_queue()
        gate = accelerator.create_gate()
        with pytest.raises(ResourceLimit, match="allows differences up to 100"):
            queue.submit_after(program, bind(program, buffers), gate, 101)
        gate.signal().raise_to(350)
        event = queue.submit_after(program, bind(program, buffers), gate, 450)
        gate.signal().raise_to(450)
        assert event.wait(20) is COMPLETE
        event.release()


# ---- import --------------------------------------------------------------------------


def test_the_device_works_in_memory_of_ours(lane: Lane) -> None:
    ours = [lane.imported() for _ in range(3)]
    buffers = [buffer for buffer, _ in ours]
    a, b, y = (array for _, array in ours)
    info = buffers[0].info
    assert info.properties & BufferProperties.HOST_VISIBLE
    assert info.allocation_bytes == 2 * mmap.PAGESIZE
    gate = lane.accelerator.create_gate()
    for value in range(1, 6):
        event = lane.submit(buffers, gate, value)
        # Inputs may be stored until the raise, which is what gates are for.
        a[:] = np.arange(N) * value
        b[:] = value
        gate.signal().raise_to(value)
        assert event.wait(20) is COMPLETE
        assert np.array_equal(y, np.arange(N, dtype=np.float32) * value + value)
        event.release()
    gate.release()
    buffers[0].write(0, np.full(N, 7, np.float32))
    assert (a == 7).all()
    for buffer in buffers:
        buffer.release()
    assert (a == 7).all()


def test_maps_of_memory_can_be_imported_and_are_locked(lane: Lane) -> None:
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    desc = BufferDesc(100, USAGE_ALL, MemoryDomain.HOST)
    buffer = lane.context.import_host_buffer(desc, pages)
    buffer.write(0, b"x" * 100)
    with pytest.raises(BufferError):
        pages.close()
    buffer.release()
    assert pages[:101] == b"x" * 100 + b"\0"
    pages.close()


def test_what_cannot_be_imported(lane: Lane) -> None:
    alignment = lane.accelerator.host_import_alignment
    assert alignment is not None
    pages = aligned_array(4 * alignment, alignment=alignment)
    desc = BufferDesc(100, USAGE_ALL, MemoryDomain.HOST)
    for wrong in (pages[1:], pages[: alignment + 4], bytes(4 * alignment)):
        with pytest.raises(InvalidArgument):
            lane.context.import_host_buffer(desc, wrong)
    device = BufferDesc(100, USAGE_ALL, MemoryDomain.DEVICE)
    with pytest.raises(Unsupported):
        lane.context.import_host_buffer(device, pages)
    before = lane.accelerator.live_resources()
    buffer = lane.context.import_host_buffer(desc, pages)
    buffer.release()
    assert lane.accelerator.live_resources() == before


def test_wgpu_says_what_it_lacks(wgpu_device: str) -> None:
    with tosavk.open(wgpu_device) as accelerator:
        with pytest.raises(Unsupported, match="no gates"):
            accelerator.create_gate()
        assert accelerator.host_import_alignment is None
        context = accelerator.create_context()
        domain = accelerator.info.domains[-1]
        desc = BufferDesc(64, USAGE_ALL, domain)
        with pytest.raises(Unsupported, match="import"):
            context.import_host_buffer(desc, aligned_array(mmap.PAGESIZE))
        buffer = context.allocate_buffer(desc)
        with pytest.raises(Unsupported, match="not mapped"), buffer.map():
            pass


# ---- mapped views --------------------------------------------------------------------


def test_views_show_the_device_memory(lane: Lane) -> None:
    buffers = lane.buffers()
    with buffers[0].map(np.float32) as view:
        view[:] = 5
        with pytest.raises(Busy, match="mapped"):
            lane.queue.submit(lane.program, bind(lane.program, buffers))
    with lane.queue.submit(lane.program, bind(lane.program, buffers)) as event:
        with pytest.raises(Busy), buffers[2].map():
            pass
        assert event.wait(20) is COMPLETE
    with buffers[2].map(np.float32) as view:
        assert (view == 6).all()
    with pytest.raises(Released):
        view[0]
    for buffer in buffers:
        buffer.release()


def test_arrays_that_escape_outlive_the_device(device: str) -> None:
    if device.startswith("wgpu"):
        pytest.skip("nothing is mapped")
    with tosavk.open(device) as accelerator:
        context = accelerator.create_context()
        domain = accelerator.info.domains[0]
        buffer = allocate(context, 4 * N, domain, np.ones(N, np.float32))
        with buffer.map(np.float32) as view:
            escaped = np.asarray(view)
        buffer.release()
    escaped += 1
    assert escaped.sum() == 2 * N
