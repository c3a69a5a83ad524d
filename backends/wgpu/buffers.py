"""Buffers: device memory written through the queue, host memory written by mapping.

WebGPU moves whole 32-bit words only, so the first and the last word of a transfer to
device memory are read, patched and written back where they are not covered whole. A
buffer that is mapped while it is submitted, or destroyed before, would end the process;
so a mapping never outlives a call, and `Memory.freed` is looked at before every launch.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tosavk.backends.wgpu import _ffi
from tosavk.backends.wgpu._ffi import BufferSlice, Cdata, Gpu
from tosavk.backends.wgpu.polling import Flag, finish_transfer
from tosavk.core.descriptors import (
    BufferDesc,
    BufferInfo,
    BufferProperties,
    MemoryDomain,
)
from tosavk.core.errors import ResourceLimit

if TYPE_CHECKING:
    from collections.abc import Generator

OBSERVED_ALIGNMENT = 256
"""No address can be observed; WebGPU lets bindings start at multiples of this."""

STORAGE = _ffi.USAGE_STORAGE | _ffi.USAGE_COPY_SRC | _ffi.USAGE_COPY_DST
MAPPABLE = STORAGE | _ffi.USAGE_MAP_READ | _ffi.USAGE_MAP_WRITE

_CHUNK = 16 << 20
_WORD = 4
_SHARED = BufferProperties.HOST_VISIBLE | BufferProperties.DEVICE_LOCAL
_PROPERTIES = {
    MemoryDomain.HOST: BufferProperties.HOST_VISIBLE,
    MemoryDomain.DEVICE: BufferProperties.DEVICE_LOCAL,
    MemoryDomain.SHARED: _SHARED,
}


def words(nbytes: int) -> int:
    """Bytes rounded up to whole 32-bit words."""
    return -(-nbytes // _WORD) * _WORD


class Memory:
    """A buffer of whole words, zeroed, with its transfers.

    Attributes:
        handle: the WGPUBuffer.
        nbytes: its size.
        freed: whether it was given back.
    """

    __slots__ = ("_gpu", "freed", "handle", "nbytes")

    def __init__(self, gpu: Gpu, nbytes: int, usage: int) -> None:
        """Creates a buffer of at least `nbytes`.

        Raises:
            ModelError: wgpu refused it.
        """
        self._gpu = gpu
        self.nbytes = words(nbytes)
        self.handle: Cdata = gpu.create_buffer(self.nbytes, usage)
        self.freed = False

    def slice(self, offset: int, nbytes: int) -> BufferSlice:
        """A part of it, for a bind group."""
        return BufferSlice(self.handle, offset, nbytes)

    def write_words(self, offset: int, data: memoryview) -> None:
        """Writes whole words at a word offset, in pieces of bounded size.

        wgpu keeps a copy of what was written until it is submitted and done.
        """
        gpu = self._gpu
        for start in range(0, data.nbytes, _CHUNK):
            piece = data[start : start + _CHUNK]
            gpu.write(self.handle, offset + start, piece)
            if piece.nbytes == _CHUNK:
                gpu.flush()
                gpu.poll()

    def read_words(self, offset: int, out: memoryview) -> None:
        """Reads whole words from a word offset through a staging buffer.

        Raises:
            DeviceLost: the device is lost, or it took longer than 30 s.
            ModelError: the staging buffer was refused.
        """
        gpu = self._gpu
        size = min(out.nbytes, _CHUNK)
        usage = _ffi.USAGE_MAP_READ | _ffi.USAGE_COPY_DST
        staging = gpu.create_buffer(size, usage)
        try:
            for start in range(0, out.nbytes, size):
                piece = out[start : start + size]
                source = self.slice(offset + start, piece.nbytes)
                gpu.copy(source, staging)
                with mapped(gpu, staging, _ffi.MAP_READ, piece.nbytes) as view:
                    piece[:] = view
        finally:
            gpu.destroy_buffer(staging)

    def free(self) -> None:
        """Gives the memory back; bind groups with it must not be submitted again."""
        if not self.freed:
            self.freed = True
            self._gpu.destroy_buffer(self.handle)


@contextmanager
def mapped(
    gpu: Gpu, buffer: Cdata, mode: int, nbytes: int
) -> Generator[memoryview, None, None]:
    """The first bytes of an unmapped buffer, mapped once the device is done with it.

    Raises:
        DeviceLost: the device is lost, or it took longer than 30 s.
    """
    flag = Flag()
    number = gpu.map(buffer, mode, nbytes, flag.set)
    with ExitStack() as undo:
        undo.callback(gpu.unmap, buffer)
        try:
            finish_transfer(gpu, flag, f"mapping {nbytes} bytes")
        finally:
            _ffi.forget(number)
        view = undo.enter_context(gpu.mapped(buffer, mode, nbytes))
        yield view


class DeviceAllocation:
    """A buffer in DEVICE memory: `core.device.Allocation`."""

    __slots__ = ("_nbytes", "info", "memory")

    def __init__(self, gpu: Gpu, desc: BufferDesc) -> None:
        """Allocates; see `allocate`."""
        self.memory = Memory(gpu, desc.nbytes, STORAGE)
        self._nbytes = desc.nbytes
        self.info = _info(self.memory, desc)

    @property
    def mapped(self) -> memoryview | None:
        """None: it is not mapped."""
        return None

    def write(self, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset`."""
        end = offset + data.nbytes
        first = offset // _WORD * _WORD
        last = end // _WORD * _WORD
        if offset == first and end == last:
            self.memory.write_words(offset, data)
            return
        # Bytes behind the buffer's end belong to nobody and need no reading.
        stop = words(end)
        covered = end if end < self._nbytes else stop
        ends = {first} if offset > first else set[int]()
        ends |= {last} if covered < stop else set()
        patch = bytearray(stop - first)
        for word in sorted(ends):
            kept = memoryview(patch)[word - first : word - first + _WORD]
            self.memory.read_words(word, kept)
        patch[offset - first : end - first] = data
        self.memory.write_words(first, memoryview(patch))

    def read(self, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset`; only once all bytes have come."""
        end = offset + out.nbytes
        first = offset // _WORD * _WORD
        if offset == first and end % _WORD == 0 and out.nbytes <= _CHUNK:
            self.memory.read_words(offset, out)
            return
        whole = bytearray(words(end) - first)
        self.memory.read_words(first, memoryview(whole))
        out[:] = memoryview(whole)[offset - first : end - first]

    def free(self) -> None:
        """Gives the memory back."""
        self.memory.free()


class MappableAllocation:
    """A buffer in HOST or SHARED memory: `core.device.Allocation`.

    WebGPU does not let a buffer be mapped while it is used, so `mapped` is None and
    each transfer maps it, copies, and unmaps it.
    """

    __slots__ = ("_gpu", "info", "memory")

    def __init__(self, gpu: Gpu, desc: BufferDesc) -> None:
        """Allocates; see `allocate`."""
        self._gpu = gpu
        self.memory = Memory(gpu, desc.nbytes, MAPPABLE)
        self.info = _info(self.memory, desc)

    @property
    def mapped(self) -> memoryview | None:
        """None: it is mapped during transfers only."""
        return None

    def write(self, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset`."""
        with self._map(_ffi.MAP_WRITE, offset + data.nbytes) as view:
            view[offset : offset + data.nbytes] = data

    def read(self, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset`."""
        with self._map(_ffi.MAP_READ, offset + out.nbytes) as view:
            out[:] = view[offset : offset + out.nbytes]

    def free(self) -> None:
        """Gives the memory back."""
        self.memory.free()

    @contextmanager
    def _map(self, mode: int, end: int) -> Generator[memoryview, None, None]:
        with mapped(self._gpu, self.memory.handle, mode, words(end)) as view:
            yield view


Allocation = DeviceAllocation | MappableAllocation


def allocate(gpu: Gpu, desc: BufferDesc) -> Allocation:
    """Allocates memory for a buffer in an advertised domain.

    Raises:
        ResourceLimit: the alignment is more than can be promised.
        ModelError: wgpu refused it.
    """
    if desc.alignment > OBSERVED_ALIGNMENT:
        raise ResourceLimit(
            f"a buffer aligned to {desc.alignment} bytes was asked for; WebGPU promises "
            f"{OBSERVED_ALIGNMENT}"
        )
    if desc.domain is MemoryDomain.DEVICE:
        return DeviceAllocation(gpu, desc)
    return MappableAllocation(gpu, desc)


def _info(memory: Memory, desc: BufferDesc) -> BufferInfo:
    return BufferInfo(
        allocation_bytes=memory.nbytes,
        alignment=OBSERVED_ALIGNMENT,
        properties=_PROPERTIES[desc.domain] | BufferProperties.DIRECT_BINDING,
    )
