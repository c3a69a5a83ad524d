"""How the fast NVFP4 kernels cut a product into work groups (docs/nvfp4-kernels.md).

They round activations to FP16 and add products in FP32 with cooperative matrices. Every
number here was measured there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tosavk.core.plan import MatrixShape, PlanLimits
from tosavk.lowering.nvfp4.artifact import Activation, Projection
from tosavk.lowering.nvfp4.launches import Launch, Steps, after_halves

GEMV = "nvfp4_gemv"
FRAGMENTS = "nvfp4_gemm_fragments"
GEMM = "nvfp4_gemm_khr"
NV = "nvfp4_gemm_nv"

FEW_TOKENS = 8
"""Up to so many tokens fill one matrix of the kernel for few tokens."""

MOST_GEMV_TOKENS = 32
MOST_NARROW_TOKENS = 128
NARROW_ROWS = range(2048, 4225)
"""Weights of so many rows (16 to 32 for each of 132 units): more tokens are few."""

FRAGMENT_SUBGROUP = 32
FRAGMENT_GEMV = MatrixShape(16, 8, 16)
FRAGMENT_GEMM = MatrixShape(16, 16, 16)

_PLAIN, _PAIRWISE, _WIDE, _CHUNKED = range(4)
"""Orders of nvfp4_halves."""

_CHUNK = 128
_LINE_BYTES = 144
_OWN_BYTES = 320
"""Shared memory for a token of a subgroup's own chunk."""
_ROW_BYTES = 16
_K_TILE, _DEEP = 32, 64
_MOST_SUMS = 64 * 32
"""Sums of a subgroup, which live in its registers."""

_TRIAL_K = 608
_USUAL_UNITS = 132
_MOST_ROW_GROUPS = {1: 8, 2: 8, 4: 2}
_NARROW = 2
"""Row groups to fill the device with: up to so many, subgroups take all rows."""

_OWN_TURNS = {4: 20, 8: 16}
"""Most subgroups that round their own activations, by tokens."""
_GEMV_SUBGROUPS = {1: (32, 32), 2: (28, 14), 4: (14, 8)}
"""Subgroups of a work group by matrices of tokens: for narrow and for high weights."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Sizes of a product that goes through all of a tile's code, ragged edges too."""

    m: int
    n: int
    k: int


class FastTile(Protocol):
    """How a fast kernel cuts products; it fits every product with the same words."""

    @property
    def trial(self) -> Trial:
        """A product to try it with."""
        ...

    def steps(self, program: Projection, activation: Activation) -> Steps:
        """The launches of a product, without what comes behind it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GemvTile:
    """How the kernel for few tokens cuts a product.

    Attributes:
        token_tiles: matrices of 8 tokens.
        row_groups: subgroups side by side, 16 rows each.
        turns: subgroups that take turns at the columns.
        halves: the activations are rounded by a dispatch of their own.
        own: every subgroup rounds those of its own columns.
        tiles: matrices of 16 rows of a subgroup.
        room_tokens: without halves, the tokens that shared memory has room for.
        room_chunks: with neither, their columns, in 128.
    """

    token_tiles: int
    row_groups: int
    turns: int
    halves: bool
    own: bool = False
    tiles: int = 1
    room_tokens: int = 1
    room_chunks: int = 1

    @property
    def width(self) -> int:
        """Invocations of a work group."""
        return FRAGMENT_SUBGROUP * self.row_groups * self.turns

    @property
    def rows(self) -> int:
        """Rows of a work group."""
        return 16 * self.tiles * self.row_groups

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a work group."""
        subgroups = self.row_groups * self.turns
        room = self.room_tokens * (16 * self.room_chunks + 4) * 16
        if self.own:
            room = subgroups * _whole(self.room_tokens, 2) * _OWN_BYTES
        sums = subgroups * self.tiles * self.token_tiles * 512
        return max(16 if self.halves else room, sums) + 16

    @property
    def trial(self) -> Trial:
        """Two turns and a part of a third, where there is room for them."""
        chunks = 2 * self.turns + 1
        if self.halves:
            m = 8 * self.token_tiles - 1
        else:
            m = self.room_tokens
            chunks = chunks if self.own else min(self.room_chunks, chunks)
        return Trial(m, 2 * self.rows - 7, _CHUNK * chunks - 32)

    def steps(self, program: Projection, activation: Activation) -> Steps:
        """The launches of a product."""
        tokens = 8 * self.token_tiles
        columns = _up(program.m, tokens)
        product = Launch(
            GEMV,
            {
                "TILES": self.tiles,
                "TOKEN_TILES": self.token_tiles,
                "ROW_GROUPS": self.row_groups,
                "HALVES": 2 if self.own else int(self.halves),
                "ROOM_TOKENS": self.room_tokens,
                "ROOM_CHUNKS": self.room_chunks,
                "ACTIVATION": int(activation),
            },
            {"m": program.m, "n": program.n, "k": program.k},
            columns=_up(program.n, self.rows) * self.width,
            tiles=columns,
            width=self.width,
        )
        if not self.halves:
            return Steps(product)
        depth = _whole(program.k, _CHUNK)
        rows = columns * tokens
        return after_halves(product, program, depth=depth, rows=rows, order=_CHUNKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentTile:
    """How the kernel for many tokens and a known order of elements cuts a product.

    Attributes:
        m: tokens of a work group.
        m_part: tokens of a subgroup.
        tiles: matrices of 16 rows of a subgroup.
        subgroups: subgroups of a work group.
    """

    m: int
    m_part: int
    tiles: int
    subgroups: int

    @property
    def width(self) -> int:
        """Invocations of a work group."""
        return FRAGMENT_SUBGROUP * self.subgroups

    @property
    def n(self) -> int:
        """Rows of a work group."""
        return self.subgroups // (self.m // self.m_part) * 16 * self.tiles

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a work group."""
        leaving = self.subgroups * 256 * (4 * self.tiles + 1)
        return max(2 * self.m * _LINE_BYTES, leaving)

    @property
    def trial(self) -> Trial:
        """A whole tile and a ragged one in each direction."""
        return Trial(self.m + 3, self.n + 5, _TRIAL_K)

    def steps(self, program: Projection, activation: Activation) -> Steps:
        """The launches of a product."""
        depth = _whole(program.k, _CHUNK)
        rows = _whole(program.m, self.m)
        product = Launch(
            FRAGMENTS,
            {
                "M_TILE": self.m,
                "M_PART": self.m_part,
                "TILES": self.tiles,
                "ACTIVATION": int(activation),
            },
            {"m": program.m, "n": program.n, "k": program.k, "depth": depth},
            columns=rows // self.m * self.width,
            tiles=_up(program.n, self.n),
            width=self.width,
        )
        return after_halves(product, program, depth=depth, rows=rows, order=_WIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTile:
    """How the kernel for any cooperative matrix cuts a product.

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
    k: int = _K_TILE
    m_part: int
    n_part: int
    stages: int
    width: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a work group."""
        line = (self.k // 8 + 1) * _ROW_BYTES
        parts = (self.m // self.m_part) * (self.n // self.n_part)
        leaving = parts * self.shape.m * (self.n_part + 4) * 4
        return max(self.stages * (self.m + self.n) * line, leaving)

    @property
    def trial(self) -> Trial:
        """A whole tile and a ragged one in each direction."""
        return Trial(self.m + 3, self.n + 5, _TRIAL_K)

    def steps(self, program: Projection, activation: Activation) -> Steps:
        """The launches of a product."""
        depth = _whole(program.k, self.k)
        rows = _whole(program.m, self.m)
        product = Launch(
            GEMM,
            {
                "M_TILE": self.m,
                "N_TILE": self.n,
                "K_TILE": self.k,
                "M_PART": self.m_part,
                "N_PART": self.n_part,
                "M_SIZE": self.shape.m,
                "N_SIZE": self.shape.n,
                "K_SIZE": self.shape.k,
                "STAGES": self.stages,
                "ACTIVATION": int(activation),
            },
            {"m": program.m, "n": program.n, "k": program.k, "depth": depth},
            columns=rows // self.m * self.width,
            tiles=_up(program.n, self.n),
            width=self.width,
        )
        return after_halves(product, program, depth=depth, rows=rows, order=_PAIRWISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvTile:
    """How the kernel with matrices of a whole work group cuts a product.

    Attributes:
        m: tokens of a work group.
        n: rows of a work group.
        k: columns of a step.
        width: work-group width.
        clamp: tiles do not divide the product, so loads and stores look at its edges.
    """

    m: int
    n: int
    k: int
    width: int
    clamp: bool

    @property
    def trial(self) -> Trial:
        """Ragged tiles, or whole ones where loads do not look at edges."""
        if self.clamp:
            return Trial(self.m + 3, self.n + 5, _TRIAL_K)
        return Trial(2 * self.m, 2 * self.n, 4 * self.k)

    def steps(self, program: Projection, activation: Activation) -> Steps:
        """The launches of a product."""
        depth = _whole(program.k, self.k)
        rows = _whole(program.m, self.m)
        product = Launch(
            NV,
            {
                "M_TILE": self.m,
                "N_TILE": self.n,
                "K_TILE": self.k,
                "CLAMP": int(self.clamp),
                "ACTIVATION": int(activation),
                "M": program.m,
                "N": program.n,
                "K": program.k,
                "DEPTH": depth,
            },
            {},
            columns=rows // self.m * self.width,
            tiles=_up(program.n, self.n),
            width=self.width,
        )
        return after_halves(product, program, depth=depth, rows=rows, order=_PLAIN)


def fast_tile(
    kernel: str, program: Projection, limits: PlanLimits
) -> tuple[FastTile | None, str]:
    """The tile of a fast kernel for a product, or why there is none."""
    if kernel == GEMM:
        return gemm_tile(program.m, limits)
    if kernel == NV:
        return nv_tile(program, limits)
    shape = FRAGMENT_GEMV if kernel == GEMV else FRAGMENT_GEMM
    if shape not in limits.matrix_shapes:
        return None, f"the device has no {shape} cooperative matrix"
    if limits.subgroup_size != FRAGMENT_SUBGROUP:
        return None, (
            f"subgroups have {limits.subgroup_size} invocations, not "
            f"{FRAGMENT_SUBGROUP}"
        )
    if program.k % 32:
        return None, f"k = {program.k} is no multiple of 32"
    return (gemv_tile if kernel == GEMV else fragment_tile)(program, limits)


def gemv_tile(program: Projection, limits: PlanLimits) -> tuple[GemvTile | None, str]:
    """The tile for few tokens: a work group for each unit of the device."""
    token_tiles = 1 if program.m <= FEW_TOKENS else 2 if program.m <= 16 else 4
    chunks = _up(program.k, _CHUNK)
    wanted = _up(program.n, 16 * (limits.compute_units or _USUAL_UNITS))
    row_groups = min(wanted, _MOST_ROW_GROUPS[token_tiles])
    subgroups = _GEMV_SUBGROUPS[token_tiles][wanted > 2]
    subgroups = min(subgroups, limits.max_workgroup_invocations // FRAGMENT_SUBGROUP)
    row_groups = min(row_groups, subgroups)
    if token_tiles == 1 and wanted <= _NARROW:
        most = min(_OWN_TURNS[4 if program.m <= 4 else 8], subgroups)
        while most:
            tile = GemvTile(
                token_tiles=1,
                row_groups=1,
                turns=most if chunks > 2 * most else _up(chunks, _up(chunks, most)),
                halves=False,
                own=True,
                tiles=wanted,
                room_tokens=program.m,
            )
            if tile.shared_bytes <= limits.shared_bytes:
                return tile, ""
            most //= 2
    while row_groups:
        for halves in (False, True):
            tile = GemvTile(
                token_tiles=token_tiles,
                row_groups=row_groups,
                turns=min(subgroups // row_groups, chunks),
                halves=halves or token_tiles > 1,
                room_tokens=1 if halves or token_tiles > 1 else program.m,
                room_chunks=1 if halves or token_tiles > 1 else chunks,
            )
            if tile.shared_bytes <= limits.shared_bytes:
                return tile, ""
        subgroups //= 2
        row_groups = min(row_groups, subgroups)
    return None, _too_small(limits)


def fragment_tile(
    program: Projection, limits: PlanLimits
) -> tuple[FragmentTile | None, str]:
    """The tile for many tokens: higher ones as soon as they keep the device busy."""
    units = limits.compute_units or _USUAL_UNITS
    fitting = [
        (
            cost
            * max(_up(_up(program.n, tile.n) * _up(program.m, tile.m), units), least),
            i,
        )
        for i, (tile, cost, least) in enumerate(_FRAGMENT_TILES)
        if tile.shared_bytes <= limits.shared_bytes
        and tile.width <= limits.max_workgroup_invocations
    ]
    if not fitting:
        return None, _too_small(limits)
    return _FRAGMENT_TILES[min(fitting)[1]][0], ""


_FRAGMENT_TILES = (
    (FragmentTile(m=128, m_part=128, tiles=2, subgroups=8), 93, 1),
    (FragmentTile(m=64, m_part=64, tiles=4, subgroups=4), 51, 2),
    (FragmentTile(m=64, m_part=64, tiles=2, subgroups=4), 31, 2),
    (FragmentTile(m=32, m_part=32, tiles=1, subgroups=4), 13, 3),
)
"""Tiles; microseconds for each work group of a unit with k = 4096; least such groups.

Fewer groups of a unit take as long as the least.
"""


def matrix_shape(limits: PlanLimits) -> MatrixShape | None:
    """The largest cooperative matrix that the kernel for any can use, or None.

    Shared memory is read in 16 bytes: eight halves of k, four sums of n.
    """
    fitting = [
        shape
        for shape in limits.matrix_shapes
        if shape.k % 8 == 0 and _DEEP % shape.k == 0 and shape.n % 4 == 0
    ]
    return max(fitting, key=lambda s: (s.m * s.n * s.k, s.m), default=None)


def gemm_tile(m: int, limits: PlanLimits) -> tuple[GemmTile | None, str]:
    """The largest tile of any cooperative matrix that fits a device.

    Args:
        m: tokens; few of them get a lower tile.
        limits: what the device offers.
    """
    shape = matrix_shape(limits)
    if shape is None:
        return None, "the device has no cooperative matrix that the kernel can use"
    for high, wide in ((4, 2), (2, 2), (1, 2), (1, 1)):
        m_part, n_part = high * shape.m, wide * shape.n
        if m_part * n_part > _MOST_SUMS and (high, wide) != (1, 1):
            continue
        for rows, columns in ((2, 4), (2, 2), (1, 2), (1, 1)):
            if rows * m_part > max(m, 2 * shape.m) and (high, rows) != (1, 1):
                continue
            # Deep slabs read once beat shallow ones read ahead (docs/nvfp4-kernels.md).
            for depth, stages in ((_DEEP, 1), (_K_TILE, 2), (_K_TILE, 1)):
                if depth % shape.k:
                    continue
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
                    return tile, ""
    return None, _too_small(limits)


_NV_TILES = ((512, 256, 128, 32), (256, 128, 128, 64), (128, 64, 64, 32))


def nv_tile(program: Projection, limits: PlanLimits) -> tuple[NvTile | None, str]:
    """The largest tile for the tokens that the device's matrices can make."""
    low = [tile for tile in _NV_TILES if tile[1] <= program.m]
    for width, m, n, k in (*low, *(t for t in reversed(_NV_TILES) if t not in low)):
        if width > limits.max_workgroup_invocations:
            continue
        if any(
            grid.width == width and not (m % grid.m or n % grid.n or k % grid.k)
            for grid in limits.matrix_grids
        ):
            clamp = bool(program.m % m or program.n % n or program.k % k)
            return NvTile(m=m, n=n, k=k, width=width, clamp=clamp), ""
    return None, "the device has no matrix of a work group that the kernel can use"


def _too_small(limits: PlanLimits) -> str:
    return (
        f"no tile fits {limits.shared_bytes} bytes of shared memory and "
        f"{limits.max_workgroup_invocations} invocations of a work group"
    )


def _up(value: int, unit: int) -> int:
    """value / unit, rounded up."""
    return -(-value // unit)


def _whole(value: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return _up(value, unit) * unit
