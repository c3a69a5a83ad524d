"""The compliance rules on values worked out by hand."""

import math

import numpy as np
import pytest

from tosavk.backends.reference import Expected
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.differential import rules
from tosavk.differential.compliance import unit_in_last_place
from tosavk.differential.rules import TABLE, Kind, Outcome, Rule, judge, rule_for
from tosavk.lowering.graph import Block, Op, Operator, RoundingMode, Tensor


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def f64(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def verdict(rule: Rule, reference: float, actual: float, bound: float = 0.0) -> Outcome:
    result = np.array([actual]).astype(rule.dtype.numpy)
    return judge(rule, f64(reference), f64(bound), result).outcome


@pytest.mark.parametrize(
    ("dtype", "value", "unit"),
    [
        (DType.FP32, 1.0, 2.0**-23),
        (DType.FP32, -1.999, 2.0**-23),
        (DType.FP32, 2.0, 2.0**-22),
        (DType.FP32, 1e-45, 2.0**-149),
        (DType.FP16, 1.0, 2.0**-10),
        (DType.FP16, 2.0**-24, 2.0**-24),
        (DType.BF16, 3.0, 2.0**-6),
        (DType.FP8E4M3, 448.0, 32.0),
        (DType.FP8E5M2, 1.0, 0.25),
    ],
)
def test_unit_in_the_last_place(dtype: DType, value: float, unit: float) -> None:
    assert unit_in_last_place(dtype, f64(value))[0] == unit


def test_an_exact_result_is_equal() -> None:
    found = judge(rules.exact(DType.FP32), f64(1, 2, 3), None, f32(1, 2, 3))
    assert found.outcome is Outcome.EQUAL
    assert found.error_ulp == 0
    assert found.outcome.agrees


def test_nan_meets_nan_only() -> None:
    rule = rules.ulp(DType.FP32, 5)
    assert verdict(rule, math.nan, math.nan) is Outcome.EQUAL
    assert verdict(rule, math.nan, 1.0) is Outcome.DIFFERENT
    assert verdict(rule, 1.0, math.nan) is Outcome.DIFFERENT


def test_the_sign_of_zero_does_not_matter() -> None:
    assert verdict(rules.exact(DType.FP32), 0.0, -0.0) is Outcome.EQUAL


def test_subnormals_may_be_flushed_except_in_fp8() -> None:
    assert verdict(rules.exact(DType.FP32), 1e-40, 0.0) is Outcome.WITHIN_RULE
    assert verdict(rules.exact(DType.FP16), 2.0**-20, 0.0) is Outcome.WITHIN_RULE
    assert verdict(rules.exact(DType.FP8E5M2), 2.0**-16, 0.0) is Outcome.DIFFERENT
    assert verdict(rules.exact(DType.FP32), 2.0**-126, 0.0) is Outcome.DIFFERENT


def test_overflow_must_be_infinite() -> None:
    rule = rules.ulp(DType.FP32, 0.5)
    largest = float(np.finfo(np.float32).max)
    assert verdict(rule, 1e39, math.inf) is Outcome.EQUAL
    assert verdict(rule, 1e39, largest) is Outcome.DIFFERENT
    assert verdict(rule, 1e39, -math.inf) is Outcome.DIFFERENT
    assert verdict(rule, largest, math.inf) is Outcome.WITHIN_RULE
    assert verdict(rule, -math.inf, -math.inf) is Outcome.EQUAL


def test_fp8e4m3_overflows_to_nan() -> None:
    rule = rules.ulp(DType.FP8E4M3, 0.5, lower=1.0)
    assert verdict(rule, 480.0, math.nan) is Outcome.EQUAL
    assert verdict(rule, 300.0, math.nan) is Outcome.DIFFERENT


def test_cast_may_truncate_but_not_round_away() -> None:
    rule = TABLE[Op.CAST, DType.FP16]
    assert verdict(rule, 1 + 2.0**-10 * 0.9, 1.0) is Outcome.WITHIN_RULE
    assert verdict(rule, -1 - 2.0**-10 * 0.9, -1.0) is Outcome.WITHIN_RULE
    assert verdict(rule, 1 + 2.0**-10 * 0.4, 1 + 2.0**-10) is Outcome.DIFFERENT


def test_the_worst_element_and_the_reason() -> None:
    reference, actual = f64(1, 2, 3, 4), f32(1, 2.5, 3, 4.25)
    found = judge(rules.ulp(DType.FP32, 0.5), reference, None, actual)
    assert found.outcome is Outcome.DIFFERENT
    assert (found.index, found.failed) == ((1,), 2)
    assert (found.expected, found.actual) == (2.0, 2.5)
    assert found.error_ulp == 0.5 / 2.0**-22
    assert found.limit == 0.5
    assert "2 of 4" in found.reason
    assert "[1]" in found.reason


def test_a_dot_product_has_three_limits() -> None:
    count, half = 10_000, 2.0**-24
    rule = rules.dot_product(DType.FP32, 4, unbiased=True)
    reference, bound = np.full(count, 100.0), np.full(count, 100.0)
    good = reference.astype(np.float32)
    assert judge(rule, reference, bound, good).outcome is Outcome.EQUAL
    one = good.copy()
    one[7] += 8 * 100 * half
    assert judge(rule, reference, bound, one).outcome is Outcome.WITHIN_RULE
    one[7] += 8 * 100 * half
    found = judge(rule, reference, bound, one)
    assert (found.outcome, found.index) == (Outcome.DIFFERENT, (7,))
    # Every element is allowed, but not all of them, nor all to the same side.
    wide = np.where(np.arange(count) % 2, 1, -1) * 5.0 * 100 * half
    scattered = (reference + wide).astype(np.float32)
    assert "mean square" in judge(rule, reference, bound, scattered).reason
    leaning = (reference + 1.0 * 100 * half).astype(np.float32)
    assert "lean" in judge(rule, reference, bound, leaning).reason


def test_a_dot_product_without_products_is_zero() -> None:
    rule = rules.dot_product(DType.FP32, 4)
    assert verdict(rule, 0.0, 0.0, 0.0) is Outcome.EQUAL
    assert verdict(rule, 0.0, 1e-30, 0.0) is Outcome.DIFFERENT
    assert verdict(rule, 0.0, math.inf, 1e39) is Outcome.WITHIN_RULE


def test_special_values_need_only_their_kind() -> None:
    rule = rules.special(DType.FP32)
    assert verdict(rule, 5.0, 7.0) is Outcome.WITHIN_RULE
    assert verdict(rule, 5.0, -7.0) is Outcome.DIFFERENT
    assert verdict(rule, math.inf, math.inf) is Outcome.EQUAL
    assert verdict(rule, math.inf, 3.0) is Outcome.DIFFERENT
    assert verdict(rule, 5.0, math.nan, math.nan) is Outcome.WITHIN_RULE


def test_integers_are_exact() -> None:
    rule = rules.exact(DType.INT8)
    left, right = np.array([1, -128], np.int8), np.array([1, 127], np.int8)
    assert judge(rule, left, None, left).outcome is Outcome.EQUAL
    found = judge(rule, left, None, right)
    assert (found.outcome, found.index, found.error_ulp) == (
        Outcome.DIFFERENT,
        (1,),
        255,
    )


def test_inexact_rescale_has_a_range() -> None:
    rule = Rule(Kind.RANGE, DType.INT8)
    low, high = np.array([1, 5], np.int8), np.array([3, 5], np.int8)
    middle = np.array([2, 5], np.int8)
    assert judge(rule, low, high, middle).outcome is Outcome.WITHIN_RULE
    beyond = np.array([4, 5], np.int8)
    assert judge(rule, low, high, beyond).outcome is Outcome.DIFFERENT
    unsigned = Rule(Kind.RANGE, DType.INT8, unsigned=True)
    low, high = np.array([127], np.int8), np.array([-127], np.int8)
    found = judge(unsigned, low, high, np.array([-128], np.int8))
    assert found.outcome is Outcome.WITHIN_RULE


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="shape"):
        judge(rules.exact(DType.FP32), f64(1, 2), None, f32(1))
    with pytest.raises(InvalidArgument, match="bound"):
        judge(TABLE[Op.EXP, DType.FP32], f64(1), None, f32(1))


def test_a_rule_is_completed_from_the_operator() -> None:
    def block(op: Op, types: tuple[DType, ...], **attributes: int) -> Block:
        names = tuple("abcdefgh"[: len(types)])
        tensors = {n: Tensor(n, t, (1,)) for n, t in zip(names, types, strict=True)}
        operator = Operator(0, op, names[:-1], names[-1:], attributes)
        return Block("main", (operator,), tensors, names[:-1], names[-1:])

    def rule(found: Block, terms: int = 0) -> Rule:
        return rule_for(found.operators[0], found, Expected(f64(1), None, terms), 0)

    f32_matmul = block(Op.MATMUL, (DType.FP32, DType.FP32, DType.FP32))
    assert rule(f32_matmul, 5).limit == 30
    f16_matmul = block(Op.MATMUL, (DType.FP16, DType.FP16, DType.FP32))
    assert rule(f16_matmul, 5).limit == 10
    assert rule(block(Op.MATMUL, (DType.INT8, DType.INT8, DType.INT32))).kind is (
        Kind.EXACT
    )
    assert rule(block(Op.REDUCE_PRODUCT, (DType.FP32, DType.FP32)), 7).terms == 7
    rescale = block(
        Op.RESCALE,
        (DType.INT8, DType.INT16),
        rounding_mode=RoundingMode.INEXACT_ROUND,
    )
    assert rule(rescale).kind is Kind.RANGE
    assert rule(block(Op.MAXIMUM, (DType.FP32, DType.FP32, DType.FP32))).kind is (
        Kind.EXACT
    )


def test_an_empty_tensor_is_equal() -> None:
    found = judge(rules.exact(DType.FP32), np.zeros((0,)), None, f32())
    assert (found.outcome, found.index) == (Outcome.EQUAL, None)
