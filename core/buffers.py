"""Buffers: device memory with a size, a domain and permitted uses.

Source: docs/accelerator.md, "Order of checks".
"""

from __future__ import annotations

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tosavk.core.blocks import Releasing
from tosavk.core.descriptors import BufferDesc, BufferInfo, BufferUsage, unsigned
from tosavk.core.device import Allocation
from tosavk.core.errors import (
    Busy,
    InvalidArgument,
    OutOfBounds,
    OutOfMemory,
    PermissionDenied,
    Released,
    Unsupported,
)
from tosavk.core.guards import DEAD, Guard
from tosavk.core.ports import ByteSink, ByteSource, byte_view, is_sink, is_source
from tosavk.core.scope import Scope
from tosavk.core.views import Lease, View, check_dtype

if TYPE_CHECKING:
    from tosavk.core.ports import BytesLike

PORT_CHUNK = 4 << 20
"""Bytes gathered at a time between a port and memory that is not mapped."""


@final
class Buffer(Releasing):
    """A handle of a buffer.

    Made by `Context.allocate_buffer` and `Context.import_host_buffer`.

    A context manager: see `core.blocks.Releasing`.
    """

    __slots__ = (
        "__weakref__",
        "_allocation",
        "_desc",
        "_guard",
        "_info",
        "_lease",
        "_scope",
        "_view",
    )

    def __init__(self, scope: Scope, desc: BufferDesc, allocation: Allocation) -> None:
        """Takes an allocation over; only the model calls this."""
        self._scope = scope
        self._desc = desc
        self._info = allocation.info
        self._guard = Guard()
        self._allocation: Allocation | None = allocation
        self._lease: weakref.ref[Lease] | None = None
        self._view: View | None = None
        scope.buffers += 1
        scope.members.add(self)

    @property
    def desc(self) -> BufferDesc:
        """What was asked for."""
        return self._desc

    @property
    def info(self) -> BufferInfo:
        """What was allocated."""
        return self._info

    @property
    def is_released(self) -> bool:
        """Whether the handle has been released."""
        return self._allocation is None

    def write(self, offset: int, data: BytesLike | ByteSource) -> None:
        """Copies bytes into the buffer.

        Args:
            offset: first byte in the buffer.
            data: a C-contiguous object with the buffer protocol, or a port. Its bytes
                are copied as they are; all of them.

        Raises:
            Released: the buffer is released.
            PermissionDenied: allocated without TRANSFER_DESTINATION.
            Busy: unobserved work uses the buffer.
            DeviceLost: the device is lost.
            InvalidArgument: no bytes, a negative offset, or no contiguous bytes.
            OutOfBounds: the range leaves the buffer.

        After any other error a part of the range may have been written.
        """
        allocation = self._transfer(
            BufferUsage.TRANSFER_DESTINATION, "write into", "TRANSFER_DESTINATION"
        )
        shared = self._scope.shared
        if is_source(data):
            nbytes = data.nbytes
            start = self._range(offset, nbytes)
            with shared:
                _write_port(allocation, start, data)
        else:
            view = byte_view(data)
            nbytes = view.nbytes
            start = self._range(offset, nbytes)
            with shared:
                allocation.write(start, view)
        shared.transferred += nbytes

    def read(self, offset: int, nbytes: int) -> bytes:
        """Copies bytes out of the buffer.

        Args:
            offset: first byte in the buffer.
            nbytes: how many.

        Raises:
            Released: the buffer is released.
            PermissionDenied: allocated without TRANSFER_SOURCE.
            Busy: unobserved work uses the buffer.
            DeviceLost: the device is lost.
            InvalidArgument: no bytes, or a negative number.
            OutOfBounds: the range leaves the buffer.
            OutOfMemory: no room for the copy.
        """
        allocation = self._transfer(
            BufferUsage.TRANSFER_SOURCE, "read", "TRANSFER_SOURCE"
        )
        nbytes = unsigned("read length", nbytes)
        start = self._range(offset, nbytes)
        shared = self._scope.shared
        try:
            with shared:
                mapped = allocation.mapped
                if mapped is not None:
                    data = bytes(mapped[start : start + nbytes])
                else:
                    out = bytearray(nbytes)
                    allocation.read(start, memoryview(out))
                    data = bytes(out)
        except MemoryError:
            raise OutOfMemory(f"no host memory to read {nbytes} bytes") from None
        shared.transferred += nbytes
        return data

    def read_into(self, offset: int, out: BytesLike | ByteSink) -> None:
        """Fills `out` with bytes of the buffer.

        Args:
            offset: first byte in the buffer.
            out: a writable, C-contiguous object with the buffer protocol, or a port;
                all of it is filled.

        Raises:
            Released: the buffer is released.
            PermissionDenied: allocated without TRANSFER_SOURCE.
            Busy: unobserved work uses the buffer.
            DeviceLost: the device is lost.
            InvalidArgument: no bytes, a negative offset, or `out` is not writable or
                not contiguous.
            OutOfBounds: the range leaves the buffer.
        """
        allocation = self._transfer(
            BufferUsage.TRANSFER_SOURCE, "read", "TRANSFER_SOURCE"
        )
        shared = self._scope.shared
        if is_sink(out):
            nbytes = out.nbytes
            start = self._range(offset, nbytes)
            with shared:
                _read_port(allocation, start, out)
        else:
            view = byte_view(out)
            if view.readonly:
                raise InvalidArgument(
                    f"{type(out).__name__} is read-only; pass a bytearray or a "
                    "writable array"
                )
            nbytes = view.nbytes
            start = self._range(offset, nbytes)
            with shared:
                allocation.read(start, view)
        shared.transferred += nbytes

    @contextmanager
    def map(self, dtype: DTypeLike = np.uint8) -> Generator[NDArray[Any]]:
        """The bytes as an array without a copy, for the length of a `with` block.

        Meanwhile the buffer is in use: submissions, transfers and its release are
        refused with Busy. When the block is over, the array, and views of it, raise
        Released. Bytes that go through it are not counted as transferred.

        Args:
            dtype: a NumPy type whose size divides that of the buffer.

        Returns:
            A context manager that gives a flat array of all bytes, writable if the
            buffer was allocated with TRANSFER_DESTINATION.

        Raises:
            Released: the buffer is released.
            PermissionDenied: allocated with neither transfer usage.
            Busy: unobserved work uses the buffer, or it is mapped.
            DeviceLost: the device is lost.
            InvalidArgument: the type does not fit.
            Unsupported: the memory is not mapped; see `BufferInfo.properties`, and use
                `read_into` and `write`.
        """
        allocation = self._transfer(
            BufferUsage.TRANSFER_SOURCE | BufferUsage.TRANSFER_DESTINATION,
            "map",
            "TRANSFER_SOURCE or TRANSFER_DESTINATION",
        )
        nbytes = self._desc.nbytes
        kind = check_dtype(dtype, nbytes)
        mapped = allocation.mapped
        if mapped is None:
            raise Unsupported(
                f"{self!r} is not mapped by this device; use read_into and write, or "
                "the domain HOST or SHARED where the device offers it"
            )
        lease = None if self._lease is None else self._lease()
        if lease is None:
            lease = Lease(self._scope.shared, mapped)
            self._lease = weakref.ref(lease)
        writable = bool(self._desc.usage & BufferUsage.TRANSFER_DESTINATION)
        view = View(self._guard, lease, repr(self))
        del lease, mapped, allocation
        try:
            self._view = view
            yield view.array(kind, nbytes, writable=writable)
        finally:
            view.close()
            self._view = None

    def release(self) -> None:
        """Frees the memory.

        Raises:
            Released: it has been released before.
            Busy: unobserved work or a prepared submission uses it; it stays live.
        """
        self._scope.shared.begin()
        if self._allocation is None:
            raise self._released()
        self._refuse_in_flight("released")
        if self._guard.prepared:
            raise Busy(
                f"{self!r} is named by {self._guard.prepared} prepared submissions; "
                "release those first"
            )
        self._free()

    def end(self) -> None:
        """Frees it with its context; only the model calls this."""
        if self._allocation is not None:
            self._free()

    def __del__(self) -> None:
        """Frees the memory, after the device is idle if it is in flight."""
        if getattr(self, "_allocation", None) is not None:
            self._scope.shared.finalise(self._bury)

    def __repr__(self) -> str:
        """Size, domain and whether it is released."""
        end = ", released" if self._allocation is None else ""
        return f"<Buffer {self._desc.nbytes} bytes {self._desc.domain.name}{end}>"

    def _transfer(self, need: BufferUsage, verb: str, name: str) -> Allocation:
        self._scope.shared.begin()
        allocation = self._allocation
        if allocation is None:
            raise self._released()
        if not int.__and__(self._desc.usage, need):
            raise PermissionDenied(
                f"cannot {verb} {self!r}: it was allocated without {name}"
            )
        self._refuse_in_flight("transferred")
        self._scope.shared.require_device(f"{verb} a buffer")
        return allocation

    def _range(self, offset: int, nbytes: int) -> int:
        if nbytes == 0:
            raise InvalidArgument("a transfer has at least one byte, got 0")
        start = unsigned("buffer offset", offset)
        if start + nbytes > self._desc.nbytes:
            raise OutOfBounds(f"bytes {start}..{start + nbytes} leave {self!r}")
        return start

    def _refuse_in_flight(self, what: str) -> None:
        if self._view is not None and self._guard.state:
            raise Busy(
                f"{self!r} cannot be {what}: it is mapped; leave the block of the view "
                "first"
            )
        if self._guard.state:
            raise Busy(
                f"{self!r} cannot be {what}: unobserved work uses it; poll or wait for "
                "its event first"
            )

    def _released(self) -> Released:
        return Released(f"{self!r} was used after its release")

    def _free(self) -> None:
        allocation, self._allocation = self._allocation, None
        scope = self._scope
        self._guard.state |= DEAD
        scope.buffers -= 1
        try:
            with scope.shared:
                try:
                    scope.ring.forget(self._guard)
                finally:
                    lease = None if self._lease is None else self._lease()
                    if allocation is not None and lease is not None:
                        lease.inherit(allocation)
                    elif allocation is not None:
                        allocation.free()
        finally:
            scope.destroy_if_unused()

    def _bury(self) -> None:
        if self._guard.state:
            shared = self._scope.shared
            if shared.blocked:
                shared.put_off(self._bury)
                return
            shared.wait_idle()
        if self._allocation is not None:
            self._free()


def _write_port(allocation: Allocation, start: int, source: ByteSource) -> None:
    mapped = allocation.mapped
    nbytes = source.nbytes
    if mapped is not None:
        source.read_at(0, mapped[start : start + nbytes])
        return
    chunk = memoryview(bytearray(min(nbytes, PORT_CHUNK)))
    for done in range(0, nbytes, PORT_CHUNK):
        piece = chunk[: nbytes - done]
        source.read_at(done, piece)
        allocation.write(start + done, piece)


def _read_port(allocation: Allocation, start: int, sink: ByteSink) -> None:
    mapped = allocation.mapped
    nbytes = sink.nbytes
    if mapped is not None:
        sink.write_at(0, mapped[start : start + nbytes].toreadonly())
        return
    chunk = memoryview(bytearray(min(nbytes, PORT_CHUNK)))
    for done in range(0, nbytes, PORT_CHUNK):
        piece = chunk[: nbytes - done]
        allocation.read(start + done, piece)
        sink.write_at(done, piece)
