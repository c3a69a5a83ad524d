"""Arena allocation: no overlap while both live, constants from the start, segments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tosavk.core.errors import ResourceLimit
from tosavk.core.plan import PlanLimits
from tosavk.lowering.arena import ALIGNMENT, FOREVER, Lifetime, allocate, lifetimes
from tosavk.lowering.builder import Emitted, Memory
from tosavk.lowering.graph import Op, Operator
from tosavk.shaders.catalogue import kernels

OP = Operator(0, Op.ADD, ("a", "b"), ("y",))


def emitted(reads: list[Memory], write: Memory) -> Emitted:
    kernel = kernels()["unary" if len(reads) == 1 else "binary"]
    return Emitted(kernel, (), (), (*reads, write), 1, 1, OP)


@st.composite
def regions(draw: st.DrawFn) -> list[Lifetime]:
    result: list[Lifetime] = []
    for _ in range(draw(st.integers(1, 40))):
        size = draw(st.integers(1, 3000))
        if draw(st.booleans()) and draw(st.booleans()):
            result.append(Lifetime(Memory(size), 0, FOREVER))
            continue
        first = draw(st.integers(0, 30))
        result.append(Lifetime(Memory(size), first, first + draw(st.integers(0, 8))))
    return result


@settings(max_examples=300, deadline=None)
@given(regions(), st.sampled_from([4096, 1 << 14, 1 << 27]))
def test_regions_that_live_together_do_not_overlap(
    items: list[Lifetime], cap: int
) -> None:
    arena = allocate(items, PlanLimits(segment_bytes=cap))
    for i, one in enumerate(items):
        place = arena.places[one.memory]
        assert place.offset % ALIGNMENT == 0
        assert place.offset + one.memory.nbytes <= arena.segments[place.segment]
        for other in items[:i]:
            spot = arena.places[other.memory]
            together = one.first <= other.last and other.first <= one.last
            if not together or spot.segment != place.segment:
                continue
            assert (
                place.offset >= spot.offset + other.memory.nbytes
                or spot.offset >= place.offset + one.memory.nbytes
            )
    assert all(size <= max(cap, 3072) for size in arena.segments)


def test_bytes_are_reused_only_after_the_last_read() -> None:
    a, b, c = Memory(256), Memory(256), Memory(256)
    arena = allocate(
        [Lifetime(a, 0, 1), Lifetime(b, 1, 2), Lifetime(c, 2, 3)], PlanLimits()
    )
    assert arena.places[a].offset != arena.places[b].offset
    assert arena.places[c].offset == arena.places[a].offset
    assert arena.segments == (512,)


def test_a_constant_used_late_shares_no_byte_with_earlier_intermediates() -> None:
    constant = Memory(1024, data=memoryview(bytes(1024)))
    x, y = Memory(8, slot=0), Memory(8, slot=1)
    first, second = Memory(1024), Memory(1024)
    spans = lifetimes(
        [],
        [
            emitted([x], first),
            emitted([first], second),
            emitted([second, constant], y),
        ],
    )
    arena = allocate(spans, PlanLimits())
    low = arena.places[constant].offset
    for memory in (first, second):
        assert abs(arena.places[memory].offset - low) >= 1024


def test_what_the_prologue_makes_for_the_main_part_lives_for_ever() -> None:
    constant = Memory(256, data=memoryview(bytes(256)))
    scratch, made = Memory(256), Memory(256)
    x, temporary, y = Memory(8, slot=0), Memory(256), Memory(8, slot=1)
    spans = {
        span.memory: span
        for span in lifetimes(
            [emitted([constant], scratch), emitted([scratch], made)],
            [emitted([x], temporary), emitted([temporary, made], y)],
        )
    }
    assert spans[made].last == FOREVER
    assert spans[constant].last == 0
    assert spans[scratch].last == 1
    assert spans[temporary].last == 3


def test_a_tensor_beyond_the_segment_cap_gets_a_segment_of_its_own() -> None:
    small, large = Memory(256), Memory(10_000)
    arena = allocate(
        [Lifetime(small, 0, 9), Lifetime(large, 0, 9)], PlanLimits(segment_bytes=4096)
    )
    assert arena.places[small].segment != arena.places[large].segment


def test_a_tensor_beyond_the_buffer_range_is_refused_by_name() -> None:
    limits = PlanLimits(max_storage_buffer_range=4096)
    with pytest.raises(ResourceLimit, match=r"'big' needs 5000 bytes.*4096"):
        allocate([Lifetime(Memory(5000, label="big"), 0, 1)], limits)


def test_thousands_of_constants_take_one_segment() -> None:
    items = [Lifetime(Memory(4), 0, FOREVER) for _ in range(5000)]
    assert len(allocate(items, PlanLimits()).segments) == 1
