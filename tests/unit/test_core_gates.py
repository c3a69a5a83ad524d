"""Host gates, on a device without hardware that has one queue."""

from __future__ import annotations

import copy
import gc
import threading

import pytest

from harness.fake_device import Bench, FakeDevice
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import EventState
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    Incompatible,
    InvalidArgument,
    OutOfMemory,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.events import Event
from tosavk.core.gates import MAX_STEPS, Gate
from tosavk.core.shared import LiveResources

PENDING, COMPLETE = EventState.PENDING, EventState.COMPLETE
U64 = (1 << 64) - 1


@pytest.fixture
def bench() -> Bench:
    return Bench()


def behind(bench: Bench, gate: Gate, value: int) -> Event:
    return bench.queue.submit_after(bench.program, bench.bindings(), gate, value)


# ---- making and raising --------------------------------------------------------------


def test_order_of_checks_of_create_gate(bench: Bench) -> None:
    bench.device.fail("create_gate", OutOfMemory("x"))
    with pytest.raises(OutOfMemory):
        bench.accelerator.create_gate()
    assert bench.accelerator.live_resources().gates == 0
    bench.device.poisoned = True
    with pytest.raises(DeviceLost):
        bench.accelerator.create_gate()
    bench.accelerator.close()
    with pytest.raises(Released):
        bench.accelerator.create_gate()


def test_a_device_without_gates_is_unsupported() -> None:
    class Plain:
        def __init__(self) -> None:
            self.inner = FakeDevice()

        def __getattr__(self, name: str) -> object:
            if name in {"create_gate", "host_import_alignment"}:
                raise AttributeError(name)
            return getattr(self.inner, name)

    with Accelerator(Plain()) as accelerator:  # type: ignore[arg-type]
        with pytest.raises(Unsupported, match="no gates"):
            accelerator.create_gate()
        assert accelerator.host_import_alignment is None


def test_raises_may_come_in_any_order(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    signal = gate.signal()
    assert copy.copy(signal).raise_to(5)
    assert signal.raise_to(3)
    assert signal.raise_to(5)
    assert signal.raise_to(0)
    assert gate.raised == 5
    assert bench.device.gates[0].signals == [5]
    assert signal.raise_to(U64)
    for wrong in (-1, U64 + 1, 1.5, "1", None):
        with pytest.raises(InvalidArgument, match="gate value"):
            signal.raise_to(wrong)  # type: ignore[arg-type]


def test_a_signal_outlives_its_gate_without_effect(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    signal = gate.signal()
    gate.release()
    assert not signal.raise_to(1)
    assert "released" in repr(signal)
    with pytest.raises(Released):
        gate.signal()
    with pytest.raises(Released):
        gate.release()
    assert bench.device.live["gate"] == 0
    assert bench.device.gates[0].signals == []


def test_an_error_of_the_device_changes_nothing_and_does_not_poison(
    bench: Bench,
) -> None:
    gate = bench.accelerator.create_gate()
    signal = gate.signal()
    bench.device.fail("signal", OutOfMemory("x"))
    with pytest.raises(OutOfMemory):
        signal.raise_to(4)
    assert gate.raised == 0
    assert signal.raise_to(4)
    assert gate.raised == 4
    assert not bench.accelerator.is_poisoned


# ---- submitting ----------------------------------------------------------------------


def test_work_waits_for_its_gate(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    signal = gate.signal()
    event = behind(bench, gate, 2)
    assert event.wait(0.01) is PENDING
    signal.raise_to(1)
    assert event.wait(0.01) is PENDING
    signal.raise_to(2)
    assert event.wait() is COMPLETE
    event.release()
    assert gate.awaited == 2
    for value in (0, 1, 2):
        with behind(bench, gate, value) as event:
            assert event.wait() is COMPLETE


def test_prepared_work_waits_for_its_gate(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    prepared = bench.context.prepare(bench.program, bench.bindings())
    for value in (1, 2):
        event = prepared.submit_after(gate, value)
        with pytest.raises(Busy):
            prepared.submit_after(gate, 7)
        with pytest.raises(Busy):
            prepared.submit()
        assert event.wait(0.01) is PENDING
        gate.signal().raise_to(value)
        assert event.wait() is COMPLETE
    assert gate.awaited == 2
    # A plain launch of the same recording waits for nothing.
    assert prepared.submit().wait() is COMPLETE


def test_only_accepted_work_is_awaited(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    good = bench.bindings()
    with pytest.raises(Incompatible):
        bench.queue.submit_after(bench.program, good[:-1], gate, 9)
    bench.device.fail("launch", OutOfMemory("x"))
    with pytest.raises(OutOfMemory):
        bench.queue.submit_after(bench.program, good, gate, 9)
    held = bench.queue.submit_after(bench.program, good, gate, 3)
    with pytest.raises(Busy):
        bench.queue.submit_after(bench.program, good, gate, 9)
    assert gate.awaited == 3
    gate.release()
    assert bench.device.gates[0].signals == [3]
    assert held.wait() is COMPLETE


def test_a_launch_that_fails_leaves_a_prepared_submission_as_it_was(
    bench: Bench,
) -> None:
    gate = bench.accelerator.create_gate()
    prepared = bench.context.prepare(bench.program, bench.bindings())
    bench.device.fail("launch", OutOfMemory("x"))
    with pytest.raises(OutOfMemory):
        prepared.submit_after(gate, 9)
    assert gate.awaited == 0
    assert prepared.submit().wait() is COMPLETE
    bench.device.fail("launch", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepared.submit_after(gate, 9)
    with pytest.raises(Incompatible):
        prepared.submit_after(gate, 9)
    with pytest.raises(Incompatible):
        prepared.submit()
    bench.accelerator.close()


def test_order_of_checks_of_submit_after(bench: Bench) -> None:
    other = Bench()
    foreign = other.accelerator.create_gate()
    gate = bench.accelerator.create_gate()
    request = bench.bindings()
    submit = bench.queue.submit_after
    with pytest.raises(InvalidArgument, match="not a gate"):
        submit(bench.program, request, object(), 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="another accelerator"):
        submit(bench.program, [], foreign, 1)
    with pytest.raises(InvalidArgument, match="gate value"):
        submit(bench.program, [], gate, -1)
    bench.device.poisoned = True
    with pytest.raises(InvalidArgument, match="another accelerator"):
        submit(bench.program, [], foreign, 1)
    with pytest.raises(DeviceLost):
        submit(bench.program, [], gate, 1)
    bench.device.poisoned = False
    with pytest.raises(ResourceLimit, match="at least one"):
        submit(bench.program, [], gate, 1)
    gate.release()
    with pytest.raises(Released):
        submit(bench.program, [], gate, -1)
    bench.program.release()
    with pytest.raises(Released, match="Program"):
        submit(bench.program, [], foreign, 1)
    bench.queue.release()
    with pytest.raises(Released, match="Queue"):
        submit(bench.program, [], gate, 1)


def test_a_lost_device_fails_gated_work(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    event = behind(bench, gate, 1)
    bench.device.fail("poll", DeviceLost("gone"))
    assert event.poll() is EventState.FAILED
    event.release()
    gate.release()
    # Work that counts as failed may still run: its gate stays until the device goes.
    assert bench.device.live["gate"] == 1
    bench.accelerator.close()
    assert bench.device.closed


# ---- the end of gates ----------------------------------------------------------------


def test_release_lets_the_waiting_work_go_and_waits_for_nothing(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    events = [behind(bench, gate, value) for value in (7, 4)]
    waited = bench.device.waited_ns
    gate.release()
    assert bench.device.waited_ns == waited
    assert bench.device.gates[0].value == 7
    # The counter lives until nobody can be waiting for it any more.
    assert bench.accelerator.live_resources().gates == 1
    for event in events:
        assert event.wait() is COMPLETE
        event.release()
    assert bench.accelerator.live_resources().gates == 0
    assert bench.device.live["gate"] == 0


def test_dropping_one_gate_never_waits_for_another(bench: Bench) -> None:
    first = bench.accelerator.create_gate()
    second = bench.accelerator.create_gate()
    front = behind(bench, second, 1)
    back = behind(bench, first, 1)
    # The work of `first` stands in the queue behind that of `second`.
    first.release()
    assert back.wait(0.01) is PENDING
    del first
    gc.collect()
    assert front.poll() is PENDING
    second.signal().raise_to(1)
    assert front.wait() is COMPLETE
    assert back.wait() is COMPLETE


def test_a_gate_that_nobody_releases_lets_its_work_go(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    event = behind(bench, gate, 5)
    del gate
    gc.collect()
    assert bench.device.gates[0].value == 5
    assert event.wait() is COMPLETE


def test_a_gate_dropped_in_another_thread_lets_a_wait_go_on(bench: Bench) -> None:
    box = [bench.accelerator.create_gate()]
    event = behind(bench, box[0], 5)
    thread = threading.Timer(0.05, box.clear)
    thread.start()
    bench.device.patience = None
    done = threading.Timer(0.15, lambda: bench.device.finish_all())
    done.start()
    assert event.wait(5) is COMPLETE
    thread.join()
    done.join()


def test_a_gate_that_cannot_be_signalled_stays_until_it_can(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    event = behind(bench, gate, 5)
    bench.device.fail("signal", OutOfMemory("x"))
    with pytest.raises(OutOfMemory):
        gate.release()
    assert not gate.is_released
    assert event.poll() is PENDING
    gate.release()
    assert event.wait() is COMPLETE


def test_closing_survives_a_gate_that_fails_once(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    event = behind(bench, gate, 5)
    bench.device.fail("signal", OutOfMemory("x"))
    bench.accelerator.close()
    assert gate.is_released
    assert event.poll() is COMPLETE
    assert bench.device.closed


@pytest.mark.parametrize("collect", [False, True])
def test_an_event_dropped_behind_an_unraised_gate_does_not_hang(
    bench: Bench, *, collect: bool
) -> None:
    gate = bench.accelerator.create_gate()
    request = bench.bindings()
    event = bench.queue.submit_after(bench.program, request, gate, 1)
    if collect:
        cycle: list[object] = [event, request]
        cycle.append(cycle)
        del cycle
    del event, request
    gc.collect()
    assert bench.accelerator.live_resources().events == 1
    gate.signal().raise_to(1)
    assert bench.accelerator.live_resources().events == 0
    gc.collect()
    assert bench.accelerator.live_resources().buffers == 0


def test_everything_dropped_in_a_cycle_behind_a_gate(bench: Bench) -> None:
    device = bench.device
    gate = bench.accelerator.create_gate()
    event = behind(bench, gate, 1)
    cycle: list[object] = [event, bench, gate]
    cycle.append(cycle)
    bench.__dict__["cycle"] = cycle
    del event, gate, cycle, bench
    gc.collect()
    assert device.gates[0].value in {0, 1}


def test_close_raises_gates_first(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    signal = gate.signal()
    event = behind(bench, gate, 3)
    bench.accelerator.close()
    assert event.poll() is COMPLETE
    assert gate.is_released
    assert not signal.raise_to(9)
    assert bench.device.closed
    assert bench.accelerator.live_resources() == LiveResources()


def test_an_exception_leaves_blocks_without_waiting_for_a_gate(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    kept: list[Event] = []

    def work() -> None:
        with bench.context, behind(bench, gate, 1) as event:
            kept.append(event)
            raise RuntimeError("bad day")

    with pytest.raises(RuntimeError, match="bad day"):
        work()
    assert kept[0].poll() is PENDING
    assert bench.context.is_released
    assert bench.accelerator.live_resources().contexts == 1
    gate.signal().raise_to(1)
    with kept[0]:
        assert kept[0].wait() is COMPLETE
    bench.accelerator.close()
    assert bench.device.closed


def test_the_device_outlives_its_accelerator_handle_while_a_gate_lives() -> None:
    device = FakeDevice()
    accelerator = Accelerator(device)
    gate = accelerator.create_gate()
    del accelerator
    gc.collect()
    assert not device.closed
    gate.release()
    assert device.closed


# ---- how far values may be apart -----------------------------------------------------


def test_a_raise_takes_steps_where_one_would_be_too_far(bench: Bench) -> None:
    bench.device.max_difference = 10
    gate = bench.accelerator.create_gate()
    assert gate.signal().raise_to(25)
    assert bench.device.gates[0].signals == [10, 20, 25]
    with pytest.raises(ResourceLimit, match=f"{MAX_STEPS} steps"):
        gate.signal().raise_to(26 + 10 * MAX_STEPS)
    assert gate.raised == 25


def test_values_too_far_apart_are_refused(bench: Bench) -> None:
    bench.device.max_difference = 10
    gate = bench.accelerator.create_gate()
    signal = gate.signal()
    with pytest.raises(ResourceLimit, match="maxTimelineSemaphoreValueDifference"):
        behind(bench, gate, 11)
    assert gate.awaited == 0
    event = behind(bench, gate, 3)
    signal.raise_to(9)
    with pytest.raises(ResourceLimit, match="observe"):
        behind(bench, gate, 14)
    with pytest.raises(ResourceLimit, match="observe"):
        signal.raise_to(14)
    assert gate.raised == 9
    assert event.wait() is COMPLETE
    assert signal.raise_to(14)
    with behind(bench, gate, 24) as event:
        signal.raise_to(24)
        assert event.wait() is COMPLETE


# ---- threads -------------------------------------------------------------------------


def test_many_threads_raise_one_gate(bench: Bench) -> None:
    gate = bench.accelerator.create_gate()
    signal = gate.signal()
    events = [behind(bench, gate, 50 * i) for i in range(1, 9)]

    def climb(start: int) -> None:
        for value in range(start, 401, 4):
            assert signal.raise_to(value)

    threads = [threading.Thread(target=climb, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gate.raised == 400
    signals = bench.device.gates[0].signals
    assert signals == sorted(set(signals))
    for event in events:
        assert event.wait() is COMPLETE


def test_raises_race_with_the_release(bench: Bench) -> None:
    for _ in range(50):
        gate = bench.accelerator.create_gate()
        signal = gate.signal()
        event = behind(bench, gate, 20)
        results: list[bool] = []

        def climb(
            raise_to: object = signal.raise_to, results: list[bool] = results
        ) -> None:
            assert callable(raise_to)
            results.extend(bool(raise_to(value)) for value in range(1, 40))

        thread = threading.Thread(target=climb)
        thread.start()
        gate.release()
        thread.join()
        assert results == sorted(results, reverse=True)
        assert event.wait() is COMPLETE
        event.release()
    assert bench.device.live["gate"] == 0
