"""Hazards to barriers: where a dispatch must wait for earlier ones.

A dispatch needs a barrier in front if, since the last barrier, memory it reads was
written (RAW), memory it writes was read (WAR) or written (WAW). One exception: the
parts of one CONCAT write disjoint elements of one result; packed types still need the
barrier, since parts may share a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from tosavk.core.plan import Operand

Range = tuple[int, int, int]  # buffer, first word, end word


def ranges(operands: Sequence[Operand]) -> tuple[Range, ...]:
    """The memory that operands cover."""
    return tuple((o.buffer, o.word, o.word + o.words) for o in operands)


class HazardTracker:
    """Decides barrier flags for dispatches fed in execution order."""

    def __init__(self) -> None:
        self._reads: dict[int, list[tuple[int, int, object]]] = {}
        self._writes: dict[int, list[tuple[int, int, object]]] = {}

    def needs_barrier(
        self,
        reads: Sequence[Range],
        writes: Sequence[Range],
        group: object | None,
    ) -> bool:
        """Whether this dispatch needs a barrier; then it is the first one after it.

        Args:
            reads: memory read.
            writes: memory written.
            group: dispatches of one group may write the same memory without a barrier
                between them, because they write disjoint elements; None for no group.
        """
        hazard = (
            _overlaps(self._writes, reads, None)
            or _overlaps(self._reads, writes, None)
            or _overlaps(self._writes, writes, group)
        )
        if hazard:
            self._reads.clear()
            self._writes.clear()
        for buffer, start, end in reads:
            self._reads.setdefault(buffer, []).append((start, end, None))
        for buffer, start, end in writes:
            self._writes.setdefault(buffer, []).append((start, end, group))
        return hazard


def _overlaps(
    held: dict[int, list[tuple[int, int, object]]],
    wanted: Sequence[Range],
    group: object | None,
) -> bool:
    for buffer, start, end in wanted:
        for low, high, owner in held.get(buffer, ()):
            if start < high and low < end and (group is None or owner is not group):
                return True
    return False
