"""Bounds-checked access to a flatbuffer that nobody has verified.

The Python runtime of flatbuffers reads wherever an offset points. Here every offset,
vtable, vector and string is checked before it is followed, and a budget bounds the work
that a small file can ask for by pointing at the same bytes again and again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from flatbuffers.number_types import SOffsetTFlags, UOffsetTFlags, VOffsetTFlags

from tosavk.lowering.errors import Kind, ParseError
from tosavk.lowering.tosa.schema import Table

MAX_STRING_BYTES = 1 << 20
_BUDGET_CAP = 512 << 20
_BUDGET_FLOOR = 64 << 10
_BUDGET_FACTOR = 4
# Work that every table costs, however small.
_TABLE_CHARGE = 16

_SOFFSET = struct.Struct("<i")
_UOFFSET = struct.Struct("<I")
_UOFFSET_BYTES = UOffsetTFlags.bytewidth
_VOFFSET_BYTES = VOffsetTFlags.bytewidth
_VTABLE_FIXED = 2 * _VOFFSET_BYTES

Record = list[Any]


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the tables that share one vtable lie, checked and compiled once.

    Attributes:
        size: bytes of the table's inline part.
        unpack: reads all present fields at once.
        pick: brings them, with the defaults behind them, into slot order.
        defaults: values of the absent fields.
        offsets: (slot, byte in the table) of the fields that are offsets.
    """

    size: int
    unpack: Callable[[memoryview, int], tuple[Any, ...]]
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    defaults: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


def damaged(message: str, position: int) -> ParseError:
    """The error for bytes that are no flatbuffer."""
    return ParseError(
        f"the file is truncated or damaged: {message} at byte {position}; "
        "export the model again",
        kind=Kind.INVALID_FLATBUFFER,
    )


class FlatBuffer:
    """The bytes of a flatbuffer; positions are byte offsets from the start."""

    __slots__ = ("_layouts", "_left", "_strings", "data", "size")

    def __init__(self, data: memoryview) -> None:
        """Takes the whole file as flat bytes."""
        self.data = data
        self.size = len(data)
        self._left = min(_BUDGET_CAP, _BUDGET_FLOOR + _BUDGET_FACTOR * self.size)
        self._layouts: dict[tuple[Table, int], _Layout] = {}
        self._strings: dict[int, str] = {}

    def _charge(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise ParseError(
                "the file's tables overlap so much that their apparent size is more "
                f"than {_BUDGET_FACTOR} times its {self.size} bytes; "
                "export the model again",
                kind=Kind.LIMIT_EXCEEDED,
            )

    def root(self, schema: Table) -> Record:
        """The root table."""
        if self.size < _UOFFSET_BYTES:
            raise damaged("no root offset", 0)
        (position,) = _UOFFSET.unpack_from(self.data, 0)
        return self.table(schema, position)

    def table(self, schema: Table, position: int) -> Record:
        """The fields of a table in slot order.

        Returns:
            Numbers as they are; offsets as absolute positions, 0 where absent. The
            positions are not checked yet; the accessors do that.
        """
        if position + SOffsetTFlags.bytewidth > self.size:
            raise damaged(f"a {schema.name} table", position)
        vtable = position - _SOFFSET.unpack_from(self.data, position)[0]
        layout = self._layouts.get((schema, vtable))
        if layout is None:
            layout = self._compile(schema, vtable)
        if position + layout.size > self.size:
            raise damaged(f"a {schema.name} table", position)
        self._charge(layout.size + _TABLE_CHARGE)
        record = list(layout.pick(layout.unpack(self.data, position) + layout.defaults))
        for slot, base in layout.offsets:
            if record[slot]:
                record[slot] += position + base
        return record

    def _compile(self, schema: Table, vtable: int) -> _Layout:
        if vtable < 0 or vtable + _VTABLE_FIXED > self.size:
            raise damaged(f"the vtable of a {schema.name} table", vtable)
        length, size = struct.unpack_from("<HH", self.data, vtable)
        if length < _VTABLE_FIXED or length % 2 or vtable + length > self.size:
            raise damaged(f"the vtable of a {schema.name} table", vtable)
        count = min(len(schema.fields), (length - _VTABLE_FIXED) // _VOFFSET_BYTES)
        places = struct.unpack_from(f"<{count}H", self.data, vtable + _VTABLE_FIXED)
        code = "<"
        end = 0
        order: list[int] = []
        for place, slot in sorted((p, s) for s, p in enumerate(places) if p):
            field = schema.fields[slot].kind.code
            # The first word is the offset of the vtable; fields never overlap.
            if place < max(end, _UOFFSET_BYTES):
                raise damaged(f"the vtable of a {schema.name} table", vtable)
            code += f"{place - end}x{field}"
            end = place + struct.calcsize(f"<{field}")
            order.append(slot)
        if end > size or size < SOffsetTFlags.bytewidth:
            raise damaged(f"the vtable of a {schema.name} table", vtable)
        absent = [slot for slot in range(len(schema.fields)) if slot not in order]
        where = {slot: number for number, slot in enumerate(order + absent)}
        layout = _Layout(
            size=size,
            unpack=struct.Struct(code).unpack_from,
            pick=_picker([where[slot] for slot in range(len(schema.fields))]),
            defaults=tuple(schema.fields[slot].default for slot in absent),
            offsets=tuple(
                (slot, places[slot])
                for slot in order
                if schema.fields[slot].kind.is_offset
            ),
        )
        self._layouts[schema, vtable] = layout
        return layout

    def vector(
        self, position: int, width: int, limit: int, what: str
    ) -> tuple[int, int]:
        """The first byte and the length of a vector whose elements take `width` bytes.

        Raises:
            ParseError: it leaves the file, or has more than `limit` elements.
        """
        if position == 0:
            return 0, 0
        start = position + _UOFFSET_BYTES
        if start > self.size:
            raise damaged(what, position)
        (count,) = _UOFFSET.unpack_from(self.data, position)
        if start + count * width > self.size:
            raise damaged(what, position)
        if count > limit:
            raise ParseError(
                f"the file has {count} {what}; at most {limit} are read",
                kind=Kind.LIMIT_EXCEEDED,
            )
        return start, count

    def ints(self, position: int, limit: int, what: str) -> tuple[int, ...]:
        """A vector of int32; empty where absent."""
        start, count = self.vector(position, 4, limit, what)
        self._charge(4 * count)
        return struct.unpack_from(f"<{count}i", self.data, start)

    def bytes_view(self, position: int, what: str) -> memoryview:
        """A vector of bytes, as a view of the file; empty where absent."""
        start, count = self.vector(position, 1, self.size, what)
        return self.data[start : start + count]

    def references(self, position: int, limit: int, what: str) -> list[int]:
        """The positions that a vector of offsets points to; empty where absent."""
        start, count = self.vector(position, _UOFFSET_BYTES, limit, what)
        self._charge(_UOFFSET_BYTES * count)
        offsets = struct.unpack_from(f"<{count}I", self.data, start)
        return [
            place + offset
            for place, offset in zip(
                range(start, start + 4 * count, 4), offsets, strict=True
            )
        ]

    def string(self, position: int) -> str:
        """A string; "" where absent."""
        known = self._strings.get(position)
        if known is not None:
            return known
        if position == 0:
            return ""
        start, count = self.vector(position, 1, MAX_STRING_BYTES, "bytes of a string")
        end = start + count
        if end >= self.size or self.data[end] != 0:
            raise damaged("a string without its end", position)
        self._charge(count)
        try:
            text = str(self.data[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise damaged("a string that is not UTF-8", position) from error
        self._strings[position] = text
        return text


def _picker(indices: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """`itemgetter`, which gives no tuple for fewer than two indices."""
    if not indices:
        return lambda _: ()
    if len(indices) == 1:
        (only,) = indices
        return lambda values: (values[only],)
    return itemgetter(*indices)
