"""Programs whose zero points, shifts, multipliers and the like come at run time."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.running import Array
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Graph, Op, RoundingMode, Tensor
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

I8, I16, I32, F16, F32 = DType.INT8, DType.INT16, DType.INT32, DType.FP16, DType.FP32
Operand = tuple[DType, Any]


def noise(dtype: DType, *shape: int) -> Operand:
    rng = np.random.default_rng(sum(shape))
    if dtype.is_float:
        return dtype, rng.normal(size=shape)
    low, high = (-128, 128) if dtype is I8 else (-30000, 30000)
    return dtype, rng.integers(low, high, shape)


@dataclass(frozen=True, slots=True)
class Case:
    """An operator; the operands from `first` on are usually constants."""

    op: Op
    operands: tuple[Operand, ...]
    first: int
    dtype: DType | None = None
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])

    def program(self, *, constant: bool) -> tuple[Graph, dict[str, Array]]:
        b = Builder()
        feeds: dict[str, Array] = {}
        tensors: list[Tensor] = []
        for number, (dtype, value) in enumerate(self.operands):
            array = np.asarray(value).astype(dtype.numpy)
            if constant and number >= self.first:
                tensors.append(b.const(array, dtype))
            else:
                name = f"x{number}"
                tensors.append(b.input(name, dtype, array.shape))
                feeds[name] = array
        b.output(b.op(self.op, tensors, name="y", dtype=self.dtype, **self.attributes))
        return load_graph(b.build()), feeds


def zero_points(dtype: DType, *values: float) -> tuple[Operand, ...]:
    return tuple((dtype, [value]) for value in values)


def rescale(
    *, per_channel: bool, mode: RoundingMode = RoundingMode.SINGLE_ROUND
) -> Case:
    count = 5 if per_channel else 1
    rng = np.random.default_rng(count)
    multipliers = (I32, rng.integers(1 << 30, (1 << 31) - 1, count))
    shifts = (I8, rng.integers(31, 38, count))
    attributes = {
        "scale32": True,
        "rounding_mode": int(mode),
        "per_channel": per_channel,
    }
    operands = (noise(I8, 3, 5), multipliers, shifts, *zero_points(I8, 7, -3))
    return Case(Op.RESCALE, operands, 1, I8, attributes)


WINDOW = {"pad": (1, 1, 1, 0), "stride": (1, 1), "dilation": (1, 1)}
CASES = {
    "negate int8": Case(Op.NEGATE, (noise(I8, 3, 7), *zero_points(I8, 6, -128)), 1),
    "negate int16": Case(Op.NEGATE, (noise(I16, 5), *zero_points(I16, 0, 0)), 1),
    "negate int32": Case(Op.NEGATE, (noise(I32, 2, 1, 3), *zero_points(I32, 0, 0)), 1),
    "negate scalar": Case(Op.NEGATE, ((I8, -128), *zero_points(I8, 0, 0)), 1),
    "negate fp16": Case(Op.NEGATE, (noise(F16, 5), *zero_points(F16, 0, 0)), 1),
    **{
        f"mul shift {shift}": Case(
            Op.MUL,
            (
                (I32, np.array([[-(2**31), 2**31 - 1, -7, 5, 0, 123456789]])),
                (
                    I32,
                    np.array([[3], [-1], [2**30]]) if shift > 31 else [[3], [-1], [1]],
                ),
                (I8, [shift]),
            ),
            2,
            I32,
        )
        for shift in (2, 31, 32, 33, 62)
    },
    "mul int8": Case(Op.MUL, (noise(I8, 5), noise(I8, 1), (I8, [0])), 2, I32),
    "rescale": rescale(per_channel=False),
    "rescale channels": rescale(per_channel=True, mode=RoundingMode.DOUBLE_ROUND),
    "table int8": Case(Op.TABLE, (noise(I8, 3, 5), noise(I8, 256)), 1, I8),
    "table int16": Case(
        Op.TABLE, (noise(I16, 7), (I16, np.arange(513) * 60 - 15000)), 1, I32
    ),
    "average": Case(
        Op.AVG_POOL2D,
        (noise(I8, 1, 5, 4, 3), *zero_points(I8, 9, -4)),
        1,
        None,
        {
            "kernel": (2, 2),
            "stride": (1, 1),
            "pad": (1, 1, 0, 0),
            "acc_type": I32,
        },
    ),
    "product": Case(
        Op.MATMUL,
        (noise(I8, 2, 3, 5), noise(I8, 2, 5, 4), *zero_points(I8, 3, -7)),
        2,
        I32,
    ),
    "convolution": Case(
        Op.CONV2D,
        (
            noise(I8, 1, 5, 4, 3),
            noise(I8, 2, 3, 2, 3),
            noise(I32, 2),
            *zero_points(I8, 5, -2),
        ),
        1,
        None,
        {**WINDOW, "acc_type": I32},
    ),
    "volumes": Case(
        Op.CONV3D,
        (
            noise(I8, 1, 3, 5, 4, 3),
            noise(I8, 2, 2, 3, 2, 3),
            noise(I32, 2),
            *zero_points(I8, 5, -2),
        ),
        1,
        None,
        {
            "pad": (1, 0, 1, 1, 1, 0),
            "stride": (1, 1, 1),
            "dilation": (1, 1, 1),
            "acc_type": I32,
        },
    ),
    "float convolution": Case(
        Op.CONV2D,
        (
            noise(F16, 1, 5, 4, 3),
            noise(F16, 2, 3, 2, 3),
            noise(F16, 2),
            *zero_points(F16, 0, 0),
        ),
        1,
        None,
        {**WINDOW, "acc_type": F32},
    ),
}

FORBIDDEN: tuple[tuple[str, str, float, str], ...] = (
    ("negate int16", "x1", 3, "NEGATE .*: {}1' is 3;"),
    ("negate fp16", "x2", 0.5, "NEGATE .*: {}2' is 0.5;"),
    ("float convolution", "x3", 1, "CONV2D .*: {}3' is 1"),
    ("mul shift 31", "x2", 64, "MUL .*: {}2' is 64;"),
    ("mul int8", "x2", 1, "MUL .*: {}2' is 1;"),
    ("rescale", "x1", -1, "RESCALE .*: {}1' has a negative multiplier, -1"),
    ("rescale", "x2", 1, "RESCALE .*: {}2' has shifts 1..1,"),
)
"""Case, operand, a value that it must not have, and the message; {} is `GIVEN` for
operands that are inputs and `MADE` for computed ones."""

GIVEN, MADE = "input 'x", "computed tensor 'made"


def computed(case: Case, *, region: bool) -> tuple[Graph, dict[str, Array]]:
    """The operator of a case with operands that the program itself computes.

    In a region, that is the one that COND_IF takes for a true condition.
    """
    b = Builder()
    feeds: dict[str, Array] = {}
    given: list[Tensor] = []
    for number, (dtype, value) in enumerate(case.operands):
        feeds[f"x{number}"] = np.asarray(value).astype(dtype.numpy)
        given.append(b.input(f"x{number}", dtype, feeds[f"x{number}"].shape))

    def body(inside: Builder, tensors: list[Tensor]) -> Tensor:
        turned = [
            inside.op(Op.REVERSE, [tensor], axis=0, name=f"made{number}")
            if number >= case.first
            else tensor
            for number, tensor in enumerate(tensors)
        ]
        return inside.op(
            case.op, turned, name="result", dtype=case.dtype, **case.attributes
        )

    if not region:
        b.output(body(b, given))
        return load_graph(b.build()), feeds
    feeds["taken"] = np.array([True])
    taken = b.input("taken", DType.BOOL, (1,))
    for name in ("then", "else"):
        inside = b.region(name)
        tensors = [
            inside.input(f"in{number}", tensor.dtype, tensor.shape or ())
            for number, tensor in enumerate(given)
        ]
        inside.output(body(inside, tensors))
    b.output(*b.cond_if(taken, given, then_graph="then", else_graph="else"))
    return load_graph(b.build()), feeds
