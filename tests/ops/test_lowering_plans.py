"""What lowering makes of programs: dispatches, views, constants, memory.

Plans are looked at, and run where only a run shows whether they are right.
"""

import dataclasses

import numpy as np
import pytest

from harness import families
from harness.running import Array, Devices
from tosavk.backends.reference import evaluate
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument, ResourceLimit
from tosavk.core.plan import Plan, PlanLimits
from tosavk.differential.compare import compare_bits
from tosavk.lowering.graph import Op, Tensor
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

F32, F16, I32 = DType.FP32, DType.FP16, DType.INT32


def plan_of(b: Builder, limits: PlanLimits | None = None) -> Plan:
    return lower_graph(load_graph(b.build()), limits=limits).plan


def kernels(plan: Plan) -> list[str]:
    return [dispatch.kernel for dispatch in plan.dispatches]


def numbers(*shape: int) -> Array:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


# Views ------------------------------------------------------------------------------


def test_reshapes_around_a_product_cost_nothing() -> None:
    b = Builder()
    x, y = b.input("x", F32, (3, 8)), b.input("y", F32, (8, 8))
    product = b.matmul(b.reshape(x, (1, 3, 8)), b.reshape(y, (1, 8, 8)))
    b.output(b.reshape(product, (3, 8)))
    plan = plan_of(b)
    assert kernels(plan) == ["matmul"]
    assert plan.segments == ()
    assert not plan.prologue


def test_an_input_that_is_an_output_is_copied(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    x = b.input("x", F32, (2, 3))
    b.output(b.identity(x, name="same"))
    b.output(b.reshape(x, (3, 2), name="turned"))
    b.output(b.reshape(b.identity(x), (6,), name="twice"))
    assert kernels(plan_of(b)) == ["move"] * 3
    results = opened.run(gpu_device, b.build(), {"x": numbers(2, 3)})
    for name, shape in (("same", (2, 3)), ("turned", (3, 2)), ("twice", (6,))):
        assert results[name].tolist() == numbers(*shape).tolist()


def test_the_input_itself_is_an_output(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    x = b.input("x", DType.BOOL, (5,))
    b.output(x)
    b.output(b.logical_not(x, name="not"))
    given = np.array([0, 1, 2, 0, 255], np.uint8)
    results = opened.run(gpu_device, b.build(), {"x": given})
    assert results["x"].view(np.uint8).tolist() == [0, 1, 1, 0, 1]
    assert results["not"].tolist() == [True, False, False, True, False]


def test_a_view_of_what_is_read_elsewhere(opened: Devices, gpu_device: str) -> None:
    """The intermediate has two readers, so it cannot live in the output alone."""
    b = Builder()
    x = b.input("x", F32, (2, 3))
    doubled = b.add(x, x)
    b.output(b.reshape(doubled, (6,), name="flat"))
    b.output(b.add(doubled, x, name="tripled"))
    b.output(b.reshape(b.reshape(doubled, (3, 2)), (1, 6), name="row"))
    results = opened.run(gpu_device, b.build(), {"x": numbers(2, 3)})
    assert results["flat"].tolist() == (2 * numbers(6)).tolist()
    assert results["tripled"].tolist() == (3 * numbers(2, 3)).tolist()
    assert results["row"].tolist() == (2 * numbers(1, 6)).tolist()


def test_an_output_that_is_also_read(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    x = b.input("x", F32, (7,))
    first = b.output(b.add(x, x, name="first"))
    second = b.output(b.mul(first, x, name="second"))
    b.output(b.sub(second, first, name="third"))
    plan = plan_of(b)
    assert kernels(plan) == ["binary"] * 3
    assert plan.segments == ()
    assert [d.barrier for d in plan.dispatches] == [False, True, True]
    results = opened.run(gpu_device, b.build(), {"x": numbers(7)})
    v = numbers(7)
    assert results["third"].tolist() == (2 * v * v - 2 * v).tolist()


def test_an_output_listed_twice(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    x = b.input("x", F32, (3,))
    y = b.add(x, x, name="y")
    b.output(y)
    b.output(y)
    plan = plan_of(b)
    assert [slot.name for slot in plan.outputs] == ["y", "y"]
    (result,) = opened.run(gpu_device, b.build(), {"x": numbers(3)}).values()
    assert result.tolist() == [2, 4, 6]


# Constants --------------------------------------------------------------------------


def test_an_output_that_is_constant(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    x = b.input("x", F32, (1,))
    b.output(b.const(np.array([1.5, -2], np.float32), name="known"))
    b.output(b.reverse(b.const(np.array([1, 2, 3], np.int8)), 0, name="turned"))
    b.output(b.exp(b.const(np.zeros(3, np.float32)), name="made"))
    b.output(b.const(np.array([-3, 7, 1], np.int8), DType.INT4, name="nibbles"))
    b.output(b.add(x, x, name="sum"))
    results = opened.run(gpu_device, b.build(), {"x": numbers(1)})
    assert results["known"].tolist() == [1.5, -2]
    assert results["turned"].tolist() == [3, 2, 1]
    assert results["made"].tolist() == [1, 1, 1]
    assert results["nibbles"].tolist() == [-3, 7, 1]
    assert results["sum"].tolist() == [2]


def test_casts_of_constants_are_folded() -> None:
    b = Builder()
    x = b.input("x", F32, (4,))
    weight = b.const(np.array([1, 2, 3, 4], np.float16))
    b.output(b.mul(x, b.cast(b.reverse(weight, 0), F32)))
    plan = plan_of(b)
    assert kernels(plan) == ["binary"]
    assert not plan.prologue
    (constant,) = plan.constants
    assert np.frombuffer(constant.data, np.float32).tolist() == [4, 3, 2, 1]


def test_other_operators_on_constants_run_once(
    opened: Devices, gpu_device: str
) -> None:
    """They have the device's own bits, and what depends on them has, too."""
    values = np.array([0.1, 0.7, -3.3, 5.9], np.float32)
    b = Builder()
    x = b.input("x", F32, (4,))
    known = b.tanh(b.exp(b.const(values)))
    b.output(b.mul(x, known, name="y"))
    b.output(b.tanh(b.exp(x), name="z"))
    plan = plan_of(b)
    assert kernels(plan) == ["binary", "unary", "unary"]
    assert [dispatch.kernel for dispatch in plan.prologue] == ["unary", "unary"]
    with opened.session(gpu_device, b.build()) as session:
        once = session.run({"x": values})
        again = session.run({"x": values})
    for results in (once, again):
        product = np.multiply(values, results["z"], dtype=np.float32)
        assert compare_bits(results["y"], product).equal


def test_constants_first_used_late_survive(opened: Devices, gpu_device: str) -> None:
    """Intermediates come and go before the constants' first use, run after run."""
    b = Builder()
    x = b.input("x", F32, (64,))
    value = x
    for _ in range(6):
        value = b.add(value, b.identity(b.add(value, x)))
    for index in range(5):
        value = b.add(value, b.const(np.full(64, 1000.0 * index, np.float32)))
    b.output(value)
    with opened.session(gpu_device, b.build()) as session:
        for scale in (1.0, -2.0, 0.5):
            given = scale * numbers(64)
            (result,) = session.run({"x": given}).values()
            assert result.tolist() == (given * (2**7 - 1) + 10000.0).tolist()


def test_many_small_constants_share_a_segment() -> None:
    b = Builder()
    value = b.input("x", I32, (1,))
    for index in range(5000):
        value = b.add(value, b.const(np.array([index], np.int32)))
    b.output(value)
    plan = plan_of(b)
    assert len(plan.constants) == 5000
    assert len(plan.segments) == 1
    assert len({constant.offset for constant in plan.constants}) == 5000


def test_equal_constants_are_written_once() -> None:
    b = Builder()
    x = b.input("x", F16, (1, 4, 4))
    weight = b.const(np.ones((1, 4, 4), np.float16))
    b.output(b.matmul(b.matmul(x, weight), weight))
    assert len(plan_of(b).constants) == 1


# Dead operators, memory, shapes -----------------------------------------------------


def test_dead_operators_are_dropped() -> None:
    b = Builder()
    x = b.input("x", F32, (5,))
    unused = b.exp(b.sin(x))
    b.pow(unused, unused)
    # Not admitted, but nobody asks for it.
    b.table(b.input("i", DType.INT8, (5,)), b.const(np.zeros(256, np.int8)))
    b.output(b.abs(x))
    plan = plan_of(b)
    assert [name.op for name in plan.operators] == ["ABS"]
    assert [slot.name for slot in plan.inputs] == ["x", "i"]


def test_memory_is_used_again() -> None:
    """A chain needs two places however long it is."""
    b = Builder()
    value = b.input("x", F32, (1024,))
    for _ in range(20):
        value = b.exp(value)
    b.output(value)
    assert sum(plan_of(b).segments) == 2 * 4096


@pytest.mark.parametrize("name", ["extremes FP16", "special sums FP32", "power FP32"])
@pytest.mark.parametrize("segment", [256, 1024])
def test_many_segments_give_the_same_bits(
    opened: Devices, gpu_device: str, name: str, segment: int
) -> None:
    family = families.make(name, chained=True)
    graph = load_graph(family.build.build())
    own = opened.accelerator(gpu_device).device.plan_limits
    small = dataclasses.replace(own, segment_bytes=segment)
    plan = opened.lower(gpu_device, graph, limits=small).plan
    assert len(plan.segments) > 1
    usual = opened.run(gpu_device, graph, family.inputs)
    split = opened.run(gpu_device, graph, family.inputs, limits=small)
    assert all(compare_bits(usual[key], split[key]).equal for key in usual)


def test_a_tensor_beyond_the_limit_is_named() -> None:
    b = Builder()
    x = b.input("x", F32, (1, 64))
    wide = b.tile(x, (5, 1))
    b.output(b.reduce_sum(wide, 0))
    limits = PlanLimits(max_storage_buffer_range=1024)
    with pytest.raises(ResourceLimit, match=rf"{wide.name}.*1280 bytes.*1024"):
        plan_of(b, limits)
    b = Builder()
    b.output(b.abs(b.input("large", F32, (512,))))
    with pytest.raises(ResourceLimit, match=r"input 'large' needs 2048 bytes"):
        plan_of(b, limits)


def test_shapes_given_at_load(opened: Devices, gpu_device: str) -> None:
    b = Builder()
    x = b.input("x", F32, (-1, 3))
    b.output(b.op(Op.EXP, [x], name="y", dtype=F32, shape=(-1, 3)))
    program = b.build()
    with pytest.raises(InvalidArgument, match="--shape x="):
        load_graph(program)
    for rows in (1, 5):
        graph = load_graph(program, shapes={"x": (rows, 3)})
        given = {"x": np.zeros((rows, 3), np.float32)}
        result = opened.run(gpu_device, graph, given)["y"]
        assert result.tolist() == np.ones((rows, 3)).tolist()


# Operands that are known at run time only -------------------------------------------


def test_the_shift_of_a_product(opened: Devices, gpu_device: str) -> None:
    """That of floats must be 0, that of INT32 may be anything up to 63."""
    b = Builder()
    x, i = b.input("x", F32, (3,)), b.input("i", I32, (3,))
    shift, none = (b.input(name, DType.INT8, (1,)) for name in ("shift", "none"))
    b.output(b.mul(x, x, shift=none, name="floats"))
    b.output(b.mul(i, i, shift=shift, name="integers"))
    given = {"x": numbers(3), "i": np.array([5, -7, 46340], np.int32)}
    given["none"] = np.zeros(1, np.int8)
    for by in (0, 3, 20):
        given["shift"] = np.array([by], np.int8)
        results = opened.run(gpu_device, b.build(), given)
        assert results["floats"].tolist() == [1, 4, 9]
        half = (1 << by) >> 1
        rounded = [(v * v + half) >> by for v in (5, 7, 46340)]
        assert results["integers"].tolist() == rounded


@pytest.mark.parametrize("dtype", [F32, F16, DType.INT8, DType.BOOL])
def test_the_constant_of_a_padding(
    opened: Devices, gpu_device: str, dtype: DType
) -> None:
    b = Builder()
    x, fill = b.input("x", dtype, (2, 3)), b.input("fill", dtype, (1,))
    b.output(b.pad(x, (1, 0, 2, 1), pad_const=fill, name="y"))
    b.output(b.pad(x, (0, 0, 0, 0), pad_const=fill, name="same"))
    rows = np.array([[0, 1, 0], [1, 1, 0]]).astype(dtype.numpy)
    value = np.ones(1, dtype.numpy)
    results = opened.run(gpu_device, b.build(), {"x": rows, "fill": value})
    padded = np.pad(rows, ((1, 0), (2, 1)), constant_values=value[0])
    assert results["y"].tolist() == padded.tolist()
    assert results["same"].tolist() == rows.tolist()


# Any program ------------------------------------------------------------------------


class RandomProgram:
    """A program of INT32 operators that are exact, with views and reuse."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.build = Builder()
        self.inputs: dict[str, Array] = {}
        self.values: list[Tensor] = []
        for index in range(int(self.random.integers(1, 4))):
            shape = (2, 3, 4) if index == 0 else (6, 4)
            array = self.random.integers(-99, 99, shape).astype(np.int32)
            self.inputs[f"x{index}"] = array
            self.values.append(self.build.input(f"x{index}", I32, shape))
        for _ in range(int(self.random.integers(3, 25))):
            self.values.append(self.step())
        # The last value, and any others: inputs, values that are read, one twice.
        for tensor in (self.values[-1], *(self.pick() for _ in range(4))):
            self.build.output(tensor)

    def pick(self) -> Tensor:
        return self.values[int(self.random.integers(len(self.values)))]

    def step(self) -> Tensor:
        b, x, choice = self.build, self.pick(), int(self.random.integers(9))
        assert x.shape is not None
        if choice == 0:
            return b.identity(x)
        if choice == 1:
            return b.reshape(x, (2, 3, 4) if len(x.shape) == 2 else (6, 4))
        if choice == 2:
            return b.reverse(x, int(self.random.integers(len(x.shape))))
        if choice == 3:
            values = self.random.integers(-9, 9, x.shape).astype(np.int32)
            return b.sub(b.const(values), x)
        if choice == 4:
            half = b.slice(x, (0,) * len(x.shape), (x.shape[0] // 2, *x.shape[1:]))
            return b.concat([half, half], 0)
        if choice == 5:
            known = b.const(self.random.integers(-9, 9, x.shape).astype(np.int32))
            return b.maximum(b.negate(known), x)
        others = [value for value in self.values if value.shape == x.shape]
        y = others[int(self.random.integers(len(others)))]
        return (b.maximum if choice == 6 else b.minimum)(x, b.negate(y))


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_programs(opened: Devices, gpu_device: str, first: int) -> None:
    """Views, places in memory, barriers: a fault in any gives a wrong number."""
    own = opened.accelerator(gpu_device).device.plan_limits
    for seed in range(first, first + 10):
        program = RandomProgram(seed)
        graph = load_graph(program.build.build())
        expected = evaluate(graph, program.inputs, precise=False)
        small = dataclasses.replace(own, segment_bytes=256 * (1 + seed % 5))
        with opened.session(gpu_device, graph, limits=small) as session:
            for _ in range(2):
                for name, array in session.run(program.inputs).items():
                    assert array.tolist() == expected[name].tolist(), (seed, name)
