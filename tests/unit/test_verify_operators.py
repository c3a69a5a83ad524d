"""Each rule of each operator: one program that breaks it, and what is said then."""

from typing import Any

import numpy as np
import pytest

from harness.refusals import CONV, F16, F32, I8, I32, POOL, refused, run
from tosavk.core.dtypes import DType
from tosavk.lowering.errors import Kind
from tosavk.lowering.graph import Op, Version
from tosavk.lowering.operators import SPECS
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.verify import verify


@pytest.mark.parametrize(
    ("op", "inputs", "output", "attributes", "kind", "text"),
    [
        # Arity, kinds, ranks, types.
        (Op.ADD, [(F32, (3,))], (F32, (3,)), {}, Kind.INVALID_ARITY, "1 input"),
        (Op.ABS, [(F32, (3,))] * 2, (F32, (3,)), {}, Kind.INVALID_ARITY, "takes 1"),
        (Op.REDUCE_SUM, [(F32, ())], (F32, ()), {}, Kind.INVALID_RANK, "rank 0"),
        (Op.MATMUL, [(F32, (3, 3))] * 4, (F32, (3,)), {}, Kind.INVALID_RANK, "rank 3"),
        (
            Op.RESHAPE,
            [(F32, (3,)), (I32, (1,))],
            (F32, (3,)),
            {},
            Kind.EXPECTED_SHAPE,
            "must be a shape",
        ),
        (
            Op.ADD,
            [(F32, (3,)), (F16, (3,))],
            (F32, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "FP32, FP16 -> FP32",
        ),
        (
            Op.CAST,
            [(DType.INT4, (3,))],
            (I8, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "INT4 -> INT8",
        ),
        (
            Op.CAST,
            [(F32, (3,))],
            (F32, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "FP32 -> FP32",
        ),
        (
            Op.CAST,
            [(DType.FP8E4M3, (3,))],
            (DType.FP8E5M2, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "FP8E4M3 -> FP8E5M2",
        ),
        (
            Op.CAST,
            [(DType.BOOL, (3,))],
            (F32, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "no combination of TOSA 1.0",
        ),
        (
            Op.EQUAL,
            [(F32, (3,))] * 2,
            (F32, (3,)),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "-> FP32",
        ),
        (
            Op.AVG_POOL2D,
            [(F16, (1, 4, 4, 1)), (F16, (1,)), (F16, (1,))],
            (F16, (1, 3, 3, 1)),
            {**POOL, "acc_type": I32},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "acc_type INT32",
        ),
        # Attributes.
        (
            Op.ARGMAX,
            [(F32, (2, 3))],
            (I32, (2,)),
            {"axis": 2},
            Kind.INVALID_ATTRIBUTE,
            "axis=2 lies outside the 2 dimensions",
        ),
        (
            Op.ARGMAX,
            [(F32, (2, 3))],
            (I32, (2,)),
            {"axis": 1, "nan_mode": 0},
            Kind.INVALID_ATTRIBUTE,
            "nan_mode=0",
        ),
        (
            Op.REVERSE,
            [(F32, (2, 3))],
            (F32, (2, 3)),
            {"axis": -1},
            Kind.INVALID_ATTRIBUTE,
            "axis=-1",
        ),
        (
            Op.TRANSPOSE,
            [(F32, (2, 3))],
            (F32, (3, 2)),
            {"perms": (1, 1)},
            Kind.INVALID_ATTRIBUTE,
            "no permutation",
        ),
        (
            Op.TRANSPOSE,
            [(F32, (2, 3))],
            (F32, (3, 2)),
            {"perms": (1,)},
            Kind.INVALID_ATTRIBUTE,
            "2 numbers",
        ),
        (
            Op.CLAMP,
            [(F32, (2,))],
            (F32, (2,)),
            {"min_val": np.float32(2).tobytes(), "max_val": np.float32(1).tobytes()},
            Kind.INVALID_ATTRIBUTE,
            "maximum 1 is below its minimum 2",
        ),
        (
            Op.CLAMP,
            [(F32, (2,))],
            (F32, (2,)),
            {
                "min_val": np.float32(np.nan).tobytes(),
                "max_val": np.float32(1).tobytes(),
            },
            Kind.INVALID_ATTRIBUTE,
            "is NaN",
        ),
        (
            Op.CLAMP,
            [(F32, (2,))],
            (F32, (2,)),
            {"min_val": b"\0", "max_val": bytes(4)},
            Kind.INVALID_ATTRIBUTE,
            "1 bytes",
        ),
        *[
            (
                Op.MAX_POOL2D,
                [(F32, (1, 6, 6, 1))],
                (F32, (1, 5, 5, 1)),
                {**POOL, **change},
                Kind.INVALID_ATTRIBUTE,
                text,
            )
            for change, text in (
                ({"kernel": (0, 2)}, "kernel=(0, 2)"),
                ({"kernel": (2,)}, "must have 2 numbers"),
                ({"kernel": (9000, 2)}, "exceeds 8192"),
                ({"stride": (1, 0)}, "stride=(1, 0)"),
                ({"pad": (-1, 0, 0, 0)}, "must not be negative"),
                ({"pad": (2, 0, 0, 0)}, "below the kernel"),
                ({"nan_mode": 7}, "nan_mode=7"),
            )
        ],
        (
            Op.MAX_POOL2D,
            [(F32, (1, 6, 6, 1))],
            (F32, (1, 3, 3, 1)),
            {**POOL, "stride": (3, 2)},
            Kind.INVALID_SHAPE,
            "stride 3 in y does not divide the 4 positions",
        ),
        (
            Op.MAX_POOL2D,
            [(F32, (1, 6, 6, 1))],
            (F32, (1, 1, 1, 1)),
            {**POOL, "kernel": (7, 1)},
            Kind.INVALID_SHAPE,
            "does not fit",
        ),
        # Shapes.
        (
            Op.ADD,
            [(F32, (3,)), (F32, (1, 3))],
            (F32, (1, 3)),
            {},
            Kind.INVALID_SHAPE,
            "different ranks",
        ),
        (
            Op.ADD,
            [(F32, (2, 3)), (F32, (2, 2))],
            (F32, (2, 3)),
            {},
            Kind.INVALID_SHAPE,
            "differ in dimension 1",
        ),
        (
            Op.ADD,
            [(F32, (2, 1)), (F32, (1, 3))],
            (F32, (2, 1)),
            {},
            Kind.INVALID_SHAPE,
            "declared with shape 2x1, but the operator gives 2x3",
        ),
        (
            Op.CONCAT,
            [(F32, (2, 3)), (F32, (3, 3))],
            (F32, (2, 6)),
            {"axis": 1},
            Kind.INVALID_SHAPE,
            "only dimension 1 may differ",
        ),
        (
            Op.MATMUL,
            [(F32, (1, 2, 3)), (F32, (1, 4, 5)), (F32, (1,)), (F32, (1,))],
            (F32, (1, 2, 5)),
            {},
            Kind.INVALID_SHAPE,
            "cannot multiply 1x2x3 by 1x4x5",
        ),
        (
            Op.MATMUL,
            [(F32, (1, 2, 3)), (F32, (1, 3, 5)), (F32, (2,)), (F32, (1,))],
            (F32, (1, 2, 5)),
            {},
            Kind.INVALID_SHAPE,
            "must have one element",
        ),
        (
            Op.GATHER,
            [(F32, (2, 3, 4)), (I32, (1, 5))],
            (F32, (2, 5, 4)),
            {},
            Kind.INVALID_SHAPE,
            "differ in dimension 0",
        ),
        (
            Op.SCATTER,
            [(F32, (1, 3, 4)), (I32, (1, 5)), (F32, (1, 5, 4))],
            (F32, (1, 3, 4)),
            {},
            Kind.INVALID_SHAPE,
            "5 rows into 3",
        ),
        (
            Op.SCATTER,
            [(F32, (1, 3, 4)), (I32, (1, 2)), (F32, (1, 2, 5))],
            (F32, (1, 3, 4)),
            {},
            Kind.INVALID_SHAPE,
            "NxKxC",
        ),
        (
            Op.RFFT2D,
            [(F32, (1, 3, 4))],
            (F32, (1, 3, 3)),
            {},
            Kind.INVALID_ARITY,
            "1 output",
        ),
        (
            Op.TABLE,
            [(I8, (3,)), (I8, (255,))],
            (I8, (3,)),
            {},
            Kind.INVALID_SHAPE,
            "256 entries",
        ),
        (
            Op.TABLE,
            [(DType.INT16, (3,)), (DType.INT16, (512,))],
            (I32, (3,)),
            {},
            Kind.INVALID_SHAPE,
            "513 entries",
        ),
    ],
)
def test_broken_operators(
    op: Op,
    inputs: list[tuple[DType, tuple[int, ...]]],
    output: tuple[DType, tuple[int, ...]],
    attributes: dict[str, Any],
    kind: Kind,
    text: str,
) -> None:
    found = run(op, inputs, *output, **attributes)
    assert found.kind == kind, str(found)
    assert text in str(found)


IMAGE = (F32, (1, 6, 6, 2))
WEIGHT = (F32, (3, 3, 3, 2))
BIAS = (F32, (3,))
ZERO = (F32, (1,))


@pytest.mark.parametrize(
    ("op", "inputs", "shape", "change", "kind", "text"),
    [
        (Op.CONV2D, {1: (F32, (3, 3, 3, 4))}, (1, 4, 4, 3), {}, None, "has 2 channels"),
        (Op.CONV2D, {2: (F32, (2,))}, (1, 4, 4, 3), {}, None, "1 or 3"),
        (Op.CONV2D, {}, (1, 4, 4, 3), {"dilation": (3, 1)}, None, "does not fit"),
        (Op.CONV2D, {}, (1, 4, 4, 3), {"stride": (2, 1)}, None, "does not divide"),
        (
            Op.CONV2D,
            {},
            (1, 4, 4, 3),
            {"dilation": (4096, 1)},
            None,
            "at most 8192",
        ),
        (
            Op.CONV2D,
            {},
            (1, 4, 4, 3),
            {"pad": (0, 0, -1, 0)},
            Kind.INVALID_ATTRIBUTE,
            "negative",
        ),
        (
            Op.CONV2D,
            {},
            (1, 4, 4, 3),
            {"acc_type": 0},
            Kind.INVALID_ATTRIBUTE,
            "acc_type=0",
        ),
        (
            Op.CONV2D,
            {},
            (1, 4, 4, 3),
            {"pad": (0, 0, 0)},
            Kind.INVALID_ATTRIBUTE,
            "4 numbers",
        ),
        (
            Op.CONV2D,
            {3: (F16, (1,))},
            (1, 4, 4, 3),
            {},
            Kind.UNSUPPORTED_TYPE_PROFILE,
            "FP32, FP32, FP32, FP16, FP32 -> FP32 (acc_type FP32)",
        ),
        (
            Op.DEPTHWISE_CONV2D,
            {1: (F32, (3, 3, 2, 4))},
            (1, 4, 4, 8),
            {},
            None,
            "1 or 8",
        ),
        (
            Op.TRANSPOSE_CONV2D,
            {},
            (1, 8, 8, 3),
            {"out_pad": (-3, 0, 0, 0)},
            Kind.INVALID_ATTRIBUTE,
            "above minus the kernel",
        ),
        (
            Op.TRANSPOSE_CONV2D,
            {0: (F32, (1, 1, 1, 2))},
            (1, 1, 1, 3),
            {"out_pad": (-2, -2, 0, 0)},
            None,
            "leaves nothing",
        ),
    ],
)
def test_broken_convolutions(
    op: Op,
    inputs: dict[int, tuple[DType, tuple[int, ...]]],
    shape: tuple[int, ...],
    change: dict[str, Any],
    kind: Kind | None,
    text: str,
) -> None:
    operands: list[tuple[DType, tuple[int, ...]]] = [IMAGE, WEIGHT, BIAS, ZERO, ZERO]
    for position, operand in inputs.items():
        operands[position] = operand
    attributes: dict[str, Any] = {**CONV, **change}
    if op is Op.TRANSPOSE_CONV2D:
        del attributes["pad"], attributes["dilation"]
        attributes.setdefault("out_pad", (0, 0, 0, 0))
    found = run(op, operands, F32, shape, **attributes)
    assert found.kind == (kind or Kind.INVALID_SHAPE), str(found)
    assert text in str(found)


@pytest.mark.parametrize(
    ("op", "shape", "lists", "output", "text"),
    [
        (Op.PAD, (2,), [(-1, 0)], (1,), "negative"),
        (Op.PAD, (2,), [(1, 0, 0)], (3,), "must have 2 numbers"),
        (Op.RESHAPE, (2, 3), [(4,)], (4,), "cannot make shape 4"),
        (Op.RESHAPE, (2, 3), [(-1,)], (6,), "below 1"),
        (Op.RESHAPE, (2, 3), [(6, 0)], (6, 1), "below 1"),
        (Op.SLICE, (5,), [(0,), (-1,)], (5,), "size -1"),
        (Op.SLICE, (5,), [(0,), (0,)], (5,), "size 0"),
        (Op.SLICE, (5,), [(-1,), (2,)], (2,), "start -1"),
        (Op.SLICE, (5,), [(3,), (3,)], (3,), "leave the input's 5"),
        (Op.SLICE, (5,), [(1 << 62,), (1 << 62,)], (3,), "leave the input's 5"),
        (Op.TILE, (2, 3), [(1, 0)], (2, 3), "below 1"),
        (Op.TILE, (2, 3), [(1,)], (2, 3), "must have 2 numbers"),
    ],
)
def test_broken_lists(
    op: Op,
    shape: tuple[int, ...],
    lists: list[tuple[int, ...]],
    output: tuple[int, ...],
    text: str,
) -> None:
    b = Builder()
    operands = [b.input("x", F32, shape), *(b.const_shape(one) for one in lists)]
    if op is Op.PAD:
        operands.append(b.const(np.zeros(1, np.float32)))
    found = run(op, operands, F32, output, builder=b)
    assert found.kind == Kind.INVALID_SHAPE
    assert text in str(found)


@pytest.mark.parametrize(
    ("scale", "offset", "border", "text"),
    [
        ((0, 1, 1, 1), (0, 0), (0, 0), "scale 0/1 in y is not positive"),
        ((1, 1, 1, -1), (0, 0), (0, 0), "scale 1/-1 in x is not positive"),
        ((2049, 2049, 1, 1), (0, 0), (0, 0), "2048"),
        ((257, 1, 1, 1), (0, 0), (0, 0), "level 8K"),
        ((1, 16, 1, 1), (0, 0), (0, 0), "1/16 or less"),
        ((2, 1, 1, 1), (-3, 0), (0, 0), "offset -3 in y must lie in -2..31"),
        ((2, 1, 1, 1), (32, 0), (0, 0), "offset 32"),
        ((2, 1, 1, 1), (0, 0), (2, 0), "border 2 in y must lie in -32..1"),
        ((2, 1, 1, 1), (0, 0), (0, -17), "border -17 in x"),
        ((2, 3, 1, 1), (0, 0), (0, 0), "no whole size in y"),
        ((1, 1, 1), (0, 0), (0, 0), "must have 4 numbers"),
        ((1, 1, 1, 1), (0,), (0, 0), "must have 2 numbers"),
    ],
)
def test_broken_resizes(
    scale: tuple[int, ...], offset: tuple[int, ...], border: tuple[int, ...], text: str
) -> None:
    b = Builder()
    lists = [b.const_shape(one) for one in (scale, offset, border)]
    x = b.input("x", F32, (1, 3, 3, 1))
    found = run(Op.RESIZE, [x, *lists], F32, (1, 3, 3, 1), builder=b, mode=1)
    assert found.kind == Kind.INVALID_SHAPE
    assert text in str(found)


def test_resize_of_a_huge_image() -> None:
    b = Builder()
    x = b.input("x", I8, (1, 1, 16384, 1))
    lists = [b.const_shape(one) for one in ((1, 1, 1, 1), (0, 0), (0, 0))]
    found = run(Op.RESIZE, [x, *lists], I8, (1, 1, 16384, 1), builder=b, mode=1)
    assert "below 16384" in str(found)


@pytest.mark.parametrize(
    ("dtype", "output", "mode", "kind"),
    [
        (I8, I32, 1, Kind.UNSUPPORTED_TYPE_PROFILE),
        (I8, I8, 2, Kind.UNSUPPORTED_TYPE_PROFILE),
        (DType.INT16, DType.INT16, 2, Kind.UNSUPPORTED_TYPE_PROFILE),
        (F32, F16, 2, Kind.UNSUPPORTED_TYPE_PROFILE),
        (F32, F32, 0, Kind.INVALID_ATTRIBUTE),
    ],
)
def test_types_and_modes_of_resize(
    dtype: DType, output: DType, mode: int, kind: Kind
) -> None:
    b = Builder()
    x = b.input("x", dtype, (1, 3, 3, 1))
    lists = [b.const_shape(one) for one in ((1, 1, 1, 1), (0, 0), (0, 0))]
    found = run(Op.RESIZE, [x, *lists], output, (1, 3, 3, 1), builder=b, mode=mode)
    assert found.kind == kind


@pytest.mark.parametrize(("height", "width"), [(3, 4), (4, 6), (16384, 1)])
def test_sizes_of_transforms(height: int, width: int) -> None:
    b = Builder()
    x = b.input("x", F32, (1, height, width))
    b.op_list(Op.FFT2D, [x, x], outputs=[(F32, (1, height, width))] * 2)
    assert refused(b).kind == Kind.INVALID_SHAPE


def test_a_list_of_64_tensors_is_the_limit() -> None:
    b = Builder()
    x = b.input("x", F32, (1,))
    b.output(b.concat([x] * 64, 0))
    verify(read_graph(b.build()))
    found = run(Op.CONCAT, [x] * 65, F32, (65,), builder=b, axis=0)
    assert found.kind == Kind.TENSOR_LIST_LIMIT


def test_concat_of_nothing() -> None:
    found = run(Op.CONCAT, [], F32, (1,), axis=0)
    assert found.kind == Kind.INVALID_ARITY


def test_shapes_must_be_constants() -> None:
    b = Builder()
    x = b.input("x", F32, (3,))
    (shape,) = b.op_list(
        Op.CUSTOM, [x], outputs=[(DType.SHAPE, (1,))], operator_name="shape_of"
    )
    found = run(Op.RESHAPE, [x, shape], F32, (3,), builder=b)
    assert found.kind == Kind.CONSTANT_REQUIRED


def test_a_custom_operator_needs_a_name() -> None:
    found = run(Op.CUSTOM, [(F32, (3,))], F32, (3,))
    assert found.kind == Kind.INVALID_ATTRIBUTE
    assert "operator_name=''" in str(found)


def test_constants_without_data() -> None:
    found = run(Op.CONST, [], F32, (3,))
    assert found.kind == Kind.INVALID_CONSTANT_DATA
    assert "no data" in str(found)


def test_a_variable_must_be_one() -> None:
    found = run(Op.VARIABLE_READ, [(F32, (3,))], F32, (3,))
    assert found.kind == Kind.INVALID_VARIABLE


def test_types_of_the_1_1_draft_need_its_version() -> None:
    b = Builder(version=Version(1, 1, 0, draft=True))
    b.output(b.cast(b.input("x", DType.BOOL, (3,)), F32))
    verify(read_graph(b.build()))


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_every_specification_is_whole(op: Op) -> None:
    spec = SPECS[op]
    assert spec.op is op
    used = {operand.types for operand in (*spec.inputs, *spec.outputs)}
    for row in spec.rows:
        assert len(row.types) == len(spec.variables)
    for variable in spec.variables:
        assert variable in used or variable == "acc_type"
    for kind in used:
        assert kind is None or isinstance(kind, DType) or kind in spec.variables
    assert len(set(spec.rows)) == len(spec.rows)
