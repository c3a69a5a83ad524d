"""Arena allocation: lifetimes to segments and offsets.

Constants, and what the prologue computes from them, live for ever and are laid end to
end. Intermediates share the rest: first fit at the lowest offset, and bytes are reused
only by a value written strictly after the last read (docs/architecture.md, "Arena").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tosavk.core.errors import TooLarge
from tosavk.core.plan import PlanLimits
from tosavk.lowering.builder import Emitted, Memory

ALIGNMENT = 256
FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A region with the positions between which its bytes must survive."""

    memory: Memory
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a region lies."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Arena:
    """The layout of a program's arena.

    Attributes:
        segments: byte size of each segment.
        places: place of each region.
    """

    segments: tuple[int, ...]
    places: dict[Memory, Place]


def lifetimes(
    prologue: Sequence[Emitted], emitted: Sequence[Emitted]
) -> list[Lifetime]:
    """Lifetimes of all arena memory, by position in prologue + main order.

    Constants exist from position 0, whenever they are first read. Whatever the main
    part reads but does not write (constants, prologue results) lives for ever, since
    the main part runs again and again.
    """
    first: dict[Memory, int] = {}
    last: dict[Memory, int] = {}
    written_by_main: set[Memory] = set()
    main_start = len(prologue)
    for position, dispatch in enumerate((*prologue, *emitted)):
        for memory in dispatch.operands:
            if memory.slot is not None:
                continue
            first.setdefault(memory, 0 if memory.data is not None else position)
            last[memory] = position
        if position >= main_start:
            written_by_main.update(m for m in dispatch.writes if m.slot is None)
    return [
        Lifetime(
            memory,
            start,
            FOREVER
            if last[memory] >= main_start and memory not in written_by_main
            else last[memory],
        )
        for memory, start in first.items()
    ]


def allocate(regions: Iterable[Lifetime], limits: PlanLimits) -> Arena:
    """Places every region.

    Raises:
        TooLarge: one region alone exceeds `limits.max_storage_buffer_range`.
    """
    cap = min(limits.segment_bytes, limits.max_storage_buffer_range)
    segments: list[_Segment] = []
    places: dict[Memory, Place] = {}
    ordered = sorted(regions, key=lambda r: (r.last != FOREVER, r.first))
    for region in ordered:
        size = _round_up(region.memory.nbytes)
        if size > limits.max_storage_buffer_range:
            raise TooLarge(
                "tensor",
                tensor=region.memory.label,
                requested=region.memory.nbytes,
                limit=limits.max_storage_buffer_range,
                limit_name=limits.storage_limit,
            )
        for number, segment in enumerate(segments):
            offset = segment.place(region.first, region.last, size, max(cap, size))
            if offset is not None:
                places[region.memory] = Place(number, offset)
                break
        else:
            fresh = _Segment()
            offset = fresh.place(region.first, region.last, size, max(cap, size))
            assert offset is not None
            places[region.memory] = Place(len(segments), offset)
            segments.append(fresh)
    return Arena(tuple(segment.size for segment in segments), places)


class _Segment:
    """First fit among the regions that are live; fed in order of first position."""

    def __init__(self) -> None:
        self.size = 0
        self._floor = 0
        self._live: list[tuple[int, int, int]] = []  # offset, end, last; by offset

    def place(self, first: int, last: int, size: int, cap: int) -> int | None:
        """The lowest free offset for `size` bytes below `cap`, or None."""
        if last == FOREVER and not self._live:
            if self._floor + size > cap:
                return None
            offset = self._floor
            self._floor += size
            self.size = max(self.size, self._floor)
            return offset
        self._live = [entry for entry in self._live if entry[2] >= first]
        offset = self._floor
        at = len(self._live)
        for index, (start, end, _) in enumerate(self._live):
            if offset + size <= start:
                at = index
                break
            offset = max(offset, end)
        if offset + size > cap:
            return None
        self._live.insert(at, (offset, offset + size, last))
        self.size = max(self.size, offset + size)
        return offset


def _round_up(nbytes: int) -> int:
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
