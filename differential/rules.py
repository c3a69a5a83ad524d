"""Which of TOSA's compliance rules judges which operator, and the verdict.

One table, by operator and result type; never a tolerance for everything. The rules
themselves are in `compliance`, the references and bounds in `backends.reference`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tosavk.backends.reference.oracle import DOT_PRODUCTS, Expected
from tosavk.backends.reference.values import (
    FRACTION_BITS,
    SMALLEST_NORMAL,
    integer_range,
    round_float,
)
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.core.parts import parts
from tosavk.differential import compliance
from tosavk.differential.compliance import Absolute, Array
from tosavk.differential.verdict import Judgement, Outcome, Part, Tally
from tosavk.lowering.graph import Block, Op, Operator, RoundingMode

__all__ = [
    "TABLE",
    "Judgement",
    "Kind",
    "Outcome",
    "Rule",
    "judge",
    "rule_for",
]

_FLOATS = (DType.FP32, DType.FP16, DType.BF16)


class Kind(enum.Enum):
    """The form of a rule."""

    EXACT = "exact"
    ULP = "ulp"
    ABSOLUTE = "absolute error"
    STATED = "stated error"
    DOT_PRODUCT = "dot product"
    PRODUCT = "product"
    RELATIVE = "relative"
    SPECIAL = "special values"
    RANGE = "inexact range"


_BOUNDED = frozenset(
    {
        Kind.ABSOLUTE,
        Kind.STATED,
        Kind.DOT_PRODUCT,
        Kind.RELATIVE,
        Kind.SPECIAL,
        Kind.RANGE,
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One compliance rule with its numbers.

    Attributes:
        kind: its form.
        dtype: result type.
        ulp: ULP: units allowed; RELATIVE: the alternative, in units of the largest input.
        ulp_lower: ULP: units allowed towards zero.
        absolute: ABSOLUTE: its parameters.
        terms: DOT_PRODUCT: KSB; PRODUCT: number of factors.
        limit: DOT_PRODUCT: largest element error, in units of the bound.
        variance: DOT_PRODUCT: largest mean square of the element errors.
        unbiased: DOT_PRODUCT: whether the sum of errors must be near zero. That holds
            for data without a preferred sign only.
        scale: RELATIVE: part of the largest input.
        unsigned: RANGE: whether the integers are unsigned.
    """

    kind: Kind
    dtype: DType
    ulp: float = 0.0
    ulp_lower: float = 0.0
    absolute: Absolute | None = None
    terms: int = 0
    limit: float = 0.0
    variance: float = 0.0
    unbiased: bool = False
    scale: float = 0.0
    unsigned: bool = False

    def __str__(self) -> str:
        match self.kind:
            case Kind.ULP:
                return f"{self.ulp:g} ULP of {self.dtype.name}"
            case Kind.DOT_PRODUCT | Kind.PRODUCT:
                return f"{self.kind.value} of {self.terms} terms in {self.dtype.name}"
            case _:
                return f"{self.kind.value} in {self.dtype.name}"


def exact(dtype: DType) -> Rule:
    """The rule of everything that does not round, and of integers."""
    return Rule(Kind.EXACT, dtype)


def ulp(dtype: DType, units: float, *, lower: float | None = None) -> Rule:
    """At most `units` away from zero and `lower` (default `units`) towards it."""
    return Rule(Kind.ULP, dtype, ulp=units, ulp_lower=units if lower is None else lower)


def special(dtype: DType) -> Rule:
    """NaN, infinity and sign only: for dot products on special values."""
    return Rule(Kind.SPECIAL, dtype)


def dot_product(
    dtype: DType, terms: int, *, split: bool = False, unbiased: bool = False
) -> Rule:
    """The dot product rule.

    Args:
        dtype: result type.
        terms: KSB.
        split: whether the operands are FP32, which may be split into three BF16 parts.
        unbiased: whether to look at the sum of errors too.
    """
    return Rule(
        Kind.DOT_PRODUCT,
        dtype,
        terms=terms,
        limit=(6.0 if split else 2.0) * terms,
        variance=1.6 * terms,
        unbiased=unbiased,
    )


def _table() -> dict[tuple[Op, DType], Rule]:
    table: dict[tuple[Op, DType], Rule] = {}

    def put(op: Op, make: Callable[[DType], Rule], *types: DType) -> None:
        table.update({(op, dtype): make(dtype) for dtype in types or _FLOATS})

    for op in (Op.ADD, Op.SUB, Op.MUL, Op.COND_IF, Op.WHILE_LOOP):
        put(op, lambda t: ulp(t, 1.0 if t is DType.BF16 else 0.5))
    put(Op.CEIL, lambda t: ulp(t, 0.5))
    put(Op.FLOOR, lambda t: ulp(t, 0.5))
    put(Op.RECIPROCAL, lambda t: ulp(t, 1.0))
    put(Op.RSQRT, lambda t: ulp(t, 2.0))
    put(Op.ERF, lambda t: ulp(t, 5.0))
    put(
        Op.CAST,
        lambda t: ulp(t, 0.5, lower=1.0),
        *_FLOATS,
        DType.FP8E4M3,
        DType.FP8E5M2,
    )

    def absolute(op: Op, make: Callable[[DType], Absolute]) -> None:
        put(op, lambda t: Rule(Kind.ABSOLUTE, t, absolute=make(t)))

    def loose(dtype: DType) -> float:
        return 3.0 if dtype is DType.FP32 else 1.0

    absolute(Op.EXP, lambda t: Absolute(base=loose(t)))
    absolute(Op.SIGMOID, lambda _: Absolute())
    absolute(Op.LOG, lambda _: Absolute(least=0.5))
    absolute(Op.TANH, lambda t: Absolute(base=4 * loose(t), least=0.5))
    absolute(
        Op.SIN,
        lambda t: Absolute(
            base=2.0,
            bound_is_magnitude=True,
            divisor=2.0,
            least_error=math.pi * SMALLEST_NORMAL[t],
        ),
    )
    absolute(Op.COS, lambda _: Absolute(base=1.0, bound_is_magnitude=True, divisor=2.0))
    put(Op.POW, lambda t: Rule(Kind.STATED, t))
    put(Op.REDUCE_PRODUCT, lambda t: Rule(Kind.PRODUCT, t))
    put(Op.RESIZE, lambda t: Rule(Kind.RELATIVE, t, ulp=20.0, scale=0.006))
    for op in DOT_PRODUCTS:
        put(op, lambda t: Rule(Kind.DOT_PRODUCT, t), *_FLOATS)
    for dtype in (DType.FP8E4M3, DType.FP8E5M2):
        put(Op.AVG_POOL2D, lambda t: Rule(Kind.DOT_PRODUCT, t), dtype)
    return table


TABLE: dict[tuple[Op, DType], Rule] = _table()
"""The rule by operator and result type; what is not in it is exact."""


def rule_for(operator: Operator, block: Block, expected: Expected, output: int) -> Rule:
    """The rule for one result of an operator.

    Args:
        operator: the operator.
        block: gives the types of its operands and results.
        expected: what `backends.reference.expect` gave for this result.
        output: which result.
    """
    dtype = block.tensors[operator.outputs[output]].dtype
    attributes = operator.attributes
    if operator.op is Op.RESCALE and (
        attributes.get("rounding_mode") == RoundingMode.INEXACT_ROUND
    ):
        unsigned = bool(attributes.get("output_unsigned", False))
        return Rule(Kind.RANGE, dtype, unsigned=unsigned)
    rule = TABLE.get((operator.op, dtype), exact(dtype))
    if rule.kind is Kind.DOT_PRODUCT:
        data = operator.inputs[: 1 if operator.op is Op.AVG_POOL2D else 2]
        split = all(block.tensors[name].dtype is DType.FP32 for name in data)
        return dot_product(dtype, expected.terms, split=split)
    if rule.kind is Kind.PRODUCT:
        return replace(rule, terms=expected.terms)
    return rule


def judge(
    rule: Rule, reference: Array, bound: Array | None, actual: Array
) -> Judgement:
    """Judges a result.

    Args:
        rule: by `rule_for`.
        reference: float64 for float types, else `dtype.numpy`; for RANGE the smallest
            result allowed.
        bound: as `backends.reference.Expected.bound`; any shape that broadcasts.
        actual: of type `rule.dtype.numpy` and the reference's shape.

    Raises:
        InvalidArgument: shapes differ, or the rule needs a bound and there is none.
    """
    if actual.shape != reference.shape:
        raise InvalidArgument(
            f"a result of shape {actual.shape} cannot be judged by a reference of "
            f"shape {reference.shape}"
        )
    if bound is None and rule.kind in _BOUNDED:
        raise InvalidArgument(f"the rule {rule} needs a bound")
    tally = Tally(actual.shape, str(rule))
    wanted, given = reference.reshape(-1), actual.reshape(-1)
    bounds = None if bound is None else _flat(bound, reference.shape)
    part = _float_part if rule.dtype.is_float else _integer_part
    dots = np.empty(actual.size if rule.kind is Kind.DOT_PRODUCT else 0)
    with np.errstate(all="ignore"):
        for piece in parts(actual.size):
            most = bounds if bounds is None or bounds.size == 1 else bounds[piece]
            tally.add(part(rule, wanted[piece], most, given[piece], dots[piece]))
        return tally.judgement(_leaning(rule, dots))


def _flat(bound: Array, shape: tuple[int, ...]) -> Array:
    """A bound as one number, or as one for each element."""
    if bound.size == 1:
        return bound.reshape(-1)
    return np.broadcast_to(bound, shape).reshape(-1)


def _float_part(
    rule: Rule, reference: Array, bound: Array | None, actual: Array, dots: Array
) -> Part:
    """Judges some elements of a float type; `dots` is filled for dot products."""
    wide = actual.astype(np.float64)
    distance = np.abs(wide - reference)
    unit = compliance.unit_in_last_place(rule.dtype, reference)
    error = distance / unit
    same = _rounds_to(rule.dtype, reference, wide, error)
    admitted, limit = _apply(rule, reference, bound, wide, distance, unit, dots)
    if np.isnan(error).any():
        error = np.where(wide == reference, 0.0, error)
        error = np.where(np.isnan(error), np.where(same, 0.0, np.inf), error)
    return Part(same, admitted, error, limit, unit, reference, wide)


def _rounds_to(dtype: DType, reference: Array, wide: Array, error: Array) -> Array:
    """Which elements are the reference, rounded to the type.

    Less than half a unit away nothing else is nearer, and farther away something is;
    only the rest has to be rounded to know.
    """
    same = error < 0.5
    known = (same | ((error > 0.5) & (error < np.inf))) & (reference != 0)
    if known.all():
        return same
    rest = np.flatnonzero(~known)
    actual = wide[rest]
    ideal = round_float(dtype, reference[rest]).astype(np.float64)
    same[rest] = (actual == ideal) | (np.isnan(actual) & np.isnan(ideal))
    return same


def _apply(
    rule: Rule,
    reference: Array,
    bound: Array | None,
    actual: Array,
    distance: Array,
    unit: Array,
    dots: Array,
) -> tuple[Array, Array]:
    """Admitted elements, and the largest error allowed."""
    dtype = rule.dtype
    limits: Array
    stated = np.zeros(1) if bound is None else np.asarray(bound, np.float64)
    match rule.kind:
        case Kind.EXACT:
            interval = compliance.exactly(reference)
        case Kind.ULP:
            interval = compliance.within_ulp(reference, unit, rule.ulp, rule.ulp_lower)
        case Kind.ABSOLUTE:
            interval = compliance.within_absolute(
                dtype, reference, stated, rule.absolute or Absolute()
            )
        case Kind.STATED:
            interval = compliance.within_stated(reference, stated)
        case Kind.PRODUCT:
            interval = compliance.within_product(dtype, reference, rule.terms)
            free = np.isinf(stated)
            limits = np.where(free, np.inf, interval.above)
            return interval.admits(dtype, actual, distance) | free, limits
        case Kind.RELATIVE:
            interval = compliance.within_relative(
                dtype, reference, stated, rule.scale, rule.ulp
            )
        case Kind.SPECIAL:
            pattern = compliance.special_pattern(reference, stated, actual)
            return pattern, np.full(reference.shape, np.inf)
        case Kind.DOT_PRODUCT:
            found = compliance.dot_errors(dtype, reference, stated, actual, rule.limit)
            half = 2.0 ** (-1 - FRACTION_BITS[dtype])
            limits = np.maximum(stated * half, SMALLEST_NORMAL[dtype]) * rule.limit
            dots[:] = found.errors
            return found.admitted, np.broadcast_to(limits, reference.shape)
        case Kind.RANGE:
            raise InvalidArgument(f"{rule} is for integers")
    limits = interval.above
    if interval.below is not interval.above:
        limits = np.maximum(interval.below, interval.above)
    admitted = interval.admits(dtype, actual, distance)
    return admitted, np.broadcast_to(limits, reference.shape)


def _leaning(rule: Rule, dots: Array) -> str:
    """What the errors of a dot product break together, or "".

    Args:
        rule: the rule.
        dots: errors of all elements, in units of the bound; they are overwritten.
    """
    if not dots.size:
        return ""
    # Added up as one array: the sum of many numbers depends on the order.
    count, total = dots.size, float(dots.sum())
    squares = float(np.square(dots, out=dots).sum())
    most_bias = math.sqrt(10 * rule.variance * count)
    if squares > rule.variance * count:
        return (
            f"the mean square error is {squares / count:.3g} units of the bound, "
            f"at most {rule.variance:.3g} is allowed"
        )
    if rule.unbiased and abs(total) > most_bias:
        return (
            f"the errors add up to {total:.3g} units of the bound, at most "
            f"{most_bias:.3g} is allowed: they lean to one side"
        )
    return ""


def _integer_part(
    rule: Rule, reference: Array, bound: Array | None, actual: Array, dots: Array
) -> Part:
    """Judges some elements of an integer type."""
    del dots
    low, value = reference.astype(np.int64), actual.astype(np.int64)
    high = low
    if rule.kind is Kind.RANGE and bound is not None:
        high = np.broadcast_to(bound.astype(np.int64), low.shape)
    if rule.unsigned:
        _, mask = integer_range(rule.dtype, unsigned=True)
        low, high, value = low & mask, high & mask, value & mask
    admitted = (value >= low) & (value <= high)
    same = (value == low) & (low == high)
    error = np.maximum(np.maximum(low - value, value - high), 0).astype(np.float64)
    return Part(
        same | (admitted & (low == high)),
        admitted,
        error,
        np.zeros_like(error),
        np.ones_like(error),
        low,
        value,
    )
