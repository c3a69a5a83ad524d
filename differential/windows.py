"""Parts of a program whose intermediates are looked at together.

All intermediates of a large program may be more than memory holds, or more than a device
binds. So operators are taken in parts: each keeps only the tensors that its own operators
read and write, by running the program again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from tosavk.core.dtypes import storage_bytes
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.graph import Block, Operator

BUDGET_BYTES = 192 << 20
"""Bytes of intermediates that each side keeps at a time; one operator may need more."""


@dataclass(frozen=True, slots=True)
class Window:
    """Operators that follow each other, and what must be known of them.

    Attributes:
        operators: in the order of execution.
        names: intermediates that they read or write.
    """

    operators: tuple[Operator, ...]
    names: tuple[str, ...]


def windows(
    block: Block,
    live: Sequence[Operator],
    constants: Container[str],
    *,
    room: int,
    budget: int = BUDGET_BYTES,
) -> list[Window]:
    """The parts of a program.

    Args:
        block: a verified block.
        live: its operators that are not dead, in execution order.
        constants: names of tensors that are known at load.
        room: inputs and outputs that every device can bind at once.
        budget: bytes of intermediates in a part, unless one operator has more.
    """
    work = [op for op in live if op.op not in CONSTANT_OPS and op.outputs]
    bound = {*block.inputs, *block.outputs}
    most = max(1, room - len(block.inputs) - len(block.outputs))
    found: list[Window] = []
    operators: list[Operator] = []
    names: dict[str, int] = {}
    for op in work:
        needed = {
            name: _nbytes(block, name)
            for name in (*op.inputs, *op.outputs)
            if name not in bound
            and name not in constants
            and block.tensors[name].data is None
            and not block.tensors[name].variable
        }
        both = {**names, **needed}
        if operators and (len(both) > most or sum(both.values()) > budget):
            found.append(Window(tuple(operators), tuple(names)))
            operators, both = [], needed
        operators.append(op)
        names = both
    if operators or not found:
        found.append(Window(tuple(operators), tuple(names)))
    return found


def _nbytes(block: Block, name: str) -> int:
    tensor = block.tensors[name]
    return storage_bytes(tensor.dtype, tensor.shape or ())
