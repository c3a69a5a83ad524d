"""CUSTOM operators: their meanings are TOSA programs that users register."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tosavk
from harness.running import Devices
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.admission import admissions
from tosavk.lowering.custom import CustomCall, CustomOperators
from tosavk.lowering.errors import AdmissionError, Kind, VerifyError
from tosavk.lowering.graph import Graph, Op, Tensor
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

Array = NDArray[Any]
F32 = DType.FP32
SHAPE = (2, 3)
DOMAIN = "example.org"


def inputs_of(call: CustomCall, b: Builder) -> list[Tensor]:
    return [
        b.input(f"x{number}", tensor.dtype, tensor.shape or ())
        for number, tensor in enumerate(call.inputs)
        if tensor.dtype is not DType.SHAPE
    ]


def square(call: CustomCall) -> Graph:
    b = Builder()
    (x,) = inputs_of(call, b)
    b.output(b.mul(x, x))
    return b.graph()


def fourth_power(call: CustomCall) -> Graph:
    """Made of two others."""
    b = Builder()
    (x,) = inputs_of(call, b)
    b.output(calling(b, "square", [calling(b, "square", [x])]))
    return b.graph()


def scaled(call: CustomCall) -> Graph:
    """x * scale, where the scale is the operator's attribute; and x itself, twice."""
    b = Builder()
    (x,) = inputs_of(call, b)
    scale = np.frombuffer(call.attributes, np.float32).reshape(1, 1)
    b.output(b.mul(x, b.const(scale)))
    b.output(x)
    b.output(x)
    return b.graph()


def magnitude(call: CustomCall) -> Graph:
    """With control flow: the negated value where the first element is negative."""
    b = Builder()
    (x,) = inputs_of(call, b)
    for name in ("then", "else"):
        region = b.region(name)
        value = region.input("x", F32, SHAPE)
        region.output(region.negate(value) if name == "then" else value)
    first = b.slice(x, start=(0, 0), size=(1, 1))
    negative = b.greater(b.const([[0.0]]), first)
    for tensor in b.cond_if(negative, [x], then_graph="then", else_graph="else"):
        b.output(tensor)
    return b.graph()


def tiled(call: CustomCall) -> Graph:
    """With operands that are shapes and constants."""
    b = Builder()
    x, _ = inputs_of(call, b)
    multiples = call.value(1)
    offset = call.value(2)
    assert multiples is not None
    assert offset is not None
    assert call.value(0) is None
    b.output(b.add(b.tile(x, [int(m) for m in multiples]), b.const(offset)))
    return b.graph()


def endless(call: CustomCall) -> Graph:
    b = Builder()
    (x,) = inputs_of(call, b)
    b.output(calling(b, "endless", [x]))
    return b.graph()


@pytest.fixture
def operators() -> CustomOperators:
    registry = CustomOperators()
    for meaning in (square, fourth_power, scaled, magnitude, tiled, endless):
        registry.register(DOMAIN, meaning.__name__)(meaning)
    return registry


def calling(
    b: Builder,
    name: str,
    inputs: Sequence[Tensor],
    *,
    shape: tuple[int, ...] = SHAPE,
    attributes: bytes = b"",
) -> Tensor:
    (result,) = b.custom(
        inputs,
        [(F32, shape)],
        operator_name=name,
        domain_name=DOMAIN,
        implementation_attrs=attributes,
    )
    return result


def noise(seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def run(
    opened: Devices, device: str, b: Builder, operators: CustomOperators
) -> dict[str, Array]:
    graph = load_graph(b.build(), operators=operators)
    assert not any(
        op.op is Op.CUSTOM for r in graph.regions for op in r.blocks[0].operators
    )
    return opened.run(device, graph, {"x": noise()})


def test_a_program_stands_for_an_operator(
    opened: Devices, device: str, operators: CustomOperators
) -> None:
    b = Builder()
    x = b.input("x", F32, SHAPE)
    y = calling(b, "square", [b.add(x, x)])
    b.output(b.sub(calling(b, "square", [y]), x))
    (found,) = run(opened, device, b, operators).values()
    twice = noise() + noise()
    np.testing.assert_array_equal(found, (twice * twice) * (twice * twice) - noise())


def test_operators_are_made_of_others(
    opened: Devices, device: str, operators: CustomOperators
) -> None:
    b = Builder()
    b.output(calling(b, "fourth_power", [b.input("x", F32, SHAPE)]))
    (found,) = run(opened, device, b, operators).values()
    np.testing.assert_array_equal(found, (noise() * noise()) * (noise() * noise()))


def test_attributes_and_results_that_are_operands(
    opened: Devices, device: str, operators: CustomOperators
) -> None:
    b = Builder()
    results = b.custom(
        [b.input("x", F32, SHAPE)],
        [(F32, SHAPE)] * 3,
        operator_name="scaled",
        domain_name=DOMAIN,
        implementation_attrs=np.float32(0.5).tobytes(),
    )
    for tensor in results:
        b.output(tensor)
    found = run(opened, device, b, operators)
    for tensor, factor in zip(results, (0.5, 1.0, 1.0), strict=True):
        np.testing.assert_array_equal(found[tensor.name], np.float32(factor) * noise())


def test_shapes_and_constants_as_operands(
    opened: Devices, device: str, operators: CustomOperators
) -> None:
    b = Builder()
    operands = [
        b.input("x", F32, SHAPE),
        b.const_shape((1, 2)),
        b.const([[1.5]]),
    ]
    b.output(calling(b, "tiled", operands, shape=(2, 6)))
    (found,) = run(opened, device, b, operators).values()
    np.testing.assert_array_equal(found, np.tile(noise(), (1, 2)) + np.float32(1.5))


def test_control_flow_inside_and_outside(
    opened: Devices, device: str, operators: CustomOperators
) -> None:
    """Twice in one region: the regions that it brings along get names of their own."""
    b = Builder()
    for name in ("then", "else"):
        region = b.region(name)
        y = calling(region, "magnitude", [region.input("x", F32, SHAPE)])
        region.output(y if name == "then" else calling(region, "magnitude", [y]))
    x = b.input("x", F32, SHAPE)
    c = b.greater(b.reduce_max(b.reduce_max(x, axis=0), axis=1), b.const([[0.0]]))
    for tensor in b.cond_if(c, [x], then_graph="then", else_graph="else"):
        b.output(tensor)
    (found,) = run(opened, device, b, operators).values()
    want = -noise() if noise()[0, 0] < 0 else noise()
    np.testing.assert_array_equal(found, want)


def test_an_operator_without_a_meaning_is_refused() -> None:
    b = Builder()
    b.output(calling(b, "mystery", [b.input("x", F32, SHAPE)]))
    graph = load_graph(b.build())
    with pytest.raises(AdmissionError, match=r"'mystery' of domain 'example\.org'"):
        lower_graph(graph)
    (answer,) = (a for a in admissions(graph) if a.reason)
    assert "tosavk.custom.register" in answer.reason


def test_a_program_must_fit_its_operator(operators: CustomOperators) -> None:
    b = Builder()
    b.output(calling(b, "square", [b.input("x", F32, (4,))]))
    with pytest.raises(VerifyError, match=r"outputs are FP32 2x3.*FP32 4") as caught:
        load_graph(b.build(), operators=operators)
    assert caught.value.kind == Kind.INVALID_SHAPE
    b = Builder()
    x = b.input("x", F32, SHAPE)
    b.output(calling(b, "tiled", [x, b.const_shape((1, 1)), x], shape=(3, 3)))
    with pytest.raises(AssertionError):
        load_graph(b.build(), operators=operators)


def test_an_operator_made_of_itself_is_refused(operators: CustomOperators) -> None:
    b = Builder()
    b.output(calling(b, "endless", [b.input("x", F32, SHAPE)]))
    with pytest.raises(VerifyError, match="6 deep") as caught:
        load_graph(b.build(), operators=operators)
    assert caught.value.kind == Kind.NESTING_LIMIT


def test_names_are_registered_once(operators: CustomOperators) -> None:
    with pytest.raises(InvalidArgument, match="already"):
        operators.register(DOMAIN, "square")(square)
    with pytest.raises(InvalidArgument, match="name"):
        operators.register(DOMAIN, "")
    operators.unregister(DOMAIN, "square")
    operators.register(DOMAIN, "square")(fourth_power)
    with pytest.raises(InvalidArgument, match="not registered"):
        operators.unregister("", "square")


def test_the_public_registry_is_used_when_loading() -> None:
    b = Builder()
    b.output(calling(b, "halved", [b.input("x", F32, SHAPE)]))

    @tosavk.custom.register(DOMAIN, "halved")
    def halved(call: CustomCall) -> Graph:
        inner = Builder()
        (x,) = inputs_of(call, inner)
        inner.output(inner.mul(x, inner.const([[0.5]])))
        return inner.graph()

    try:
        assert callable(halved)
        with tosavk.load(b.build(), backend="reference") as program:
            (found,) = program.run({"x": noise()}).values()
    finally:
        tosavk.custom.unregister(DOMAIN, "halved")
    np.testing.assert_array_equal(found, noise() * np.float32(0.5))
