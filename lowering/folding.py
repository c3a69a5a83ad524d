"""Evaluation of constant operators at load, where NumPy's result is exact.

Only operators that move data or widen floats are folded here, since their result does
not depend on who computes it. Other operators on constants become the plan's prologue
and run once on the device, so that they have the device kernels' own bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, unpack_serialized
from tosavk.lowering.graph import Block, Op, Operator, Tensor

Array = NDArray[np.generic]

_EXACT_CASTS = frozenset(
    {
        (DType.FP16, DType.FP32),
        (DType.BF16, DType.FP32),
        (DType.FP8E4M3, DType.FP32),
        (DType.FP8E5M2, DType.FP32),
        (DType.FP8E4M3, DType.FP16),
        (DType.FP8E5M2, DType.FP16),
        (DType.FP8E4M3, DType.BF16),
        (DType.FP8E5M2, DType.BF16),
    }
)


def constant_value(tensor: Tensor) -> Array:
    """The array of a tensor that has constant data; a view where possible."""
    assert tensor.data is not None
    assert tensor.shape is not None
    value = unpack_serialized(tensor.dtype, tensor.data, tensor.shape)
    if tensor.dtype is DType.BOOL:
        return np.not_equal(value.view(np.uint8), 0)
    return value


def fold(block: Block, live: Sequence[Operator]) -> dict[str, Array]:
    """Values of all tensors that exact evaluation can give.

    Args:
        block: a verified block.
        live: its operators that are not dead, in execution order.
    """
    values: dict[str, Array] = {
        tensor.name: constant_value(tensor)
        for tensor in block.tensors.values()
        if tensor.data is not None
        and not tensor.variable
        and tensor.name not in block.inputs
    }
    for op in live:
        rule = _FOLDERS.get(op.op)
        if rule is None or not all(name in values for name in op.inputs):
            continue
        target = block.tensors[op.outputs[0]]
        source = block.tensors[op.inputs[0]] if op.inputs else target
        if op.op is Op.CAST and (source.dtype, target.dtype) not in _EXACT_CASTS:
            continue
        operands = [values[name] for name in op.inputs]
        values[target.name] = rule(op, target, operands)
    return values


def _reshape(op: Operator, target: Tensor, operands: list[Array]) -> Array:
    del op
    assert target.shape is not None
    return operands[0].reshape(target.shape)


def _cast(op: Operator, target: Tensor, operands: list[Array]) -> Array:
    del op
    return operands[0].astype(target.dtype.numpy)


def _transpose(op: Operator, target: Tensor, operands: list[Array]) -> Array:
    del target
    perms = op.attributes["perms"]
    assert isinstance(perms, tuple)
    return np.transpose(operands[0], perms)


def _reverse(op: Operator, target: Tensor, operands: list[Array]) -> Array:
    del target
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    return np.flip(operands[0], axis)


def _slice(op: Operator, target: Tensor, operands: list[Array]) -> Array:
    del op
    assert target.shape is not None
    index = tuple(
        slice(int(start), int(start) + size)
        for start, size in zip(operands[1].reshape(-1), target.shape, strict=True)
    )
    return operands[0][index]


def _concat(op: Operator, target: Tensor, operands: list[Array]) -> Array:
    del target
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    return np.concatenate(operands, axis=axis)


def _tile(op: Operator, target: Tensor, operands: list[Array]) -> Array:
    del op, target
    return np.tile(operands[0], tuple(int(m) for m in operands[1].reshape(-1)))


def _pad(op: Operator, target: Tensor, operands: list[Array]) -> Array:
    del op
    assert target.shape is not None
    result = np.full(target.shape, operands[2].reshape(-1)[0], operands[0].dtype)
    before = operands[1].reshape(-1, 2)[:, 0]
    index = tuple(
        slice(int(start), int(start) + size)
        for start, size in zip(before, operands[0].shape, strict=True)
    )
    result[index] = operands[0]
    return result


_FOLDERS: dict[Op, Callable[[Operator, Tensor, list[Array]], Array]] = {
    Op.IDENTITY: _reshape,
    Op.RESHAPE: _reshape,
    Op.CAST: _cast,
    Op.TRANSPOSE: _transpose,
    Op.REVERSE: _reverse,
    Op.SLICE: _slice,
    Op.CONCAT: _concat,
    Op.TILE: _tile,
    Op.PAD: _pad,
}
