"""Rules about the values of operands that only a run brings (EXT-DYNAMIC).

Zero points and the like are checked when a program is verified, if they are constants.
Where they are inputs of the program, the same rules are applied to what a run is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import pack_serialized
from tosavk.lowering.graph import Block, Operator, Tensor
from tosavk.lowering.operators import SPECS
from tosavk.lowering.operators.spec import Call, no_check


@dataclass(frozen=True, slots=True)
class LateChecks:
    """The checks of one program.

    Attributes:
        block: its entry block.
        operators: those that have a rule about operands that are inputs.
    """

    block: Block
    operators: tuple[Operator, ...]

    @classmethod
    def of(cls, block: Block) -> LateChecks:
        """The checks that a verified entry block needs."""
        given = frozenset(block.inputs)
        return cls(block, tuple(op for op in block.operators if _is_late(op, given)))

    def check(self, inputs: Mapping[str, NDArray[np.generic]]) -> None:
        """Checks the inputs of a run.

        Args:
            inputs: all of them by name, in their types.

        Raises:
            VerifyError: an operator must not be given such a value.
        """
        for op in self.operators:
            operands: list[Tensor] = []
            for position, name in enumerate(op.inputs):
                tensor = self.block.tensors[name]
                if SPECS[op.op].input(position).constant and name in inputs:
                    data = memoryview(pack_serialized(tensor.dtype, inputs[name]))
                    tensor = dataclasses.replace(tensor, data=data)
                operands.append(tensor)
            results = tuple(self.block.tensors[name].dtype for name in op.outputs)
            SPECS[op.op].constants(Call(op, tuple(operands), results))


def _is_late(op: Operator, given: frozenset[str]) -> bool:
    spec = SPECS[op.op]
    return spec.constants is not no_check and any(
        spec.input(position).constant and name in given
        for position, name in enumerate(op.inputs)
    )
