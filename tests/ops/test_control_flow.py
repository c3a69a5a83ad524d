"""Control flow and variables on every device, against the graph evaluated as a whole."""

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tosavk
from harness.running import Devices
from tosavk.backends import flows
from tosavk.backends.reference import evaluate
from tosavk.backends.reference.evaluate import Turns
from tosavk.backends.session import Session
from tosavk.core.descriptors import FORMAT_TOSA, Artifact
from tosavk.core.dtypes import DType
from tosavk.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    Released,
    ResourceLimit,
    Unsupported,
)
from tosavk.lowering import target
from tosavk.lowering.admission import admissions
from tosavk.lowering.errors import AdmissionError
from tosavk.lowering.graph import Graph, Operator
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

Array = NDArray[Any]
F32, I32, BOOL = DType.FP32, DType.INT32, DType.BOOL
SHAPE = (3, 5)


def values(seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def number(n: int) -> Array:
    return np.array(n, np.int32)


@contextmanager
def loaded(
    opened: Devices, device: str, b: Builder, *, max_turns: int = 1 << 16
) -> Generator[Session]:
    lowered = opened.lower(device, b.build())
    with Session(opened.accelerator(device), lowered, max_turns=max_turns) as session:
        yield session


def expected(b: Builder, feeds: Mapping[str, Array]) -> dict[str, Array]:
    graph = load_graph(b.build())
    found = evaluate(graph, feeds, precise=False)
    return {name: found[name] for name in graph.main.outputs}


def check(
    opened: Devices, device: str, b: Builder, *feeds: Mapping[str, Array]
) -> None:
    """Runs a program on each of the inputs, several times."""
    with loaded(opened, device, b) as session:
        for _ in range(2):
            for feed in feeds:
                found = session.run(feed)
                for name, want in expected(b, feed).items():
                    np.testing.assert_array_equal(found[name], want, strict=True)


def choice(b: Builder, name: str) -> None:
    """Regions NAME_then (2 x + y) and NAME_else (x - y)."""
    for branch in ("then", "else"):
        region = b.region(f"{name}_{branch}")
        x, y = (region.input(n, F32, SHAPE) for n in "xy")
        region.output(
            region.add(region.add(x, x), y) if branch == "then" else region.sub(x, y)
        )


def counting(b: Builder, name: str) -> None:
    """Regions for while n > 0: n, x = n - 1, x * x - x."""
    condition = b.region(f"{name}_cond")
    n = condition.input("n", I32, ())
    condition.input("x", F32, SHAPE)
    condition.output(condition.greater(n, condition.const(np.int32(0))))
    body = b.region(f"{name}_body")
    n, x = body.input("n", I32, ()), body.input("x", F32, SHAPE)
    body.output(body.sub(n, body.const(np.int32(1))))
    body.output(body.sub(body.mul(x, x), x))


def test_a_branch_by_data(opened: Devices, device: str) -> None:
    b = Builder()
    c = b.input("c", BOOL, (1,))
    x, y = b.input("x", F32, SHAPE), b.input("y", F32, SHAPE)
    choice(b, "pick")
    (z,) = b.cond_if(
        c, [b.mul(x, y), y], then_graph="pick_then", else_graph="pick_else"
    )
    b.output(b.add(z, x))
    feeds = [
        {"c": np.array([c]), "x": values(1), "y": values(2)} for c in (True, False)
    ]
    check(opened, device, b, *feeds)


def test_any_byte_but_zero_is_true(opened: Devices, device: str) -> None:
    b = Builder()
    c, x, y = (
        b.input("c", BOOL, (1,)),
        b.input("x", F32, SHAPE),
        b.input("y", F32, SHAPE),
    )
    choice(b, "pick")
    b.output(*b.cond_if(c, [x, y], then_graph="pick_then", else_graph="pick_else"))
    with loaded(opened, device, b) as session:
        x_value, y_value = values(1), values(2)
        for byte in (0, 1, 2, 128, 255):
            feed = {"c": np.array([byte], np.uint8), "x": x_value, "y": y_value}
            (found,) = session.run(feed).values()
            want = x_value + x_value + y_value if byte else x_value - y_value
            np.testing.assert_array_equal(found, want)


def test_a_branch_known_at_load_is_the_only_one_lowered() -> None:
    b = Builder()
    x, y = b.input("x", F32, SHAPE), b.input("y", F32, SHAPE)
    choice(b, "pick")
    c = b.const(np.array([False]))
    b.output(*b.cond_if(c, [x, y], then_graph="pick_then", else_graph="pick_else"))
    flow = lower_graph(load_graph(b.build())).flow
    assert flow is not None
    assert [routine.name for routine in flow.routines] == ["main", "pick_else"]
    assert len(flow.pieces) == 1


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_loop(opened: Devices, device: str, turns: int) -> None:
    b = Builder()
    n, x = b.input("n", I32, ()), b.input("x", F32, SHAPE)
    counting(b, "loop")
    left, y = b.while_loop([n, x], cond_graph="loop_cond", body_graph="loop_body")
    b.output(left)
    b.output(b.add(y, x))
    check(opened, device, b, {"n": number(turns), "x": values() / 4})


def test_a_loop_in_a_branch_in_a_loop(opened: Devices, device: str) -> None:
    """Regions are shared: the inner loop is called from two places."""
    b = Builder()
    counting(b, "inner")
    for branch, count in (("then", 2), ("else", 3)):
        region = b.region(f"choose_{branch}")
        x = region.input("x", F32, SHAPE)
        # The regions are siblings; the builder knows them by their names.
        _, y = region.while_loop(
            [region.const(np.int32(count)), x],
            cond_graph="inner_cond",
            body_graph="inner_body",
        )
        region.output(y)
    condition = b.region("outer_cond")
    n = condition.input("n", I32, ())
    condition.input("x", F32, SHAPE)
    condition.output(condition.greater(n, condition.const(np.int32(0))))
    body = b.region("outer_body")
    n, x = body.input("n", I32, ()), body.input("x", F32, SHAPE)
    odd = body.equal(
        body.bitwise_and(n, body.const(np.int32(1))), body.const(np.int32(1))
    )
    (y,) = body.cond_if(odd, [x], then_graph="choose_then", else_graph="choose_else")
    body.output(body.sub(n, body.const(np.int32(1))))
    body.output(y)
    n, x = b.input("n", I32, ()), b.input("x", F32, SHAPE)
    _, y = b.while_loop([n, x], cond_graph="outer_cond", body_graph="outer_body")
    b.output(y)
    check(opened, device, b, *({"n": number(n), "x": values() / 4} for n in (0, 1, 4)))


def test_values_pass_through_regions_unchanged(opened: Devices, device: str) -> None:
    """Inputs, constants and swapped values come out of regions as they are."""
    b = Builder()
    condition = b.region("cond")
    n = condition.input("n", I32, ())
    for name in "xyc":
        condition.input(name, F32, SHAPE)
    condition.output(condition.greater(n, condition.const(np.int32(0))))
    body = b.region("body")
    n = body.input("n", I32, ())
    x, y, c = (body.input(name, F32, SHAPE) for name in "xyc")
    for tensor in (body.sub(n, body.const(np.int32(1))), y, x, c):
        body.output(tensor)
    n, x = b.input("n", I32, ()), b.input("x", F32, SHAPE)
    results = b.while_loop(
        [n, x, b.const(values(7)), b.const(values(8))],
        cond_graph="cond",
        body_graph="body",
    )
    for tensor in results[1:]:
        b.output(tensor)
    b.output(x)
    check(opened, device, b, *({"n": number(n), "x": values()} for n in (0, 1, 2, 3)))


def test_packed_values_and_every_type_of_state(opened: Devices, device: str) -> None:
    """Tensors that end inside a word go round in buffers of their own."""
    b = Builder()
    types = (DType.INT8, DType.INT16, DType.FP16, DType.BF16, BOOL)
    condition, body = b.region("cond"), b.region("body")
    n = condition.input("n", I32, ())
    for t in types:
        condition.input(t.name, t, (7,))
    condition.output(condition.greater(n, condition.const(np.int32(0))))
    n = body.input("n", I32, ())
    state = [body.input(t.name, t, (7,)) for t in types]
    body.output(body.sub(n, body.const(np.int32(1))))
    for tensor in state:
        body.output(body.reverse(tensor, axis=0))
    n = b.input("n", I32, ())
    given = [b.input(t.name, t, (7,)) for t in types]
    results = b.while_loop([n, *given], cond_graph="cond", body_graph="body")
    for tensor in results[1:]:
        b.output(tensor)
    rng = np.random.default_rng(3)
    feed = {
        t.name: rng.integers(0, 2 if t is BOOL else 100, 7).astype(t.numpy)
        for t in types
    }
    check(opened, device, b, *({"n": number(n), **feed} for n in (2, 3)))


def endless() -> Builder:
    b = Builder()
    condition = b.region("cond")
    condition.input("x", F32, SHAPE)
    condition.output(condition.const(np.array([True])))
    body = b.region("body")
    body.output(body.add(*[body.input("x", F32, SHAPE)] * 2))
    (y,) = b.while_loop(
        [b.input("x", F32, SHAPE)], cond_graph="cond", body_graph="body"
    )
    b.output(y)
    return b


def test_an_endless_loop_is_an_error(opened: Devices, gpu_device: str) -> None:
    with loaded(opened, gpu_device, endless(), max_turns=9) as session:
        for _ in range(2):
            with pytest.raises(
                ResourceLimit, match=r"WHILE_LOOP .* 9 turns .*max_turns"
            ):
                session.run({"x": values()})


def test_the_reference_counts_turns_too() -> None:
    feed = {"x": values()}
    for turns in (9, 1000):
        with (
            tosavk.load(endless().build(), backend="reference", max_turns=turns) as s,
            pytest.raises(ResourceLimit, match=rf"WHILE_LOOP .* {turns} turns"),
        ):
            s.run(feed)


def test_an_evaluation_that_does_not_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = threading.Event()

    def stuck(turns: Turns, operator: Operator) -> None:
        end.wait(60)
        raise ResourceLimit(f"{operator}: {turns}")

    monkeypatch.setattr(Turns, "take", stuck)
    begin = time.monotonic()
    with (
        tosavk.load(endless().build(), backend="reference") as session,
        pytest.raises(DeadlineExpired, match=r"did not end within 0\.1 s"),
    ):
        session.run({"x": values()}, timeout_s=0.1)
    # Nobody waits for it when the session is closed.
    assert time.monotonic() - begin < 30
    end.set()


def test_a_loop_may_take_so_long_and_no_longer(
    opened: Devices, gpu_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "_LEAST_S", 60.0)  # however busy the machine is
    feed = {"x": values()}
    with loaded(opened, gpu_device, endless(), max_turns=1 << 40) as session:
        for _ in range(2):  # the device is as it was
            begin = time.monotonic()
            with pytest.raises(DeadlineExpired, match=r"within 0\.2 s .* two of its"):
                session.run(feed, timeout_s=0.2)
            assert 0.2 <= time.monotonic() - begin < 20
        with pytest.raises(InvalidArgument, match="timeout_s is -1"):
            session.run(feed, timeout_s=-1)


def test_turns_are_counted_over_all_loops(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    counting(b, "loop")
    n, x = b.input("n", I32, ()), b.input("x", F32, SHAPE)
    for _ in range(2):
        _, x = b.while_loop([n, x], cond_graph="loop_cond", body_graph="loop_body")
    b.output(x)
    with loaded(opened, gpu_device, b, max_turns=6) as session:
        session.run({"n": number(3), "x": values()})
        with pytest.raises(ResourceLimit):
            session.run({"n": number(4), "x": values()})
        session.run({"n": number(3), "x": values()})


@pytest.mark.parametrize("turns", ["many", -1, 1.5, None])
def test_a_number_of_turns_is_looked_at_when_loading(turns: object) -> None:
    wrong: dict[str, Any] = {"max_turns": turns}
    with pytest.raises(InvalidArgument, match="max_turns"):
        tosavk.load(endless().build(), backend="reference", **wrong)


def test_a_flow_is_no_program_of_a_context(opened: Devices, gpu_device: str) -> None:
    accelerator = opened.accelerator(gpu_device)
    data = endless().build()
    artifact = Artifact(FORMAT_TOSA, target.EVERYTHING.words(), data)
    with accelerator.create_context() as context:
        for source in (lower_graph(load_graph(data)), artifact):
            with pytest.raises(Unsupported, match=r"tosavk\.load"):
                context.load_program(source)


# ------------------------------------------------------------------- variables


def accumulator(initial: float | None = 1.5) -> Builder:
    """total += x; gives the total of before, and after."""
    b = Builder()
    x = b.input("x", F32, SHAPE)
    total = b.variable("total", F32, SHAPE, initial)
    before = b.variable_read(total, name="before")
    b.variable_write(total, b.add(before, x))
    b.output(before)
    b.output(b.variable_read(total, name="after"))
    return b


def test_a_variable_lives_with_the_program(opened: Devices, device: str) -> None:
    with loaded(opened, device, accumulator()) as session:
        total = np.full(SHAPE, 1.5, np.float32)
        for seed in range(4):
            found = session.run({"x": values(seed)})
            np.testing.assert_array_equal(found["before"], total)
            total = total + values(seed)
            np.testing.assert_array_equal(found["after"], total)
        np.testing.assert_array_equal(session.variables["total"], total)
    with loaded(opened, device, accumulator()) as session:
        np.testing.assert_array_equal(session.variables["total"], np.float32(1.5))


def test_variables_are_read_and_set_by_name(opened: Devices, device: str) -> None:
    with loaded(opened, device, accumulator(None)) as session:
        state = session.variables
        assert list(state) == ["total"]
        assert len(state) == 1
        assert "total" in state
        assert "x" not in state
        np.testing.assert_array_equal(state["total"], np.zeros(SHAPE, np.float32))
        state["total"] = values(3)
        copy = state["total"]
        found = session.run({"x": values(4)})
        np.testing.assert_array_equal(found["before"], values(3))
        np.testing.assert_array_equal(copy, values(3))
        state.reset()
        np.testing.assert_array_equal(state["total"], np.zeros(SHAPE, np.float32))
        with pytest.raises(InvalidArgument, match=r"'nothing'.*'total'"):
            state["nothing"] = values()
        with pytest.raises(InvalidArgument, match="shape"):
            state["total"] = np.zeros(3, np.float32)
        with pytest.raises(InvalidArgument, match="FP32"):
            state["total"] = np.zeros(SHAPE, np.int32)
    with pytest.raises(Released):
        session.variables  # noqa: B018


def test_a_program_without_variables_has_none(opened: Devices, device: str) -> None:
    b = Builder()
    b.output(b.abs(b.input("x", F32, SHAPE)))
    with loaded(opened, device, b) as session:
        assert len(session.variables) == 0
        with pytest.raises(InvalidArgument, match="none"):
            session.variables["x"]


def test_a_variable_keeps_an_input_that_changes(opened: Devices, device: str) -> None:
    """A value written as it came in is not overwritten by the next input."""
    b = Builder()
    x = b.input("x", F32, SHAPE)
    last = b.variable("last", F32, SHAPE, 0.0)
    b.output(b.variable_read(last, name="y"))
    b.variable_write(last, x)
    with loaded(opened, device, b) as session:
        session.run({"x": values(1)})
        for seed in range(1, 4):
            found = session.run({"x": values(seed + 1)})
            np.testing.assert_array_equal(found["y"], values(seed))
            np.testing.assert_array_equal(session.variables["last"], values(seed + 1))


def test_a_loop_that_writes_variables(opened: Devices, device: str) -> None:
    """Regions share variables by name; a loop without results still counts."""
    b = Builder()
    b.variable("count", F32, (1,), 5.0)
    condition = b.region("cond")
    n = condition.input("n", I32, ())
    condition.output(condition.greater(n, condition.const(np.int32(0))))
    body = b.region("body")
    n = body.input("n", I32, ())
    count = body.variable("count", F32, (1,), None)
    body.variable_write(count, body.add(body.variable_read(count), body.const([1.0])))
    body.output(body.sub(n, body.const(np.int32(1))))
    n = b.input("n", I32, ())
    b.while_loop([n], cond_graph="cond", body_graph="body")
    b.output(b.add(n, n))
    with loaded(opened, device, b) as session:
        for turns, want in ((3, 8), (0, 8), (2, 10)):
            session.run({"n": number(turns)})
            np.testing.assert_array_equal(session.variables["count"], [want])


def test_a_run_that_fails_leaves_variables_alone(
    opened: Devices, gpu_device: str
) -> None:
    b = endless()
    seen = b.variable("seen", F32, SHAPE, 2.0)
    b.variable_write(seen, b.const(values(5)))
    with loaded(opened, gpu_device, b, max_turns=3) as session:
        with pytest.raises(ResourceLimit):
            session.run({"x": values()})
        np.testing.assert_array_equal(
            session.variables["seen"], np.full(SHAPE, 2.0, np.float32)
        )


def test_runs_need_no_more_buffers(opened: Devices, gpu_device: str) -> None:
    """What a run takes is used again, whatever way it ends."""
    accelerator = opened.accelerator(gpu_device)
    with loaded(opened, gpu_device, accumulator()) as session:
        counts: list[int] = []
        for seed in range(5):
            session.run({"x": values(seed)})
            session.variables["total"] = values(seed)
            counts.append(accelerator.live_resources().buffers)
        assert counts[2:] == [counts[2]] * 3
    b = endless()
    with loaded(opened, gpu_device, b, max_turns=5) as session:
        counts = []
        for _ in range(4):
            with pytest.raises(ResourceLimit):
                session.run({"x": values()})
            counts.append(accelerator.live_resources().buffers)
        assert counts[1:] == [counts[1]] * 3


# ----------------------------------------------------------------- what is refused


def refusal(graph: Graph | bytes) -> str:
    with pytest.raises(AdmissionError) as caught:
        lower_graph(load_graph(graph))
    return str(caught.value)


def test_a_variable_is_no_operand() -> None:
    b = Builder()
    state = b.variable("state", F32, SHAPE, 0.0)
    b.output(b.add(state, b.input("x", F32, SHAPE)))
    assert "VARIABLE_READ" in refusal(b.build())


def test_one_name_is_one_variable() -> None:
    b = Builder()
    then, other = b.region("then"), b.region("else")
    for region, shape in ((then, (3,)), (other, (4,))):
        state = region.variable("state", F32, shape, 0.0)
        total = region.reduce_sum(region.variable_read(state), axis=0)
        region.output(total)
    c = b.input("c", BOOL, (1,))
    b.output(*b.cond_if(c, [], then_graph="then", else_graph="else"))
    assert "state" in refusal(b.build())


def test_too_many_pieces_are_refused() -> None:
    b = Builder()
    choice(b, "pick")
    c, x = b.input("c", BOOL, (1,)), b.input("x", F32, SHAPE)
    for _ in range(70):
        (y,) = b.cond_if(c, [x, x], then_graph="pick_then", else_graph="pick_else")
        x = b.add(y, y)
    b.output(x)
    assert "64 pieces" in refusal(b.build())


def test_an_operator_in_a_region_is_refused_with_its_place() -> None:
    b = Builder()
    for name in ("then", "else"):
        region = b.region(name)
        x = region.input("x", F32, SHAPE)
        (y,) = region.custom([x], [(F32, SHAPE)], operator_name="mystery")
        region.output(y)
    c, x = b.input("c", BOOL, (1,)), b.input("x", F32, SHAPE)
    b.output(*b.cond_if(c, [x], then_graph="then", else_graph="else"))
    graph = load_graph(b.build())
    assert "CUSTOM" in refusal(b.build())
    (answer,) = (a for a in admissions(graph) if a.reason)
    assert answer.operator.op == "COND_IF"
    assert "'then'" in answer.reason
