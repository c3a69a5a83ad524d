"""Byte ports: how bytes that may lie in several pieces enter and leave the model.

Anything with Python's buffer protocol is one contiguous piece and needs no port.
Source: the Accelerator model (docs/accelerator.md, "Byte ports").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from tosavk.core.errors import InvalidArgument, OutOfBounds

if TYPE_CHECKING:
    from typing_extensions import Buffer

    # NumPy's stubs declare the buffer protocol from Python 3.12 on only.
    BytesLike: TypeAlias = Buffer | NDArray[Any]


class ByteSource(Protocol):
    """Bytes that can be read piece by piece."""

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        ...

    def read_at(self, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset`.

        Raises:
            OutOfBounds: the range leaves the source.
        """
        ...


class ByteSink(Protocol):
    """Bytes that can be written piece by piece."""

    @property
    def nbytes(self) -> int:
        """How many bytes there is room for."""
        ...

    def write_at(self, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset`.

        Raises:
            OutOfBounds: the range leaves the sink.
        """
        ...


class Segments:
    """Several buffers, seen as one source and sink.

    Args:
        parts: C-contiguous objects with the buffer protocol, in order.

    Raises:
        InvalidArgument: a part is not a contiguous buffer.
    """

    __slots__ = ("_nbytes", "_parts")

    def __init__(self, parts: Iterable[BytesLike]) -> None:
        """Takes views of the parts, which must stay alive and keep their sizes."""
        self._parts = tuple(byte_view(part) for part in parts)
        self._nbytes = sum(part.nbytes for part in self._parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts together."""
        return self._nbytes

    def read_at(self, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset`.

        Raises:
            OutOfBounds: the range leaves the segments.
        """
        done = 0
        for part, start, stop in self._overlaps(offset, out.nbytes):
            out[done : done + stop - start] = part[start:stop]
            done += stop - start

    def write_at(self, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset`.

        Raises:
            OutOfBounds: the range leaves the segments.
        """
        done = 0
        for part, start, stop in self._overlaps(offset, data.nbytes):
            part[start:stop] = data[done : done + stop - start]
            done += stop - start

    def _overlaps(
        self, offset: int, nbytes: int
    ) -> Iterator[tuple[memoryview, int, int]]:
        if offset < 0 or offset + nbytes > self._nbytes:
            raise OutOfBounds(
                f"bytes {offset}..{offset + nbytes} leave segments of "
                f"{self._nbytes} bytes"
            )
        begin = 0
        for part in self._parts:
            start = max(offset - begin, 0)
            stop = min(offset + nbytes - begin, part.nbytes)
            if start < stop:
                yield part, start, stop
            begin += part.nbytes


def is_source(data: object) -> TypeGuard[ByteSource]:
    """Whether `data` is a port to read from, not a buffer."""
    return hasattr(data, "read_at")


def is_sink(out: object) -> TypeGuard[ByteSink]:
    """Whether `out` is a port to write to, not a buffer."""
    return hasattr(out, "write_at")


def byte_view(data: object) -> memoryview:
    """A flat view of the bytes of a contiguous buffer, without a copy.

    Raises:
        InvalidArgument: `data` has no buffer protocol, or is not C-contiguous.
    """
    try:
        view = memoryview(cast("Buffer", _plain(data)))
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgument(
            f"{type(data).__name__} does not give its bytes ({error}); pass bytes, "
            "a memoryview or an array"
        ) from None
    if "O" in view.format:
        raise InvalidArgument(
            f"{type(data).__name__} holds Python objects, not bytes; convert it first"
        )
    if view.ndim == 1 and view.format == "B" and view.c_contiguous:
        return view
    if not view.c_contiguous:
        raise InvalidArgument(
            f"{type(data).__name__} of shape {view.shape} and strides {view.strides} "
            "is not C-contiguous; pass a contiguous copy"
        )
    # memoryview.cast refuses shapes with a zero.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _plain(data: object) -> object:
    # NumPy exports no format for extension types such as bfloat16.
    array = cast("NDArray[Any]", data)
    if isinstance(data, np.ndarray) and array.dtype.kind == "V":
        return array.reshape(-1).view(np.uint8) if array.flags.c_contiguous else array
    return cast("Any", array)
