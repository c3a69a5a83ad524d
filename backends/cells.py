"""Cells: device buffers that hold one value each and are used again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import USAGE_ALL, BufferDesc, MemoryDomain
from tosavk.core.errors import OutOfMemory, ResourceLimit

GRAIN = 256


class Cell:
    """A value in device memory, with the number of names it has.

    Attributes:
        buffer: where it lies, at offset 0.
        uses: how many names it has; at 0 its buffer is used for other values.
    """

    __slots__ = ("buffer", "uses")

    def __init__(self, buffer: Buffer) -> None:
        """A cell that has one name."""
        self.buffer = buffer
        self.uses = 1


class Cells:
    """The cells of one program.

    A value that is written gets a cell that has no name, so no value changes while
    somebody can still see it. Buffers live until the context is closed, or until there is
    no room for others.

    Args:
        context: where buffers are allocated.
        domain: in which memory.
        forget: called before buffers are released, to let go of what names them.
    """

    def __init__(
        self, context: Context, domain: MemoryDomain, forget: Callable[[], None]
    ) -> None:
        """No cells."""
        self._context = context
        self._domain = domain
        self._forget = forget
        self._free: dict[int, list[Cell]] = {}
        self._live: dict[Cell, None] = {}

    @property
    def live(self) -> int:
        """Cells that have a name."""
        return len(self._live)

    def take(self, nbytes: int) -> Cell:
        """A cell for a value of `nbytes`, with one name.

        Raises:
            ResourceLimit: too many buffers.
            OutOfMemory: the driver has no memory left.
        """
        size = -(-nbytes // GRAIN) * GRAIN
        free = self._free.get(size)
        if free:
            cell = free.pop()
            cell.uses = 1
        else:
            cell = Cell(self._allocate(size))
        self._live[cell] = None
        return cell

    def _allocate(self, size: int) -> Buffer:
        desc = BufferDesc(nbytes=size, domain=self._domain, usage=USAGE_ALL)
        try:
            return self._context.allocate_buffer(desc)
        except (OutOfMemory, ResourceLimit):
            if not any(self._free.values()):
                raise
        self._forget()
        for cells in self._free.values():
            while cells:
                cells.pop().buffer.release()
        return self._context.allocate_buffer(desc)

    def name(self, cell: Cell) -> Cell:
        """Gives a cell one more name."""
        cell.uses += 1
        return cell

    def drop(self, cell: Cell) -> None:
        """Takes one name from a cell."""
        cell.uses -= 1
        if not cell.uses:
            del self._live[cell]
            self._free.setdefault(cell.buffer.desc.nbytes, []).append(cell)

    def keep_only(self, cells: Iterable[Cell]) -> None:
        """Takes all names but one for each time that a cell is listed."""
        kept = dict.fromkeys(self._live, 0)
        for cell in cells:
            kept[cell] += 1
        for cell, uses in kept.items():
            if uses:
                cell.uses = uses
            else:
                cell.uses = 1
                self.drop(cell)
