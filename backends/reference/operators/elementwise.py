"""Operators with one result element per element: TOSA 1.0 sections 2.3 to 2.8."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tosavk.backends.reference.call import Call, Handler
from tosavk.backends.reference.values import Array, integer_range, widen
from tosavk.core.dtypes import DType, unpack
from tosavk.lowering.graph import Op

_erf = np.frompyfunc(math.erf, 1, 1)


def _unary(function: Callable[[Array], Array]) -> Handler:
    return lambda call: [function(call[0])]


def _power(base: Array, exponent: Array) -> Array:
    """C's pow. With one exponent for many bases NumPy takes roots, also of -infinity."""
    shape = np.broadcast_shapes(base.shape, exponent.shape)
    x, y = (np.broadcast_to(v, shape).flatten() for v in (base, exponent))
    result: Array = np.power(x, y).reshape(shape)
    return result


def _binary(function: Callable[[Array, Array], Array]) -> Handler:
    return lambda call: [function(call[0], call[1])]


def _arithmetic(function: Callable[[Array, Array], Array]) -> Handler:
    def handler(call: Call) -> list[Array]:
        result = function(call[0], call[1])
        if not call.dtype.is_float:
            call.check_range(result, call.out_type)
        return [result]

    return handler


def _erf_values(x: Array) -> Array:
    return np.asarray(_erf(x), np.float64)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _absolute(call: Call) -> list[Array]:
    result = np.abs(call[0])
    if not call.dtype.is_float:
        call.check_range(result, call.out_type)
    return [result]


def _negate(call: Call) -> list[Array]:
    if call.dtype.is_float:
        return [-call[0]]
    low, high = integer_range(call.out_type)
    return [np.clip(-(call[0] - call.scalar(1)) + call.scalar(2), low, high)]


def _clz(x: Array) -> Array:
    unsigned = x & 0xFFFFFFFF
    # frexp gives the bit length exactly: 32-bit values are exact in binary64.
    return np.asarray(32 - np.frexp(unsigned.astype(np.float64))[1], np.int64)


def maximum(a: Array, b: Array, *, propagate: bool) -> Array:
    """TOSA's apply_max_s: IGNORE gives NaN only where both operands are NaN."""
    return np.asarray(np.maximum(a, b) if propagate else np.fmax(a, b))


def minimum(a: Array, b: Array, *, propagate: bool) -> Array:
    """TOSA's apply_min_s."""
    return np.asarray(np.minimum(a, b) if propagate else np.fmin(a, b))


def clamp_bounds(call: Call) -> tuple[Array, Array]:
    """The two bounds of a CLAMP, which the file holds as padded raw bytes."""
    bounds: list[Array] = []
    for name in ("min_val", "max_val"):
        raw = call.operator.attributes[name]
        if not isinstance(raw, bytes):
            raise TypeError(f"{call.operator}: {name} is not bytes")
        bounds.append(widen(call.dtype, unpack(call.dtype, raw, ())))
    return bounds[0], bounds[1]


def _clamp(call: Call) -> list[Array]:
    low, high = clamp_bounds(call)
    clipped = maximum(call[0], low, propagate=call.propagate)
    return [minimum(clipped, high, propagate=call.propagate)]


def _extreme(function: Callable[..., Array]) -> Handler:
    return lambda call: [function(call[0], call[1], propagate=call.propagate)]


def _multiply(call: Call) -> list[Array]:
    product = call[0] * call[1]
    shift = call.scalar(2)
    last = 63 if call.dtype is DType.INT32 else 0
    call.unpredictable_if(not 0 <= shift <= last, f"the shift is not in 0..{last}")
    if call.dtype is DType.INT32:
        if 0 < shift <= last:
            product = (product + (1 << (shift - 1))) >> shift
        call.check_range(product, DType.INT32)
    return [product]


def _integer_divide(call: Call) -> list[Array]:
    a, b = np.broadcast_arrays(call[0], call[1])
    low, _ = integer_range(DType.INT32)
    call.unpredictable_if(b == 0, "division by zero")
    call.unpredictable_if((a == low) & (b == -1), "the quotient overflows")
    divisor = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(divisor)
    return [np.where((a < 0) != (divisor < 0), -quotient, quotient)]


def _shift_amounts(call: Call) -> Array:
    bits = call.dtype.bits
    call.unpredictable_if(
        (call[1] < 0) | (call[1] >= bits), f"a shift amount is not in 0..{bits - 1}"
    )
    return np.asarray(call[1] & (bits - 1))


def _arithmetic_right_shift(call: Call) -> list[Array]:
    shift = _shift_amounts(call)
    result = call[0] >> shift
    if call.flag("round"):
        last = (call[0] >> np.maximum(shift - 1, 0)) & 1
        result = result + np.where(shift > 0, last, 0)
    return [result]


def _logical_right_shift(call: Call) -> list[Array]:
    unsigned = call[0] & ((1 << call.dtype.bits) - 1)
    return [unsigned >> _shift_amounts(call)]


def _logical_left_shift(call: Call) -> list[Array]:
    return [call[0] << _shift_amounts(call)]


def _table(call: Call) -> list[Array]:
    x, table = call[0], call[1].reshape(-1)
    if call.dtype is DType.INT8:
        return [table[x + 128]]
    index = (x + 32768) >> 7
    base, slope = table[index], table[index + 1] - table[index]
    call.unpredictable_if(
        (slope < -32768) | (slope > 32767), "a slope of the table overflows INT16"
    )
    return [(base << 7) + slope * (x & 0x7F)]


HANDLERS: dict[Op, Handler] = {
    Op.CLAMP: _clamp,
    Op.ERF: _unary(_erf_values),
    Op.SIGMOID: _unary(_sigmoid),
    Op.TANH: _unary(np.tanh),
    Op.ADD: _arithmetic(np.add),
    Op.ARITHMETIC_RIGHT_SHIFT: _arithmetic_right_shift,
    Op.BITWISE_AND: _binary(np.bitwise_and),
    Op.BITWISE_OR: _binary(np.bitwise_or),
    Op.BITWISE_XOR: _binary(np.bitwise_xor),
    Op.INTDIV: _integer_divide,
    Op.LOGICAL_AND: _binary(np.logical_and),
    Op.LOGICAL_LEFT_SHIFT: _logical_left_shift,
    Op.LOGICAL_RIGHT_SHIFT: _logical_right_shift,
    Op.LOGICAL_OR: _binary(np.logical_or),
    Op.LOGICAL_XOR: _binary(np.logical_xor),
    Op.MAXIMUM: _extreme(maximum),
    Op.MINIMUM: _extreme(minimum),
    Op.MUL: _multiply,
    Op.POW: _binary(_power),
    Op.SUB: _arithmetic(np.subtract),
    Op.TABLE: _table,
    Op.ABS: _absolute,
    Op.BITWISE_NOT: _unary(np.invert),
    Op.CEIL: _unary(np.ceil),
    Op.CLZ: _unary(_clz),
    Op.COS: _unary(np.cos),
    Op.EXP: _unary(np.exp),
    Op.FLOOR: _unary(np.floor),
    Op.LOG: _unary(np.log),
    Op.LOGICAL_NOT: _unary(np.logical_not),
    Op.NEGATE: _negate,
    Op.RECIPROCAL: _unary(np.reciprocal),
    Op.RSQRT: _unary(lambda x: np.reciprocal(np.sqrt(x))),
    Op.SIN: _unary(np.sin),
    Op.EQUAL: _binary(np.equal),
    Op.GREATER: _binary(np.greater),
    Op.GREATER_EQUAL: _binary(np.greater_equal),
}
