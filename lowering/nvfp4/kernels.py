"""Which kernel makes an NVFP4 product, and why no better one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tosavk.core.errors import ResourceLimit
from tosavk.core.plan import Numerics, PlanLimits
from tosavk.lowering.nvfp4.artifact import Mode, Program, Projection
from tosavk.lowering.nvfp4.fast import (
    FEW_TOKENS,
    GEMM,
    gemm_tile,
)
from tosavk.shaders.catalogue import kernels

LANES = 32
SCALAR = "nvfp4_scalar"
SUBGROUP = "nvfp4_subgroup"
STRICT_KERNELS = (SUBGROUP, SCALAR)
"""Kernels with strict sums, best first; their results have the same bits."""

FAST_KERNELS = (GEMM,)
"""Kernels that round activations to FP16, best first; for matrices that tokens share."""

_MAX_SUMS = LANES


@dataclass(frozen=True, slots=True)
class Rejected:
    """A kernel that would have been better, and why it is not used."""

    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel of a product.

    Attributes:
        kernel: name in the catalogue.
        rejected: better kernels that were not taken, best first.
    """

    kernel: str
    rejected: tuple[Rejected, ...] = ()

    def __str__(self) -> str:
        """The kernel, and the reason why each better one was not taken."""
        reasons = "".join(f"; not {r.kernel}: {r.reason}" for r in self.rejected)
        return f"{self.kernel}{reasons}"


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and tokens that one team of `LANES` makes."""

    rows: int
    tokens: int


def choose(
    limits: PlanLimits,
    *,
    program: Program,
    numerics: Numerics = Numerics.STRICT,
    broken: Mapping[str, str] | None = None,
) -> Choice:
    """The best kernel for a program that a device can run.

    Args:
        limits: what the device offers.
        program: what is to be computed.
        numerics: FAST also allows kernels that are not strict.
        broken: kernels that must not be used, with the reason.

    Raises:
        ResourceLimit: the device can run none.
    """
    table = kernels()
    rejected: list[Rejected] = []
    for name in (*FAST_KERNELS, *STRICT_KERNELS):
        kernel = table[name]
        if not kernel.strict and not _wanted(program):
            continue
        reason = (broken or {}).get(name, "") or limits.lack(kernel.needs)
        if not kernel.strict and numerics is Numerics.STRICT:
            reason = "its results are not strict; numerics='fast' allows it"
        if not reason and not kernel.strict and isinstance(program, Projection):
            reason = _fast_lack(program, limits)
        if not reason and limits.max_storage_buffers < len(kernel.bindings):
            reason = (
                f"it binds {len(kernel.bindings)} storage buffers, the device allows "
                f"{limits.max_storage_buffers}"
            )
        if not reason:
            return Choice(name, tuple(rejected))
        rejected.append(Rejected(name, reason))
    raise ResourceLimit(
        "no NVFP4 kernel fits the device: "
        + "; ".join(f"{r.kernel}: {r.reason}" for r in rejected)
    )


def _wanted(program: Program) -> bool:
    """Whether fast kernels are for this kind of program."""
    return (
        isinstance(program, Projection)
        and program.mode is Mode.SHARED
        and program.m > FEW_TOKENS
    )


def _fast_lack(program: Projection, limits: PlanLimits) -> str:
    """Why a fast kernel cannot make a product on a device; "" if it can."""
    if gemm_tile(program.m, limits) is None:
        return "no cooperative matrix of the device has a tile that fits its limits"
    return ""


def tile_for(kernel: str, *, m: int, n: int) -> Tile:
    """The tile of a strict kernel for m tokens that share weights with n rows.

    Tokens of a tile share decoded weights, rows of a tile share activations.
    """
    if kernel == SCALAR:
        return Tile(1, 1 if m == 1 else 4)
    tokens = 1
    while tokens < min(m, 8):
        tokens *= 2
    # Measured on an H200 (docs/nvfp4-kernels.md): few tokens want few rows.
    rows = 2 if tokens <= 2 else 4
    while rows > n or rows * tokens > _MAX_SUMS:
        rows //= 2
    return Tile(max(rows, 1), tokens)
