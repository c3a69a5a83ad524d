"""NVFP4: 4-bit weights with FP8 block scales, multiplied on any backend.

    from tosavk import nvfp4

    weights = nvfp4.quantize(matrix)                  # [n, k] -> 4.5 bits an element
    y = nvfp4.matmul(x, weights, backend="vulkan")    # x [m, k] -> float32 [m, n]

    with nvfp4.load(weights, tokens=1, backend="vulkan") as layer:
        y = layer.run(x)                              # the weights stay on the device

docs/nvfp4.md has the layouts, the rounding, the file formats and the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.nvfp4 import Nvfp4Session, Projected
from tosavk.backends.registry import open_accelerator
from tosavk.backends.session import parse_numerics
from tosavk.core.accelerator import Accelerator
from tosavk.core.errors import InvalidArgument
from tosavk.core.nvfp4 import (
    Nvfp4Warning,
    Weights,
    decode_scales,
    dequantize,
    encode_codes,
    encode_scales,
    join_halves,
    pack_codes,
    quantize,
    split_halves,
    swizzle,
    unpack_codes,
    unswizzle,
)
from tosavk.core.plan import Numerics
from tosavk.lowering.nvfp4.artifact import (
    TARGET,
    Activation,
    ExpertOffsets,
    Experts,
    Extra,
    Mode,
    Projection,
)
from tosavk.lowering.nvfp4.files import (
    Convention,
    Nibbles,
    ScaleLayout,
    from_arrays,
    from_gguf,
    load_safetensors,
    save_safetensors,
)
from tosavk.lowering.nvfp4.kernels import Choice

__all__ = [
    "TARGET",
    "Activation",
    "Choice",
    "Convention",
    "ExpertOffsets",
    "Experts",
    "Extra",
    "Mode",
    "Nibbles",
    "Nvfp4Session",
    "Nvfp4Warning",
    "Projected",
    "Projection",
    "ScaleLayout",
    "Weights",
    "decode_scales",
    "dequantize",
    "encode_codes",
    "encode_scales",
    "from_arrays",
    "from_gguf",
    "join_halves",
    "load",
    "load_safetensors",
    "matmul",
    "pack_codes",
    "quantize",
    "save_safetensors",
    "split_halves",
    "swizzle",
    "unpack_codes",
    "unswizzle",
]


def load(
    weights: Weights | Sequence[Weights],
    *,
    tokens: int,
    backend: str | Accelerator = "vulkan",
    activation: str | Activation = "none",
    bias: NDArray[Any] | None = None,
    residual: bool = False,
    numerics: str | Numerics = Numerics.STRICT,
    kernel: str = "",
) -> Projected:
    """Loads weights on a device; close the result, or use `with`.

    Args:
        weights: the matrix [n, k], or several of equal k that are put below each other,
            each with its own tensor scale.
        tokens: rows of every x that will be multiplied.
        backend: backend specification, such as "vulkan" or "wgpu:llvmpipe"; or an open
            accelerator, which is left open.
        activation: "none", "silu", "sigmoid" or "squared_relu".
        bias: float32 [n], added before the activation.
        residual: every run takes an array [tokens, n] that is added at the end.
        numerics: "strict" (the same bits on every device) or "fast".
        kernel: one kernel to take: "scalar", "subgroup", "gemv", "fragments", "khr" or
            "nv"; "" for the best that the device has.

    Raises:
        InvalidArgument: a value that can never be right.
        ModelError: the device refuses it.
        InitError: no such device.
    """
    if not isinstance(weights, Weights):
        weights = Weights.concatenate(weights)
    mode = parse_numerics(numerics)
    kind = _activation(activation)
    owns = not isinstance(backend, Accelerator)
    accelerator = (
        backend if isinstance(backend, Accelerator) else open_accelerator(backend)
    )
    return Projected(
        accelerator,
        weights,
        tokens=tokens,
        activation=kind,
        bias=bias,
        residual=residual,
        numerics=mode,
        kernel=kernel,
        owns_accelerator=owns,
    )


def matmul(
    x: NDArray[Any],
    weights: Weights | Sequence[Weights],
    *,
    backend: str | Accelerator = "vulkan",
    activation: str | Activation = "none",
    bias: NDArray[Any] | None = None,
    residual: NDArray[Any] | None = None,
    numerics: str | Numerics = Numerics.STRICT,
    kernel: str = "",
) -> NDArray[np.float32]:
    """`act(x w^T + bias) + residual`, once; `load` keeps the weights on the device.

    Args:
        x: float32 [m, k], or [k] for one token.
        weights: see `load`.
        backend: see `load`.
        activation: see `load`.
        bias: float32 [n].
        residual: float32 [m, n], or [n] for one token.
        numerics: see `load`.
        kernel: see `load`.

    Returns:
        float32 [m, n], or [n] for one token.

    Raises:
        InvalidArgument: shapes that do not fit, or another value that is never right.
        ModelError: the device refuses it.
        InitError: no such device.
    """
    array = np.asarray(x)
    if array.ndim not in (1, 2) or 0 in array.shape:
        raise InvalidArgument(f"x is [m, k] or [k] and not empty, got {array.shape}")
    rows = array.reshape(-1, array.shape[-1])
    more = None if residual is None else np.asarray(residual)
    if more is not None and array.ndim == 1:
        more = more[np.newaxis]
    with load(
        weights,
        tokens=len(rows),
        backend=backend,
        activation=activation,
        bias=bias,
        residual=more is not None,
        numerics=numerics,
        kernel=kernel,
    ) as layer:
        y = layer.run(rows, residual=more)
    return y.reshape(*array.shape[:-1], y.shape[-1])


def _activation(value: str | Activation) -> Activation:
    if isinstance(value, Activation):
        return value
    try:
        return Activation[value.upper()]
    except (KeyError, AttributeError):
        names = ", ".join(a.name.lower() for a in Activation)
        raise InvalidArgument(
            f"activation {value!r} is unknown; choose one of {names}"
        ) from None
