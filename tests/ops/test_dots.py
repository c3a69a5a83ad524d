"""INT8 sums by integer dot products: all zero points, odd sizes, and known answers."""

import functools
import itertools

import numpy as np
import pytest

from harness.running import Array, Devices
from tosavk.backends import dot_check
from tosavk.backends.dot_check import (
    Variant,
    Verdicts,
    all_variants,
    known_answer,
    try_variant,
    variants_of,
)
from tosavk.backends.reference import evaluate
from tosavk.backends.registry import open_accelerator
from tosavk.backends.session import Session, load_on
from tosavk.core.dtypes import DType
from tosavk.core.switches import KernelWarning
from tosavk.lowering.graph import Graph, Tensor
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

ZERO_POINTS = ((0, 0), (-128, 0), (127, -128), (0, 5))
VARIANTS = sorted(all_variants())


def extremes(rng: np.random.Generator, *shape: int) -> Array:
    values = rng.integers(-128, 128, shape).astype(np.int8)
    values.reshape(-1)[::3] = -128
    values.reshape(-1)[1::7] = 127
    return values


@functools.cache
def program(zeros: tuple[int, int]) -> tuple[Graph, dict[str, Array]]:
    """Convolutions and products of 1 to 9 channels, of constants and of inputs."""
    rng = np.random.default_rng(88)
    b = Builder()
    inputs: dict[str, Array] = {}

    def given(*shape: int) -> Tensor:
        array = extremes(rng, *shape)
        name = f"x{len(inputs)}"
        inputs[name] = array
        return b.input(name, DType.INT8, shape)

    for channels in range(1, 10):
        x_zp, w_zp = (b.const(np.array([zero], np.int8)) for zero in zeros)
        x = given(2, 3, 5, channels)
        weights = extremes(rng, 3, 2, 3, channels)
        weights = weights if channels % 2 else np.maximum(weights, -127)
        w = b.const(weights) if channels % 3 else given(3, 2, 3, channels)
        bias = b.const(rng.integers(-(2**31), 2**31, 3).astype(np.int32))
        b.output(
            b.conv2d(
                x,
                w,
                bias,
                pad=(1, 1, 2, 2),
                stride=(1, 2),
                input_zp=x_zp,
                weight_zp=w_zp,
            )
        )
        left, right = given(2, 9, channels), given(2, channels, 5)
        b.output(b.matmul(left, right, a_zp=x_zp, b_zp=w_zp))
    return load_graph(b.build()), inputs


@pytest.mark.parametrize("zeros", ZERO_POINTS, ids=str)
def test_odd_channels_and_zero_points(
    opened: Devices, gpu_device: str, zeros: tuple[int, int]
) -> None:
    graph, inputs = program(zeros)
    expected = evaluate(graph, inputs)
    for name, value in opened.run(gpu_device, graph, inputs).items():
        assert np.array_equal(value, expected[name]), name


def test_all_variants_are_tried(opened: Devices, gpu_device: str) -> None:
    found: set[tuple[int, ...]] = set()
    for zeros in ZERO_POINTS:
        lowered = opened.lower(gpu_device, program(zeros)[0])
        found |= {spec[-2:] for _, spec in variants_of(lowered)}
    assert found == set(itertools.product((0, 1), range(4)))


def test_both_ways_give_the_same(opened: Devices, gpu_device: str) -> None:
    graph, inputs = program(ZERO_POINTS[2])
    own = opened.run(gpu_device, graph, inputs)
    accelerator = open_accelerator(gpu_device, disable=["no-int8-dot"])
    with load_on(accelerator, graph) as session:
        plain = session.run(inputs)
        assert not dots_of(session)
    for name, value in own.items():
        assert np.array_equal(value, plain[name]), name


def dots_of(session: Session) -> set[str]:
    kernels = {dispatch.kernel for dispatch in session.plan.dispatches}
    return kernels & {"conv_dot", "matmul_dot"}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_known_answers_are_right(variant: Variant) -> None:
    """The reference agrees with the answers that devices are asked for."""
    graph, inputs, answer = known_answer(variant)
    shapes = {n: graph.main.tensors[n].shape for n in graph.main.inputs}
    given = {name: inputs[name].reshape(shapes[name]) for name in shapes}
    (found,) = (evaluate(graph, given)[name] for name in graph.main.outputs)
    assert np.array_equal(found.reshape(answer.shape), answer)


def test_devices_know_the_answers(opened: Devices, gpu_device: str) -> None:
    device = opened.accelerator(gpu_device).device
    for variant in VARIANTS:
        assert not try_variant(device, variant), variant


def test_a_wrong_answer_is_not_used(
    gpu_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case B21: the fault is told, and other kernels give the right answer."""
    graph, inputs = program(ZERO_POINTS[2])
    right = dot_check.run

    def wrong(*arguments: object) -> Array:
        found = right(*arguments).copy()  # type: ignore[arg-type]
        found.reshape(-1)[3] += 1
        return found

    monkeypatch.setattr(dot_check, "run", wrong)
    accelerator = open_accelerator(gpu_device)
    with pytest.warns(KernelWarning, match=r"1 of \d+ results are wrong"):
        session = load_on(accelerator, graph)
    with session:
        assert not dots_of(session)
        outputs = session.run(inputs)
        reason = dot_check.trusted_limits(accelerator.device).lack("int8_dot")
        assert "known-answer test" in reason
    expected = evaluate(graph, inputs)
    for name, value in outputs.items():
        assert np.array_equal(value, expected[name]), name


def test_an_answer_is_asked_for_once(
    opened: Devices, gpu_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Variant] = []
    graph, _ = program(ZERO_POINTS[2])
    device = opened.accelerator(gpu_device).device
    monkeypatch.setitem(dot_check.VERDICTS, device, Verdicts())

    def count(_: object, variant: Variant) -> str:
        asked.append(variant)
        return ""

    monkeypatch.setattr(dot_check, "try_variant", count)
    for _ in range(2):
        dot_check.lower_trusted(
            device, lambda limits: opened.lower(gpu_device, graph, limits=limits)
        )
    assert sorted(asked) == sorted(variants_of(opened.lower(gpu_device, graph)))
