"""Rules of MATMUL and the Fourier transforms."""

from __future__ import annotations

from tosavk.lowering.operators.elementwise import check_zero_points
from tosavk.lowering.operators.spec import MAX_KERNEL, Call, Shape, text_of


def check_matmul(call: Call) -> None:
    """Zero points of MATMUL."""
    check_zero_points(call, 2, 3)


def matmul(call: Call) -> tuple[Shape, ...]:
    """[N, H, C] times [N, C, W] is [N, H, W]."""
    a, b = call.shape(0), call.shape(1)
    if a[0] != b[0] or a[2] != b[1]:
        raise call.bad_shape(
            f"cannot multiply {text_of(a)} by {text_of(b)}: they must be NxHxC and NxCxW",
            1,
        )
    return ((a[0], a[1], b[2]),)


def fft2d(call: Call) -> tuple[Shape, ...]:
    """Real and imaginary part, each [N, H, W]."""
    real, imaginary = call.shape(0), call.shape(1)
    if real != imaginary:
        raise call.bad_shape(
            f"the real part is {text_of(real)}, the imaginary part "
            f"{text_of(imaginary)}; they must be equal",
            1,
        )
    _check_powers(call, real)
    return (real, real)


def rfft2d(call: Call) -> tuple[Shape, ...]:
    """[N, H, W] gives two outputs [N, H, W / 2 + 1]."""
    batch, height, width = call.shape(0)
    _check_powers(call, call.shape(0))
    half = (batch, height, width // 2 + 1)
    return (half, half)


def _check_powers(call: Call, shape: Shape) -> None:
    for axis, size in zip("yx", shape[1:], strict=True):
        if size & (size - 1):
            raise call.bad_shape(
                f"size {size} in {axis} (input {text_of(shape)}) is no power of two", 0
            )
        if size > MAX_KERNEL:
            raise call.bad_shape(
                f"size {size} in {axis} exceeds {MAX_KERNEL} (level 8K)", 0
            )
