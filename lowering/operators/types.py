"""The tables of types of TOSA 1.0, by operator family.

Source: TOSA 1.0, "Supported Data Types" of each operator. Rows with `minor=1` are
those of the 1.1 draft that use only types of 1.0.
"""

from __future__ import annotations

from tosavk.core.dtypes import DType
from tosavk.lowering.operators.spec import TypeRow

BOOL = DType.BOOL
I4 = DType.INT4
I8 = DType.INT8
I16 = DType.INT16
I32 = DType.INT32
I48 = DType.INT48
F32 = DType.FP32
F16 = DType.FP16
BF16 = DType.BF16
E4M3 = DType.FP8E4M3
E5M2 = DType.FP8E5M2

EITHER = "PRO-INT or PRO-FP"
INT = "PRO-INT"
FP = "PRO-FP"
EXT_INT4 = "EXT-INT4"
EXT_INT16 = "EXT-INT16"
EXT_BF16 = "EXT-BF16"
EXT_E4M3 = "EXT-FP8E4M3"
EXT_E5M2 = "EXT-FP8E5M2"
EXT_FFT = "EXT-FFT"
EXT_VARIABLE = "EXT-VARIABLE"

Rows = tuple[TypeRow, ...]


def _one(profile: str, *types: DType) -> Rows:
    """Rows of operators whose only type variable takes each of `types`."""
    return tuple(TypeRow(profile, (dtype,)) for dtype in types)


def _rows(profile: str, *rows: tuple[DType, ...], minor: int = 0) -> Rows:
    return tuple(TypeRow(profile, row, minor) for row in rows)


BOOLEANS = _one(EITHER, BOOL)
FLOATS = _one(FP, F16, F32) + _one(EXT_BF16, BF16)
_FP8 = _one(EXT_E4M3, E4M3) + _one(EXT_E5M2, E5M2)
INTEGERS = _one(INT, I8, I16, I32)
SHIFTS = _one(EITHER, I8, I16, I32)
INT32_ONLY = _one(INT, I32)
INTDIV = _one(EITHER, I32)
ARITHMETIC = _one(EITHER, I32) + FLOATS
# Those that need the integer profile for INT32.
EXTREMA = INT32_ONLY + FLOATS
NUMBERS = INTEGERS + FLOATS
LAYOUT = BOOLEANS + NUMBERS + _FP8
SELECT = BOOLEANS + NUMBERS
CONCAT = BOOLEANS + _one(INT, I8, I32) + _one(EXT_INT16, I16) + FLOATS + _FP8
CLAMP = _one(INT, I8) + _one(EXT_INT16, I16) + FLOATS
MAX_POOL = CLAMP + _FP8
GATHER = NUMBERS + _FP8
FFT = _one(EXT_FFT, F32)
DATA = (
    _one(EITHER, BOOL, I8, I16, I32)
    + FLOATS
    + _FP8
    + _one(EXT_INT4, I4)
    + _one(EXT_INT16, I48)
)
VARIABLES = _one(EXT_VARIABLE, I8, F16, F32)

# input, output
ARGMAX = MAX_POOL

# input and zero points, accumulator
AVG_POOL = (
    *_rows(INT, (I8, I32)),
    *_rows(FP, (F16, F16), (F16, F32), (F32, F32)),
    *_rows(EXT_INT16, (I16, I32)),
    *_rows(EXT_BF16, (BF16, F32)),
    *_rows(EXT_E4M3, (E4M3, F16)),
    *_rows(EXT_E5M2, (E5M2, F16)),
)

# input, weight, bias and output, accumulator
CONVOLUTION = (
    *_rows(INT, (I8, I8, I32, I32)),
    *_rows(FP, (F16, F16, F16, F16), (F16, F16, F16, F32), (F32, F32, F32, F32)),
    *_rows(EXT_INT4, (I8, I4, I32, I32)),
    *_rows(EXT_INT16, (I16, I8, I48, I48)),
    *_rows(EXT_BF16, (BF16, BF16, BF16, F32)),
    *_rows(EXT_E4M3, (E4M3, E4M3, F16, F16)),
    *_rows(EXT_E5M2, (E5M2, E5M2, F16, F16)),
)

# A and its zero point, B and its zero point, output
MATMUL = (
    *_rows(INT, (I8, I8, I32)),
    *_rows(FP, (F16, F16, F16), (F16, F16, F32), (F32, F32, F32)),
    *_rows(EXT_INT16, (I16, I16, I48)),
    *_rows(EXT_BF16, (BF16, BF16, F32)),
    *_rows(EXT_E4M3, (E4M3, E4M3, F16)),
    *_rows(EXT_E5M2, (E5M2, E5M2, F16)),
)

# inputs, output
MUL = (
    *_rows(INT, (I8, I32), (I16, I32)),
    *_rows(EITHER, (I32, I32)),
    *_rows(FP, (F16, F16), (F32, F32)),
    *_rows(EXT_BF16, (BF16, BF16)),
)

# input, table, output
TABLE = (*_rows(INT, (I8, I8, I8)), *_rows(EXT_INT16, (I16, I16, I32)))

# input, output
RESIZE = (
    *_rows(INT, (I8, I32), (I8, I8)),
    *_rows(FP, (F16, F16), (F32, F32)),
    *_rows(EXT_INT16, (I16, I48), (I16, I16)),
    *_rows(EXT_BF16, (BF16, BF16)),
)

# input, output
CAST = (
    *_rows(
        INT,
        (BOOL, I8),
        (BOOL, I16),
        (BOOL, I32),
        (I8, BOOL),
        (I8, I16),
        (I8, I32),
        (I16, BOOL),
        (I16, I8),
        (I16, I32),
        (I32, BOOL),
        (I32, I8),
        (I32, I16),
    ),
    *_rows(
        FP,
        (I8, F16),
        (I8, F32),
        (I16, F16),
        (I16, F32),
        (I32, F16),
        (I32, F32),
        (F16, I8),
        (F16, I16),
        (F16, I32),
        (F16, F32),
        (F32, I8),
        (F32, I16),
        (F32, I32),
        (F32, F16),
    ),
    *_rows(
        EXT_BF16,
        (I8, BF16),
        (I16, BF16),
        (I32, BF16),
        (BF16, I8),
        (BF16, I16),
        (BF16, I32),
        (BF16, F32),
        (F32, BF16),
    ),
    *_rows(f"{EXT_BF16} and {EXT_E4M3}", (BF16, E4M3), (E4M3, BF16)),
    *_rows(f"{EXT_BF16} and {EXT_E5M2}", (BF16, E5M2), (E5M2, BF16)),
    *_rows(EXT_E4M3, (E4M3, F16), (E4M3, F32), (F16, E4M3), (F32, E4M3)),
    *_rows(EXT_E5M2, (E5M2, F16), (E5M2, F32), (F16, E5M2), (F32, E5M2)),
    *_rows(FP, (BOOL, F32), (F32, BOOL), minor=1),
)

# input and its zero point, output and its zero point
RESCALE = (
    *_rows(INT, *((x, y) for x in (I8, I16, I32) for y in (I8, I16, I32))),
    *_rows(EXT_INT16, (I48, I8), (I48, I16), (I48, I32)),
)
