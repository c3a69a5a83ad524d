"""Makers of convolutions, pooling, products and transforms."""

from __future__ import annotations

from dataclasses import dataclass

from tosavk.core.dtypes import DType, elements
from tosavk.differential.fuzz.recipe import Recipe
from tosavk.differential.fuzz.scales import zero_point
from tosavk.differential.fuzz.scene import Scene, dims
from tosavk.lowering.graph import NanMode, Tensor

Results = tuple[Tensor, ...]
_PRODUCTS = 60_000
"""Multiplications of one operator at most, about: the reference is NumPy."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one axis."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    def steps(self, size: int) -> int:
        """How often it fits."""
        reach = (self.kernel - 1) * self.dilation
        return (size - 1 + self.before + self.after - reach) // self.stride + 1


def window(scene: Scene, size: int, *, dilates: bool, most: int = 5) -> Window:
    """A window that fills an axis exactly."""
    dice = scene.dice
    for _ in range(8):
        kernel = dice.between(1, most)
        dilation = dice.between(1, 3) if dilates and dice.chance(0.3) else 1
        pads = [
            dice.between(0, kernel - 1) if dice.chance(0.5) else 0 for _ in range(2)
        ]
        room = size - 1 + sum(pads) - (kernel - 1) * dilation
        if room < 0:
            continue
        strides = [s for s in (1, 1, 2, 3, 4, room or 1) if room % s == 0]
        return Window(kernel, dice.one_of(strides), dilation, pads[0], pads[1])
    return Window(1, 1, 1, 0, 0)


def avg_pool2d(scene: Scene, recipe: Recipe) -> Results:
    """AVG_POOL2D."""
    x, windows = _image(scene, recipe.dtype(), 2, dilates=False)
    return (
        scene.builder.avg_pool2d(
            x,
            [w.kernel for w in windows],
            stride=[w.stride for w in windows],
            pad=_pads(windows),
            acc_type=recipe.dtype("acc_type"),
            input_zp=zero_point(scene, x.dtype),
            output_zp=zero_point(scene, x.dtype),
        ),
    )


def max_pool2d(scene: Scene, recipe: Recipe) -> Results:
    """MAX_POOL2D."""
    x, windows = _image(scene, recipe.dtype(), 2, dilates=False)
    narrow = x.dtype in (DType.FP8E4M3, DType.FP8E5M2) or not x.dtype.is_float
    mode = NanMode.PROPAGATE if narrow else recipe.nan_mode
    return (
        scene.builder.max_pool2d(
            x,
            [w.kernel for w in windows],
            stride=[w.stride for w in windows],
            pad=_pads(windows),
            nan_mode=mode,
        ),
    )


def conv2d(scene: Scene, recipe: Recipe) -> Results:
    """CONV2D."""
    return _convolution(scene, recipe, 2)


def conv3d(scene: Scene, recipe: Recipe) -> Results:
    """CONV3D."""
    return _convolution(scene, recipe, 3)


def depthwise_conv2d(scene: Scene, recipe: Recipe) -> Results:
    """DEPTHWISE_CONV2D."""
    x, windows = _image(scene, recipe.dtype("I"), 2, dilates=True)
    channels = dims(x)[-1]
    multiplier = scene.dice.one_of((1, 1, 2, 3))
    kernel = tuple(w.kernel for w in windows)
    weight = _weight(scene, recipe, (*kernel, channels, multiplier))
    return _convolve(scene, recipe, x, weight, channels * multiplier, windows)


def transpose_conv2d(scene: Scene, recipe: Recipe) -> Results:
    """TRANSPOSE_CONV2D, with padding of either sign."""
    dice = scene.dice
    x = scene.take(recipe.dtype("I"), (4, 4))
    batch, height, width, channels = dims(x)
    kernel = [dice.between(1, 4) for _ in range(2)]
    stride = [dice.between(1, 3) for _ in range(2)]
    pads = [dice.between(1 - kernel[i // 2], 2) for i in range(4)]
    for axis, size in enumerate((height, width)):
        least = (size - 1) * stride[axis] + kernel[axis]
        if least + pads[2 * axis] + pads[2 * axis + 1] < 1:
            pads[2 * axis] = pads[2 * axis + 1] = 0
    work = batch * height * width * channels * kernel[0] * kernel[1]
    count = scene.size(max(1, min(17, _PRODUCTS // work)))
    weight = _weight(scene, recipe, (count, *kernel, channels))
    return (
        scene.builder.transpose_conv2d(
            x,
            weight,
            _bias(scene, recipe, count),
            out_pad=pads,
            stride=stride,
            local_bound=dice.chance(0.3),
            acc_type=recipe.dtype("acc_type"),
            input_zp=zero_point(scene, x.dtype),
            weight_zp=zero_point(scene, weight.dtype),
        ),
    )


def matmul(scene: Scene, recipe: Recipe) -> Results:
    """MATMUL; now and then a matrix by itself."""
    a = scene.take(recipe.dtype("A"), (3, 3))
    n, h, c = dims(a)
    w = scene.size(max(1, min(33, _PRODUCTS // (n * h * c), scene.budget // (n * c))))
    b = scene.shaped(recipe.dtype("B"), (n, c, w))
    if h == c and scene.dice.chance(0.2):
        b = a
    return (
        scene.builder.matmul(
            a,
            b,
            dtype=recipe.dtype("O"),
            a_zp=zero_point(scene, a.dtype),
            b_zp=zero_point(scene, b.dtype),
        ),
    )


def fft2d(scene: Scene, recipe: Recipe) -> Results:
    """FFT2D."""
    shape = _powers(scene)
    real = scene.shaped(recipe.dtype(), shape)
    imaginary = scene.shaped(recipe.dtype(), shape)
    bound = scene.dice.chance(0.3)
    inverse = scene.dice.chance(0.5)
    return scene.builder.fft2d(real, imaginary, inverse=inverse, local_bound=bound)


def rfft2d(scene: Scene, recipe: Recipe) -> Results:
    """RFFT2D."""
    real = scene.shaped(recipe.dtype(), _powers(scene))
    return scene.builder.rfft2d(real, local_bound=scene.dice.chance(0.3))


def _powers(scene: Scene) -> tuple[int, int, int]:
    height, width = (1 << scene.dice.below(5) for _ in range(2))
    return scene.dice.between(1, 3), height, width


def _image(
    scene: Scene, dtype: DType, axes: int, *, dilates: bool
) -> tuple[Tensor, list[Window]]:
    """An NHWC or NDHWC operand and windows over it."""
    rank = axes + 2
    x = scene.take(dtype, (rank, rank))
    most = 5 if axes == 2 else 3
    sizes = dims(x)[1:-1]
    return x, [window(scene, n, dilates=dilates, most=most) for n in sizes]


def _convolution(scene: Scene, recipe: Recipe, axes: int) -> Results:
    x, windows = _image(scene, recipe.dtype("I"), axes, dilates=True)
    batch, *sizes, channels = dims(x)
    places = [w.steps(n) for w, n in zip(windows, sizes, strict=True)]
    kernel = tuple(w.kernel for w in windows)
    work = elements((batch, *places, *kernel, channels))
    count = scene.size(max(1, min(17, _PRODUCTS // work)))
    weight = _weight(scene, recipe, (count, *kernel, channels))
    return _convolve(scene, recipe, x, weight, count, windows)


def _convolve(
    scene: Scene,
    recipe: Recipe,
    x: Tensor,
    weight: Tensor,
    count: int,
    windows: list[Window],
) -> Results:
    points = {
        "input": zero_point(scene, x.dtype),
        "weight": zero_point(scene, weight.dtype),
    }
    zeros = [
        scene.builder.zero_or(points[name], tensor.dtype)
        for name, tensor in (("input", x), ("weight", weight))
    ]
    return (
        scene.builder.op(
            recipe.op,
            [x, weight, _bias(scene, recipe, count), *zeros],
            pad=_pads(windows),
            stride=[w.stride for w in windows],
            dilation=[w.dilation for w in windows],
            local_bound=scene.dice.chance(0.3),
            acc_type=recipe.dtype("acc_type"),
        ),
    )


def _weight(scene: Scene, recipe: Recipe, shape: tuple[int, ...]) -> Tensor:
    """Weights: constant mostly, as models have them."""
    dtype = recipe.dtype("W")
    if dtype is DType.INT4 or scene.dice.chance(0.7):
        return scene.constant(dtype, shape)
    return scene.shaped(dtype, shape)


def _bias(scene: Scene, recipe: Recipe, count: int) -> Tensor:
    """A bias for each channel, or one for all."""
    dtype = recipe.dtype("O")
    shape = (1,) if scene.dice.chance(0.3) else (count,)
    if dtype is DType.INT48 or scene.dice.chance(0.8):
        return scene.constant(dtype, shape)
    return scene.shaped(dtype, shape)


def _pads(windows: list[Window]) -> list[int]:
    return [n for w in windows for n in (w.before, w.after)]
