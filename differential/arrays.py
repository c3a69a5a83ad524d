"""Arrays between processes: files of plain bytes, which both map into memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, elements
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.graph import Block

Array = NDArray[np.generic]


def write_array(path: Path, array: Array) -> None:
    """Writes the elements as NumPy holds them, in C order, replacing the file."""
    flat = np.asarray(array, order="C").reshape(-1).view(np.uint8)
    # A new file, since others may still have the old one mapped.
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.write(flat.data)


def read_array(path: Path, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The array of a file, mapped, read-only.

    Raises:
        InvalidArgument: the file does not have the size of such an array.
    """
    kind = dtype.numpy
    count = elements(shape)
    size = path.stat().st_size
    if size != count * kind.itemsize:
        raise InvalidArgument(
            f"{path.name} has {size} bytes; {dtype.name} {shape} takes "
            f"{count * kind.itemsize}"
        )
    if not count:
        return np.empty(shape, kind)
    raw = np.memmap(path, np.uint8, "r")
    return np.asarray(raw).view(kind).reshape(shape)


def write_arrays(folder: Path, arrays: Mapping[str, Array]) -> list[str]:
    """Writes arrays as numbered files; returns their names in that order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, array in enumerate(arrays.values()):
        write_array(folder / f"{number}.bin", array)
    return list(arrays)


def read_arrays(folder: Path, names: list[str], block: Block) -> dict[str, Array]:
    """The arrays that `write_arrays` wrote, of tensors of a block.

    Raises:
        InvalidArgument: a file does not fit its tensor.
    """
    found: dict[str, Array] = {}
    for number, name in enumerate(names):
        tensor = block.tensors.get(name)
        if tensor is None or tensor.shape is None:
            raise InvalidArgument(f"{name!r} is no tensor with a shape")
        found[name] = read_array(
            folder / f"{number}.bin", tensor.dtype, tuple(tensor.shape)
        )
    return found


def map_file(path: Path) -> memoryview:
    """The bytes of a file, mapped; what cannot be mapped is read.

    Raises:
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (ValueError, OSError):
            # An empty file, or no file at all but a pipe.
            return memoryview(file.read())
