"""The tables of the TOSA flatbuffer schema (tosa.fbs), as data.

A table is a tuple of fields in slot order. Unions take two slots: the tag, a byte, and
the offset. Source: the schema of the TOSA serialization library; fields are never
removed or moved there, so that older files keep their meaning.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tosavk.lowering.graph import Op

FILE_IDENTIFIER = b"TOSA"
SUPPORTED_VERSIONS = "1.0.x and 1.1.0"

UNKNOWN_DIMENSION = -1


class FieldKind(enum.Enum):
    """How a field lies in its table."""

    BOOL = enum.auto()
    TAG = enum.auto()
    I32 = enum.auto()
    U32 = enum.auto()
    U64 = enum.auto()
    DTYPE = enum.auto()
    STRING = enum.auto()
    TABLE = enum.auto()
    VECTOR = enum.auto()
    BYTES = enum.auto()
    INTS = enum.auto()

    @property
    def code(self) -> str:
        """The struct code of the inline part; an offset is a 32-bit word."""
        return _CODES.get(self, "I")

    @property
    def is_offset(self) -> bool:
        """Whether the inline part is an offset to something else."""
        return self in _OFFSETS


_CODES = {
    FieldKind.BOOL: "B",
    FieldKind.TAG: "B",
    FieldKind.I32: "i",
    FieldKind.U64: "Q",
}
_OFFSETS = frozenset(
    {
        FieldKind.STRING,
        FieldKind.TABLE,
        FieldKind.VECTOR,
        FieldKind.BYTES,
        FieldKind.INTS,
    }
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a table.

    Attributes:
        name: the schema's name.
        kind: how it is stored.
        default: its value where the table leaves it out (0 for offsets: absent).
    """

    name: str
    kind: FieldKind
    default: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A kind of table; equal only to itself, and so cheap to look up.

    Attributes:
        name: the schema's name.
        fields: in slot order.
    """

    name: str
    fields: tuple[Field, ...] = ()


_I32 = FieldKind.I32
_U32 = FieldKind.U32
_U64 = FieldKind.U64
_BOOL = FieldKind.BOOL
_DTYPE = FieldKind.DTYPE
_STRING = FieldKind.STRING
_TABLE = FieldKind.TABLE
_VECTOR = FieldKind.VECTOR
_BYTES = FieldKind.BYTES
_INTS = FieldKind.INTS

GRAPH = Table(
    "TosaGraph",
    (
        Field("version", _TABLE),
        Field("regions", _VECTOR),
        Field("software_version", _TABLE),
        Field("compatibility", _TABLE),
    ),
)
VERSION = Table(
    "Version",
    (
        Field("_major", _I32, -1),
        Field("_minor", _I32, -1),
        Field("_patch", _I32, -1),
        Field("_draft", _BOOL, 1),
    ),
)
COMPATIBILITY = Table(
    "SerializationCompatibility",
    (Field("min_reader_version", _TABLE), Field("features", _U64)),
)
REGION = Table("TosaRegion", (Field("name", _STRING), Field("blocks", _VECTOR)))
BLOCK = Table(
    "TosaBasicBlock",
    (
        Field("name", _STRING),
        Field("operators", _VECTOR),
        Field("tensors", _VECTOR),
        Field("inputs", _VECTOR),
        Field("outputs", _VECTOR),
        Field("shapes", _VECTOR),
    ),
)
TENSOR = Table(
    "TosaTensor",
    (
        Field("name", _STRING),
        Field("shape", _INTS),
        Field("type", _U32),
        Field("data", _BYTES),
        Field("variable", _BOOL),
        Field("is_unranked", _BOOL),
        Field("variable_name", _STRING),
        Field("offset", _U64),
        Field("size", _U64),
        Field("scale_type", _U32),
    ),
)
SHAPE = Table(
    "TosaShape",
    (Field("name", _STRING), Field("rank", _U32), Field("data", _BYTES)),
)
OPERATOR = Table(
    "TosaOperator",
    (
        Field("op", _U32),
        Field("attribute_type", FieldKind.TAG),
        Field("attribute", _TABLE),
        Field("inputs", _VECTOR),
        Field("outputs", _VECTOR),
        Field("location", _TABLE),
    ),
)
LOCATION = Table("OpLocation", (Field("text", _STRING),))

_AXIS = (Field("axis", _I32),)
_NAN = (Field("nan_mode", _U32),)
_CONVOLUTION = (
    Field("pad", _INTS),
    Field("stride", _INTS),
    Field("dilation", _INTS),
    Field("local_bound", _BOOL),
    Field("acc_type", _DTYPE),
)
_WINDOW = (
    Field("kernel", _INTS),
    Field("stride", _INTS),
    Field("pad", _INTS),
)

# Operators that are not listed have an attribute table without fields.
_FIELDS: dict[Op, tuple[Field, ...]] = {
    Op.ARGMAX: _AXIS + _NAN,
    Op.AVG_POOL2D: (*_WINDOW, Field("acc_type", _DTYPE)),
    Op.CONV2D: _CONVOLUTION,
    Op.CONV3D: _CONVOLUTION,
    Op.DEPTHWISE_CONV2D: _CONVOLUTION,
    Op.FFT2D: (Field("inverse", _BOOL), Field("local_bound", _BOOL)),
    Op.MAX_POOL2D: _WINDOW + _NAN,
    Op.RFFT2D: (Field("local_bound", _BOOL),),
    Op.TRANSPOSE_CONV2D: (
        Field("out_pad", _INTS),
        Field("stride", _INTS),
        Field("local_bound", _BOOL),
        Field("acc_type", _DTYPE),
    ),
    Op.CLAMP: (Field("min_val", _BYTES), Field("max_val", _BYTES), *_NAN),
    Op.ARITHMETIC_RIGHT_SHIFT: (Field("round", _BOOL),),
    Op.MAXIMUM: _NAN,
    Op.MINIMUM: _NAN,
    Op.REDUCE_ALL: _AXIS,
    Op.REDUCE_ANY: _AXIS,
    Op.REDUCE_MAX: _AXIS + _NAN,
    Op.REDUCE_MIN: _AXIS + _NAN,
    Op.REDUCE_PRODUCT: _AXIS,
    Op.REDUCE_SUM: _AXIS,
    Op.CONCAT: _AXIS,
    Op.REVERSE: _AXIS,
    Op.TRANSPOSE: (Field("perms", _INTS),),
    Op.RESIZE: (Field("mode", _U32),),
    Op.RESCALE: (
        Field("scale32", _BOOL),
        Field("rounding_mode", _U32),
        Field("per_channel", _BOOL),
        Field("input_unsigned", _BOOL),
        Field("output_unsigned", _BOOL),
    ),
    Op.CUSTOM: (
        Field("operator_name", _STRING),
        Field("domain_name", _STRING),
        Field("implementation_attrs", _BYTES),
    ),
    Op.COND_IF: (Field("then_graph", _STRING), Field("else_graph", _STRING)),
    Op.WHILE_LOOP: (Field("cond_graph", _STRING), Field("body_graph", _STRING)),
}

# The attribute table of each operator.
ATTRIBUTES: dict[Op, Table] = {
    op: Table(f"{op.name} attribute", _FIELDS.get(op, ())) for op in Op
}

# What later versions of the schema added; named in messages, never run.
LATER_DTYPES: dict[int, str] = {
    13: "FP6E2M3",
    14: "FP6E3M2",
    15: "FP4E2M1",
    16: "FP8UE8M0",
    17: "INT64",
    18: "MXINT8",
}
LATER_OPERATORS: dict[int, str] = {
    76: "MATMUL_T_BLOCK_SCALED",
    77: "CAST_FROM_BLOCK_SCALED",
    78: "CAST_TO_BLOCK_SCALED",
    79: "DIM",
    80: "CONCAT_SHAPE",
    81: "ADD_SHAPE",
    82: "SUB_SHAPE",
    83: "MUL_SHAPE",
    84: "SLICE_SHAPE",
    85: "EXP2_SHAPE",
    86: "LOG2_CEIL_SHAPE",
    87: "LOG2_FLOOR_SHAPE",
    88: "MAX_SHAPE",
    89: "MIN_SHAPE",
    90: "MOD_SHAPE",
    91: "DIV_CEIL_SHAPE",
    92: "DIV_FLOOR_SHAPE",
    93: "ASSERT_EQUAL_SHAPE",
    94: "CONV2D_BLOCK_SCALED",
    95: "MAX_POOL2D_ADAPTIVE",
    96: "AVG_POOL2D_ADAPTIVE",
    97: "RESHAPE_BLOCK_SCALED",
    98: "ROW_GATHER_BLOCK_SCALED",
    99: "ROW_GATHER",
    100: "MATMUL_T",
}
