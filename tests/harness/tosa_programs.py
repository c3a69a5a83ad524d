"""One small valid TOSA program for each operator, and files that are broken on purpose."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import flatbuffers
import numpy as np

from tosavk.core.dtypes import DType
from tosavk.lowering.graph import NanMode, Op, ResizeMode, RoundingMode, Tensor
from tosavk.lowering.tosa import schema
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.schema import FieldKind, Table

F32 = DType.FP32
I32 = DType.INT32

_FLOAT_UNARY = (
    Op.ERF,
    Op.SIGMOID,
    Op.TANH,
    Op.ABS,
    Op.CEIL,
    Op.COS,
    Op.EXP,
    Op.FLOOR,
    Op.LOG,
    Op.RECIPROCAL,
    Op.RSQRT,
    Op.SIN,
)
_FLOAT_BINARY = (
    Op.ADD,
    Op.SUB,
    Op.POW,
    Op.MAXIMUM,
    Op.MINIMUM,
    Op.EQUAL,
    Op.GREATER,
    Op.GREATER_EQUAL,
)
_INT_BINARY = (
    Op.BITWISE_AND,
    Op.BITWISE_OR,
    Op.BITWISE_XOR,
    Op.INTDIV,
    Op.ARITHMETIC_RIGHT_SHIFT,
    Op.LOGICAL_LEFT_SHIFT,
    Op.LOGICAL_RIGHT_SHIFT,
)
_BOOL_BINARY = (Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR)
_FLOAT_REDUCE = (Op.REDUCE_MAX, Op.REDUCE_MIN, Op.REDUCE_PRODUCT, Op.REDUCE_SUM)
_BOOL_REDUCE = (Op.REDUCE_ALL, Op.REDUCE_ANY)

Body = Callable[[Builder], Sequence[Tensor]]


def _image(b: Builder, channels: int = 2) -> Tensor:
    return b.input("x", F32, (1, 7, 5, channels))


def _argmax(b: Builder) -> Sequence[Tensor]:
    return [b.argmax(_image(b), 3, nan_mode=NanMode.IGNORE)]


def _avg_pool2d(b: Builder) -> Sequence[Tensor]:
    return [b.avg_pool2d(_image(b), (3, 3), stride=(2, 2), pad=(1, 1, 1, 1))]


def _conv2d(b: Builder) -> Sequence[Tensor]:
    weight = b.const(np.ones((3, 3, 3, 2), np.float32))
    bias = b.const(np.arange(3, dtype=np.float32))
    return [b.conv2d(_image(b), weight, bias, pad=(1, 1, 1, 1))]


def _conv2d_int8(b: Builder) -> Sequence[Tensor]:
    x = b.input("x", DType.INT8, (1, 5, 5, 2))
    weight = b.const(np.ones((3, 1, 1, 2), np.int8))
    bias = b.const(np.zeros(3, np.int32))
    zero_point = b.const(np.array([5], np.int8))
    return [b.conv2d(x, weight, bias, input_zp=zero_point)]


def _conv3d(b: Builder) -> Sequence[Tensor]:
    x = b.input("x", F32, (1, 3, 5, 5, 2))
    weight = b.const(np.ones((3, 2, 2, 2, 2), np.float32))
    return [b.conv3d(x, weight, b.const(np.zeros(1, np.float32)))]


def _depthwise_conv2d(b: Builder) -> Sequence[Tensor]:
    weight = b.const(np.ones((3, 2, 2, 3), np.float32))
    bias = b.const(np.zeros(6, np.float32))
    return [b.depthwise_conv2d(_image(b), weight, bias, dilation=(2, 1))]


def _transpose_conv2d(b: Builder) -> Sequence[Tensor]:
    weight = b.const(np.ones((3, 3, 3, 2), np.float32))
    bias = b.const(np.zeros(3, np.float32))
    y = b.transpose_conv2d(
        _image(b), weight, bias, stride=(2, 2), out_pad=(-1, 0, 1, 2)
    )
    return [y]


def _fft2d(b: Builder) -> Sequence[Tensor]:
    real = b.input("real", F32, (1, 4, 8))
    imaginary = b.input("imaginary", F32, (1, 4, 8))
    return b.fft2d(real, imaginary, inverse=True)


def _rfft2d(b: Builder) -> Sequence[Tensor]:
    return b.rfft2d(b.input("x", F32, (1, 4, 8)))


def _matmul(b: Builder) -> Sequence[Tensor]:
    x = b.input("x", DType.FP16, (2, 3, 5))
    y = b.input("y", DType.FP16, (2, 5, 7))
    return [b.matmul(x, y), b.matmul(x, y, dtype=F32)]


def _max_pool2d(b: Builder) -> Sequence[Tensor]:
    return [b.max_pool2d(_image(b), (3, 1), stride=(2, 2))]


def _clamp(b: Builder) -> Sequence[Tensor]:
    whole = b.clamp(b.input("i", DType.INT8, (3,)), -5, 7)
    return [b.clamp(_image(b), 0.0, 6.0), whole]


def _mul(b: Builder) -> Sequence[Tensor]:
    x = b.input("x", I32, (3, 1))
    shift = b.const([3], DType.INT8)
    return [b.mul(x, x), b.mul(x, b.input("y", I32, (1, 5)), shift=shift)]


def _table(b: Builder) -> Sequence[Tensor]:
    entries = b.const(np.arange(-128, 128).astype(np.int8))
    return [b.table(b.input("x", DType.INT8, (3, 5)), entries)]


def _negate(b: Builder) -> Sequence[Tensor]:
    return [b.negate(_image(b)), b.negate(b.input("i", DType.INT8, ()))]


def _select(b: Builder) -> Sequence[Tensor]:
    x = b.input("x", F32, (1, 3))
    y = b.input("y", F32, (1, 1))
    return [b.select(b.input("c", DType.BOOL, (2, 1)), x, y)]


def _concat(b: Builder) -> Sequence[Tensor]:
    return [b.concat([b.input("x", F32, (2, 3)), b.input("y", F32, (2, 5))], 1)]


def _pad(b: Builder) -> Sequence[Tensor]:
    seven = b.const(np.array([7], np.float32))
    return [b.pad(b.input("x", F32, (2, 3)), (0, 1, 2, 0), pad_const=seven)]


def _reshape(b: Builder) -> Sequence[Tensor]:
    x = b.input("x", F32, (2, 3))
    single = b.input("single", F32, (1, 1))
    return [b.reshape(x, (3, 1, 2)), b.reshape(single, ())]


def _reverse(b: Builder) -> Sequence[Tensor]:
    return [b.reverse(b.input("x", F32, (2, 3)), 1)]


def _slice(b: Builder) -> Sequence[Tensor]:
    return [b.slice(b.input("x", F32, (5, 7)), (1, 0), (3, 7))]


def _tile(b: Builder) -> Sequence[Tensor]:
    return [b.tile(b.input("x", F32, (2, 3)), (3, 1))]


def _transpose(b: Builder) -> Sequence[Tensor]:
    return [b.transpose(_image(b), (0, 3, 1, 2))]


def _gather(b: Builder) -> Sequence[Tensor]:
    values = b.input("values", F32, (2, 5, 3))
    return [b.gather(values, b.const(np.zeros((2, 7), np.int32)))]


def _scatter(b: Builder) -> Sequence[Tensor]:
    values = b.input("values", F32, (1, 5, 3))
    rows = b.input("rows", F32, (1, 2, 3))
    return [b.scatter(values, b.const(np.array([[0, 3]], np.int32)), rows)]


def _resize(b: Builder) -> Sequence[Tensor]:
    x = b.input("x", DType.INT8, (1, 3, 5, 2))
    scale = (4, 2, 4, 2)
    return [
        b.resize(x, scale, offset=(-1, -1), border=(1, 1)),
        b.resize(x, scale, mode=ResizeMode.BILINEAR),
    ]


def _cast(b: Builder) -> Sequence[Tensor]:
    x = b.input("x", F32, (3,))
    return [b.cast(x, dtype) for dtype in (DType.FP16, DType.INT8, DType.BF16)]


def _rescale(b: Builder) -> Sequence[Tensor]:
    multiplier = b.const([1 << 30, 1 << 29], I32)
    y = b.rescale(
        b.input("x", I32, (3, 2)),
        DType.INT8,
        multiplier,
        b.const([33, 31], DType.INT8),
        rounding_mode=RoundingMode.DOUBLE_ROUND,
        per_channel=True,
    )
    return [y]


def _const(b: Builder) -> Sequence[Tensor]:
    values: list[Tensor] = [
        b.const([[-1, 2, 3]], DType.INT4),
        b.const(np.array([-(1 << 40), 5]), DType.INT48),
        b.const([True, False, True]),
        b.const(1.5, DType.BF16),
        b.const([0.5, -2.0], DType.FP8E4M3),
        b.const([0.5, -2.0], DType.FP8E5M2),
        b.const([1, 2], DType.INT16),
    ]
    return values


def _identity(b: Builder) -> Sequence[Tensor]:
    return [b.identity(b.input("x", F32, ()))]


def _custom(b: Builder) -> Sequence[Tensor]:
    return b.custom(
        [b.input("x", F32, (3,))],
        [(F32, (3,)), (I32, ())],
        operator_name="twice",
        domain_name="test",
        implementation_attrs=b"\x01\x02",
    )


def _cond_if(b: Builder) -> Sequence[Tensor]:
    for name in ("then", "otherwise"):
        r = b.region(name)
        x = r.input("x", F32, (3,))
        r.output(r.exp(x) if name == "then" else r.abs(x))
    condition = b.input("condition", DType.BOOL, ())
    x = b.input("x", F32, (3,))
    return b.cond_if(condition, [x], then_graph="then", else_graph="otherwise")


def _while_loop(b: Builder) -> Sequence[Tensor]:
    test = b.region("test")
    i = test.input("i", I32, ())
    test.input("x", F32, (3,))
    test.output(test.greater(test.const(3), i))
    body = b.region("body")
    i = body.input("i", I32, ())
    x = body.input("x", F32, (3,))
    body.output(body.add(i, body.const(1)))
    body.output(body.add(x, x))
    start = [b.input("i", I32, ()), b.input("x", F32, (3,))]
    return b.while_loop(start, cond_graph="test", body_graph="body")


def _variable(b: Builder) -> Sequence[Tensor]:
    state = b.variable("state", F32, (3,), 0.0)
    b.variable_write(state, b.input("x", F32, (3,)))
    return [b.variable_read(state)]


_BODIES: dict[str, Body] = {
    "argmax": _argmax,
    "avg_pool2d": _avg_pool2d,
    "conv2d": _conv2d,
    "conv2d_int8": _conv2d_int8,
    "conv3d": _conv3d,
    "depthwise_conv2d": _depthwise_conv2d,
    "transpose_conv2d": _transpose_conv2d,
    "fft2d": _fft2d,
    "rfft2d": _rfft2d,
    "matmul": _matmul,
    "max_pool2d": _max_pool2d,
    "clamp": _clamp,
    "mul": _mul,
    "table": _table,
    "negate": _negate,
    "select": _select,
    "concat": _concat,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "tile": _tile,
    "transpose": _transpose,
    "gather": _gather,
    "scatter": _scatter,
    "resize": _resize,
    "cast": _cast,
    "rescale": _rescale,
    "const": _const,
    "identity": _identity,
    "custom": _custom,
    "cond_if": _cond_if,
    "while_loop": _while_loop,
    "variable": _variable,
}


def _elementwise(op: Op, dtype: DType, count: int) -> Body:
    def body(b: Builder) -> Sequence[Tensor]:
        shapes = [(2, 3), (2, 1)]
        inputs = [b.input(f"x{n}", dtype, shapes[n]) for n in range(count)]
        method = getattr(b, op.name.lower())
        if op in _FLOAT_REDUCE + _BOOL_REDUCE:
            return [method(inputs[0], 1)]
        return [method(*inputs)]

    return body


for _ops, _dtype, _count in (
    (_FLOAT_UNARY, F32, 1),
    (_FLOAT_BINARY, F32, 2),
    (_INT_BINARY, I32, 2),
    (_BOOL_BINARY, DType.BOOL, 2),
    (_FLOAT_REDUCE, F32, 1),
    (_BOOL_REDUCE, DType.BOOL, 1),
    ((Op.BITWISE_NOT, Op.CLZ), I32, 1),
    ((Op.LOGICAL_NOT,), DType.BOOL, 1),
):
    for _op in _ops:
        _BODIES[_op.name.lower()] = _elementwise(_op, _dtype, _count)

PROGRAMS = tuple(sorted(_BODIES))


def program(name: str) -> Builder:
    """Returns one of the programs, finished."""
    builder = Builder()
    for tensor in _BODIES[name](builder):
        builder.output(tensor)
    return builder


# Any flatbuffer of the schema, right or wrong.

Fields = Mapping[str, object]
Nested = tuple[Table, Fields]


def table(kind: Table, **fields: object) -> Nested:
    """A table for `encode`: its kind and fields; what is left out is absent."""
    return kind, fields


def encode(root: Nested, identifier: bytes = schema.FILE_IDENTIFIER) -> bytes:
    """Writes nested tables as a flatbuffer, without any check."""
    to = flatbuffers.Builder(1024)
    to.Finish(_encode(to, root), identifier)
    return bytes(to.Output())


def _encode(to: flatbuffers.Builder, nested: Nested) -> int:
    kind, fields = nested
    offsets: dict[str, int] = {}
    for name, value in fields.items():
        if isinstance(value, str):
            offsets[name] = to.CreateString(value)
        elif isinstance(value, bytes):
            offsets[name] = to.CreateByteVector(value)
        elif isinstance(value, tuple):
            offsets[name] = _encode(to, cast("Nested", value))
        elif isinstance(value, list):
            offsets[name] = _vector(to, cast("list[object]", value))
    to.StartObject(len(kind.fields))
    to.ForceDefaults(True)
    for slot, field in enumerate(kind.fields):
        if field.name in offsets:
            to.PrependUOffsetTRelativeSlot(slot, offsets[field.name], 0)
        elif field.name in fields:
            number = fields[field.name]
            assert isinstance(number, int)
            match field.kind:
                case FieldKind.BOOL | FieldKind.TAG:
                    to.PrependUint8Slot(slot, number, 0)
                case FieldKind.I32:
                    to.PrependInt32Slot(slot, number, 0)
                case FieldKind.U64:
                    to.PrependUint64Slot(slot, number, 0)
                case _:
                    to.PrependUint32Slot(slot, number, 0)
    to.ForceDefaults(False)
    return to.EndObject()


def _vector(to: flatbuffers.Builder, items: list[object]) -> int:
    if items and isinstance(items[0], int):
        to.StartVector(4, len(items), 4)
        for item in reversed(items):
            assert isinstance(item, int)
            to.PrependInt32(item)
        return to.EndVector()
    offsets: list[int] = []
    for item in items:
        if isinstance(item, str):
            offsets.append(to.CreateString(item))
        else:
            offsets.append(_encode(to, cast("Nested", item)))
    to.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        to.PrependUOffsetTRelative(offset)
    return to.EndVector()
