"""The pipelines of NVFP4 plans, so that a compiler can be tried without running them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tosavk.core.errors import ResourceLimit
from tosavk.core.plan import Numerics, PlanLimits
from tosavk.lowering.nvfp4.artifact import (
    Activation,
    Experts,
    Extra,
    Mode,
    Program,
    Projection,
)
from tosavk.lowering.nvfp4.kernels import NAMES
from tosavk.lowering.nvfp4.lower import LoweredNvfp4, lower_nvfp4
from tosavk.lowering.nvfp4.tiles import NV
from tosavk.shaders.catalogue import kernels

_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 512, 4096)
_SHAPES = ((1, 64), (2, 64), (64, 80), (4096, 4096), (14336, 4096), (4096, 14336))
_SUBGROUP = 32
"""What kernels that work with any subgroup size ask for, where it may be chosen."""


@dataclass(frozen=True, slots=True, order=True)
class Pipeline:
    """What a pipeline is made from.

    Attributes:
        kernel: the module in the catalogue.
        words: all specialization words: word i is constant i, word 0 the work-group
            width.
        subgroup_size: the subgroup size to ask for where it may be chosen; 0: any.
        full_subgroups: whether full subgroups are asked for.
    """

    kernel: str
    words: tuple[int, ...]
    subgroup_size: int
    full_subgroups: bool


def pipelines(limits: PlanLimits) -> tuple[Pipeline, ...]:
    """The pipelines a device with these capabilities would use.

    Programs of both numerics are lowered for `limits`: every activation, mode, kind of
    tile and pass behind a product, for 1 to 4096 tokens and the weights of usual layers
    ([4096, 4096], [14336, 4096], [4096, 14336]) and of small ones, each with every kernel
    that can make it: a better one may fail its known-answer test, or be left out.

    Args:
        limits: what the device offers. For one that chooses between subgroup sizes, such
            as 32 and 64, ask once for each.

    Returns:
        Each pipeline once, in order.
    """
    found: set[Pipeline] = set()
    for numerics in Numerics:
        for program in _programs():
            for lowered in _fallbacks(program, limits, numerics):
                found.update(
                    _pipeline(d.kernel, d.spec, d.width, limits)
                    for d in lowered.plan.dispatches
                )
    return tuple(sorted(found))


def _fallbacks(
    program: Program, limits: PlanLimits, numerics: Numerics
) -> Iterator[LoweredNvfp4]:
    """The program with each kernel that can make it."""
    for kernel in NAMES.values():
        # Sizes are among its words: two kinds of edges stand for all shapes.
        if kernel == NV and not _stands_for_all(program):
            continue
        try:
            yield lower_nvfp4(program, limits=limits, numerics=numerics, asked=kernel)
        except ResourceLimit:
            continue


def _stands_for_all(program: Program) -> bool:
    return isinstance(program, Projection) and (program.n, program.k) in _SHAPES[2::3]


def _pipeline(
    name: str, spec: tuple[int, ...], width: int, limits: PlanLimits
) -> Pipeline:
    kernel = kernels()[name]
    if not width:
        width = kernel.workgroup
        while width > limits.max_workgroup_invocations:
            width //= 2
    size = 0
    if kernel.needs:
        size = _SUBGROUP if kernel.needs == "subgroup" else limits.subgroup_size
    full = bool(size) and width % size == 0
    return Pipeline(name, (width, *spec), size, full)


def _programs() -> Iterator[Program]:
    for activation in Activation:
        for m in _TOKENS:
            for n, k in _SHAPES:
                for extras in (Extra.NONE, Extra(7)):
                    yield Projection(
                        m=m, n=n, k=k, activation=activation, extras=extras
                    )
        yield Projection(m=3, n=64, k=64, mode=Mode.BATCHED, activation=activation)
        yield Projection(m=3, n=64, k=64, mode=Mode.EXPERTS, activation=activation)
    one = Experts.packed(batch=2, width=32, inner=48)
    yield one
    shifted = tuple(
        type(o)(
            up_packed=o.up_packed + 4,
            up_scales=o.up_scales + 4,
            down_packed=o.down_packed + 4,
            down_scales=o.down_scales + 4,
        )
        for o in one.offsets
    )
    yield Experts(
        batch=2,
        width=32,
        inner=48,
        expert_bytes=one.expert_bytes + 4,
        offsets=shifted,
    )
