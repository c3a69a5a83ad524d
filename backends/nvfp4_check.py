"""Known-answer tests of NVFP4 kernels, and lowering that trusts only what passed.

A driver may compile a kernel wrongly. Each variant of a kernel is therefore tried once
on each open device, before its first use, on a small product whose answer is known; one
that fails is reported by a warning and not used on that device.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.nvfp4_oracle import Answer, evaluate
from tosavk.core.descriptors import (
    FORMAT_NVFP4,
    Artifact,
    BufferDesc,
    BufferUsage,
    MemoryDomain,
)
from tosavk.core.device import Allocation, BoundSlot, Device, Lowered
from tosavk.core.errors import DeviceLost, ModelError, Unsupported
from tosavk.core.nvfp4 import Nvfp4Warning
from tosavk.core.plan import Numerics, PlanLimits, SlotRole
from tosavk.lowering.nvfp4.artifact import (
    Activation,
    Extra,
    Mode,
    Program,
    Projection,
    check_target,
    read_program,
)
from tosavk.lowering.nvfp4.lower import LoweredNvfp4, lower_nvfp4, lower_with
from tosavk.lowering.program import lower_artifact
from tosavk.lowering.rules.dot import dispatches_dots
from tosavk.shaders.catalogue import kernels

TIMEOUT_NS = 60_000_000_000
_ROWS, _DEPTH, _TOKENS = 9, 608, 9
_GEOMETRY = frozenset({"PAIRS", "M", "N", "K", "DEPTH"})
Variant = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class Verdicts:
    """What is known of the kernels of one open device.

    Attributes:
        passed: variants whose known answer was right.
        broken: kernels that must not be used, with the reason.
    """

    passed: set[Variant] = field(default_factory=set[Variant])
    broken: dict[str, str] = field(default_factory=dict[str, str])


VERDICTS: WeakKeyDictionary[Device, Verdicts] = WeakKeyDictionary()
"""What is known of the kernels of every open device."""


def verdicts(device: Device) -> Verdicts:
    """What is known of the kernels of a device."""
    return VERDICTS.setdefault(device, Verdicts())


def lower_for(device: Device, artifact: Artifact, *, numerics: Numerics) -> Lowered:
    """Lowers an artifact of any format for a device.

    Raises:
        Error: see `lowering.program.lower_artifact` and `lower_checked`.
    """
    if artifact.format != FORMAT_NVFP4:

        def lower(limits: PlanLimits) -> Lowered:
            return lower_artifact(artifact, limits=limits, numerics=numerics)

        lowered = lower(device.plan_limits)
        if not dispatches_dots(getattr(lowered, "plans", ())):
            return lowered
        from tosavk.backends.dot_check import lower_trusted

        return lower_trusted(device, lower, lowered)
    check_target(artifact.target)
    return lower_checked(device, read_program(artifact.view()), numerics=numerics)


def lower_checked(
    device: Device,
    program: Program,
    *,
    numerics: Numerics = Numerics.STRICT,
    asked: str = "",
) -> LoweredNvfp4:
    """Lowers an NVFP4 program with the best kernel that passes its known-answer test.

    Args:
        device: where it is to run.
        program: what is to be computed.
        numerics: FAST also allows kernels that are not strict.
        asked: the one kernel to take, by its name in the catalogue; "" for the best.

    Raises:
        ResourceLimit: no kernel fits and passes, or a tensor is too large.
        DeviceLost: the device was lost in the test.

    Warns:
        Nvfp4Warning: a kernel failed and is not used.
    """
    known = verdicts(device)
    while True:
        lowered = lower_nvfp4(
            program,
            limits=device.plan_limits,
            numerics=numerics,
            broken=known.broken,
            asked=asked,
        )
        variants = variants_of(lowered)
        if variants <= known.passed:
            return lowered
        problem = try_variant(device, lowered)
        if not problem:
            known.passed |= variants
            return lowered
        kernel = lowered.choice.kernel
        known.broken[kernel] = f"its known-answer test failed: {problem}"
        warnings.warn(
            f"{device.name}: NVFP4 kernel {kernel} {known.broken[kernel]}; it is not "
            "used on this device",
            Nvfp4Warning,
            stacklevel=3,
        )


def variants_of(lowered: LoweredNvfp4) -> set[Variant]:
    """The kernel variants of a plan, without what only says where operands lie."""
    found: set[Variant] = set()
    for dispatch in lowered.plan.dispatches:
        names = kernels()[dispatch.kernel].spec
        words = zip(names, dispatch.spec, strict=True)
        kept = tuple(word for name, word in words if name not in _GEOMETRY)
        found.add((dispatch.kernel, (dispatch.width, *kept)))
    return found


def try_variant(device: Device, lowered: LoweredNvfp4) -> str:
    """Runs a small product with the kernel and the tile of a plan.

    Returns:
        What is wrong, or "".

    Raises:
        DeviceLost: the device was lost.
    """
    small = _small(lowered)
    given = _known_inputs(small)
    trial = lower_with(
        lowered.choice,
        small,
        limits=device.plan_limits,
        numerics=lowered.plan.numerics,
    )
    try:
        got = run_once(device, trial, given).astype(np.float64)
    except DeviceLost:
        raise
    except ModelError as error:
        return str(error)
    answer = evaluate(small, given)
    wrong = ~(np.abs(got - answer.y) <= _bound(small, answer))
    if not wrong.any():
        return ""
    token, row = (int(v) for v in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} results are wrong, the first is "
        f"{got[token, row]:g} instead of {answer.y[token, row]:g}"
    )


def _small(lowered: LoweredNvfp4) -> Projection:
    """A product that goes through all that a kernel and its tile do."""
    program, tile = lowered.program, lowered.choice.tile
    activation = Activation.SQUARED_RELU
    extras = Extra.NONE
    m, n, k = 1, _ROWS, _DEPTH
    if isinstance(program, Projection):
        activation = program.activation
        if program.mode is Mode.SHARED:
            m = min(program.m, _TOKENS)
        n = min(program.n, _ROWS)
    if tile is not None and isinstance(program, Projection):
        extras = program.extras
        m, n, k = tile.trial.m, tile.trial.n, tile.trial.k
    return Projection(m=m, n=n, k=k, activation=activation, extras=extras)


def _known_inputs(program: Projection) -> dict[str, NDArray[Any]]:
    """All codes, and all scales that are no NaN and not negative."""
    rng = np.random.default_rng(0x4E5646)
    m, n, k = program.m, program.n, program.k
    # FP16 numbers, so that kernels that round to FP16 have the same exact answer.
    x = rng.standard_normal((m, k), np.float32).astype(np.float16)
    factor = np.full(n if program.extras & Extra.ROW_SCALES else 1, 2.0**-7)
    given: dict[str, NDArray[Any]] = {
        "x": x.astype(np.float32),
        "packed": rng.integers(0, 256, (n, k // 2), np.uint8),
        "scales": rng.integers(0, 127, (n, k // 16), np.uint8),
        "tensor_scale": (factor * (1 + np.arange(factor.size) % 3)).astype(np.float32),
    }
    if program.extras & Extra.BIAS:
        given["bias"] = rng.standard_normal(n, np.float32)
    if program.extras & Extra.RESIDUAL:
        given["residual"] = rng.standard_normal((m, n), np.float32)
    return given


def _bound(program: Projection, answer: Answer) -> NDArray[np.float64]:
    """How far results may be off: the sum, carried through the activation.

    Twice the bound of strict sums: matrix units may round sums towards zero.
    """
    sums: NDArray[np.float64] = (program.k + 64) * 2.0**-22 * answer.size
    last: NDArray[np.float64] = 2.0**-22 * np.abs(answer.y)
    if program.activation is Activation.SQUARED_RELU:
        steep: NDArray[np.float64] = 2 * np.abs(answer.before) + sums
        return steep * sums + last + 2.0**-22 * np.square(answer.before)
    # SiLU and sigmoid are nowhere steeper than 1.1.
    return 1.1 * sums + last


def run_once(
    device: Device, lowered: LoweredNvfp4, given: dict[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """Runs a plan once, outside of any context.

    Args:
        device: where.
        lowered: the plan.
        given: the input slots by name.

    Raises:
        ModelError: the device refused, or the work did not end in time.
    """
    domain = best_domain(device)
    with ExitStack() as undo:
        kit = device.create_kit()
        undo.callback(kit.free)
        bound: list[BoundSlot] = []
        target: Allocation | None = None
        for slot in lowered.plan.slots:
            is_input = slot.role is SlotRole.INPUT
            usage = BufferUsage.TRANSFER_DESTINATION | BufferUsage.PROGRAM_INPUT
            if not is_input:
                usage = BufferUsage.TRANSFER_SOURCE | BufferUsage.PROGRAM_OUTPUT
            nbytes = -(-slot.nbytes // 4) * 4
            memory = kit.allocate(BufferDesc(nbytes=nbytes, usage=usage, domain=domain))
            undo.callback(memory.free)
            bound.append(BoundSlot(memory, 0, slot.nbytes))
            if is_input:
                memory.write(0, _words(given[slot.name]).data)
            else:
                target = memory
        program = kit.load(lowered)
        undo.callback(program.free)
        recording = kit.record(program, bound, None)
        undo.callback(recording.free)
        recording.launch()
        if not recording.wait(TIMEOUT_NS):
            device.wait_idle()
            raise Unsupported(f"it did not end in {TIMEOUT_NS / 1e9:g} seconds")
        recording.retire()
        assert target is not None
        slot = lowered.plan.outputs[0]
        raw = np.empty(slot.nbytes, np.uint8)
        target.read(0, raw.data)
        return raw.view(np.float32).reshape(slot.shape)


def _words(array: NDArray[Any]) -> NDArray[np.uint8]:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return np.pad(raw, (0, -raw.size % 4))


def best_domain(device: Device) -> MemoryDomain:
    """Mapped device memory if there is any, else device memory, else host memory."""
    offered = device.info.domains
    for domain in (MemoryDomain.SHARED, MemoryDomain.DEVICE, MemoryDomain.HOST):
        if domain in offered:
            return domain
    raise Unsupported(f"{device.name} offers no memory domain")
