"""wait_any, wait_all, and events in coroutines."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from harness.fake_device import Bench
from tosavk.core.descriptors import EventState
from tosavk.core.errors import DeviceLost, InvalidArgument, OutOfMemory, Released
from tosavk.core.events import Event
from tosavk.core.waiting import wait_all, wait_any

PENDING, COMPLETE = EventState.PENDING, EventState.COMPLETE


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.device.patience = None
    return made


def submit(bench: Bench, count: int) -> list[Event]:
    return [bench.queue.submit(bench.program, bench.bindings()) for _ in range(count)]


# ---- several events ------------------------------------------------------------------


def test_wait_any_gives_those_that_have_ended(bench: Bench) -> None:
    events = submit(bench, 4)
    assert wait_any(events, 0.01) == ()
    running = list(bench.device.running)
    running[2].finish()
    assert wait_any(events) == (events[2],)
    assert wait_any(iter(events), 0) == (events[2],)
    running[0].finish()
    assert wait_any(events) == (events[0], events[2])
    timer = threading.Timer(0.05, running[3].finish)
    timer.start()
    assert wait_any([events[1], events[3]], 10) == (events[3],)
    timer.join()
    bench.device.finish_all()


def test_wait_all_waits_for_the_last(bench: Bench) -> None:
    events = submit(bench, 3)
    running = list(bench.device.running)
    assert not wait_all(events, 0.01)
    timers = [
        threading.Timer(0.02 * i, recording.finish)
        for i, recording in enumerate(running)
    ]
    for timer in timers:
        timer.start()
    assert wait_all(events, 10)
    assert [event.poll() for event in events] == [COMPLETE] * 3
    assert wait_all(events)
    for timer in timers:
        timer.join()


def test_events_of_several_accelerators(bench: Bench) -> None:
    other = Bench()
    other.device.patience = None
    events = submit(bench, 1) + submit(other, 1)
    other.device.finish_all()
    assert wait_any(events) == (events[1],)
    bench.device.finish_all()
    assert wait_all(events)


def test_nothing_to_wait_for() -> None:
    assert wait_any([]) == ()
    assert wait_any([], 0) == ()
    assert wait_all([])


def test_times_and_released_events_are_checked(bench: Bench) -> None:
    events = submit(bench, 2)
    for wait in (wait_any, wait_all):
        with pytest.raises(InvalidArgument, match="NaN"):
            wait(events, float("nan"))
        assert not wait(events, -1)
    bench.device.finish_all()
    assert wait_all(events)
    events[1].release()
    for wait in (wait_any, wait_all):
        with pytest.raises(Released):
            wait(events)


def test_a_lost_device_does_not_hang_waits(bench: Bench) -> None:
    events = submit(bench, 2)
    bench.device.poisoned = True
    for wait in (wait_any, wait_all):
        with pytest.raises(DeviceLost):
            wait(events)
    bench.device.fail("poll", DeviceLost("gone"))
    assert wait_any(events) == (events[0],)
    assert events[0].poll() is EventState.FAILED


# ---- coroutines ----------------------------------------------------------------------


def test_await_gives_the_state(bench: Bench) -> None:
    async def main() -> EventState:
        (event,) = submit(bench, 1)
        timer = threading.Timer(0.02, bench.device.finish_all)
        timer.start()
        state = await event
        timer.join()
        assert await event is state
        return state

    assert asyncio.run(main()) is COMPLETE


def test_many_events_share_a_timer_and_no_thread(bench: Bench) -> None:
    async def main() -> None:
        events = submit(bench, 40)
        waits = [asyncio.ensure_future(_await(event)) for event in events]
        await asyncio.sleep(0.02)
        assert threading.active_count() == before
        handles = [h for h in _scheduled() if not h.cancelled()]
        assert len(handles) <= 2  # the poller's, and perhaps asyncio's own
        for recording in list(bench.device.running):
            recording.finish()
        assert await asyncio.gather(*waits) == [COMPLETE] * 40

    def _scheduled() -> list[asyncio.TimerHandle]:
        return list(vars(asyncio.get_running_loop())["_scheduled"])

    before = threading.active_count()
    asyncio.run(main())


async def _await(event: Event) -> EventState:
    return await event


def test_the_loop_goes_on_meanwhile_and_pauses_grow(bench: Bench) -> None:
    async def main() -> int:
        (event,) = submit(bench, 1)
        wait = asyncio.ensure_future(_await(event))
        ticks = 0
        end = time.monotonic() + 0.25
        while time.monotonic() < end:
            await asyncio.sleep(0.005)
            ticks += 1
        bench.device.finish_all()
        assert await wait is COMPLETE
        return ticks

    assert asyncio.run(main()) >= 10
    polls = bench.device.calls.count("poll")
    assert 5 < polls < 200


def test_cancelled_waits_leave_the_event(bench: Bench) -> None:
    async def main() -> None:
        (event,) = submit(bench, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(event), 0.02)
        assert event.poll() is PENDING
        bench.device.finish_all()
        assert await event is COMPLETE

    asyncio.run(main())


def test_errors_reach_the_coroutine(bench: Bench) -> None:
    async def main() -> None:
        first, second, third, fourth = submit(bench, 4)
        bench.device.fail("poll", OutOfMemory("x"))
        with pytest.raises(OutOfMemory):
            await first
        assert first.poll() is PENDING
        wait = asyncio.ensure_future(_await(second))
        await asyncio.sleep(0.01)
        for recording in list(bench.device.running):
            recording.finish()
        second.release()
        with pytest.raises(Released):
            await wait
        third.release()
        with pytest.raises(Released):
            await third
        assert await fourth is COMPLETE

    asyncio.run(main())


def test_a_lost_device_ends_the_waits(bench: Bench) -> None:
    async def main() -> None:
        (event, other) = submit(bench, 2)
        waits = [asyncio.ensure_future(_await(e)) for e in (event, other)]
        await asyncio.sleep(0.01)
        bench.device.poisoned = True
        for wait in waits:
            with pytest.raises(DeviceLost):
                await wait
        bench.device.fail("poll", DeviceLost("gone"))
        assert await event is EventState.FAILED

    asyncio.run(main())


def test_a_gate_raised_by_an_executor_thread(bench: Bench) -> None:
    async def main() -> None:
        gate = bench.accelerator.create_gate()
        signal = gate.signal()
        event = bench.queue.submit_after(bench.program, bench.bindings(), gate, 1)
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, signal.raise_to, 1)
        bench.device.finish_all()
        assert await event is COMPLETE

    asyncio.run(main())


def test_every_loop_has_its_own_timer(bench: Bench) -> None:
    async def main(event: Event) -> EventState:
        asyncio.get_running_loop().call_later(0.01, bench.device.finish_all)
        return await event

    for event in submit(bench, 3):
        assert asyncio.run(main(event)) is COMPLETE
