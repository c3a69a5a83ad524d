"""EXT-DYNAMIC: operands that are usually constants, given at run time."""

import numpy as np
import pytest

from harness.dynamic import CASES, F16, FORBIDDEN, GIVEN, I8, I16, I32, MADE, computed
from harness.running import Devices, same_values
from tosavk.backends.reference import evaluate
from tosavk.backends.registry import open_accelerator
from tosavk.backends.steps import run_by_operators
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.graph import Op
from tosavk.lowering.lower import lower_graph, value_rules
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder


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


@pytest.mark.parametrize(("case", "operand", "value", "message"), FORBIDDEN)
def test_what_an_operator_must_not_be_given(
    opened: Devices, device: str, case: str, operand: str, value: float, message: str
) -> None:
    """The rules for constants hold for values of run time, too."""
    graph, feeds = CASES[case].program(constant=False)
    with opened.session(device, graph) as session:
        session.run(feeds)
        wrong = {**feeds, operand: np.full_like(feeds[operand], value)}
        with pytest.raises(InvalidArgument, match=message.format(GIVEN)):
            session.run(wrong)
        session.run(feeds)


@pytest.mark.parametrize("region", [False, True], ids=["straight", "region"])
@pytest.mark.parametrize(("case", "operand", "value", "message"), FORBIDDEN)
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
        with pytest.raises(InvalidArgument, match=message.format(MADE)):
            session.run(wrong)
        assert same_values(first, *session.run(feeds).values())


def test_what_folding_finds_is_refused_at_load() -> None:
    b = Builder()
    zero = b.const(np.zeros(1, np.int16))
    three = b.op(Op.REVERSE, [b.const(np.array([3], np.int16))], axis=0, name="three")
    b.output(b.op(Op.NEGATE, [b.input("x", I16, (4,)), three, zero], name="y"))
    graph = load_graph(b.build())
    with pytest.raises(
        InvalidArgument, match=r"NEGATE .*: computed tensor 'three' is 3;"
    ):
        lower_graph(graph)


def test_a_constant_is_called_one() -> None:
    b = Builder()
    x, zero = b.input("x", I16, (4,)), b.const(np.zeros(1, np.int16))
    with pytest.raises(InvalidArgument, match=r"NEGATE .*: constant '.*' is 3;"):
        b.op(Op.NEGATE, [x, b.const(np.array([3], np.int16)), zero], name="y")


@pytest.mark.parametrize(("case", "operand", "value", "message"), FORBIDDEN)
def test_operator_by_operator_says_the_same(
    case: str, operand: str, value: float, message: str
) -> None:
    """Then what the program computes is an input of the next operator."""
    for origin, (graph, feeds) in {
        GIVEN: CASES[case].program(constant=False),
        MADE: computed(CASES[case], region=False),
    }.items():
        wrong = {**feeds, operand: np.full_like(feeds[operand], value)}
        with (
            open_accelerator("reference") as accelerator,
            pytest.raises(InvalidArgument, match=message.format(origin)),
        ):
            run_by_operators(accelerator, graph, wrong)


def test_operands_that_may_have_any_value_are_not_read_back() -> None:
    graph, _ = computed(CASES["convolution"], region=False)
    assert value_rules(graph) is None
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
                with pytest.raises(
                    InvalidArgument, match="computed tensor 'counted' is 1;"
                ):
                    session.run(feeds)
                continue
            (found,) = session.run(feeds).values()
            assert same_values(found, -values if count % 2 else values)
