"""Smaller programs: the steps that a reduction tries.

Every step gives a graph that is still valid, or None. None of them knows what is looked
for; `reduce` tries them and keeps what still shows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, elements, pack_serialized
from tosavk.core.errors import Error
from tosavk.differential.fuzz.case import Case
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.folding import constant_value
from tosavk.lowering.graph import Block, Graph, Op, Operator, Tensor
from tosavk.lowering.lower import live_operators
from tosavk.lowering.operators import infer
from tosavk.lowering.program import load_graph

Array = NDArray[Any]
Values = Mapping[str, Array]
Evaluate = Callable[[Graph, Values], Values]
"""Every tensor of a program for some inputs, in types that inputs have."""


def rebuild(case: Case, block: Block, samples: Sequence[Values]) -> Case | None:
    """A case with another block, cleaned of what it does not need; None if invalid."""
    needed = set(block.outputs)
    live = live_operators(block)
    for op in live:
        needed.update(op.inputs)
    operators = tuple(
        dataclasses.replace(op, index=position, location="")
        for position, op in enumerate(live)
    )
    inputs = tuple(name for name in block.inputs if name in needed)
    names = [*inputs, *(name for op in operators for name in op.outputs)]
    if not operators or any(name not in names for name in needed):
        return None
    main = dataclasses.replace(
        block,
        operators=operators,
        inputs=inputs,
        tensors={name: block.tensors[name] for name in names},
    )
    old = case.graph.main
    called = {
        value
        for op in operators
        for value in op.attributes.values()
        if isinstance(value, str)
    }
    regions = tuple(
        dataclasses.replace(region, blocks=(main,)) if old in region.blocks else region
        for region in case.graph.regions
        if old in region.blocks or region.name in called
    )
    try:
        graph = load_graph(dataclasses.replace(case.graph, regions=regions))
    except Error:
        return None
    kept = tuple({name: sample[name] for name in inputs} for sample in samples)
    return dataclasses.replace(case, graph=graph, samples=kept)


def with_outputs(case: Case, names: Sequence[str]) -> Case | None:
    """Only these outputs."""
    block = dataclasses.replace(case.graph.main, outputs=tuple(names))
    return rebuild(case, block, case.samples)


def without(case: Case, op: Operator) -> Case | None:
    """No operator that gives no result, such as a write to a variable."""
    block = case.graph.main
    operators = tuple(other for other in block.operators if other != op)
    return rebuild(case, dataclasses.replace(block, operators=operators), case.samples)


def cut(case: Case, names: Iterable[str], values: Sequence[Values]) -> Case | None:
    """These tensors become inputs, with the values they had.

    Args:
        case: the case.
        names: results of operators.
        values: all tensors for each sample.
    """
    block = case.graph.main
    chosen = set(names)
    for op in block.operators:
        # A cut between the results of one operator would leave it in the program.
        if not chosen.isdisjoint(op.outputs):
            chosen.update(op.outputs)
    operators = tuple(op for op in block.operators if chosen.isdisjoint(op.outputs))
    fresh = [
        name
        for op in block.operators
        for name in op.outputs
        if name in chosen and name not in block.inputs
    ]
    if any(
        block.tensors[name].dtype is DType.SHAPE or block.tensors[name].variable
        for name in fresh
    ):
        return None
    tensors = {
        name: dataclasses.replace(t, data=None) if name in chosen else t
        for name, t in block.tensors.items()
    }
    new = dataclasses.replace(
        block,
        operators=operators,
        inputs=(*block.inputs, *fresh),
        outputs=tuple(n for n in block.outputs if n not in chosen)
        or tuple(block.outputs),
        tensors=tensors,
    )
    samples = [
        {**sample, **{name: found[name] for name in fresh}}
        for sample, found in zip(case.samples, values, strict=True)
    ]
    return rebuild(case, new, samples)


def bypass(case: Case, op: Operator) -> Case | None:
    """Readers of an operator's result read its like-shaped operand instead."""
    block = case.graph.main
    if len(op.outputs) != 1:
        return None
    target = block.tensors[op.outputs[0]]
    source = next(
        (
            name
            for name in op.inputs
            if (block.tensors[name].dtype, block.tensors[name].shape)
            == (target.dtype, target.shape)
        ),
        None,
    )
    if source is None:
        return None

    return _replaced(case, op, source, dict(block.tensors), case.samples)


def merged(case: Case, op: Operator) -> Case | None:
    """A view of a view becomes a view of what that one shows."""
    block = case.graph.main
    made = {n: o for o in block.operators for n in o.outputs}
    inner = made.get(op.inputs[0]) if op.inputs else None
    if op.op not in _VIEWS or inner is None or inner.op not in _VIEWS:
        return None
    changed = dataclasses.replace(op, inputs=(inner.inputs[0], *op.inputs[1:]))
    operators = tuple(changed if o is op else o for o in block.operators)
    return rebuild(case, dataclasses.replace(block, operators=operators), case.samples)


def absorbed(case: Case, op: Operator) -> Case | None:
    """A RESHAPE goes, and the sources of what it reads have its shape instead."""
    block = case.graph.main
    made = {n: o for o in block.operators for n in o.outputs}
    if op.op is not Op.RESHAPE:
        return None
    source, target = block.tensors[op.inputs[0]], block.tensors[op.outputs[0]]
    shape = target.shape or ()
    maker = made.get(source.name)
    if maker is None or maker.op in CONSTANT_OPS:
        return None
    tensors = dict(block.tensors)
    samples: list[dict[str, Array]] = [dict(sample) for sample in case.samples]
    for name in maker.inputs:
        tensor = tensors[name]
        if tensor.shape is None or len(tensor.shape) != len(source.shape or ()):
            continue
        if tensor.shape == source.shape:
            wanted = shape
        elif set(tensor.shape) == {1} and name != source.name:
            wanted = (1,) * len(shape)
        else:
            return None
        if tensor.data is not None and not tensor.variable:
            tensors[name] = _filled(tensor, constant_value(tensor).reshape(wanted))
        elif name in block.inputs:
            tensors[name] = dataclasses.replace(tensor, shape=wanted)
            for sample in samples:
                sample[name] = sample[name].reshape(wanted)
        else:
            return None
    found = _replaced(case, op, source.name, tensors, samples)
    if found is None or found.graph.main.tensors[source.name].shape != shape:
        return None
    return found


def dropped(case: Case, op: Operator) -> Case | None:
    """A RESHAPE goes, and its readers' other sources have the shape from before."""
    block = case.graph.main
    if op.op is not Op.RESHAPE:
        return None
    source, target = block.tensors[op.inputs[0]], block.tensors[op.outputs[0]]
    shape = source.shape or ()
    tensors = dict(block.tensors)
    samples: list[dict[str, Array]] = [dict(sample) for sample in case.samples]
    for reader in block.operators:
        if target.name not in reader.inputs:
            continue
        for name in reader.inputs:
            tensor = tensors[name]
            if name == target.name or tensor.dtype is DType.SHAPE:
                continue
            if tensor.shape == target.shape:
                wanted = shape
            elif tensor.shape == (1,) * len(target.shape or ()):
                wanted = (1,) * len(shape)
            else:
                continue
            if tensor.data is not None and not tensor.variable:
                tensors[name] = _filled(tensor, constant_value(tensor).reshape(wanted))
            elif name in block.inputs:
                tensors[name] = dataclasses.replace(tensor, shape=wanted)
                for sample in samples:
                    sample[name] = sample[name].reshape(wanted)
    return _replaced(case, op, source.name, tensors, samples)


def _replaced(
    case: Case,
    op: Operator,
    source: str,
    tensors: dict[str, Tensor],
    samples: Sequence[Values],
) -> Case | None:
    """An operator's readers read `source` instead, and it goes."""
    block, target = case.graph.main, op.outputs[0]

    def swap(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(source if name == target else name for name in names)

    operators = tuple(
        dataclasses.replace(other, inputs=swap(other.inputs))
        for other in block.operators
        if other is not op
    )
    inferred = _inferred(case.graph, operators, tensors)
    if inferred is None:
        return None
    new = dataclasses.replace(
        block,
        operators=operators,
        tensors=inferred,
        outputs=tuple(dict.fromkeys(swap(block.outputs))),
    )
    return rebuild(case, new, samples)


_VIEWS = frozenset({Op.RESHAPE, Op.IDENTITY})


# Sizes ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of an input or constant, or (axis -1) a number of a shape value."""

    tensor: str
    axis: int


def axes(case: Case) -> dict[int, list[Axis]]:
    """The dimensions that may shrink, by size."""
    block = case.graph.main
    found: dict[int, list[Axis]] = {}
    for name in (*block.inputs, *constants(block)):
        tensor = block.tensors[name]
        if tensor.dtype is DType.SHAPE:
            for position, n in enumerate(constant_value(tensor).tolist()):
                if n > 1:
                    found.setdefault(int(n), []).append(Axis(name, position))
            continue
        for axis, size in enumerate(tensor.shape or ()):
            if size > 1:
                found.setdefault(size, []).append(Axis(name, axis))
    return found


def resized(
    case: Case, places: Sequence[Axis], size: int, *, first: bool = True
) -> Case | None:
    """These dimensions become `size`: the first elements stay, or the last ones."""
    block = case.graph.main
    tensors = dict(block.tensors)
    samples: list[dict[str, Array]] = [dict(sample) for sample in case.samples]
    for place in places:
        tensor = tensors[place.tensor]
        if tensor.dtype is DType.SHAPE:
            numbers = constant_value(tensor).copy()
            numbers[place.axis] = size
            tensors[place.tensor] = _filled(tensor, numbers)
            continue
        shape = list(tensor.shape or ())
        if shape[place.axis] < size:
            return None
        start = 0 if first else shape[place.axis] - size
        shape[place.axis] = size
        index = tuple(
            slice(start, start + n) if axis == place.axis else slice(0, n)
            for axis, n in enumerate(shape)
        )
        if tensor.data is not None:
            tensors[place.tensor] = _filled(tensor, constant_value(tensor)[index])
            continue
        tensors[place.tensor] = dataclasses.replace(tensor, shape=tuple(shape))
        for sample in samples:
            sample[place.tensor] = np.ascontiguousarray(sample[place.tensor][index])
    inferred = _inferred(case.graph, block.operators, tensors)
    if inferred is None:
        return None
    return rebuild(case, dataclasses.replace(block, tensors=inferred), samples)


def with_attributes(
    case: Case, op: Operator, changes: Mapping[str, tuple[int, ...]]
) -> Case | None:
    """An operator with other attributes."""
    block = case.graph.main
    changed = dataclasses.replace(op, attributes={**op.attributes, **changes})
    operators = tuple(changed if o is op else o for o in block.operators)
    inferred = _inferred(case.graph, operators, dict(block.tensors))
    if inferred is None:
        return None
    new = dataclasses.replace(block, operators=operators, tensors=inferred)
    return rebuild(case, new, case.samples)


def _inferred(
    graph: Graph, operators: Sequence[Operator], tensors: dict[str, Tensor]
) -> dict[str, Tensor] | None:
    """The tensors with the shapes that follow from the inputs'."""
    for op in operators:
        if op.op in CONSTANT_OPS:
            continue
        if any(isinstance(value, str) for value in op.attributes.values()):
            # What it calls has types and shapes of its own.
            continue
        inputs = tuple(tensors[name] for name in op.inputs)
        kinds = tuple(tensors[name].dtype for name in op.outputs)
        try:
            found = infer(op, inputs, kinds, minor=graph.version.minor)
        except Error:
            return None
        if len(found) != len(op.outputs):
            return None
        for name, (_, shape) in zip(op.outputs, found, strict=True):
            tensors[name] = dataclasses.replace(tensors[name], shape=tuple(shape))
    return tensors


# Values -----------------------------------------------------------------------------


def constants(block: Block) -> list[str]:
    """The constant tensors."""
    return [op.outputs[0] for op in block.operators if op.op in CONSTANT_OPS]


def with_values(case: Case, name: str, array: Array, sample: int = 0) -> Case | None:
    """An input of one sample, or a constant, with other values."""
    if case.graph.main.tensors[name].data is not None:
        return _with_data(case, name, array)
    samples: list[dict[str, Array]] = [dict(s) for s in case.samples]
    samples[sample][name] = array
    return dataclasses.replace(case, samples=tuple(samples))


def _with_data(case: Case, name: str, array: Array) -> Case | None:
    block = case.graph.main
    tensors = {**block.tensors, name: _filled(block.tensors[name], array)}
    return rebuild(case, dataclasses.replace(block, tensors=tensors), case.samples)


def _filled(tensor: Tensor, array: Array) -> Tensor:
    data = memoryview(pack_serialized(tensor.dtype, array))
    return dataclasses.replace(tensor, shape=array.shape, data=data)


def weight(case: Case) -> tuple[int, int, int]:
    """How large a case is: operators, then elements, then what is not zero."""
    block = case.graph.main
    work = [op for op in block.operators if op.op not in CONSTANT_OPS]
    arrays = [a for sample in case.samples for a in sample.values()]
    arrays += [constant_value(block.tensors[name]) for name in constants(block)]
    size = sum(elements(t.shape or ()) for t in block.tensors.values())
    busy = sum(int(np.count_nonzero(array)) for array in arrays)
    return len(work), size * len(case.samples), busy
