"""Order of checks in submit, prepare and launches (docs/accelerator.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.fake_device import SLOT_BYTES, Bench, FakeLowered, buffer
from harness.violations import (
    POISONED,
    Spec,
    Violation,
    World,
    fail,
    ids,
    pairs,
)
from tosavk.core.descriptors import (
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    BufferUsage,
    Timeout,
)
from tosavk.core.errors import (
    Busy,
    DeadlineExpired,
    External,
    Incompatible,
    InvalidArgument,
    OutOfBounds,
    OutOfMemory,
    PermissionDenied,
    Released,
    ResourceLimit,
)
from tosavk.core.events import Event
from tosavk.core.prepared import Prepared

# ---- submit --------------------------------------------------------------------------


def _foreign(world: World) -> None:
    if world.specs:
        other = world.bench.accelerator.create_context()
        world.keep.append(other)
        world.specs[-1].context = other


def _set(**values: object) -> Callable[[World], object]:
    def apply(world: World) -> None:
        for name, value in values.items():
            for spec in world.specs[-1:]:
                setattr(spec, name, value)

    return apply


def _missing(world: World) -> None:
    del world.specs[1:2]


def _alias(world: World) -> None:
    shared = buffer(world.bench.context, 64)
    world.keep.append(shared)
    for spec in world.specs[::2]:
        spec.shared = shared


SUBMIT = [
    Violation(
        "queue", Released, "Queue", lambda w: w.late.append(w.bench.queue.release)
    ),
    Violation(
        "program",
        Released,
        "Program",
        lambda w: w.late.append(lambda: w.bench.program.end()),
    ),
    POISONED,
    Violation(
        "timeout", DeadlineExpired, "1 ns", lambda w: setattr(w, "timeout", Timeout(1))
    ),
    Violation(
        "none", ResourceLimit, "at least one", lambda w: setattr(w, "empty", True)
    ),
    Violation(
        "many",
        ResourceLimit,
        "max_bindings_per_submission",
        lambda w: w.specs.extend(Spec(0, AccessMode.READ) for _ in range(2)),
    ),
    Violation(
        "program context",
        InvalidArgument,
        "Program.*another context",
        lambda w: setattr(w, "foreign_program", True),
    ),
    Violation("buffer context", InvalidArgument, "Buffer.*another context", _foreign),
    Violation(
        "usage", PermissionDenied, "usage", _set(usage=BufferUsage.TRANSFER_SOURCE)
    ),
    Violation("bounds", OutOfBounds, "leave", _set(offset=256)),
    Violation("unknown", Incompatible, "slot 9 is unknown", _set(slot=9)),
    Violation("twice", InvalidArgument, "bound twice", _set(slot=0)),
    Violation("access", Incompatible, "takes WRITE", _set(access=AccessMode.READ)),
    Violation("length", Incompatible, "exactly 16 bytes", _set(nbytes=12)),
    Violation("offset", Incompatible, "multiple of 16", _set(offset=4)),
    Violation("count", Incompatible, "no binding for slot 1", _missing),
    Violation("alias", Incompatible, "and written", _alias),
    Violation(
        "ring", ResourceLimit, "submission slots", lambda w: setattr(w, "exhaust", True)
    ),
    Violation("guards", Busy, "unobserved", lambda w: setattr(w, "busy_buffer", True)),
    Violation(
        "record",
        OutOfMemory,
        "record",
        fail("record", OutOfMemory("record")),
    ),
    Violation("launch", External, "raw", fail("launch")),
]

# Pairs that cannot be violated together, or where one hides the other's set-up.
SUBMIT_IMPOSSIBLE = {
    frozenset(pair)
    for pair in (
        ("unknown", "twice"),
        ("none", "many"),
        ("bounds", "offset"),
        ("usage", "alias"),
        ("buffer context", "alias"),
        ("many", "count"),
        ("program", "program context"),
        ("program", "guards"),
        ("alias", "guards"),
        ("buffer context", "guards"),
        ("usage", "guards"),
        ("access", "alias"),
        ("twice", "alias"),
    )
}


def _request(world: World) -> list[Binding]:
    bench = world.bench
    result: list[Binding] = []
    for spec in world.specs:
        target = spec.shared or (spec.context or bench.context).allocate_buffer(
            BufferDesc(64, spec.usage)
        )
        result.append(
            Binding(
                spec.slot,
                target,
                BufferRange(spec.offset, spec.nbytes),
                spec.access,
            )
        )
    return result


def _busy_and_full(world: World, request: list[Binding]) -> None:
    bench = world.bench
    if world.busy_buffer and request:
        mine = bench.bindings()
        mine[2] = Binding(
            2, request[-1].buffer, BufferRange(0, SLOT_BYTES), AccessMode.WRITE
        )
        world.keep.append(bench.queue.submit(bench.program, mine))
    while world.exhaust:
        try:
            world.keep.append(bench.context.prepare(bench.program, bench.bindings()))
        except ResourceLimit:
            break


@pytest.mark.parametrize(
    "violated", pairs(SUBMIT, impossible=SUBMIT_IMPOSSIBLE), ids=ids
)
def test_submit(violated: tuple[Violation, ...]) -> None:
    state = World()
    for violation in violated:
        violation.apply(state)
    bench = state.bench
    request = _request(state)
    _busy_and_full(state, request)
    if state.empty:
        request = []
    program = bench.program
    if state.foreign_program:
        other = bench.accelerator.create_context()
        program = other.load_program(FakeLowered())
        state.keep.append(other)
    for late in state.late:
        late()
    before = bench.accelerator.live_resources()
    admitted = bench.accelerator.direct_binding_admissions
    with pytest.raises(violated[0].error, match=violated[0].match) as caught:
        state.keep.append(bench.queue.submit(program, request, timeout=state.timeout))
    assert type(caught.value) is violated[0].error
    assert bench.accelerator.live_resources() == before
    assert bench.accelerator.direct_binding_admissions == admitted


# `prepare` makes the same checks, but for queue, timeout, guards and launch.
PREPARE = [v for v in SUBMIT if v.name not in {"queue", "timeout", "guards", "launch"}]


@pytest.mark.parametrize(
    "violated", pairs(PREPARE, impossible=SUBMIT_IMPOSSIBLE), ids=ids
)
def test_prepare(violated: tuple[Violation, ...]) -> None:
    state = World()
    for violation in violated:
        violation.apply(state)
    bench = state.bench
    request = _request(state)
    _busy_and_full(state, request)
    if state.empty:
        request = []
    program = bench.program
    if state.foreign_program:
        other = bench.accelerator.create_context()
        program = other.load_program(FakeLowered())
        state.keep.append(other)
    for late in state.late:
        late()
    before = bench.accelerator.live_resources()
    with pytest.raises(violated[0].error, match=violated[0].match) as caught:
        bench.context.prepare(program, request)
    assert type(caught.value) is violated[0].error
    assert bench.accelerator.live_resources() == before


def _prepared(world: World) -> Prepared:
    first = world.keep[0]
    assert isinstance(first, Prepared)
    return first


PREPARED = [
    Violation(
        "released",
        Released,
        "Prepared",
        lambda w: w.late.append(lambda: _prepared(w).end()),
    ),
    POISONED,
    Violation("flying", Busy, "last launch", lambda w: setattr(w, "exhaust", True)),
    Violation("guards", Busy, "slot 2", lambda w: setattr(w, "busy_buffer", True)),
    Violation("launch", External, "raw", fail("launch")),
]


@pytest.mark.parametrize(
    "violated",
    # While its own launch flies, nobody else can hold its guards.
    pairs(PREPARED, impossible={frozenset({"flying", "guards"})}),
    ids=ids,
)
def test_prepared_submit(violated: tuple[Violation, ...]) -> None:
    state = World()
    bench = state.bench
    request = bench.bindings()
    prepared = bench.context.prepare(bench.program, request)
    state.keep.append(prepared)
    for violation in violated:
        violation.apply(state)
    if state.exhaust:
        state.keep.append(prepared.submit())
    if state.busy_buffer:
        _busy_and_full(World(bench=bench, busy_buffer=True, keep=state.keep), request)
    for late in state.late:
        late()
    admitted = bench.accelerator.direct_binding_admissions
    with pytest.raises(violated[0].error, match=violated[0].match) as caught:
        state.keep.append(prepared.submit())
    assert type(caught.value) is violated[0].error
    assert bench.accelerator.direct_binding_admissions == admitted


def test_bindings_are_checked_in_list_order() -> None:
    bench = Bench()
    other = bench.accelerator.create_context()
    request = bench.bindings()
    wrong_length = Binding(0, request[0].buffer, BufferRange(0, 12), AccessMode.READ)
    foreign = Binding(2, buffer(other), BufferRange(0, SLOT_BYTES), AccessMode.WRITE)
    with pytest.raises(Incompatible, match="exactly 16 bytes"):
        bench.queue.submit(bench.program, [wrong_length, foreign])
    with pytest.raises(InvalidArgument, match="another context"):
        bench.queue.submit(bench.program, [foreign, wrong_length])


def test_read_write_access_never_fits() -> None:
    bench = Bench()
    for slot in range(3):
        request = bench.bindings()
        request[slot] = Binding(
            slot,
            request[slot].buffer,
            BufferRange(0, SLOT_BYTES),
            AccessMode.READ_WRITE,
        )
        with pytest.raises(Incompatible, match="READ_WRITE"):
            bench.queue.submit(bench.program, request)


def test_list_order_has_no_meaning() -> None:
    bench = Bench()
    request = bench.bindings()
    event: Event = bench.queue.submit(bench.program, reversed(request))
    recording = bench.device.running[0]
    assert [slot.allocation for slot in recording.bound] == [
        binding.buffer._allocation  # pyright: ignore[reportPrivateUsage]
        for binding in request
    ]
    bench.device.finish_all()
    event.release()


def test_what_is_no_binding_is_refused() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument, match="not a binding"):
        bench.queue.submit(bench.program, ["x", "y", "z"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="not a program"):
        bench.queue.submit("program", bench.bindings())  # type: ignore[arg-type]


def test_handles_of_another_accelerator_are_refused() -> None:
    mine, other = Bench(), Bench()
    with pytest.raises(InvalidArgument, match="another context"):
        mine.queue.submit(other.program, mine.bindings())
    with pytest.raises(InvalidArgument, match="another context"):
        mine.queue.submit(mine.program, other.bindings())
    with pytest.raises(InvalidArgument, match="another context"):
        mine.context.prepare(other.program, mine.bindings())
