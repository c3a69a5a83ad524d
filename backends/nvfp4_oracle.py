"""NVFP4 programs in NumPy, in binary64: the oracle of the kernels.

Codes and scales are decoded by `ml_dtypes`, not by the product's own tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tosavk.lowering.nvfp4.artifact import (
    Activation,
    Experts,
    Extra,
    Mode,
    Program,
    Projection,
)

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Answer:
    """A result with what its error is measured by.

    Attributes:
        y: the exact result, rounded to binary64 here and there.
        size: for projections, the sum of the magnitudes of all products, times the
            tensor scale: FP32 sums are within (k + 64) * 2^-23 of it before the
            activation.
        before: the scaled sum with its bias, before the activation.
    """

    y: Doubles
    size: Doubles
    before: Doubles


def weights(packed: NDArray[Any], scales: NDArray[Any]) -> Doubles:
    """Codes times block scales: uint8 [..., n, k/2] and [..., n, k/16] to [..., n, k]."""
    low = (packed & 15).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    high = (packed >> 4).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    codes = np.stack([low.astype(np.float64), high.astype(np.float64)], axis=-1)
    flat = codes.reshape(*packed.shape[:-1], -1)
    spread = np.repeat(
        scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64), 16, axis=-1
    )
    return np.asarray(flat * spread, np.float64)


def activate(values: Doubles, activation: Activation) -> Doubles:
    """The activation in binary64."""
    with np.errstate(all="ignore"):
        if activation is Activation.SQUARED_RELU:
            return np.where(np.isnan(values), np.nan, np.maximum(values, 0.0) ** 2)
        if activation is Activation.NONE:
            return values
        slope = np.where(
            values >= 0,
            1 / (1 + np.exp(-values)),
            np.exp(values) / (1 + np.exp(values)),
        )
        slope = np.where(values == -np.inf, 0.0, slope)
        if activation is Activation.SIGMOID:
            return slope
        return np.where(values == -np.inf, -0.0, values * slope)


def evaluate(program: Program, given: Mapping[str, NDArray[Any]]) -> Answer:
    """Evaluates a program.

    Args:
        program: what the artifact holds.
        given: the input slots by name: float32, or uint8 for codes, scales and spans.
    """
    with np.errstate(all="ignore"):
        if isinstance(program, Projection):
            return _projection(program, given)
        return _experts(program, given)


def _projection(program: Projection, given: Mapping[str, NDArray[Any]]) -> Answer:
    m, n, k = program.m, program.n, program.k
    x = given["x"].reshape(m, k).astype(np.float64)
    if program.mode is Mode.SHARED:
        matrices = weights(
            given["packed"].reshape(n, k // 2), given["scales"].reshape(n, k // 16)
        )
        sums, sizes = x @ matrices.T, np.abs(x) @ np.abs(matrices).T
    else:
        if program.mode is Mode.BATCHED:
            packed = given["packed"].reshape(m, n, k // 2)
            scales = given["scales"].reshape(m, n, k // 16)
        else:
            packed = np.stack([given[f"packed{e}"] for e in range(m)])
            scales = np.stack([given[f"scales{e}"] for e in range(m)])
        stack = weights(packed.reshape(m, n, k // 2), scales.reshape(m, n, k // 16))
        sums = np.einsum("mk,mnk->mn", x, stack)
        sizes = np.einsum("mk,mnk->mn", np.abs(x), np.abs(stack))
    each = n if program.extras & Extra.ROW_SCALES else 1
    factor = given["tensor_scale"].reshape(-1, each).astype(np.float64)
    before = sums * factor
    size = sizes * np.abs(factor)
    if program.extras & Extra.BIAS:
        bias = given["bias"].reshape(-1, n).astype(np.float64)
        before = before + bias
        size = size + np.abs(bias)
    y = activate(before, program.activation)
    if program.extras & Extra.RESIDUAL:
        y = y + given["residual"].reshape(m, n).astype(np.float64)
    return Answer(y, size, before)


def _experts(program: Experts, given: Mapping[str, NDArray[Any]]) -> Answer:
    width, inner = program.width, program.inner
    x = given["x"].reshape(program.batch, width).astype(np.float64)
    y = np.zeros((program.batch, width))
    size = np.zeros_like(y)
    for e, offsets in enumerate(program.offsets):
        span = given[f"expert{e}"].reshape(-1).view(np.uint8)

        def part(offset: int, rows: int, columns: int) -> NDArray[Any]:
            end = offset + rows * columns
            return span[offset:end].reshape(rows, columns)  # noqa: B023 - used at once

        up = weights(
            part(offsets.up_packed, inner, width // 2),
            part(offsets.up_scales, inner, width // 16),
        )
        down = weights(
            part(offsets.down_packed, width, inner // 2),
            part(offsets.down_scales, width, inner // 16),
        )
        hidden = activate(
            (up @ x[e]) * float(given["up_tensor_scales"].reshape(-1)[e]),
            Activation.SQUARED_RELU,
        )
        scale = float(given["down_tensor_scales"].reshape(-1)[e])
        y[e] = (down @ hidden) * scale
        size[e] = (np.abs(down) @ np.abs(hidden)) * abs(scale)
    return Answer(y, size, y)
