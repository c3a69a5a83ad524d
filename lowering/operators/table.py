"""The table of all operators of TOSA 1.0.

Source: TOSA 1.0, chapter 2. Each entry says what operands the operator has, in the
order of the flatbuffer, which ranks and types they may have, and which functions check
the rest.
"""

from __future__ import annotations

from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Op
from tosavk.lowering.operators import (
    control,
    conversion,
    elementwise,
    layout,
    matrix,
    reduction,
    types,
    window,
)
from tosavk.lowering.operators.spec import (
    MAX_RANK,
    Check,
    Operand,
    OperandKind,
    OperatorSpec,
    ShapeRule,
)

_ANY_RANK = (0, MAX_RANK)
_AT_LEAST_1 = (1, MAX_RANK)
_X = Operand("input1")
_A = Operand("input1")
_B = Operand("input2")
_Y = Operand("output")
_BOOL_OUT = Operand("output", DType.BOOL)
_X1 = Operand("input", ranks=_AT_LEAST_1)
_Y1 = Operand("output", ranks=_AT_LEAST_1)


def _zero_point(name: str, variable: str = "T") -> Operand:
    return Operand(name, variable, ranks=(1, 1), constant=True, single=True)


def _shape(name: str) -> Operand:
    return Operand(name, None, (1, 1), OperandKind.SHAPE, constant=True)


def _unary(op: Op, rows: types.Rows = types.FLOATS) -> OperatorSpec:
    return OperatorSpec(op, (_X,), (_Y,), rows, elementwise.same_shape)


def _binary(op: Op, rows: types.Rows, output: Operand = _Y) -> OperatorSpec:
    return OperatorSpec(op, (_A, _B), (output,), rows, elementwise.broadcast_first_two)


def _extremum(op: Op) -> OperatorSpec:
    return OperatorSpec(
        op,
        (_A, _B),
        (_Y,),
        types.EXTREMA,
        elementwise.broadcast_first_two,
        attributes=elementwise.check_nan_mode,
    )


def _shift(op: Op, rows: types.Rows) -> OperatorSpec:
    return OperatorSpec(
        op,
        (_A, _B),
        (_Y,),
        rows,
        elementwise.broadcast_first_two,
        constants=elementwise.check_shift_amounts,
    )


def _reduce(op: Op, rows: types.Rows) -> OperatorSpec:
    return OperatorSpec(
        op,
        (_X1,),
        (_Y1,),
        rows,
        reduction.keep_axis,
        attributes=reduction.check_axis,
    )


def _reduce_extremum(op: Op) -> OperatorSpec:
    return OperatorSpec(
        op,
        (_X1,),
        (_Y1,),
        types.NUMBERS,
        reduction.keep_axis,
        attributes=reduction.check_axis_and_nan_mode,
    )


def _convolution(
    op: Op,
    rank: int,
    shapes: ShapeRule,
    attributes: Check,
) -> OperatorSpec:
    return OperatorSpec(
        op,
        (
            Operand("input", "I", (rank, rank)),
            Operand("weight", "W", (rank, rank)),
            Operand("bias", "O", (1, 1)),
            _zero_point("input_zp", "I"),
            _zero_point("weight_zp", "W"),
        ),
        (Operand("output", "O", (rank, rank)),),
        types.CONVOLUTION,
        shapes,
        variables=("I", "W", "O", "acc_type"),
        attributes=attributes,
        constants=window.check_convolution_zero_points,
    )


_TENSOR_OPERATORS = (
    OperatorSpec(
        Op.ARGMAX,
        (_X1,),
        (Operand("output", DType.INT32, (0, MAX_RANK - 1)),),
        types.ARGMAX,
        reduction.drop_axis,
        attributes=reduction.check_axis_and_nan_mode,
    ),
    OperatorSpec(
        Op.AVG_POOL2D,
        (
            Operand("input", ranks=(4, 4)),
            _zero_point("input_zp"),
            _zero_point("output_zp"),
        ),
        (Operand("output", ranks=(4, 4)),),
        types.AVG_POOL,
        window.pool,
        variables=("T", "acc_type"),
        attributes=window.check_pool,
        constants=window.check_pool_zero_points,
    ),
    _convolution(Op.CONV2D, 4, window.conv2d, window.check_conv2d),
    _convolution(Op.CONV3D, 5, window.conv3d, window.check_conv3d),
    _convolution(Op.DEPTHWISE_CONV2D, 4, window.depthwise_conv2d, window.check_conv2d),
    OperatorSpec(
        Op.FFT2D,
        (Operand("input_real", ranks=(3, 3)), Operand("input_imag", ranks=(3, 3))),
        (Operand("output_real", ranks=(3, 3)), Operand("output_imag", ranks=(3, 3))),
        types.FFT,
        matrix.fft2d,
    ),
    OperatorSpec(
        Op.MATMUL,
        (
            Operand("A", "A", (3, 3)),
            Operand("B", "B", (3, 3)),
            _zero_point("A_zp", "A"),
            _zero_point("B_zp", "B"),
        ),
        (Operand("output", "O", (3, 3)),),
        types.MATMUL,
        matrix.matmul,
        variables=("A", "B", "O"),
        constants=matrix.check_matmul,
    ),
    OperatorSpec(
        Op.MAX_POOL2D,
        (Operand("input", ranks=(4, 4)),),
        (Operand("output", ranks=(4, 4)),),
        types.MAX_POOL,
        window.pool,
        attributes=window.check_max_pool,
    ),
    OperatorSpec(
        Op.RFFT2D,
        (Operand("input_real", ranks=(3, 3)),),
        (Operand("output_real", ranks=(3, 3)), Operand("output_imag", ranks=(3, 3))),
        types.FFT,
        matrix.rfft2d,
    ),
    _convolution(
        Op.TRANSPOSE_CONV2D, 4, window.transpose_conv2d, window.check_transpose_conv2d
    ),
)

_ELEMENTWISE = (
    OperatorSpec(
        Op.CLAMP,
        (_X,),
        (_Y,),
        types.CLAMP,
        elementwise.same_shape,
        attributes=elementwise.check_clamp,
    ),
    _unary(Op.ERF),
    _unary(Op.SIGMOID),
    _unary(Op.TANH),
    _binary(Op.ADD, types.ARITHMETIC),
    _shift(Op.ARITHMETIC_RIGHT_SHIFT, types.INTEGERS),
    _binary(Op.BITWISE_AND, types.INTEGERS),
    _binary(Op.BITWISE_OR, types.INTEGERS),
    _binary(Op.BITWISE_XOR, types.INTEGERS),
    _binary(Op.INTDIV, types.INTDIV),
    _binary(Op.LOGICAL_AND, types.BOOLEANS),
    _shift(Op.LOGICAL_LEFT_SHIFT, types.SHIFTS),
    _shift(Op.LOGICAL_RIGHT_SHIFT, types.SHIFTS),
    _binary(Op.LOGICAL_OR, types.BOOLEANS),
    _binary(Op.LOGICAL_XOR, types.BOOLEANS),
    _extremum(Op.MAXIMUM),
    _extremum(Op.MINIMUM),
    OperatorSpec(
        Op.MUL,
        (
            _A,
            _B,
            Operand("shift", DType.INT8, (1, 1), constant=True, single=True),
        ),
        (Operand("output", "O"),),
        types.MUL,
        elementwise.broadcast_first_two,
        variables=("T", "O"),
        constants=elementwise.check_mul_shift,
    ),
    _binary(Op.POW, types.FLOATS),
    _binary(Op.SUB, types.ARITHMETIC),
    OperatorSpec(
        Op.TABLE,
        (_X, Operand("table", "table", (1, 1), constant=True)),
        (Operand("output", "O"),),
        types.TABLE,
        elementwise.table,
        variables=("T", "table", "O"),
    ),
    _unary(Op.ABS, types.EXTREMA),
    _unary(Op.BITWISE_NOT, types.INTEGERS),
    _unary(Op.CEIL),
    _unary(Op.CLZ, types.INT32_ONLY),
    _unary(Op.COS),
    _unary(Op.EXP),
    _unary(Op.FLOOR),
    _unary(Op.LOG),
    _unary(Op.LOGICAL_NOT, types.BOOLEANS),
    OperatorSpec(
        Op.NEGATE,
        (_X, _zero_point("input1_zp"), _zero_point("output_zp")),
        (_Y,),
        types.NUMBERS,
        elementwise.same_shape,
        constants=elementwise.check_negate,
    ),
    _unary(Op.RECIPROCAL),
    _unary(Op.RSQRT),
    _unary(Op.SIN),
    OperatorSpec(
        Op.SELECT,
        (Operand("input1", DType.BOOL), Operand("input2"), Operand("input3")),
        (_Y,),
        types.SELECT,
        elementwise.broadcast_first_three,
    ),
    _binary(Op.EQUAL, types.EXTREMA, _BOOL_OUT),
    _binary(Op.GREATER, types.EXTREMA, _BOOL_OUT),
    _binary(Op.GREATER_EQUAL, types.EXTREMA, _BOOL_OUT),
)

_REDUCTIONS = (
    _reduce(Op.REDUCE_ALL, types.BOOLEANS),
    _reduce(Op.REDUCE_ANY, types.BOOLEANS),
    _reduce_extremum(Op.REDUCE_MAX),
    _reduce_extremum(Op.REDUCE_MIN),
    _reduce(Op.REDUCE_PRODUCT, types.FLOATS),
    _reduce(Op.REDUCE_SUM, types.EXTREMA),
)

_LAYOUT = (
    OperatorSpec(
        Op.CONCAT,
        (_X1,),
        (_Y1,),
        types.CONCAT,
        layout.concat,
        attributes=reduction.check_axis,
        variadic=True,
    ),
    OperatorSpec(
        Op.PAD,
        (_X1, _shape("padding"), _zero_point("pad_const")),
        (_Y1,),
        types.LAYOUT,
        layout.pad,
    ),
    OperatorSpec(
        Op.RESHAPE,
        (
            _X,
            Operand("shape", None, (1, 1), OperandKind.SHAPE, constant=True),
        ),
        (_Y,),
        types.LAYOUT,
        layout.reshape,
    ),
    OperatorSpec(
        Op.REVERSE,
        (_X1,),
        (_Y1,),
        types.LAYOUT,
        elementwise.same_shape,
        attributes=reduction.check_axis,
    ),
    OperatorSpec(
        Op.SLICE,
        (_X1, _shape("start"), _shape("size")),
        (_Y1,),
        types.LAYOUT,
        layout.slice_,
    ),
    OperatorSpec(
        Op.TILE, (_X1, _shape("multiples")), (_Y1,), types.LAYOUT, layout.tile
    ),
    OperatorSpec(
        Op.TRANSPOSE,
        (_X1,),
        (_Y1,),
        types.LAYOUT,
        layout.transpose,
        attributes=layout.check_transpose,
    ),
    OperatorSpec(
        Op.GATHER,
        (Operand("values", ranks=(3, 3)), Operand("indices", DType.INT32, (2, 2))),
        (Operand("output", ranks=(3, 3)),),
        types.GATHER,
        layout.gather,
    ),
    OperatorSpec(
        Op.SCATTER,
        (
            Operand("values_in", ranks=(3, 3)),
            Operand("indices", DType.INT32, (2, 2)),
            Operand("input", ranks=(3, 3)),
        ),
        (Operand("values_out", ranks=(3, 3)),),
        types.GATHER,
        layout.scatter,
    ),
)

_CONVERSIONS = (
    OperatorSpec(
        Op.RESIZE,
        (
            Operand("input", ranks=(4, 4)),
            _shape("scale"),
            _shape("offset"),
            _shape("border"),
        ),
        (Operand("output", "O", (4, 4)),),
        types.RESIZE,
        conversion.resize,
        variables=("T", "O"),
        attributes=conversion.check_resize,
    ),
    OperatorSpec(
        Op.CAST,
        (_X,),
        (Operand("output", "O"),),
        types.CAST,
        elementwise.same_shape,
        variables=("T", "O"),
    ),
    OperatorSpec(
        Op.RESCALE,
        (
            _X,
            Operand("multiplier", None, (1, 1), constant=True),
            Operand("shift", DType.INT8, (1, 1), constant=True),
            _zero_point("input_zp"),
            _zero_point("output_zp", "O"),
        ),
        (Operand("output", "O"),),
        types.RESCALE,
        conversion.rescale,
        variables=("T", "O"),
        attributes=conversion.check_rescale,
        constants=conversion.check_rescale_constants,
    ),
)

_ANYTHING = Operand("input", None, _ANY_RANK, OperandKind.ANY)
_ANY_TENSOR = Operand("input", None)

_DATA_AND_CONTROL = (
    OperatorSpec(Op.CONST, (), (_Y,), types.DATA, control.declared),
    OperatorSpec(Op.IDENTITY, (_X,), (_Y,), types.DATA, elementwise.same_shape),
    OperatorSpec(
        Op.CUSTOM,
        (_ANYTHING,),
        (_ANYTHING,),
        (),
        control.custom,
        variables=(),
        variadic=True,
        least_inputs=0,
        least_outputs=0,
    ),
    OperatorSpec(
        Op.COND_IF,
        (Operand("condition", DType.BOOL), _ANY_TENSOR),
        (_ANY_TENSOR,),
        (),
        control.cond_if,
        variables=(),
        types=control.branch_types,
        variadic=True,
        least_inputs=1,
        least_outputs=0,
    ),
    OperatorSpec(
        Op.WHILE_LOOP,
        (_ANY_TENSOR,),
        (_ANY_TENSOR,),
        (),
        control.while_loop,
        variables=(),
        types=control.input_types,
        variadic=True,
    ),
    # The schema leaves open which of the two lists names the variable.
    OperatorSpec(
        Op.VARIABLE,
        (_X,),
        (_Y,),
        types.VARIABLES,
        control.declared,
        least_inputs=0,
        least_outputs=0,
    ),
    OperatorSpec(
        Op.VARIABLE_WRITE,
        (_X, _X),
        (_Y,),
        types.VARIABLES,
        control.declared,
        least_inputs=1,
        least_outputs=0,
    ),
    OperatorSpec(
        Op.VARIABLE_READ,
        (_X,),
        (_Y,),
        types.VARIABLES,
        control.declared,
        least_inputs=0,
    ),
    OperatorSpec(
        Op.CONST_SHAPE,
        (),
        (Operand("output", None, (1, 1), OperandKind.SHAPE),),
        (),
        control.declared,
        variables=(),
    ),
)

SPECS: dict[Op, OperatorSpec] = {
    spec.op: spec
    for family in (
        _TENSOR_OPERATORS,
        _ELEMENTWISE,
        _REDUCTIONS,
        _LAYOUT,
        _CONVERSIONS,
        _DATA_AND_CONTROL,
    )
    for spec in family
}
