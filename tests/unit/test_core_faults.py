"""Faults injected into every device call: counts stay, and the next try works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from harness.fake_device import Bench, FakeLowered, buffer
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import FORMAT_TOSA, Artifact, EventState
from tosavk.core.errors import (
    DeviceLost,
    External,
    Incompatible,
    Indeterminate,
    InvalidArgument,
    ModelError,
    OutOfMemory,
    ResourceLimit,
)
from tosavk.core.events import Event
from tosavk.core.programs import Program
from tosavk.core.queues import Queue

ERRORS: list[BaseException] = [
    OutOfMemory("injected"),
    ResourceLimit("injected"),
    Incompatible("injected"),
    InvalidArgument("injected"),
    External("injected", domain=1, code=-13),
    DeviceLost("injected"),
    MemoryError("injected"),
    RuntimeError("injected"),
    KeyboardInterrupt("injected"),
]


class Scene:
    """A bench with work in every state, and the calls to make on it."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.device = self.bench.device
        self.device.maps = False
        self.request = self.bench.bindings()
        self.used = self.bench.bindings(), self.bench.bindings()
        self.prepared = self.bench.context.prepare(self.bench.program, self.used[0])
        self.event = self.bench.queue.submit(self.bench.program, self.used[1])
        self.made: list[object] = []

    def acts(self) -> dict[str, Callable[[], object]]:
        bench, request = self.bench, self.request
        target = request[0].buffer
        artifact = Artifact(FORMAT_TOSA, (0,) * 12, b"tosa")
        return {
            "create_kit": bench.accelerator.create_context,
            "allocate": lambda: buffer(bench.context),
            "lower": lambda: bench.context.load_program(artifact),
            "load": lambda: bench.context.load_program(FakeLowered()),
            "write": lambda: target.write(0, b"abcd"),
            "read": lambda: target.read(0, 4),
            "record": lambda: bench.queue.submit(bench.program, request),
            "launch": lambda: bench.queue.submit(bench.program, request),
            "prepare": lambda: bench.context.prepare(bench.program, request),
            "prepared": self.prepared.submit,
            "poll": self.event.poll,
            "wait": lambda: self.event.wait(10),
            "retire": lambda: self.event.wait(10),
        }


CALLS = {"prepare": "record", "prepared": "launch"}
ACTS = tuple(Scene().acts())


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("act", ACTS)
def test_fault(act: str, error: BaseException) -> None:
    scene = Scene()
    accelerator = scene.bench.accelerator
    before = (
        accelerator.live_resources(),
        dict(scene.device.live),
        accelerator.direct_binding_admissions,
        accelerator.explicit_transfer_bytes,
    )
    scene.device.fail(CALLS.get(act, act), error)
    lost = isinstance(error, DeviceLost)
    call = scene.acts()[act]
    if lost and act in {"record", "launch", "prepared"}:
        with pytest.raises(Indeterminate) as caught:
            call()
        event = caught.value.event
        assert isinstance(event, Event)
        assert event.poll() is EventState.FAILED
        event.release()
    elif lost and act in {"poll", "wait", "retire"}:
        state = call()
        # Work that was seen to end did end, whatever comes after it.
        expected = EventState.COMPLETE if act == "retire" else EventState.FAILED
        assert state is expected
        assert scene.event.poll() is expected
    elif isinstance(error, MemoryError) and act == "read":
        with pytest.raises(OutOfMemory):
            call()
    else:
        with pytest.raises(type(error)) as raised:
            call()
        assert raised.value is error
    after = (
        accelerator.live_resources(),
        dict(scene.device.live),
        accelerator.direct_binding_admissions,
        accelerator.explicit_transfer_bytes,
    )
    if act in {"record", "launch"}:
        # A recording may stay behind in the slot, for the next time.
        after[1]["recording"] = before[1]["recording"]
    assert after == before
    assert accelerator.is_poisoned == lost
    # No guard was left taken.
    for binding in scene.request:
        assert binding.buffer._guard.state == 0  # pyright: ignore[reportPrivateUsage]
    if lost:
        if act not in {"poll", "wait", "retire"}:
            with pytest.raises(DeviceLost):
                buffer(scene.bench.context)
    else:
        with suppress(Incompatible):  # an interrupted launch must be prepared again
            scene.made.append(scene.acts()[act]())
    accelerator.close()
    assert scene.device.closed
    assert not any(scene.device.live.values())


@pytest.mark.parametrize(
    "call", ["allocation.free", "program.free", "recording.free", "kit.free"]
)
@pytest.mark.parametrize("error", [OutOfMemory("injected"), DeviceLost("injected")])
def test_fault_in_a_free(call: str, error: ModelError) -> None:
    scene = Scene()
    scene.device.instant = True
    bench = scene.bench
    scene.event.wait()
    scene.event.release()
    scene.prepared.release()
    scene.device.fail(call, error)
    failures = 0
    handles: list[Buffer | Program | Queue | Context] = [
        *(b.buffer for b in (*scene.request, *scene.used[0], *scene.used[1])),
        bench.program,
        bench.queue,
        bench.context,
    ]
    for handle in handles:
        try:
            handle.release()
        except type(error):
            failures += 1
        assert handle.is_released, "a failed release still ends the handle"
    assert failures == 1
    bench.accelerator.close()
    assert not any(scene.device.live.values())
