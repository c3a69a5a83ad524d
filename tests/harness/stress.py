"""Submissions in a loop, from several contexts, with lives of random length."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tosavk import testing
from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    USAGE_ALL,
    Artifact,
    Binding,
    BufferDesc,
    BufferRange,
    EventState,
    MemoryDomain,
)
from tosavk.core.errors import Busy, ResourceLimit
from tosavk.core.events import Event
from tosavk.core.gates import Gate
from tosavk.core.prepared import Prepared
from tosavk.core.programs import Program
from tosavk.core.queues import Queue

CONTEXTS = 4
SETS = 6
EVENTS = 24
SAMPLES = 40
ENDED_S = 60.0
STATM = Path("/proc/self/statm")


@dataclass(eq=False, slots=True)
class Set:
    """Buffers for one program, in some domain.

    Attributes:
        fixture: the data.
        program: the program they are for.
        buffers: one for each binding.
        bindings: to whole tensors.
        prepared: a prepared submission of them, or None.
        users: events that were not observed yet.
    """

    fixture: testing.ProgramFixture
    program: Program
    buffers: list[Buffer]
    bindings: list[Binding]
    prepared: Prepared | None = None
    users: int = 0

    def check(self) -> None:
        """Compares the outputs with what is expected, and spoils them."""
        for part, buffer in zip(self.fixture.bindings, self.buffers, strict=True):
            assert buffer.read(0, part.nbytes) == part.result
            if part.expected is not None:
                buffer.write(0, part.initial)


@dataclass(eq=False, slots=True)
class Room:
    """A context with its things."""

    context: Context
    queue: Queue
    programs: dict[int, Program] = field(default_factory=dict[int, Program])
    sets: list[Set] = field(default_factory=list[Set])
    flying: list[tuple[Event, Set]] = field(default_factory=list[tuple[Event, Set]])


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory at some point.

    Attributes:
        submissions: how many there were by then.
        resident: bytes of the process in memory.
    """

    submissions: int
    resident: int


@dataclass(slots=True)
class Result:
    """What a run did.

    Attributes:
        submissions: accepted ones.
        refused: those that were Busy or found no slot, which is expected.
        contexts: contexts made.
        programs: programs loaded.
        buffers: buffers allocated.
        checked: outputs compared.
        dropped: events that died without a release.
        gated: submissions behind gates.
        seconds: how long it took.
        samples: memory over time.
    """

    submissions: int = 0
    refused: int = 0
    contexts: int = 0
    programs: int = 0
    buffers: int = 0
    checked: int = 0
    dropped: int = 0
    gated: int = 0
    seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list[Sample])

    @property
    def growth(self) -> int:
        """Bytes by which the largest later sample exceeds that of the first tenth."""
        tenth = self.submissions / 10
        first = max(s.resident for s in self.samples if s.submissions <= tenth * 1.01)
        return max(s.resident for s in self.samples) - first


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(STATM.read_text(encoding="ascii").split()[1])
    return pages * 4096


class Stress:
    """One run.

    Args:
        accelerator: stays open.
        seed: of all choices.
    """

    def __init__(self, accelerator: Accelerator, seed: int) -> None:
        """Makes the contexts."""
        standard = testing.standard_fixture()
        self._fixtures = (standard.program, *standard.overlapping[:2])
        self._accelerator = accelerator
        self._rng = random.Random(seed)
        self.result = Result()
        self._gate: Gate | None = None
        self._value = 0
        if hasattr(accelerator.device, "create_gate"):
            self._gate = accelerator.create_gate()
        self._rooms = [self._make_room() for _ in range(CONTEXTS)]

    def run(self, submissions: int) -> Result:
        """Goes on until so many submissions have been accepted, then ends all."""
        started = time.perf_counter()
        step = max(1, submissions // SAMPLES)
        due = step
        acts = self._acts()
        while self.result.submissions < submissions:
            self._rng.choices(*acts)[0](self._rng.choice(self._rooms))
            if self.result.submissions >= due:
                self._sample()
                due += step
        while self._rooms:
            self._close_room(self._rooms[0])
        if self._gate is not None:
            self._gate.release()
        self._sample()
        self.result.seconds = time.perf_counter() - started
        return self.result

    def _acts(self) -> tuple[list[Callable[[Room], None]], list[float]]:
        table: list[tuple[Callable[[Room], None], float]] = [
            (self._submit, 50),
            (self._launch, 30),
            (self._observe, 60),
            (self._drop, 3),
            (self._new_set, 3),
            (self._end_set, 3),
            (self._prepare, 2),
            (self._reload, 0.4),
            (self._renew, 0.1),
        ]
        if self._gate is not None:
            table.append((self._submit_after, 4))
        return [act for act, _ in table], [weight for _, weight in table]

    # Submitting ---------------------------------------------------------------------

    def _submit(self, room: Room) -> None:
        chosen = self._pick(room)
        self._try(
            room, chosen, lambda: room.queue.submit(chosen.program, chosen.bindings)
        )

    def _launch(self, room: Room) -> None:
        chosen = self._pick(room)
        prepared = chosen.prepared
        if prepared is not None:
            self._try(room, chosen, prepared.submit)

    def _submit_after(self, room: Room) -> None:
        gate = self._gate
        assert gate is not None
        chosen = self._pick(room)
        self._value += 1
        signal = gate.signal()

        def submit() -> Event:
            return room.queue.submit_after(
                chosen.program, chosen.bindings, gate, self._value
            )

        self._try(room, chosen, submit)
        signal.raise_to(self._value)
        self.result.gated += 1

    def _try(self, room: Room, chosen: Set, submit: Callable[[], Event]) -> None:
        try:
            event = submit()
        except (Busy, ResourceLimit):
            self.result.refused += 1
            self._observe(room)
            return
        self.result.submissions += 1
        chosen.users += 1
        room.flying.append((event, chosen))
        if len(room.flying) > EVENTS:
            self._observe(room)

    def _observe(self, room: Room) -> None:
        """Ends a random event, most often one that has ended by itself."""
        if not room.flying:
            return
        event, chosen = room.flying.pop(self._rng.randrange(len(room.flying)))
        if event.poll() is EventState.PENDING:
            assert event.wait(ENDED_S) is EventState.COMPLETE
        chosen.users -= 1
        event.release()
        if self._rng.random() < 0.2 and not chosen.users:
            chosen.check()
            self.result.checked += 1

    def _drop(self, room: Room) -> None:
        """Lets an event die without a release."""
        if room.flying:
            _, chosen = room.flying.pop(self._rng.randrange(len(room.flying)))
            chosen.users -= 1
            self.result.dropped += 1

    # Making and ending --------------------------------------------------------------

    def _pick(self, room: Room) -> Set:
        return self._rng.choice(room.sets)

    def _new_set(self, room: Room) -> None:
        if len(room.sets) >= SETS:
            return
        number = self._rng.randrange(len(self._fixtures))
        fixture = self._fixtures[number]
        program = room.programs.get(number)
        if program is None:
            program = self._load(room, fixture.artifact)
            room.programs[number] = program
        domain = self._rng.choice(self._accelerator.info.domains)
        buffers = [self._allocate(room, part, domain) for part in fixture.bindings]
        bindings = [
            Binding(part.slot, buffer, BufferRange(0, part.nbytes), part.access)
            for part, buffer in zip(fixture.bindings, buffers, strict=True)
        ]
        room.sets.append(Set(fixture, program, buffers, bindings))

    def _allocate(
        self, room: Room, part: testing.BindingFixture, domain: MemoryDomain
    ) -> Buffer:
        desc = BufferDesc(part.nbytes, USAGE_ALL, domain)
        buffer = room.context.allocate_buffer(desc)
        buffer.write(0, part.initial)
        self.result.buffers += 1
        return buffer

    def _load(self, room: Room, artifact: Artifact) -> Program:
        self.result.programs += 1
        return room.context.load_program(artifact)

    def _end_set(self, room: Room) -> None:
        if len(room.sets) < 2:
            return
        chosen = self._pick(room)
        if chosen.users:
            return
        room.sets.remove(chosen)
        if chosen.prepared is not None:
            chosen.prepared.release()
        if self._rng.random() < 0.5:
            for buffer in chosen.buffers:
                buffer.release()

    def _prepare(self, room: Room) -> None:
        chosen = self._pick(room)
        if chosen.prepared is None:
            try:
                chosen.prepared = room.context.prepare(chosen.program, chosen.bindings)
            except ResourceLimit:
                self.result.refused += 1
        elif not chosen.users:
            chosen.prepared.release()
            chosen.prepared = None

    def _reload(self, room: Room) -> None:
        """Forgets a program; new sets load it again, old ones keep it."""
        if room.programs:
            room.programs.pop(self._rng.choice(sorted(room.programs)))

    def _renew(self, room: Room) -> None:
        """Ends a context with whatever is in it, and makes another."""
        self._close_room(room)
        self._rooms.append(self._make_room())

    def _make_room(self) -> Room:
        context = self._accelerator.create_context()
        room = Room(context, context.create_queue())
        self._new_set(room)
        self.result.contexts += 1
        return room

    def _close_room(self, room: Room) -> None:
        self._rooms.remove(room)
        if self._rng.random() < 0.5:
            while room.flying:
                self._observe(room)
        room.context.close()

    def _sample(self) -> None:
        gc.collect()
        self.result.samples.append(Sample(self.result.submissions, resident()))
