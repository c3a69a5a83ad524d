"""Worlds in which conditions of the model are violated, alone and in pairs.

A test lists a method's conditions in the documented order; every pair of them is
violated at once, and the earlier one must be told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

import pytest

from harness.fake_device import SLOT_BYTES, Bench, FakeDevice, FakeLowered
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    FORMAT_TOSA,
    RESIDENT_UNBOUNDED,
    USAGE_ALL,
    AccessMode,
    BufferUsage,
    Capabilities,
    DeviceLimits,
    MemoryDomain,
    Timeout,
)
from tosavk.core.errors import (
    DeviceLost,
    External,
    ModelError,
)

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
