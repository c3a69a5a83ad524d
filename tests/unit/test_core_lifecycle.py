"""Lives of handles: release, parents and children, close, finalisation."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from harness.fake_device import (
    Bench,
    FakeDevice,
    FakeLowered,
    buffer,
)
from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.checks import DeviceInfoError
from tosavk.core.descriptors import Capabilities, EventState
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    OutOfMemory,
    Released,
    ResourceLimit,
)
from tosavk.core.events import Event
from tosavk.core.shared import LiveResources


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- use after release ---------------------------------------------------------------


def test_everything_refuses_use_after_release(bench: Bench) -> None:
    target = buffer(bench.context)
    target.release()
    bench.queue.release()
    bench.program.release()
    bench.context.release()
    uses: list[Callable[[], object]] = [
        target.release,
        lambda: target.write(0, b"x"),
        lambda: target.read(0, 1),
        lambda: target.read_into(0, bytearray(1)),
        bench.queue.release,
        lambda: bench.queue.submit(bench.program, []),
        bench.program.release,
        bench.context.release,
        lambda: buffer(bench.context),
        lambda: bench.context.load_program(FakeLowered()),
        bench.context.create_queue,
        lambda: bench.context.prepare(bench.program, []),
    ]
    for use in uses:
        with pytest.raises(Released):
            use()
    bench.accelerator.close()
    bench.accelerator.close()
    with pytest.raises(Released):
        bench.accelerator.create_context()
    assert bench.accelerator.name == "fake"
    assert bench.device.closed


def test_released_buffer_in_a_binding(bench: Bench) -> None:
    request = bench.bindings()
    request[1].buffer.release()
    with pytest.raises(Released, match="slot 1"):
        bench.queue.submit(bench.program, request)


# ---- parents and children ------------------------------------------------------------


def test_context_is_busy_while_any_child_lives() -> None:
    bench = Bench()
    bench.queue.release()
    event = None
    prepared = None
    request = bench.bindings()
    steps: list[tuple[str, Callable[[], None]]] = []
    queue = bench.context.create_queue()
    event = queue.submit(bench.program, request)
    bench.device.finish_all()
    event.poll()
    prepared = bench.context.prepare(bench.program, request)
    steps = [
        ("2 events or prepared", prepared.release),
        ("1 events or prepared", event.release),
        ("1 queues", queue.release),
        ("1 programs", bench.program.release),
        *(
            (f"{left} buffers", binding.buffer.release)
            for left, binding in zip((3, 2, 1), request, strict=True)
        ),
    ]
    for match, release in steps:
        with pytest.raises(Busy, match=match):
            bench.context.release()
        release()
    bench.context.release()
    assert bench.accelerator.live_resources() == LiveResources()
    assert bench.device.live == dict.fromkeys(bench.device.live, 0)


def test_close_ends_everything_after_its_work() -> None:
    bench = Bench()
    request = bench.bindings()
    prepared = bench.context.prepare(bench.program, request)
    first = prepared.submit()
    second = bench.queue.submit(bench.program, bench.bindings())
    with bench.accelerator:
        pass
    assert bench.device.closed
    assert bench.accelerator.live_resources() == LiveResources()
    for handle in (bench.context, bench.queue, bench.program, prepared):
        assert handle.is_released
    assert request[0].buffer.is_released
    assert first.poll() is EventState.COMPLETE
    assert second.wait() is EventState.COMPLETE
    first.release()
    second.release()


def test_close_of_a_context_leaves_the_others() -> None:
    bench = Bench()
    other = bench.accelerator.create_context()
    kept = buffer(other)
    with bench.context:
        bench.queue.submit(bench.program, bench.bindings())
    assert bench.accelerator.live_resources() == LiveResources(contexts=1, buffers=1)
    kept.write(0, b"x")


def test_close_when_the_device_is_lost() -> None:
    bench = Bench()
    bench.device.patience = None
    event = bench.queue.submit(bench.program, bench.bindings())
    bench.device.poisoned = True
    bench.accelerator.close()
    assert bench.device.closed
    assert event.poll() is EventState.FAILED
    assert isinstance(event.error, DeviceLost)


def test_event_of_a_closed_lost_device_may_be_dropped() -> None:
    bench = Bench()
    bench.device.patience = None
    event = bench.queue.submit(bench.program, bench.bindings())
    bench.device.poisoned = True
    bench.accelerator.close()
    calls = len(bench.device.calls)
    # A closed device would fail the test if it were called.
    del event
    assert len(bench.device.calls) == calls


def test_close_survives_a_failing_free() -> None:
    bench = Bench()
    held = bench.buffers()
    bench.device.fail("allocation.free", OutOfMemory("no"))
    with pytest.raises(OutOfMemory):
        bench.context.close()
    assert all(b.is_released for b in held)
    assert bench.accelerator.live_resources() == LiveResources()


def test_leaving_a_block_in_flight_is_told_but_hides_no_error(bench: Bench) -> None:
    request = bench.bindings()
    events: list[Event] = []
    with pytest.raises(Busy), request[2].buffer:
        events.append(bench.queue.submit(bench.program, request))
    with pytest.raises(ZeroDivisionError), request[2].buffer, bench.program:
        _ = 1 / 0
    assert not request[2].buffer.is_released
    bench.device.finish_all()
    events[0].release()
    with request[2].buffer, bench.program, bench.queue:
        pass
    with request[2].buffer, bench.program, bench.queue:
        pass
    assert request[2].buffer.is_released


# ---- finalisation --------------------------------------------------------------------


def test_dropping_handles_in_any_order_frees_everything() -> None:
    for first in range(6):
        bench = Bench()
        request = bench.bindings()
        handles: list[object] = [
            bench.accelerator,
            bench.context,
            bench.queue,
            bench.program,
            request,
            bench.queue.submit(bench.program, request),
        ]
        device = bench.device
        del bench, request
        handles = handles[first:] + handles[:first]
        while handles:
            del handles[0]
        assert device.closed
        assert not any(device.live.values())


def test_dropped_pending_event_waits_for_its_work(bench: Bench) -> None:
    request = bench.bindings()
    event = bench.queue.submit(bench.program, request)
    bench.device.patience = 3
    del event
    assert bench.device.calls.count("wait") == 3
    assert bench.accelerator.live_resources().events == 0
    request[2].buffer.write(0, b"x")


def test_dropped_pending_event_of_a_lost_device_does_not_hang(bench: Bench) -> None:
    event = bench.queue.submit(bench.program, bench.bindings())
    bench.device.patience = None
    bench.device.poisoned = True
    del event
    assert bench.accelerator.live_resources().events == 0
    calls = bench.device.calls
    assert calls.index("wait_idle") < calls.index("allocation.free")


def test_pending_event_keeps_what_it_uses(bench: Bench) -> None:
    prepared = bench.context.prepare(bench.program, bench.bindings())
    event = prepared.submit()
    seen = weakref.ref(prepared)
    del prepared
    assert seen() is not None
    bench.device.finish_all()
    event.poll()
    assert seen() is None
    assert bench.accelerator.live_resources() == LiveResources(
        contexts=1, programs=1, queues=1
    )


class Knot:
    """Makes handles garbage of one reference cycle."""

    def __init__(self, *handles: object) -> None:
        self.handles = handles
        self.me = self


@pytest.mark.parametrize("reverse", [False, True])
def test_cycles_are_safe_in_whatever_order_they_die(
    reverse: bool,  # noqa: FBT001
) -> None:
    bench = Bench()
    request = bench.bindings()
    prepared = bench.context.prepare(bench.program, bench.bindings())
    handles: list[object] = [
        bench.accelerator,
        bench.context,
        bench.program,
        *request,
        prepared,
        prepared.submit(),
        bench.queue.submit(bench.program, request),
    ]
    device = bench.device
    if reverse:
        handles.reverse()
    Knot(*handles)
    del bench, request, prepared, handles
    gc.collect()
    assert device.closed
    assert not any(device.live.values())


def _bury_in_order(handles: list[object]) -> None:
    for handle in handles:
        handle.__del__()  # type: ignore[attr-defined]


@pytest.mark.parametrize("order", ["parents", "children"])
def test_finalisers_of_work_in_flight(order: str) -> None:
    # The collector may run finalisers of a cycle in any order; here they run in two.
    bench = Bench()
    bench.device.patience = None
    request = bench.bindings()
    prepared = bench.context.prepare(bench.program, bench.bindings())
    launched = prepared.submit()
    handles: list[object] = [
        bench.accelerator,
        bench.context,
        bench.queue,
        bench.program,
        *(b.buffer for b in request),
        prepared,
    ]
    event = bench.queue.submit(bench.program, request)
    if order == "children":
        handles.reverse()
    _bury_in_order(handles)
    # Buffers and programs waited for the device; nothing was freed under its work.
    assert not bench.device.running
    assert event.poll() is EventState.COMPLETE
    assert launched.poll() is EventState.COMPLETE
    event.release()
    launched.release()
    del handles, request, prepared
    device = bench.device
    del bench
    gc.collect()
    assert device.closed
    assert not any(device.live.values())


def test_foreign_thread_does_not_enter_the_device() -> None:
    bench = Bench()
    box: list[Buffer] = [buffer(bench.context)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert bench.device.live["allocation"] == 1
    assert "allocation.free" not in bench.device.calls
    # The owner's next call buries it.
    assert bench.accelerator.live_resources().buffers == 0
    assert bench.device.live["allocation"] == 0


def test_finaliser_does_not_enter_a_device_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed: list[Buffer] = [buffer(bench.context)]
    call = FakeDevice.call

    def spy(self: FakeDevice, name: str) -> None:
        call(self, name)
        if name == "load":
            doomed.clear()
            assert self.calls[-1] == "load"

    monkeypatch.setattr(FakeDevice, "call", spy)
    bench.context.load_program(FakeLowered())
    assert bench.device.live["allocation"] == 1
    assert bench.accelerator.live_resources().buffers == 0
    assert bench.device.live["allocation"] == 0


# ---- the accelerator -----------------------------------------------------------------


def test_dishonest_device_stays_the_callers() -> None:
    device = FakeDevice(capabilities=Capabilities.EVENT_CANCELLATION)
    with pytest.raises(DeviceInfoError):
        Accelerator(device)
    assert not device.closed


def test_counters(bench: Bench) -> None:
    bench.device.instant = True
    request = bench.bindings()
    request[0].buffer.write(0, b"12345")
    request[0].buffer.read(1, 3)
    bench.queue.submit(bench.program, request).release()
    assert bench.accelerator.explicit_transfer_bytes == 8
    assert bench.accelerator.direct_binding_admissions == 3
    assert bench.accelerator.info == bench.accelerator.info
    assert bench.program.dispatch_count == 1
    assert bench.program.arena_bytes == 64


def test_contexts_at_most_16() -> None:
    accelerator = Accelerator(FakeDevice())
    contexts = [accelerator.create_context() for _ in range(16)]
    with pytest.raises(ResourceLimit):
        accelerator.create_context()
    contexts.pop().release()
    accelerator.create_context()


def test_dropped_context_lives_while_a_child_does() -> None:
    accelerator = Accelerator(FakeDevice())
    child = buffer(accelerator.create_context())
    assert accelerator.live_resources() == LiveResources(contexts=1, buffers=1)
    child.write(0, b"x")
    child.release()
    assert accelerator.live_resources() == LiveResources()
