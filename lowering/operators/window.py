"""Rules of convolutions and pooling: windows that step over an image."""

from __future__ import annotations

from tosavk.lowering.operators.elementwise import check_nan_mode, check_zero_points
from tosavk.lowering.operators.spec import (
    MAX_KERNEL,
    MAX_STRIDE,
    Call,
    Shape,
    text_of,
)

_AXES = {1: ("x",), 2: ("y", "x"), 3: ("depth", "y", "x")}


def check_pool(call: Call) -> None:
    """Kernel, stride and padding of AVG_POOL2D and MAX_POOL2D."""
    kernel = _positive(call, "kernel", 2, MAX_KERNEL)
    _positive(call, "stride", 2, MAX_STRIDE)
    pads = _padding(call, 2)
    for axis, size in enumerate(kernel):
        if max(pads[2 * axis : 2 * axis + 2]) >= size:
            raise call.bad_attribute(
                "pad", f"must be below the kernel {kernel} in each direction"
            )


def check_max_pool(call: Call) -> None:
    """Attributes of MAX_POOL2D."""
    check_pool(call)
    check_nan_mode(call)


def check_pool_zero_points(call: Call) -> None:
    """Zero points of AVG_POOL2D."""
    check_zero_points(call, 1, 2)


def pool(call: Call) -> tuple[Shape, ...]:
    """NHWC; the windows fill the padded input exactly."""
    batch, *image, channels = call.shape(0)
    kernel = call.integers("kernel", 2)
    stride = call.integers("stride", 2)
    pads = call.integers("pad", 4)
    sizes = _steps(call, image, [size - 1 for size in kernel], stride, pads)
    return ((batch, *sizes, channels),)


def check_conv2d(call: Call) -> None:
    """Attributes of CONV2D and DEPTHWISE_CONV2D."""
    _check_convolution(call, 2)


def check_conv3d(call: Call) -> None:
    """Attributes of CONV3D."""
    _check_convolution(call, 3)


def _check_convolution(call: Call, axes: int) -> None:
    pads = _padding(call, axes)
    if max(pads) > MAX_KERNEL:
        raise call.bad_attribute("pad", f"exceeds {MAX_KERNEL} (level 8K)")
    _positive(call, "stride", axes, MAX_STRIDE)
    _positive(call, "dilation", axes, MAX_KERNEL)


def check_transpose_conv2d(call: Call) -> None:
    """Stride and padding of TRANSPOSE_CONV2D; padding may be negative."""
    pads = call.integers("out_pad", 4)
    _positive(call, "stride", 2, MAX_STRIDE)
    if max(pads) > MAX_KERNEL:
        raise call.bad_attribute("out_pad", f"exceeds {MAX_KERNEL} (level 8K)")
    kernel = call.shape(1)[1:3]
    for axis, size in enumerate(kernel):
        if min(pads[2 * axis : 2 * axis + 2]) <= -size:
            raise call.bad_attribute(
                "out_pad", f"must be above minus the kernel {kernel}"
            )


def check_convolution_zero_points(call: Call) -> None:
    """Zero points of the convolutions."""
    check_zero_points(call, 3, 4)


def conv2d(call: Call) -> tuple[Shape, ...]:
    """Input NHWC, weight [OC, KH, KW, IC]."""
    return _convolution(call, 2)


def conv3d(call: Call) -> tuple[Shape, ...]:
    """Input NDHWC, weight [OC, KD, KH, KW, IC]."""
    return _convolution(call, 3)


def _convolution(call: Call, axes: int) -> tuple[Shape, ...]:
    batch, *image, channels = call.shape(0)
    out_channels, *kernel, in_channels = call.shape(1)
    _check_channels(call, channels, in_channels)
    _check_bias(call, out_channels)
    sizes = _convolution_steps(call, image, kernel, axes)
    return ((batch, *sizes, out_channels),)


def depthwise_conv2d(call: Call) -> tuple[Shape, ...]:
    """Input NHWC, weight [KH, KW, C, M], output channels C * M."""
    batch, *image, channels = call.shape(0)
    *kernel, in_channels, multiplier = call.shape(1)
    _check_channels(call, channels, in_channels)
    out_channels = in_channels * multiplier
    _check_bias(call, out_channels)
    sizes = _convolution_steps(call, image, kernel, 2)
    return ((batch, *sizes, out_channels),)


def transpose_conv2d(call: Call) -> tuple[Shape, ...]:
    """Input NHWC, weight [OC, KH, KW, IC]."""
    batch, *image, channels = call.shape(0)
    out_channels, *kernel, in_channels = call.shape(1)
    _check_channels(call, channels, in_channels)
    _check_bias(call, out_channels)
    _check_kernel(call, kernel)
    stride = call.integers("stride", 2)
    pads = call.integers("out_pad", 4)
    sizes = [
        (image[axis] - 1) * stride[axis]
        + pads[2 * axis]
        + pads[2 * axis + 1]
        + kernel[axis]
        for axis in range(2)
    ]
    if min(sizes) < 1:
        raise call.bad_shape(f"out_pad {pads} leaves nothing of the output")
    return ((batch, *sizes, out_channels),)


def _convolution_steps(
    call: Call, image: list[int], kernel: list[int], axes: int
) -> list[int]:
    dilation = call.integers("dilation", axes)
    _check_kernel(call, [d * k for d, k in zip(dilation, kernel, strict=True)])
    reach = [(size - 1) * d for size, d in zip(kernel, dilation, strict=True)]
    stride = call.integers("stride", axes)
    return _steps(call, image, reach, stride, call.integers("pad", 2 * axes))


def _steps(
    call: Call,
    image: list[int],
    reach: list[int],
    stride: tuple[int, ...],
    pads: tuple[int, ...],
) -> list[int]:
    """How often a window fits; `reach` is its extent less one."""
    sizes: list[int] = []
    for axis, name in enumerate(_AXES[len(image)]):
        room = image[axis] - 1 + pads[2 * axis] + pads[2 * axis + 1] - reach[axis]
        if room < 0:
            raise call.bad_shape(
                f"the window covers {reach[axis] + 1} of the {image[axis]} padded "
                f"elements in {name} (input {text_of(call.shape(0))}, pad {pads}); "
                "it does not fit"
            )
        if room % stride[axis]:
            raise call.bad_shape(
                f"stride {stride[axis]} in {name} does not divide the {room} positions "
                f"of the window (input {text_of(call.shape(0))}, pad {pads}); TOSA "
                "wants an exact division: change the padding"
            )
        sizes.append(room // stride[axis] + 1)
    return sizes


def _positive(call: Call, name: str, count: int, limit: int) -> tuple[int, ...]:
    numbers = call.integers(name, count)
    if min(numbers) < 1:
        raise call.bad_attribute(name, "must be at least 1")
    if max(numbers) > limit:
        raise call.bad_attribute(name, f"exceeds {limit} (level 8K)")
    return numbers


def _padding(call: Call, axes: int) -> tuple[int, ...]:
    pads = call.integers("pad", 2 * axes)
    if min(pads) < 0:
        raise call.bad_attribute("pad", "must not be negative")
    return pads


def _check_kernel(call: Call, kernel: list[int]) -> None:
    if max(kernel) > MAX_KERNEL:
        raise call.bad_shape(
            f"the kernel with its dilation is {text_of(tuple(kernel))}; "
            f"at most {MAX_KERNEL} (level 8K)",
            1,
        )


def _check_channels(call: Call, channels: int, in_channels: int) -> None:
    if channels != in_channels:
        raise call.bad_shape(
            f"input {text_of(call.shape(0))} has {channels} channels, weight "
            f"{text_of(call.shape(1))} wants {in_channels}",
            1,
        )


def _check_bias(call: Call, out_channels: int) -> None:
    (count,) = call.shape(2)
    if count not in (1, out_channels):
        raise call.bad_shape(
            f"bias has {count} elements; it must have 1 or {out_channels}, one for "
            "each output channel",
            2,
        )
