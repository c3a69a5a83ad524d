"""Inputs chosen by the operator that reads them.

Uniform numbers find wrong indices; wide ranges, special values and sums that cancel find
wrong arithmetic. Values that an operator must not be given, such as an index outside of
a table, are never chosen.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType
from tosavk.differential.inputs import random_array
from tosavk.lowering.graph import Block, Op, Operator, Tensor
from tosavk.lowering.late import late_operands

Array = NDArray[np.generic]
Wide = NDArray[np.float64]


class Style(enum.StrEnum):
    """A way to choose values."""

    UNIFORM = "uniform"
    RANGES = "ranges"
    CANCELLATION = "cancellation"
    SPECIALS = "specials"


class Generator(enum.StrEnum):
    """How the values of a run are chosen: one style for all, or by operator.

    `auto` takes uniform values for the first run, wide ranges for the second, for the
    third sums that cancel where the operator adds, and special values for the fourth;
    then it starts again with other seeds.
    """

    AUTO = "auto"
    UNIFORM = "uniform"
    RANGES = "ranges"
    CANCELLATION = "cancellation"
    SPECIALS = "specials"


_TURNS = (Style.UNIFORM, Style.RANGES, Style.CANCELLATION, Style.SPECIALS)
_MOVES = frozenset(
    {
        Op.CONCAT,
        Op.IDENTITY,
        Op.PAD,
        Op.RESHAPE,
        Op.REVERSE,
        Op.SLICE,
        Op.TILE,
        Op.TRANSPOSE,
    }
)
_SUMS = frozenset(
    {
        Op.ADD,
        Op.AVG_POOL2D,
        Op.CONV2D,
        Op.CONV3D,
        Op.DEPTHWISE_CONV2D,
        Op.FFT2D,
        Op.MATMUL,
        Op.REDUCE_SUM,
        Op.RFFT2D,
        Op.SUB,
        Op.TRANSPOSE_CONV2D,
    }
)
_POSITIVE = frozenset({Op.LOG, Op.RSQRT})
_SHIFTS = frozenset(
    {Op.ARITHMETIC_RIGHT_SHIFT, Op.LOGICAL_LEFT_SHIFT, Op.LOGICAL_RIGHT_SHIFT}
)
_EXPONENTS: dict[Op, tuple[float, float]] = {
    Op.EXP: (-10.0, 6.4),
    Op.POW: (-3.0, 3.0),
    Op.SIGMOID: (-10.0, 6.0),
    Op.SIN: (-10.0, 12.0),
    Op.COS: (-10.0, 12.0),
    Op.TANH: (-10.0, 5.0),
}
_SPECIALS = (
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1.0,
    -1.0,
    0.5,
    1.5,
    -2.5,
    2.0**-126,
    2.0**-140,
    -(2.0**-149),
    2.0**-24,
    448.0,
    57344.0,
    65504.0,
    65520.0,
    2147483648.0,
    3.0e38,
    -3.4028234e38,
    1 + 2.0**-23,
    1 - 2.0**-24,
)
_INTEGER_BITS = {DType.INT4: 4, DType.INT48: 48, DType.SHAPE: 8}


@dataclass(frozen=True, slots=True)
class _Reader:
    """An operator that reads an input, and as which of its operands."""

    op: Operator
    position: int
    block: Block

    def operand(self, position: int) -> Tensor:
        return self.block.tensors[self.op.inputs[position]]


def style_of(generator: Generator, sample: int, block: Block, name: str) -> Style:
    """The style of one input's values in one run."""
    if generator is not Generator.AUTO:
        return Style(generator.value)
    style = _TURNS[sample % len(_TURNS)]
    if style is Style.CANCELLATION:
        adds = any(reader.op.op in _SUMS for reader in _readers(block, name))
        return style if adds else Style.RANGES
    return style


def generate(
    block: Block, name: str, *, style: Style, seed: int, restrict: bool
) -> Array:
    """Values for an input.

    Args:
        block: a verified block.
        name: of the input.
        style: how to choose.
        seed: with the input's position, decides everything.
        restrict: keep to what the operators that read it may be given.
    """
    tensor = block.tensors[name]
    shape = tuple(tensor.shape or ())
    position = block.inputs.index(name)
    rng = np.random.default_rng([seed, position])
    readers = list(_readers(block, name)) if restrict else []
    dtype = tensor.dtype
    plain = random_array(dtype, shape, rng)
    if dtype is DType.BOOL:
        return plain
    if any(_always_zero(reader) for reader in readers):
        return np.zeros(shape, dtype.numpy)
    if dtype.is_float:
        if style is not Style.UNIFORM:
            wide = _floats(rng, tensor, style, readers, block, seed)
        elif any(_positive(reader) for reader in readers):
            wide = plain.astype(np.float64)
        else:
            return plain
        if any(_positive(reader) for reader in readers):
            wide = np.where(wide < 0, -wide, np.where(wide == 0, 1.0, wide))
        with np.errstate(all="ignore"):
            return wide.astype(np.float32).astype(dtype.numpy)
    return _integers(rng, tensor, plain, style, readers)


def _readers(block: Block, name: str) -> Iterator[_Reader]:
    """The operators that compute with a tensor, through those that only move it."""
    seen = {name}
    for op in block.operators:
        for position, operand in enumerate(op.inputs):
            if operand not in seen:
                continue
            if op.op in _MOVES and (position == 0 or op.op is Op.CONCAT):
                seen.update(op.outputs)
            else:
                yield _Reader(op, position, block)


def _always_zero(reader: _Reader) -> bool:
    """Whether an operand must be 0: most zero points, and most shifts of MUL."""
    op = reader.op
    if op.op is Op.RESCALE and reader.position in (1, 2):
        return False
    if op.op is Op.MUL and reader.operand(0).dtype is DType.INT32:
        return False
    name = op.inputs[reader.position]
    return name in late_operands(op, reader.block.tensors)


def _positive(reader: _Reader) -> bool:
    base = reader.op.op is Op.POW and reader.position == 0
    return base or reader.op.op in _POSITIVE


def _floats(
    rng: np.random.Generator,
    tensor: Tensor,
    style: Style,
    readers: list[_Reader],
    block: Block,
    seed: int,
) -> Wide:
    shape = tuple(tensor.shape or ())
    uniform = rng.uniform(-1, 1, shape)
    if style is Style.SPECIALS:
        pick = np.array(_SPECIALS)[rng.integers(0, len(_SPECIALS), shape)]
        return np.where(rng.random(shape) < 0.3, pick, uniform)
    if style is Style.CANCELLATION:
        return _cancelling(rng, tensor, readers, block, seed)
    low, high = _exponents(tensor.dtype, readers)
    return np.where(uniform < 0, -1.0, 1.0) * np.exp2(rng.uniform(low, high, shape))


def _exponents(dtype: DType, readers: list[_Reader]) -> tuple[float, float]:
    """Powers of two between which the magnitudes lie."""
    whole = {
        DType.FP16: (-14.0, 15.0),
        DType.FP8E4M3: (-6.0, 8.0),
        DType.FP8E5M2: (-14.0, 15.0),
    }.get(dtype, (-120.0, 120.0))
    widest = whole
    for reader in readers:
        limits = _EXPONENTS.get(reader.op.op)
        if limits is None and (reader.op.op in _SUMS or reader.op.op is Op.MUL):
            # Sums of many products must not all overflow.
            limits = (whole[0] / 4, whole[1] / 4)
        if limits is not None:
            widest = (max(widest[0], limits[0]), min(widest[1], limits[1]))
    return widest


def _cancelling(
    rng: np.random.Generator,
    tensor: Tensor,
    readers: list[_Reader],
    block: Block,
    seed: int,
) -> Wide:
    """Numbers whose sums nearly cancel: what is left needs every bit.

    Two inputs that are added (subtracted) have opposite (equal) values up to a few
    units; other sums run over neighbours of opposite signs.
    """
    shape = tuple(tensor.shape or ())
    noise = (rng.random(shape) - 0.5) * 2.0**-6
    for reader in readers:
        if reader.op.op not in (Op.ADD, Op.SUB):
            continue
        names = reader.op.inputs[:2]
        if all(n in block.inputs and block.tensors[n].shape == shape for n in names):
            pair = np.random.default_rng([seed, zlib.crc32("+".join(names).encode())])
            base = pair.uniform(1, 2, shape) * np.exp2(pair.integers(0, 8, shape))
            sign = -1.0 if reader.position and reader.op.op is Op.ADD else 1.0
            return np.asarray(sign * base * (1 + noise))
    count = int(np.prod(shape, dtype=np.int64))
    large = np.exp2(rng.integers(0, 8, count // 2 + 1).astype(np.float64))
    paired = np.repeat(large, 2)[:count] * np.where(np.arange(count) % 2, -1.0, 1.0)
    return np.asarray(paired.reshape(shape) * (1 + noise))


def _integers(
    rng: np.random.Generator,
    tensor: Tensor,
    plain: Array,
    style: Style,
    readers: list[_Reader],
) -> Array:
    shape = tuple(tensor.shape or ())
    bits = _INTEGER_BITS.get(tensor.dtype, tensor.dtype.bits)
    least = -(1 << (bits - 1)) + (1 if tensor.dtype is DType.INT4 else 0)
    most = (1 << (bits - 1)) - 1
    low, high = least, most
    for reader in readers:
        a, b = _allowed(reader, least, most)
        low, high = max(low, a), min(high, b)
    for reader in readers:
        if reader.op.op is Op.SCATTER and reader.position == 1:
            rows = reader.operand(0).shape or (1, 1)
            order = [rng.permutation(rows[1])[: shape[1]] for _ in range(shape[0])]
            return np.array(order).astype(tensor.dtype.numpy).reshape(shape)
    if style is Style.UNIFORM and (low, high) == (least, most):
        return plain
    wide = rng.integers(low, high, shape, dtype=np.int64, endpoint=True)
    if style is Style.RANGES:
        shift = rng.integers(0, max(1, bits - 1), shape)
        wide = wide >> shift
    elif style is Style.SPECIALS:
        edges = np.clip([low, low + 1, -1, 0, 1, high - 1, high], low, high)
        pick = edges[rng.integers(0, len(edges), shape)]
        wide = np.where(rng.random(shape) < 0.4, pick, wide)
    elif style is Style.CANCELLATION:
        sign = np.where(np.arange(wide.size).reshape(shape) % 2, -1, 1)
        wide = np.abs(wide) * sign
    wide = np.clip(wide, low, high)
    if any(r.op.op is Op.INTDIV and r.position == 1 for r in readers):
        wide = np.where(wide == 0, 1, wide)
    return wide.astype(tensor.dtype.numpy)


def _allowed(reader: _Reader, least: int, most: int) -> tuple[int, int]:
    """Between which numbers an operand may lie, so that the result is defined."""
    op = reader.op.op
    if op is Op.RESCALE and reader.position == 1:
        return most // 2 + 1, most
    if op is Op.RESCALE and reader.position == 2:
        # The product with such a multiplier has about the size of the input again.
        bits = reader.operand(1).dtype.bits
        return bits - 1, bits + 6
    if op is Op.MUL and reader.position == 2:
        return 0, 31
    if op is Op.GATHER and reader.position == 1:
        return 0, (reader.operand(0).shape or (1, 1))[1] - 1
    if op in _SHIFTS and reader.position == 1:
        return 0, most.bit_length() if most < 1 << 31 else 31
    if op in (Op.ADD, Op.SUB):
        return least // 2 + 1, most // 2
    if op is Op.MUL and most >= 1 << 31:
        return -(1 << 15), 1 << 15
    if op is Op.REDUCE_SUM and most >= 1 << 31:
        axis = reader.op.attributes.get("axis", 0)
        shape = reader.operand(0).shape or (1,)
        many = shape[axis] if isinstance(axis, int) else 1
        return least // max(1, many) + 1, most // max(1, many)
    if op in (Op.ABS, Op.NEGATE, Op.INTDIV):
        return least + 1, most
    return least, most
