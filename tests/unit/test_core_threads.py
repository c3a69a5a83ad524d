"""Handles in threads that they do not belong to."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from harness.fake_device import ALIGNMENT, Bench, FakeLowered
from tosavk.core.descriptors import USAGE_ALL, BufferDesc, EventState
from tosavk.core.errors import WrongProcess, WrongThread
from tosavk.core.imports import aligned_array
from tosavk.core.process import NOBODY
from tosavk.core.waiting import wait_all, wait_any


def elsewhere(call: Callable[[], object]) -> BaseException | None:
    """What a call raises in another thread."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is handed on
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def uses(bench: Bench) -> dict[str, Callable[[], object]]:
    """A call of every method of every handle; each works in the owner's thread."""
    desc = BufferDesc(16, USAGE_ALL)
    target = bench.context.allocate_buffer(desc)
    request = bench.bindings()
    spare = bench.accelerator.create_context()
    gate = bench.accelerator.create_gate()
    event = bench.queue.submit(bench.program, request)
    ended = bench.queue.submit(bench.program, bench.bindings())
    ended.wait()
    prepared = bench.context.prepare(bench.program, bench.bindings())
    device_memory = aligned_array(ALIGNMENT * 4)
    return {
        "create_context": bench.accelerator.create_context,
        "create_gate": bench.accelerator.create_gate,
        "live_resources": bench.accelerator.live_resources,
        "allocate_buffer": lambda: bench.context.allocate_buffer(desc),
        "import_host_buffer": lambda: bench.context.import_host_buffer(
            desc, device_memory
        ),
        "load_program": lambda: bench.context.load_program(FakeLowered()),
        "create_queue": bench.context.create_queue,
        "prepare": lambda: bench.context.prepare(bench.program, bench.bindings()),
        "context.release": spare.release,
        "write": lambda: target.write(0, b"x"),
        "read": lambda: target.read(0, 1),
        "read_into": lambda: target.read_into(0, bytearray(1)),
        "map": lambda: target.map().__enter__(),
        "submit": lambda: bench.queue.submit(bench.program, []),
        "submit_after": lambda: bench.queue.submit_after(bench.program, [], gate, 1),
        "prepared.submit": prepared.submit,
        "prepared.submit_after": lambda: prepared.submit_after(gate, 1),
        "poll": event.poll,
        "wait": event.wait,
        "wait of what has ended": ended.wait,
        "poll of what has ended": ended.poll,
        "wait_any": lambda: wait_any([event]),
        "wait_all": lambda: wait_all([event]),
        "event.release": ended.release,
        "gate.signal": gate.signal,
        "gate.release": gate.release,
        "prepared.release": prepared.release,
        "buffer.release": target.release,
        "program.release": bench.program.release,
        "queue.release": bench.queue.release,
        "context.close": bench.context.close,
        "close": bench.accelerator.close,
        "with accelerator": lambda: bench.accelerator.__exit__(None, None, None),
        "with event": lambda: event.__exit__(None, None, None),
    }


def test_every_method_refuses_another_thread() -> None:
    bench = Bench()
    calls = uses(bench)
    before = bench.accelerator.live_resources()
    done = len(bench.device.calls)
    for name, call in calls.items():
        error = elsewhere(call)
        assert type(error) is WrongThread, f"{name}: {error!r}"
        assert "thread that opened it" in str(error)
    assert len(bench.device.calls) == done
    assert bench.accelerator.live_resources() == before


def test_it_comes_before_other_refusals() -> None:
    bench = Bench()
    released = bench.context.allocate_buffer(BufferDesc(16, USAGE_ALL))
    released.release()
    bench.device.poisoned = True
    calls: list[Callable[[], object]] = [
        released.release,
        lambda: released.write(9, b""),
        bench.context.create_queue,
        lambda: bench.queue.submit(bench.program, []),
    ]
    for call in calls:
        assert isinstance(elsewhere(call), WrongThread)


def test_what_only_tells_may_be_asked_anywhere() -> None:
    bench = Bench()
    target = bench.context.allocate_buffer(BufferDesc(16, USAGE_ALL))
    gate = bench.accelerator.create_gate()
    event = bench.queue.submit(bench.program, bench.bindings())
    reads: list[Callable[[], object]] = [
        lambda: bench.accelerator.info,
        lambda: bench.accelerator.name,
        lambda: bench.accelerator.is_poisoned,
        lambda: bench.accelerator.host_import_alignment,
        lambda: target.desc,
        lambda: target.info,
        lambda: target.is_released,
        lambda: bench.program.slots,
        lambda: gate.raised,
        lambda: event.error,
        lambda: repr([bench.accelerator, bench.context, target, event, gate]),
    ]
    for read in reads:
        assert elsewhere(read) is None


def test_signals_may_be_raised_anywhere() -> None:
    bench = Bench()
    gate = bench.accelerator.create_gate()
    signal = gate.signal()
    event = bench.queue.submit_after(bench.program, bench.bindings(), gate, 1)
    assert elsewhere(lambda: signal.raise_to(1)) is None
    assert event.wait() is EventState.COMPLETE


def test_the_thread_that_opened_is_the_owner() -> None:
    made: list[Bench] = []
    assert elsewhere(lambda: made.append(Bench())) is None
    with pytest.raises(WrongThread):
        made[0].accelerator.create_context()


def test_a_copy_in_a_forked_process_refuses_everything() -> None:
    """As after a fork, which sets the owner to nobody (test_core_process forks)."""
    bench = Bench()
    calls = uses(bench)
    signal = bench.accelerator.create_gate().signal()
    done = len(bench.device.calls)
    shared = bench.accelerator._shared  # pyright: ignore[reportPrivateUsage]
    owner, shared.owner = shared.owner, NOBODY
    calls["raise_to"] = lambda: signal.raise_to(1)
    for name, call in calls.items():
        if name.startswith("with"):
            call()  # leaving a block does nothing
            continue
        with pytest.raises(WrongProcess, match="forked"):
            call()
    assert len(bench.device.calls) == done
    shared.owner = owner
    bench.accelerator.close()
