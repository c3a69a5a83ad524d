"""Makes valid random programs: program i of seed N is the same everywhere.

A program follows one of a few patterns, each of which is hard on some part of lowering:
views, constants that are folded or computed at load, reuse of the arena, barriers, parts
of CONCAT, outputs that are read or come twice, operators that nobody needs. Its operators
come from a palette that some fifty programs share, since a pipeline of its own costs
far more than a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tosavk.core.dtypes import DType, elements
from tosavk.differential.fuzz import flows
from tosavk.differential.fuzz.case import Case, Sample
from tosavk.differential.fuzz.dice import Dice
from tosavk.differential.fuzz.recipe import Recipe
from tosavk.differential.fuzz.recipes import all_recipes, make
from tosavk.differential.fuzz.scene import Scene, dims, style_of
from tosavk.differential.fuzz.values import values
from tosavk.lowering.graph import Op, Tensor
from tosavk.lowering.program import load_graph

SPAN = 50
"""Programs that share a palette."""

PALETTE = 40
"""Operators of a palette."""

SAMPLES = 2
"""Runs of a program, with different inputs."""

_DATA = (DType.FP32, DType.FP16, DType.BF16, DType.INT8, DType.INT32)


@dataclass(frozen=True, slots=True)
class Made:
    """A program that the generator made.

    Attributes:
        seed: of the run.
        index: which program of the run.
        pattern: how it was put together.
        case: the program.
        data: the program as a TOSA flatbuffer.
    """

    seed: int
    index: int
    pattern: str
    case: Case
    data: bytes


def palette(seed: int, number: int) -> tuple[Recipe, ...]:
    """The operators of a palette.

    All operators and types are dealt out before any comes again.
    """
    recipes = all_recipes()
    first = number * PALETTE
    chosen: list[Recipe] = []
    for position in range(first, first + PALETTE):
        turn, place = divmod(position, len(recipes))
        order = Dice("order", seed, turn).shuffled(range(len(recipes)))
        variant = Dice("variant", seed, position).below(4)
        chosen.append(replace(recipes[order[place]], variant=variant))
    return tuple(chosen)


class Generator:
    """The programs of a seed.

    Args:
        seed: any number from 0 on.
    """

    def __init__(self, seed: int) -> None:
        """Makes nothing yet."""
        self.seed = seed
        self._palettes: dict[int, tuple[Recipe, ...]] = {}

    def make(self, index: int) -> Made:
        """Program number `index`."""
        number = index // SPAN
        if number not in self._palettes:
            self._palettes = {number: palette(self.seed, number)}
        dice = Dice("program", self.seed, index)
        pattern = dice.weighted(_WEIGHTS)
        scene = Scene(dice, style_of(dice))
        _PATTERNS[pattern](scene, self._palettes[number])
        _choose_outputs(scene)
        data = scene.builder.build()
        segment = dice.one_of((256, 1024, 4096)) if dice.chance(0.25) else None
        case = Case(load_graph(data), _samples(scene, self.seed, index), segment)
        return Made(self.seed, index, pattern, case, data)


def _samples(scene: Scene, seed: int, index: int) -> tuple[Sample, ...]:
    """Inputs for each run; the first ones are ordinary more often."""
    result: list[Sample] = []
    for number in range(SAMPLES):
        dice = Dice("inputs", seed, index, number)
        style = scene.style if number == 0 else style_of(dice)
        result.append(
            {
                source.name: values(
                    dice,
                    source.dtype,
                    source.shape,
                    style=style,
                    domain=source.domain,
                )
                for source in scene.sources
            }
        )
    return tuple(result)


def _step(scene: Scene, recipes: tuple[Recipe, ...]) -> tuple[Tensor, ...]:
    """One operator, one that can read what is there if possible."""
    known = {tensor.dtype for tensor in scene.pool}
    able = [recipe for recipe in recipes if recipe.reads in known]
    recipe = scene.dice.one_of(able if able and scene.dice.chance(0.7) else recipes)
    made = make(scene, recipe)
    scene.keep(*made)
    return made


def _mix(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """Some operators of any kind."""
    for _ in range(scene.dice.between(2, 8)):
        _step(scene, recipes)


def _single(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """One operator on larger tensors."""
    scene.budget = 6000
    scene.keep(*make(scene, scene.dice.one_of(recipes)))


def _chain(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """A long row of few operators that look back now and then: the arena is reused."""
    scene.budget = 600
    few = scene.dice.shuffled(recipes)[:6]
    for _ in range(scene.dice.between(8, 18)):
        _step(scene, tuple(few))
        if len(scene.pool) > 5 and scene.dice.chance(0.7):
            # What is forgotten frees its memory.
            del scene.pool[scene.dice.below(len(scene.pool) - 3)]


def _branches(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """Branches that need no barriers between them, brought together in the end."""
    dtype = scene.dice.one_of(_DATA)
    same = [r for r in recipes if r.reads is dtype]
    shape = scene.shape((1, 4), budget=300)
    root = scene.fresh(dtype, shape)
    ends: list[Tensor] = []
    for _ in range(scene.dice.between(2, 4)):
        scene.pool[:] = [root]
        for _ in range(scene.dice.between(1, 3)):
            _step(scene, tuple(same) or recipes)
        ends += scene.pool
    alike = [t for t in ends if t.dtype is root.dtype and dims(t)]
    scene.pool[:] = ends
    if len(alike) > 1:
        flat = [scene.builder.reshape(t, (elements(dims(t)),)) for t in alike]
        scene.pool.append(scene.builder.concat(flat, 0))


def _constants(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """Operators on constants: folded, or run once when the program is loaded."""
    scene.constants = True
    for _ in range(scene.dice.between(1, 4)):
        _step(scene, recipes)
    scene.constants = False
    for _ in range(scene.dice.between(1, 4)):
        _step(scene, recipes)


def _boundary(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """Views and copies between inputs and outputs."""
    for _ in range(scene.dice.between(1, 3)):
        tensor = scene.fresh(scene.dice.one_of(_DATA), scene.shape(budget=300))
        for _ in range(scene.dice.between(1, 3)):
            tensor = scene.view(tensor)
            scene.pool.append(tensor)
    for _ in range(scene.dice.below(3)):
        _step(scene, recipes)


def _parts(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """CONCAT of many parts of odd lengths, some of them computed, some twice."""
    dice = scene.dice
    dtype = dice.one_of((*_DATA, DType.BOOL, DType.INT16, DType.FP8E4M3))
    base = list(scene.shape((1, 4), budget=120))
    axis = dice.below(len(base))
    parts: list[Tensor] = []
    for _ in range(dice.between(2, 6)):
        shape = (*base[:axis], scene.size(7), *base[axis + 1 :])
        part = scene.fresh(dtype, shape)
        if dice.chance(0.4):
            part = scene.builder.reverse(part, axis)
        parts.append(part)
        if dice.chance(0.3):
            parts.append(part)
    scene.keep(scene.builder.concat(parts, axis))
    for _ in range(dice.below(3)):
        _step(scene, recipes)


def _branch(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """A COND_IF, with operators before and behind it."""
    if scene.dice.chance(0.5):
        _step(scene, recipes)
    flows.branch(scene, recipes, _step)


def _loop(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """A WHILE_LOOP, with operators behind it."""
    flows.loop(scene, recipes, _step)


def _state(scene: Scene, recipes: tuple[Recipe, ...]) -> None:
    """A VARIABLE, with operators on what it holds."""
    flows.state(scene, recipes, _step)


_Pattern = Callable[[Scene, tuple[Recipe, ...]], None]
_PATTERNS: dict[str, _Pattern] = {
    "mix": _mix,
    "single": _single,
    "chain": _chain,
    "branches": _branches,
    "constants": _constants,
    "boundary": _boundary,
    "parts": _parts,
    "branch": _branch,
    "loop": _loop,
    "state": _state,
}
_WEIGHTS = {
    "mix": 5.0,
    "single": 3.0,
    "chain": 2.0,
    "branches": 1.5,
    "constants": 1.5,
    "boundary": 0.7,
    "parts": 0.8,
    "branch": 0.3,
    "loop": 0.3,
    "state": 0.3,
}


def _choose_outputs(scene: Scene) -> None:
    """Outputs: what nobody reads, mostly, and some that are awkward."""
    dice, builder = scene.dice, scene.builder
    block = builder.block()
    read = {name for op in block.operators for name in op.inputs}
    made = [
        block.tensors[name]
        for op in block.operators
        for name in op.outputs
        if op.inputs and block.tensors[name].dtype is not DType.SHAPE
    ]
    ends = [tensor for tensor in made if tensor.name not in read]
    chosen = [tensor for tensor in ends if not dice.chance(0.12)] or ends[:1]
    inner = [tensor for tensor in made if tensor.name in read]
    if inner and dice.chance(0.3):
        chosen.append(dice.one_of(inner))
    if block.inputs and dice.chance(0.06):
        chosen.append(block.tensors[dice.one_of(block.inputs)])
    constants = [
        block.tensors[op.outputs[0]] for op in block.operators if op.op is Op.CONST
    ]
    if constants and dice.chance(0.05):
        chosen.append(dice.one_of(constants))
    if not chosen and block.inputs:
        chosen.append(block.tensors[dice.one_of(block.inputs)])
    elif not chosen:
        chosen.append(made[-1])
    if dice.chance(0.08):
        chosen.append(dice.one_of(chosen))
    for tensor in dice.shuffled(chosen):
        builder.output(tensor)
