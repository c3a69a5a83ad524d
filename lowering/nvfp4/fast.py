"""Tiles and launches of the fast NVFP4 kernels (docs/nvfp4.md, "Fast kernels").

They round activations to FP16 and add products in FP32 with cooperative matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tosavk.core.plan import MatrixShape, PlanLimits
from tosavk.lowering.nvfp4.artifact import Activation, Extra, Projection

GEMM = "nvfp4_gemm_khr"
FEW_TOKENS = 8
"""Up to so many tokens strict kernels are as fast: weights are what is read."""

_K_TILE = 32
_PAIRWISE = 1
_ROW_BYTES = 16


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its words and work groups; operands are added by the lowering."""

    kernel: str
    spec: Mapping[str, int]
    params: Mapping[str, int]
    columns: int
    tiles: int = 1
    layers: int = 1
    width: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """The launches of a fast product.

    Attributes:
        product: the product itself.
        halves: rounds the activations before it, or None.
        halves_bytes: bytes of the rounded activations.
    """

    product: Launch
    halves: Launch | None = None
    halves_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTile:
    """How the KHR kernel cuts a product.

    Attributes:
        shape: the cooperative matrix.
        m: tokens of a work group.
        n: rows of a work group.
        k: columns brought to shared memory at a time.
        m_part: tokens of a subgroup.
        n_part: rows of a subgroup.
        stages: sets of tiles in shared memory.
        width: work-group width.
    """

    shape: MatrixShape
    m: int
    n: int
    k: int = field(default=_K_TILE)
    m_part: int
    n_part: int
    stages: int
    width: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a work group."""
        line = (self.k // 8 + 1) * _ROW_BYTES
        parts = (self.m // self.m_part) * (self.n // self.n_part)
        leaving = parts * self.shape.m * self.shape.n * 4
        return max(self.stages * (self.m + self.n) * line, leaving)


def matrix_shape(limits: PlanLimits) -> MatrixShape | None:
    """The largest cooperative matrix that the kernel can use, or None."""
    fitting = [
        shape
        for shape in limits.matrix_shapes
        if shape.k % 8 == 0
        and _K_TILE % shape.k == 0
        and shape.n % 4 == 0
        and shape.m * shape.n <= 256
    ]
    return max(fitting, key=lambda s: (s.m * s.n * s.k, s.m), default=None)


def gemm_tile(m: int, limits: PlanLimits) -> GemmTile | None:
    """The largest tile that fits a device, or None.

    Args:
        m: tokens; few of them get a lower tile.
        limits: what the device offers.
    """
    shape = matrix_shape(limits)
    if shape is None:
        return None
    for high, wide in ((4, 2), (2, 2), (1, 2), (1, 1)):
        m_part, n_part = high * shape.m, wide * shape.n
        for rows, columns in ((2, 4), (2, 2), (1, 2), (1, 1)):
            if rows * m_part > max(m, 2 * shape.m) and (high, rows) != (1, 1):
                continue
            # Deep slabs read once beat shallow ones read ahead (docs/nvfp4-kernels.md).
            for depth, stages in ((2 * _K_TILE, 1), (_K_TILE, 2), (_K_TILE, 1)):
                tile = GemmTile(
                    shape=shape,
                    k=depth,
                    m=rows * m_part,
                    n=columns * n_part,
                    m_part=m_part,
                    n_part=n_part,
                    stages=stages,
                    width=rows * columns * limits.subgroup_size,
                )
                if (
                    tile.shared_bytes <= limits.shared_bytes
                    and tile.width <= limits.max_workgroup_invocations
                ):
                    return tile
    return None


def fast_launches(program: Projection, limits: PlanLimits) -> Steps:
    """The launches of the KHR kernel, without what comes behind it."""
    activation = Activation.NONE if program.extras else program.activation
    tile = gemm_tile(program.m, limits)
    assert tile is not None, "a kernel was chosen that has no tile"
    depth = -(-program.k // tile.k) * tile.k
    rows = -(-program.m // tile.m) * tile.m
    halves = halves_launch(program, depth=depth, rows=rows, order=_PAIRWISE)
    product = Launch(
        GEMM,
        {
            "M_TILE": tile.m,
            "N_TILE": tile.n,
            "K_TILE": tile.k,
            "M_PART": tile.m_part,
            "N_PART": tile.n_part,
            "M_SIZE": tile.shape.m,
            "N_SIZE": tile.shape.n,
            "K_SIZE": tile.shape.k,
            "STAGES": tile.stages,
            "ACTIVATION": int(activation),
        },
        {"m": program.m, "n": program.n, "k": program.k, "depth": depth},
        columns=rows // tile.m * tile.width,
        tiles=-(-program.n // tile.n),
        width=tile.width,
    )
    return Steps(product, halves, 2 * rows * depth)


def halves_launch(program: Projection, *, depth: int, rows: int, order: int) -> Launch:
    """Rounds x to FP16 [rows, depth], filled up with zeros."""
    count = rows * depth // 8
    return Launch(
        "nvfp4_halves",
        {"ORDER": order},
        {"count": count, "m": program.m, "k": program.k, "depth": depth},
        columns=count,
    )


def finish_launch(program: Projection) -> Launch:
    """Row scales, bias, activation and residual behind a fast kernel."""
    count = program.m * program.n
    has_bias = bool(program.extras & Extra.BIAS)
    has_residual = bool(program.extras & Extra.RESIDUAL)
    return Launch(
        "nvfp4_finish",
        {"ACTIVATION": int(program.activation)},
        {
            "count": count,
            "n": program.n,
            "t_row": int(bool(program.extras & Extra.ROW_SCALES)),
            "extras": has_bias | has_residual << 1,
        },
        columns=count,
    )
