"""The data types of TOSA and their packed storage.

Ids are those of the TOSA flatbuffer schema. Storage is what lies in device buffers and
in slots: little endian, elements packed without gaps, INT4 two to a byte with the even
element in the low nibble, INT48 in eight bytes (sign extended). Source: TOSA 1.0,
section 1.9 "Tensor definitions", and docs/kernel-interface.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.core.errors import InvalidArgument


class DType(enum.IntEnum):
    """A TOSA data type; the value is its id in the flatbuffer schema."""

    BOOL = 1
    INT4 = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT48 = 6
    FP32 = 7
    FP16 = 8
    BF16 = 9
    SHAPE = 10
    FP8E4M3 = 11
    FP8E5M2 = 12

    @property
    def bits(self) -> int:
        """Bits of one element in device storage."""
        return _BITS[self]

    @property
    def serialized_bits(self) -> int:
        """Bits of one element in a TOSA flatbuffer (INT48 takes six bytes there)."""
        return 48 if self is DType.INT48 else _BITS[self]

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed integer type (BOOL and SHAPE are not)."""
        return self in _INTEGERS

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy type of arrays of this type at tosavk's interfaces."""
        found = _NUMPY.get(self)
        return _extended(self) if found is None else found


_BITS = {
    DType.BOOL: 8,
    DType.INT4: 4,
    DType.INT8: 8,
    DType.INT16: 16,
    DType.INT32: 32,
    DType.INT48: 64,
    DType.FP32: 32,
    DType.FP16: 16,
    DType.BF16: 16,
    DType.SHAPE: 64,
    DType.FP8E4M3: 8,
    DType.FP8E5M2: 8,
}
_FLOATS = frozenset({DType.FP32, DType.FP16, DType.BF16, DType.FP8E4M3, DType.FP8E5M2})
_INTEGERS = frozenset({DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT48})
_NUMPY: dict[DType, np.dtype[np.generic]] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.INT4: np.dtype(np.int8),
    DType.INT8: np.dtype(np.int8),
    DType.INT16: np.dtype(np.int16),
    DType.INT32: np.dtype(np.int32),
    DType.INT48: np.dtype(np.int64),
    DType.FP32: np.dtype(np.float32),
    DType.FP16: np.dtype(np.float16),
    DType.SHAPE: np.dtype(np.int64),
}
_EXTENDED = {
    DType.BF16: "bfloat16",
    DType.FP8E4M3: "float8_e4m3fn",
    DType.FP8E5M2: "float8_e5m2",
}
_BYTE_VIEWS = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


def _extended(dtype: DType) -> np.dtype[np.generic]:
    """The NumPy type of a type that NumPy itself does not have."""
    # Most programs need none of them, and the import takes 5 ms.
    import ml_dtypes

    made: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, _EXTENDED[dtype]))
    _NUMPY[dtype] = made
    return made


def elements(shape: Sequence[int]) -> int:
    """Number of elements of a shape; a rank-0 shape has one."""
    return math.prod(shape)


def storage_bytes(dtype: DType, shape: Sequence[int]) -> int:
    """Exact bytes of a tensor in device storage, not rounded to words."""
    return (elements(shape) * dtype.bits + 7) // 8


def serialized_bytes(dtype: DType, shape: Sequence[int]) -> int:
    """Exact bytes of a tensor's constant data in a TOSA flatbuffer."""
    return (elements(shape) * dtype.serialized_bits + 7) // 8


def pack(dtype: DType, array: NDArray[np.generic]) -> memoryview:
    """The storage bytes of an array; a view of it where no conversion is needed.

    Args:
        dtype: the TOSA type of the tensor.
        array: any shape, of type `dtype.numpy`, or as `coerce` gives it.

    Returns:
        A flat read-only byte view, `storage_bytes(dtype, array.shape)` long.
    """
    flat = np.ascontiguousarray(array, dtype.numpy).reshape(-1)
    if dtype is DType.INT4:
        flat = _pack_nibbles(flat)
    return flat.view(np.uint8).data.toreadonly()


def unpack(
    dtype: DType, data: bytes | bytearray | memoryview, shape: Sequence[int]
) -> NDArray[np.generic]:
    """The array that storage bytes stand for; a view of `data` where possible.

    Raises:
        InvalidArgument: `data` is shorter than the tensor.
    """
    need = storage_bytes(dtype, shape)
    if len(data) < need:
        raise InvalidArgument(
            f"{dtype.name} tensor of shape {tuple(shape)} needs {need} bytes, "
            f"got {len(data)}"
        )
    raw = np.frombuffer(data, np.uint8, need)
    if dtype is DType.INT4:
        return _unpack_nibbles(raw, elements(shape)).reshape(tuple(shape))
    return raw.view(dtype.numpy).reshape(tuple(shape))


def unpack_serialized(
    dtype: DType, data: bytes | bytearray | memoryview, shape: Sequence[int]
) -> NDArray[np.generic]:
    """Like `unpack`, for constant data as it stands in a TOSA flatbuffer."""
    if dtype is not DType.INT48:
        return unpack(dtype, data, shape)
    count = elements(shape)
    if len(data) < 6 * count:
        raise InvalidArgument(
            f"INT48 tensor of shape {tuple(shape)} needs {6 * count} bytes, "
            f"got {len(data)}"
        )
    wide = np.zeros((count, 8), np.uint8)
    wide[:, :6] = np.frombuffer(data, np.uint8, 6 * count).reshape(count, 6)
    wide[:, 6:] = np.where(wide[:, 5:6] & 0x80, 0xFF, 0)
    return wide.view("<i8").reshape(tuple(shape))


def pack_serialized(dtype: DType, array: NDArray[np.generic]) -> bytes:
    """Like `pack`, in the form of constant data in a TOSA flatbuffer."""
    if dtype is not DType.INT48:
        return bytes(pack(dtype, array))
    flat = np.ascontiguousarray(array, "<i8").reshape(-1, 1)
    return flat.view(np.uint8)[:, :6].tobytes()


def coerce(
    name: str, dtype: DType, array: object, *, canonical_bool: bool = True
) -> NDArray[np.generic]:
    """Checks a user's array against a tensor type and gives it in `dtype.numpy`.

    BF16 and the FP8 types also accept unsigned integers of the same width (bit
    patterns), INT4 accepts `ml_dtypes.int4`; SHAPE and INT48 any integer type.

    Raises:
        InvalidArgument: the array's type does not stand for `dtype`.
    """
    value = np.asarray(array)
    want = dtype.numpy
    if value.dtype == want:
        pass
    elif dtype in {DType.BF16, DType.FP8E4M3, DType.FP8E5M2} and (
        value.dtype == _BYTE_VIEWS[want.itemsize]
        or (value.dtype.kind == "V" and value.dtype.itemsize == want.itemsize)
    ):
        value = value.view(want)
    elif dtype is DType.INT4 and value.dtype.name == "int4":
        value = value.astype(np.int8)
    elif dtype in {DType.INT48, DType.SHAPE} and value.dtype.kind in "iu":
        value = value.astype(np.int64)
    elif dtype is DType.BOOL and value.dtype in (np.dtype(np.uint8), np.dtype(np.int8)):
        value = (value != 0) if canonical_bool else value.view(np.bool_)
    else:
        raise InvalidArgument(
            f"{name!r} is {dtype.name}, which is {want} in NumPy; "
            f"got an array of {value.dtype}"
        )
    if dtype is DType.INT4 and value.size and (value.min() < -8 or value.max() > 7):
        raise InvalidArgument(f"{name!r} is INT4; its values must lie in -8..7")
    return value


def _pack_nibbles(flat: NDArray[np.generic]) -> NDArray[np.uint8]:
    nibbles = flat.view(np.uint8) & 0xF
    if nibbles.size % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    pairs = nibbles.reshape(-1, 2)
    return (pairs[:, 0] | (pairs[:, 1] << 4)).astype(np.uint8)


def _unpack_nibbles(raw: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    nibbles = np.stack((raw & 0xF, raw >> 4), axis=-1).reshape(-1)[:count]
    return ((nibbles ^ 8).astype(np.int8) - np.int8(8)).astype(np.int8)
