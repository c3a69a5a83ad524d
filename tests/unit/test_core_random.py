"""Random sequences of operations against a simple oracle.

The oracle knows the rules as docs/accelerator.md states them, in their plainest form:
sets of users instead of counters, no ring, no caches. After every operation the outcome
and the counts must be those of the oracle.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from harness.fake_device import (
    Bench,
    FakeDevice,
    FakeLowered,
    FakeRecording,
    bindings,
    buffer,
)
from tosavk.core.buffers import Buffer
from tosavk.core.descriptors import DeviceLimits, EventState
from tosavk.core.errors import (
    Busy,
    DeviceLost,
    Error,
    Incompatible,
    Released,
    ResourceLimit,
)
from tosavk.core.events import Event
from tosavk.core.prepared import Prepared
from tosavk.core.programs import Program
from tosavk.core.shared import LiveResources

SEQUENCES = 10_000
LENGTH = 24
LIMITS = DeviceLimits(
    max_buffer_bytes=64,
    max_buffers_per_context=6,
    max_programs_per_context=2,
    max_events_per_context=3,
    max_queues_per_context=1,
)


@dataclass(eq=False)
class Thing:
    """A buffer or program as the oracle sees it."""

    handle: Buffer | Program
    live: bool = True
    readers: set[Work] = field(default_factory=set["Work"])
    writers: set[Work] = field(default_factory=set["Work"])
    named: set[Plan] = field(default_factory=set["Plan"])

    @property
    def busy(self) -> bool:
        return bool(self.readers or self.writers)


@dataclass(eq=False)
class Plan:
    """A prepared submission."""

    handle: Prepared
    reads: tuple[Thing, ...]
    writes: tuple[Thing, ...]
    live: bool = True
    flying: Work | None = None


@dataclass(eq=False)
class Work:
    """A submission and its event."""

    handle: Event
    reads: tuple[Thing, ...]
    writes: tuple[Thing, ...]
    recording: FakeRecording | None
    plan: Plan | None
    ended: bool = False
    observed: bool = False
    live: bool = True

    def observe(self) -> None:
        if self.ended and not self.observed:
            self.observed = True
            for thing in self.reads:
                thing.readers.discard(self)
            for thing in self.writes:
                thing.writers.discard(self)
            if self.plan is not None:
                self.plan.flying = None


class Model:
    """The real thing and the oracle side by side."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.device = FakeDevice(limits=LIMITS)
        self.bench = Bench(self.device)
        self.programs = [Thing(self.bench.program)]
        self.buffers: list[Thing] = []
        self.works: list[Work] = []
        self.plans: list[Plan] = []
        self.lost = False
        self.log: list[str] = []

    # What the oracle expects of the next operation: an error type, or None.

    def live(self, things: list[Thing]) -> int:
        return sum(thing.live for thing in things)

    def slots(self) -> int:
        events = sum(w.live and w.plan is None for w in self.works)
        return events + sum(plan.live for plan in self.plans)

    def pick(self, things: list[Thing]) -> Thing | None:
        # Mostly live ones, so that sequences get somewhere.
        live = [thing for thing in things if thing.live]
        pool = live if live and self.random.random() < 0.95 else things
        return self.random.choice(pool) if pool else None

    def expect(
        self, name: str, want: type[Error] | None, act: Callable[[], object]
    ) -> object:
        self.log.append(f"{name} -> {want.__name__ if want else 'ok'}")
        if want is None:
            return act()
        with pytest.raises(want) as caught:
            act()
        kind = type(caught.value)
        # Through its frames the error would keep the handles alive.
        del caught
        assert kind is want
        return None

    def allocate(self) -> None:
        want: type[Error] | None = None
        if self.lost:
            want = DeviceLost
        elif self.live(self.buffers) >= LIMITS.max_buffers_per_context:
            want = ResourceLimit
        made = self.expect("allocate", want, lambda: buffer(self.bench.context))
        if isinstance(made, Buffer):
            self.buffers.append(Thing(made))

    def load(self) -> None:
        want: type[Error] | None = None
        if self.lost:
            want = DeviceLost
        elif self.live(self.programs) >= LIMITS.max_programs_per_context:
            want = ResourceLimit
        made = self.expect(
            "load", want, lambda: self.bench.context.load_program(FakeLowered())
        )
        if isinstance(made, Program):
            self.programs.append(Thing(made))

    def release_thing(self) -> None:
        thing = self.pick(self.random.choice([self.buffers, self.programs]))
        if thing is None:
            return
        want: type[Error] | None = None
        if not thing.live:
            want = Released
        elif thing.busy or any(plan.live for plan in thing.named):
            want = Busy
        self.expect("release thing", want, thing.handle.release)
        if want is None:
            thing.live = False

    def transfer(self) -> None:
        thing = self.pick(self.buffers)
        if thing is None:
            return
        handle = thing.handle
        assert isinstance(handle, Buffer)
        want: type[Error] | None = None
        if not thing.live:
            want = Released
        elif thing.busy:
            want = Busy
        elif self.lost:
            want = DeviceLost
        if self.random.random() < 0.5:
            self.expect("write", want, lambda: handle.write(0, b"abcd"))
        else:
            self.expect("read", want, lambda: handle.read(0, 4))

    def _request(self) -> tuple[Thing, list[Thing]] | None:
        program = self.pick(self.programs)
        chosen = [self.pick(self.buffers) for _ in range(3)]
        things = [thing for thing in chosen if thing is not None]
        return (program, things) if program and len(things) == 3 else None

    def _unfit(self, program: Thing, things: list[Thing]) -> type[Error] | None:
        if not program.live:
            return Released
        if self.lost:
            return DeviceLost
        if not all(thing.live for thing in things):
            return Released
        if things[2] in things[:2]:
            return Incompatible
        if self.slots() >= LIMITS.max_events_per_context:
            return ResourceLimit
        return None

    def _conflict(self, reads: tuple[Thing, ...], writes: tuple[Thing, ...]) -> bool:
        return any(t.writers for t in reads) or any(t.busy for t in writes)

    def _launched(
        self,
        event: object,
        reads: tuple[Thing, ...],
        writes: tuple[Thing, ...],
        plan: Plan | None,
    ) -> None:
        if not isinstance(event, Event):
            return
        work = Work(event, reads, writes, self.device.running[-1], plan)
        self.works.append(work)
        for thing in reads:
            thing.readers.add(work)
        for thing in writes:
            thing.writers.add(work)
        if plan is not None:
            plan.flying = work

    def submit(self) -> None:
        request = self._request()
        if request is None:
            return
        program, things = request
        reads, writes = (program, *things[:2]), (things[2],)
        want = self._unfit(program, things)
        if want is None and self._conflict(reads, writes):
            want = Busy
        handle = program.handle
        assert isinstance(handle, Program)
        bound = bindings(handle, [_buffer(thing) for thing in things])
        self.random.shuffle(bound)
        event = self.expect(
            "submit", want, lambda: self.bench.queue.submit(handle, bound)
        )
        self._launched(event, reads, writes, None)

    def prepare(self) -> None:
        request = self._request()
        if request is None:
            return
        program, things = request
        handle = program.handle
        assert isinstance(handle, Program)
        bound = bindings(handle, [_buffer(thing) for thing in things])
        made = self.expect(
            "prepare",
            self._unfit(program, things),
            lambda: self.bench.context.prepare(handle, bound),
        )
        if isinstance(made, Prepared):
            plan = Plan(made, (program, *things[:2]), (things[2],))
            self.plans.append(plan)
            for thing in (*plan.reads, *plan.writes):
                thing.named.add(plan)

    def launch(self) -> None:
        if not self.plans:
            return
        plan = self.random.choice(self.plans)
        want: type[Error] | None = None
        if not plan.live:
            want = Released
        elif self.lost:
            want = DeviceLost
        elif plan.flying is not None or self._conflict(plan.reads, plan.writes):
            want = Busy
        event = self.expect("launch", want, plan.handle.submit)
        self._launched(event, plan.reads, plan.writes, plan)

    def release_plan(self) -> None:
        if not self.plans:
            return
        plan = self.random.choice(self.plans)
        want: type[Error] | None = None
        if not plan.live:
            want = Released
        elif plan.flying is not None:
            want = Busy
        self.expect("release prepared", want, plan.handle.release)
        if want is None:
            plan.live = False

    def finish(self) -> None:
        if self.device.running:
            recording = self.random.choice(self.device.running)
            recording.finish()
            self.log.append("work ends")
            for work in self.works:
                if work.recording is recording and not work.observed:
                    work.ended = True

    def poll(self) -> None:
        if not self.works:
            return
        work = self.random.choice(self.works)
        state = self.expect("poll", None if work.live else Released, work.handle.poll)
        if work.live:
            work.observe()
            assert state is (
                EventState.COMPLETE if work.observed else EventState.PENDING
            )

    def release_event(self) -> None:
        if not self.works:
            return
        work = self.random.choice(self.works)
        want: type[Error] | None = None
        if not work.live:
            want = Released
        elif not work.ended:
            want = Busy
        self.expect("release event", want, work.handle.release)
        if want is None:
            work.observe()
            work.live = False

    def drop_event(self) -> None:
        live = [w for w in self.works if w.live]
        if live and self.random.random() < 0.3:
            work = self.random.choice(live)
            self.works.remove(work)
            self.log.append("drop event")
            # The finaliser waits for the end and observes it; on a lost device it
            # waits for all work.
            for other in self.works if self.lost and not work.ended else ():
                other.ended = True
            work.ended = True
            work.observe()
            del work.handle

    def lose(self) -> None:
        if self.random.random() < 0.05:
            self.log.append("the device is lost")
            self.device.poisoned = True
            self.lost = True

    def check(self) -> None:
        assert self.bench.accelerator.live_resources() == LiveResources(
            contexts=1,
            buffers=self.live(self.buffers),
            programs=self.live(self.programs),
            queues=1,
            events=self.slots(),
        )
        assert self.device.live["allocation"] == self.live(self.buffers)
        assert self.device.live["program"] == self.live(self.programs)
        assert self.device.live["recording"] <= LIMITS.max_events_per_context

    def run(self) -> None:
        steps = (
            *[self.allocate] * 4,
            self.load,
            self.release_thing,
            *[self.transfer] * 2,
            *[self.submit] * 4,
            self.prepare,
            *[self.launch] * 2,
            self.release_plan,
            *[self.finish] * 3,
            *[self.poll] * 2,
            *[self.release_event] * 2,
            self.drop_event,
            self.lose,
        )
        for _ in range(3):
            self.allocate()
        for _ in range(LENGTH):
            self.random.choice(steps)()
            self.check()
        self.bench.accelerator.close()
        assert self.device.closed
        assert not any(self.device.live.values())


def _buffer(thing: Thing) -> Buffer:
    assert isinstance(thing.handle, Buffer)
    return thing.handle


def test_random_sequences() -> None:
    seen: dict[str, int] = {}
    for seed in range(SEQUENCES):
        model = Model(seed)
        try:
            model.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: " + "; ".join(model.log))
            raise
        for line in model.log:
            seen[line] = seen.get(line, 0) + 1
    # The sequences reach every outcome that the oracle knows.
    missing = {
        f"{act} -> {outcome}"
        for act, outcomes in {
            "allocate": "ok ResourceLimit DeviceLost",
            "load": "ok ResourceLimit DeviceLost",
            "release thing": "ok Released Busy",
            "write": "ok Released Busy DeviceLost",
            "read": "ok Released Busy DeviceLost",
            "submit": "ok Released DeviceLost Incompatible ResourceLimit Busy",
            "prepare": "ok Released DeviceLost Incompatible ResourceLimit",
            "launch": "ok Released DeviceLost Busy",
            "release prepared": "ok Released Busy",
            "poll": "ok Released",
            "release event": "ok Released Busy",
        }.items()
        for outcome in outcomes.split()
    } - seen.keys()
    assert not missing
