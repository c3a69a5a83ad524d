"""The graph: a TOSA program as frozen Python data, after reading, before lowering.

Names are those of the file; nothing is renamed. Constants are byte views of the file.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tosavk.core.dtypes import DType

Attribute = int | bool | str | bytes | DType | tuple[int, ...]


class Op(enum.IntEnum):
    """A TOSA 1.0 operator; the value is its id in the flatbuffer schema."""

    ARGMAX = 1
    AVG_POOL2D = 2
    CONV2D = 3
    CONV3D = 4
    DEPTHWISE_CONV2D = 5
    FFT2D = 6
    MATMUL = 7
    MAX_POOL2D = 8
    RFFT2D = 9
    TRANSPOSE_CONV2D = 10
    CLAMP = 11
    ERF = 12
    SIGMOID = 13
    TANH = 14
    ADD = 15
    ARITHMETIC_RIGHT_SHIFT = 16
    BITWISE_AND = 17
    BITWISE_OR = 18
    BITWISE_XOR = 19
    INTDIV = 20
    LOGICAL_AND = 21
    LOGICAL_LEFT_SHIFT = 22
    LOGICAL_RIGHT_SHIFT = 23
    LOGICAL_OR = 24
    LOGICAL_XOR = 25
    MAXIMUM = 26
    MINIMUM = 27
    MUL = 28
    POW = 29
    SUB = 30
    TABLE = 31
    ABS = 32
    BITWISE_NOT = 33
    CEIL = 34
    CLZ = 35
    COS = 36
    EXP = 37
    FLOOR = 38
    LOG = 39
    LOGICAL_NOT = 40
    NEGATE = 41
    RECIPROCAL = 42
    RSQRT = 43
    SIN = 44
    SELECT = 45
    EQUAL = 46
    GREATER = 47
    GREATER_EQUAL = 48
    REDUCE_ALL = 49
    REDUCE_ANY = 50
    REDUCE_MAX = 51
    REDUCE_MIN = 52
    REDUCE_PRODUCT = 53
    REDUCE_SUM = 54
    CONCAT = 55
    PAD = 56
    RESHAPE = 57
    REVERSE = 58
    SLICE = 59
    TILE = 60
    TRANSPOSE = 61
    GATHER = 62
    SCATTER = 63
    RESIZE = 64
    CAST = 65
    RESCALE = 66
    CONST = 67
    IDENTITY = 68
    CUSTOM = 69
    COND_IF = 70
    WHILE_LOOP = 71
    VARIABLE = 72
    VARIABLE_WRITE = 73
    VARIABLE_READ = 74
    CONST_SHAPE = 75


class NanMode(enum.IntEnum):
    """TOSA nan_propagation_mode_t."""

    PROPAGATE = 1
    IGNORE = 2


class ResizeMode(enum.IntEnum):
    """TOSA resize_mode_t."""

    NEAREST = 1
    BILINEAR = 2


class RoundingMode(enum.IntEnum):
    """TOSA rounding_mode_t."""

    SINGLE_ROUND = 1
    INEXACT_ROUND = 2
    DOUBLE_ROUND = 3


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, or a shape value (dtype SHAPE), of one block.

    Attributes:
        name: unique in its block.
        dtype: element type; SHAPE for shape values.
        shape: dimensions, -1 where the file leaves one open; None if unranked. A shape
            value of rank r has shape (r,).
        data: constant bytes in serialized form (docs: core.dtypes), or None. Longer
            than needed is allowed (padding); shorter never occurs.
        variable: whether it is a VARIABLE tensor.
        variable_name: the variable's name, or "".
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    data: memoryview | None = None
    variable: bool = False
    variable_name: str = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    Attributes:
        index: position in its block's operator list.
        op: which operator.
        inputs: tensor names in order.
        outputs: tensor names in order.
        attributes: by the schema's field names ("axis", "nan_mode", "kernel", "pad",
            "stride", "dilation", "acc_type", "min_val", ...): int (enumerations and
            axes), bool, DType (acc_type), str, bytes (min_val, max_val,
            implementation_attrs) or tuple of int.
        location: source location from the file, or "".
    """

    index: int
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    location: str = ""

    def __str__(self) -> str:
        where = f" ({self.outputs[0]!r})" if self.outputs else ""
        return f"operator {self.index} {self.op.name}{where}"


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block: operators in file order, tensors by name."""

    name: str
    operators: tuple[Operator, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A region: its blocks, the first one is entered."""

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Version:
    """Version of the TOSA specification a file was written for."""

    major: int
    minor: int
    patch: int
    draft: bool

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + ("-draft" * self.draft)


@dataclass(frozen=True, slots=True)
class Graph:
    """A TOSA program. The region "main" (or the only one) is the entry."""

    version: Version
    regions: tuple[Region, ...]

    @property
    def main(self) -> Block:
        """The entry block."""
        for region in self.regions:
            if region.name == "main":
                return region.blocks[0]
        return self.regions[0].blocks[0]
