"""FP32 operands for the kernels that compute in FP32 only.

The convolutions and the matrix product have FP32 kernels. Narrow floats are widened
before and narrowed once after, which is exactly what "accumulate in FP32" means, so
the result is the same as that of a kernel that did it all. Constants are widened, laid
out and filled up at load.
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
from tosavk.lowering.graph import Op, Operator


def round_up(count: int, multiple: int) -> int:
    """The next multiple."""
    return -(-count // multiple) * multiple


def widened(build: PlanBuilder, name: str) -> Value:
    """A tensor as FP32."""
    dtype = build.tensor(name).dtype
    if dtype is DType.FP32:
        return build.value(name)
    array = build.constant(name)
    if array is not None:
        return build.literal(("widened", name), DType.FP32, array.astype(np.float32))
    target = build.temporary(DType.FP32, build.shape(name))
    _cast(build, build.value(name), target)
    return target


def filled(
    build: PlanBuilder,
    name: str,
    *,
    seen_as: Sequence[int],
    axes: Sequence[int],
    shape: Sequence[int],
) -> Value:
    """A tensor as FP32 with permuted axes and zeros behind its last one.

    Args:
        build: the plan builder.
        name: the tensor.
        seen_as: the shape to see it in first (same elements).
        axes: axes of that shape in the wanted order.
        shape: the wanted shape; only the last dimension may be larger.
    """
    wanted = tuple(shape)
    dims = tuple(seen_as[axis] for axis in axes)
    array = build.constant(name)
    if array is not None:
        turned = np.transpose(array.reshape(tuple(seen_as)), tuple(axes))
        room = [(0, w - d) for w, d in zip(wanted, dims, strict=True)]
        data: NDArray[np.generic] = np.pad(turned.astype(np.float32), room)
        return build.literal(("filled", name, tuple(axes), wanted), DType.FP32, data)
    source = widened(build, name)
    if dims == wanted and tuple(axes) == tuple(range(len(dims))):
        return Value(source.dtype, wanted, source.memory)
    strides = element_strides(seen_as)
    walk = tuple(strides[axis] for axis in axes)
    return _remap(build, Op.PAD, source, wanted, dims, walk)


def bias_row(build: PlanBuilder, name: str, channels: int, width: int) -> Value:
    """A bias of shape [channels] or [1] as FP32 [width], zeros behind it."""
    array = build.constant(name)
    if array is not None:
        row = np.zeros(width, np.float32)
        row[:channels] = array.astype(np.float32).reshape(-1)
        return build.literal(("bias", name, channels, width), DType.FP32, row)
    source = widened(build, name)
    if source.shape == (width,):
        return source
    if source.shape == (1,) and channels > 1:
        return _remap(build, Op.TILE, source, (width,), (1,), (1,))
    return _remap(build, Op.PAD, source, (width,), source.shape, (1,))


def result_of(op: Operator, build: PlanBuilder) -> Value:
    """Where an FP32 kernel writes the operator's result; `narrow` finishes it."""
    name = op.outputs[0]
    if build.tensor(name).dtype is DType.FP32:
        return build.result(name)
    return build.temporary(DType.FP32, build.shape(name))


def narrow(op: Operator, build: PlanBuilder, result: Value) -> None:
    """Narrows what the kernel wrote to the operator's own output type."""
    target = build.result(op.outputs[0])
    if target.dtype is not DType.FP32:
        _cast(build, result, target)


def require_float(op: Operator, build: PlanBuilder, names: Sequence[str]) -> None:
    """Refuses operands that are not floats.

    Raises:
        AdmissionError: with the first such operand.
    """
    for name in names:
        dtype = build.tensor(name).dtype
        if not dtype.is_float:
            build.refuse(op, f"operand {name!r} is {dtype.name}; only floats are done")


def pair(op: Operator, field: str) -> tuple[int, int]:
    """An attribute of two integers, (y, x)."""
    value = op.attributes[field]
    assert isinstance(value, tuple)
    y, x = value
    return y, x


def quad(op: Operator, field: str) -> tuple[int, int, int, int]:
    """An attribute of four integers, (top, bottom, left, right)."""
    value = op.attributes[field]
    assert isinstance(value, tuple)
    top, bottom, left, right = value
    return top, bottom, left, right


def _cast(build: PlanBuilder, source: Value, target: Value) -> None:
    count = elements(target.shape)
    build.emit(
        "cast",
        spec={"X_TYPE": source.dtype, "Y_TYPE": target.dtype},
        params={"count": count},
        operands=(source, target),
        columns=destination_words(target.dtype, count),
    )


def _remap(
    build: PlanBuilder,
    how: Op,
    source: Value,
    wanted: Sequence[int],
    dims: Sequence[int],
    strides: Sequence[int],
) -> Value:
    target = build.temporary(DType.FP32, wanted)
    count = elements(wanted)
    build.emit(
        "remap",
        spec={"OP": how, "TYPE": DType.FP32},
        params={
            "count": count,
            **six("d", wanted, fill=1),
            **six("e", dims, fill=1),
            **six("s", strides, fill=0),
            **six("p", (0,) * len(wanted), fill=0),
            "fill": 0,
        },
        operands=(source, target),
        columns=count,
    )
    return target
