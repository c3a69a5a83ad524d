"""Programs with control flow and state, around what a palette has.

What is in regions and what variables are given has one result only, so that the
reference can judge it as a whole (`flowcheck`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tosavk.core.dtypes import DType
from tosavk.differential.fuzz.recipe import Recipe
from tosavk.differential.fuzz.scene import Scene
from tosavk.differential.fuzz.values import ANYWHERE, Domain, values
from tosavk.lowering.graph import Tensor
from tosavk.lowering.tosa.builder import Builder

_TYPES = (DType.FP32, DType.FP16, DType.INT32)
Step = Callable[[Builder, Tensor], Tensor]
Inside = Callable[[Scene, tuple[Recipe, ...]], object]


def branch(scene: Scene, recipes: tuple[Recipe, ...], inside: Inside) -> None:
    """COND_IF: two regions that change one value in different ways."""
    dice = scene.dice
    shape = scene.shape((1, 4), budget=200)
    x = scene.take(dice.one_of(_TYPES), (1, 4)) if scene.pool else None
    x = x or scene.fresh(dice.one_of(_TYPES), shape)
    for name in ("then", "else"):
        region = scene.builder.region(name)
        value = region.input(f"in_{name}", x.dtype, x.shape or ())
        for _ in range(dice.between(0, 3)):
            value = _step(scene)(region, value)
        region.output(value)
    condition = scene.fresh(DType.BOOL, (1,))
    scene.keep(
        *scene.builder.cond_if(condition, [x], then_graph="then", else_graph="else")
    )
    inside(scene, recipes)


def loop(scene: Scene, recipes: tuple[Recipe, ...], inside: Inside) -> None:
    """WHILE_LOOP: a counter, and a value that each turn changes."""
    dice, builder = scene.dice, scene.builder
    x = scene.fresh(dice.one_of(_TYPES), scene.shape((1, 4), budget=200))
    shape = x.shape or ()
    turns = dice.between(0, 3)
    check = builder.region("check")
    count = check.input("count", DType.INT32, (1,))
    check.input("unused", x.dtype, shape)
    limit = check.const(np.full(1, turns, np.int32))
    check.output(check.greater(limit, count))
    body = builder.region("body")
    turn = body.input("turn", DType.INT32, (1,))
    value = body.input("value", x.dtype, shape)
    body.output(body.add(turn, body.const(np.ones(1, np.int32))))
    for _ in range(dice.between(1, 3)):
        value = _step(scene)(body, value)
    body.output(value)
    start = scene.fresh(DType.INT32, (1,), domain=Domain(-1, 2))
    made = builder.while_loop([start, x], cond_graph="check", body_graph="body")
    scene.keep(*made)
    inside(scene, recipes)


def state(scene: Scene, recipes: tuple[Recipe, ...], inside: Inside) -> None:
    """A VARIABLE that every run reads and changes."""
    dice, builder = scene.dice, scene.builder
    dtype = dice.one_of((DType.FP32, DType.FP16, DType.INT8))
    shape = scene.shape((1, 4), budget=200)
    initial = None
    if dice.chance(0.7):
        initial = values(dice, dtype, shape, style=scene.style, domain=ANYWHERE)
    variable = builder.variable("state", dtype, shape, initial)
    before = builder.variable_read(variable)
    given = scene.fresh(dtype, shape)
    if dtype is DType.INT8:
        # Nothing of this type takes two.
        value = builder.reverse(given, dice.below(len(shape)))
    else:
        value = dice.one_of((builder.add, builder.maximum))(before, given)
        for _ in range(dice.below(3)):
            value = _step(scene)(builder, value)
    builder.variable_write(variable, value)
    if dice.chance(0.5):
        scene.keep(builder.variable_read(variable))
    scene.keep(before)
    for _ in range(dice.below(3)):
        inside(scene, recipes)


def _step(scene: Scene) -> Step:
    """A way to change a value that keeps its type and shape."""
    dice = scene.dice
    axis = dice.below(6)

    def shifted(builder: Builder, x: Tensor) -> Tensor:
        one = np.ones((1,) * len(x.shape or ()), x.dtype.numpy)
        return builder.add(x, builder.const(one, x.dtype))

    steps: tuple[Step, ...] = (
        shifted,
        lambda builder, x: builder.clamp(x, -2, 3) if x.dtype.is_float else x,
        lambda builder, x: builder.negate(x),
        lambda builder, x: builder.reverse(x, axis % len(x.shape or (1,))),
        lambda builder, x: builder.maximum(x, builder.reverse(x, 0)),
        lambda builder, x: builder.identity(x),
    )
    return dice.one_of(steps)
