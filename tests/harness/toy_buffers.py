"""The handles of the toy (`harness.toy`), and its buffers."""

# Doubles of handles take whatever they are given.
# ruff: noqa: ANN401

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosavk.core.descriptors import (
    BufferDesc,
    BufferInfo,
    BufferProperties,
    BufferUsage,
)
from tosavk.core.errors import (
    Busy,
    InvalidArgument,
    OutOfBounds,
    PermissionDenied,
    Released,
)
from tosavk.core.ports import byte_view, is_sink, is_source

if TYPE_CHECKING:
    from harness.toy import ToyContext


class ToyHandle:
    """What buffers, programs, queues and prepared submissions have in common."""

    def __init__(self, context: ToyContext) -> None:
        self.context = context
        self.flaw = context.flaw
        self.released = False
        self.users: set[object] = set()
        context.handles.add(self)

    def check(self) -> None:
        if self.released and self.flaw != "released handles work":
            raise Released(type(self).__name__)

    def busy(self) -> bool:
        return bool(self.users)

    def release(self) -> None:
        if self.released:
            if self.flaw == "double release is fine":
                return
            raise Released(type(self).__name__)
        if self.busy():
            raise Busy(type(self).__name__)
        self.end()

    def end(self) -> None:
        if not self.released:
            self.released = True
            self.uncount()

    def uncount(self) -> None:
        raise NotImplementedError

    def __del__(self) -> None:
        if self.flaw != "dead handles are never uncounted":
            self.end()


class ToyBuffer(ToyHandle):
    """Bytes, with the submissions that read and write them."""

    def __init__(self, context: ToyContext, desc: BufferDesc) -> None:
        super().__init__(context)
        self.desc = desc
        self.data = bytearray(desc.nbytes)
        self.readers: set[object] = set()
        self.writers: set[object] = set()
        context.buffers.add(id(self))

    @property
    def info(self) -> BufferInfo:
        properties = BufferProperties.HOST_VISIBLE | BufferProperties.DIRECT_BINDING
        nbytes, alignment = len(self.data), max(256, self.desc.alignment)
        if self.flaw == "allocations are too small on paper":
            nbytes -= 1
        if self.flaw == "alignment is a lie":
            alignment = 3
        if self.flaw == "host memory is not host-visible":
            properties = BufferProperties.DIRECT_BINDING
        return BufferInfo(nbytes, alignment, properties)

    def busy(self) -> bool:
        if self.flaw == "buffers in use can be released":
            return False
        return bool(self.readers or self.writers or self.users)

    def uncount(self) -> None:
        self.context.buffers.discard(id(self))

    def range(self, offset: int, nbytes: int, usage: BufferUsage) -> None:
        self.check()
        self.context.accelerator.require("allocate")
        allowed = bool(self.desc.usage & usage) or self.flaw == "usage is ignored"
        if self.flaw != "guards before permission" and not allowed:
            raise PermissionDenied("usage")
        if self.readers or self.writers:
            forgiven = self.flaw == "transfers in flight are fine"
            forgiven |= self.flaw == "readers may be overwritten" and not self.writers
            if not forgiven:
                raise Busy("in flight")
        if not allowed:
            raise PermissionDenied("usage")
        self.context.accelerator.require("transfer")
        if self.flaw == "bounds before length" and offset + nbytes > len(self.data):
            raise OutOfBounds("range")
        if nbytes <= 0 or offset < 0:
            raise InvalidArgument("range")
        slack = 4 if self.flaw == "bounds are rounded up" else 0
        if self.flaw == "bounds are not checked":
            return
        if offset + nbytes > len(self.data) + slack:
            raise OutOfBounds("range")

    def write(self, offset: int, data: Any) -> None:
        if is_source(data):
            self.range(offset, data.nbytes, BufferUsage.TRANSFER_DESTINATION)
            piece = bytearray(data.nbytes)
            if self.flaw == "errors of ports are swallowed":
                try:
                    data.read_at(0, memoryview(piece))
                except Exception:  # noqa: BLE001 - the flaw
                    return
            data.read_at(0, memoryview(piece))
        else:
            piece = bytearray(byte_view(data))
            self.range(offset, len(piece), BufferUsage.TRANSFER_DESTINATION)
        end = offset + len(piece)
        if self.flaw == "writes are rounded to words":
            end = min(-(-end // 4) * 4, len(self.data))
            piece += bytes(end - offset - len(piece))
        if self.flaw == "a write is lost" and len(piece) == 4:
            piece = self.data[offset:end]
        self.data[offset:end] = piece
        self.context.accelerator.explicit += len(piece)
        if self.flaw == "transfers are counted twice":
            self.context.accelerator.explicit += len(piece)

    def read(self, offset: int, nbytes: int) -> bytes:
        self.range(offset, nbytes, BufferUsage.TRANSFER_SOURCE)
        self.context.accelerator.explicit += nbytes
        return bytes(self.data[offset : offset + nbytes])

    def read_into(self, offset: int, out: Any) -> None:
        if is_sink(out):
            self.range(offset, out.nbytes, BufferUsage.TRANSFER_SOURCE)
            out.write_at(0, memoryview(self.data)[offset : offset + out.nbytes])
            nbytes = out.nbytes
        else:
            view = byte_view(out)
            if view.readonly:
                raise InvalidArgument("read-only")
            nbytes = view.nbytes
            self.range(offset, nbytes, BufferUsage.TRANSFER_SOURCE)
            view[:] = self.data[offset : offset + nbytes]
        self.context.accelerator.explicit += nbytes
