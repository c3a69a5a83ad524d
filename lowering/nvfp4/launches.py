"""Dispatches of the fast NVFP4 kernels, before operands are bound to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tosavk.lowering.nvfp4.artifact import Extra, Projection


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


def after_halves(
    product: Launch, program: Projection, *, depth: int, rows: int, order: int
) -> Steps:
    """A product behind the launch that rounds its activations.

    Args:
        product: the product.
        program: what is computed.
        depth: columns of the rounded activations, filled up with zeros.
        rows: their rows, likewise.
        order: how they lie (shaders/glsl/nvfp4_halves.comp).
    """
    count = rows * depth // 8
    halves = Launch(
        "nvfp4_halves",
        {"ORDER": order},
        {"count": count, "m": program.m, "k": program.k, "depth": depth},
        columns=count,
    )
    return Steps(product, halves, 2 * rows * depth)


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
