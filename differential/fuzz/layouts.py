"""Makers of the operators that move data."""

from __future__ import annotations

from tosavk.core.dtypes import DType, elements
from tosavk.differential.fuzz.recipe import Recipe
from tosavk.differential.fuzz.scene import Scene, dims
from tosavk.differential.fuzz.values import Domain
from tosavk.lowering.graph import Tensor

Results = tuple[Tensor, ...]
_FROM_1 = (1, 6)


def concat(scene: Scene, recipe: Recipe) -> Results:
    """CONCAT of one to four parts, some of them twice."""
    first = scene.take(recipe.dtype(), _FROM_1)
    axis = scene.dice.below(len(dims(first)))
    parts = [first]
    for _ in range(scene.dice.below(4)):
        if scene.dice.chance(0.25):
            parts.append(scene.dice.one_of(parts))
            continue
        shape = list(dims(first))
        room = max(1, scene.budget * shape[axis] // max(1, elements(shape)))
        shape[axis] = scene.size(min(room, 9))
        parts.append(scene.shaped(first.dtype, tuple(shape)))
    return (scene.builder.concat(scene.dice.shuffled(parts), axis),)


def pad(scene: Scene, recipe: Recipe) -> Results:
    """PAD with a constant, or now and then with a value known at run time only."""
    x = scene.take(recipe.dtype(), _FROM_1)
    most = 2 if elements(dims(x)) > 200 or len(dims(x)) > 3 else 5
    padding = [
        scene.dice.between(0, most) if scene.dice.chance(0.5) else 0
        for _ in range(2 * len(dims(x)))
    ]
    if scene.dice.chance(0.2):
        fill = scene.fresh(x.dtype, (1,), domain=Domain(0, 1))
    else:
        fill = scene.constant(x.dtype, (1,))
    return (scene.builder.pad(x, padding, pad_const=fill),)


def reshape(scene: Scene, recipe: Recipe) -> Results:
    """RESHAPE to any rank, a scalar where one element allows it."""
    x = scene.take(recipe.dtype())
    count = elements(dims(x))
    rank = scene.dice.between(0 if count == 1 else 1, 6)
    return (scene.builder.reshape(x, scene.factored(count, rank)),)


def reverse(scene: Scene, recipe: Recipe) -> Results:
    """REVERSE."""
    x = scene.take(recipe.dtype(), _FROM_1)
    return (scene.builder.reverse(x, scene.dice.below(len(dims(x)))),)


def slice_(scene: Scene, recipe: Recipe) -> Results:
    """SLICE."""
    x = scene.take(recipe.dtype(), _FROM_1)
    start: list[int] = []
    size: list[int] = []
    for n in dims(x):
        count = n if scene.dice.chance(0.4) else scene.dice.between(1, n)
        size.append(count)
        start.append(scene.dice.between(0, n - count))
    return (scene.builder.slice(x, start, size),)


def tile(scene: Scene, recipe: Recipe) -> Results:
    """TILE."""
    x = scene.take(recipe.dtype(), _FROM_1)
    room = max(1, 2 * scene.budget // elements(dims(x)))
    multiples: list[int] = []
    for _ in dims(x):
        multiples.append(scene.dice.between(1, min(3, room)))
        room = max(1, room // multiples[-1])
    return (scene.builder.tile(x, multiples),)


def transpose(scene: Scene, recipe: Recipe) -> Results:
    """TRANSPOSE."""
    x = scene.take(recipe.dtype(), _FROM_1)
    perms = scene.dice.shuffled(range(len(dims(x))))
    return (scene.builder.transpose(x, perms),)


def gather(scene: Scene, recipe: Recipe) -> Results:
    """GATHER, rarely with an index outside."""
    x = scene.take(recipe.dtype(), (3, 3))
    n, k, _ = dims(x)
    domain = Domain(-2, k + 1) if scene.dice.chance(0.05) else Domain(0, k - 1)
    indices = scene.fresh(DType.INT32, (n, scene.size(17)), domain=domain)
    return (scene.builder.gather(x, indices),)


def scatter(scene: Scene, recipe: Recipe) -> Results:
    """SCATTER with different indices."""
    x = scene.take(recipe.dtype(), (3, 3))
    n, k, c = dims(x)
    w = scene.dice.between(1, k)
    domain = Domain(0, k - 1, distinct=True)
    indices = scene.fresh(DType.INT32, (n, w), domain=domain)
    source = scene.shaped(x.dtype, (n, w, c))
    return (scene.builder.scatter(x, indices, source),)
