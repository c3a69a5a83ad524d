"""NVFP4: 4-bit weights with FP8 block scales and an FP32 tensor scale.

A matrix [n, k] is stored as E2M1 codes, two to a byte (the even element in the low
nibble), an E4M3 scale for every 16 elements of a row, and one FP32 scale for all or for
each row: `value = code * block scale * tensor scale`. All rounding here is exact: nearest,
ties to the even code (docs/nvfp4.md, "Rounding").
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tosavk.core.errors import InvalidArgument

BLOCK = 16
"""Elements that share a scale."""

LARGEST_CODE = 6.0
LARGEST_SCALE = 448.0
SMALLEST_SCALE = 2.0**-9
_TINIEST = float(np.finfo(np.float32).tiny)
_PLAUSIBLE = (2.0**-14, 2.0**10)

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Nvfp4Warning(UserWarning):
    """Something in NVFP4 data is allowed, but most likely not what was meant."""


def _code_table() -> Floats:
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.concatenate([sizes, -sizes])


def _scale_table() -> Floats:
    codes = np.arange(128)
    exponents, fractions = codes >> 3, codes & 7
    normal = (8 + fractions) * 2.0 ** (exponents - 10)
    sizes = np.where(exponents == 0, fractions * 2.0**-9, normal)
    sizes[127] = np.nan
    return np.concatenate([sizes, -sizes]).astype(np.float32)


CODE_VALUES = _code_table()
"""Value of each of the 16 E2M1 codes; code 8 is -0."""

SCALE_VALUES = _scale_table()
"""Value of each of the 256 E4M3 codes; 0x7F and 0xFF are NaN."""


def encode_codes(values: NDArray[Any]) -> Bytes:
    """The E2M1 codes nearest to some values: ties to even, beyond 6 saturated.

    Raises:
        InvalidArgument: a value is NaN.
    """
    return _nearest(values, CODE_VALUES[:8].astype(np.float64), sign=8)


def encode_scales(values: NDArray[Any]) -> Bytes:
    """The E4M3 codes nearest to some values: ties to even, beyond 448 saturated.

    Raises:
        InvalidArgument: a value is NaN.
    """
    return _nearest(values, SCALE_VALUES[:127].astype(np.float64), sign=128)


def decode_scales(codes: NDArray[Any]) -> Floats:
    """The values of E4M3 codes; NaN for 0x7F and 0xFF."""
    values: Floats = SCALE_VALUES[raw_bits(codes)]
    return values


def _nearest(values: NDArray[Any], table: NDArray[np.float64], *, sign: int) -> Bytes:
    wide = np.asarray(values).astype(np.float64)
    if np.isnan(wide).any():
        raise InvalidArgument("a NaN cannot be quantised; replace it first")
    size = np.abs(wide)
    middles = (table[:-1] + table[1:]) / 2
    below = np.searchsorted(middles, size, side="left")
    tie = size == middles[np.minimum(below, len(middles) - 1)]
    index = below + (tie & (below % 2 == 1))
    signs = np.where(np.signbit(wide), sign, 0)
    return np.asarray(index + signs, np.uint8)


def pack_codes(codes: NDArray[Any]) -> Bytes:
    """Two codes to a byte along the last axis, the even element in the low nibble."""
    array = np.asarray(codes, np.uint8)
    joined = array[..., 0::2] | (array[..., 1::2] << 4)
    return joined.astype(np.uint8, copy=False)


def unpack_codes(packed: NDArray[Any]) -> Bytes:
    """The codes of packed bytes: the last axis is twice as long."""
    array = np.asarray(packed, np.uint8)
    both = np.stack([array & 15, array >> 4], axis=-1).astype(np.uint8, copy=False)
    return both.reshape(*array.shape[:-1], 2 * array.shape[-1])


def join_halves(packed: NDArray[Any]) -> Bytes:
    """Split-halves packing to consecutive pairs.

    In every 8 bytes (16 elements), byte j of split halves holds element j in the low
    and element j + 8 in the high nibble, as GGUF has it.
    """
    array = np.asarray(packed, np.uint8)
    blocks = array.reshape(*array.shape[:-1], -1, 8)
    codes = np.concatenate([blocks & 15, blocks >> 4], axis=-1)
    return pack_codes(codes).reshape(array.shape)


def split_halves(packed: NDArray[Any]) -> Bytes:
    """Consecutive pairs to split-halves packing; the inverse of `join_halves`."""
    array = np.asarray(packed, np.uint8)
    codes = unpack_codes(array).reshape(*array.shape[:-1], -1, BLOCK)
    joined = codes[..., :8] | (codes[..., 8:] << 4)
    return joined.astype(np.uint8, copy=False).reshape(array.shape)


def swizzled_shape(rows: int, columns: int) -> tuple[int, int]:
    """The padded shape of swizzled scales: whole tiles of 128 rows by 4 columns."""
    return -(-rows // 128) * 128, -(-columns // 4) * 4


def swizzle(scales: NDArray[Any]) -> NDArray[Any]:
    """Scales [rows, columns] in the 128x4 layout, one-dimensional, padded with zeros.

    Scale (r, c) goes to byte `512 * tile + 16 * (r % 32) + 4 * (r % 128 // 32) + c % 4`
    with `tile = r // 128 * (padded columns / 4) + c // 4`.
    """
    rows, columns = scales.shape
    high, wide = swizzled_shape(rows, columns)
    padded = np.zeros((high, wide), scales.dtype)
    padded[:rows, :columns] = scales
    tiles = padded.reshape(high // 128, 4, 32, wide // 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1)


def unswizzle(scales: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Scales [rows, columns] out of the 128x4 layout.

    Raises:
        InvalidArgument: the number of scales is not that of the padded shape.
    """
    high, wide = swizzled_shape(rows, columns)
    if scales.size != high * wide:
        raise InvalidArgument(
            f"swizzled scales of {rows} rows by {columns} columns are {high} x {wide} "
            f"= {high * wide} bytes with their padding, got {scales.size}; they may be "
            "linear"
        )
    tiles = scales.reshape(high // 128, wide // 4, 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(high, wide)[:rows, :columns]


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """An NVFP4 matrix [n, k].

    Attributes:
        packed: codes, uint8 [n, k / 2], the even element in the low nibble.
        block_scales: E4M3 codes as uint8 [n, k / 16]; float8_e4m3fn is taken, too.
        tensor_scale: float32 [1], or [n] where every row has its own.
        allow_nan: take block scales that are NaN; results of their rows are NaN.

    Raises:
        InvalidArgument: shapes do not fit, k is no multiple of 16, a NaN among the
            block scales, or a tensor scale that is not finite.
    """

    packed: NDArray[Any]
    block_scales: NDArray[Any]
    tensor_scale: NDArray[Any]
    allow_nan: InitVar[bool] = False

    def __post_init__(self, allow_nan: bool) -> None:
        """Checks the arrays and makes read-only views of them."""
        packed = _frozen(raw_bits(self.packed))
        scales = _frozen(raw_bits(self.block_scales))
        tensor = np.asarray(self.tensor_scale, np.float32).reshape(-1)
        if packed.ndim != 2 or 0 in packed.shape:
            raise InvalidArgument(f"packed codes are [n, k / 2], got {packed.shape}")
        n, k = packed.shape[0], 2 * packed.shape[1]
        check_depth(k)
        if scales.shape != (n, k // BLOCK):
            raise InvalidArgument(
                f"block scales of a [{n}, {k}] matrix are [{n}, {k // BLOCK}], got "
                f"{list(scales.shape)}"
            )
        if tensor.size not in (1, n):
            raise InvalidArgument(
                f"a tensor scale is one number, or one for each of {n} rows; got "
                f"{tensor.size}"
            )
        if not np.isfinite(tensor).all():
            raise InvalidArgument("a tensor scale must be finite")
        if not allow_nan:
            refuse_nan_scales(scales)
        object.__setattr__(self, "packed", packed)
        object.__setattr__(self, "block_scales", scales)
        object.__setattr__(self, "tensor_scale", _frozen(tensor))

    @property
    def n(self) -> int:
        """Rows: outputs of the product."""
        return int(self.packed.shape[0])

    @property
    def k(self) -> int:
        """Columns: inputs of the product."""
        return 2 * int(self.packed.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.packed.nbytes + self.block_scales.nbytes + self.tensor_scale.nbytes

    @property
    def amax(self) -> float:
        """The largest magnitude that it stands for."""
        codes = np.abs(CODE_VALUES[unpack_codes(self.packed)])
        blocks = codes.reshape(self.n, -1, BLOCK).max(axis=2)
        rows = (blocks * np.abs(decode_scales(self.block_scales))).max(axis=1)
        return float((rows * np.abs(self.tensor_scale)).max())

    @classmethod
    def concatenate(cls, parts: Sequence[Weights]) -> Self:
        """Matrices of equal k below each other; each keeps its own tensor scale.

        Raises:
            InvalidArgument: none, or k differs.
        """
        if not parts or len({part.k for part in parts}) != 1:
            raise InvalidArgument(
                f"matrices to join need one k, got {[part.k for part in parts]}"
            )
        scales = [np.broadcast_to(part.tensor_scale, (part.n,)) for part in parts]
        joined = np.concatenate(scales)
        same = bool((joined == joined[0]).all())
        return cls(
            np.concatenate([part.packed for part in parts]),
            np.concatenate([part.block_scales for part in parts]),
            joined[:1] if same else joined,
            allow_nan=True,
        )

    def __repr__(self) -> str:
        """Shape and tensor scale."""
        scale = (
            f"tensor scale {float(self.tensor_scale[0]):.9g}"
            if self.tensor_scale.size == 1
            else "a tensor scale for each row"
        )
        return f"<NVFP4 [{self.n}, {self.k}], {scale}>"


def check_depth(k: int) -> None:
    """Checks k against the block size.

    Raises:
        InvalidArgument: it is no multiple of 16.
    """
    if k < BLOCK or k % BLOCK:
        raise InvalidArgument(
            f"k = {k} is no multiple of {BLOCK}, the block of NVFP4; fill the rows up "
            "with zeros"
        )


def refuse_nan_scales(scales: Bytes) -> None:
    """Checks E4M3 codes for NaN.

    Raises:
        InvalidArgument: there is one; the message names row and block.
    """
    bad = np.argwhere(scales & 127 == 127)
    if len(bad):
        row, block = (int(v) for v in bad[0])
        raise InvalidArgument(
            f"{len(bad)} block scales are NaN, the first {scales[row, block]:#04x} of "
            f"row {row}, block {block}; the data are damaged, or pass allow_nan=True "
            "to let the rows become NaN"
        )


def quantize(
    array: NDArray[Any], *, tensor_scale: float | NDArray[Any] | None = None
) -> Weights:
    """Quantises a matrix to NVFP4.

    With `amax` the largest magnitude, all in exact arithmetic and rounded once:

    * tensor scale: amax / 2688 (that is 448 * 6) to FP32, but at least 2^-126; 1 for a
      matrix of zeros.
    * block scale: block amax / (6 * tensor scale) to E4M3, nearest, ties to even, at
      most 448, and at least 2^-9 unless the block is zero.
    * code: value / (block scale * tensor scale) to E2M1, nearest, ties to even, at most
      6 in magnitude; the sign is kept, also of zero.

    Args:
        array: [n, k], k a multiple of 16; float32, or what converts to it.
        tensor_scale: a positive number to use instead of amax / 2688.

    Raises:
        InvalidArgument: no matrix, an infinity or NaN, k, or the tensor scale.

    Warns:
        Nvfp4Warning: values are beyond what the given tensor scale reaches.
    """
    values = np.asarray(array)
    if values.ndim != 2 or values.shape[0] == 0:
        raise InvalidArgument(f"a matrix [n, k] is quantised, got {values.shape}")
    check_depth(values.shape[1])
    with np.errstate(over="ignore"):
        wide = values.astype(np.float32).astype(np.float64)
    if not np.isfinite(wide).all():
        row, column = (int(v) for v in np.argwhere(~np.isfinite(wide))[0])
        raise InvalidArgument(
            f"element ({row}, {column}) is {values[row, column]} and not a finite FP32 "
            "number; NVFP4 has no infinity and no NaN"
        )
    amax = float(np.abs(wide).max())
    if tensor_scale is None:
        ratio = amax / (LARGEST_SCALE * LARGEST_CODE)
        tensor = np.float32(max(ratio, _TINIEST) if amax else 1.0)
    else:
        tensor = np.float32(tensor_scale)
        if not (np.isfinite(tensor) and tensor > 0):
            raise InvalidArgument(f"a tensor scale is positive, got {tensor_scale!r}")
    scale = float(tensor)
    blocks = wide.reshape(wide.shape[0], -1, BLOCK)
    largest = np.abs(blocks).max(axis=2)
    raw = largest / (LARGEST_CODE * scale)
    if tensor_scale is not None and raw.max() > LARGEST_SCALE:
        warnings.warn(
            f"values up to {amax:g} are beyond {2688 * scale:g}, the most that tensor "
            f"scale {scale:g} reaches, and are clipped",
            Nvfp4Warning,
            stacklevel=2,
        )
    raised = np.where(largest > 0, np.maximum(raw, SMALLEST_SCALE), 0.0)
    block_scales = encode_scales(raised)
    step = SCALE_VALUES[block_scales].astype(np.float64) * scale
    divisor = np.where(step > 0, step, 1.0)[:, :, None]
    codes = encode_codes(blocks / divisor).reshape(wide.shape)
    return Weights(pack_codes(codes), block_scales, np.array([tensor]))


def dequantize(weights: Weights) -> Floats:
    """The matrix as float32 [n, k]: each product of three rounded once."""
    codes = CODE_VALUES[unpack_codes(weights.packed)]
    blocks = codes.reshape(weights.n, -1, BLOCK)
    # Code times block scale has few bits: it is exact.
    scaled = blocks * decode_scales(weights.block_scales)[:, :, None]
    with np.errstate(under="ignore"):
        flat = scaled.reshape(weights.n, weights.k)
        return np.asarray(flat * weights.tensor_scale[:, None], np.float32)


def warn_if_inverted(weights: Weights, *, convention: str, other: str) -> None:
    """Warns if the tensor scale looks as if the other convention had been meant.

    A matrix of a model has a largest magnitude between 2^-14 and 2^10. If this one's is
    not, but with the inverse tensor scale it would be, the scale looks inverted.

    Warns:
        Nvfp4Warning: so it looks.
    """
    low, high = _PLAUSIBLE
    amax = weights.amax
    scale = float(np.abs(weights.tensor_scale).max())
    if scale == 0 or amax == 0 or low <= amax <= high:
        return
    inverse = amax / scale / scale
    if low <= inverse <= high:
        warnings.warn(
            f"with a tensor scale that {convention} the largest weight is {amax:g}; if "
            f"it {other} it is {inverse:g}, which is more likely: the scale looks "
            "inverted",
            Nvfp4Warning,
            stacklevel=3,
        )


def raw_bits(array: NDArray[Any]) -> Bytes:
    """FP8, uint8 or int8 as uint8 bits; nothing else holds codes or scales.

    Raises:
        InvalidArgument: another type.
    """
    given = np.asarray(array)
    if given.dtype in (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.int8)):
        return given.view(np.uint8)
    if given.dtype != np.uint8:
        raise InvalidArgument(
            f"codes and scales are uint8 (or float8_e4m3fn) bits, got {given.dtype}"
        )
    return given


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
