"""Every method's order of checks: of two violated conditions the earlier one is told.

For each method the conditions are listed in the documented order; every pair of them
is violated at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

import pytest

from harness.fake_device import SLOT_BYTES, Bench, FakeDevice, FakeLowered, buffer
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    FORMAT_TOSA,
    RESIDENT_UNBOUNDED,
    USAGE_ALL,
    AccessMode,
    Artifact,
    Binding,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    BufferRange,
    BufferUsage,
    Capabilities,
    ContextDesc,
    ContextFlags,
    DeviceLimits,
    MemoryDomain,
    QueueDesc,
    QueueFlags,
    Timeout,
)
from tosavk.core.errors import (
    Busy,
    DeadlineExpired,
    DeviceLost,
    External,
    Incompatible,
    InvalidArgument,
    ModelError,
    OutOfBounds,
    OutOfMemory,
    PermissionDenied,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.events import Event
from tosavk.core.prepared import Prepared

LIMITS = DeviceLimits(
    max_buffer_bytes=1 << 16,
    max_contexts=3,
    max_buffers_per_context=80,
    max_programs_per_context=3,
    max_queues_per_context=2,
    max_events_per_context=4,
    max_bindings_per_submission=4,
)


@dataclass
class Spec:
    """A binding before it exists."""

    slot: int
    access: AccessMode
    usage: BufferUsage = USAGE_ALL
    offset: int = 0
    nbytes: int = SLOT_BYTES
    context: Context | None = None
    shared: Buffer | None = None


@dataclass
class World:
    """Everything that a call depends on; violations change it."""

    bench: Bench = field(
        default_factory=lambda: Bench(
            FakeDevice(
                limits=LIMITS,
                capabilities=Capabilities.HOST_VISIBLE_MEMORY
                | Capabilities.DEVICE_LOCAL_MEMORY,
            )
        )
    )
    nbytes: int = 64
    alignment: int = 4
    domain: MemoryDomain = MemoryDomain.HOST
    usage: BufferUsage = USAGE_ALL
    payload: object = b"tosa"
    format: int = FORMAT_TOSA
    resident: int = RESIDENT_UNBOUNDED
    lowered: FakeLowered | None = None
    flags: int = 0
    offset: int = 0
    length: int = 16
    timeout: Timeout | None = None
    specs: list[Spec] = field(
        default_factory=lambda: [
            Spec(0, AccessMode.READ),
            Spec(1, AccessMode.READ),
            Spec(2, AccessMode.WRITE),
        ]
    )
    foreign_program: bool = False
    busy_buffer: bool = False
    exhaust: bool = False
    empty: bool = False
    keep: list[object] = field(default_factory=list[object])
    late: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def poison(self) -> None:
        """Loses the device just before the call under test."""
        self.late.append(lambda: setattr(self.bench.device, "poisoned", True))


@dataclass(frozen=True)
class Violation:
    """A condition to violate, and what the call must then raise."""

    name: str
    error: type[ModelError]
    match: str
    apply: Callable[[World], object]

    def __str__(self) -> str:
        return self.name


def pairs(
    order: list[Violation], *, impossible: set[frozenset[str]] | None = None
) -> list[tuple[Violation, ...]]:
    """Each violation alone, and every pair in order."""
    skip = impossible or set()
    singles = [(v,) for v in order]
    return [*singles, *(p for p in combinations(order, 2) if names(p) not in skip)]


def names(pair: tuple[Violation, ...]) -> frozenset[str]:
    return frozenset(v.name for v in pair)


def ids(pair: tuple[Violation, ...]) -> str:
    return "+".join(map(str, pair))


def check(
    violated: tuple[Violation, ...], call: Callable[[World], object], **world: object
) -> None:
    state = World(**world)  # type: ignore[arg-type]
    for violation in reversed(violated):
        violation.apply(state)
    for late in state.late:
        late()
    before = state.bench.accelerator.live_resources()
    first = violated[0]
    with pytest.raises(first.error, match=first.match) as caught:
        call(state)
    assert type(caught.value) is first.error
    assert state.bench.accelerator.live_resources() == before


POISONED = Violation("poisoned", DeviceLost, "lost", World.poison)


def fail(call: str, error: ModelError | None = None) -> Callable[[World], None]:
    """Makes a device call fail just before the call under test."""
    failure = error or External("raw -1000", domain=0x56554C4B, code=-1000)
    return lambda w: w.late.append(lambda: w.bench.device.fail(call, failure))


# ---- create_context ------------------------------------------------------------------

CREATE_CONTEXT = [
    Violation(
        "closed", Released, "close", lambda w: w.late.append(w.bench.accelerator.close)
    ),
    Violation("flag", Unsupported, "flags", lambda w: setattr(w, "flags", 1)),
    POISONED,
    Violation(
        "cap",
        ResourceLimit,
        "max_contexts",
        lambda w: w.keep.extend(w.bench.accelerator.create_context() for _ in range(2)),
    ),
    Violation(
        "ids",
        ResourceLimit,
        "numbers",
        lambda w: w.late.append(
            lambda: setattr(w.bench.accelerator._shared, "next_id", 2**64)  # pyright: ignore[reportPrivateUsage]
        ),
    ),
    Violation("device", External, "raw", fail("create_kit")),
]


@pytest.mark.parametrize("violated", pairs(CREATE_CONTEXT), ids=ids)
def test_create_context(violated: tuple[Violation, ...]) -> None:
    # Closing ends the contexts, so the counts are taken after it.
    check(
        violated,
        lambda w: w.bench.accelerator.create_context(
            ContextDesc(ContextFlags(w.flags))
        ),
    )


# ---- allocate_buffer -----------------------------------------------------------------

ALLOCATE = [
    Violation(
        "released", Released, "Context", lambda w: w.late.append(w.bench.context.close)
    ),
    Violation(
        "size",
        ResourceLimit,
        "max_buffer_bytes",
        lambda w: setattr(w, "nbytes", 1 << 17),
    ),
    Violation(
        "domain",
        Unsupported,
        "SHARED",
        lambda w: setattr(w, "domain", MemoryDomain.SHARED),
    ),
    POISONED,
    Violation(
        "cap",
        ResourceLimit,
        "max_buffers_per_context",
        lambda w: w.keep.extend(buffer(w.bench.context) for _ in range(80)),
    ),
    Violation("device", External, "raw", fail("allocate")),
    Violation(
        "aligned",
        ResourceLimit,
        "aligned to 2 bytes",
        lambda w: w.late.append(
            lambda: setattr(
                w.bench.device, "next_info", BufferInfo(1 << 20, 2, BufferProperties(7))
            )
        ),
    ),
    Violation(
        "honesty",
        Incompatible,
        "allocated 1 of",
        lambda w: w.late.append(
            lambda: setattr(
                w.bench.device,
                "next_info",
                w.bench.device.next_info or BufferInfo(1, 256, BufferProperties(7)),
            )
        ),
    ),
]


@pytest.mark.parametrize("violated", pairs(ALLOCATE), ids=ids)
def test_allocate_buffer(violated: tuple[Violation, ...]) -> None:
    check(
        violated,
        lambda w: w.bench.context.allocate_buffer(
            BufferDesc(w.nbytes, w.usage, domain=w.domain, alignment=w.alignment)
        ),
    )


@pytest.mark.parametrize(
    "info",
    [
        BufferInfo(1 << 20, 2, BufferProperties(7)),
        BufferInfo(1, 256, BufferProperties(7)),
    ],
)
def test_refused_allocation_is_freed(info: BufferInfo) -> None:
    bench = Bench()
    bench.device.next_info = info
    with pytest.raises(ModelError):
        buffer(bench.context)
    assert bench.device.live["allocation"] == 0


# ---- load_program --------------------------------------------------------------------


class LengthOnly:
    """A source that knows its length but cannot be read."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def read_at(self, offset: int, out: memoryview) -> None:
        raise OutOfBounds("this source cannot be read")


def _huge(world: World) -> None:
    world.payload = LengthOnly((256 << 20) + 1)


def _unreadable(world: World) -> None:
    world.payload = (
        world.payload if isinstance(world.payload, LengthOnly) else LengthOnly(8)
    )


LOAD_ARTIFACT = [
    Violation(
        "released", Released, "Context", lambda w: w.late.append(w.bench.context.close)
    ),
    Violation("size", ResourceLimit, "max_artifact_bytes", _huge),
    Violation(
        "resident",
        ResourceLimit,
        "resident_bytes",
        lambda w: setattr(w, "resident", 2**64 - 2),
    ),
    POISONED,
    Violation(
        "cap",
        ResourceLimit,
        "max_programs_per_context",
        lambda w: w.keep.extend(
            w.bench.context.load_program(FakeLowered()) for _ in range(2)
        ),
    ),
    Violation("gather", OutOfBounds, "cannot be read", _unreadable),
    Violation("format", Unsupported, "format", lambda w: setattr(w, "format", 0x1234)),
    Violation("lowering", External, "raw", fail("lower")),
    Violation(
        "device",
        OutOfMemory,
        "load",
        fail("load", OutOfMemory("load")),
    ),
]


@pytest.mark.parametrize(
    "violated",
    pairs(LOAD_ARTIFACT),
    ids=ids,
)
def test_load_artifact(violated: tuple[Violation, ...]) -> None:
    check(
        violated,
        lambda w: w.bench.context.load_program(
            Artifact(w.format, (0,) * 12, w.payload, w.resident)  # type: ignore[arg-type]
        ),
    )


LOAD_LOWERED = [
    LOAD_ARTIFACT[0],
    POISONED,
    LOAD_ARTIFACT[4],
    Violation(
        "slots",
        ResourceLimit,
        "max_bindings_per_submission",
        lambda w: setattr(w, "lowered", FakeLowered(4, 1)),
    ),
    LOAD_ARTIFACT[8],
]


@pytest.mark.parametrize("violated", pairs(LOAD_LOWERED), ids=ids)
def test_load_lowered(violated: tuple[Violation, ...]) -> None:
    check(violated, lambda w: w.bench.context.load_program(w.lowered or FakeLowered()))


# ---- create_queue --------------------------------------------------------------------

CREATE_QUEUE = [
    Violation(
        "released", Released, "Context", lambda w: w.late.append(w.bench.context.close)
    ),
    Violation("flag", Unsupported, "flags", lambda w: setattr(w, "flags", 1)),
    POISONED,
    Violation(
        "cap",
        ResourceLimit,
        "max_queues_per_context",
        lambda w: w.keep.append(w.bench.context.create_queue()),
    ),
]


@pytest.mark.parametrize("violated", pairs(CREATE_QUEUE), ids=ids)
def test_create_queue(violated: tuple[Violation, ...]) -> None:
    check(
        violated, lambda w: w.bench.context.create_queue(QueueDesc(QueueFlags(w.flags)))
    )


# ---- transfers -----------------------------------------------------------------------


def _transfer_order(call: str) -> list[Violation]:
    return [
        Violation(
            "released", Released, "Buffer", lambda w: setattr(w, "exhaust", True)
        ),
        Violation(
            "usage",
            PermissionDenied,
            "TRANSFER_",
            lambda w: setattr(w, "usage", BufferUsage.MUTABLE_STATE),
        ),
        Violation(
            "busy", Busy, "unobserved", lambda w: setattr(w, "busy_buffer", True)
        ),
        POISONED,
        Violation(
            "empty", InvalidArgument, "at least one", lambda w: setattr(w, "length", 0)
        ),
        Violation("bounds", OutOfBounds, "leave", lambda w: setattr(w, "offset", 65)),
        Violation("device", External, "raw", fail(call)),
    ]


def _transfer(
    violated: tuple[Violation, ...], act: Callable[[Buffer, World], object]
) -> None:
    world = World()
    for violation in violated:
        violation.apply(world)
    bench = world.bench
    target = bench.context.allocate_buffer(BufferDesc(64, world.usage))
    target_bindings = bench.bindings()
    target_bindings[0] = Binding(0, target, BufferRange(0, SLOT_BYTES), AccessMode.READ)
    if world.busy_buffer:
        world.keep.append(bench.queue.submit(bench.program, target_bindings))
    if world.exhaust:
        # In flight it cannot be released, but it ends with its context.
        bench.context.close() if world.busy_buffer else target.release()
    for late in world.late:
        late()
    with pytest.raises(violated[0].error, match=violated[0].match) as caught:
        act(target, world)
    assert type(caught.value) is violated[0].error
    assert bench.accelerator.explicit_transfer_bytes == 0


@pytest.mark.parametrize("violated", pairs(_transfer_order("write")), ids=ids)
def test_write(violated: tuple[Violation, ...]) -> None:
    _transfer(violated, lambda b, w: b.write(w.offset, bytes(w.length)))


@pytest.mark.parametrize("violated", pairs(_transfer_order("read")), ids=ids)
def test_read_into(violated: tuple[Violation, ...]) -> None:
    _transfer(violated, lambda b, w: b.read_into(w.offset, bytearray(w.length)))


@pytest.mark.parametrize("violated", pairs(_transfer_order("read")[:-1]), ids=ids)
def test_read(violated: tuple[Violation, ...]) -> None:
    _transfer(violated, lambda b, w: b.read(w.offset, w.length))


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
