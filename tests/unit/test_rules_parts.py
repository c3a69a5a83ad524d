"""Large tensors are judged a part at a time, with the same verdict as in one piece."""

import dataclasses
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from tosavk.backends.reference.values import LARGEST, SMALLEST_NORMAL, round_float
from tosavk.core import parts
from tosavk.core.dtypes import DType
from tosavk.differential import compliance, rules
from tosavk.differential.compare import compare_bits, same_bits
from tosavk.differential.compliance import Array, Interval
from tosavk.differential.rules import TABLE, Kind, Rule, judge
from tosavk.differential.tensors import error_map, extent, ulp_histogram
from tosavk.lowering.graph import Op

F = DType.FP32
COUNT = 2000
SHAPE = (2, 10, 100)
RULES = [
    rules.exact(F),
    rules.ulp(F, 0.5),
    rules.ulp(F, 0.5, lower=1.0),
    *(TABLE[op, F] for op in (Op.EXP, Op.LOG, Op.SIN, Op.POW, Op.RESIZE)),
    dataclasses.replace(TABLE[Op.REDUCE_PRODUCT, F], terms=3),
    rules.dot_product(F, 9, split=True),
    rules.special(F),
]


def hard(dtype: DType, seed: int) -> tuple[Array, Array]:
    """References of all magnitudes, and results near them and far from them."""
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(COUNT) * np.exp2(rng.integers(-160, 140, COUNT))
    kind = rng.integers(0, 10, COUNT)
    for place, value in enumerate((0.0, -0.0, np.inf, -np.inf, np.nan)):
        reference[kind == place] = value
    near = 1 + rng.standard_normal(COUNT) * 2.0**-8
    reference = np.where(kind == 5, LARGEST[dtype] * near, reference)
    reference = np.where(kind == 6, SMALLEST_NORMAL[dtype] * near, reference)
    reference = np.where(kind == 7, rng.integers(-3, 4, COUNT) + 0.5, reference)
    result = round_float(dtype, reference)
    bits = result.view(f"u{dtype.numpy.itemsize}")
    moved = rng.integers(0, 3, COUNT) == 0
    steps = rng.integers(-6, 7, COUNT)[moved]
    bits[moved] = (bits[moved].astype(np.int64) + steps).astype(bits.dtype)
    result[rng.integers(0, 40, COUNT) == 0] = 0
    return reference.reshape(SHAPE), result.reshape(SHAPE)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("mild", [False, True], ids=["hard", "mild"])
def test_parts_give_the_verdict_of_the_whole(
    rule: Rule, monkeypatch: pytest.MonkeyPatch, *, mild: bool
) -> None:
    reference, actual = hard(F, 1)
    if mild:
        reference = np.nan_to_num(np.clip(reference, -1e30, 1e30))
        actual = round_float(F, reference)
    bound = np.abs(reference)
    if rule.kind is Kind.PRODUCT:
        bound = np.where(bound > 1, np.inf, 0.0)
    whole = judge(rule, reference, bound, actual)
    assert sum(whole.histogram or ()) == COUNT
    for part in (17, 900, COUNT - 1):
        monkeypatch.setattr(parts, "PART", part)
        # As text, since NaN is not equal to itself.
        assert repr(judge(rule, reference, bound, actual)) == repr(whole), part


@pytest.mark.parametrize("dtype", [F, DType.FP16, DType.BF16, DType.FP8E4M3], ids=str)
@pytest.mark.parametrize("width", [0.0, 2.0**-60, 0.5, 1.0, np.inf, np.nan])
def test_what_is_near_is_decided_like_the_rest(dtype: DType, width: float) -> None:
    reference, actual = (x.reshape(-1) for x in hard(dtype, 2))
    with np.errstate(invalid="ignore"):
        wide = actual.astype(np.float64)
    unit = compliance.unit_in_last_place(dtype, reference)
    for below in (unit * width, unit * width / 2):
        interval = Interval(reference, below, unit * width)
        with np.errstate(invalid="ignore"):
            quick = interval.admits(dtype, wide, np.abs(wide - reference))
            slow = interval.decides(dtype, wide)
        np.testing.assert_array_equal(quick, slow)


@pytest.mark.parametrize("dtype", [F, DType.FP16, DType.BF16, DType.FP8E4M3], ids=str)
def test_equal_means_the_reference_rounded(dtype: DType) -> None:
    reference, actual = (x.reshape(-1) for x in hard(dtype, 3))
    ideal = round_float(dtype, reference)
    for i in range(0, COUNT, 5):
        one = slice(i, i + 1)
        with np.errstate(invalid="ignore"):
            equal = (actual[one] == ideal[one]) | (
                np.isnan(actual[one]) & np.isnan(ideal[one])
            )
        loose = rules.ulp(dtype, 1e300)
        verdict = judge(loose, reference[one], None, actual[one])
        assert (verdict.outcome is rules.Outcome.EQUAL) == bool(equal[0]), reference[i]


def test_comparisons_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, left = hard(F, 4)
    right = round_float(F, reference)
    assert not same_bits(left, right)

    def everything() -> tuple[object, ...]:
        with np.errstate(invalid="ignore"):
            return (
                compare_bits(left, right),
                same_bits(left, right),
                same_bits(left, left.copy()),
                extent(left, reference),
                ulp_histogram(left, right),
                error_map(left, right),
            )

    whole = everything()
    for part in (17, 900):
        monkeypatch.setattr(parts, "PART", part)
        assert repr(everything()) == repr(whole)


def test_no_temporary_is_as_large_as_the_tensor() -> None:
    """What made a diff of large tensors slow: it was mostly new memory."""
    count = 1 << 20
    reference = np.random.default_rng(5).standard_normal(count)
    actual = reference.astype(np.float32)
    bound, other = np.abs(reference), np.nextafter(actual, np.float32(0))
    allowed = 30 * parts.PART * 8

    def measured(work: Callable[[], object], kept: int = 0) -> None:
        tracemalloc.start()
        try:
            work()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < allowed + kept < reference.nbytes + kept, peak

    # Once in a process, a large block is had and given back (`core.parts`).
    extent(actual, reference)
    measured(lambda: judge(rules.ulp(F, 0.5), reference, None, actual))
    measured(lambda: judge(rules.exact(F), reference, None, actual))
    measured(lambda: judge(TABLE[Op.EXP, F], reference, bound, actual))
    # The errors of dot products are added up as one array.
    dots = rules.dot_product(F, 9, split=True)
    measured(lambda: judge(dots, reference, bound, actual), reference.nbytes)
    measured(lambda: compare_bits(actual, other))
    measured(lambda: same_bits(actual, actual.copy()), actual.nbytes)
    measured(lambda: extent(actual, reference))
    measured(lambda: ulp_histogram(actual, other))
    measured(lambda: error_map(actual.reshape(64, -1), other.reshape(64, -1)))
