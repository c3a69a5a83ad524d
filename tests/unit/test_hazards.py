"""Barrier flags against an independent recomputation of all hazards."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tosavk.lowering.hazards import HazardTracker, Range

RANGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(1, 4)).map(
        lambda t: (t[0], t[1], t[1] + t[2])
    ),
    max_size=3,
)
DISPATCHES = st.lists(st.tuples(RANGES, RANGES), max_size=12)


def cells(items: list[Range]) -> set[tuple[int, int]]:
    return {(b, w) for b, low, high in items for w in range(low, high)}


@settings(max_examples=400, deadline=None)
@given(DISPATCHES)
def test_every_hazard_has_a_barrier_and_none_is_superfluous(
    items: list[tuple[list[Range], list[Range]]],
) -> None:
    tracker = HazardTracker()
    since: list[tuple[set[tuple[int, int]], set[tuple[int, int]]]] = []
    for reads, writes in items:
        mine = (cells(reads), cells(writes))
        needed = any(mine[0] & w or mine[1] & (r | w) for r, w in since)
        assert tracker.needs_barrier(reads, writes, None) == needed
        since = [mine] if needed else [*since, mine]


def test_parts_of_one_result_need_no_barrier_between_them() -> None:
    tracker = HazardTracker()
    group = object()
    whole: list[Range] = [(0, 0, 8)]
    assert not tracker.needs_barrier([(1, 0, 4)], whole, group)
    assert not tracker.needs_barrier([(1, 4, 8)], whole, group)
    assert tracker.needs_barrier([(1, 8, 12)], whole, object())
    assert tracker.needs_barrier(whole, [(2, 0, 8)], group)
