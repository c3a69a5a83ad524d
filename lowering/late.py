"""Rules about the values of operands that are no constants of the file (EXT-DYNAMIC).

Zero points and the like are checked when a program is verified, if they are constants.
Otherwise the same rules are applied to their values: at load where folding finds them,
before a run where they are inputs, and after it where the program computes them. Only
operands with a value that would break a rule are looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, pack_serialized
from tosavk.lowering.errors import VerifyError
from tosavk.lowering.graph import Block, Operator, Tensor
from tosavk.lowering.operators import SPECS
from tosavk.lowering.operators.spec import Call, Origin, no_check

Values = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class LateChecks:
    """Checks of operators whose operands' values are not in the file.

    Attributes:
        tensors: the tensors of these operators.
        operators: those that have a rule about such operands.
        names: the operands whose values are needed, in order.
        inputs: those tensors that are inputs of the block.
    """

    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]
    names: tuple[str, ...]
    inputs: frozenset[str]

    @classmethod
    def of(
        cls, block: Block, operators: Iterable[Operator] | None = None
    ) -> LateChecks:
        """The checks that a verified block, or some of its operators, needs."""
        found: list[Operator] = []
        names: dict[str, None] = {}
        for op in block.operators if operators is None else operators:
            operands = late_operands(op, block.tensors)
            if operands:
                found.append(op)
                names.update(dict.fromkeys(operands))
        wanted = {n for op in found for n in (*op.inputs, *op.outputs)}
        tensors = {n: t for n, t in block.tensors.items() if n in wanted}
        inputs = frozenset(block.inputs) & wanted
        return cls(tensors, tuple(found), tuple(names), inputs)

    def check(self, values: Values) -> None:
        """Checks values.

        Args:
            values: some or all of the operands by name, in their types.

        Raises:
            VerifyError: an operator must not be given such a value.
        """
        for op in self.operators:
            if any(name in values for name in op.inputs):
                _apply(op, self.tensors, values, self.inputs)


def late_operands(op: Operator, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The operands whose values are not in the file and might break a rule.

    Args:
        op: a verified operator.
        tensors: those of its block.
    """
    spec = SPECS[op.op]
    if spec.constants is no_check:
        return ()
    return tuple(
        name
        for position, name in enumerate(op.inputs)
        if spec.input(position).constant
        and tensors[name].data is None
        and any(_breaks(op, tensors, {name: value}) for value in _trials(tensors[name]))
    )


def _trials(tensor: Tensor) -> Iterable[NDArray[np.generic]]:
    """Values of all kinds: one, and the ends of the type."""
    shape = tensor.shape or ()
    if tensor.dtype.is_float:
        yield np.ones(shape).astype(tensor.dtype.numpy)
        return
    if tensor.dtype in {DType.SHAPE, DType.BOOL}:
        return
    most = (1 << (tensor.dtype.bits - 1)) - 1
    for number in (1, most, -most):
        yield np.full(shape, number, tensor.dtype.numpy)


def _breaks(op: Operator, tensors: Mapping[str, Tensor], values: Values) -> bool:
    try:
        _apply(op, tensors, values)
    except VerifyError:
        return True
    return False


def _apply(
    op: Operator,
    tensors: Mapping[str, Tensor],
    values: Values,
    inputs: Container[str] = (),
) -> None:
    spec = SPECS[op.op]
    operands: list[Tensor] = []
    origins = {
        name: Origin.INPUT if name in inputs else Origin.COMPUTED
        for name in op.inputs
        if tensors[name].data is None
    }
    for position, name in enumerate(op.inputs):
        tensor = tensors[name]
        if spec.input(position).constant and name in values:
            data = memoryview(pack_serialized(tensor.dtype, values[name]))
            tensor = dataclasses.replace(tensor, data=data)
        operands.append(tensor)
    results: Sequence[DType] = [tensors[name].dtype for name in op.outputs]
    call = Call(op, tuple(operands), tuple(results), origins=origins)
    spec.constants(call)
