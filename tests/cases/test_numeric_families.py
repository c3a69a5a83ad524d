"""Numeric field cases of groups B and C with their families, as programs made here.

The ready artifacts (test_field_cases.py) are optional; these need nothing. Each program
runs with its operands as inputs and as constants, since these are folded or computed at
load.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from harness.running import Array, Devices, same_values
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import NanMode, Op, Tensor
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

I32, F16, BF16, F32, BOOL = DType.INT32, DType.FP16, DType.BF16, DType.FP32, DType.BOOL
FLOATS = (F32, F16, BF16)
NAN, INF, MOST = float("nan"), float("inf"), 3.4028235e38
Made = Callable[[Builder, list[Tensor]], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Case:
    """A program on given values.

    Attributes:
        name: id of the field case, and which of its family.
        operands: types and values.
        make: gives the outputs from the operands.
        expected: the outputs' values.
    """

    name: str
    operands: tuple[tuple[DType, Any], ...]
    make: Made
    expected: tuple[Any, ...]


def one(op: Op, **more: Any) -> Made:  # noqa: ANN401 - attributes
    return lambda b, x: [b.op(op, x, **more)]


def squares(b: Builder, x: list[Tensor]) -> list[Tensor]:
    product = b.mul(x[0], x[0])
    return [product, b.add(product, x[1])]


def there_and_back(b: Builder, x: list[Tensor]) -> list[Tensor]:
    return [b.sub(b.add(x[0], x[1]), x[0])]


def masked(b: Builder, x: list[Tensor]) -> list[Tensor]:
    value, mask, ones, low = x
    return [b.add(b.mul(value, mask), b.mul(low, b.sub(ones, mask)))]


def chosen(b: Builder, x: list[Tensor]) -> list[Tensor]:
    same = b.equal(x[0], x[0])
    return [same, b.select(same, x[1], x[2])]


def padded(b: Builder, x: list[Tensor]) -> list[Tensor]:
    return [b.op(Op.PAD, [x[0], b.const_shape((1, 1)), x[1]])]


def extremes(dtype: DType) -> list[Case]:
    """C3: NaN by its bits, in both modes."""
    left, right = [NAN, 1.0, NAN, -0.0], [1.0, NAN, NAN, 2.0]
    quiet = {F32: 0xFFC00001, F16: 0xFE01, BF16: 0xFFC1}[dtype]
    other = np.array([quiet], f"u{dtype.numpy.itemsize}").view(dtype.numpy)
    negative = np.concatenate([other, np.array(left[1:], dtype.numpy)])
    cases: list[Case] = []
    for op, last in ((Op.MAXIMUM, 2.0), (Op.MINIMUM, 0.0)):
        for mode, first in ((NanMode.PROPAGATE, NAN), (NanMode.IGNORE, 1.0)):
            want = ([first, first, NAN, last],)
            for which, x in (("", left), (" negative", negative)):
                name = f"C3 {op.name} {mode.name} {dtype.name}{which}"
                make = one(op, nan_mode=int(mode))
                cases.append(Case(name, ((dtype, x), (dtype, right)), make, want))
    return cases


CASES = [
    *(
        Case(
            f"B29 {dtype.name}",
            ((dtype, [1 + step]), (dtype, [-(1 + 2 * step)])),
            squares,
            ([1 + 2 * step], [0.0]),
        )
        for dtype, step in ((F32, 2.0**-12), (F16, 2.0**-6), (BF16, 2.0**-4))
    ),
    Case(
        "B30 cast",
        ((I32, [16777217, -16777217, 16777219]),),
        lambda b, x: [b.cast(b.cast(x[0], F32), I32)],
        ([16777216, -16777216, 16777220],),
    ),
    Case("B30 sums", ((F32, [1e10]), (F32, [1e-10])), there_and_back, ([0.0],)),
    *(
        Case(f"B30 {op.name} {dtype.name}", ((dtype, x), (dtype, y)), one(op), (want,))
        for dtype in FLOATS
        for op, x, y, want in (
            (Op.SUB, [INF, -INF], [INF, -INF], [NAN, NAN]),
            (Op.ADD, [INF], [-INF], [NAN]),
        )
    ),
    *(
        Case(
            f"B30 MUL {dtype.name}",
            ((dtype, [0.0, 0.0, INF]), (dtype, [NAN, INF, -0.0])),
            lambda b, x: [b.mul(x[0], x[1])],
            ([NAN, NAN, NAN],),
        )
        for dtype in FLOATS
    ),
    Case("B12 sum", ((I32, np.arange(1, 1001)),), one(Op.REDUCE_SUM, axis=0), ([500500],)),
    Case("B12 product", ((F32, np.ones(1000)),), one(Op.REDUCE_PRODUCT, axis=0), ([1.0],)),
    Case(
        "B12 argmax",
        ((F32, np.arange(1000) % 777),),
        one(Op.ARGMAX, axis=0, nan_mode=1, dtype=I32),
        (776,),
    ),
    *(
        Case(
            f"C1 clamp {dtype.name}",
            ((dtype, [1.0, 5.0, -INF]),),
            lambda b, x: [b.clamp(x[0], -2.0, INF)],
            ([1.0, 5.0, -2.0],),
        )
        for dtype in FLOATS
    ),
    *(
        Case(
            f"C1 pad {dtype.name} {value}",
            ((dtype, [1.0]), (dtype, [value])),
            padded,
            ([value, 1.0, value],),
        )
        for dtype in FLOATS
        for value in (-INF, INF, NAN)
    ),
    Case("C1 largest", ((F32, [MOST]), (F32, [-0.0])), one(Op.ADD), ([MOST],)),
    Case("C1 NaN", ((F32, [NAN, INF]), (F32, [1.0, 1.0])), one(Op.ADD), ([NAN, INF],)),
    *(case for dtype in FLOATS for case in extremes(dtype)),
    *(
        Case(
            f"C3 select {dtype.name}",
            ((dtype, [NAN, 1.0]), (dtype, [2.0, 2.0]), (dtype, [3.0, 3.0])),
            chosen,
            ([False, True], [3.0, 2.0]),
        )
        for dtype in FLOATS
    ),
    Case(
        "C6",
        ((F32, [2147483520, 2147483648, 1e20, INF, -2147483648, -1e20]),),
        lambda b, x: [b.cast(x[0], I32)],
        ([2147483520, *[2**31 - 1] * 3, -(2**31), -(2**31)],),
    ),
    Case("C9", ((I32, [7]), (I32, [2])), one(Op.INTDIV), ([3],)),
    Case(
        "C10",
        ((F32, [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 8388609.0, 4194304.5]),),
        lambda b, x: [b.cast(x[0], I32)],
        ([0, 2, 2, 0, -2, -2, 8388609, 4194304],),
    ),
    Case(
        "C21",
        ((F32, [65504, 65519.99, 65520, 1e9, 2.0**-25, 2.0**-25 * 1.001, -0.0]),),
        lambda b, x: [b.cast(x[0], F16)],
        ([65504, 65504, INF, INF, 0, 2.0**-24, -0.0],),
    ),
    Case(
        "C23",
        tuple((F32, x) for x in ([1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [-1e10, -1e10])),
        masked,
        ([1.0, -1e10],),
    ),
    Case("C23 sums", ((F32, [1e10]), (F32, [1.0])), there_and_back, ([0.0],)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_numbers(opened: Devices, gpu_device: str, case: Case) -> None:
    for constant in (False, True):
        b = Builder()
        feeds: dict[str, Array] = {}
        tensors: list[Tensor] = []
        for number, (dtype, value) in enumerate(case.operands):
            array = np.asarray(value).astype(dtype.numpy)
            if constant:
                tensors.append(b.const(array, dtype))
            else:
                feeds[f"x{number}"] = array
                tensors.append(b.input(f"x{number}", dtype, array.shape))
        for output in case.make(b, tensors):
            b.output(output)
        results = opened.run(gpu_device, load_graph(b.build()), feeds)
        for found, want in zip(results.values(), case.expected, strict=True):
            right = np.asarray(want).astype(found.dtype)
            assert same_values(found, right), (constant, found, right)
            if case.name == "C21":
                assert np.signbit(found[-1])
