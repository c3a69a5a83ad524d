"""VARIABLE, of which there are no official tests: every type, on every device.

Further tests of state (failures, loops, names) are in tests/ops/test_control_flow.py.
"""

import math

import numpy as np
import pytest

from harness.running import Array, Devices, same_values
from tosavk.backends.session import Session
from tosavk.core.dtypes import DType, pack_serialized, unpack_serialized
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.graph import Graph, Op, Tensor
from tosavk.lowering.operators import SPECS
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.writer import write_graph

TYPES = sorted({row.types[0] for row in SPECS[Op.VARIABLE].rows})
SHAPES = ((), (1,), (5,), (2, 3, 1))
EACH_TYPE = pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)


def values(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Values from random bytes, edges of the type among them."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    count = math.prod(shape)
    if dtype.is_float:
        floats = rng.normal(size=count) * 4
        floats[:1] = -0.0
        return floats.astype(dtype.numpy).reshape(shape)
    most = (1 << (dtype.bits - 1)) - 1
    array = rng.integers(-most, most, count, endpoint=True)
    array[:1] = -most
    return array.astype(dtype.numpy).reshape(shape)


def keeper(dtype: DType, shape: tuple[int, ...], initial: Array | None) -> Graph:
    """Gives what is kept, then keeps x; and one more variable, which stays."""
    b = Builder()
    x = b.input("x", dtype, shape)
    kept = b.variable("kept", dtype, shape, initial)
    other = b.variable("other", dtype, shape, initial)
    b.output(b.variable_read(kept, name="before"))
    b.variable_write(kept, x)
    b.output(b.variable_read(kept, name="after"))
    b.output(b.variable_read(other, name="still"))
    return load_graph(b.build())


def exchanged(session: Session, x: Array) -> dict[str, Array]:
    return session.run({"x": x})


@EACH_TYPE
def test_state_of_every_type(opened: Devices, device: str, dtype: DType) -> None:
    for shape in SHAPES:
        first = values(dtype, shape, 1)
        graph = keeper(dtype, shape, first)
        with opened.session(device, graph) as session:
            last = first
            for seed in (2, 3, 4):
                x = values(dtype, shape, seed)
                found = exchanged(session, x)
                assert same_values(found["before"], last), (shape, seed)
                assert same_values(found["after"], x), (shape, seed)
                assert same_values(found["still"], first), (shape, seed)
                assert same_values(session.variables["kept"], x)
                last = x
            session.variables["kept"] = first
            assert same_values(exchanged(session, last)["before"], first)
            session.variables.reset()
            assert same_values(session.variables["kept"], first)


@EACH_TYPE
def test_without_a_first_value_it_is_zero(
    opened: Devices, device: str, dtype: DType
) -> None:
    with opened.session(device, keeper(dtype, (5,), None)) as session:
        zeros = np.zeros(5, dtype.numpy)
        assert same_values(session.variables["kept"], zeros)
        assert same_values(exchanged(session, zeros)["before"], zeros)


def test_sessions_have_states_of_their_own(opened: Devices, device: str) -> None:
    graph = keeper(DType.FP32, (2,), np.array([7, -7], np.float32))
    with opened.session(device, graph) as one, opened.session(device, graph) as two:
        exchanged(one, np.array([1, 2], np.float32))
        assert exchanged(two, np.array([3, 4], np.float32))["before"].tolist() == [
            7,
            -7,
        ]
        assert one.variables["kept"].tolist() == [1, 2]
        assert two.variables["kept"].tolist() == [3, 4]


@EACH_TYPE
def test_first_values_come_from_the_file(dtype: DType) -> None:
    """They are written and read as constants are; a short one is refused."""
    first = values(dtype, (5,), 9)
    graph = load_graph(write_graph(keeper(dtype, (5,), first)))
    tensor = next(t for t in graph.main.tensors.values() if t.variable)
    assert tensor.data is not None
    assert same_values(unpack_serialized(dtype, tensor.data, (5,)), first)
    assert bytes(tensor.data[: len(pack_serialized(dtype, first))]) == bytes(
        pack_serialized(dtype, first)
    )


def test_several_writes_in_one_run(opened: Devices, device: str) -> None:
    """Reads and writes happen in the order of the file; the last write stays."""
    b = Builder()
    x = b.input("x", DType.FP32, (1,))
    state = b.variable("state", DType.FP32, (1,), np.array([10], np.float32))
    one = b.variable_read(state, name="one")
    b.variable_write(state, b.add(one, x))
    two = b.variable_read(state, name="two")
    b.variable_write(state, b.mul(two, two))
    b.output(one)
    b.output(two)
    b.output(b.variable_read(state, name="three"))
    with opened.session(device, load_graph(b.build())) as session:
        found = session.run({"x": np.array([2], np.float32)})
        assert [int(found[n][0]) for n in ("one", "two", "three")] == [10, 12, 144]
        found = session.run({"x": np.array([1], np.float32)})
        assert [int(found[n][0]) for n in ("one", "two", "three")] == [144, 145, 21025]


def _written(b: Builder, state: Tensor, value: Tensor) -> bytes:
    b.variable_write(state, value)
    return bytes(b.build())


def test_a_value_of_another_type_is_refused() -> None:
    b = Builder()
    state = b.variable("state", DType.FP32, (1,), np.zeros(1, np.float32))
    x = b.input("x", DType.INT8, (1,))
    with pytest.raises(InvalidArgument):
        load_graph(_written(b, state, x))
