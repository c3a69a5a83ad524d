"""Small results that can be checked by hand, on every device.

The FP32 answers come from Python's `math`; those of FP16 are bit patterns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from harness.running import Array, Devices
from tosavk.core.dtypes import DType
from tosavk.differential.compare import compare_bits
from tosavk.lowering.graph import Op, Tensor
from tosavk.lowering.tosa.builder import Builder

F32, F16, I32, BOOL = DType.FP32, DType.FP16, DType.INT32, DType.BOOL
TABLE = [[1.0, 3.0, 2.0], [-1.0, 4.0, 2.0]]
HALVES = [0.5, 1.0, 2.0, 4.0]
COLUMN, ROW = [[2.0], [4.0]], [[1.0, 2.0, 3.0]]
SIX = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]

UNARY: dict[Op, Callable[[float], float]] = {
    Op.ABS: abs,
    Op.CEIL: math.ceil,
    Op.COS: math.cos,
    Op.ERF: math.erf,
    Op.EXP: math.exp,
    Op.FLOOR: math.floor,
    Op.LOG: math.log,
    Op.RECIPROCAL: lambda v: 1 / v,
    Op.RSQRT: lambda v: 1 / math.sqrt(v),
    Op.SIGMOID: lambda v: 1 / (1 + math.exp(-v)),
    Op.SIN: math.sin,
    Op.TANH: math.tanh,
}
EXACT = {Op.ABS, Op.CEIL, Op.FLOOR}
BINARY: dict[Op, Callable[[float, float], float]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.POW: lambda a, b: a**b,
    Op.MAXIMUM: max,
    Op.MINIMUM: min,
}
BINARY_HALVES = {
    Op.ADD: "4200 4400 4500 4500 4600 4700",
    Op.SUB: "3C00 0000 BC00 4200 4000 3C00",
    Op.POW: "4000 4400 4800 4400 4C00 5400",
    Op.MAXIMUM: "4000 4000 4200 4400 4400 4400",
    Op.MINIMUM: "3C00 4000 4000 3C00 4000 4200",
}
UNARY_HALVES = {
    Op.ABS: ("3800 3C00 4000 4400", 0),
    Op.CEIL: ("3C00 3C00 4000 4400", 0),
    Op.COS: ("3B05 3853 B6A9 B93B", 8),
    Op.EXP: ("3E98 4170 4764 52D3", 4),
    Op.FLOOR: ("0000 3C00 4000 4400", 0),
    Op.LOG: ("B98C 0000 398C 3D8C", 4),
    Op.RECIPROCAL: ("4000 3C00 3800 3400", 2),
    Op.RSQRT: ("3DA8 3C00 39A8 3800", 4),
    Op.SIN: ("37AC 3ABB 3B46 BA0E", 8),
    Op.SIGMOID: ("38FB 39D9 3B0C 3BDB", 4),
    Op.TANH: ("3765 3A18 3BB6 3BFF", 4),
}
COMPARED = {
    Op.EQUAL: [True, False, False, True],
    Op.GREATER: [False, False, True, False],
    Op.GREATER_EQUAL: [True, False, True, True],
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one result must be.

    Attributes:
        value: the right values.
        absolute: error allowed, or
        relative: this part of the value.
        units: for FP16, how many bit patterns away it may be.
    """

    value: Array
    absolute: float = 0.0
    relative: float = 0.0
    units: int = 0

    def check(self, name: str, actual: Array) -> None:
        assert (actual.dtype, actual.shape) == (self.value.dtype, self.value.shape)
        if self.units:
            bits, found = (v.view(np.uint16).astype(int) for v in (self.value, actual))
            exact = (self.value == 0) | (np.signbit(self.value) != np.signbit(actual))
            right = np.where(exact, 0, self.units) >= np.abs(bits - found)
        elif self.absolute:
            wide = self.value.astype(np.float64)
            error = np.abs(wide - actual.astype(np.float64))
            right = (error <= self.absolute) | (error <= self.relative * np.abs(wide))
        else:
            # The sign of zero counts, NaN equals NaN.
            right = compare_bits(self.value, actual).equal
        assert np.all(right), (name, self.value, actual)


class Checked:
    """A program whose results are known."""

    def __init__(self) -> None:
        self.build = Builder()
        self.inputs: dict[str, Array] = {}
        self.answers: dict[str, Answer] = {}

    def give(self, dtype: DType, values: object) -> Tensor:
        """An input."""
        array = np.array(values, dtype.numpy)
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        return self.build.input(name, dtype, array.shape)

    def expect(self, result: Tensor, value: object, **allowed: float) -> None:
        """Makes a value an output whose answer is `value`."""
        array = np.array(value, result.dtype.numpy)
        self.answers[result.name] = Answer(array, **allowed)  # type: ignore[arg-type]
        self.build.output(result)

    def check(self, opened: Devices, spec: str) -> None:
        """Runs it and compares all results."""
        results = opened.run(spec, self.build.build(), self.inputs)
        assert set(results) == set(self.answers)
        for name, answer in self.answers.items():
            answer.check(name, results[name])


def halves(text: str, *shape: int) -> Array:
    """FP16 values by their bit patterns."""
    bits = np.array([int(word, 16) for word in text.split()], np.uint16)
    return bits.view(np.float16).reshape(shape or bits.shape)


def test_fp32(opened: Devices, device: str) -> None:
    c = Checked()
    b = c.build
    near = {"absolute": 1e-6, "relative": 4e-6}
    x = c.give(F32, HALVES)
    for op, function in UNARY.items():
        allowed = {} if op in EXACT else near
        c.expect(b.op(op, [x]), [function(v) for v in HALVES], **allowed)
    c.expect(b.negate(x), [-v for v in HALVES])
    c.expect(b.clamp(x, -1.0, 1.0), [0.5, 1, 1, 1])
    column, row = c.give(F32, COLUMN), c.give(F32, ROW)
    for op2, function2 in BINARY.items():
        products = [[function2(p[0], q) for q in ROW[0]] for p in COLUMN]
        c.expect(b.op(op2, [column, row]), products, **(near if op2 is Op.POW else {}))
    c.expect(b.mul(column, row), [[2, 4, 6], [4, 8, 12]])
    left, right = c.give(F32, [1, 2, 3, 4]), c.give(F32, [1, 3, 2, 4])
    for op3, truth in COMPARED.items():
        c.expect(b.op(op3, [left, right]), truth)
    p, q = c.give(BOOL, [0, 0, 1, 1]), c.give(BOOL, [0, 1, 0, 1])
    c.expect(b.logical_and(p, q), [False, False, False, True])
    c.expect(b.logical_or(p, q), [False, True, True, True])
    c.expect(b.logical_xor(p, q), [False, True, True, False])
    c.expect(b.logical_not(p), [True, True, False, False])
    c.expect(b.select(q, left, right), [1, 2, 2, 4])
    table = c.give(F32, TABLE)
    c.expect(b.reduce_max(table, 1), [[3], [4]])
    c.expect(b.reduce_min(table, 1), [[1], [-1]])
    c.expect(b.reduce_product(table, 1), [[6], [-8]])
    c.expect(b.reduce_sum(table, 1), [[6], [5]])
    c.expect(b.argmax(table, 1), [1, 1])
    constant = b.const(np.array([10, 20, 30, 40], np.float32))
    c.expect(b.add(left, constant), [11, 22, 33, 44])
    square = c.give(F32, [[1, 2], [3, 4]])
    c.expect(b.reshape(square, (1, 4)), [[1, 2, 3, 4]])
    six = c.give(F32, SIX)
    c.expect(b.transpose(six, (1, 0)), [[1, 4], [2, 5], [3, 6]])
    c.expect(b.reverse(six, 1), [[3, 2, 1], [6, 5, 4]])
    ones, threes = c.give(F32, [[1], [2]]), c.give(F32, [[3], [4]])
    c.expect(b.concat([ones, threes], 1), [[1, 3], [2, 4]])
    weight = b.const(np.array([[[1, 0], [0, 1], [1, -1]]], np.float32))
    inputs = [[[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]]]
    linear = b.matmul(c.give(F32, inputs), weight)
    answer = [[[math.tanh(4), math.tanh(-1)], [math.tanh(1), math.tanh(-1.5)]]]
    c.expect(b.tanh(linear), answer, **near)
    product = b.matmul(c.give(F32, [SIX]), c.give(F32, [[[7, 8], [9, 10], [11, 12]]]))
    c.expect(product, [[[58, 64], [139, 154]]], absolute=1e-5)
    image = np.stack([np.arange(1, 17), np.arange(101, 117)], -1).reshape(1, 4, 4, 2)
    pooled = b.max_pool2d(c.give(F32, image), (2, 2), stride=(2, 2))
    c.expect(pooled, [[[[6, 106], [8, 108]], [[14, 114], [16, 116]]]])
    edges = [math.nan, -math.inf, -0.0, 0.0, 2.0**-149, 2.0**-126, 1.0, math.inf]
    c.expect(b.identity(c.give(F32, edges)), edges)
    c.check(opened, device)


def test_fp16(opened: Devices, device: str) -> None:
    c = Checked()
    b = c.build
    x = c.give(F16, HALVES)
    for op, (text, units) in UNARY_HALVES.items():
        c.expect(b.op(op, [x]), halves(text), units=units)
    c.expect(b.negate(x), halves("B800 BC00 C000 C400"))
    c.expect(b.clamp(x, -1.0, 1.0), halves("3800 3C00 3C00 3C00"))
    left = c.give(F16, halves("3C00 4000 4200 4400"))
    right = c.give(F16, halves("3C00 4200 4000 4400"))
    for op, truth in COMPARED.items():
        c.expect(b.op(op, [left, right]), truth)
    chosen = c.give(BOOL, [0, 1, 0, 1])
    other = c.give(F16, halves("4500 4600 4700 4800"))
    c.expect(b.select(chosen, left, other), halves("4500 4000 4700 4400"))
    table = c.give(F16, TABLE)
    c.expect(b.argmax(table, 1), [1, 1])
    c.expect(b.reduce_max(table, 1), halves("4200 4400", 2, 1))
    c.expect(b.reduce_min(table, 1), halves("3C00 BC00", 2, 1))
    c.expect(b.reduce_product(table, 1), halves("4600 C800", 2, 1), units=1)
    c.expect(b.reduce_sum(table, 1), halves("4600 4500", 2, 1), units=1)
    tens = c.give(F16, halves("4900 4D00 4F80 5100"))
    constant = b.const(np.array([1, 2, 3, 4], np.float16))
    c.expect(b.add(tens, constant), halves("4980 4D80 5020 5180"))
    six = c.give(F16, SIX)
    turned = halves("3C00 4400 4000 4500 4200 4600", 3, 2)
    c.expect(b.transpose(six, (1, 0)), turned)
    c.expect(b.reverse(six, 1), halves("4200 4000 3C00 4600 4500 4400", 2, 3))
    ones, threes = c.give(F16, [[1], [2]]), c.give(F16, [[3], [4]])
    c.expect(b.concat([ones, threes], 1), halves("3C00 4200 4000 4400", 2, 2))
    column, row = c.give(F16, COLUMN), c.give(F16, ROW)
    for op, text in BINARY_HALVES.items():
        c.expect(b.op(op, [column, row]), halves(text, 2, 3))
    c.expect(b.mul(column, row), halves("4000 4400 4600 4400 4800 4A00", 2, 3))
    product = b.matmul(c.give(F16, [SIX]), c.give(F16, [[[7, 8], [9, 10], [11, 12]]]))
    c.expect(product, halves("5340 5400 5858 58D0", 1, 2, 2))
    weight = b.const(np.array([[[1, 0], [0, 1], [1, -1]]], np.float16))
    classes = b.matmul(c.give(F16, [[[1, 2, 3], [-1, 0.5, 2]]]), weight)
    c.expect(classes, halves("4400 BC00 3C00 BE00", 1, 2, 2))
    edges = halves("7E00 FC00 8000 0000 0001 0400 3C00 7C00")
    c.expect(b.identity(c.give(F16, edges)), edges)
    c.check(opened, device)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (DType.FP8E4M3, "00 80 01 81 38 B8 7E 7F"),
        (DType.FP8E5M2, "00 80 01 81 3C 7B 7C 7D"),
    ],
    ids=["E4M3", "E5M2"],
)
def test_fp8_identity(opened: Devices, device: str, dtype: DType, bits: str) -> None:
    c = Checked()
    values = np.frombuffer(bytes.fromhex(bits), np.uint8).view(dtype.numpy)
    c.expect(c.build.identity(c.give(dtype, values)), values)
    c.check(opened, device)


def test_a_copy_keeps_the_payload_of_a_nan(opened: Devices, gpu_device: str) -> None:
    """Moves are of raw bits, also those that no arithmetic would give."""
    bits = np.array([0x7FA00001, 0xFFC12345, 0x7F800001, 0x80000001], np.uint32)
    b = Builder()
    x = b.input("x", F32, (2, 2))
    b.output(b.identity(x))
    b.output(b.transpose(x, (1, 0)))
    b.output(b.concat([x, x], 0))
    given = bits.view(np.float32).reshape(2, 2)
    copy, turned, twice = opened.run(gpu_device, b.build(), {"x": given}).values()
    assert copy.view(np.uint32).tolist() == given.view(np.uint32).tolist()
    assert turned.view(np.uint32).tolist() == given.view(np.uint32).T.tolist()
    assert twice.view(np.uint32).tolist() == 2 * given.view(np.uint32).tolist()


def test_bfloat16_rounds_once(opened: Devices, device: str) -> None:
    """1 + 2^-8 lies halfway; the even neighbour is 1. 1 + 3 * 2^-8 goes up."""
    c = Checked()
    b = c.build
    x = c.give(DType.BF16, [1.0, 1.0 + 2.0**-7, 3.0])
    y = c.give(DType.BF16, [2.0**-8, 2.0**-8, 2.0**-7])
    kind = ml_dtypes.bfloat16
    c.expect(b.add(x, y), np.array([1.0, 1.0 + 2.0**-6, 3.0], kind))
    c.check(opened, device)


def test_int32(opened: Devices, device: str) -> None:
    c = Checked()
    b = c.build
    x, y = c.give(I32, [[7], [-5]]), c.give(I32, [[1, -2, 3]])
    c.expect(b.add(x, y), [[8, 5, 10], [-4, -7, -2]])
    c.expect(b.sub(x, y), [[6, 9, 4], [-6, -3, -8]])
    c.expect(b.mul(x, y), [[7, -14, 21], [-5, 10, -15]])
    # Half is added before the shift: (a * b + 2) >> 2.
    shift = b.const([2], DType.INT8)
    c.expect(b.mul(x, y, shift=shift), [[2, -3, 5], [-1, 3, -4]])
    c.expect(b.maximum(x, y), [[7, 7, 7], [1, -2, 3]])
    c.expect(b.minimum(x, y), [[1, -2, 3], [-5, -5, -5]])
    c.expect(b.abs(x), [[7], [5]])
    c.expect(b.negate(x), [[-7], [5]])
    c.expect(b.reduce_sum(y, 1), [[2]])
    c.expect(b.reduce_max(y, 1), [[3]])
    c.expect(b.reduce_min(y, 1), [[-2]])
    c.check(opened, device)
