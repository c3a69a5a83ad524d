"""Rules of the elementwise operators, SELECT and TABLE."""

from __future__ import annotations

import numpy as np

from tosavk.core.dtypes import DType, storage_bytes, unpack
from tosavk.lowering.errors import Kind
from tosavk.lowering.graph import NanMode
from tosavk.lowering.operators.spec import Call, Shape, text_of


def same_shape(call: Call) -> tuple[Shape, ...]:
    """The output has the shape of the first input."""
    return (call.shape(0),)


def broadcast_first_two(call: Call) -> tuple[Shape, ...]:
    """The output has the common shape of the first two inputs."""
    return (_broadcast(call, 2),)


def broadcast_first_three(call: Call) -> tuple[Shape, ...]:
    """The output has the common shape of the first three inputs."""
    return (_broadcast(call, 3),)


def _broadcast(call: Call, count: int) -> Shape:
    shapes = [call.shape(position) for position in range(count)]
    ranks = {len(shape) for shape in shapes}
    texts = " and ".join(text_of(shape) for shape in shapes)
    if len(ranks) > 1:
        raise call.bad_shape(
            f"its inputs have shapes {texts}, of different ranks; TOSA broadcasts "
            "only between equal ranks: insert a RESHAPE"
        )
    result: list[int] = []
    for axis, sizes in enumerate(zip(*shapes, strict=True)):
        size = max(sizes)
        if any(other not in (1, size) for other in sizes):
            raise call.bad_shape(
                f"its inputs have shapes {texts}, which differ in dimension {axis}; "
                "sizes must be equal or 1"
            )
        result.append(size)
    return tuple(result)


def check_nan_mode(call: Call) -> None:
    """The NaN mode is PROPAGATE or IGNORE."""
    if call.integer("nan_mode") not in set(NanMode):
        raise call.bad_attribute("nan_mode", "must be 1 (PROPAGATE) or 2 (IGNORE)")


def check_clamp(call: Call) -> None:
    """Bounds of CLAMP: of the input's type, not NaN, in order."""
    check_nan_mode(call)
    dtype = call.dtype(0)
    bounds: list[float] = []
    for name in ("min_val", "max_val"):
        raw = call.raw(name)
        need = storage_bytes(dtype, ())
        if len(raw) < need:
            raise call.bad_attribute(
                name, f"has {len(raw)} bytes; {dtype.name} needs {need}"
            )
        bound = float(unpack(dtype, raw, ()).astype(np.float64))
        if bound != bound:
            raise call.bad_attribute(name, "is NaN")
        bounds.append(bound)
    if bounds[1] < bounds[0]:
        raise call.error(
            Kind.INVALID_ATTRIBUTE,
            f"its maximum {bounds[1]:g} is below its minimum {bounds[0]:g}",
        )


def check_shift_amounts(call: Call) -> None:
    """Constant shift amounts lie within the type; others are unpredictable."""
    amounts = call.value(1)
    bits = call.dtype(0).bits
    if amounts is None or not amounts.size:
        return
    least, most = int(amounts.min()), int(amounts.max())
    if least < 0 or most >= bits:
        bad = least if least < 0 else most
        raise call.bad_value(
            1, f"shifts by {bad}; {call.dtype(0).name} can shift by 0 to {bits - 1}"
        )


def check_mul_shift(call: Call) -> None:
    """The shift of MUL: 0 to 63 for INT32, 0 for all others."""
    value = call.value(2)
    if value is None:
        return
    shift = int(value.reshape(-1)[0])
    if call.dtype(0) is DType.INT32:
        if not 0 <= shift <= 63:
            raise call.bad_value(2, f"is {shift}; the shift of MUL is 0 to 63")
    elif shift:
        raise call.bad_value(
            2, f"is {shift}; MUL of {call.dtype(0).name} must have shift 0"
        )


def check_zero_points(call: Call, *positions: int) -> None:
    """Zero points are zero unless their type is INT8."""
    for position in positions:
        if call.dtype(position) is DType.INT8:
            continue
        value = call.value(position)
        # Both signs of a float zero are zero.
        if value is not None and np.any(value.astype(np.float64) != 0):
            raise call.bad_value(
                position,
                f"is {value.reshape(-1)[0]}; a zero point of "
                f"{call.dtype(position).name} must be 0",
            )


def check_negate(call: Call) -> None:
    """Zero points of NEGATE."""
    check_zero_points(call, 1, 2)


def table(call: Call) -> tuple[Shape, ...]:
    """The table has an entry for each INT8, or 513 to interpolate for INT16."""
    want = 256 if call.dtype(0) is DType.INT8 else 513
    if call.shape(1) != (want,):
        raise call.bad_shape(
            f"its table has shape {text_of(call.shape(1))}; "
            f"{call.dtype(0).name} needs {want} entries",
            1,
        )
    return (call.shape(0),)
