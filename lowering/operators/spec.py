"""What a specification of an operator consists of.

The specifications themselves are data, in `tosavk.lowering.operators.table`; the rules
that data cannot say are functions of a `Call`, in one file a family.
"""

from __future__ import annotations

import enum
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, unpack_serialized
from tosavk.lowering.errors import Kind, VerifyError
from tosavk.lowering.graph import Attribute, Op, Operator, Tensor

Shape = tuple[int, ...]

# Limits of level 8K, the only level.
MAX_RANK = 6
MAX_KERNEL = 8192
MAX_STRIDE = 8192
MAX_SCALE = 256
MAX_TENSOR_BYTES = (1 << 31) - 1
MAX_TENSOR_LIST = 64
MAX_NESTING = 6
# Twice the rank: PAD has two numbers for each dimension.
MAX_SHAPE_LENGTH = 16


class OperandKind(enum.Enum):
    """What an operand may be."""

    TENSOR = "tensor"
    SHAPE = "shape"
    ANY = "tensor or shape"


class Origin(enum.StrEnum):
    """Where the value of an operand comes from, as messages say it."""

    CONSTANT = "constant"
    INPUT = "input"
    COMPUTED = "computed tensor"


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an operator.

    Attributes:
        name: TOSA's name, for messages.
        types: its type variable (the column of the type rows), or the one type it has;
            None where no row restricts it.
        ranks: least and greatest rank.
        kind: tensor or shape value.
        constant: whether it must be known at compile time, unless the extension
            EXT-DYNAMIC allows otherwise.
        single: whether its shape is [1].
    """

    name: str
    types: str | DType | None = "T"
    ranks: tuple[int, int] = (0, MAX_RANK)
    kind: OperandKind = OperandKind.TENSOR
    constant: bool = False
    single: bool = False


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One row of an operator's table of types.

    Attributes:
        profile: the profile or extension that has it, for messages.
        types: one for each type variable of the operator.
        minor: the minor version of TOSA 1 that has it.
    """

    profile: str
    types: tuple[DType, ...]
    minor: int = 0


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a region, for the operators of control flow."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One operator with its operands, all of known shape.

    Attributes:
        operator: the operator.
        inputs: its input tensors; those with `data` are compile-time constants.
        outputs: its declared output types.
        regions: the signatures of the regions it calls, by name.
        origins: where values of inputs come from that are no constants of the file.
    """

    operator: Operator
    inputs: tuple[Tensor, ...]
    outputs: tuple[DType, ...] = ()
    regions: Mapping[str, Signature] = field(default_factory=dict[str, Signature])
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])

    def dtype(self, position: int) -> DType:
        """Type of an input."""
        return self.inputs[position].dtype

    def shape(self, position: int) -> Shape:
        """Shape of an input."""
        shape = self.inputs[position].shape
        if shape is None:
            raise self.error(
                Kind.UNKNOWN_SHAPE,
                f"the shape of {self.inputs[position].name!r} is not known",
                position,
            )
        return shape

    def value(self, position: int) -> NDArray[np.generic] | None:
        """Value of an input where it is known, as that of a constant is, else None."""
        tensor = self.inputs[position]
        if tensor.data is None or tensor.shape is None:
            return None
        return unpack_serialized(tensor.dtype, tensor.data, tensor.shape)

    def numbers(self, position: int) -> tuple[int, ...]:
        """The numbers of a shape operand.

        Raises:
            VerifyError: they are not known at compile time.
        """
        value = self.value(position)
        if value is None:
            raise self.error(
                Kind.CONSTANT_REQUIRED,
                f"{self.inputs[position].name!r} must be a CONST_SHAPE",
                position,
            )
        return tuple(int(number) for number in value)

    def integer(self, name: str) -> int:
        """An attribute that is a number."""
        value = self._attribute(name)
        if not isinstance(value, int):
            raise self.bad_attribute(name, "must be a number")
        return int(value)

    def flag(self, name: str) -> bool:
        """An attribute that is a Boolean."""
        return bool(self._attribute(name))

    def integers(self, name: str, count: int) -> tuple[int, ...]:
        """An attribute that is a list of `count` numbers."""
        value = self._attribute(name)
        if not isinstance(value, tuple) or len(value) != count:
            raise self.bad_attribute(name, f"must have {count} numbers")
        return value

    def text(self, name: str) -> str:
        """An attribute that is a string."""
        value = self._attribute(name)
        if not isinstance(value, str):
            raise self.bad_attribute(name, "must be a string")
        return value

    def raw(self, name: str) -> bytes:
        """An attribute that is bytes."""
        value = self._attribute(name)
        if not isinstance(value, bytes):
            raise self.bad_attribute(name, "must be bytes")
        return value

    def _attribute(self, name: str) -> Attribute:
        try:
            return self.operator.attributes[name]
        except KeyError:
            raise self.bad_attribute(name, "is missing") from None

    def error(
        self, kind: Kind, message: str, operand: int | None = None
    ) -> VerifyError:
        """An error about this operator, and one of its inputs if given."""
        return VerifyError(
            f"{self.operator}: {message}",
            kind=kind,
            operator=self.operator,
            tensor=None if operand is None else self.inputs[operand].name,
        )

    def bad_attribute(self, name: str, message: str) -> VerifyError:
        """An error about an attribute."""
        value = self.operator.attributes.get(name)
        return self.error(
            Kind.INVALID_ATTRIBUTE, f"attribute {name}={reprlib.repr(value)} {message}"
        )

    def bad_shape(self, message: str, operand: int | None = None) -> VerifyError:
        """An error about a shape."""
        return self.error(Kind.INVALID_SHAPE, message, operand)

    def bad_value(self, operand: int, message: str) -> VerifyError:
        """An error about the value of an input: a constant, or one of run time."""
        name = self.inputs[operand].name
        origin = self.origins.get(name, Origin.CONSTANT)
        return self.error(
            Kind.INVALID_CONSTANT_DATA, f"{origin.value} {name!r} {message}", operand
        )


Check = Callable[[Call], None]
ShapeRule = Callable[[Call], tuple[Shape, ...]]
TypeRule = Callable[[Call], tuple[DType, ...]]


def no_check(call: Call) -> None:
    """The rule of operators that have no further rule."""


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """The specification of one operator.

    Attributes:
        op: the operator.
        inputs: its input operands; of a variadic operator the last one repeats.
        outputs: its output operands; of a variadic operator the last one repeats.
        variables: names of the type variables, the columns of `rows`. A variable named
            like an attribute ("acc_type") stands for that attribute.
        rows: the allowed combinations of types.
        shapes: gives the shapes of the outputs, and checks those of the inputs.
        attributes: checks the attributes.
        constants: checks the values of inputs, as far as they are known.
        types: gives the types of the outputs where rows cannot.
        variadic: whether the last input and output may occur any number of times.
        least_inputs: how many inputs it has at least; all that are listed by default.
        least_outputs: the same for outputs.
    """

    op: Op
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    rows: tuple[TypeRow, ...]
    shapes: ShapeRule
    variables: tuple[str, ...] = ("T",)
    attributes: Check = no_check
    constants: Check = no_check
    types: TypeRule | None = None
    variadic: bool = False
    least_inputs: int = -1
    least_outputs: int = -1

    def __post_init__(self) -> None:
        """Fills in the least numbers of operands."""
        if self.least_inputs < 0:
            object.__setattr__(self, "least_inputs", len(self.inputs))
        if self.least_outputs < 0:
            object.__setattr__(self, "least_outputs", len(self.outputs))

    def input(self, position: int) -> Operand:
        """The specification of an input."""
        return self.inputs[min(position, len(self.inputs) - 1)]

    def output(self, position: int) -> Operand:
        """The specification of an output."""
        return self.outputs[min(position, len(self.outputs) - 1)]


def plural(count: int, what: str) -> str:
    """A number with its noun."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def text_of(shape: Shape | None) -> str:
    """A shape for people: 1x76x32x1, with ? for what is not known."""
    if shape is None:
        return "unranked"
    if not shape:
        return "scalar"
    return "x".join("?" if size < 0 else str(size) for size in shape)
