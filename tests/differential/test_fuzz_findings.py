"""What fuzzing found, kept: each a program that was once judged wrongly."""

from pathlib import Path

import numpy as np
import pytest

from harness.planted import Array, Planted, healthy, plant
from tosavk.backends.reference.oracle import expect
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceLost
from tosavk.differential.exceptions import Trait, excuses
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.files import read_case
from tosavk.differential.fuzz.judge import Judge, Kind, Verdict
from tosavk.differential.fuzz.reducing import reduce_finding
from tosavk.differential.sides import Side
from tosavk.lowering import control
from tosavk.lowering.graph import Graph, Op, Operator
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

HUGE = 3.0e38
TINY = 2.0**-130


def judged(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, fault: Planted, **inputs: Array
) -> Verdict:
    plant(monkeypatch, {"device": fault})
    with Judge(("device", "reference")) as judge:
        return judge.judge(Case(graph, (inputs,)))


def gives(value: float) -> Planted:
    """The first element of every result is this."""

    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if not op.inputs:
            return results
        wrong = results[0].copy()
        wrong.reshape(-1)[0] = value
        return [wrong, *results[1:]]

    return fault


def product() -> Graph:
    b = Builder()
    b.output(b.reduce_product(b.input("x", DType.FP32, (2, 4)), 1))
    return load_graph(b.build())


@pytest.mark.parametrize(
    ("row", "wrong", "agrees"),
    [
        # The product of the first two overflows, that of all does not.
        ([1e30, 1e30, 1e-30, 1e-30], np.inf, True),
        ([1e-30, 1e-30, 1e30, 1e30], 0.0, True),
        ([2.0, 3.0, 4.0, 5.0], np.inf, False),
        ([2.0, 3.0, 4.0, 5.0], 121.0, False),
        ([np.inf, 3.0, 4.0, 5.0], 7.0, False),
        ([0.0, 3.0, 4.0, 5.0], 1.0, False),
        ([np.inf, 0.0, 4.0, 5.0], 1.0, False),
    ],
)
def test_a_product_that_overflows_on_the_way_is_free(
    monkeypatch: pytest.MonkeyPatch, row: list[float], wrong: float, *, agrees: bool
) -> None:
    x = np.array([row, [1.0, 2.0, 3.0, 4.0]], np.float32)
    verdict = judged(monkeypatch, product(), gives(wrong), x=x)
    assert (not verdict.findings) == agrees, verdict.findings
    assert not judged(monkeypatch, product(), healthy, x=x).findings


def test_a_mean_whose_sum_overflows_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    b.output(b.avg_pool2d(b.input("x", DType.FP32, (1, 2, 2, 1)), (2, 2)))
    graph = load_graph(b.build())
    x = np.full((1, 2, 2, 1), HUGE, np.float32)
    assert not judged(monkeypatch, graph, gives(np.inf), x=x).findings
    assert judged(monkeypatch, graph, gives(np.inf), x=x / 8).findings


def test_the_bound_of_a_transform_sees_small_values_beside_large_ones() -> None:
    b = Builder()
    real, imaginary = b.rfft2d(b.input("x", DType.FP32, (1, 8, 1)), local_bound=True)
    b.output(real)
    b.output(imaginary)
    graph = load_graph(b.build())
    (op,) = graph.main.operators
    x = np.zeros((1, 8, 1), np.float32)
    x[0, 3:6, 0] = -128.5, -3.4028235e38, 0.998
    expected = expect(op, graph.main, [x])[1]
    assert expected.bound is not None
    # The large value has a weight of sin(2 pi) here.
    assert 129.4 < expected.bound[0, 2, 0] < 140
    assert np.all(expected.bound >= np.abs(expected.reference) * (1 - 1e-12))


def test_bounds_of_large_transforms_are_those_of_small_ones() -> None:
    from tosavk.backends.reference.operators import transforms

    values = np.abs(np.random.default_rng(1).normal(size=(2, 8, 16)))
    direct = transforms.weighted_sums(values, 9, 2.0**-126)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "_DIRECT", 0)
        series = transforms.weighted_sums(values, 9, 2.0**-126)
    for one, other in zip(direct, series, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-11)


def flushing(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
    """A device that sees subnormal operands of MUL as zero."""
    del graph
    if op.op is not Op.MUL:
        return results
    wrong = results[0].copy()
    wrong.reshape(-1)[0] = np.nan
    return [wrong]


def test_a_flushed_number_times_infinity_is_a_known_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Builder()
    x, y = (b.input(name, DType.FP32, (3,)) for name in "xy")
    b.output(b.mul(x, y))
    graph = load_graph(b.build())
    inputs = {
        "x": np.array([TINY, 2.0, 3.0], np.float32),
        "y": np.array([np.inf, 2.0, 3.0], np.float32),
    }
    plant(monkeypatch, {"device": flushing})
    with Judge(("device", "reference")) as judge:
        judge.lanes[0].known = frozenset()
        assert judge.judge(Case(graph, (inputs,))).findings
        judge.lanes[0].known = frozenset({Trait.FLUSHES_SUBNORMALS})
        verdict = judge.judge(Case(graph, (inputs,)))
        assert not verdict.findings
        assert verdict.exceptions == 1
        # It excuses nothing where no operand is subnormal.
        inputs["x"] = np.array([0.5, 2.0, 3.0], np.float32)
        assert judge.judge(Case(graph, (inputs,))).findings


FLUSHES = frozenset({Trait.FLUSHES_SUBNORMALS})


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
def test_products_are_excused_exactly(shape: tuple[int, int]) -> None:
    x = np.array([[3.0e38, 2.0, TINY]], np.float32).reshape(shape)
    axis = shape.index(3)
    ideal = np.full((1, 1), np.inf, np.float32)
    flushed = np.full((1, 1), np.nan, np.float32)
    for right, used in ((flushed, (Trait.FLUSHES_SUBNORMALS,)), (ideal * -1, ())):
        found = excuses(Op.REDUCE_PRODUCT, DType.FP32, [x], ideal, right, FLUSHES)
        assert found == used, axis


def test_products_of_one_factor_are_excused() -> None:
    x = np.array([[TINY], [1.0]], np.float32)
    flushed = np.array([[0.0], [1.0]], np.float32)
    used = excuses(Op.REDUCE_PRODUCT, DType.FP32, [x], x, flushed, FLUSHES)
    assert used == (Trait.FLUSHES_SUBNORMALS,)
    assert not excuses(Op.REDUCE_PRODUCT, DType.FP32, [x], x, flushed + 1, FLUSHES)


def test_sums_are_excused_as_far_as_a_flushed_operand_explains() -> None:
    small = np.full((1, 2, 2), TINY, np.float32)
    large = np.full((1, 2, 2), HUGE, np.float32)
    ideal = np.full((1, 2, 2), 2 * TINY * HUGE, np.float32)
    none = np.zeros((1, 2, 2), np.float32)
    operands = [small, large]
    used = excuses(Op.MATMUL, DType.FP32, operands, ideal, none, FLUSHES)
    assert used == (Trait.FLUSHES_SUBNORMALS,)
    assert not excuses(Op.MATMUL, DType.FP32, operands, ideal, none + HUGE, FLUSHES)
    ordinary = [np.ones_like(small), large]
    assert not excuses(Op.MATMUL, DType.FP32, ordinary, ideal, none, FLUSHES)


def test_a_constant_that_looks_like_another_one_is_not_mistaken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Builder()
    weights = b.const(np.arange(24).reshape(2, 3, 4).astype(np.float16))
    b.output(b.cast(weights, DType.FP32))
    b.output(b.matmul(b.input("x", DType.FP16, (2, 5, 3)), weights))
    plant(monkeypatch, {"one": healthy, "two": healthy})
    with Judge(("one", "two")) as judge:
        case = Case(load_graph(b.build()), ())
        assert not judge.judge(case, plans_only=True).findings


@pytest.mark.parametrize("shape", [(), (1, 1), (2, 3)])
def test_powers_of_one_exponent_are_those_of_c(shape: tuple[int, ...]) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, shape)
    y = b.input("y", DType.FP32, (1,) * len(shape))
    b.output(b.pow(x, y))
    graph = load_graph(b.build())
    (op,) = graph.main.operators
    for base in (-np.inf, -0.0):
        operands = [np.full(shape, base), np.full((1,) * len(shape), 0.5)]
        (expected,) = expect(op, graph.main, operands)
        assert expected.reference.shape == shape
        assert np.all(expected.reference == abs(base))
        assert not np.signbit(expected.reference).any()


@pytest.mark.parametrize("op", [Op.MUL, Op.REDUCE_PRODUCT])
def test_what_rounds_up_to_a_normal_number_may_be_flushed(op: Op) -> None:
    factors = np.array([[2.0**-126, 1 - 2.0**-24]], np.float32)
    ideal = np.full((1, 1), 2.0**-126, np.float32)
    operands = (
        [factors] if op is Op.REDUCE_PRODUCT else [factors[:, :1], factors[:, 1:]]
    )
    used = excuses(op, DType.FP32, operands, ideal, ideal * 0, FLUSHES)
    assert used == (Trait.FLUSHES_SUBNORMALS,)
    assert not excuses(op, DType.FP32, operands, ideal, ideal * 2, FLUSHES)


@pytest.mark.parametrize("name", ["COND_IF", "WHILE_LOOP"])
def test_what_differs_inside_of_control_flow_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (3,))
    if name == "COND_IF":
        for region in ("then", "else"):
            inner = b.region(region)
            value = inner.input(f"in_{region}", DType.FP32, (3,))
            made = inner.negate(value) if region == "then" else inner.ceil(value)
            inner.output(made)
        condition = b.input("c", DType.BOOL, (1,))
        (y,) = b.cond_if(condition, [x], then_graph="then", else_graph="else")
    else:
        check, body = b.region("check"), b.region("body")
        count = check.input("count", DType.INT32, (1,))
        check.input("unused", DType.FP32, (3,))
        check.output(check.greater(check.const(np.full(1, 2, np.int32)), count))
        turn = body.input("turn", DType.INT32, (1,))
        value = body.input("value", DType.FP32, (3,))
        body.output(body.add(turn, body.const(np.ones(1, np.int32))))
        body.output(body.ceil(value))
        start = b.input("s", DType.INT32, (1,))
        _, y = b.while_loop([start, x], cond_graph="check", body_graph="body")
    b.output(y)
    graph = load_graph(b.build())
    inputs: dict[str, Array] = {
        "x": np.array([0.5, 1.5, -2.5], np.float32),
        "c": np.zeros(1, np.bool_),
        "s": np.zeros(1, np.int32),
    }
    sample = {n: a for n, a in inputs.items() if n in graph.main.inputs}

    def wrong(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if op.op is not Op.CEIL:
            return results
        return [(results[0].astype(np.float32) + 1).astype(np.float32)]

    plant(monkeypatch, {"good": healthy, "bad": wrong})
    case = Case(graph, (sample,))
    for backends in (("good", "bad"), ("bad", "reference")):
        with Judge(backends) as judge:
            assert judge.judge(case).findings[0].key.op == name
            found = reduce_finding(case, judge, tmp_path / backends[0])
        assert found.key is not None
        assert found.key.op == "CEIL"
        assert found.after[0] == 1
    with Judge(("good", "reference")) as judge:
        assert not judge.judge(case).findings


def test_a_variable_that_is_not_written_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = vars(control)["_Cut"]._effect

    def wrong(cut: object, op: Operator) -> None:
        if op.op is not Op.VARIABLE_WRITE:
            right(cut, op)

    monkeypatch.setattr(vars(control)["_Cut"], "_effect", wrong)
    plant(monkeypatch, {"one": healthy})
    b = Builder()
    x = b.input("x", DType.FP32, (4,))
    state = b.variable("state", DType.FP32, (4,), np.zeros(4, np.float32))
    old = b.variable_read(state)
    b.variable_write(state, b.add(old, x))
    b.output(b.negate(old))
    samples = tuple({"x": np.full(4, n, np.float32)} for n in (1, 2, 3))
    with Judge(("one", "reference")) as judge:
        found = reduce_finding(
            Case(load_graph(b.build()), samples), judge, tmp_path / "small"
        )
    assert found.key is not None
    assert (found.key.kind, found.key.op) == (Kind.RULE, "VARIABLE_READ")
    assert found.after[0] <= 4
    assert (tmp_path / "small" / "build.py").exists()
    monkeypatch.setattr(vars(control)["_Cut"], "_effect", right)
    with Judge(("one", "reference")) as judge:
        assert not judge.examine(read_case(tmp_path / "small"))


def test_what_exceptions_put_into_variables_is_not_held_against_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flushes(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if op.op is not Op.ADD:
            return results
        sums = results[0].astype(np.float32)
        sums[np.abs(sums) < 2.0**-126] = 0
        return [sums]

    plant(monkeypatch, {"good": healthy, "flushing": flushes})

    def known(side: Side) -> frozenset[Trait]:
        del side
        return frozenset({Trait.FLUSHES_SUBNORMALS})

    monkeypatch.setattr(Side, "traits", known)
    b = Builder()
    x = b.input("x", DType.FP32, (2,))
    state = b.variable("state", DType.FP32, (2,), np.zeros(2, np.float32))
    old = b.variable_read(state)
    b.variable_write(state, b.add(old, x))
    b.output(old)
    samples = tuple({"x": np.array([TINY, 1], np.float32)} for _ in range(3))
    graph = load_graph(b.build())
    with Judge(("good", "flushing", "reference")) as judge:
        assert not judge.examine(Case(graph, samples))


def test_a_device_that_is_lost_while_one_operator_runs_again_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator behind one that differs is run again, on the first's operands."""

    def frail(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        if len(graph.main.operators) == 1:
            raise DeviceLost("gone")
        if op.op is not Op.NEGATE:
            return results
        return [(results[0].astype(np.float32) + 1).astype(np.float32)]

    b = Builder()
    b.output(b.exp(b.negate(b.input("x", DType.FP32, (4,)))))
    graph = load_graph(b.build())
    plant(monkeypatch, {"good": healthy, "frail": frail})
    x = np.array([0.5, 1.0, 2.0, -1.0], np.float32)
    with Judge(("good", "frail")) as judge, pytest.raises(DeviceLost, match="gone"):
        judge.judge(Case(graph, ({"x": x},)))
