"""What a result is judged by: the binary64 result and the bound TOSA gives for it.

Source: TOSA 1.0 sections 1.8.2 "Main Inference profile" and 1.8.3 "dot product accuracy",
and the error bounds stated with each operator. `differential.rules` turns the two into
a verdict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tosavk.backends.reference.call import Call
from tosavk.backends.reference.evaluate import Evaluator, Note
from tosavk.backends.reference.operators import COMPUTING
from tosavk.backends.reference.operators.scaling import inexact_range
from tosavk.backends.reference.operators.transforms import weighted_sums
from tosavk.backends.reference.values import (
    FRACTION_BITS,
    LARGEST,
    SMALLEST_NORMAL,
    Array,
    Precision,
)
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Block, Graph, Op, Operator, RoundingMode

DOT_PRODUCTS = frozenset(
    {
        Op.AVG_POOL2D,
        Op.CONV2D,
        Op.CONV3D,
        Op.DEPTHWISE_CONV2D,
        Op.FFT2D,
        Op.MATMUL,
        Op.REDUCE_SUM,
        Op.RFFT2D,
        Op.TRANSPOSE_CONV2D,
    }
)
"""Operators whose float results are judged by the dot product rule."""

_WITH_BIAS = frozenset({Op.CONV2D, Op.CONV3D, Op.DEPTHWISE_CONV2D, Op.TRANSPOSE_CONV2D})
_TWO_INPUTS = frozenset({Op.MATMUL, Op.FFT2D})
_LOCAL_BOUND = _WITH_BIAS | {Op.FFT2D, Op.RFFT2D}
_EXP_BASE = {DType.FP32: 3.0, DType.FP16: 1.0, DType.BF16: 1.0}


@dataclass(frozen=True, slots=True)
class Expected:
    """What one result tensor should be.

    Attributes:
        reference: float64 for float tensors, else the tensor's own type. For RESCALE
            with INEXACT_ROUND, the smallest result allowed.
        bound: what the rule of the operator takes besides: the result on magnitudes
            for dot products, the factor or magnitude of the absolute error rules, the
            absolute error itself for POW, infinity where REDUCE_PRODUCT is free, the
            largest input magnitude of RESIZE, the largest result of an inexact RESCALE;
            None where the rule takes nothing.
        terms: how many roundings the rule allows for: for dot products the products of
            an element, fewer where the accumulator is more precise than the result,
            and one for a bias (KSB); for REDUCE_PRODUCT the factors. 0 otherwise.
    """

    reference: Array
    bound: Array | None = None
    terms: int = 0


def expect(
    op: Operator,
    block: Block,
    operands: Sequence[Array],
    *,
    graph: Graph | None = None,
    notes: list[Note] | None = None,
) -> list[Expected]:
    """The binary64 results of an operator with their bounds.

    Args:
        op: the operator.
        block: gives the types of its operands and results.
        operands: one array an input, of `dtype.numpy` or float64 for floats: what the
            implementation's operator was given.
        graph: gives the regions of COND_IF and WHILE_LOOP.
        notes: filled with the reasons why TOSA leaves the result open.
    """
    evaluator = Evaluator(
        graph, Precision.PRECISE, notes=notes if notes is not None else []
    )
    call = evaluator.call(op, block, operands)
    if op.op in COMPUTING:
        results = evaluator.compute(call)
    else:
        results = evaluator.operator(op, block, operands)
    with np.errstate(all="ignore"):
        if op.op is Op.RESCALE and _is_inexact(op):
            low, high = inexact_range(call)
            kind = call.out_type.numpy
            return [Expected(low.astype(kind), high.astype(kind))]
        if not results or not call.out_type.is_float:
            return [Expected(result) for result in results]
        if op.op in DOT_PRODUCTS:
            terms = _terms(call)
            bounds = _magnitudes(call)
            return [
                Expected(result, bound, terms)
                for result, bound in zip(results, bounds, strict=True)
            ]
        bound = _elementwise_bound(call, results[0])
        return [
            Expected(results[0], bound, _products(call)),
            *(Expected(result) for result in results[1:]),
        ]


def _is_inexact(op: Operator) -> bool:
    return op.attributes.get("rounding_mode") == RoundingMode.INEXACT_ROUND


def _terms(call: Call) -> int:
    """KSB of the dot product rule (TOSA 1.0 section 1.8.2)."""
    op = call.operator.op
    accumulator = call.operator.attributes.get("acc_type")
    if not isinstance(accumulator, DType):
        reduced = op is Op.REDUCE_SUM and call.dtype is DType.BF16
        accumulator = DType.FP32 if reduced else call.out_type
    spare = FRACTION_BITS[accumulator] - FRACTION_BITS[call.out_type]
    bias = op in _WITH_BIAS and bool(np.any(call[2] != 0))
    parts = _products(call) / math.exp2(spare / 2)
    return math.ceil(parts) + int(bias)


def _products(call: Call) -> int:
    """KS of the dot product rule, n of the product rule; 0 where neither applies."""
    op = call.operator.op
    if not call.operands:
        return 0
    shape: tuple[int, ...] = call[0].shape
    if op is Op.MATMUL:
        return shape[2]
    if op is Op.AVG_POOL2D:
        kernel = call.numbers("kernel")
        return kernel[0] * kernel[1]
    if op in (Op.REDUCE_SUM, Op.REDUCE_PRODUCT):
        return shape[call.integer("axis")]
    if op is Op.FFT2D:
        return 2 * shape[1] * shape[2]
    if op is Op.RFFT2D:
        return shape[1] * shape[2]
    if op not in DOT_PRODUCTS:
        return 0
    weights = call[1].shape
    taps = weights[:2] if op is Op.DEPTHWISE_CONV2D else weights[1:]
    return int(np.prod(taps))


def _magnitudes(call: Call) -> list[Array]:
    """The operator run on magnitudes: the bound of the dot product rule.

    A magnitude is at least the smallest normal number, since subnormals may be flushed.
    Without `local_bound`, every input element counts as the largest one, so that
    Winograd and the like are allowed.
    """
    op = call.operator.op
    data = 2 if op in _TWO_INPUTS else 3 if op in _WITH_BIAS else 1
    operands = [np.abs(x) for x in call.operands]
    for x, kind in zip(operands[:data], call.types, strict=False):
        # In place: weights may be most of the memory that there is.
        np.maximum(x, SMALLEST_NORMAL[kind], out=x)
    if op in _LOCAL_BOUND and not call.flag("local_bound"):
        inputs = 2 if op is Op.FFT2D else 1
        for i in range(inputs):
            operands[i] = np.full_like(operands[i], operands[i].max())
    if op in (Op.FFT2D, Op.RFFT2D):
        return _transform_bounds(op, operands)
    if op is Op.CONV2D:
        return COMPUTING[op](_padded(call, operands))
    if op is Op.AVG_POOL2D:
        return _means(call, operands)
    return COMPUTING[op](dataclasses.replace(call, operands=tuple(operands)))


def _means(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Mean magnitudes; infinite where the sum, which TOSA divides last, overflows."""
    means = COMPUTING[call.operator.op](
        dataclasses.replace(call, operands=tuple(operands))
    )
    taps = _products(call)
    return [np.where(m * taps > LARGEST[DType.FP32], np.inf, m) for m in means]


def _transform_bounds(op: Op, operands: Sequence[Array]) -> list[Array]:
    width, smallest = operands[0].shape[2], SMALLEST_NORMAL[DType.FP32]
    out_w = width if op is Op.FFT2D else width // 2 + 1
    cosine, sine = weighted_sums(operands[0], out_w, smallest)
    bounds = [cosine, sine]
    if op is Op.FFT2D:
        imag_cosine, imag_sine = weighted_sums(operands[1], out_w, smallest)
        bounds = [cosine + imag_sine, sine + imag_cosine]
    # A fast transform has sums on the way with weights up to 1; TOSA bounds the direct
    # sum only, and says nothing of what overflows before the end.
    total = sum(x.sum(axis=(1, 2), keepdims=True) for x in operands)
    return [np.where(total > LARGEST[DType.FP32], np.inf, b) for b in bounds]


def _padded(call: Call, operands: list[Array]) -> Call:
    """A CONV2D whose padding is data: its taps count in the bound, and only there."""
    pad = call.numbers("pad")
    x = operands[0]
    smallest = SMALLEST_NORMAL[call.dtype]
    fill = smallest if call.flag("local_bound") else float(x.max())
    width = ((0, 0), (pad[0], pad[1]), (pad[2], pad[3]), (0, 0))
    attributes = {**call.operator.attributes, "pad": (0, 0, 0, 0)}
    return dataclasses.replace(
        call,
        operator=dataclasses.replace(call.operator, attributes=attributes),
        operands=(np.pad(x, width, constant_values=fill), *operands[1:]),
    )


def _elementwise_bound(call: Call, result: Array) -> Array | None:
    """What the absolute error rules take: TOSA 1.0, each operator's section."""
    x = call[0] if call.operands else result
    match call.operator.op:
        case Op.EXP:
            return np.asarray(2.0 * np.abs(x))
        case Op.TANH:
            return np.asarray(8.0 * np.abs(x))
        case Op.SIGMOID:
            return np.asarray(2.0 + 2.0 * np.abs(x))
        case Op.LOG:
            return np.full(x.shape, 5.0)
        case Op.SIN:
            return np.abs(x)
        case Op.COS:
            return np.asarray(1.0 + np.abs(x))
        case Op.POW:
            return _power_bound(call, result)
        case Op.REDUCE_PRODUCT:
            return _product_bound(call)
        case Op.RESIZE:
            finite = np.where(np.isfinite(x), np.abs(x), 0.0)
            return np.full(result.shape, finite.max())
        case _:
            return None


def _product_bound(call: Call) -> Array:
    """Infinity where the factors in some order leave the range of the type, else 0.

    TOSA gives no order, and no bound for what is left after an overflow on the way.
    """
    axis = call.integer("axis")
    size = np.abs(call[0])
    kind = call.dtype
    high = np.prod(np.maximum(size, 1.0), axis=axis, keepdims=True)
    low = np.prod(np.minimum(size, 1.0), axis=axis, keepdims=True)
    zero = np.any(size == 0, axis=axis, keepdims=True)
    leaves = (high > LARGEST[kind]) | ((low < SMALLEST_NORMAL[kind]) & ~zero)
    infinite = np.any(np.isinf(size), axis=axis, keepdims=True)
    # With an infinite factor the product is infinite, or NaN with a zero, in any order.
    free = leaves & ~(infinite & (zero | (low >= SMALLEST_NORMAL[kind])))
    return np.where(free, np.inf, 0.0)


def _power_bound(call: Call, result: Array) -> Array:
    """Error of exp(y * log(x)), each step as exact as its own operator must be.

    The logarithm has 5 units (at least half a unit), the product half a unit more, and
    the exponential what EXP has at the argument so shifted.
    """
    x, y = np.broadcast_arrays(call[0], call[1])
    unit, smallest = 2.0 ** -FRACTION_BITS[call.dtype], SMALLEST_NORMAL[call.dtype]
    logarithm = np.log(x)
    argument = y * logarithm
    shift = 5.5 * unit * np.abs(y) * np.maximum(np.abs(logarithm), 0.1)
    own = unit * (_EXP_BASE[call.dtype] + 2.0 * np.abs(argument + shift))
    bound = result * np.expm1(shift) + np.maximum(result, smallest) * own
    exact = (x == 0) | (y == 0)
    return np.where(exact, 0.0, np.where(np.isinf(result), np.inf, bound))
