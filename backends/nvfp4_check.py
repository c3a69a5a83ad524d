"""Known-answer tests of NVFP4 kernels, and lowering that trusts only what passed.

A driver may compile a kernel wrongly. Each variant of a kernel is therefore tried once
on each open device, before its first use, on a small product whose answer is known; one
that fails is reported by a warning and not used on that device.
"""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.nvfp4_oracle import evaluate
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
from tosavk.core.plan import Numerics, SlotRole
from tosavk.lowering.nvfp4.artifact import (
    Activation,
    Mode,
    Program,
    Projection,
    check_target,
    read_program,
)
from tosavk.lowering.nvfp4.kernels import Choice
from tosavk.lowering.nvfp4.lower import LoweredNvfp4, lower_nvfp4
from tosavk.lowering.program import lower_artifact
from tosavk.shaders.catalogue import kernels

SWITCH = "TOSAVK_WITHOUT"
"""Environment variable: what kernels must do without, such as "subgroup,matrices"."""

TIMEOUT_NS = 60_000_000_000
_ROWS, _DEPTH, _TOKENS, _MANY_TOKENS = 9, 608, 9, 300
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
        return lower_artifact(artifact, limits=device.plan_limits, numerics=numerics)
    check_target(artifact.target)
    return lower_checked(device, read_program(artifact.view()), numerics=numerics)


def lower_checked(
    device: Device, program: Program, *, numerics: Numerics = Numerics.STRICT
) -> LoweredNvfp4:
    """Lowers an NVFP4 program with the best kernel that passes its known-answer test.

    Raises:
        ResourceLimit: no kernel fits and passes, or a tensor is too large.
        DeviceLost: the device was lost in the test.

    Warns:
        Nvfp4Warning: a kernel failed and is not used.
    """
    known = verdicts(device)
    off = switched_off()
    while True:
        lowered = lower_nvfp4(
            program,
            limits=device.plan_limits,
            numerics=numerics,
            broken={**off, **known.broken},
        )
        variants = variants_of(lowered)
        problem = ""
        for variant in variants - known.passed:
            problem = try_variant(device, program, lowered.choice, numerics=numerics)
            if problem:
                break
            known.passed.add(variant)
        if not problem:
            return lowered
        kernel = lowered.choice.kernel
        known.broken[kernel] = f"its known-answer test failed: {problem}"
        warnings.warn(
            f"{device.name}: NVFP4 kernel {kernel} {known.broken[kernel]}; it is not "
            "used on this device",
            Nvfp4Warning,
            stacklevel=3,
        )


def switched_off() -> dict[str, str]:
    """Kernels that `TOSAVK_WITHOUT` leaves out, with that as the reason.

    Warns:
        Nvfp4Warning: it names what no kernel needs.
    """
    words = os.environ.get(SWITCH, "").replace(",", " ").split()
    needs = {kernel.needs for kernel in kernels().values() if not kernel.portable}
    unknown = sorted(set(words) - needs)
    if unknown:
        warnings.warn(
            f"{SWITCH}={os.environ[SWITCH]} names {', '.join(unknown)}, which no kernel "
            f"needs; there are {', '.join(sorted(needs))}",
            Nvfp4Warning,
            stacklevel=4,
        )
    return {
        name: f"{SWITCH} leaves out {kernel.needs}"
        for name, kernel in kernels().items()
        if kernel.needs in words
    }


def variants_of(lowered: LoweredNvfp4) -> set[Variant]:
    """The kernel variants of a plan, without what only says how operands lie."""
    found: set[Variant] = set()
    for dispatch in lowered.plan.dispatches:
        names = kernels()[dispatch.kernel].spec
        words = zip(names, dispatch.spec, strict=True)
        kept = tuple(word for name, word in words if name != "PAIRS")
        found.add((dispatch.kernel, kept))
    return found


def try_variant(
    device: Device,
    program: Program,
    choice: Choice,
    *,
    numerics: Numerics = Numerics.STRICT,
) -> str:
    """Runs a small product with the kernel that `program` gets.

    Returns:
        What is wrong, or "".

    Raises:
        DeviceLost: the device was lost.
    """
    small = _small(program, numerics)
    rng = np.random.default_rng(0x4E5646)
    # FP16 numbers, so that kernels that round to FP16 have the same exact answer.
    x = rng.standard_normal((small.m, small.k)).astype(np.float16)
    given: dict[str, NDArray[Any]] = {
        "x": x.astype(np.float32),
        "packed": rng.integers(0, 256, (small.n, small.k // 2)).astype(np.uint8),
        "scales": rng.integers(0, 127, (small.n, small.k // 16)).astype(np.uint8),
        "tensor_scale": np.array([0.0078125], np.float32),
    }
    lowered = lower_nvfp4(
        small,
        limits=device.plan_limits,
        numerics=numerics,
        broken={r.kernel: r.reason for r in choice.rejected},
    )
    try:
        got = run_once(device, lowered, given).astype(np.float64)
    except DeviceLost:
        raise
    except ModelError as error:
        return str(error)
    answer = evaluate(small, given)
    bound = _bound(small, answer.size, answer.y)
    wrong = ~(np.abs(got - answer.y) <= bound)
    if not wrong.any():
        return ""
    token, row = (int(v) for v in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} results are wrong, the first is "
        f"{got[token, row]:g} instead of {answer.y[token, row]:g}"
    )


def _small(program: Program, numerics: Numerics) -> Projection:
    """A product that gets the same kernel and the same tile."""
    if isinstance(program, Projection):
        shares = program.mode is Mode.SHARED
        most = _TOKENS if numerics is Numerics.STRICT else _MANY_TOKENS
        tokens = min(program.m, most) if shares else 1
        rows = min(program.n, _ROWS)
        activation = program.activation
    else:
        tokens, rows, activation = 1, _ROWS, Activation.SQUARED_RELU
    return Projection(m=tokens, n=rows, k=_DEPTH, activation=activation)


def _bound(
    program: Projection, size: NDArray[Any], y: NDArray[Any]
) -> NDArray[np.float64]:
    """How far a result may be off: the sum, carried through the activation.

    Twice the bound of strict sums: matrix units may round sums towards zero.
    """
    sums: NDArray[np.float64] = (program.k + 64) * 2.0**-22 * size
    last: NDArray[np.float64] = 2.0**-22 * np.abs(y)
    if program.activation is Activation.SQUARED_RELU:
        steep: NDArray[np.float64] = 2 * np.sqrt(np.abs(y)) + sums
        return steep * sums + last
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
