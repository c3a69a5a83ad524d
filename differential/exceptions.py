"""Differences that are known and not a fault of the programs: the table, and the tests.

Strict mode promises equal bits on devices whose arithmetic is IEEE. Where a device's is
not, a known-answer test on that device says so; what the driver advertises, and what it
is called, do not count. Only a difference that the exception explains, element by
element, is excused. Source: docs/numerics.md, "Known exceptions".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference.oracle import DOT_PRODUCTS
from tosavk.backends.session import Session
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import DType
from tosavk.differential.compare import bits_of
from tosavk.lowering.graph import Op
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

Array = NDArray[Any]

SMALLEST_NORMAL = 2.0**-126
_SUBNORMAL = 2.0**-130


class Trait(enum.StrEnum):
    """A way in which a device's FP32 arithmetic departs from IEEE."""

    FLUSHES_SUBNORMALS = "flushes FP32 subnormals"
    LOSES_ZERO_SIGN = "the sign of a zero sum"


_EXACT_OPS = frozenset({Op.ADD, Op.SUB, Op.MUL})
_SUMS = DOT_PRODUCTS | {Op.REDUCE_SUM, Op.REDUCE_PRODUCT, Op.RESIZE}


@dataclass(frozen=True, slots=True)
class KnownException:
    """What a trait may change.

    Attributes:
        trait: the device's trait.
        ops: operators whose results may show it.
        dtypes: types of those results.
    """

    trait: Trait
    ops: frozenset[Op]
    dtypes: frozenset[DType]


EXCEPTIONS: tuple[KnownException, ...] = (
    KnownException(
        Trait.FLUSHES_SUBNORMALS,
        _EXACT_OPS | _SUMS,
        frozenset({DType.FP32, DType.BF16}),
    ),
    KnownException(
        Trait.LOSES_ZERO_SIGN,
        frozenset(_SUMS),
        frozenset({DType.FP32, DType.FP16, DType.BF16}),
    ),
)
"""The known exceptions."""


def traits(accelerator: Accelerator) -> frozenset[Trait]:
    """Asks a device by a program whose answers are known.

    Raises:
        ModelError: the device cannot run the program.
    """
    lowered = lower_graph(
        load_graph(_question()), limits=accelerator.device.plan_limits
    )
    tiny = np.array([[_SUBNORMAL, -_SUBNORMAL]], np.float32)
    zeros = np.full((1, 1, 2), -0.0, np.float32)
    with Session(accelerator, lowered) as session:
        answer = session.run({"tiny": tiny, "zeros": zeros})
    found: set[Trait] = set()
    # Each of these is `tiny` itself on an IEEE device.
    if not all(np.array_equal(answer[name], tiny) for name in ("sum", "product")):
        found.add(Trait.FLUSHES_SUBNORMALS)
    # A sum starts at +0, and +0 + -0 is +0.
    if any(np.signbit(answer[name]).any() for name in ("reduced", "matmul")):
        found.add(Trait.LOSES_ZERO_SIGN)
    return frozenset(found)


def excuses(
    op: Op,
    dtype: DType,
    operands: Sequence[Array],
    left: Array,
    right: Array,
    present: frozenset[Trait],
) -> tuple[Trait, ...]:
    """The traits that explain every difference of one operator's result.

    Args:
        op: the operator.
        dtype: type of the result.
        operands: that both sides were given.
        left: one side's result.
        right: the other side's result.
        present: traits of either device.

    Returns:
        The traits; empty when there is any element that they do not explain.
    """
    apart = bits_of(left) != bits_of(right)
    with np.errstate(all="ignore"):
        apart &= ~(_is_nan(left) & _is_nan(right))
        used: list[Trait] = []
        for known in EXCEPTIONS:
            if (
                known.trait not in present
                or op not in known.ops
                or dtype not in known.dtypes
                or not apart.any()
            ):
                continue
            explained = apart & _EXPLAIN[known.trait](op, dtype, operands, left, right)
            if explained.any():
                used.append(known.trait)
            apart &= ~explained
    return () if apart.any() else tuple(used)


def excuses_output(
    dtype: DType, left: Array, right: Array, present: frozenset[Trait]
) -> tuple[Trait, ...]:
    """The traits that explain a program's output as it stands.

    Only signs of zeros, and values that are zero or subnormal on both sides, are
    excused; what an exception in the middle of a program does to its end is for the
    comparison of operators to say.
    """
    if dtype not in (DType.FP32, DType.BF16):
        return ()
    a, b = left.astype(np.float64), right.astype(np.float64)
    apart = (bits_of(left) != bits_of(right)) & ~(np.isnan(a) & np.isnan(b))
    if Trait.FLUSHES_SUBNORMALS in present:
        limit = SMALLEST_NORMAL
        if not (apart & ~((np.abs(a) <= limit) & (np.abs(b) <= limit))).any():
            return (Trait.FLUSHES_SUBNORMALS,)
    if Trait.LOSES_ZERO_SIGN in present and not (apart & ~((a == 0) & (b == 0))).any():
        return (Trait.LOSES_ZERO_SIGN,)
    return ()


def _question() -> bytes:
    b = Builder()
    tiny = b.input("tiny", DType.FP32, (1, 2))
    zeros = b.input("zeros", DType.FP32, (1, 1, 2))
    # Constants of one element that are no literals in any shader.
    b.output(b.add(tiny, b.const(np.zeros((1, 2), np.float32)), name="sum"))
    b.output(b.mul(tiny, b.const(np.ones((1, 2), np.float32)), name="product"))
    b.output(b.reduce_sum(zeros, 2, name="reduced"))
    ones = b.const(np.ones((1, 2, 1), np.float32))
    b.output(b.matmul(zeros, ones, name="matmul"))
    return b.build()


def _is_nan(array: Array) -> Array:
    return np.isnan(array.astype(np.float64))


def _flushed(array: Array) -> Array:
    small = np.abs(array) < np.float32(SMALLEST_NORMAL)
    return np.where(small, np.copysign(np.float32(0), array), array)


def _flushed_result(rounded: Array, exact: Array) -> Array:
    """A result without subnormals: also what would only round up to a normal number."""
    tiny = np.abs(exact) < SMALLEST_NORMAL
    return np.where(tiny, np.copysign(np.float32(0), rounded), rounded)


def flushed_operand(dtype: DType, array: Array) -> Array:
    """An operand as a device that flushes FP32 subnormals sees it."""
    if dtype not in (DType.FP32, DType.BF16):
        return array
    wide = array.astype(np.float32)
    return np.where(_is_subnormal(wide), _flushed(wide), wide).astype(dtype.numpy)


def _explain_flush(
    op: Op, dtype: DType, operands: Sequence[Array], left: Array, right: Array
) -> Array:
    wide = [np.asarray(x).astype(np.float32) for x in operands[:2]]
    if op in _EXACT_OPS:
        return _explain_exact(op, dtype, wide, left, right)
    if op is Op.REDUCE_PRODUCT:
        return _explain_product(dtype, wide[0], left, right)
    # A flushed term is smaller than the smallest normal number times the largest
    # factor, and there are no more terms than elements.
    largest = max(
        (float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in wide), default=0.0
    )
    terms = max((x.size for x in wide), default=1)
    limit = SMALLEST_NORMAL * max(1.0, largest) * terms
    # That must stay far below what a wrong term would do, unless there is an operand
    # that is flushed.
    if not any(_is_subnormal(x).any() for x in wide):
        limit = min(limit, 2.0**-80)
    a, b = left.astype(np.float64), right.astype(np.float64)
    small: Array = np.abs(a - b) <= limit
    # A flushed number times infinity is NaN.
    if len(wide) > 1 and any(
        _is_subnormal(x).any() and np.isinf(other).any()
        for x, other in (wide, wide[::-1])
    ):
        small |= (np.isnan(a) & np.isinf(b)) | (np.isinf(a) & np.isnan(b))
    return small


def _is_subnormal(array: Array) -> Array:
    result: Array = (array != 0) & (np.abs(array) < np.float32(SMALLEST_NORMAL))
    return result


def _explain_product(dtype: DType, x: Array, left: Array, right: Array) -> Array:
    """Elements where each side is the product in order, with or without flushing."""
    reduced = [
        axis
        for axis, (n, m) in enumerate(zip(x.shape, left.shape, strict=True))
        if n != m
    ]
    parts = np.split(x, x.shape[reduced[0]], reduced[0]) if reduced else [x]
    ideal = np.ones(left.shape, np.float32)
    flushed = ideal
    for part in parts:
        ideal = ideal * part
        part = _flushed(part)
        exact = flushed.astype(np.float64) * part
        flushed = _flushed_result(flushed * part, exact)
    options = [value.astype(dtype.numpy) for value in (ideal, flushed)]
    return _among(options, left) & _among(options, right)


def _explain_exact(
    op: Op, dtype: DType, wide: list[Array], left: Array, right: Array
) -> Array:
    """Elements where both sides are among what flushing anywhere could give."""
    compute = {Op.ADD: np.add, Op.SUB: np.subtract, Op.MUL: np.multiply}[op]
    ideal = compute(wide[0], wide[1])
    small = [_flushed(x) for x in wide[:2]]
    flushed = compute(small[0], small[1])
    options = [
        np.broadcast_to(value.astype(dtype.numpy), left.shape)
        for value in (
            ideal,
            flushed,
            _flushed_result(ideal, compute(*(x.astype(np.float64) for x in wide[:2]))),
            _flushed_result(flushed, compute(*(x.astype(np.float64) for x in small))),
        )
    ]
    return _among(options, left) & _among(options, right)


def _among(options: Sequence[Array], side: Array) -> Array:
    """Elements that are those of one of the options."""
    matches = [
        (bits_of(side) == bits_of(option)) | (_is_nan(side) & _is_nan(option))
        for option in options
    ]
    found: Array = np.any(matches, axis=0)
    return found


def _explain_zero(
    op: Op, dtype: DType, operands: Sequence[Array], left: Array, right: Array
) -> Array:
    del op, dtype, operands
    zeros: Array = (left.astype(np.float64) == 0) & (right.astype(np.float64) == 0)
    return zeros


_EXPLAIN = {
    Trait.FLUSHES_SUBNORMALS: _explain_flush,
    Trait.LOSES_ZERO_SIGN: _explain_zero,
}
