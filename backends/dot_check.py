"""Known-answer tests of the kernels that make integer dot products.

A driver may get them wrong, also after an update. So each variant is tried once on each
open device, before its first use, on a small product whose answer is known. If one
fails, a warning says so, and INT8 is summed without dot products on that device.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tosavk.core.device import Device
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceLost, ModelError
from tosavk.core.plan import Plan, PlanLimits
from tosavk.core.switches import KernelWarning
from tosavk.lowering.graph import Graph, Op
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.rules.dot import KERNELS, NEED, W_ZERO, X_ZERO
from tosavk.lowering.tosa.builder import Builder
from tosavk.shaders.catalogue import kernels

Variant = tuple[str, tuple[int, ...]]
Array = NDArray[Any]


class HasPlans(Protocol):
    """A lowered program."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Everything that it dispatches."""
        ...


Made = TypeVar("Made")


@dataclass(slots=True)
class Verdicts:
    """What is known of one open device.

    Attributes:
        passed: variants whose known answer was right.
        problem: why dot products must not be used; "" if they may.
    """

    passed: set[Variant] = field(default_factory=set[Variant])
    problem: str = ""


VERDICTS: WeakKeyDictionary[Device, Verdicts] = WeakKeyDictionary()
"""What is known of every open device."""


def trusted_limits(device: Device) -> PlanLimits:
    """What plans may ask a device for, without what has failed on it."""
    limits = device.plan_limits
    known = VERDICTS.get(device)
    if known is None or not known.problem:
        return limits
    lacks = {**dict(limits.lacks), NEED: known.problem}
    return dataclasses.replace(limits, lacks=tuple(lacks.items()))


def lower_trusted(
    device: Device, lower: Callable[[PlanLimits], Made], made: Made | None = None
) -> Made:
    """Lowers a program with kernels whose known answers are right.

    Args:
        device: what for.
        lower: makes the program for these limits; it has `plans`.
        made: what it made for the device's own limits, if that is there already.

    Raises:
        DeviceLost: the device was lost in a test.
        Error: what `lower` raises.

    Warns:
        KernelWarning: a kernel failed, and dot products are not used on this device.
    """
    known = VERDICTS.setdefault(device, Verdicts())
    if made is None or known.problem:
        made = lower(trusted_limits(device))
    for variant in sorted(variants_of(made) - known.passed):
        problem = try_variant(device, variant)
        if not problem:
            known.passed.add(variant)
            continue
        known.problem = f"the known-answer test of {variant[0]} failed: {problem}"
        warnings.warn(
            f"{device.name}: {known.problem}; integer dot products are not used on "
            "this device",
            KernelWarning,
            stacklevel=3,
        )
        return lower(trusted_limits(device))
    return made


def variants_of(made: object) -> set[Variant]:
    """The variants of dot kernels that a lowered program dispatches."""
    return {
        (dispatch.kernel, dispatch.spec)
        for plan in cast(HasPlans, made).plans
        for dispatch in (*plan.prologue, *plan.dispatches)
        if dispatch.kernel in KERNELS
    }


def try_variant(device: Device, variant: Variant) -> str:
    """Runs the known-answer test of a variant; what is wrong, or "".

    Raises:
        DeviceLost: the device was lost.
    """
    graph, inputs, answer = known_answer(variant)
    lowered = lower_graph(graph, limits=device.plan_limits)
    assert variant in variants_of(lowered), variant
    try:
        found = run(device, lowered, inputs).reshape(answer.shape)
    except DeviceLost:
        raise
    except ModelError as error:
        return str(error)
    wrong = np.argwhere(found != answer)
    if not wrong.size:
        return ""
    first = tuple(int(i) for i in wrong[0])
    return (
        f"{len(wrong)} of {answer.size} results are wrong, the first is "
        f"{found[first]} instead of {answer[first]}"
    )


def run(device: Device, lowered: object, inputs: dict[str, Array]) -> NDArray[np.int32]:
    """Runs a plan of one output once, outside of any context."""
    from tosavk.backends.nvfp4_check import run_once

    return run_once(device, cast(Any, lowered), inputs).view(np.int32)


def known_answer(variant: Variant) -> tuple[Graph, dict[str, Array], NDArray[np.int32]]:
    """A small program that runs a variant, its inputs, and what comes out."""
    kernel, spec = variant
    words = dict(zip(kernels()[kernel].spec, spec, strict=True))
    depth = 8 if words["FOURS"] else 6
    zeros = (11 if words["SUMS"] & X_ZERO else 0, -7 if words["SUMS"] & W_ZERO else 0)
    rng = np.random.default_rng(0xD07)
    if kernel == "matmul_dot":
        x, w = _bytes(rng, 1, 9, depth), _bytes(rng, 1, depth, 5)
        answer = (_wide(x) - zeros[0]) @ (_wide(w) - zeros[1])
        b = Builder()
        operands = [
            b.input("x", DType.INT8, x.shape),
            b.input("w", DType.INT8, w.shape),
        ]
        zero_points = [b.const(np.array([zero], np.int8)) for zero in zeros]
        b.output(b.matmul(*operands, a_zp=zero_points[0], b_zp=zero_points[1]))
        return load_graph(b.build()), {"x": x, "w": w}, answer.astype(np.int32)
    return _convolution(Op(words["OP"]), depth, zeros, rng)


def _convolution(
    op: Op, depth: int, zeros: tuple[int, int], rng: np.random.Generator
) -> tuple[Graph, dict[str, Array], NDArray[np.int32]]:
    """A convolution of kernel 2 and padding 1; CONV3D has a depth of 1."""
    x, w = _bytes(rng, 1, 3, 4, depth), _bytes(rng, 9, 2, 2, depth)
    bias = rng.integers(-1000, 1000, 9).astype(np.int32)
    b = Builder()
    flat = op is Op.CONV3D
    shapes = [(1, *s) if flat else s for s in (x.shape[1:], w.shape[1:])]
    source = b.input("x", DType.INT8, (1, *shapes[0]))
    inputs: dict[str, Array] = {"x": x}
    # Weights that only a run brings leave the zero point of x to the kernel.
    if zeros[0] and op is not Op.TRANSPOSE_CONV2D:
        weights = b.input("w", DType.INT8, (9, *shapes[1]))
        inputs["w"] = w
    else:
        weights = b.const(w.reshape(9, *shapes[1]))
    zero_points = [b.const(np.array([zero], np.int8)) for zero in zeros]
    operands = [source, weights, b.const(bias), *zero_points]
    attributes: dict[str, Any] = {"acc_type": DType.INT32}
    if op is Op.TRANSPOSE_CONV2D:
        attributes |= {"out_pad": (0, 0, 0, 0), "stride": (1, 1)}
    else:
        around, ones = (1, 1, 1, 1), (1, 1)
        attributes |= {
            "pad": (0, 0, *around) if flat else around,
            "stride": (1, *ones) if flat else ones,
            "dilation": (1, *ones) if flat else ones,
        }
    b.output(b.op(op, operands, **attributes))
    # With these sizes a transposed convolution is one with the kernel turned round.
    taps = w[:, ::-1, ::-1] if op is Op.TRANSPOSE_CONV2D else w
    room = ((0, 0), (1, 1), (1, 1), (0, 0))
    wide = np.pad(_wide(x) - zeros[0], room)
    answer = np.zeros((1, 4, 5, 9), np.int64) + bias
    for ky, kx in itertools.product(range(2), range(2)):
        part = wide[:, ky : ky + 4, kx : kx + 5]
        answer += part @ (_wide(taps[:, ky, kx]) - zeros[1]).T
    return load_graph(b.build()), inputs, answer.astype(np.int32)


def _bytes(rng: np.random.Generator, *shape: int) -> NDArray[np.int8]:
    """Random numbers, the extremes among them."""
    values = rng.integers(-128, 128, shape).astype(np.int8)
    values.reshape(-1)[::5] = -128
    return values


def _wide(array: NDArray[np.int8]) -> NDArray[np.int64]:
    return array.astype(np.int64)


def all_variants() -> Iterator[Variant]:
    """Every variant of every dot kernel."""
    for fours, sums in itertools.product((0, 1), range(4)):
        yield "matmul_dot", (fours, sums)
        for op in (Op.CONV2D, Op.CONV3D, Op.TRANSPOSE_CONV2D):
            yield "conv_dot", (int(op), fours, sums)
