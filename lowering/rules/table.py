"""The table of lowering rules: which operator, which types, which function.

Support is declared here as data and checked before any work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tosavk.core.dtypes import DType
from tosavk.lowering.builder import PlanBuilder
from tosavk.lowering.graph import Op, Operator
from tosavk.lowering.rules import (
    conv3d,
    convolution,
    dynamic,
    elementwise,
    fft,
    layout,
    matmul,
    pooling,
    reduction,
    resize,
    scaling,
    scatter,
)

RuleFunction = Callable[[Operator, PlanBuilder], None]

FLOATS = frozenset({DType.FP32, DType.FP16, DType.BF16})
FP8 = frozenset({DType.FP8E4M3, DType.FP8E5M2})
INTEGERS = frozenset({DType.INT8, DType.INT16, DType.INT32})
QUANTIZED = frozenset({DType.INT8, DType.INT16})
BOOL = frozenset({DType.BOOL})
NUMBERS = FLOATS | frozenset({DType.INT32})
ANY = FLOATS | FP8 | INTEGERS | BOOL


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator is lowered.

    Attributes:
        function: emits the dispatches.
        types: types of the first data operand that the kernels have.
        operand: position of that operand.
    """

    function: RuleFunction
    types: frozenset[DType]
    operand: int = 0


RULES: dict[Op, Rule] = {
    **{op: Rule(elementwise.unary, FLOATS) for op in elementwise.UNARY_OPS},
    Op.ABS: Rule(elementwise.unary, NUMBERS),
    Op.BITWISE_NOT: Rule(elementwise.unary, INTEGERS),
    Op.CLZ: Rule(elementwise.unary, frozenset({DType.INT32})),
    Op.LOGICAL_NOT: Rule(elementwise.unary, BOOL),
    Op.NEGATE: Rule(dynamic.negate, FLOATS | INTEGERS),
    Op.CLAMP: Rule(elementwise.clamp, FLOATS | INTEGERS),
    Op.CAST: Rule(elementwise.cast, ANY),
    Op.ADD: Rule(elementwise.binary, NUMBERS),
    Op.SUB: Rule(elementwise.binary, NUMBERS),
    Op.MUL: Rule(dynamic.mul, NUMBERS | INTEGERS),
    Op.POW: Rule(elementwise.binary, FLOATS),
    Op.MAXIMUM: Rule(elementwise.extremum, NUMBERS),
    Op.MINIMUM: Rule(elementwise.extremum, NUMBERS),
    Op.INTDIV: Rule(elementwise.binary, frozenset({DType.INT32})),
    Op.ARITHMETIC_RIGHT_SHIFT: Rule(elementwise.arithmetic_right_shift, INTEGERS),
    Op.LOGICAL_LEFT_SHIFT: Rule(elementwise.binary, INTEGERS),
    Op.LOGICAL_RIGHT_SHIFT: Rule(elementwise.binary, INTEGERS),
    Op.BITWISE_AND: Rule(elementwise.binary, INTEGERS),
    Op.BITWISE_OR: Rule(elementwise.binary, INTEGERS),
    Op.BITWISE_XOR: Rule(elementwise.binary, INTEGERS),
    Op.LOGICAL_AND: Rule(elementwise.binary, BOOL),
    Op.LOGICAL_OR: Rule(elementwise.binary, BOOL),
    Op.LOGICAL_XOR: Rule(elementwise.binary, BOOL),
    Op.EQUAL: Rule(elementwise.binary, NUMBERS),
    Op.GREATER: Rule(elementwise.binary, NUMBERS),
    Op.GREATER_EQUAL: Rule(elementwise.binary, NUMBERS),
    Op.SELECT: Rule(elementwise.select, ANY, operand=1),
    Op.REDUCE_ALL: Rule(reduction.reduce, BOOL),
    Op.REDUCE_ANY: Rule(reduction.reduce, BOOL),
    Op.REDUCE_MAX: Rule(reduction.reduce, FLOATS | INTEGERS),
    Op.REDUCE_MIN: Rule(reduction.reduce, FLOATS | INTEGERS),
    Op.REDUCE_PRODUCT: Rule(reduction.reduce, FLOATS),
    Op.REDUCE_SUM: Rule(reduction.reduce, NUMBERS),
    Op.ARGMAX: Rule(
        reduction.reduce, FLOATS | FP8 | frozenset({DType.INT8, DType.INT16})
    ),
    Op.IDENTITY: Rule(layout.copy, ANY | frozenset({DType.INT4, DType.INT48})),
    Op.RESHAPE: Rule(layout.copy, ANY),
    Op.TRANSPOSE: Rule(layout.transpose, ANY),
    Op.REVERSE: Rule(layout.reverse, ANY),
    Op.SLICE: Rule(layout.slice_, ANY),
    Op.CONCAT: Rule(layout.concat, ANY),
    Op.PAD: Rule(layout.pad, ANY),
    Op.TILE: Rule(layout.tile, ANY),
    Op.GATHER: Rule(layout.gather, ANY - BOOL),
    Op.RESIZE: Rule(resize.resize, FLOATS | QUANTIZED),
    Op.SCATTER: Rule(scatter.scatter, ANY - BOOL),
    Op.FFT2D: Rule(fft.fft2d, frozenset({DType.FP32})),
    Op.RFFT2D: Rule(fft.rfft2d, frozenset({DType.FP32})),
    Op.CONV3D: Rule(conv3d.conv3d, FLOATS | FP8 | QUANTIZED),
    Op.CONV2D: Rule(convolution.conv2d, FLOATS | FP8 | QUANTIZED),
    Op.DEPTHWISE_CONV2D: Rule(convolution.depthwise_conv2d, FLOATS | FP8 | QUANTIZED),
    Op.TRANSPOSE_CONV2D: Rule(convolution.transpose_conv2d, FLOATS | FP8 | QUANTIZED),
    Op.MATMUL: Rule(matmul.matmul, FLOATS | FP8 | QUANTIZED),
    Op.AVG_POOL2D: Rule(pooling.avg_pool2d, FLOATS | FP8 | QUANTIZED),
    Op.MAX_POOL2D: Rule(pooling.max_pool2d, FLOATS | FP8 | QUANTIZED),
    Op.RESCALE: Rule(scaling.rescale, INTEGERS | frozenset({DType.INT48})),
    Op.TABLE: Rule(scaling.table, QUANTIZED),
}
