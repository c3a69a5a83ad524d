"""A recipe: an operator with one combination of types."""

from __future__ import annotations

from dataclasses import dataclass

from tosavk.core.dtypes import DType
from tosavk.lowering.graph import NanMode, Op
from tosavk.lowering.operators import SPECS


@dataclass(frozen=True, slots=True)
class Recipe:
    """An operator with the types of one row of its table.

    Attributes:
        op: the operator.
        types: by type variable of its specification.
        variant: small number that chooses between structures (modes, kinds of
            broadcasting), since each costs a pipeline.
    """

    op: Op
    types: tuple[tuple[str, DType], ...]
    variant: int = 0

    def dtype(self, variable: str = "T") -> DType:
        """The type that a variable stands for."""
        return dict(self.types)[variable]

    @property
    def nan_mode(self) -> NanMode:
        """One of the two modes, by variant."""
        return NanMode.IGNORE if self.variant % 2 else NanMode.PROPAGATE

    @property
    def reads(self) -> DType:
        """Type of the first operand."""
        operand = SPECS[self.op].input(0).types
        return operand if isinstance(operand, DType) else self.dtype(str(operand))

    def __str__(self) -> str:
        """Such as `CAST FP32 INT8`."""
        return " ".join((self.op.name, *(dtype.name for _, dtype in self.types)))
