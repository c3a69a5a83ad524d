"""One operator about to be evaluated, as the operator functions see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from tosavk.backends.reference.values import Array, integer_range
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import NanMode, Operator, Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its operands.

    Attributes:
        operator: the operator.
        operands: one array an input: widened (`values.widen`), or as stored for the
            operators that only move data.
        types: TOSA types of the operands.
        results: the result tensors as the graph declares them.
        notes: reasons why TOSA leaves the result open; operator functions add to it.
    """

    operator: Operator
    operands: tuple[Array, ...]
    types: tuple[DType, ...]
    results: tuple[Tensor, ...]
    notes: list[str] = field(default_factory=list[str])

    def __getitem__(self, index: int) -> Array:
        return self.operands[index]

    @property
    def dtype(self) -> DType:
        """Type of the first operand."""
        return self.types[0]

    @property
    def out_type(self) -> DType:
        """Type of the first result."""
        return self.results[0].dtype

    def integer(self, name: str) -> int:
        """An integer attribute; 0, the schema's default, where the file has none."""
        return int(cast("int", self.operator.attributes.get(name, 0)))

    def flag(self, name: str) -> bool:
        """A Boolean attribute; false where the file has none."""
        return bool(self.operator.attributes.get(name, False))

    def numbers(self, name: str) -> tuple[int, ...]:
        """An integer list attribute; empty where the file has none."""
        value = self.operator.attributes.get(name, ())
        return tuple(int(v) for v in cast("tuple[int, ...]", value))

    @property
    def propagate(self) -> bool:
        """Whether NaN operands make NaN results (NAN mode PROPAGATE)."""
        return self.integer("nan_mode") != NanMode.IGNORE

    def scalar(self, index: int) -> int:
        """A zero point or shift operand of one element; 0 if there is none."""
        if index >= len(self.operands):
            return 0
        return int(self.operands[index].reshape(-1)[0])

    def sizes(self, index: int) -> tuple[int, ...]:
        """A SHAPE operand as a tuple."""
        return tuple(int(v) for v in self.operands[index].reshape(-1))

    def unpredictable_if(self, condition: object, reason: str) -> None:
        """Notes that a REQUIRE of the specification does not hold."""
        if bool(np.any(np.asarray(condition))):
            self.notes.append(reason)

    def check_range(self, result: Array, dtype: DType) -> Array:
        """Passes an integer result through, noting overflow of `dtype`."""
        low, high = integer_range(dtype)
        if result.size:
            self.unpredictable_if(
                bool(result.min() < low) or bool(result.max() > high),
                f"the {dtype.name} result overflows",
            )
        return result


Handler = Callable[[Call], list[Array]]
