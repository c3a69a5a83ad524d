"""Which kernel makes an NVFP4 product, and why no better one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tosavk.core.errors import InvalidArgument, ResourceLimit
from tosavk.core.plan import Numerics, PlanLimits
from tosavk.lowering.nvfp4.artifact import Mode, Program, Projection
from tosavk.lowering.nvfp4.tiles import (
    FEW_TOKENS,
    FRAGMENTS,
    GEMM,
    GEMV,
    MOST_GEMV_TOKENS,
    MOST_NARROW_TOKENS,
    NARROW_ROWS,
    NV,
    FastTile,
    fast_tile,
)
from tosavk.shaders.catalogue import kernels

LANES = 32
SCALAR = "nvfp4_scalar"
SUBGROUP = "nvfp4_subgroup"
STRICT_KERNELS = (SUBGROUP, SCALAR)
"""Kernels with strict sums, best first; their results have the same bits."""

FAST_KERNELS = (NV, GEMV, FRAGMENTS, GEMM)
"""Kernels that round activations to FP16, best first; for matrices that tokens share."""

NAMES = {
    "scalar": SCALAR,
    "subgroup": SUBGROUP,
    "gemv": GEMV,
    "fragments": FRAGMENTS,
    "khr": GEMM,
    "nv": NV,
}
"""What a kernel is asked for by."""

SLOWER = (
    "offered, but slower than KHR matrices where it was measured "
    "(docs/nvfp4-kernels.md); kernel='nv' asks for it"
)
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
        rejected: better kernels that were not taken, best first; and those that the
            device offers, but nobody asked for.
        tile: how a fast kernel cuts the product.
    """

    kernel: str
    rejected: tuple[Rejected, ...] = ()
    tile: FastTile | None = None

    def __str__(self) -> str:
        """The kernel, and the reason why each better one was not taken."""
        reasons = "".join(f"; not {r.kernel}: {r.reason}" for r in self.rejected)
        return f"{self.kernel}{reasons}"


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and tokens that one team of `LANES` makes."""

    rows: int
    tokens: int


def kernel_named(name: str) -> str:
    """The catalogue's name of a kernel that is asked for; "" for "".

    Raises:
        InvalidArgument: there is no such kernel.
    """
    if name and name not in NAMES and name not in NAMES.values():
        raise InvalidArgument(
            f"NVFP4 kernel {name!r} is unknown; choose one of {', '.join(NAMES)}"
        )
    return NAMES.get(name, name)


def choose(
    limits: PlanLimits,
    *,
    program: Program,
    numerics: Numerics = Numerics.STRICT,
    broken: Mapping[str, str] | None = None,
    asked: str = "",
) -> Choice:
    """The best kernel for a program that a device can run.

    Args:
        limits: what the device offers.
        program: what is to be computed.
        numerics: FAST also allows kernels that are not strict.
        broken: kernels that must not be used, with the reason.
        asked: the one kernel to take, by its name in the catalogue; "" for the best.

    Raises:
        ResourceLimit: the device can run none, or not the one that was asked for.
    """
    rejected: list[Rejected] = []
    for name in (*FAST_KERNELS, *STRICT_KERNELS):
        if asked not in ("", name) or not (asked or _meant(name, program)):
            continue
        tile, reason = None, (broken or {}).get(name, "")
        reason = reason or _lack(name, program, limits, numerics)
        if not reason and name in FAST_KERNELS and isinstance(program, Projection):
            tile, reason = fast_tile(name, program, limits)
        if not reason and name == NV and not asked:
            reason = SLOWER
        if not reason:
            return Choice(name, tuple(rejected), tile)
        rejected.append(Rejected(name, reason))
    raise ResourceLimit(
        "no NVFP4 kernel fits the device: "
        + "; ".join(f"{r.kernel}: {r.reason}" for r in rejected)
    )


def _meant(name: str, program: Program) -> bool:
    """Whether a kernel is for this kind of program."""
    if name in STRICT_KERNELS:
        return True
    if not isinstance(program, Projection) or program.mode is not Mode.SHARED:
        return False
    if name != GEMV:
        return program.m > FEW_TOKENS
    narrow = program.n in NARROW_ROWS
    return program.m <= (MOST_NARROW_TOKENS if narrow else MOST_GEMV_TOKENS)


def _lack(name: str, program: Program, limits: PlanLimits, numerics: Numerics) -> str:
    """Why a kernel cannot run a program on a device, whatever its tile; "" if it can."""
    kernel = kernels()[name]
    if name in FAST_KERNELS:
        if not isinstance(program, Projection) or program.mode is not Mode.SHARED:
            return "it is for tokens that share one matrix"
        if numerics is Numerics.STRICT:
            return "its results are not strict; numerics='fast' allows it"
    reason = limits.lack(kernel.needs)
    if not reason and limits.max_storage_buffers < len(kernel.bindings):
        reason = (
            f"it binds {len(kernel.bindings)} storage buffers, the device allows "
            f"{limits.max_storage_buffers}"
        )
    return reason


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
