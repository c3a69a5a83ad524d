"""Makers of RESIZE, CAST and RESCALE, and the zero points of all."""

from __future__ import annotations

from tosavk.core.dtypes import DType
from tosavk.differential.fuzz.recipe import Recipe
from tosavk.differential.fuzz.scene import Scene, dims
from tosavk.differential.fuzz.values import Domain
from tosavk.lowering.graph import ResizeMode, RoundingMode, Tensor

Results = tuple[Tensor, ...]
_WIDE = (DType.INT32, DType.INT48)


def zero_point(scene: Scene, dtype: DType) -> Tensor | None:
    """A zero point other than zero where the type allows one; None for zero."""
    if dtype is not DType.INT8 or scene.dice.chance(0.4):
        return None
    return scene.constant(DType.INT8, (1,))


def resize(scene: Scene, recipe: Recipe) -> Results:
    """RESIZE by small ratios, with offsets and borders that fit."""
    x = scene.take(recipe.dtype(), (4, 4))
    scale: list[int] = []
    offset: list[int] = []
    border: list[int] = []
    for size in dims(x)[1:3]:
        n, d, shift, edge = _axis(scene, size)
        scale += [n, d]
        offset.append(shift)
        border.append(edge)
    kind, out = recipe.dtype(), recipe.dtype("O")
    mode = ResizeMode.BILINEAR if recipe.variant % 2 else ResizeMode.NEAREST
    if not kind.is_float:
        mode = ResizeMode.NEAREST if out is kind else ResizeMode.BILINEAR
    return (scene.builder.resize(x, scale, offset=offset, border=border, mode=mode),)


def _axis(scene: Scene, size: int) -> tuple[int, int, int, int]:
    """Numerator, denominator, offset and border of one axis."""
    most = 2 if size > 12 else 6
    n, d = scene.dice.between(1, most), scene.dice.between(1, 4)
    for _ in range(8):
        offset = scene.dice.between(-n, min(n, 3))
        for border in scene.dice.shuffled(range(-min(n, 4), n)):
            span = (size - 1) * n - offset + border
            if span >= 0 and span % d == 0:
                return n, d, offset, border
    return 1, 1, 0, 0


def cast(scene: Scene, recipe: Recipe) -> Results:
    """CAST."""
    x = scene.take(recipe.dtype())
    return (scene.builder.cast(x, recipe.dtype("O")),)


def rescale(scene: Scene, recipe: Recipe) -> Results:
    """RESCALE with its signs, roundings and channels."""
    source, target = recipe.dtype(), recipe.dtype("O")
    dice = scene.dice
    x = scene.take(source)
    per_channel = bool(dims(x)) and dice.chance(0.4)
    count = dims(x)[-1] if per_channel else 1
    scale32 = source is not DType.INT48 and recipe.variant % 2 == 0
    kind, low = (DType.INT32, 1 << 30) if scale32 else (DType.INT16, 1 << 14)
    bits = 31 if scale32 else 15
    multiplier = _positive(scene, kind, count, low)
    # About as many bits leave as the target is narrower.
    centre = bits + max(0, source.bits - target.bits) // 2
    spread = Domain(max(2, centre - 4), min(62, centre + 6))
    shift = scene.constant(DType.INT8, (count,), domain=spread)
    modes = [RoundingMode.SINGLE_ROUND, RoundingMode.INEXACT_ROUND]
    if scale32:
        modes.append(RoundingMode.DOUBLE_ROUND)
    unsigned = ""
    if source not in _WIDE and target not in _WIDE and recipe.variant >= 2:
        unsigned = dice.one_of(("input", "output"))
    return (
        scene.builder.rescale(
            x,
            target,
            multiplier,
            shift,
            input_zp=zero_point(scene, source),
            output_zp=zero_point(scene, target),
            rounding_mode=modes[recipe.variant % len(modes)],
            per_channel=per_channel,
            input_unsigned=unsigned == "input",
            output_unsigned=unsigned == "output",
        ),
    )


def _positive(scene: Scene, kind: DType, count: int, low: int) -> Tensor:
    """Multipliers of the upper half of a type."""
    numbers = [low + scene.dice.below(low) for _ in range(count)]
    return scene.builder.const(numbers, kind)
