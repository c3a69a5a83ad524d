"""The reference backend on values worked out by hand from the specification."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from tosavk.backends.reference import Note, evaluate, evaluate_operator
from tosavk.backends.reference.values import round_float
from tosavk.core.dtypes import DType, pack_serialized
from tosavk.core.errors import InvalidArgument, Unsupported
from tosavk.lowering.graph import (
    Attribute,
    Block,
    Graph,
    NanMode,
    Op,
    Operator,
    Region,
    ResizeMode,
    RoundingMode,
    Tensor,
    Version,
)

Array = NDArray[Any]
INF, NAN = math.inf, math.nan
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


def run(
    op: Op,
    operands: list[tuple[DType, ArrayLike]],
    result: DType,
    *,
    notes: list[Note] | None = None,
    **attributes: Attribute,
) -> Array:
    """Evaluates one operator in native mode."""
    names = tuple(f"in{i}" for i in range(len(operands)))
    arrays = [np.asarray(v).astype(t.numpy) for t, v in operands]
    tensors = {
        name: Tensor(name, kind, array.shape)
        for name, (kind, _), array in zip(names, operands, arrays, strict=True)
    }
    tensors["out"] = Tensor("out", result, None)
    operator = Operator(0, op, names, ("out",), attributes)
    block = Block("main", (operator,), tensors, names, ("out",))
    (value,) = evaluate_operator(operator, block, arrays, precise=False, notes=notes)
    assert value.dtype == result.numpy
    return value


def same(actual: Array, expected: ArrayLike) -> bool:
    return bool(np.array_equal(actual.astype(np.float64), expected, equal_nan=True))


def scalar(dtype: DType, value: float = 0) -> tuple[DType, ArrayLike]:
    return dtype, [value]


def test_cast_to_integer_saturates_and_rounds_to_even() -> None:
    x = [2147483520, 2147483648, 1e20, -1e20, INF, -INF]
    big = [2147483520, INT32_MAX, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN]
    assert same(run(Op.CAST, [(DType.FP32, x)], DType.INT32), big)
    x = [126.5, 127.4, 127.5, -128.5, -129, 300]
    small = [126, 127, 127, -128, -128, 127]
    assert same(run(Op.CAST, [(DType.FP32, x)], DType.INT8), small)
    x = [0.5, 1.5, 2.5, 3.5, -0.5, -2.5, -3.5, 0.49999997]
    even = [0, 2, 2, 4, 0, -2, -4, 0]
    assert same(run(Op.CAST, [(DType.FP32, x)], DType.INT32), even)


def test_cast_of_nan_to_integer_is_unpredictable() -> None:
    notes: list[Note] = []
    run(Op.CAST, [(DType.FP32, [NAN, 1])], DType.INT8, notes=notes)
    assert [str(note) for note in notes] == [
        "operator 0 CAST ('out'): NaN has no integer value"
    ]


def test_cast_of_bool() -> None:
    odd = np.array([0, 1, 2, 128], np.uint8).view(np.bool_)
    assert same(run(Op.CAST, [(DType.BOOL, odd)], DType.INT32), [0, 1, 1, 1])
    assert same(
        run(Op.CAST, [(DType.INT32, [65536, INT32_MIN, 0])], DType.BOOL), [1, 1, 0]
    )


def test_cast_to_fp8() -> None:
    x = [448, 464, 464.001, -1e9, INF, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10]
    expected = [448, 448, NAN, NAN, NAN, 2.0**-9, 0, 2.0**-9]
    assert same(run(Op.CAST, [(DType.FP32, x)], DType.FP8E4M3), expected)


@pytest.mark.parametrize(
    "dtype", [DType.BF16, DType.FP16, DType.FP8E4M3, DType.FP8E5M2, DType.FP32]
)
def test_rounding_happens_once(dtype: DType) -> None:
    # Just above the middle of two neighbours: rounded to FP32 first, it would be the
    # middle, and then go to the even one below.
    one = np.array([1.0]).astype(dtype.numpy)
    unit = float(np.array([1.0]).astype(dtype.numpy).view(f"u{one.itemsize}")[0])
    above = np.array([int(unit) + 1], f"u{one.itemsize}").view(dtype.numpy)
    middle = (1.0 + float(above[0])) / 2
    assert round_float(dtype, np.array([middle]))[0] == one[0]
    assert round_float(dtype, np.array([np.nextafter(middle, 2)]))[0] == above[0]
    assert round_float(dtype, np.array([np.nextafter(-middle, -2)]))[0] == -above[0]


def test_rounding_of_every_bfloat16_neighbourhood() -> None:
    bits = np.arange(0x7F80, dtype=np.uint16)
    exact = bits.view(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(round_float(DType.BF16, exact).view(np.uint16), bits)
    half = (exact[:-1] + exact[1:]) / 2
    rounded = round_float(DType.BF16, half).view(np.uint16)
    assert np.array_equal(rounded, bits[:-1] + (bits[:-1] & 1))
    above = round_float(DType.BF16, np.nextafter(half, np.inf)).view(np.uint16)
    assert np.array_equal(above, bits[1:])


def test_clamp_and_nan() -> None:
    def clamp(x: ArrayLike, low: float, high: float, mode: NanMode) -> Array:
        bounds: dict[str, Any] = {
            "min_val": np.float32(low).tobytes() + bytes(4),
            "max_val": np.float32(high).tobytes() + bytes(4),
        }
        return run(Op.CLAMP, [(DType.FP32, x)], DType.FP32, nan_mode=mode, **bounds)

    assert same(clamp([-1, 3, 9], 0, 6, NanMode.PROPAGATE), [0, 3, 6])
    assert same(clamp([NAN], 0, 1, NanMode.PROPAGATE), [NAN])
    assert same(clamp([NAN], 2, 5, NanMode.IGNORE), [2])


def test_signalling_nans_are_ignored_too() -> None:
    x = np.array([0x7F800001] * 9, np.uint32).view(np.float32)
    operands: list[tuple[DType, ArrayLike]] = [
        (DType.FP32, x),
        (DType.FP32, np.ones(9)),
    ]
    result = run(Op.MAXIMUM, operands, DType.FP32, nan_mode=NanMode.IGNORE)
    assert same(result, np.ones(9))


@pytest.mark.parametrize(
    ("x", "propagate", "ignore"),
    [
        ([1, NAN, 5, NAN], 1, 2),
        ([NAN, NAN], 0, 0),
        ([3, 7, 7], 1, 1),
        ([-INF] * 4, 0, 0),
        ([0.0, -0.0, 0.0], 0, 0),
        ([NAN, -INF], 0, 1),
    ],
)
def test_argmax(x: list[float], propagate: int, ignore: int) -> None:
    for mode, expected in ((NanMode.PROPAGATE, propagate), (NanMode.IGNORE, ignore)):
        found = run(Op.ARGMAX, [(DType.FP32, x)], DType.INT32, axis=0, nan_mode=mode)
        assert same(found, expected)


def test_reduce_max_of_nan_and_infinity() -> None:
    def reduce(x: list[float], mode: NanMode) -> Array:
        return run(Op.REDUCE_MAX, [(DType.FP32, x)], DType.FP32, axis=0, nan_mode=mode)

    assert same(reduce([-INF, -INF], NanMode.PROPAGATE), [-INF])
    assert same(reduce([-INF, NAN], NanMode.PROPAGATE), [NAN])
    assert same(reduce([-INF, NAN], NanMode.IGNORE), [-INF])
    assert same(reduce([NAN, NAN], NanMode.IGNORE), [NAN])


def test_shifts() -> None:
    x = [125, -125, -1, -3, -5, 5, 7, -1, 1 << 30, -(1 << 30), INT32_MIN]
    by = [0, 0, 1, 1, 1, 1, 1, 31, 31, 31, 31]
    operands: list[tuple[DType, ArrayLike]] = [(DType.INT32, x), (DType.INT32, by)]
    found = run(Op.ARITHMETIC_RIGHT_SHIFT, operands, DType.INT32, round=True)
    assert same(found, [125, -125, 0, -1, -2, 3, 4, 0, 1, 0, -1])
    operands = [(DType.INT8, [-1, -128]), (DType.INT8, [1, 7])]
    assert same(run(Op.LOGICAL_RIGHT_SHIFT, operands, DType.INT8), [127, 1])
    assert same(run(Op.LOGICAL_LEFT_SHIFT, operands, DType.INT8), [-2, 0])


def test_multiply_with_shift() -> None:
    def multiply(a: int, b: int, shift: int) -> Array:
        operands: list[tuple[DType, ArrayLike]] = [
            (DType.INT32, [a]),
            (DType.INT32, [b]),
            scalar(DType.INT8, shift),
        ]
        return run(Op.MUL, operands, DType.INT32)

    assert same(multiply(-5, 3, 1), [-7])
    assert same(multiply(5, 3, 1), [8])
    assert same(multiply(1 << 30, 1 << 30, 31), [536870912])
    assert same(multiply(INT32_MAX, INT32_MAX, 32), [1073741823])


def test_integer_division_truncates_and_reports() -> None:
    notes: list[Note] = []
    operands: list[tuple[DType, ArrayLike]] = [
        (DType.INT32, [-7, 7, -7, INT32_MIN]),
        (DType.INT32, [2, -2, -2, 1]),
    ]
    found = run(Op.INTDIV, operands, DType.INT32, notes=notes)
    assert same(found, [-3, -3, 3, INT32_MIN])
    assert not notes
    operands = [(DType.INT32, [1, INT32_MIN]), (DType.INT32, [0, -1])]
    run(Op.INTDIV, operands, DType.INT32, notes=notes)
    assert [note.reason for note in notes] == [
        "division by zero",
        "the quotient overflows",
    ]


def test_negate_saturates_with_zero_points() -> None:
    def negate(x: list[int], zero_in: int, zero_out: int) -> Array:
        operands: list[tuple[DType, ArrayLike]] = [
            (DType.INT8, x),
            scalar(DType.INT8, zero_in),
            scalar(DType.INT8, zero_out),
        ]
        return run(Op.NEGATE, operands, DType.INT8)

    assert same(negate([-128, 127, 0], 0, 0), [127, -127, 0])
    assert same(negate([8, 6, -128, 127], 6, 6), [4, 6, 127, -115])
    assert same(negate([127, -128], -128, -128), [-128, -128])


def test_table_interpolates() -> None:
    table = np.clip(100 * (np.arange(513) - 256), -32768, 32767)
    x = np.arange(-32768, 32768)
    operands: list[tuple[DType, ArrayLike]] = [(DType.INT16, x), (DType.INT16, table)]
    assert same(run(Op.TABLE, operands, DType.INT32), 100 * x)


def test_count_leading_zeros() -> None:
    x = [0, 1, -1, INT32_MAX, 1 << 16, (1 << 16) - 1]
    assert same(run(Op.CLZ, [(DType.INT32, x)], DType.INT32), [32, 31, 0, 1, 15, 16])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (RoundingMode.SINGLE_ROUND, [0, 1, 1, 0, 0, -1, -1, -1]),
        (RoundingMode.DOUBLE_ROUND, [1, 1, 2, 0, -1, -1, -1, -2]),
    ],
)
def test_rescale_rounding(mode: RoundingMode, expected: list[int]) -> None:
    operands: list[tuple[DType, ArrayLike]] = [
        (DType.INT32, [3, 4, 11, -3, -4, -5, -11, -12]),
        scalar(DType.INT32, 1 << 30),
        scalar(DType.INT8, 33),
        scalar(DType.INT32),
        scalar(DType.INT32),
    ]
    found = run(Op.RESCALE, operands, DType.INT32, scale32=True, rounding_mode=mode)
    assert same(found, expected)


def test_rescale_of_unsigned_input() -> None:
    x = np.array([0, 127, 128, 200, 255], np.uint8).view(np.int8)

    def rescale(zero: int) -> Array:
        operands: list[tuple[DType, ArrayLike]] = [
            (DType.INT8, x),
            scalar(DType.INT32, 1 << 30),
            scalar(DType.INT8, 30),
            (DType.INT8, np.array([zero], np.uint8).view(np.int8)),
            scalar(DType.INT8),
        ]
        return run(
            Op.RESCALE,
            operands,
            DType.INT8,
            scale32=True,
            input_unsigned=True,
            rounding_mode=RoundingMode.SINGLE_ROUND,
        )

    assert same(rescale(200), [-128, -73, -72, 0, 55])
    assert same(rescale(128), [-128, -1, 0, 72, 127])


@pytest.mark.parametrize(
    ("window", "mean"),
    [
        ([-1, -1, 0, 0], -1),
        ([1, 1, 0, 0], 1),
        ([-3, -3, 0, 0], -2),
        ([3, 3, 0, 0], 2),
        ([-1, 0, 0, 0], 0),
    ],
)
def test_average_pool_rounds_as_the_reciprocal_does(
    window: list[int], mean: int
) -> None:
    operands: list[tuple[DType, ArrayLike]] = [
        (DType.INT8, np.array(window).reshape(1, 2, 2, 1)),
        scalar(DType.INT8),
        scalar(DType.INT8),
    ]
    found = run(
        Op.AVG_POOL2D,
        operands,
        DType.INT8,
        kernel=(2, 2),
        stride=(1, 1),
        pad=(0, 0, 0, 0),
        acc_type=DType.INT32,
    )
    assert same(found, np.full((1, 1, 1, 1), mean))


def convolve(
    op: Op, x: ArrayLike, weights: ArrayLike, zero: int = 0, **attributes: Attribute
) -> Array:
    operands: list[tuple[DType, ArrayLike]] = [
        (DType.INT8, x),
        (DType.INT8, weights),
        scalar(DType.INT32),
        scalar(DType.INT8, zero),
        scalar(DType.INT8),
    ]
    named: dict[str, Any] = {"acc_type": DType.INT32, **attributes}
    return run(op, operands, DType.INT32, **named)


def test_padding_is_the_zero_point() -> None:
    pad: dict[str, Any] = {"pad": (0, 0, 1, 1), "stride": (1, 1), "dilation": (1, 1)}
    x = np.full((1, 1, 3, 1), 5)
    found = convolve(Op.CONV2D, x, np.ones((1, 1, 3, 1)), 5, **pad)
    assert same(found, np.zeros((1, 1, 3, 1)))
    found = convolve(Op.DEPTHWISE_CONV2D, x, np.ones((1, 3, 1, 1)), 5, **pad)
    assert same(found, np.zeros((1, 1, 3, 1)))


def test_convolution_with_stride_and_dilation() -> None:
    x = np.arange(1, 8).reshape(1, 1, 7, 1)
    weights = np.array([1, 10]).reshape(1, 1, 2, 1)
    geometry: dict[str, Any] = {
        "pad": (0, 0, 0, 0),
        "stride": (1, 2),
        "dilation": (1, 3),
    }
    found = convolve(Op.CONV2D, x, weights, **geometry)
    assert found.reshape(-1).tolist() == [41, 63]


def test_depthwise_channels_are_interleaved() -> None:
    x = np.array([1, 2]).reshape(1, 1, 1, 2)
    weights = np.array([[3, 4, 5], [6, 7, 8]]).reshape(1, 1, 2, 3)
    geometry: dict[str, Any] = {
        "pad": (0, 0, 0, 0),
        "stride": (1, 1),
        "dilation": (1, 1),
    }
    found = convolve(Op.DEPTHWISE_CONV2D, x, weights, **geometry)
    assert found.reshape(-1).tolist() == [3, 4, 5, 12, 14, 16]


@pytest.mark.parametrize(
    ("stride", "pad", "expected"),
    [
        (1, (0, 0, 0, 0), [10, 40, 100, 120, 90]),
        (1, (0, 0, -1, -1), [40, 100, 120]),
        (1, (0, 0, 2, 0), [0, 0, 10, 40, 100, 120, 90]),
        (2, (0, 0, 0, 0), [10, 20, 50, 40, 90, 60, 90]),
    ],
)
def test_transpose_convolution(
    stride: int, pad: tuple[int, ...], expected: list[int]
) -> None:
    x = np.array([1, 2, 3]).reshape(1, 1, 3, 1)
    weights = np.array([10, 20, 30]).reshape(1, 1, 3, 1)
    found = convolve(Op.TRANSPOSE_CONV2D, x, weights, stride=(1, stride), out_pad=pad)
    assert found.reshape(-1).tolist() == expected


def test_infinite_weights_do_not_meet_padding() -> None:
    operands: list[tuple[DType, ArrayLike]] = [
        (DType.FP32, np.ones((1, 1, 2, 1))),
        (DType.FP32, np.array([INF, 1.0]).reshape(1, 1, 2, 1)),
        scalar(DType.FP32),
        scalar(DType.FP32),
        scalar(DType.FP32),
    ]
    found = run(
        Op.CONV2D,
        operands,
        DType.FP32,
        pad=(0, 0, 1, 0),
        stride=(1, 1),
        dilation=(1, 1),
        acc_type=DType.FP32,
    )
    assert same(found.reshape(-1), [1, INF])


def resize(x: ArrayLike, dtype: DType, mode: ResizeMode) -> Array:
    row = np.asarray(x).reshape(1, 1, -1, 1)
    operands: list[tuple[DType, ArrayLike]] = [
        (dtype, row),
        (DType.SHAPE, [1, 1, 4, 2]),
        (DType.SHAPE, [0, -1]),
        (DType.SHAPE, [0, 1]),
    ]
    return run(Op.RESIZE, operands, dtype, mode=mode).reshape(-1)


def test_resize() -> None:
    found = resize([10, 20, 30, 40, 50], DType.INT8, ResizeMode.NEAREST)
    assert same(found, [10, 10, 20, 20, 30, 30, 40, 40, 50, 50])
    found = resize([1, 2, 3, 4], DType.FP32, ResizeMode.BILINEAR)
    assert same(found, [1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4])


def test_bad_indices_read_zero_and_are_noted() -> None:
    notes: list[Note] = []
    operands: list[tuple[DType, ArrayLike]] = [
        (DType.INT8, np.arange(1, 5).reshape(1, 4, 1)),
        (DType.INT32, [[3, -1, 4, INT32_MAX]]),
    ]
    found = run(Op.GATHER, operands, DType.INT8, notes=notes)
    assert found.reshape(-1).tolist() == [4, 0, 0, 0]
    assert [note.reason for note in notes] == ["an index is not in 0..3"]


def test_moves_keep_every_bit() -> None:
    x = np.array([0x7F800001, 0xFFC12345, 1, 0x80000000], np.uint32).view(np.float32)
    found = run(Op.REVERSE, [(DType.FP32, x)], DType.FP32, axis=0)
    assert np.array_equal(found.view(np.uint32)[::-1], x.view(np.uint32))


def test_transforms_reduce_their_angles() -> None:
    impulse = np.zeros((1, 1, 64))
    impulse[0, 0, 63] = 1
    names, k = ("re", "im", "a", "b"), np.arange(64)
    tensors = {name: Tensor(name, DType.FP32, (1, 1, 64)) for name in names}
    op = Operator(0, Op.FFT2D, names[:2], names[2:])
    block = Block("main", (op,), tensors, names[:2], names[2:])
    real, imag = evaluate_operator(op, block, [impulse, np.zeros_like(impulse)])
    turn = 63 * k % 64 / 64
    assert np.allclose(real[0, 0], np.cos(2 * np.pi * turn), atol=1e-15)
    assert np.allclose(imag[0, 0], -np.sin(2 * np.pi * turn), atol=1e-15)


def graph_of(*blocks: Block) -> Graph:
    regions = tuple(Region(block.name, (block,)) for block in blocks)
    return Graph(Version(1, 0, 0, False), regions)


def test_a_loop_counts() -> None:
    def number(name: str, value: int | None = None) -> Tensor:
        data = None
        if value is not None:
            raw = pack_serialized(DType.INT32, np.array(value, np.int32))
            data = memoryview(raw)
        return Tensor(name, DType.INT32, (), data)

    def block(name: str, op: Operator, constant: int, result: Tensor) -> Block:
        tensors = {"i": number("i"), "k": number("k", constant), "r": result}
        make = Operator(0, Op.CONST, (), ("k",))
        return Block(name, (make, op), tensors, ("i",), ("r",))

    below = Operator(1, Op.GREATER, ("k", "i"), ("r",))
    more = Operator(1, Op.ADD, ("i", "k"), ("r",))
    loop = Operator(
        0, Op.WHILE_LOOP, ("i",), ("r",), {"cond_graph": "cond", "body_graph": "body"}
    )
    main = Block("main", (loop,), {"i": number("i"), "r": number("r")}, ("i",), ("r",))
    graph = graph_of(
        main,
        block("cond", below, 10, Tensor("r", DType.BOOL, ())),
        block("body", more, 3, number("r")),
    )
    assert evaluate(graph, {"i": np.array(2, np.int32)})["r"] == 11


def test_every_intermediate_is_given_and_precise_does_not_round() -> None:
    names = ("x", "y", "z")
    tensors = {name: Tensor(name, DType.FP32, (1,)) for name in names}
    block = Block(
        "main",
        (
            Operator(0, Op.EXP, ("x",), ("y",)),
            Operator(1, Op.LOG, ("y",), ("z",)),
        ),
        tensors,
        ("x",),
        ("z",),
    )
    x = np.array([0.1], np.float32)
    values = evaluate(graph_of(block), {"x": x})
    assert list(values) == ["x", "y", "z"]
    assert values["y"].dtype == np.float64
    assert values["y"][0] == math.exp(float(x[0]))
    native = evaluate(graph_of(block), {"x": x}, precise=False)
    assert native["y"].dtype == np.float32
    assert native["y"][0] == np.float32(math.exp(float(x[0])))


def test_wrong_inputs_are_named() -> None:
    tensors = {name: Tensor(name, DType.FP32, (2,)) for name in "xy"}
    op = Operator(0, Op.ABS, ("x",), ("y",))
    block = Block("main", (op,), tensors, ("x",), ("y",))
    with pytest.raises(InvalidArgument, match="no value for input 'x'"):
        evaluate(block, {})
    with pytest.raises(InvalidArgument, match="FP32"):
        evaluate(block, {"x": np.zeros(2, np.int32)})
    with pytest.raises(InvalidArgument, match=r"shape \(2,\)"):
        evaluate(block, {"x": np.zeros(3, np.float32)})


def test_a_custom_operator_is_refused() -> None:
    with pytest.raises(Unsupported, match="CUSTOM"):
        run(Op.CUSTOM, [(DType.FP32, [1])], DType.FP32)
