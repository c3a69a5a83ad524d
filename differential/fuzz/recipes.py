"""How each operator is put into a program: one maker an operator, the types from its rows.

What exists is read from the tables of operators and of lowering rules, so an operator or
type that is added there is fuzzed; a test fails where a maker is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tosavk.core.dtypes import DType
from tosavk.differential.fuzz import layouts, matrices, scales
from tosavk.differential.fuzz.recipe import Recipe
from tosavk.differential.fuzz.scene import Scene, dims
from tosavk.differential.fuzz.values import Domain
from tosavk.lowering.graph import NanMode, Op, Tensor
from tosavk.lowering.operators import SPECS
from tosavk.lowering.rules.table import RULES

Maker = Callable[[Scene, Recipe], tuple[Tensor, ...]]


def all_recipes() -> tuple[Recipe, ...]:
    """Every operator and row of types that lowering admits."""
    found: list[Recipe] = []
    for op, rule in RULES.items():
        spec = SPECS[op]
        for row in spec.rows:
            types = tuple(zip(spec.variables, row.types, strict=True))
            operand = spec.input(rule.operand).types
            read = operand if isinstance(operand, DType) else dict(types)[str(operand)]
            if row.minor == 0 and read in rule.types:
                found.append(Recipe(op, types))
    return tuple(found)


_POSITIVE = Domain(2.0**-6, 40.0)
_DOMAINS: dict[Op, Domain] = {
    Op.LOG: _POSITIVE,
    Op.RSQRT: _POSITIVE,
    Op.EXP: Domain(-90.0, 90.0),
    Op.SIN: Domain(-200.0, 200.0),
    Op.COS: Domain(-200.0, 200.0),
    Op.TANH: Domain(-12.0, 12.0),
    Op.SIGMOID: Domain(-20.0, 20.0),
    Op.ERF: Domain(-5.0, 5.0),
    Op.FLOOR: Domain(-100.0, 100.0),
    Op.CEIL: Domain(-100.0, 100.0),
}
_ANYWHERE = Domain()


def _domain(scene: Scene, op: Op) -> Domain:
    """The interesting range of an operator, most of the time."""
    domain = _DOMAINS.get(op, _ANYWHERE)
    return domain if scene.dice.chance(0.6) else _ANYWHERE


def _unary(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    x = scene.take(recipe.dtype(), domain=_domain(scene, recipe.op))
    return (scene.builder.op(recipe.op, [x]),)


def _clamp(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    x = scene.take(recipe.dtype())
    low = scene.dice.between(-9, 3)
    high = low + scene.dice.between(0, 9)
    mode = recipe.nan_mode if x.dtype.is_float else NanMode.PROPAGATE
    return (scene.builder.clamp(x, low, high, nan_mode=mode),)


def _negate(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    x = scene.take(recipe.dtype())
    points = [scales.zero_point(scene, x.dtype) for _ in range(2)]
    return (scene.builder.negate(x, input_zp=points[0], output_zp=points[1]),)


def _operands(
    scene: Scene, recipe: Recipe, second: Domain = _ANYWHERE
) -> tuple[Tensor, Tensor]:
    """Two operands that broadcast, in either order."""
    dtype = recipe.dtype()
    first = scene.take(dtype)
    other = scene.companion(first, dtype, domain=second, style=recipe.variant % 4)
    if second == _ANYWHERE and scene.dice.chance(0.3):
        return other, first
    return first, other


def _binary(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    domain = _ANYWHERE
    if recipe.op is Op.INTDIV and scene.dice.chance(0.9):
        domain = Domain(1, 300)
    elif recipe.op is Op.POW and scene.dice.chance(0.7):
        domain = Domain(-4.0, 4.0)
    elif recipe.op in (Op.LOGICAL_LEFT_SHIFT, Op.LOGICAL_RIGHT_SHIFT):
        domain = Domain(0, recipe.dtype().bits - 1)
    return (scene.builder.op(recipe.op, _operands(scene, recipe, domain)),)


def _extremum(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    mode = recipe.nan_mode if recipe.dtype().is_float else NanMode.PROPAGATE
    operands = _operands(scene, recipe)
    return (scene.builder.op(recipe.op, operands, nan_mode=mode),)


def _right_shift(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    domain = Domain(0, recipe.dtype().bits - 1)
    first, other = _operands(scene, recipe, domain)
    rounds = recipe.variant >= 2
    return (scene.builder.arithmetic_right_shift(first, other, round=rounds),)


def _mul(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    first, other = _operands(scene, recipe)
    shift = None
    if recipe.dtype() is DType.INT32 and scene.dice.chance(0.6):
        domain = Domain(0, scene.dice.one_of((0, 31, 63)))
        shift = scene.constant(DType.INT8, (1,), domain=domain)
    return (scene.builder.mul(first, other, shift=shift),)


def _select(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    first = scene.take(recipe.dtype())
    other = scene.companion(first, recipe.dtype(), style=recipe.variant % 3)
    choice = scene.companion(first, DType.BOOL, style=scene.dice.below(3))
    return (scene.builder.select(choice, first, other),)


def _table(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    x = scene.take(recipe.dtype())
    entries = 256 if x.dtype is DType.INT8 else 513
    table = scene.constant(recipe.dtype("table"), (entries,))
    return (scene.builder.table(x, table),)


def _reduce(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    x = scene.take(recipe.dtype(), (1, 6))
    axis = scene.dice.below(len(dims(x)))
    if recipe.op in (Op.REDUCE_MAX, Op.REDUCE_MIN, Op.ARGMAX):
        mode = recipe.nan_mode if x.dtype.is_float else NanMode.PROPAGATE
        return (scene.builder.op(recipe.op, [x], axis=axis, nan_mode=mode),)
    return (scene.builder.op(recipe.op, [x], axis=axis),)


MAKERS: Mapping[Op, Maker] = {
    **dict.fromkeys(
        (
            *(Op.ERF, Op.SIGMOID, Op.TANH, Op.ABS, Op.BITWISE_NOT, Op.CEIL, Op.CLZ),
            *(Op.COS, Op.EXP, Op.FLOOR, Op.LOG, Op.LOGICAL_NOT, Op.RECIPROCAL),
            *(Op.RSQRT, Op.SIN, Op.IDENTITY),
        ),
        _unary,
    ),
    **dict.fromkeys(
        (
            *(Op.ADD, Op.SUB, Op.POW, Op.INTDIV, Op.BITWISE_AND, Op.BITWISE_OR),
            *(Op.BITWISE_XOR, Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR),
            *(Op.LOGICAL_LEFT_SHIFT, Op.LOGICAL_RIGHT_SHIFT),
            *(Op.EQUAL, Op.GREATER, Op.GREATER_EQUAL),
        ),
        _binary,
    ),
    **dict.fromkeys(
        (
            *(Op.REDUCE_ALL, Op.REDUCE_ANY, Op.REDUCE_MAX, Op.REDUCE_MIN),
            *(Op.REDUCE_PRODUCT, Op.REDUCE_SUM, Op.ARGMAX),
        ),
        _reduce,
    ),
    Op.CLAMP: _clamp,
    Op.NEGATE: _negate,
    Op.MAXIMUM: _extremum,
    Op.MINIMUM: _extremum,
    Op.ARITHMETIC_RIGHT_SHIFT: _right_shift,
    Op.MUL: _mul,
    Op.SELECT: _select,
    Op.TABLE: _table,
    Op.CONCAT: layouts.concat,
    Op.PAD: layouts.pad,
    Op.RESHAPE: layouts.reshape,
    Op.REVERSE: layouts.reverse,
    Op.SLICE: layouts.slice_,
    Op.TILE: layouts.tile,
    Op.TRANSPOSE: layouts.transpose,
    Op.GATHER: layouts.gather,
    Op.SCATTER: layouts.scatter,
    Op.RESIZE: scales.resize,
    Op.CAST: scales.cast,
    Op.RESCALE: scales.rescale,
    Op.AVG_POOL2D: matrices.avg_pool2d,
    Op.MAX_POOL2D: matrices.max_pool2d,
    Op.CONV2D: matrices.conv2d,
    Op.CONV3D: matrices.conv3d,
    Op.DEPTHWISE_CONV2D: matrices.depthwise_conv2d,
    Op.TRANSPOSE_CONV2D: matrices.transpose_conv2d,
    Op.MATMUL: matrices.matmul,
    Op.FFT2D: matrices.fft2d,
    Op.RFFT2D: matrices.rfft2d,
}
"""The maker of each operator."""


def make(scene: Scene, recipe: Recipe) -> tuple[Tensor, ...]:
    """Adds an operator to a program; its results."""
    return MAKERS[recipe.op](scene, recipe)
