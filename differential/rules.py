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
from tosavk.differential import compliance
from tosavk.differential.compliance import Absolute, Array
from tosavk.lowering.graph import Block, Op, Operator, RoundingMode

_FLOATS = (DType.FP32, DType.FP16, DType.BF16)


class Outcome(enum.StrEnum):
    """What a comparison found."""

    EQUAL = "equal"
    WITHIN_RULE = "within rule"
    DIFFERENT = "different"
    UNPREDICTABLE = "unpredictable"
    UNSUPPORTED = "unsupported"
    RESOURCE = "resource"

    @property
    def agrees(self) -> bool:
        """Whether the results are as good as equal."""
        return self in (Outcome.EQUAL, Outcome.WITHIN_RULE)


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


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one tensor.

    Attributes:
        outcome: EQUAL, WITHIN_RULE or DIFFERENT.
        index: position of the worst element; None for an empty tensor.
        expected: reference there.
        actual: result there.
        error_ulp: distance there, in units in the last place (integers: as such).
        limit: what was allowed there, in the same unit; infinity if anything.
        failed: how many elements break the rule.
        reason: what is wrong; "" if nothing is.
        errors: distances of all elements, as `error_ulp`.
    """

    outcome: Outcome
    index: tuple[int, ...] | None
    expected: float
    actual: float
    error_ulp: float
    limit: float
    failed: int
    reason: str = ""
    errors: Array | None = None


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
    if not rule.dtype.is_float:
        return _judge_integers(rule, reference, bound, actual)
    with np.errstate(all="ignore"):
        wide = actual.astype(np.float64)
        ideal = round_float(rule.dtype, reference).astype(np.float64)
        same = (wide == ideal) | (np.isnan(wide) & np.isnan(ideal))
        admitted, limit, reason = _apply(rule, reference, bound, wide)
        unit = compliance.unit_in_last_place(rule.dtype, reference)
        error = np.abs(wide - reference) / unit
        error = np.where(wide == reference, 0.0, error)
        error = np.where(np.isnan(error), np.where(same, 0.0, np.inf), error)
        return _verdict(
            same, admitted, error, limit / unit, reference, wide, reason, str(rule)
        )


def _apply(
    rule: Rule, reference: Array, bound: Array | None, actual: Array
) -> tuple[Array, Array, str]:
    """Admitted elements, largest error allowed, and what the whole tensor breaks."""
    dtype = rule.dtype
    limits: Array
    match rule.kind:
        case Kind.EXACT:
            interval = compliance.exactly(reference)
        case Kind.ULP:
            interval = compliance.within_ulp(dtype, reference, rule.ulp, rule.ulp_lower)
        case Kind.ABSOLUTE:
            interval = compliance.within_absolute(
                dtype, reference, _need(rule, bound), rule.absolute or Absolute()
            )
        case Kind.STATED:
            interval = compliance.within_stated(reference, _need(rule, bound))
        case Kind.PRODUCT:
            interval = compliance.within_product(dtype, reference, rule.terms)
            free = np.isinf(np.zeros(()) if bound is None else bound)
            limits = np.where(free, np.inf, interval.above)
            return interval.admits(dtype, actual) | free, limits, ""
        case Kind.RELATIVE:
            interval = compliance.within_relative(
                dtype, reference, _need(rule, bound), rule.scale, rule.ulp
            )
        case Kind.SPECIAL:
            pattern = compliance.special_pattern(reference, _need(rule, bound), actual)
            return pattern, np.full(reference.shape, np.inf), ""
        case Kind.DOT_PRODUCT:
            return _apply_dot_product(rule, reference, _need(rule, bound), actual)
        case Kind.RANGE:
            raise InvalidArgument(f"{rule} is for integers")
    limits = np.maximum(interval.below, interval.above)
    return interval.admits(dtype, actual), limits, ""


def _apply_dot_product(
    rule: Rule, reference: Array, bound: Array, actual: Array
) -> tuple[Array, Array, str]:
    found = compliance.dot_errors(rule.dtype, reference, bound, actual, rule.limit)
    half = 2.0 ** (-1 - FRACTION_BITS[rule.dtype])
    limits = np.maximum(bound * half, SMALLEST_NORMAL[rule.dtype]) * rule.limit
    reason = ""
    if found.admitted.all():
        count = max(found.errors.size, 1)
        squares, total = float((found.errors**2).sum()), float(found.errors.sum())
        most_bias = math.sqrt(10 * rule.variance * count)
        if squares > rule.variance * count:
            reason = (
                f"the mean square error is {squares / count:.3g} units of the bound, "
                f"at most {rule.variance:.3g} is allowed"
            )
        elif rule.unbiased and abs(total) > most_bias:
            reason = (
                f"the errors add up to {total:.3g} units of the bound, at most "
                f"{most_bias:.3g} is allowed: they lean to one side"
            )
    return found.admitted, limits, reason


def _need(rule: Rule, bound: Array | None) -> Array:
    if bound is None:
        raise InvalidArgument(f"the rule {rule} needs a bound")
    return np.asarray(bound, np.float64)


def _judge_integers(
    rule: Rule, reference: Array, bound: Array | None, actual: Array
) -> Judgement:
    low, value = reference.astype(np.int64), actual.astype(np.int64)
    high = low
    if rule.kind is Kind.RANGE:
        if bound is None:
            raise InvalidArgument(f"the rule {rule} needs a bound")
        high = bound.astype(np.int64)
    if rule.unsigned:
        _, mask = integer_range(rule.dtype, unsigned=True)
        low, high, value = low & mask, high & mask, value & mask
    admitted = (value >= low) & (value <= high)
    same = (value == low) & (low == high)
    error = np.maximum(np.maximum(low - value, value - high), 0).astype(np.float64)
    return _verdict(
        same | (admitted & (low == high)),
        admitted,
        error,
        np.zeros_like(error),
        low,
        value,
        "",
        str(rule),
    )


def _verdict(
    same: Array,
    admitted: Array,
    error: Array,
    limit: Array,
    reference: Array,
    actual: Array,
    reason: str,
    rule: str,
) -> Judgement:
    if not same.size:
        return Judgement(Outcome.EQUAL, None, 0.0, 0.0, 0.0, 0.0, 0)
    failed = int(np.count_nonzero(~admitted))
    # Among the elements that break the rule, or else among all, the farthest.
    weight = np.where(admitted, -1.0, error) if failed else error
    flat = int(np.argmax(weight))
    index = tuple(int(i) for i in np.unravel_index(flat, same.shape))
    expected, got = reference.reshape(-1)[flat], actual.reshape(-1)[flat]
    allowed = float(limit.reshape(-1)[flat])
    outcome = Outcome.EQUAL if bool(same.all()) else Outcome.WITHIN_RULE
    if failed:
        outcome = Outcome.DIFFERENT
        reason = (
            f"{failed} of {same.size} elements break the rule ({rule}); the worst, at "
            f"{list(index)}, is {got.item()!r} instead of {expected.item()!r}"
        )
    elif reason:
        outcome = Outcome.DIFFERENT
    return Judgement(
        outcome,
        index,
        float(expected),
        float(got),
        float(error.reshape(-1)[flat]),
        math.inf if math.isnan(allowed) else allowed,
        failed,
        reason,
        error,
    )
