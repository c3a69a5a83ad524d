"""EXT-DYNAMIC: operands that are usually constants, given at run time."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from harness.running import Array, Devices, same_values
from tosavk.backends.reference import evaluate
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.graph import Graph, Op, RoundingMode, Tensor
from tosavk.lowering.lower import computed_operands, lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

I8, I16, I32, F16, F32 = DType.INT8, DType.INT16, DType.INT32, DType.FP16, DType.FP32
Operand = tuple[DType, Any]


def noise(dtype: DType, *shape: int) -> Operand:
    rng = np.random.default_rng(sum(shape))
    if dtype.is_float:
        return dtype, rng.normal(size=shape)
    low, high = (-128, 128) if dtype is I8 else (-30000, 30000)
    return dtype, rng.integers(low, high, shape)


@dataclass(frozen=True, slots=True)
class Case:
    """An operator; the operands from `first` on are usually constants."""

    op: Op
    operands: tuple[Operand, ...]
    first: int
    dtype: DType | None = None
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])

    def program(self, *, constant: bool) -> tuple[Graph, dict[str, Array]]:
        b = Builder()
        feeds: dict[str, Array] = {}
        tensors: list[Tensor] = []
        for number, (dtype, value) in enumerate(self.operands):
            array = np.asarray(value).astype(dtype.numpy)
            if constant and number >= self.first:
                tensors.append(b.const(array, dtype))
            else:
                name = f"x{number}"
                tensors.append(b.input(name, dtype, array.shape))
                feeds[name] = array
        b.output(b.op(self.op, tensors, name="y", dtype=self.dtype, **self.attributes))
        return load_graph(b.build()), feeds


def zero_points(dtype: DType, *values: float) -> tuple[Operand, ...]:
    return tuple((dtype, [value]) for value in values)


def rescale(
    *, per_channel: bool, mode: RoundingMode = RoundingMode.SINGLE_ROUND
) -> Case:
    count = 5 if per_channel else 1
    rng = np.random.default_rng(count)
    multipliers = (I32, rng.integers(1 << 30, (1 << 31) - 1, count))
    shifts = (I8, rng.integers(31, 38, count))
    attributes = {
        "scale32": True,
        "rounding_mode": int(mode),
        "per_channel": per_channel,
    }
    operands = (noise(I8, 3, 5), multipliers, shifts, *zero_points(I8, 7, -3))
    return Case(Op.RESCALE, operands, 1, I8, attributes)


WINDOW = {"pad": (1, 1, 1, 0), "stride": (1, 1), "dilation": (1, 1)}
CASES = {
    "negate int8": Case(Op.NEGATE, (noise(I8, 3, 7), *zero_points(I8, 6, -128)), 1),
    "negate int16": Case(Op.NEGATE, (noise(I16, 5), *zero_points(I16, 0, 0)), 1),
    "negate int32": Case(Op.NEGATE, (noise(I32, 2, 1, 3), *zero_points(I32, 0, 0)), 1),
    "negate scalar": Case(Op.NEGATE, ((I8, -128), *zero_points(I8, 0, 0)), 1),
    "negate fp16": Case(Op.NEGATE, (noise(F16, 5), *zero_points(F16, 0, 0)), 1),
    **{
        f"mul shift {shift}": Case(
            Op.MUL,
            (
                (I32, np.array([[-(2**31), 2**31 - 1, -7, 5, 0, 123456789]])),
                (
                    I32,
                    np.array([[3], [-1], [2**30]]) if shift > 31 else [[3], [-1], [1]],
                ),
                (I8, [shift]),
            ),
            2,
            I32,
        )
        for shift in (2, 31, 32, 33, 62)
    },
    "mul int8": Case(Op.MUL, (noise(I8, 5), noise(I8, 1), (I8, [0])), 2, I32),
    "rescale": rescale(per_channel=False),
    "rescale channels": rescale(per_channel=True, mode=RoundingMode.DOUBLE_ROUND),
    "table int8": Case(Op.TABLE, (noise(I8, 3, 5), noise(I8, 256)), 1, I8),
    "table int16": Case(
        Op.TABLE, (noise(I16, 7), (I16, np.arange(513) * 60 - 15000)), 1, I32
    ),
    "average": Case(
        Op.AVG_POOL2D,
        (noise(I8, 1, 5, 4, 3), *zero_points(I8, 9, -4)),
        1,
        None,
        {
            "kernel": (2, 2),
            "stride": (1, 1),
            "pad": (1, 1, 0, 0),
            "acc_type": I32,
        },
    ),
    "product": Case(
        Op.MATMUL,
        (noise(I8, 2, 3, 5), noise(I8, 2, 5, 4), *zero_points(I8, 3, -7)),
        2,
        I32,
    ),
    "convolution": Case(
        Op.CONV2D,
        (
            noise(I8, 1, 5, 4, 3),
            noise(I8, 2, 3, 2, 3),
            noise(I32, 2),
            *zero_points(I8, 5, -2),
        ),
        1,
        None,
        {**WINDOW, "acc_type": I32},
    ),
    "volumes": Case(
        Op.CONV3D,
        (
            noise(I8, 1, 3, 5, 4, 3),
            noise(I8, 2, 2, 3, 2, 3),
            noise(I32, 2),
            *zero_points(I8, 5, -2),
        ),
        1,
        None,
        {
            "pad": (1, 0, 1, 1, 1, 0),
            "stride": (1, 1, 1),
            "dilation": (1, 1, 1),
            "acc_type": I32,
        },
    ),
    "float convolution": Case(
        Op.CONV2D,
        (
            noise(F16, 1, 5, 4, 3),
            noise(F16, 2, 3, 2, 3),
            noise(F16, 2),
            *zero_points(F16, 0, 0),
        ),
        1,
        None,
        {**WINDOW, "acc_type": F32},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_makes_no_difference(opened: Devices, device: str, name: str) -> None:
    """The same bits, whether operands are constants or come at run time."""
    case = CASES[name]
    graph, feeds = case.program(constant=True)
    want = opened.run(device, graph, feeds)["y"]
    if want.dtype.kind != "f":
        assert same_values(evaluate(graph, feeds, precise=False)["y"], want)
    graph, feeds = case.program(constant=False)
    assert len(feeds) == len(case.operands)
    assert same_values(want, opened.run(device, graph, feeds)["y"])


@pytest.mark.parametrize("dtype", [I8, F16, DType.BOOL], ids=lambda d: d.name)
def test_pad_with_a_value_of_run_time(
    opened: Devices, device: str, dtype: DType
) -> None:
    b = Builder()
    x, fill = b.input("x", dtype, (2, 3)), b.input("fill", dtype, (1,))
    b.output(b.op(Op.PAD, [x, b.const_shape((1, 2, 0, 1)), fill], name="y"))
    feeds = {
        "x": np.ones((2, 3), dtype.numpy),
        "fill": np.array([0 if dtype is DType.BOOL else 5], dtype.numpy),
    }
    found = opened.run(device, b.build(), feeds)["y"]
    want = np.pad(feeds["x"], ((1, 2), (0, 1)), constant_values=feeds["fill"][0])
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(
    ("case", "operand", "value", "message"),
    [
        ("negate int16", "x1", 3, "NEGATE .*'x1'.* 3"),
        ("negate fp16", "x2", 0.5, "NEGATE .*'x2'.*0.5"),
        ("float convolution", "x3", 1, "CONV2D .*'x3'.* 1"),
        ("mul shift 31", "x2", 64, "MUL .*'x2'.* 64"),
        ("mul int8", "x2", 1, "MUL .*'x2'.* 1"),
        ("rescale", "x1", -1, "RESCALE .*'x1'.*negative"),
        ("rescale", "x2", 1, "RESCALE .*'x2'.* 1"),
    ],
)
def test_what_an_operator_must_not_be_given(
    opened: Devices, device: str, case: str, operand: str, value: float, message: str
) -> None:
    """The rules for constants hold for values of run time, too."""
    graph, feeds = CASES[case].program(constant=False)
    with opened.session(device, graph) as session:
        session.run(feeds)
        wrong = {**feeds, operand: np.full_like(feeds[operand], value)}
        with pytest.raises(InvalidArgument, match=message):
            session.run(wrong)
        session.run(feeds)


COMPUTED: tuple[tuple[str, str, float, str], ...] = (
    ("negate int16", "x1", 3, "NEGATE .*'made1'.* 3"),
    ("negate fp16", "x2", 0.5, "NEGATE .*'made2'.*0.5"),
    ("float convolution", "x3", 1, "CONV2D .*'made3'.* 1"),
    ("mul shift 31", "x2", 64, "MUL .*'made2'.* 64"),
    ("mul int8", "x2", 1, "MUL .*'made2'.* 1"),
    ("rescale", "x1", -1, "RESCALE .*'made1'.*negative"),
    ("rescale", "x2", 1, "RESCALE .*'made2'.* 1"),
)


def computed(case: Case, *, region: bool) -> tuple[Graph, dict[str, Array]]:
    """The operator of a case with operands that the program itself computes.

    In a region, that is the one that COND_IF takes for a true condition.
    """
    b = Builder()
    feeds: dict[str, Array] = {}
    given: list[Tensor] = []
    for number, (dtype, value) in enumerate(case.operands):
        feeds[f"x{number}"] = np.asarray(value).astype(dtype.numpy)
        given.append(b.input(f"x{number}", dtype, feeds[f"x{number}"].shape))

    def body(inside: Builder, tensors: list[Tensor]) -> Tensor:
        turned = [
            inside.op(Op.REVERSE, [tensor], axis=0, name=f"made{number}")
            if number >= case.first
            else tensor
            for number, tensor in enumerate(tensors)
        ]
        return inside.op(
            case.op, turned, name="result", dtype=case.dtype, **case.attributes
        )

    if not region:
        b.output(body(b, given))
        return load_graph(b.build()), feeds
    feeds["taken"] = np.array([True])
    taken = b.input("taken", DType.BOOL, (1,))
    for name in ("then", "else"):
        inside = b.region(name)
        tensors = [
            inside.input(f"in{number}", tensor.dtype, tensor.shape or ())
            for number, tensor in enumerate(given)
        ]
        inside.output(body(inside, tensors))
    b.output(*b.cond_if(taken, given, then_graph="then", else_graph="else"))
    return load_graph(b.build()), feeds


@pytest.mark.parametrize("region", [False, True], ids=["straight", "region"])
@pytest.mark.parametrize(("case", "operand", "value", "message"), COMPUTED)
def test_what_a_program_must_not_compute(
    opened: Devices,
    device: str,
    case: str,
    operand: str,
    value: float,
    message: str,
    *,
    region: bool,
) -> None:
    """The rules hold for values that only the device has made, in regions too."""
    graph, feeds = computed(CASES[case], region=region)
    with opened.session(device, graph) as session:
        assert len(session.outputs) == 1
        (first,) = session.run(feeds).values()
        wrong = {**feeds, operand: np.full_like(feeds[operand], value)}
        with pytest.raises(InvalidArgument, match=message):
            session.run(wrong)
        assert same_values(first, *session.run(feeds).values())


def test_what_folding_finds_is_refused_at_load() -> None:
    b = Builder()
    zero = b.const(np.zeros(1, np.int16))
    three = b.op(Op.REVERSE, [b.const(np.array([3], np.int16))], axis=0, name="three")
    b.output(b.op(Op.NEGATE, [b.input("x", I16, (4,)), three, zero], name="y"))
    graph = load_graph(b.build())
    with pytest.raises(InvalidArgument, match=r"NEGATE .*'three'.* 3"):
        lower_graph(graph)


def test_operands_that_may_have_any_value_are_not_read_back() -> None:
    graph, _ = computed(CASES["convolution"], region=False)
    assert computed_operands(graph) == ()
    graph, _ = computed(CASES["convolution"], region=True)
    flow = lower_graph(graph).flow
    assert flow is not None
    assert not flow.checks


def test_rules_hold_in_every_turn_of_a_loop(opened: Devices, device: str) -> None:
    """A zero point that a loop counts up is refused when it is no longer 0."""
    b = Builder()
    x, turns = b.input("x", I16, (3,)), b.input("turns", I32, (1,))
    condition = b.region("condition")
    state = condition.input("n", I32, (1,)), condition.input("v", I16, (3,))
    condition.output(
        condition.greater(state[0], condition.const(np.zeros(1, np.int32)))
    )
    body = b.region("body")
    n, v = body.input("n", I32, (1,)), body.input("v", I16, (3,))
    # 0 for three turns or fewer, then more.
    over = body.maximum(
        body.sub(n, body.const(np.full(1, 3, np.int32))),
        body.const(np.zeros(1, np.int32)),
    )
    zero = body.op(Op.CAST, [over], dtype=I16, name="counted")
    body.output(body.sub(n, body.const(np.ones(1, np.int32))))
    body.output(
        body.op(Op.NEGATE, [v, zero, body.const(np.zeros(1, np.int16))], name="negated")
    )
    _, y = b.while_loop([turns, x], cond_graph="condition", body_graph="body")
    b.output(y)
    values = np.array([5, -6, 7], np.int16)
    with opened.session(device, load_graph(b.build())) as session:
        for count in (3, 2, 4, 1):
            feeds = {"x": values, "turns": np.array([count], np.int32)}
            if count > 3:
                with pytest.raises(InvalidArgument, match=r"NEGATE .*'counted'.* 1"):
                    session.run(feeds)
                continue
            (found,) = session.run(feeds).values()
            assert same_values(found, -values if count % 2 else values)
