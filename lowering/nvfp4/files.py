"""NVFP4 weights out of files: ModelOpt, compressed-tensors, swizzled scales, GGUF.

Files disagree about what the tensor scale means and how codes and scales lie. What a
file does not say must be said by the caller; nothing is guessed. Source: docs/nvfp4.md,
"File formats".
"""

from __future__ import annotations

import enum
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tosavk.core.errors import InvalidArgument
from tosavk.core.nvfp4 import (
    BLOCK,
    Weights,
    check_depth,
    join_halves,
    raw_bits,
    swizzled_shape,
    unswizzle,
    warn_if_inverted,
)

METADATA_KEY = "nvfp4_format"
"""Key in the metadata of a safetensors file under which the format's name is kept."""

_GGUF_ELEMENTS = 64
_GGUF_BYTES = 36


class Convention(enum.StrEnum):
    """What the tensor scale of a file means."""

    MULTIPLY = "multiply"
    """value = code * block scale * tensor scale; the scale is amax / 2688."""

    DIVIDE = "divide"
    """value = code * block scale / tensor scale; the scale is 2688 / amax."""


class ScaleLayout(enum.StrEnum):
    """How block scales lie."""

    LINEAR = "linear"
    """[n, k / 16], row by row."""

    SWIZZLED = "swizzled"
    """Tiles of 128 rows by 4 columns, padded to whole tiles."""


class Nibbles(enum.StrEnum):
    """How codes lie in bytes."""

    PAIRS = "pairs"
    """Byte j holds elements 2j (low nibble) and 2j + 1."""

    HALVES = "halves"
    """In every 8 bytes, byte j holds elements j (low nibble) and j + 8."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How a tool writes the parts of a linear layer into a safetensors file.

    Attributes:
        name: what it is called here.
        packed: suffix of the codes' tensor name.
        scales: suffix of the block scales'.
        tensor: suffix of the tensor scale's.
        convention: what the tensor scale means.
    """

    name: str
    packed: str
    scales: str
    tensor: str
    convention: Convention


FORMATS = {
    "modelopt": FileFormat(
        "modelopt",
        ".weight",
        ".weight_scale",
        ".weight_scale_2",
        Convention.MULTIPLY,
    ),
    "compressed-tensors": FileFormat(
        "compressed-tensors",
        ".weight_packed",
        ".weight_scale",
        ".weight_global_scale",
        Convention.DIVIDE,
    ),
}
"""The safetensors formats by name; both have linear scales and consecutive pairs."""


class _Slice(Protocol):
    """What the safetensors library tells of a tensor before it is read."""

    def get_dtype(self) -> str: ...


class _Opened(Protocol):
    """A file that the safetensors library has open."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def keys(self) -> list[str]: ...

    def metadata(self) -> dict[str, str] | None: ...

    def get_slice(self, name: str) -> _Slice: ...


_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def from_arrays(
    packed: NDArray[Any],
    block_scales: NDArray[Any],
    tensor_scale: float | NDArray[Any],
    *,
    convention: str,
    scale_layout: str | None = None,
    nibbles: str = Nibbles.PAIRS,
    allow_nan: bool = False,
) -> Weights:
    """Weights from the arrays that a file holds.

    Args:
        packed: codes, uint8 [n, k / 2].
        block_scales: E4M3 bits, uint8 or float8_e4m3fn.
        tensor_scale: one number, or one for each row.
        convention: "multiply" or "divide": what the tensor scale means.
        scale_layout: "linear" or "swizzled"; None takes what the size allows, if only
            one of them fits.
        nibbles: "pairs" or "halves": how codes lie.
        allow_nan: take block scales that are NaN.

    Raises:
        InvalidArgument: sizes that do not fit, or that fit both scale layouts when
            none is given; a NaN; a tensor scale that is not finite, or 0 to divide by.

    Warns:
        Nvfp4Warning: with the other convention the weights would look more likely.
    """
    meaning = _choice(Convention, "convention", convention)
    codes = raw_bits(packed)
    if codes.ndim != 2:
        raise InvalidArgument(f"packed codes are [n, k / 2], got {codes.shape}")
    rows, k = codes.shape[0], 2 * codes.shape[1]
    check_depth(k)
    if _choice(Nibbles, "nibbles", nibbles) is Nibbles.HALVES:
        codes = join_halves(codes)
    scales = raw_bits(block_scales)
    columns = k // BLOCK
    if scale_layout is None:
        layout = _layout_of(scales.shape, rows, columns)
    else:
        layout = _choice(ScaleLayout, "scale_layout", scale_layout)
    if layout is ScaleLayout.SWIZZLED:
        scales = unswizzle(scales, rows, columns)
    elif scales.size != rows * columns:
        high, wide = swizzled_shape(rows, columns)
        hint = "; they may be swizzled" if scales.size == high * wide else ""
        raise InvalidArgument(
            f"linear scales of a [{rows}, {k}] matrix are [{rows}, {columns}], got "
            f"{list(scales.shape)}{hint}"
        )
    tensor = np.asarray(tensor_scale, np.float32).reshape(-1)
    if meaning is Convention.DIVIDE:
        if not (tensor != 0).all():
            raise InvalidArgument("a tensor scale of 0 cannot divide")
        tensor = (1.0 / tensor.astype(np.float64)).astype(np.float32)
    weights = Weights(codes, scales.reshape(rows, columns), tensor, allow_nan=allow_nan)
    multiplies = meaning is Convention.MULTIPLY
    warn_if_inverted(
        weights,
        convention="multiplies" if multiplies else "divides",
        other="divided" if multiplies else "multiplied",
    )
    return weights


def from_gguf(
    data: bytes | memoryview | NDArray[np.uint8],
    shape: tuple[int, int],
    *,
    tensor_scale: float = 1.0,
) -> Weights:
    """Weights from the bytes of a GGUF tensor of type NVFP4.

    For every 64 elements of a row there are 36 bytes: four E4M3 scales, then for each 16
    elements 8 bytes, of which byte j holds elements j (low nibble) and j + 8.

    Args:
        data: the tensor's bytes.
        shape: [n, k]; k is a multiple of 64.
        tensor_scale: the number in the tensor's companion; it multiplies.

    Raises:
        InvalidArgument: the length does not fit the shape, or a scale is NaN.
    """
    rows, k = shape
    raw = np.frombuffer(data, np.uint8)
    if rows < 1 or k < 1 or k % _GGUF_ELEMENTS:
        raise InvalidArgument(
            f"GGUF holds NVFP4 rows of whole 64 elements, got shape {shape}"
        )
    units = k // _GGUF_ELEMENTS
    if raw.size != rows * units * _GGUF_BYTES:
        raise InvalidArgument(
            f"a GGUF tensor {shape} of NVFP4 has {rows * units * _GGUF_BYTES} bytes, "
            f"got {raw.size}"
        )
    blocks = raw.reshape(rows, units, _GGUF_BYTES)
    return from_arrays(
        blocks[:, :, 4:].reshape(rows, k // 2),
        blocks[:, :, :4].reshape(rows, k // BLOCK),
        tensor_scale,
        convention=Convention.MULTIPLY,
        scale_layout=ScaleLayout.LINEAR,
        nibbles=Nibbles.HALVES,
    )


def load_safetensors(
    path: str | os.PathLike[str],
    name: str,
    *,
    format: str | None = None,
    convention: str | None = None,
    scale_layout: str = ScaleLayout.LINEAR,
    nibbles: str = Nibbles.PAIRS,
) -> Weights:
    """Weights of one linear layer of a safetensors file.

    Args:
        path: the file.
        name: the layer, such as "model.layers.0.mlp.gate_proj".
        format: "modelopt" or "compressed-tensors"; None takes what the file's metadata
            or the `hf_quant_config.json` or `config.json` beside it say.
        convention: overrides what the format says of the tensor scale.
        scale_layout: "linear" as both formats have it, or "swizzled".
        nibbles: "pairs" as both formats have it, or "halves".

    Raises:
        InvalidArgument: no such file or layer, the format is not known, or the arrays
            do not fit.

    Warns:
        Nvfp4Warning: the tensor scale looks inverted.
    """
    file = Path(path)
    with _opened(file) as opened:
        names = set(opened.keys())
        known = format or _stated_format(file, opened.metadata() or {})
        if known is None:
            raise InvalidArgument(_unstated(file, name, names))
        if known not in FORMATS:
            raise InvalidArgument(
                f"NVFP4 file format {known!r} is unknown; there are {', '.join(FORMATS)}"
            )
        chosen = FORMATS[known]
        wanted = [name + s for s in (chosen.packed, chosen.scales, chosen.tensor)]
        missing = [w for w in wanted if w not in names]
        if missing:
            raise InvalidArgument(
                f"{file} has no tensor {', '.join(missing)}, which layer {name!r} has in "
                f"format {known}"
            )
        kinds = [str(opened.get_slice(w).get_dtype()) for w in wanted]
        for tensor, kind, allowed in zip(
            wanted, kinds, (("U8",), ("F8_E4M3", "U8"), ("F32",)), strict=True
        ):
            if kind not in allowed:
                raise InvalidArgument(
                    f"{tensor} of {file} is {kind}; NVFP4 has {' or '.join(allowed)} "
                    "there"
                )
        packed, scales, scale = (_tensor(file, w) for w in wanted)
    return from_arrays(
        packed,
        scales,
        scale.reshape(-1).view(np.float32),
        convention=convention or chosen.convention,
        scale_layout=scale_layout,
        nibbles=nibbles,
    )


def save_safetensors(
    path: str | os.PathLike[str],
    layers: Mapping[str, Weights],
    *,
    format: str = "modelopt",
) -> None:
    """Writes layers into a safetensors file that says which format it has.

    Raises:
        InvalidArgument: no such format, or a layer with a tensor scale for each row.
    """
    import ml_dtypes
    from safetensors.numpy import save

    if format not in FORMATS:
        raise InvalidArgument(
            f"NVFP4 file format {format!r} is unknown; there are {', '.join(FORMATS)}"
        )
    chosen = FORMATS[format]
    tensors: dict[str, NDArray[Any]] = {}
    for name, weights in layers.items():
        if weights.tensor_scale.size != 1:
            raise InvalidArgument(
                f"{name}: format {format} has one tensor scale for a layer, not one for "
                "each row; write the parts as layers of their own"
            )
        scale = weights.tensor_scale.astype(np.float64)
        if chosen.convention is Convention.DIVIDE:
            scale = 1.0 / scale
        tensors[name + chosen.packed] = np.array(weights.packed)
        tensors[name + chosen.scales] = np.array(weights.block_scales).view(
            ml_dtypes.float8_e4m3fn
        )
        tensors[name + chosen.tensor] = scale.astype(np.float32)
    Path(path).write_bytes(save(tensors, metadata={METADATA_KEY: format}))


def _layout_of(shape: tuple[int, ...], rows: int, columns: int) -> ScaleLayout:
    """The only layout that scales of this shape can have.

    Raises:
        InvalidArgument: none, or both.
    """
    size = math.prod(shape)
    high, wide = swizzled_shape(rows, columns)
    linear, swizzled = size == rows * columns, size == high * wide
    if linear and swizzled:
        raise InvalidArgument(
            f"block scales of shape {list(shape)} may be linear or swizzled, both fit a "
            f"matrix of {rows} rows and {columns} blocks: say scale_layout='linear' or "
            "scale_layout='swizzled'"
        )
    if not linear and not swizzled:
        raise InvalidArgument(
            f"block scales of shape {list(shape)} fit no layout of a matrix of {rows} "
            f"rows and {columns} blocks: linear is [{rows}, {columns}], swizzled is "
            f"{high} x {wide} = {high * wide}"
        )
    return ScaleLayout.LINEAR if linear else ScaleLayout.SWIZZLED


def _choice(kind: type[_Choice], what: str, value: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise InvalidArgument(
            f"{what} {value!r} is unknown; choose {' or '.join(kind)}"
        ) from None


def _opened(file: Path) -> _Opened:
    """The file, opened by the safetensors library, which checks its header."""
    from safetensors import SafetensorError, safe_open

    try:
        return cast("_Opened", safe_open(str(file), framework="numpy"))
    except (OSError, SafetensorError) as error:
        raise InvalidArgument(f"cannot read {file}: {error}") from error


def _tensor(file: Path, name: str) -> NDArray[Any]:
    """A tensor as bytes of its shape; NumPy itself has no FP8 for the library to make.

    The header has been checked by the library.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entry = json.loads(stream.read(length))[name]
    begin, end = entry["data_offsets"]
    raw = np.fromfile(file, np.uint8, count=end - begin, offset=8 + length + begin)
    if entry["dtype"] == "F32":
        return raw
    return raw.reshape(entry["shape"])


def _stated_format(file: Path, metadata: Mapping[str, str]) -> str | None:
    """The format that the file's metadata or a configuration beside it state."""
    if METADATA_KEY in metadata:
        return metadata[METADATA_KEY]
    quantization = _part(_json(file.with_name("hf_quant_config.json")), "quantization")
    if quantization.get("quant_algo") == "NVFP4":
        return "modelopt"
    config = _part(_json(file.with_name("config.json")), "quantization_config")
    method = config.get("quant_method")
    if method == "modelopt" and config.get("quant_algo") == "NVFP4":
        return "modelopt"
    groups = _part(config, "config_groups")
    formats = [config.get("format")]
    formats += [_part(groups, name).get("format") for name in groups]
    if method == "compressed-tensors" and "nvfp4-pack-quantized" in formats:
        return "compressed-tensors"
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _part(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object inside of a JSON object; an empty one if there is none."""
    found: object = document.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _unstated(file: Path, name: str, names: set[str]) -> str:
    fitting = [f for f in FORMATS.values() if name + f.tensor in names]
    hint = (
        f"its tensors have the names of {fitting[0].name}, whose tensor scale "
        f"{fitting[0].convention}s: pass format={fitting[0].name!r} if that is so"
        if fitting
        else f"pass format={' or '.join(map(repr, FORMATS))}"
    )
    return (
        f"neither {file} nor a configuration beside it says which NVFP4 format it has; "
        f"{hint}"
    )
