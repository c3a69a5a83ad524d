"""The elementwise operators and reductions as methods of the builder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from tosavk.core.dtypes import DType, pack
from tosavk.lowering.graph import Attribute, NanMode, Op, Tensor

Output = tuple[DType, tuple[int, ...]]

_BOUND_BYTES = 8


class ElementwiseMethods(ABC):
    """The elementwise operators and reductions of TOSA 1.0 as methods.

    Operands are values of the builder; zero points and shifts that are left out are
    zero. Every method takes `name`, the name of its output.
    """

    @abstractmethod
    def op(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        *,
        name: str | None = None,
        dtype: DType | None = None,
        shape: Sequence[int] | None = None,
        **attributes: Attribute | Sequence[int],
    ) -> Tensor:
        """Adds an operator that has one output."""

    @abstractmethod
    def op_list(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        *,
        names: Sequence[str] | None = None,
        outputs: Sequence[Output] | None = None,
        **attributes: Attribute | Sequence[int],
    ) -> tuple[Tensor, ...]:
        """Adds an operator with any number of outputs."""

    @abstractmethod
    def zero(self, dtype: DType) -> Tensor:
        """A zero of shape [1]."""

    def zero_or(self, value: Tensor | None, dtype: DType) -> Tensor:
        """The value, or a zero of shape [1] where there is none."""
        return self.zero(dtype) if value is None else value

    # Activation functions and elementwise operators.

    def clamp(
        self,
        x: Tensor,
        min_val: float,
        max_val: float,
        *,
        nan_mode: NanMode = NanMode.PROPAGATE,
        name: str | None = None,
    ) -> Tensor:
        """CLAMP to bounds given as numbers."""

        def raw(bound: float) -> bytes:
            value = int(bound) if x.dtype.is_integer else bound
            packed = bytes(pack(x.dtype, np.array(value, x.dtype.numpy)))
            # Serialized bounds take eight bytes, whatever their type.
            return packed.ljust(_BOUND_BYTES, b"\0")

        return self.op(
            Op.CLAMP,
            [x],
            name=name,
            min_val=raw(min_val),
            max_val=raw(max_val),
            nan_mode=nan_mode,
        )

    def erf(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """ERF."""
        return self.op(Op.ERF, [x], name=name)

    def sigmoid(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """SIGMOID."""
        return self.op(Op.SIGMOID, [x], name=name)

    def tanh(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """TANH."""
        return self.op(Op.TANH, [x], name=name)

    def abs(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """ABS."""
        return self.op(Op.ABS, [x], name=name)

    def bitwise_not(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """BITWISE_NOT."""
        return self.op(Op.BITWISE_NOT, [x], name=name)

    def ceil(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """CEIL."""
        return self.op(Op.CEIL, [x], name=name)

    def clz(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """CLZ."""
        return self.op(Op.CLZ, [x], name=name)

    def cos(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """COS."""
        return self.op(Op.COS, [x], name=name)

    def exp(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """EXP."""
        return self.op(Op.EXP, [x], name=name)

    def floor(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """FLOOR."""
        return self.op(Op.FLOOR, [x], name=name)

    def log(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """LOG."""
        return self.op(Op.LOG, [x], name=name)

    def logical_not(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """LOGICAL_NOT."""
        return self.op(Op.LOGICAL_NOT, [x], name=name)

    def reciprocal(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """RECIPROCAL."""
        return self.op(Op.RECIPROCAL, [x], name=name)

    def rsqrt(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """RSQRT."""
        return self.op(Op.RSQRT, [x], name=name)

    def sin(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """SIN."""
        return self.op(Op.SIN, [x], name=name)

    def add(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """ADD."""
        return self.op(Op.ADD, [a, b], name=name)

    def bitwise_and(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """BITWISE_AND."""
        return self.op(Op.BITWISE_AND, [a, b], name=name)

    def bitwise_or(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """BITWISE_OR."""
        return self.op(Op.BITWISE_OR, [a, b], name=name)

    def bitwise_xor(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """BITWISE_XOR."""
        return self.op(Op.BITWISE_XOR, [a, b], name=name)

    def intdiv(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """INTDIV."""
        return self.op(Op.INTDIV, [a, b], name=name)

    def logical_and(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """LOGICAL_AND."""
        return self.op(Op.LOGICAL_AND, [a, b], name=name)

    def logical_left_shift(
        self, a: Tensor, b: Tensor, *, name: str | None = None
    ) -> Tensor:
        """LOGICAL_LEFT_SHIFT."""
        return self.op(Op.LOGICAL_LEFT_SHIFT, [a, b], name=name)

    def logical_right_shift(
        self, a: Tensor, b: Tensor, *, name: str | None = None
    ) -> Tensor:
        """LOGICAL_RIGHT_SHIFT."""
        return self.op(Op.LOGICAL_RIGHT_SHIFT, [a, b], name=name)

    def logical_or(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """LOGICAL_OR."""
        return self.op(Op.LOGICAL_OR, [a, b], name=name)

    def logical_xor(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """LOGICAL_XOR."""
        return self.op(Op.LOGICAL_XOR, [a, b], name=name)

    def pow(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """POW."""
        return self.op(Op.POW, [a, b], name=name)

    def sub(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """SUB."""
        return self.op(Op.SUB, [a, b], name=name)

    def equal(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """EQUAL."""
        return self.op(Op.EQUAL, [a, b], name=name)

    def greater(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """GREATER."""
        return self.op(Op.GREATER, [a, b], name=name)

    def greater_equal(self, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        """GREATER_EQUAL."""
        return self.op(Op.GREATER_EQUAL, [a, b], name=name)

    def arithmetic_right_shift(
        self, a: Tensor, b: Tensor, *, round: bool = False, name: str | None = None
    ) -> Tensor:
        """ARITHMETIC_RIGHT_SHIFT."""
        return self.op(Op.ARITHMETIC_RIGHT_SHIFT, [a, b], name=name, round=round)

    def maximum(
        self,
        a: Tensor,
        b: Tensor,
        *,
        nan_mode: NanMode = NanMode.PROPAGATE,
        name: str | None = None,
    ) -> Tensor:
        """MAXIMUM."""
        return self.op(Op.MAXIMUM, [a, b], name=name, nan_mode=nan_mode)

    def minimum(
        self,
        a: Tensor,
        b: Tensor,
        *,
        nan_mode: NanMode = NanMode.PROPAGATE,
        name: str | None = None,
    ) -> Tensor:
        """MINIMUM."""
        return self.op(Op.MINIMUM, [a, b], name=name, nan_mode=nan_mode)

    def mul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        shift: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """MUL; `shift` (INT8, shape [1]) scales INT32 products down."""
        return self.op(Op.MUL, [a, b, self.zero_or(shift, DType.INT8)], name=name)

    def table(self, x: Tensor, table: Tensor, *, name: str | None = None) -> Tensor:
        """TABLE: 256 entries for INT8, 513 for INT16."""
        return self.op(Op.TABLE, [x, table], name=name)

    def negate(
        self,
        x: Tensor,
        *,
        input_zp: Tensor | None = None,
        output_zp: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """NEGATE."""
        zero_points = [
            self.zero_or(input_zp, x.dtype),
            self.zero_or(output_zp, x.dtype),
        ]
        return self.op(Op.NEGATE, [x, *zero_points], name=name)

    def select(
        self, condition: Tensor, a: Tensor, b: Tensor, *, name: str | None = None
    ) -> Tensor:
        """SELECT: `a` where the condition holds, else `b`."""
        return self.op(Op.SELECT, [condition, a, b], name=name)

    # Reductions.

    def reduce_all(self, x: Tensor, axis: int, *, name: str | None = None) -> Tensor:
        """REDUCE_ALL."""
        return self.op(Op.REDUCE_ALL, [x], name=name, axis=axis)

    def reduce_any(self, x: Tensor, axis: int, *, name: str | None = None) -> Tensor:
        """REDUCE_ANY."""
        return self.op(Op.REDUCE_ANY, [x], name=name, axis=axis)

    def reduce_product(
        self, x: Tensor, axis: int, *, name: str | None = None
    ) -> Tensor:
        """REDUCE_PRODUCT."""
        return self.op(Op.REDUCE_PRODUCT, [x], name=name, axis=axis)

    def reduce_sum(self, x: Tensor, axis: int, *, name: str | None = None) -> Tensor:
        """REDUCE_SUM."""
        return self.op(Op.REDUCE_SUM, [x], name=name, axis=axis)

    def reduce_max(
        self,
        x: Tensor,
        axis: int,
        *,
        nan_mode: NanMode = NanMode.PROPAGATE,
        name: str | None = None,
    ) -> Tensor:
        """REDUCE_MAX."""
        return self.op(Op.REDUCE_MAX, [x], name=name, axis=axis, nan_mode=nan_mode)

    def reduce_min(
        self,
        x: Tensor,
        axis: int,
        *,
        nan_mode: NanMode = NanMode.PROPAGATE,
        name: str | None = None,
    ) -> Tensor:
        """REDUCE_MIN."""
        return self.op(Op.REDUCE_MIN, [x], name=name, axis=axis, nan_mode=nan_mode)
