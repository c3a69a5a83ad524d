"""Which differences the known exceptions excuse, and which they do not."""

import ml_dtypes
import numpy as np
import pytest

from tosavk.core.dtypes import DType
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.exceptions import Trait, excuses, excuses_output
from tosavk.differential.result import Verdict
from tosavk.lowering.graph import Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

FLUSH = frozenset({Trait.FLUSHES_SUBNORMALS})
SIGN = frozenset({Trait.LOSES_ZERO_SIGN})
TINY = 2.0**-130


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("op", "a", "b", "left", "right", "excused"),
    [
        # A subnormal result, flushed on one side.
        (Op.MUL, 2.0**-100, 2.0**-30, TINY, 0.0, True),
        (Op.ADD, TINY, TINY, 2 * TINY, 0.0, True),
        (Op.SUB, -TINY, TINY, -2 * TINY, -0.0, True),
        # A subnormal operand, with a normal result.
        (Op.MUL, TINY, 2.0**100, 2.0**-30, 0.0, True),
        (Op.MUL, TINY, np.inf, np.inf, np.nan, True),
        # Both sides wrong, or something else wrong.
        (Op.MUL, 2.0**-100, 2.0**-30, 3 * TINY, 0.0, False),
        (Op.MUL, 1.0, 2.0, 2.0, 2.0000002, False),
        (Op.ADD, 1.0, TINY, 1.0, 1.0000001, False),
        (Op.ADD, 1.0, 2.0, 3.0, 0.0, False),
        # Not an operator that may flush.
        (Op.MAXIMUM, TINY, 0.0, TINY, 0.0, False),
    ],
)
def test_flushing_in_arithmetic(
    op: Op, a: float, b: float, left: float, right: float, *, excused: bool
) -> None:
    operands = [f32(a, 1.0), f32(b, 1.0)]
    sides = (f32(left, 7.0), f32(right, 7.0))
    for one, other in (sides, sides[::-1]):
        found = excuses(op, DType.FP32, operands, one, other, FLUSH)
        assert bool(found) == excused
        assert not excuses(op, DType.FP32, operands, one, other, frozenset())
        assert not excuses(op, DType.FP32, operands, one, other, SIGN)


def test_one_unexplained_element_spoils_all() -> None:
    operands = [f32(2.0**-100, 1.0), f32(2.0**-30, 1.0)]
    left, right = f32(TINY, 1.0), f32(0.0, 2.0)
    assert not excuses(Op.MUL, DType.FP32, operands, left, right, FLUSH)


@pytest.mark.parametrize(
    ("right", "excused"), [(0.0, True), (5e-39, True), (1e-30, False), (1.0, False)]
)
def test_flushing_in_sums(right: float, *, excused: bool) -> None:
    operands = [f32(TINY, TINY, 0.0).reshape(1, 3)]
    found = excuses(
        Op.REDUCE_SUM, DType.FP32, operands, f32(2 * TINY), f32(right), FLUSH
    )
    assert bool(found) == excused


def test_huge_factors_do_not_stretch_the_excuse() -> None:
    operands = [f32(1e38, 1.0).reshape(1, 1, 2), f32(1.0, 1.0).reshape(1, 2, 1)]
    left, right = f32(1.0), f32(2.0)
    assert not excuses(Op.MATMUL, DType.FP32, operands, left, right, FLUSH)


def test_signs_of_zero_sums() -> None:
    operands = [f32(-0.0, -0.0).reshape(1, 2)]
    zeros = (f32(0.0), f32(-0.0))
    assert excuses(Op.REDUCE_SUM, DType.FP32, operands, *zeros, SIGN) == (
        Trait.LOSES_ZERO_SIGN,
    )
    assert not excuses(Op.ABS, DType.FP32, operands, *zeros, SIGN)
    assert not excuses(Op.REDUCE_SUM, DType.FP32, operands, f32(0.0), f32(1e-45), SIGN)


def test_half_precision_is_never_flushed() -> None:
    tiny = np.array([6e-8, 1.0], np.float16)
    zero = np.array([0.0, 1.0], np.float16)
    operands = [tiny, np.ones(2, np.float16)]
    assert not excuses(Op.MUL, DType.FP16, operands, tiny, zero, FLUSH)


def test_bfloat16_is_flushed_like_fp32() -> None:
    tiny = np.array([TINY, 1.0], ml_dtypes.bfloat16)
    zero = np.array([0.0, 1.0], ml_dtypes.bfloat16)
    operands = [tiny, np.ones(2, ml_dtypes.bfloat16)]
    assert excuses(Op.MUL, DType.BF16, operands, tiny, zero, FLUSH)


@pytest.mark.parametrize(
    ("left", "right", "present", "excused"),
    [
        (TINY, 0.0, FLUSH, True),
        (TINY, 0.0, SIGN, False),
        (0.0, -0.0, SIGN, True),
        (1.0, 1.0000001, FLUSH | SIGN, False),
        (np.nan, 0.0, FLUSH | SIGN, False),
        (np.inf, 0.0, FLUSH | SIGN, False),
    ],
)
def test_outputs_as_they_stand(
    left: float, right: float, present: frozenset[Trait], *, excused: bool
) -> None:
    found = excuses_output(DType.FP32, f32(left, 3.0), f32(right, 3.0), present)
    assert bool(found) == excused


def test_sums_of_subnormals_on_every_device(available_devices: tuple[str, ...]) -> None:
    devices = tuple(d for d in available_devices if d != "reference")
    if len(devices) < 2:
        pytest.skip("needs two devices")
    b = Builder()
    x = b.input("x", DType.FP32, (1, 5, 7))
    b.output(b.reduce_sum(x, 2, name="sum"))
    b.output(b.matmul(x, b.const(np.ones((1, 7, 3), np.float32)), name="product"))
    rng = np.random.default_rng(3)
    values = (rng.uniform(-1, 1, (1, 5, 7)) * 2.0**-127).astype(np.float32)
    found = diff(
        DiffRequest(
            graph=load_graph(b.build()),
            model="sums",
            backends=devices,
            given={"x": values},
            node_by_node=True,
        )
    )
    assert found.verdict is Verdict.AGREED, found.findings
