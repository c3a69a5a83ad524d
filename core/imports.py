"""Host memory that the device uses where it lies. Source: docs/accelerator.md, "Import"."""

from __future__ import annotations

import mmap
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tosavk.core.checks import check_buffer_info, validate_buffer_desc
from tosavk.core.descriptors import BufferDesc, MemoryDomain
from tosavk.core.device import Allocation, ImportingKit
from tosavk.core.errors import (
    InvalidArgument,
    OutOfMemory,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.ports import byte_view
from tosavk.core.scope import Scope


def aligned_array(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = np.uint8,
    *,
    alignment: int = mmap.PAGESIZE,
) -> NDArray[Any]:
    """An array of zeros in memory of its own whose address is a multiple of something.

    The memory is anonymous and its whole last unit of `alignment` bytes belongs to the
    array, so that an array whose size is a multiple of `alignment` can be imported by
    `Context.import_host_buffer`, and filled by unbuffered reads from a file.

    Args:
        shape: its shape.
        dtype: its type.
        alignment: a power of two, in bytes.

    Raises:
        InvalidArgument: no bytes, or no power of two.
        OutOfMemory: no such memory.
    """
    if alignment <= 0 or alignment & (alignment - 1):
        raise InvalidArgument(f"alignment must be a power of two, got {alignment}")
    kind = np.dtype(dtype)
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for dim in dims:
        count *= dim
    nbytes = count * kind.itemsize
    if nbytes <= 0:
        raise InvalidArgument(f"an array of shape {dims} has no bytes")
    whole = -(-nbytes // alignment) * alignment
    # Memory maps start at pages; for more, the start is chosen within a longer one.
    spare = alignment if alignment > mmap.PAGESIZE else 0
    try:
        pages = mmap.mmap(-1, whole + spare)
    except (OSError, OverflowError, ValueError) as error:
        raise OutOfMemory(f"no host memory for {whole} bytes: {error}") from error
    raw = np.frombuffer(pages, np.uint8)
    start = -address_of(raw.data) % alignment
    return raw[start : start + nbytes].view(kind).reshape(dims)


def address_of(view: memoryview) -> int:
    """The address of the first byte of flat, non-empty bytes."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def import_memory(scope: Scope, desc: BufferDesc, data: object) -> Allocation:
    """Checks and imports; see `Context.import_host_buffer`."""
    shared = scope.shared
    validate_buffer_desc(shared.info, desc)
    shared.require_device("import host memory")
    alignment = getattr(shared.device, "host_import_alignment", None)
    if alignment is None:
        raise Unsupported(
            f"{shared.device.name} cannot import host memory: it lacks "
            "VK_EXT_external_memory_host, or its backend has no such thing"
        )
    if desc.domain is MemoryDomain.DEVICE:
        raise Unsupported(
            "host memory is imported into the domains HOST and SHARED, not DEVICE"
        )
    view = byte_view(data)
    try:
        _check_memory(view, type(data).__name__, desc, int(alignment))
        require_room(scope)
        with shared:
            allocation = cast(ImportingKit, scope.kit).import_memory(desc, view)
            return accepted(desc, allocation)
    except BaseException:
        # A traceback may live long, and with it the view, which locks the memory.
        view.release()
        raise


def require_room(scope: Scope) -> None:
    """Refuses one buffer too many.

    Raises:
        ResourceLimit: the context is full.
    """
    limit = scope.shared.info.limits.max_buffers_per_context
    if scope.buffers >= limit:
        raise ResourceLimit(
            f"context {scope.id} has {limit} buffers, which is "
            "max_buffers_per_context; release one"
        )


def accepted(desc: BufferDesc, allocation: Allocation) -> Allocation:
    """The allocation, if it is as asked for; else it is freed.

    Raises:
        ResourceLimit: it is not aligned as asked.
        InvalidArgument: what it says of itself is nonsense.
        Incompatible: it is something else than was asked for.
    """
    fits = False
    try:
        info = allocation.info
        if info.alignment < desc.alignment:
            raise ResourceLimit(
                f"the memory is aligned to {info.alignment} bytes, "
                f"{desc.alignment} were asked for"
            )
        check_buffer_info(desc, info)
        fits = True
    finally:
        if not fits:
            allocation.free()
    return allocation


def _check_memory(
    view: memoryview, kind: str, desc: BufferDesc, alignment: int
) -> None:
    if view.readonly:
        raise InvalidArgument(
            f"the memory of this {kind} is read-only; the device may write to what it "
            "imports, so import a bytearray, a writable array or a writable mmap"
        )
    if not view.nbytes:
        raise InvalidArgument(f"this {kind} has no bytes")
    address = address_of(view)
    if address % alignment:
        raise InvalidArgument(
            f"the memory of this {kind} is at {address:#x}, which is no multiple of "
            f"{alignment} (host_import_alignment); allocate it with aligned_array"
        )
    if view.nbytes % alignment:
        raise InvalidArgument(
            f"the {view.nbytes} bytes of this {kind} are no multiple of {alignment} "
            "(host_import_alignment); make it longer: the buffer may be smaller"
        )
    if desc.nbytes > view.nbytes:
        raise InvalidArgument(
            f"a buffer of {desc.nbytes} bytes does not fit the {view.nbytes} bytes of "
            f"this {kind}"
        )
