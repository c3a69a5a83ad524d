"""Rules of RESIZE and RESCALE."""

from __future__ import annotations

from tosavk.core.dtypes import DType
from tosavk.lowering.errors import Kind
from tosavk.lowering.graph import ResizeMode, RoundingMode
from tosavk.lowering.operators.spec import MAX_SCALE, Call, Shape, text_of

_MAX_IMAGE = 16384
_MAX_SCALE_NUMERATOR = 1 << 11
_OUTPUTS = {
    (DType.INT8, ResizeMode.NEAREST): DType.INT8,
    (DType.INT8, ResizeMode.BILINEAR): DType.INT32,
    (DType.INT16, ResizeMode.NEAREST): DType.INT16,
    (DType.INT16, ResizeMode.BILINEAR): DType.INT48,
}


def check_resize(call: Call) -> None:
    """The mode, and the output type that goes with it."""
    mode = call.integer("mode")
    if mode not in set(ResizeMode):
        raise call.bad_attribute("mode", "must be 1 (NEAREST) or 2 (BILINEAR)")
    want = _OUTPUTS.get((call.dtype(0), ResizeMode(mode)), call.dtype(0))
    if call.outputs and call.outputs[0] is not want:
        raise call.error(
            Kind.UNSUPPORTED_TYPE_PROFILE,
            f"{ResizeMode(mode).name} resize of {call.dtype(0).name} gives "
            f"{want.name}, not {call.outputs[0].name}",
        )


def resize(call: Call) -> tuple[Shape, ...]:
    """NHWC; scale, offset and border must give whole sizes."""
    batch, *image, channels = call.shape(0)
    scale = _numbers(call, 1, 4, "scale")
    offset = _numbers(call, 2, 2, "offset")
    border = _numbers(call, 3, 2, "border")
    sizes: list[int] = []
    for axis, name in enumerate("yx"):
        n, d = scale[2 * axis : 2 * axis + 2]
        if n < 1 or d < 1:
            raise call.bad_shape(f"scale {n}/{d} in {name} is not positive", 1)
        if n > _MAX_SCALE_NUMERATOR or n > MAX_SCALE * d:
            raise call.bad_shape(
                f"scale {n}/{d} in {name} is too large: the numerator is at most "
                f"{_MAX_SCALE_NUMERATOR}, the scale {MAX_SCALE} (level 8K)",
                1,
            )
        if d >= 16 * n:
            raise call.bad_shape(f"scale {n}/{d} in {name} is 1/16 or less", 1)
        if not -n <= offset[axis] < 16 * n:
            raise call.bad_shape(
                f"offset {offset[axis]} in {name} must lie in {-n}..{16 * n - 1}", 2
            )
        if not -16 * n <= border[axis] < n:
            raise call.bad_shape(
                f"border {border[axis]} in {name} must lie in {-16 * n}..{n - 1}", 3
            )
        span = (image[axis] - 1) * n - offset[axis] + border[axis]
        if span < 0 or span % d:
            raise call.bad_shape(
                f"scale {n}/{d}, offset {offset[axis]} and border {border[axis]} give "
                f"no whole size in {name} for an input of {text_of(call.shape(0))}",
                3,
            )
        sizes.append(span // d + 1)
    if max(*image, *sizes) >= _MAX_IMAGE:
        raise call.bad_shape(
            f"resizes {text_of(tuple(image))} to {text_of(tuple(sizes))}; "
            f"sizes must be below {_MAX_IMAGE}"
        )
    return ((batch, *sizes, channels),)


def check_rescale(call: Call) -> None:
    """The combinations of signs, scales and rounding that exist."""
    source = call.dtype(0)
    target = call.dtype(4)
    pair = f"{source.name} to {target.name}"
    mode = call.integer("rounding_mode")
    if mode not in set(RoundingMode):
        raise call.bad_attribute(
            "rounding_mode",
            "must be 1 (SINGLE_ROUND), 2 (INEXACT_ROUND) or 3 (DOUBLE_ROUND)",
        )
    scale32 = call.flag("scale32")
    want = DType.INT32 if scale32 else DType.INT16
    if call.dtype(1) is not want:
        raise call.error(
            Kind.UNSUPPORTED_TYPE_PROFILE,
            f"multiplier {call.inputs[1].name!r} is {call.dtype(1).name}; with "
            f"scale32={scale32} it must be {want.name}",
            1,
        )
    if scale32 and source is DType.INT48:
        raise call.bad_attribute("scale32", f"is not possible for {pair}")
    if not scale32 and mode == RoundingMode.DOUBLE_ROUND:
        raise call.bad_attribute("rounding_mode", "DOUBLE_ROUND needs scale32=True")
    from_unsigned = call.flag("input_unsigned")
    to_unsigned = call.flag("output_unsigned")
    if from_unsigned and to_unsigned:
        raise call.bad_attribute(
            "output_unsigned", "input and output cannot both be unsigned"
        )
    wide = {DType.INT32, DType.INT48}
    if from_unsigned and (source in wide or target in wide):
        raise call.bad_attribute("input_unsigned", f"is not possible for {pair}")
    if to_unsigned and (source in wide or target in wide):
        raise call.bad_attribute("output_unsigned", f"is not possible for {pair}")
    if call.flag("per_channel") and not call.shape(0):
        raise call.bad_attribute("per_channel", "needs an input of rank 1 or more")


def check_rescale_constants(call: Call) -> None:
    """Zero points, multipliers and shifts, as far as they are known."""
    for position, flag in ((3, "input_unsigned"), (4, "output_unsigned")):
        value = call.value(position)
        dtype = call.dtype(position)
        if value is None or dtype is DType.INT8:
            continue
        # Unsigned zero points are stored in the signed type of the same width.
        unsigned16 = dtype is DType.INT16 and call.flag(flag)
        zero_point = int(value.reshape(-1)[0])
        if unsigned16:
            zero_point &= 0xFFFF
        if zero_point and not (unsigned16 and zero_point == 1 << 15):
            allowed = "0 or 32768" if unsigned16 else "0"
            name = f"unsigned {dtype.name}" if unsigned16 else dtype.name
            raise call.bad_value(
                position, f"is {zero_point}; a zero point of {name} must be {allowed}"
            )
    multiplier, shift = call.value(1), call.value(2)
    if multiplier is not None and int(multiplier.min()) < 0:
        raise call.bad_value(1, f"has a negative multiplier, {int(multiplier.min())}")
    if shift is not None:
        least, most = int(shift.min()), int(shift.max())
        if least < 2 or most > 62:
            raise call.bad_value(2, f"has shifts {least}..{most}, not 2..62")


def rescale(call: Call) -> tuple[Shape, ...]:
    """One multiplier and shift, or one for each channel."""
    shape = call.shape(0)
    count = shape[-1] if call.flag("per_channel") else 1
    for position, what in ((1, "multiplier"), (2, "shift")):
        if call.shape(position) != (count,):
            raise call.bad_shape(
                f"{what} has shape {text_of(call.shape(position))}; "
                f"per_channel={call.flag('per_channel')} with input "
                f"{text_of(shape)} needs {count}",
                position,
            )
    return (shape,)


def _numbers(call: Call, position: int, count: int, what: str) -> tuple[int, ...]:
    numbers = call.numbers(position)
    if len(numbers) != count:
        raise call.bad_shape(f"{what} {numbers} must have {count} numbers", position)
    return numbers
