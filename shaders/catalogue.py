"""The kernel catalogue: one table that GLSL, WGSL, lowering and backends share.

A kernel's binding order, specialization words and parameter words are written here
once and checked against both texts (tests/unit/test_catalogue.py). The rules are in
docs/kernel-interface.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

DIMS = tuple(f"d{i}" for i in range(6))


def _six(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{i}" for i in range(6))


_CONVOLUTION = (
    "ih",
    "iw",
    "ic",
    "oh",
    "ow",
    "oc",
    "kh",
    "kw",
    "sy",
    "sx",
    "dy",
    "dx",
    "pad_top",
    "pad_left",
)

_POOL = (
    "ih",
    "iw",
    "c",
    "oh",
    "ow",
    "kh",
    "kw",
    "sh",
    "sw",
    "pad_top",
    "pad_left",
)
# Where the loops of one dispatch of a long sum begin and end.
_TAPS = (
    *("y_first", "y_last"),
    *("x_first", "x_last"),
    *("c_first", "c_last"),
)
_VOLUME = (
    *("id", "ih", "iw", "ic"),
    *("od", "oh", "ow", "oc"),
    *("kh", "kw"),
    *("z_first", "z_last"),
    *("y_first", "y_last"),
    *("x_first", "x_last"),
    *("c_first", "c_last"),
    *("sz", "sy", "sx"),
    *("dz", "dy", "dx"),
    *("pad_front", "pad_top", "pad_left"),
)


class Work(enum.Enum):
    """How a kernel's invocations are laid out (docs/kernel-interface.md)."""

    LINEAR = "linear"
    TILED = "tiled"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, as both shader languages implement it.

    Attributes:
        name: file name without suffix in `glsl/`, `spirv/` and `wgsl/`.
        bindings: names of the storage buffers in order, inputs first; the last
            `outputs` of them are written.
        spec: names of the specialization words; SPIR-V constant id = position + 1 (id
            0 is the work-group width), WGSL override of the same name.
        params: names of the parameter words in order, at most 31.
        work: linear or tiled.
        workgroup: preferred work-group width.
        wgsl: WGSL files put in front of `name`.wgsl.
        outputs: how many bindings are written.
        needs: what a device must have beyond Vulkan 1.3 ("subgroup", "matrices",
            "matrices2"), or what may be switched off ("int8_dot"), or "".
        strict: whether results have the same bits on every device.
    """

    name: str
    bindings: tuple[str, ...]
    spec: tuple[str, ...]
    params: tuple[str, ...]
    work: Work = Work.LINEAR
    workgroup: int = 64
    wgsl: tuple[str, ...] = ("storage",)
    outputs: int = 1
    needs: str = ""
    strict: bool = True

    @property
    def portable(self) -> bool:
        """Whether there is a WGSL text too; what needs more than WGSL has has none."""
        return self.needs in ("", "int8_dot")


_NVFP4 = ("x", "packed", "scales", "tensor_scale", "bias", "residual", "y")
_PRODUCT = (
    "teams",
    "columns",
    "m",
    "n",
    "k",
    "x_at",
    "w_at",
    "s_at",
    "t_at",
    "b_at",
    "r_at",
    "y_at",
    "w_step",
    "t_step",
    "t_row",
    "b_step",
    "extras",
)

KERNELS: tuple[Kernel, ...] = (
    Kernel(
        name="unary",
        bindings=("x", "y"),
        spec=("OP", "TYPE", "MODE"),
        params=("count", "lo", "hi"),
        wgsl=("storage", "math"),
    ),
    Kernel(
        name="cast",
        bindings=("x", "y"),
        spec=("X_TYPE", "Y_TYPE"),
        params=("count",),
        wgsl=("storage", "packed"),
    ),
    Kernel(
        name="binary",
        bindings=("a", "b", "y"),
        spec=("OP", "TYPE", "Y_TYPE", "BROADCAST", "MODE"),
        params=("count", *DIMS, *_six("a"), *_six("b"), "shift"),
        wgsl=("storage", "math"),
    ),
    Kernel(
        name="mul_shift",
        bindings=("a", "b", "shift", "y"),
        spec=(),
        params=("count",),
        wgsl=("words", "linear"),
    ),
    Kernel(
        name="select",
        bindings=("c", "a", "b", "y"),
        spec=("TYPE", "BROADCAST"),
        params=("count", *DIMS, *_six("c"), *_six("a"), *_six("b")),
        wgsl=("storage", "packed"),
    ),
    Kernel(
        name="reduce",
        bindings=("x", "y"),
        spec=("OP", "TYPE", "Y_TYPE", "MODE"),
        params=("count", "axis", "inner", "first", "last"),
        wgsl=("storage", "packed"),
    ),
    Kernel(
        name="move",
        bindings=("x", "y"),
        spec=("TYPE",),
        params=("count", *DIMS, *_six("s"), "offset"),
    ),
    Kernel(
        name="concat",
        bindings=("x", "y"),
        spec=("TYPE",),
        params=("count", "row", "begin", "length"),
    ),
    Kernel(
        name="remap",
        bindings=("x", "y"),
        spec=("OP", "TYPE"),
        params=("count", *DIMS, *_six("e"), *_six("s"), *_six("p"), "fill"),
        wgsl=("storage", "packed"),
    ),
    Kernel(
        name="gather",
        bindings=("x", "indices", "y"),
        spec=("TYPE",),
        params=("count", "n", "k", "w", "c"),
        wgsl=("storage", "packed"),
    ),
    Kernel(
        name="resize",
        bindings=("x", "y"),
        spec=("MODE", "TYPE", "Y_TYPE"),
        params=(
            "count",
            "ih",
            "iw",
            "c",
            "oh",
            "ow",
            "scale_y_n",
            "scale_y_d",
            "scale_x_n",
            "scale_x_d",
            "offset_y",
            "offset_x",
        ),
        wgsl=("storage", "packed", "math", "words"),
    ),
    Kernel(
        name="conv2d",
        bindings=("x", "w", "bias", "y"),
        spec=("OP", "FOURS", "SKIP", "PART"),
        params=("count", "columns", "tiles", *_CONVOLUTION, *_TAPS),
        wgsl=("linear", "floats"),
    ),
    Kernel(
        name="depthwise_conv2d",
        bindings=("x", "w", "bias", "y"),
        spec=("KW", "SX", "FOURS", "SKIP", "PART"),
        params=(
            "count",
            "columns",
            "tiles",
            *_CONVOLUTION,
            "multiplier",
            "y_first",
            "y_last",
        ),
        wgsl=("linear", "floats"),
    ),
    Kernel(
        name="matmul",
        bindings=("a", "b", "y"),
        spec=("FOURS", "PART"),
        params=(
            "count",
            "columns",
            "tiles",
            "h",
            "c",
            "w",
            "row",
            "c_first",
            "c_last",
        ),
        wgsl=("linear",),
    ),
    Kernel(
        name="pool2d",
        bindings=("x", "y"),
        spec=("OP", "TYPE", "MODE"),
        params=("count", *_POOL, "y_first", "y_last"),
        wgsl=("storage", "math", "linear"),
    ),
    Kernel(
        name="conv3d",
        bindings=("x", "w", "bias", "y"),
        spec=("SKIP", "PART"),
        params=(
            "count",
            "columns",
            "tiles",
            "id",
            "ih",
            "iw",
            "ic",
            "od",
            "oh",
            "ow",
            "oc",
            "kd",
            "kh",
            "kw",
            "sz",
            "sy",
            "sx",
            "dz",
            "dy",
            "dx",
            "pad_front",
            "pad_top",
            "pad_left",
            "z_first",
            "z_last",
            *_TAPS,
        ),
        wgsl=("linear", "floats"),
    ),
    Kernel(
        name="fft_load",
        bindings=("re", "im", "z", "special"),
        spec=("REAL",),
        params=("count", "width"),
        wgsl=("linear",),
        outputs=2,
    ),
    Kernel(
        name="fft_pass",
        bindings=("x", "turns", "y"),
        spec=(),
        params=("count", "half_n", "s", "inner", "pitch"),
        wgsl=("linear",),
    ),
    Kernel(
        name="fft_part",
        bindings=("z", "special", "y"),
        spec=("PART", "REAL"),
        params=("count", "rows", "height", "width", "columns", "inverse"),
        wgsl=("linear",),
    ),
    Kernel(
        name="scatter_rows",
        bindings=("indices", "rows"),
        spec=(),
        params=("count", "k", "w"),
        wgsl=("linear",),
    ),
    Kernel(
        name="scatter",
        bindings=("x", "rows", "input", "y"),
        spec=("TYPE",),
        params=("count", "k", "w", "c"),
        wgsl=("storage", "packed"),
    ),
    Kernel(
        name="rescale",
        bindings=("x", "scale", "y"),
        spec=("X_TYPE", "Y_TYPE", "X_UNSIGNED", "Y_UNSIGNED", "TWICE"),
        params=("count", "channels"),
        wgsl=("storage", "words"),
    ),
    Kernel(
        name="table",
        bindings=("x", "table", "y"),
        spec=("TYPE",),
        params=("count",),
    ),
    Kernel(
        name="avg_pool_int",
        bindings=("x", "zeros", "y"),
        spec=("TYPE", "STAGE"),
        params=("count", *_POOL),
        wgsl=("storage", "words"),
    ),
    Kernel(
        name="conv_int",
        bindings=("x", "w", "bias", "y"),
        spec=("OP", "X_TYPE", "FOURS"),
        params=("count", "columns", "tiles", *_VOLUME, "bias_step"),
        wgsl=("storage", "integers", "linear", "volume"),
    ),
    Kernel(
        name="depthwise_int",
        bindings=("x", "w", "bias", "y"),
        spec=("X_TYPE", "KW", "SX", "FOURS"),
        params=(
            "count",
            "columns",
            "tiles",
            *_CONVOLUTION,
            "multiplier",
            "bias_step",
            "y_first",
        ),
        wgsl=("storage", "integers", "linear"),
    ),
    Kernel(
        name="matmul_int",
        bindings=("x", "b", "zeros", "y"),
        spec=("X_TYPE", "FOURS"),
        params=("count", "tiles", "h", "c", "w", "row", "c_first", "c_last"),
        wgsl=("storage", "integers", "linear", "matrices"),
    ),
    Kernel(
        name="conv_dot",
        bindings=("x", "w", "bias", "y"),
        spec=("OP", "FOURS", "SUMS"),
        params=("count", "columns", "tiles", *_VOLUME, "bias_step"),
        wgsl=("linear", "volume"),
        needs="int8_dot",
    ),
    Kernel(
        name="matmul_dot",
        bindings=("x", "b", "zeros", "y"),
        spec=("FOURS", "SUMS"),
        params=("count", "tiles", "h", "c", "w", "row", "c_first", "c_last"),
        wgsl=("linear", "matrices"),
        needs="int8_dot",
    ),
    Kernel(
        name="nvfp4_scalar",
        bindings=_NVFP4,
        spec=("TOKENS", "ACTIVATION"),
        params=_PRODUCT,
        wgsl=("math", "linear"),
    ),
    Kernel(
        name="nvfp4_subgroup",
        bindings=_NVFP4,
        spec=("ROWS", "TOKENS", "PAIRS", "ACTIVATION"),
        params=_PRODUCT,
        needs="subgroup",
    ),
    Kernel(
        name="nvfp4_halves",
        bindings=("x", "y"),
        spec=("ORDER",),
        params=("count", "m", "k", "depth"),
        needs="matrices",
        strict=False,
    ),
    Kernel(
        name="nvfp4_gemm_khr",
        bindings=("x", "w", "s", "tensor_scale", "y"),
        spec=(
            "M_TILE",
            "N_TILE",
            "K_TILE",
            "M_PART",
            "N_PART",
            "M_SIZE",
            "N_SIZE",
            "K_SIZE",
            "STAGES",
            "ACTIVATION",
        ),
        params=("m", "n", "k", "depth"),
        work=Work.GROUPS,
        workgroup=256,
        needs="matrices",
        strict=False,
    ),
    Kernel(
        name="nvfp4_gemv",
        bindings=("x", "w", "s", "tensor_scale", "y"),
        spec=(
            "TILES",
            "TOKEN_TILES",
            "ROW_GROUPS",
            "HALVES",
            "ROOM_TOKENS",
            "ROOM_CHUNKS",
            "ACTIVATION",
        ),
        params=("m", "n", "k"),
        work=Work.GROUPS,
        workgroup=896,
        needs="matrices",
        strict=False,
    ),
    Kernel(
        name="nvfp4_gemm_fragments",
        bindings=("x", "w", "s", "tensor_scale", "y"),
        spec=("M_TILE", "M_PART", "TILES", "ACTIVATION"),
        params=("m", "n", "k", "depth"),
        work=Work.GROUPS,
        workgroup=256,
        needs="matrices",
        strict=False,
    ),
    Kernel(
        name="nvfp4_gemm_nv",
        bindings=("x", "w", "s", "tensor_scale", "y"),
        spec=(
            "M_TILE",
            "N_TILE",
            "K_TILE",
            "CLAMP",
            "ACTIVATION",
            "M",
            "N",
            "K",
            "DEPTH",
        ),
        params=(),
        work=Work.GROUPS,
        workgroup=256,
        needs="matrices2",
        strict=False,
    ),
    Kernel(
        name="nvfp4_finish",
        bindings=("sums", "tensor_scale", "bias", "residual", "y"),
        spec=("ACTIVATION",),
        params=("count", "n", "t_row", "extras"),
        needs="matrices",
    ),
)


def kernels() -> dict[str, Kernel]:
    """The catalogue by name."""
    return {kernel.name: kernel for kernel in KERNELS}
