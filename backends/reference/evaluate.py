"""Evaluates a TOSA graph with NumPy: every tensor of a block, in file order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference.call import Call
from tosavk.backends.reference.operators import COMPUTING, ELEMENTWISE, MOVING
from tosavk.backends.reference.values import (
    Array,
    Precision,
    canonical_bool,
    store,
    widen,
)
from tosavk.core.dtypes import DType, coerce, unpack_serialized
from tosavk.core.errors import InvalidArgument, ResourceLimit, Unsupported
from tosavk.core.parts import is_large, parts
from tosavk.lowering.graph import Block, Graph, Op, Operator, Tensor

TURNS = 1 << 16
"""Turns of all loops together that one run may take, unless told otherwise."""


@dataclass(slots=True)
class Turns:
    """Turns of loops.

    Attributes:
        allowed: how many all loops together may take.
        taken: how many they took.
    """

    allowed: int = TURNS
    taken: int = 0

    def take(self, operator: Operator) -> None:
        """Counts one more.

        Raises:
            ResourceLimit: it is one too many.
        """
        if self.taken >= self.allowed:
            raise ResourceLimit(
                f"{operator}: the loops of this run took {self.taken} turns and did not "
                "end; allow more (max_turns) if they should"
            )
        self.taken += 1


@dataclass(frozen=True, slots=True)
class Note:
    """Why TOSA leaves the result of a graph open.

    Attributes:
        operator: the operator whose REQUIRE does not hold.
        reason: what does not hold.
    """

    operator: Operator
    reason: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates blocks of one graph.

    Attributes:
        graph: gives the regions of COND_IF and WHILE_LOOP; None where there are none.
        precision: how float results are held between operators.
        variables: values of the VARIABLEs by name; kept from run to run.
        notes: filled with the reasons why the result is unpredictable, if it is.
        turns: of the loops.
    """

    graph: Graph | None
    precision: Precision
    variables: MutableMapping[str, Array] = field(default_factory=dict[str, Array])
    notes: list[Note] = field(default_factory=list[Note])
    turns: Turns = field(default_factory=Turns)

    def block(
        self,
        block: Block,
        inputs: Mapping[str, Array],
        *,
        keep: Container[str] | None = None,
    ) -> dict[str, Array]:
        """Evaluates a block.

        Args:
            block: the block.
            inputs: by tensor name: arrays that stand for the tensor's type, or
                float64 for float tensors in precise mode.
            keep: the tensors that are wanted; others are dropped when nothing reads
                them any more. None: all.

        Returns:
            The tensors of the block by name, in order of definition.

        Raises:
            InvalidArgument: an input is missing or stands for another type or shape.
            Unsupported: an operator has no reference.
        """
        values: dict[str, Array] = {}
        for name in block.inputs:
            if name not in inputs:
                raise InvalidArgument(
                    f"no value for input {name!r}; block {block.name!r} takes "
                    + ", ".join(repr(n) for n in block.inputs)
                )
            values[name] = self._accept(block.tensors[name], inputs[name])
        readers = Counter(n for op in block.operators for n in set(op.inputs))
        for operator in block.operators:
            operands = [self._value(block, values, n) for n in operator.inputs]
            results = self.operator(operator, block, operands)
            values.update(zip(operator.outputs, results, strict=False))
            if keep is None:
                continue
            readers.subtract(set(operator.inputs))
            for name in (*operator.inputs, *operator.outputs):
                if not readers[name] and name not in keep:
                    values.pop(name, None)
            del operands, results
        for name in block.outputs:
            values.setdefault(name, self._value(block, values, name))
        return values

    def operator(
        self, operator: Operator, block: Block, operands: Sequence[Array]
    ) -> list[Array]:
        """Evaluates one operator on values held in this evaluator's mode."""
        results = [block.tensors[name] for name in operator.outputs]
        match operator.op:
            case Op.CONST | Op.CONST_SHAPE:
                return [self._constant(tensor) for tensor in results]
            case Op.COND_IF:
                return self._cond_if(operator, operands)
            case Op.WHILE_LOOP:
                return self._while_loop(operator, operands)
            case Op.VARIABLE | Op.VARIABLE_READ | Op.VARIABLE_WRITE:
                return self._variable(operator, block, operands)
            case _:
                found = self._in_parts(operator, block, operands)
                if found is not None:
                    return [found]
                return self.compute(self.call(operator, block, operands))

    def call(self, operator: Operator, block: Block, operands: Sequence[Array]) -> Call:
        """The operator with its operands as its function wants them."""
        types = tuple(block.tensors[name].dtype for name in operator.inputs)
        if operator.op not in MOVING:
            operands = [widen(t, v) for t, v in zip(types, operands, strict=True)]
        results = tuple(block.tensors[name] for name in operator.outputs)
        return Call(operator, tuple(operands), types, results)

    def _in_parts(
        self, operator: Operator, block: Block, operands: Sequence[Array]
    ) -> Array | None:
        """The result of an elementwise operator on large operands.

        None for others, and where something is to be noted: TOSA's conditions are about
        whole tensors.
        """
        size = max((x.size for x in operands), default=0)
        if operator.op not in ELEMENTWISE or not is_large(size):
            return None
        shapes = {x.shape for x in operands if x.size != 1}
        if len(shapes) != 1:
            return None
        dtype = block.tensors[operator.outputs[0]].dtype
        flat = [x.reshape(-1) for x in operands]
        result: Array | None = None
        for part in parts(size):
            some = [x if x.size == 1 else x[part] for x in flat]
            call = self.call(operator, block, some)
            with np.errstate(all="ignore"):
                found = COMPUTING[operator.op](call)[0]
            if call.notes:
                return None
            stored = store(dtype, found, self.precision)
            if result is None:
                result = np.empty(size, stored.dtype)
            result[part] = stored
        return None if result is None else result.reshape(*shapes)

    def compute(self, call: Call) -> list[Array]:
        """Evaluates an operator that computes or moves elements.

        Args:
            call: what the method `call` gives.

        Raises:
            Unsupported: it has no reference.
        """
        op = call.operator.op
        handler = COMPUTING.get(op) or MOVING.get(op)
        if handler is None:
            raise Unsupported(f"{call.operator}: the reference has no {op.name}")
        with np.errstate(all="ignore"):
            results = handler(call)
        self.notes.extend(Note(call.operator, reason) for reason in call.notes)
        if op in MOVING:
            return results
        return [
            store(tensor.dtype, result, self.precision)
            for tensor, result in zip(call.results, results, strict=True)
        ]

    def _accept(self, tensor: Tensor, array: object) -> Array:
        value: Array = np.asarray(array)
        precise = self.precision is Precision.PRECISE
        if not (precise and tensor.dtype.is_float and value.dtype == np.float64):
            value = coerce(tensor.name, tensor.dtype, array, canonical_bool=True)
            value = self._hold(tensor.dtype, value)
        if tensor.shape is not None and (
            len(tensor.shape) != value.ndim
            or any(
                want not in (-1, got)
                for want, got in zip(tensor.shape, value.shape, strict=True)
            )
        ):
            raise InvalidArgument(
                f"{tensor.name!r} has shape {tensor.shape}; got an array of shape "
                f"{value.shape}"
            )
        return value

    def _hold(self, dtype: DType, value: Array) -> Array:
        if dtype.is_float and self.precision is Precision.PRECISE:
            with np.errstate(invalid="ignore"):  # signalling NaNs
                return value.astype(np.float64)
        return canonical_bool(value) if dtype is DType.BOOL else value

    def _constant(self, tensor: Tensor) -> Array:
        if tensor.data is None or tensor.shape is None:
            raise InvalidArgument(f"constant {tensor.name!r} has no data")
        value = unpack_serialized(tensor.dtype, tensor.data, tensor.shape)
        return self._hold(tensor.dtype, value)

    def _value(self, block: Block, values: Mapping[str, Array], name: str) -> Array:
        found = values.get(name)
        if found is not None:
            return found
        tensor = block.tensors[name]
        if tensor.data is not None:
            return self._constant(tensor)
        if tensor.variable:
            return self.variables[tensor.variable_name or tensor.name]
        raise InvalidArgument(
            f"tensor {name!r} of block {block.name!r} is used before it is defined"
        )

    def _region(self, operator: Operator, attribute: str) -> Block:
        name = operator.attributes.get(attribute)
        for region in self.graph.regions if self.graph is not None else ():
            if region.name == name:
                return region.blocks[0]
        raise InvalidArgument(f"{operator}: there is no region {name!r}")

    def _run(self, block: Block, operands: Sequence[Array]) -> list[Array]:
        given = dict(zip(block.inputs, operands, strict=True))
        values = self.block(block, given, keep=block.outputs)
        return [values[name] for name in block.outputs]

    def _cond_if(self, operator: Operator, operands: Sequence[Array]) -> list[Array]:
        taken = bool(canonical_bool(operands[0]).reshape(-1)[0])
        branch = "then_graph" if taken else "else_graph"
        return self._run(self._region(operator, branch), operands[1:])

    def _while_loop(self, operator: Operator, operands: Sequence[Array]) -> list[Array]:
        condition = self._region(operator, "cond_graph")
        body = self._region(operator, "body_graph")
        state = list(operands)
        while bool(self._run(condition, state)[0].reshape(-1)[0]):
            self.turns.take(operator)
            state = self._run(body, state)
        return state

    def _variable(
        self, operator: Operator, block: Block, operands: Sequence[Array]
    ) -> list[Array]:
        names = (*operator.inputs, *operator.outputs)
        tensors = [block.tensors[name] for name in names]
        named = [t.variable_name or t.name for t in tensors if t.variable]
        named += [t.variable_name for t in tensors if t.variable_name]
        if not named:
            raise InvalidArgument(f"{operator} names no variable")
        if operator.op is Op.VARIABLE_READ:
            return [self.variables[named[0]]]
        if operator.op is Op.VARIABLE_WRITE:
            self.variables[named[0]] = operands[-1]
            return []
        declared = next(t for t in tensors if t.variable or t.variable_name)
        if named[0] not in self.variables:
            self.variables[named[0]] = self._constant(declared)
        return [self.variables[named[0]] for _ in operator.outputs]


def _entry(target: Graph | Block) -> tuple[Graph | None, Block]:
    return (target, target.main) if isinstance(target, Graph) else (None, target)


def evaluate(
    target: Graph | Block,
    inputs: Mapping[str, Array],
    *,
    precise: bool = True,
    notes: list[Note] | None = None,
) -> dict[str, Array]:
    """Evaluates a graph's entry block, or a block, on NumPy arrays.

    Args:
        target: what to evaluate; a lone block cannot hold COND_IF or WHILE_LOOP.
        inputs: arrays by input name, as `core.dtypes.coerce` accepts them.
        precise: float64 between operators; otherwise each result is rounded to its
            type.
        notes: filled with the reasons why TOSA leaves the result open.

    Returns:
        Every tensor of the block by name: float64 for floats in precise mode, else
        arrays of `dtype.numpy`.

    Raises:
        InvalidArgument: an input is missing, or of another type or shape.
        Unsupported: an operator has no reference.
    """
    graph, block = _entry(target)
    precision = Precision.PRECISE if precise else Precision.NATIVE
    evaluator = Evaluator(graph, precision, notes=notes if notes is not None else [])
    return evaluator.block(block, inputs)


def evaluate_operator(
    op: Operator,
    block: Block,
    operands: Iterable[NDArray[np.generic]],
    *,
    precise: bool = True,
    graph: Graph | None = None,
    notes: list[Note] | None = None,
) -> list[Array]:
    """Evaluates one operator of a block on given operands.

    Args:
        op: the operator.
        block: gives the types of its operands and results.
        operands: one array an input: of `dtype.numpy`, or float64 for floats.
        precise: as for `evaluate`.
        graph: gives the regions of COND_IF and WHILE_LOOP.
        notes: as for `evaluate`.

    Returns:
        The results in order.
    """
    precision = Precision.PRECISE if precise else Precision.NATIVE
    evaluator = Evaluator(graph, precision, notes=notes if notes is not None else [])
    return evaluator.operator(op, block, list(operands))
