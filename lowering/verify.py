"""Verifies a graph against TOSA 1.0 and makes all its shapes known.

In order: the inputs of the program; then, for each block, the encodings of its tensors
and the flow of data; then each operator in an order in which values are there before
they are read. What depends on data that only a run brings is not looked at.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from tosavk.core.dtypes import DType, elements, serialized_bytes
from tosavk.lowering.errors import Kind, VerifyError
from tosavk.lowering.graph import Block, Graph, Op, Operator, Region, Tensor
from tosavk.lowering.operators import Shape, Signature, infer, text_of
from tosavk.lowering.operators.spec import (
    MAX_NESTING,
    MAX_RANK,
    MAX_SHAPE_LENGTH,
    MAX_TENSOR_BYTES,
)

_CONSTANTS = frozenset({Op.CONST, Op.CONST_SHAPE})
_VARIABLES = frozenset({Op.VARIABLE, Op.VARIABLE_READ, Op.VARIABLE_WRITE})
_CALLS = {
    Op.COND_IF: ("then_graph", "else_graph"),
    Op.WHILE_LOOP: ("cond_graph", "body_graph"),
}


def verify(
    graph: Graph, *, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """Checks a graph, and resolves the dimensions that the file leaves open.

    Args:
        graph: as it was read.
        shapes: shapes of inputs that have unknown dimensions (others may be given too,
            if they agree).

    Returns:
        The graph with every shape known, operators of each block in topological order
        (the file's order where that is one already), and data only on constants and
        variables.

    Raises:
        VerifyError: a rule of TOSA is broken, or a dimension stays unknown; `kind`,
            `operator` and `tensor` say which and where.
    """
    return _Verifier(graph).run(shapes or {})


class _Verifier:
    """One verification."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._regions = {region.name: region for region in graph.regions}
        self._minor = graph.version.minor
        self._done: dict[str, Region] = {}
        self._given: dict[str, list[Tensor]] = {}
        # How deep the calls below a region go.
        self._depth: dict[str, int] = {}

    def run(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        for region in self._graph.regions:
            for block in region.blocks:
                _check_boundary(block)
        main = self._graph.main
        entry = next(r for r in self._graph.regions if r.blocks[0] is main)
        inputs = _resolve_inputs(main, shapes)
        self._region(entry, inputs, ())
        for region in self._graph.regions:
            if region.name not in self._done:
                self._region(region, _known_inputs(region.blocks[0]), ())
        return dataclasses.replace(
            self._graph,
            regions=tuple(self._done[region.name] for region in self._graph.regions),
        )

    def _region(
        self, region: Region, inputs: list[Tensor], callers: tuple[str, ...]
    ) -> Signature:
        """Verifies a region for inputs of known shape."""
        depth = len(callers) + self._depth.get(region.name, 0)
        if region.name in callers or depth > MAX_NESTING:
            chain = " -> ".join((*callers, region.name))
            raise VerifyError(
                f"regions call each other more than {MAX_NESTING} deep: {chain}",
                kind=Kind.NESTING_LIMIT,
            )
        if region.name not in self._done or self._given[region.name] != inputs:
            first = self._block(region.blocks[0], inputs, (*callers, region.name))
            others = [
                self._block(block, _known_inputs(block), (*callers, region.name))
                for block in region.blocks[1:]
            ]
            if region.name in self._done and self._done[region.name].blocks[0] != first:
                raise VerifyError(
                    f"region {region.name!r} is called with inputs of different "
                    "shapes; make a region for each",
                    kind=Kind.INVALID_CONTROL_FLOW,
                )
            self._given[region.name] = inputs
            self._done[region.name] = Region(region.name, (first, *others))
        if callers:
            below = self._depth.get(region.name, 0) + 1
            self._depth[callers[-1]] = max(self._depth.get(callers[-1], 0), below)
        block = self._done[region.name].blocks[0]
        return Signature(
            tuple(block.tensors[name] for name in block.inputs),
            tuple(block.tensors[name] for name in block.outputs),
        )

    def _block(
        self, block: Block, inputs: list[Tensor], callers: tuple[str, ...]
    ) -> Block:
        for tensor in block.tensors.values():
            _check_encoding(tensor)
        operators = _in_order(block)
        constants = {
            name for o in operators if o.op in _CONSTANTS for name in o.outputs
        }
        # Data on anything else (an input, say) is a remark of the file, not a value.
        tensors = {
            name: tensor
            if tensor.data is None or tensor.variable or name in constants
            else dataclasses.replace(tensor, data=None)
            for name, tensor in block.tensors.items()
        }
        tensors.update((tensor.name, tensor) for tensor in inputs)
        for operator in operators:
            self._operator(operator, tensors, callers)
        for tensor in tensors.values():
            _check_known(tensor)
        return dataclasses.replace(block, operators=operators, tensors=tensors)

    def _operator(
        self,
        operator: Operator,
        tensors: dict[str, Tensor],
        callers: tuple[str, ...],
    ) -> None:
        inputs = [tensors[name] for name in operator.inputs]
        outputs = [tensors[name] for name in operator.outputs]
        regions: dict[str, Signature] = {}
        for attribute in _CALLS.get(operator.op, ()):
            name = operator.attributes.get(attribute)
            if isinstance(name, str) and name in self._regions:
                regions[name] = self._call(
                    operator, self._regions[name], inputs, callers
                )
        inferred = infer(operator, inputs, outputs, regions=regions, minor=self._minor)
        if operator.op in _CONSTANTS:
            _check_constant(operator, outputs[0])
        if operator.op in _VARIABLES:
            _check_variable(operator, [*inputs, *outputs])
        if inferred:
            _check_count(operator, outputs, inferred)
            for tensor, (dtype, shape) in zip(outputs, inferred, strict=True):
                tensors[tensor.name] = _settle(operator, tensor, dtype, shape)

    def _call(
        self,
        operator: Operator,
        region: Region,
        inputs: Sequence[Tensor],
        callers: tuple[str, ...],
    ) -> Signature:
        """Verifies a region for what an operator hands to it."""
        given = inputs[1:] if operator.op is Op.COND_IF else inputs
        block = region.blocks[0]
        formal = [block.tensors[name] for name in block.inputs]
        settled: list[Tensor] = []
        for position, tensor in enumerate(formal):
            shape = given[position].shape if position < len(given) else tensor.shape
            if _agree(tensor.shape, shape):
                tensor = dataclasses.replace(tensor, shape=shape, data=None)
            # What does not agree is reported by the rule of the operator.
            _check_encoding(tensor)
            settled.append(dataclasses.replace(tensor, data=None))
        return self._region(region, settled, callers)


def _resolve_inputs(
    block: Block, shapes: Mapping[str, tuple[int, ...]]
) -> list[Tensor]:
    """The inputs of a block with their shapes, as far as those are given."""
    for name in shapes:
        if name not in block.inputs:
            known = ", ".join(repr(known) for known in block.inputs) or "none"
            raise VerifyError(
                f"a shape is given for {name!r}, which is no input of the program; "
                f"its inputs are {known}",
                kind=Kind.UNKNOWN_SYMBOL,
                tensor=name,
            )
    resolved: list[Tensor] = []
    for name in block.inputs:
        tensor = block.tensors[name]
        shape = shapes.get(name, tensor.shape)
        if shape is not None and name in shapes:
            shape = tuple(int(size) for size in shape)
            if not _agree(tensor.shape, shape) or min(shape, default=1) < 1:
                raise VerifyError(
                    f"input {name!r} has shape {text_of(tensor.shape)}; the shape "
                    f"{'x'.join(str(size) for size in shape) or 'scalar'} given for it "
                    "does not fit",
                    kind=Kind.INVALID_SHAPE,
                    tensor=name,
                )
        if tensor.dtype is not DType.SHAPE and (
            shape is None or any(size == -1 for size in shape)
        ):
            raise _unknown_input(name, shape)
        resolved.append(dataclasses.replace(tensor, shape=shape, data=None))
        _check_encoding(resolved[-1])
    return resolved


def _known_inputs(block: Block) -> list[Tensor]:
    """The inputs of a block that nobody calls."""
    inputs = [block.tensors[name] for name in block.inputs]
    for tensor in inputs:
        _check_known(tensor)
    return [dataclasses.replace(tensor, data=None) for tensor in inputs]


def _unknown_input(name: str, shape: Shape | None) -> VerifyError:
    if shape is None:
        return VerifyError(
            f"input {name!r} is unranked; give its shape, --shape {name}=... or "
            f"shapes={{{name!r}: (...)}}",
            kind=Kind.UNKNOWN_SHAPE,
            tensor=name,
        )
    example = tuple(1 if size < 0 else size for size in shape)
    axes = [str(axis) for axis, size in enumerate(shape) if size < 0]
    which = (
        f"dimension {axes[0]}" if len(axes) == 1 else "dimensions " + ", ".join(axes)
    )
    return VerifyError(
        f"input {name!r} has shape {text_of(shape)}: {which} must be given; "
        f"give --shape {name}={text_of(example)} or shapes={{{name!r}: {example}}}",
        kind=Kind.UNKNOWN_SHAPE,
        tensor=name,
    )


def _agree(declared: Shape | None, actual: Shape | None) -> bool:
    """Whether a declared shape, with its unknown dimensions, admits an actual one."""
    if declared is None or actual is None:
        return True
    return len(declared) == len(actual) and all(
        size in (-1, other) for size, other in zip(declared, actual, strict=True)
    )


def _check_encoding(tensor: Tensor) -> None:
    """Dimensions, size, and the bytes of constants."""
    shape = tensor.shape
    if shape is None:
        return
    for axis, size in enumerate(shape):
        if size < 1 and size != -1 and tensor.dtype is not DType.SHAPE:
            raise VerifyError(
                f"dimension {axis} of tensor {tensor.name!r} (shape {shape}) is {size}; "
                "TOSA wants at least 1",
                kind=Kind.INVALID_DIMENSION,
                tensor=tensor.name,
            )
    if tensor.dtype is DType.SHAPE:
        if len(shape) != 1 or not 0 <= shape[0] <= MAX_SHAPE_LENGTH:
            raise VerifyError(
                f"shape {tensor.name!r} has {text_of(shape)} numbers; at most "
                f"{MAX_SHAPE_LENGTH} (level 8K)",
                kind=Kind.SHAPE_VALUE_LIMIT,
                tensor=tensor.name,
            )
    elif len(shape) > MAX_RANK:
        raise VerifyError(
            f"tensor {tensor.name!r} has rank {len(shape)} (shape {text_of(shape)}); "
            f"at most {MAX_RANK} (level 8K)",
            kind=Kind.INVALID_RANK,
            tensor=tensor.name,
        )
    if -1 in shape:
        if tensor.data is not None:
            raise VerifyError(
                f"constant {tensor.name!r} has shape {text_of(shape)}; "
                "constants need a known shape",
                kind=Kind.INVALID_TENSOR_DATA,
                tensor=tensor.name,
            )
        return
    _check_size(tensor, shape)
    if tensor.data is not None:
        _check_bytes(tensor, shape, tensor.data)


def _check_size(tensor: Tensor, shape: Shape) -> None:
    size = serialized_bytes(tensor.dtype, shape)
    if size > MAX_TENSOR_BYTES:
        raise VerifyError(
            f"tensor {tensor.name!r} ({tensor.dtype.name}, shape {text_of(shape)}) has "
            f"{size} bytes; at most {MAX_TENSOR_BYTES} (level 8K)",
            kind=Kind.TENSOR_SIZE_LIMIT,
            tensor=tensor.name,
        )


def _check_bytes(tensor: Tensor, shape: Shape, data: memoryview) -> None:
    need = serialized_bytes(tensor.dtype, shape)
    if len(data) < need:
        raise VerifyError(
            f"constant {tensor.name!r} ({tensor.dtype.name}, shape {text_of(shape)}) "
            f"needs {need} bytes of data; it has {len(data)}",
            kind=Kind.INVALID_TENSOR_DATA,
            tensor=tensor.name,
        )
    if tensor.dtype is DType.BOOL:
        raw = np.frombuffer(data, np.uint8, need)
        if raw.max(initial=0) > 1:
            raise VerifyError(
                f"constant {tensor.name!r} is BOOL and holds the byte {raw.max()}; "
                "it must hold 0 and 1 only",
                kind=Kind.INVALID_TENSOR_DATA,
                tensor=tensor.name,
            )
    elif tensor.dtype is DType.INT4:
        raw = np.frombuffer(data, np.uint8, need)
        nibbles = np.stack((raw & 0xF, raw >> 4), axis=-1).reshape(-1)
        if np.any(nibbles[: elements(shape)] == 8):
            raise VerifyError(
                f"constant {tensor.name!r} is INT4 and holds -8; its values are -7..7",
                kind=Kind.INVALID_TENSOR_DATA,
                tensor=tensor.name,
            )


def _check_boundary(block: Block) -> None:
    for what, names in (("input", block.inputs), ("output", block.outputs)):
        for name in names:
            if name not in block.tensors:
                raise VerifyError(
                    f"{what} {name!r} of block {block.name!r} is not among its tensors",
                    kind=Kind.UNKNOWN_SYMBOL,
                    tensor=name,
                )
            if block.tensors[name].dtype is DType.SHAPE:
                raise VerifyError(
                    f"{what} {name!r} of block {block.name!r} is a shape; "
                    "it must be a tensor",
                    kind=Kind.GRAPH_IO_MUST_BE_TENSOR,
                    tensor=name,
                )
    seen: set[str] = set()
    for name in block.inputs:
        if name in seen:
            raise VerifyError(
                f"input {name!r} of block {block.name!r} is listed twice",
                kind=Kind.DUPLICATE_NAME,
                tensor=name,
            )
        seen.add(name)


def _in_order(block: Block) -> tuple[Operator, ...]:
    """The operators so that values are produced before they are read.

    Kahn's algorithm: operators become ready in the order of the file, so that a file in
    a valid order keeps it.
    """
    given = frozenset(block.inputs)
    producers = _producers(block, given)
    for name in block.outputs:
        if name not in producers and name not in given:
            raise VerifyError(
                f"output {name!r} of block {block.name!r} is never computed",
                kind=Kind.DISCONNECTED_SYMBOL,
                tensor=name,
            )
    waiting: list[int] = []
    readers: dict[int, list[int]] = {}
    ordered = True
    for number, operator in enumerate(block.operators):
        needs = {
            producers[name]
            for name in operator.inputs
            if _is_computed(block, producers, given, operator, name)
        }
        if number in needs:
            raise _cycle(operator)
        ordered = ordered and max(needs, default=-1) < number
        waiting.append(len(needs))
        for need in needs:
            readers.setdefault(need, []).append(number)
    if ordered:
        return block.operators
    ready = deque(number for number, count in enumerate(waiting) if not count)
    order: list[Operator] = []
    while ready:
        number = ready.popleft()
        order.append(block.operators[number])
        for reader in readers.get(number, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if len(order) < len(block.operators):
        stuck = next(n for n, count in enumerate(waiting) if count)
        raise _cycle(block.operators[stuck])
    return tuple(order)


def _producers(block: Block, given: frozenset[str]) -> dict[str, int]:
    """Which operator computes a tensor; the first one that names a variable."""
    producers: dict[str, int] = {}
    for number, operator in enumerate(block.operators):
        for name in operator.outputs:
            tensor = _lookup(block, operator, name)
            if name in given:
                raise VerifyError(
                    f"{operator}: writes {name!r}, which is an input of the block",
                    kind=Kind.GRAPH_INPUT_PRODUCED,
                    operator=operator,
                    tensor=name,
                )
            if name in producers and not tensor.variable:
                raise VerifyError(
                    f"tensor {name!r} is written by "
                    f"{block.operators[producers[name]]} and by {operator}; "
                    "a tensor has one producer",
                    kind=Kind.MULTIPLE_PRODUCERS,
                    operator=operator,
                    tensor=name,
                )
            producers.setdefault(name, number)
    return producers


def _is_computed(
    block: Block,
    producers: Mapping[str, int],
    given: frozenset[str],
    operator: Operator,
    name: str,
) -> bool:
    """Whether an operator's input comes from an operator; it must come from somewhere."""
    tensor = _lookup(block, operator, name)
    if name in producers:
        return True
    if name in given or tensor.variable:
        return False
    remedy = "; its data needs a CONST operator" if tensor.data is not None else ""
    raise VerifyError(
        f"{operator}: reads {name!r}, which is neither computed nor an input{remedy}",
        kind=Kind.DISCONNECTED_SYMBOL,
        operator=operator,
        tensor=name,
    )


def _lookup(block: Block, operator: Operator, name: str) -> Tensor:
    tensor = block.tensors.get(name)
    if tensor is None:
        raise VerifyError(
            f"{operator}: names {name!r}, which is not among the tensors of its block",
            kind=Kind.UNKNOWN_SYMBOL,
            operator=operator,
            tensor=name,
        )
    return tensor


def _cycle(operator: Operator) -> VerifyError:
    return VerifyError(
        f"{operator}: its inputs depend on its own output; a program has no cycles",
        kind=Kind.DATAFLOW_CYCLE,
        operator=operator,
    )


def _check_constant(operator: Operator, tensor: Tensor) -> None:
    if tensor.data is None:
        raise VerifyError(
            f"{operator}: constant {tensor.name!r} has no data; export the model with "
            "its constants embedded",
            kind=Kind.INVALID_CONSTANT_DATA,
            operator=operator,
            tensor=tensor.name,
        )


def _check_variable(operator: Operator, operands: Sequence[Tensor]) -> None:
    shapes = {tensor.shape for tensor in operands}
    if not any(tensor.variable for tensor in operands) or len(shapes) > 1:
        raise VerifyError(
            f"{operator}: {', '.join(repr(tensor.name) for tensor in operands)} must be "
            "a variable, and values of its shape",
            kind=Kind.INVALID_VARIABLE,
            operator=operator,
        )


def _check_count(
    operator: Operator, outputs: Sequence[Tensor], inferred: Sequence[object]
) -> None:
    if len(outputs) != len(inferred):
        raise VerifyError(
            f"{operator}: has {len(outputs)} outputs; it gives {len(inferred)}",
            kind=Kind.INVALID_ARITY,
            operator=operator,
        )


def _settle(operator: Operator, tensor: Tensor, dtype: DType, shape: Shape) -> Tensor:
    """The output with its inferred shape, if that agrees with what is declared."""
    if tensor.dtype is not dtype:
        raise VerifyError(
            f"{operator}: output {tensor.name!r} is declared as {tensor.dtype.name}, "
            f"but the operator gives {dtype.name}",
            kind=Kind.UNSUPPORTED_TYPE_PROFILE,
            operator=operator,
            tensor=tensor.name,
        )
    if not _agree(tensor.shape, shape):
        raise VerifyError(
            f"{operator}: output {tensor.name!r} is declared with shape "
            f"{text_of(tensor.shape)}, but the operator gives {text_of(shape)}",
            kind=Kind.INVALID_SHAPE,
            operator=operator,
            tensor=tensor.name,
        )
    settled = (
        tensor if tensor.shape == shape else dataclasses.replace(tensor, shape=shape)
    )
    if settled is not tensor:
        _check_encoding(settled)
    return settled


def _check_known(tensor: Tensor) -> None:
    if tensor.shape is None or -1 in tensor.shape:
        raise VerifyError(
            f"the shape of tensor {tensor.name!r} ({text_of(tensor.shape)}) cannot be "
            "found out: no operator's rule gives it",
            kind=Kind.UNKNOWN_SHAPE,
            tensor=tensor.name,
        )
