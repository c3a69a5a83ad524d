"""Rules for operators that move data: TRANSPOSE, REVERSE, SLICE, CONCAT, PAD, TILE."""

from __future__ import annotations

import math

import numpy as np

from tosavk.core.dtypes import DType, elements
from tosavk.lowering.builder import (
    PlanBuilder,
    Value,
    destination_words,
    element_strides,
    six,
    whole_words,
)
from tosavk.lowering.graph import Operator
from tosavk.lowering.rules.elementwise import emit_select, literal_word


def copy(op: Operator, build: PlanBuilder) -> None:
    """A contiguous copy, for IDENTITY and RESHAPE that cannot be views."""
    source = build.value(op.inputs[0])
    copy_value(build, source, build.result(op.outputs[0]))


def copy_value(build: PlanBuilder, source: Value, target: Value) -> None:
    """Emits a contiguous copy of all elements."""
    flat = Value(target.dtype, (elements(target.shape),), target.memory)
    build.move(source, flat, (1,), 0)


def transpose(op: Operator, build: PlanBuilder) -> None:
    """TRANSPOSE: permuted strides."""
    perms = op.attributes["perms"]
    assert isinstance(perms, tuple)
    source, target = build.value(op.inputs[0]), build.result(op.outputs[0])
    strides = element_strides(source.shape)
    build.move(source, target, tuple(strides[axis] for axis in perms), 0)


def reverse(op: Operator, build: PlanBuilder) -> None:
    """REVERSE: a negative stride, starting at the far end."""
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    source, target = build.value(op.inputs[0]), build.result(op.outputs[0])
    strides = list(element_strides(source.shape))
    offset = (source.shape[axis] - 1) * strides[axis]
    strides[axis] = -strides[axis]
    build.move(source, target, strides, offset)


def slice_(op: Operator, build: PlanBuilder) -> None:
    """SLICE: an offset into the source."""
    source, target = build.value(op.inputs[0]), build.result(op.outputs[0])
    start = build.integers(op, op.inputs[1])
    strides = element_strides(source.shape)
    offset = sum(s * w for s, w in zip(start, strides, strict=True))
    build.move(source, target, strides, offset)


def concat(op: Operator, build: PlanBuilder) -> None:
    """CONCAT: one dispatch for each input."""
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    target = build.result(op.outputs[0])
    inner = math.prod(target.shape[axis + 1 :])
    sources = [build.value(name) for name in op.inputs]
    lengths = [source.shape[axis] * inner for source in sources]
    # All parts or none: words that two parts share are written one after the other.
    dtype, lanes = whole_words(target.dtype, *lengths)
    row = target.shape[axis] * inner // lanes
    begin = 0
    for source, length in zip(sources, lengths, strict=True):
        packed = dtype.bits < 32
        count = elements(target.shape if packed else source.shape) // lanes
        build.emit(
            "concat",
            spec={"TYPE": dtype},
            params={
                "count": count,
                "row": row,
                "begin": begin,
                "length": length // lanes,
            },
            operands=(source, target),
            columns=destination_words(dtype, count),
        )
        begin += length // lanes


def pad(op: Operator, build: PlanBuilder) -> None:
    """PAD: coordinates shifted by the padding in front, a constant outside."""
    source = build.value(op.inputs[0])
    before = build.integers(op, op.inputs[1])[::2]
    constant = build.constant(op.inputs[2])
    target = build.result(op.outputs[0])
    if constant is None:
        _pad_with_tensor(op, build, target, before)
        return
    fill = literal_word(source.dtype, constant)
    if source.dtype is DType.BOOL:
        fill = int(fill != 0)
    _remap(op, build, target, before=before, fill=fill)


def _pad_with_tensor(
    op: Operator, build: PlanBuilder, target: Value, before: tuple[int, ...]
) -> None:
    """PAD whose constant is known at run time only: padded with 0, then selected."""
    source = build.value(op.inputs[0])
    if source.shape == target.shape:
        copy_value(build, source, target)
        return
    padded = build.temporary(source.dtype, target.shape)
    _remap(op, build, padded, before=before, fill=0)
    inside = np.zeros(target.shape, np.bool_)
    inside[
        tuple(
            slice(start, start + size)
            for start, size in zip(before, source.shape, strict=True)
        )
    ] = True
    key = ("inside", source.shape, target.shape, before)
    mask = build.literal(key, DType.BOOL, inside)
    fill = build.value(op.inputs[2])
    spread = Value(fill.dtype, (1,) * len(target.shape), fill.memory)
    emit_select(build, (mask, padded, spread), target)


def tile(op: Operator, build: PlanBuilder) -> None:
    """TILE: coordinates modulo the source's dimensions."""
    rank = len(build.shape(op.inputs[0]))
    _remap(op, build, build.result(op.outputs[0]), before=(0,) * rank, fill=0)


def _remap(
    op: Operator,
    build: PlanBuilder,
    target: Value,
    *,
    before: tuple[int, ...],
    fill: int,
) -> None:
    source = build.value(op.inputs[0])
    dtype, lanes = target.dtype, 1
    if target.shape:
        dtype, lanes = whole_words(
            dtype, target.shape[-1], source.shape[-1], before[-1]
        )
    wanted, given = (_fewer(v.shape, lanes) for v in (target, source))
    if lanes > 1:
        fill *= 0xFFFF_FFFF // ((1 << 32 // lanes) - 1)
    count = elements(wanted)
    build.emit(
        "remap",
        spec={"OP": op.op, "TYPE": dtype},
        params={
            "count": count,
            **six("d", wanted, fill=1),
            **six("e", given, fill=1),
            **six("s", element_strides(given), fill=0),
            **six("p", _fewer(before, lanes), fill=0),
            "fill": fill,
        },
        operands=(source, target),
        columns=destination_words(dtype, count),
    )


def _fewer(numbers: tuple[int, ...], lanes: int) -> tuple[int, ...]:
    """Numbers of elements with the last one in words of `lanes` elements."""
    return (*numbers[:-1], numbers[-1] // lanes) if numbers else numbers


def gather(op: Operator, build: PlanBuilder) -> None:
    """GATHER: values [N, K, C], indices [N, W] to [N, W, C]."""
    values, indices = build.value(op.inputs[0]), build.value(op.inputs[1])
    target = build.result(op.outputs[0])
    n, w, c = target.shape
    dtype, lanes = whole_words(target.dtype, c)
    c //= lanes
    count = n * w * c
    build.emit(
        "gather",
        spec={"TYPE": dtype},
        params={"count": count, "n": n, "k": values.shape[1], "w": w, "c": c},
        operands=(values, indices, target),
        columns=destination_words(dtype, count),
    )
