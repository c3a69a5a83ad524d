"""Submissions: guards, ring slots, events, prepared submissions."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from harness.fake_device import (
    SLOT_BYTES,
    Bench,
    FakeDevice,
    FakeLowered,
    bindings,
    buffer,
)
from tosavk.core.buffers import Buffer
from tosavk.core.descriptors import (
    AccessMode,
    Binding,
    BufferRange,
    DeviceLimits,
    EventState,
)
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    Incompatible,
    Indeterminate,
    InvalidArgument,
    OutOfMemory,
    Released,
    ResourceLimit,
)
from tosavk.core.events import Event


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- in flight until observed --------------------------------------------------------


def test_ended_but_unobserved_work_still_holds_its_guards(bench: Bench) -> None:
    request = bench.bindings()
    event = bench.queue.submit(bench.program, request)
    bench.device.finish_all()
    for binding in request:
        with pytest.raises(Busy):
            binding.buffer.write(0, b"x")
        with pytest.raises(Busy):
            binding.buffer.release()
    with pytest.raises(Busy):
        bench.program.release()
    assert event.poll() is EventState.COMPLETE
    for binding in request:
        binding.buffer.write(0, b"x")
        binding.buffer.release()
    bench.program.release()


def test_guards_are_dropped_before_the_state_is_visible(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = bench.bindings()
    event = bench.queue.submit(bench.program, request)
    recording = bench.device.running[0]
    seen: list[tuple[EventState, int]] = []
    guard = request[2].buffer._guard  # pyright: ignore[reportPrivateUsage]
    settle = Event._settle  # pyright: ignore[reportPrivateUsage]

    def spy(self: Event, slot: object) -> None:
        seen.append((self._state, guard.state))  # pyright: ignore[reportPrivateUsage]
        settle(self, slot)  # type: ignore[arg-type]

    monkeypatch.setattr(Event, "_settle", spy)
    recording.finish()
    assert event.poll() is EventState.COMPLETE
    assert seen == [(EventState.PENDING, 0)]


def test_readers_share_and_writers_exclude(bench: Bench) -> None:
    shared, other = buffer(bench.context), buffer(bench.context)
    outputs = [buffer(bench.context) for _ in range(3)]
    events = [
        bench.queue.submit(
            bench.program, bindings(bench.program, [shared, shared, output])
        )
        for output in outputs
    ]
    with pytest.raises(Busy, match=r"slot 2 .*unobserved"):
        bench.queue.submit(
            bench.program, bindings(bench.program, [other, other, shared])
        )
    with pytest.raises(Busy, match="slot 1"):
        # No implicit chaining: an output is no input before it was observed.
        bench.queue.submit(
            bench.program,
            bindings(bench.program, [shared, outputs[0], buffer(bench.context)]),
        )
    bench.device.finish_all()
    for event in events[:-1]:
        event.release()
    with pytest.raises(Busy):
        shared.write(0, b"x")
    events[-1].release()
    shared.write(0, b"x")


def test_rejected_submit_gives_slot_and_guards_back(bench: Bench) -> None:
    first = bench.bindings()
    event = bench.queue.submit(bench.program, first)
    fresh = buffer(bench.context)
    second = bindings(bench.program, [fresh, first[0].buffer, first[2].buffer])
    with pytest.raises(Busy):
        bench.queue.submit(bench.program, second)
    assert bench.accelerator.live_resources().events == 1
    fresh.write(0, b"x")
    bench.device.finish_all()
    event.release()
    bench.queue.submit(bench.program, second)


def test_overlapping_reads_are_busy_before_any_poll(bench: Bench) -> None:
    bench.device.instant = True
    shared = buffer(bench.context)
    events = [
        bench.queue.submit(
            bench.program,
            bindings(bench.program, [shared, shared, buffer(bench.context)]),
        )
        for _ in range(16)
    ]
    with pytest.raises(Busy):
        shared.write(0, b"x")
    with pytest.raises(Busy):
        bench.program.release()
    for event in events:
        assert event.poll() is EventState.COMPLETE
    shared.write(0, b"x")
    bench.program.release()


# ---- the ring ------------------------------------------------------------------------


def test_ring_holds_64_and_is_last_in_first_out(bench: Bench) -> None:
    shared = buffer(bench.context)

    def submit() -> Event:
        return bench.queue.submit(
            bench.program,
            bindings(bench.program, [shared, shared, buffer(bench.context)]),
        )

    def index(event: Event) -> int:
        slot = event._slot  # pyright: ignore[reportPrivateUsage]
        assert slot is not None
        return slot.index

    events = [submit() for _ in range(64)]
    assert [index(event) for event in events] == list(range(64))
    with pytest.raises(ResourceLimit, match="64 submission slots"):
        submit()
    bench.device.finish_all()
    # Ended and observed, but not released: still a slot.
    assert all(event.poll() is EventState.COMPLETE for event in events)
    with pytest.raises(ResourceLimit):
        submit()
    for position in (5, 60, 17):
        events[position].release()
    again = [submit() for _ in range(3)]
    assert [index(event) for event in again] == [17, 60, 5]


def test_same_bindings_are_recorded_once(bench: Bench) -> None:
    bench.device.instant = True
    request = bench.bindings()
    for _ in range(5):
        bench.queue.submit(bench.program, reversed(request)).release()
    assert bench.device.recorded == 1
    other = [*request[:2], bench.bindings()[2]]
    bench.queue.submit(bench.program, other).release()
    assert bench.device.recorded == 2
    twin = bench.context.load_program(FakeLowered())
    bench.queue.submit(twin, other).release()
    assert bench.device.recorded == 3


def test_failed_record_spoils_the_recording_it_was_to_reuse(bench: Bench) -> None:
    bench.device.instant = True
    request, other = bench.bindings(), bench.bindings()
    bench.queue.submit(bench.program, request).release()
    bench.device.fail("record", OutOfMemory("no"))
    with pytest.raises(OutOfMemory):
        bench.queue.submit(bench.program, other)
    bench.queue.submit(bench.program, request).release()
    assert bench.device.recorded == 2


def test_offsets_are_part_of_what_is_recorded(bench: Bench) -> None:
    bench.device.instant = True
    wide = buffer(bench.context, 64)
    rest = bench.bindings()
    for offset in (0, 16, 16, 0):
        bench.queue.submit(
            bench.program,
            [
                Binding(0, wide, BufferRange(offset, SLOT_BYTES), AccessMode.READ),
                *rest[1:],
            ],
        ).release()
    assert bench.device.recorded == 3


@pytest.mark.parametrize("what", ["buffer", "program"])
def test_release_frees_recordings_that_name_it(bench: Bench, what: str) -> None:
    bench.device.instant = True
    request = bench.bindings()
    bench.queue.submit(bench.program, request).release()
    assert bench.device.live["recording"] == 1
    (request[1].buffer if what == "buffer" else bench.program).release()
    assert bench.device.live["recording"] == 0


def test_arena_of_limits_is_per_context() -> None:
    device = FakeDevice(
        limits=DeviceLimits(
            max_buffer_bytes=64,
            max_buffers_per_context=2,
            max_events_per_context=1,
            max_programs_per_context=2,
            max_queues_per_context=2,
        )
    )
    bench = Bench(device)
    other = bench.accelerator.create_context()
    held = [buffer(bench.context) for _ in range(2)]
    with pytest.raises(ResourceLimit):
        buffer(bench.context)
    held += [buffer(other) for _ in range(2)]
    with pytest.raises(ResourceLimit):
        buffer(other)


# ---- events --------------------------------------------------------------------------


def test_pending_event_cannot_be_released(bench: Bench) -> None:
    event = bench.queue.submit(bench.program, bench.bindings())
    assert event.poll() is EventState.PENDING
    with pytest.raises(Busy, match="pending"):
        event.release()
    assert not event.is_released
    bench.device.finish_all()
    assert [event.poll(), event.poll()] == [EventState.COMPLETE] * 2
    assert bench.device.calls.count("retire") == 1
    event.release()
    for use in (event.poll, event.wait, event.release):
        with pytest.raises(Released):
            use()


def test_wait_goes_in_bounded_steps(bench: Bench) -> None:
    bench.device.patience = 4
    event = bench.queue.submit(bench.program, bench.bindings())
    assert event.wait() is EventState.COMPLETE
    assert bench.device.calls.count("wait") == 4


def test_wait_returns_pending_when_the_time_is_over(bench: Bench) -> None:
    bench.device.patience = None
    event = bench.queue.submit(bench.program, bench.bindings())
    begin = time.monotonic()
    assert event.wait(0.01) is EventState.PENDING
    assert event.wait(0) is EventState.PENDING
    assert event.wait(-1.0) is EventState.PENDING
    assert time.monotonic() - begin < 5
    with pytest.raises(InvalidArgument, match="NaN"):
        event.wait(float("nan"))
    bench.device.finish_all()
    assert event.wait(float("inf")) is EventState.COMPLETE


def test_poll_error_that_is_no_loss_latches_nothing(bench: Bench) -> None:
    event = bench.queue.submit(bench.program, bench.bindings())
    for call, act in (("poll", event.poll), ("wait", event.wait)):
        bench.device.fail(call, OutOfMemory("no"))
        with pytest.raises(OutOfMemory):
            act()
    bench.device.fail("poll", OutOfMemory("no"))
    with pytest.raises(OutOfMemory):
        event.release()
    bench.device.finish_all()
    bench.device.fail("retire", OutOfMemory("no"))
    with pytest.raises(OutOfMemory):
        event.poll()
    assert event.poll() is EventState.COMPLETE


@pytest.mark.parametrize("call", ["poll", "wait"])
def test_loss_in_poll_is_a_value(bench: Bench, call: str) -> None:
    request = bench.bindings()
    event = bench.queue.submit(bench.program, request)
    bench.device.fail(call, DeviceLost("gone"))
    act: Callable[[], EventState] = event.poll if call == "poll" else event.wait
    assert act() is EventState.FAILED
    assert isinstance(event.error, DeviceLost)
    assert event.poll() is EventState.FAILED
    assert bench.accelerator.is_poisoned
    with pytest.raises(DeviceLost):
        request[0].buffer.write(0, b"x")
    # Releases still work on a lost device; its guards are gone with the event.
    request[0].buffer.release()
    event.release()
    assert bench.accelerator.live_resources().events == 0


@pytest.mark.parametrize("call", ["poll", "launch", "retire", "allocate"])
def test_loss_is_remembered_for_the_device(bench: Bench, call: str) -> None:
    event = bench.queue.submit(bench.program, bench.bindings())
    bench.device.finish_all()
    bench.device.fail(call, DeviceLost("gone"))
    acts: dict[str, Callable[[], object]] = {
        "launch": lambda: bench.queue.submit(bench.program, bench.bindings()),
        "allocate": lambda: buffer(bench.context),
    }
    with suppress(DeviceLost, Indeterminate):
        acts.get(call, event.poll)()
    bench.device.poisoned = False
    assert bench.accelerator.is_poisoned
    with pytest.raises(DeviceLost):
        bench.context.create_queue()


def test_failed_event_keeps_no_frames_alive(bench: Bench) -> None:
    gc.collect()
    gc.disable()
    try:
        event = bench.queue.submit(bench.program, bench.bindings())
        bench.device.fail("poll", DeviceLost("gone"))

        def observe() -> weakref.ref[Buffer]:
            local = buffer_of_a_caller()
            assert event.poll() is EventState.FAILED
            return weakref.ref(local)

        made = [buffer(bench.context)]
        buffer_of_a_caller = made.pop
        assert observe()() is None
    finally:
        gc.enable()


def test_poisoning_alone_does_not_fail_pending_events(bench: Bench) -> None:
    bench.device.patience = None
    event = bench.queue.submit(bench.program, bench.bindings())
    bench.device.poisoned = True
    assert event.poll() is EventState.PENDING
    with pytest.raises(DeviceLost, match="wait for this event"):
        event.wait()
    assert event.wait(0.001) is EventState.PENDING
    bench.device.finish_all()
    assert event.poll() is EventState.COMPLETE
    assert bench.accelerator.info == bench.device.info


@pytest.mark.parametrize("call", ["record", "launch"])
def test_loss_in_submit_is_indeterminate(bench: Bench, call: str) -> None:
    request = bench.bindings()
    bench.device.fail(call, DeviceLost("gone"))
    with pytest.raises(Indeterminate) as caught:
        bench.queue.submit(bench.program, request)
    event = caught.value.event
    assert isinstance(event, Event)
    assert isinstance(caught.value.error, DeviceLost)
    assert event.poll() is EventState.FAILED
    assert event.error is caught.value.error
    assert bench.accelerator.is_poisoned
    assert bench.accelerator.direct_binding_admissions == 0
    # It holds its slot, but no guards.
    assert bench.accelerator.live_resources().events == 1
    for binding in request:
        binding.buffer.release()
    bench.program.release()
    with pytest.raises(Busy):
        bench.context.release()
    event.release()
    bench.queue.release()
    bench.context.release()
    # A launch of unknown outcome is only freed when the device is idle.
    assert ("wait_idle" in bench.device.calls) == (call == "launch")
    assert bench.device.live["recording"] == 0


def test_loss_in_retire_keeps_the_completion(bench: Bench) -> None:
    event = bench.queue.submit(bench.program, bench.bindings())
    bench.device.finish_all()
    bench.device.fail("retire", DeviceLost("gone"))
    assert event.poll() is EventState.COMPLETE
    assert bench.accelerator.is_poisoned


@pytest.mark.parametrize("call", ["record", "launch"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a fault")])
def test_interrupted_submit_leaves_nothing_behind(
    bench: Bench, call: str, error: BaseException
) -> None:
    request = bench.bindings()
    bench.device.fail(call, error)
    with pytest.raises(type(error)):
        bench.queue.submit(bench.program, request)
    assert bench.accelerator.live_resources().events == 0
    assert "wait_idle" in bench.device.calls
    bench.device.instant = True
    with bench.queue.submit(bench.program, request) as event:
        assert event.poll() is EventState.COMPLETE


def test_leaving_the_block_of_an_event_waits_for_it(bench: Bench) -> None:
    with bench.queue.submit(bench.program, bench.bindings()) as event:
        assert event.poll() is EventState.PENDING
    assert event.is_released
    assert bench.accelerator.live_resources().events == 0


# ---- prepared submissions ------------------------------------------------------------


def test_prepared_records_once_and_launches_often(bench: Bench) -> None:
    bench.device.instant = True
    prepared = bench.context.prepare(bench.program, bench.bindings())
    for _ in range(4):
        assert prepared.submit().poll() is EventState.COMPLETE
    event = prepared.submit()
    assert event.poll() is EventState.COMPLETE
    assert bench.device.recorded == 1
    assert bench.device.calls.count("launch") == 5
    assert bench.device.calls.count("retire") == 5
    assert bench.accelerator.direct_binding_admissions == 15
    assert bench.accelerator.live_resources().events == 1
    prepared.release()
    assert bench.accelerator.live_resources().events == 0
    with pytest.raises(Released):
        prepared.submit()
    with pytest.raises(Released):
        prepared.release()
    # Its event outlives it.
    assert event.poll() is EventState.COMPLETE


def test_prepared_launches_one_at_a_time(bench: Bench) -> None:
    prepared = bench.context.prepare(bench.program, bench.bindings())
    event = prepared.submit()
    bench.device.finish_all()
    with pytest.raises(Busy, match="last launch"):
        prepared.submit()
    with pytest.raises(Busy, match="last launch"):
        prepared.release()
    event.poll()
    prepared.submit()


def test_prepared_takes_guards_only_in_flight(bench: Bench) -> None:
    request = bench.bindings()
    prepared = bench.context.prepare(bench.program, request)
    request[0].buffer.write(0, b"x")
    event = prepared.submit()
    for binding in request:
        with pytest.raises(Busy, match="unobserved"):
            binding.buffer.write(0, b"x")
    with pytest.raises(Busy):
        bench.queue.submit(bench.program, request)
    bench.device.finish_all()
    event.poll()
    other = bench.queue.submit(bench.program, request)
    with pytest.raises(Busy, match=r"slot 2 .*t2"):
        prepared.submit()
    bench.device.finish_all()
    other.release()
    prepared.submit()


def test_prepared_keeps_its_program_and_buffers(bench: Bench) -> None:
    request = bench.bindings()
    prepared = bench.context.prepare(bench.program, request)
    with pytest.raises(Busy, match="1 prepared"):
        request[1].buffer.release()
    with pytest.raises(Busy, match="1 prepared"):
        bench.program.release()
    prepared.release()
    request[1].buffer.release()
    bench.program.release()


def test_prepared_reuses_the_recording_of_its_slot(bench: Bench) -> None:
    bench.device.instant = True
    request = bench.bindings()
    bench.queue.submit(bench.program, request).release()
    with bench.context.prepare(bench.program, request) as prepared:
        prepared.submit().poll()
    bench.queue.submit(bench.program, request).release()
    assert bench.device.recorded == 1


def test_prepared_and_events_share_64_slots(bench: Bench) -> None:
    shared = buffer(bench.context)

    def fresh() -> list[Binding]:
        return bindings(bench.program, [shared, shared, buffer(bench.context)])

    prepared = [bench.context.prepare(bench.program, fresh()) for _ in range(60)]
    events = [bench.queue.submit(bench.program, fresh()) for _ in range(4)]
    with pytest.raises(ResourceLimit):
        bench.context.prepare(bench.program, fresh())
    with pytest.raises(ResourceLimit):
        bench.queue.submit(bench.program, fresh())
    # Launches of what is prepared need no further slot.
    events += [p.submit() for p in prepared[:2]]
    bench.device.finish_all()
    prepared[-1].release()
    bench.context.prepare(bench.program, fresh())


def test_old_event_of_a_prepared_does_not_touch_its_slot_again(bench: Bench) -> None:
    bench.device.instant = True
    prepared = bench.context.prepare(bench.program, bench.bindings())
    old = prepared.submit()
    old.poll()
    prepared.release()
    bench.device.instant = False
    young = bench.queue.submit(bench.program, bench.bindings())
    old.release()
    assert bench.accelerator.live_resources().events == 1
    assert young.poll() is EventState.PENDING


def test_loss_in_launch_of_prepared(bench: Bench) -> None:
    request = bench.bindings()
    prepared = bench.context.prepare(bench.program, request)
    bench.device.fail("launch", DeviceLost("gone"))
    with pytest.raises(Indeterminate) as caught:
        prepared.submit()
    event = caught.value.event
    assert isinstance(event, Event)
    assert event.poll() is EventState.FAILED
    with pytest.raises(DeviceLost):
        prepared.submit()
    event.release()
    prepared.release()
    request[0].buffer.release()
    bench.accelerator.close()
    assert bench.device.closed


def test_interrupted_launch_breaks_the_prepared(bench: Bench) -> None:
    request = bench.bindings()
    prepared = bench.context.prepare(bench.program, request)
    bench.device.fail("launch", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepared.submit()
    for _ in range(2):
        with pytest.raises(Incompatible, match="prepare it again"):
            prepared.submit()
    prepared.release()
    bench.context.prepare(bench.program, request).submit()
