"""Operands of the integer kernels: weights as INT8, zero points and the like in one row.

Integer kernels take their small operands (zero points, bias, multipliers, shifts) as one
row of words. Constants are laid out at load; operands that are known at run time only
are cast and joined by dispatches, so both cases have the same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, elements
from tosavk.lowering.builder import (
    PlanBuilder,
    Value,
    destination_words,
    element_strides,
    six,
)
from tosavk.lowering.graph import Op


def number_row(build: PlanBuilder, names: Sequence[str]) -> Value:
    """Integer operands one after the other, an INT32 each; an INT48 gives two words.

    Args:
        build: the plan builder.
        names: the operands, in order.
    """
    arrays = [build.constant(name) for name in names]
    known = [array for array in arrays if array is not None]
    if len(known) == len(names):
        row = np.concatenate(
            [
                _words(build.tensor(name).dtype, array)
                for name, array in zip(names, known, strict=True)
            ]
        )
        return build.literal(("numbers", *names), DType.INT32, row)
    parts = [_as_words(build, name) for name in names]
    total = sum(part.shape[0] for part in parts)
    target = build.temporary(DType.INT32, (total,))
    begin = 0
    for part in parts:
        length = part.shape[0]
        build.emit(
            "concat",
            spec={"TYPE": DType.INT32},
            params={"count": length, "row": total, "begin": begin, "length": length},
            operands=(part, target),
            columns=length,
        )
        begin += length
    return target


def filled_bytes(
    build: PlanBuilder,
    name: str,
    *,
    seen_as: Sequence[int],
    axes: Sequence[int],
    width: int,
) -> Value:
    """An INT4 or INT8 operand as INT8 with permuted axes and zeros behind its last one.

    Args:
        build: the plan builder.
        name: the tensor.
        seen_as: the shape to see it in first (same elements).
        axes: axes of that shape in the wanted order.
        width: the wanted size of the last axis.
    """
    dims = tuple(seen_as[axis] for axis in axes)
    array = build.constant(name)
    if array is not None:
        turned = np.transpose(array.reshape(tuple(seen_as)), tuple(axes))
        key = ("bytes", name, tuple(seen_as), tuple(axes), width)
        return build.literal(key, DType.INT8, filled_up(turned, width))
    source = build.value(name)
    if source.dtype is DType.INT4:
        source = _cast(build, source, DType.INT8)
    strides = element_strides(seen_as)
    walk = tuple(strides[axis] for axis in axes)
    return filled_rows(build, source, dims, walk, width)


def filled_up(array: NDArray[np.generic], width: int) -> NDArray[np.generic]:
    """An array whose last axis is filled up with zeros."""
    room = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    filled: NDArray[np.generic] = np.pad(array, room)
    return filled


def filled_rows(
    build: PlanBuilder,
    source: Value,
    dims: Sequence[int],
    walk: Sequence[int],
    width: int,
) -> Value:
    """A strided view of a value, its last axis filled up with zeros by a dispatch.

    Args:
        build: the plan builder.
        source: the value.
        dims: dimensions of the view.
        walk: its strides in elements of `source`.
        width: the wanted size of the last axis.
    """
    return padded(build, source, (*dims[:-1], width), dims, walk)


def padded(
    build: PlanBuilder,
    source: Value,
    wanted: Sequence[int],
    dims: Sequence[int],
    walk: Sequence[int],
) -> Value:
    """A view of `source` with zeros behind it along every axis, at run time.

    Args:
        build: the plan builder.
        source: the value.
        wanted: dimensions of the result.
        dims: dimensions of the view.
        walk: its strides in elements of `source`.
    """
    target = build.temporary(source.dtype, tuple(wanted))
    count = elements(wanted)
    build.emit(
        "remap",
        spec={"OP": Op.PAD, "TYPE": source.dtype},
        params={
            "count": count,
            **six("d", wanted, fill=1),
            **six("e", dims, fill=1),
            **six("s", walk, fill=0),
            **six("p", (0,) * len(wanted), fill=0),
            "fill": 0,
        },
        operands=(source, target),
        columns=destination_words(source.dtype, count),
    )
    return target


def _words(dtype: DType, array: NDArray[np.generic]) -> NDArray[np.int32]:
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype is DType.INT48:
        return flat.astype("<i8").view("<i4")
    return flat.astype(np.int32)


def _as_words(build: PlanBuilder, name: str) -> Value:
    source = build.value(name)
    count = elements(source.shape)
    if source.dtype is DType.INT48:
        return Value(DType.INT32, (2 * count,), source.memory)
    if source.dtype is not DType.INT32:
        source = _cast(build, source, DType.INT32)
    return Value(DType.INT32, (count,), source.memory)


def _cast(build: PlanBuilder, source: Value, dtype: DType) -> Value:
    target = build.temporary(dtype, source.shape)
    count = elements(source.shape)
    build.emit(
        "cast",
        spec={"X_TYPE": source.dtype, "Y_TYPE": dtype},
        params={"count": count},
        operands=(source, target),
        columns=destination_words(dtype, count),
    )
    return target
