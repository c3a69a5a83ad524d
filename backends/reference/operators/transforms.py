"""Fourier transforms: TOSA 1.0 sections 2.2.5 and 2.2.9, unscaled in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tosavk.backends.reference.call import Call, Handler
from tosavk.backends.reference.values import Array
from tosavk.lowering.graph import Op


def _factors(size: int, out: int) -> tuple[Array, Array]:
    """Cos and sin of 2 pi (i * o mod size) / size, exact at quarter turns."""
    turn = np.outer(np.arange(out), np.arange(size)) % size
    angle = 2.0 * np.pi * turn / size
    cosine, sine = np.cos(angle), np.sin(angle)
    quarters = 4 * turn % size == 0
    return (
        np.where(quarters, np.rint(cosine), cosine),
        np.where(quarters, np.rint(sine), sine),
    )


def _rotation(height: int, width: int, oy: int, out_w: int) -> tuple[Array, Array]:
    """Cos and sin of the whole angle for output row `oy`: (OW, H * W) each.

    Exact at quarter turns: an infinity times a factor of 0 is NaN.
    """
    turn_y = (oy * np.arange(height)) % height / height
    turn_x = np.outer(np.arange(out_w), np.arange(width)) % width / width
    turn = (turn_y[None, :, None] + turn_x[:, None, :]).reshape(out_w, -1) % 1.0
    cosine, sine = np.cos(2.0 * np.pi * turn), np.sin(2.0 * np.pi * turn)
    quarters = 4.0 * turn % 1.0 == 0.0
    return (
        np.where(quarters, np.rint(cosine), cosine),
        np.where(quarters, np.rint(sine), sine),
    )


def _direct(real: Array, imag: Array, sign: float, out_w: int) -> tuple[Array, Array]:
    """The specification's sum as it stands; needed where values are not finite."""
    batch, height, width = real.shape
    flat_re, flat_im = real.reshape(batch, 1, -1), imag.reshape(batch, 1, -1)
    out_re = np.empty((batch, height, out_w))
    out_im = np.empty((batch, height, out_w))
    for oy in range(height):
        cosine, sine = _rotation(height, width, oy, out_w)
        sine = sign * sine
        out_re[:, oy] = (flat_re * cosine + flat_im * sine).sum(axis=2)
        out_im[:, oy] = (flat_im * cosine - flat_re * sine).sum(axis=2)
    return out_re, out_im


def _separable(
    real: Array, imag: Array, sign: float, out_w: int
) -> tuple[Array, Array]:
    """Rows, then columns, as matrix products with exactly reduced angles."""
    cos_w, sin_w = _factors(real.shape[2], out_w)
    cos_h, sin_h = _factors(real.shape[1], real.shape[1])
    sin_w, sin_h = sign * sin_w, sign * sin_h
    row_re = real @ cos_w.T + imag @ sin_w.T
    row_im = imag @ cos_w.T - real @ sin_w.T
    return cos_h @ row_re + sin_h @ row_im, cos_h @ row_im - sin_h @ row_re


def _transform(
    real: Array, imag: Array, sign: float, out_w: int
) -> tuple[Array, Array]:
    if np.isfinite(real).all() and np.isfinite(imag).all():
        return _separable(real, imag, sign, out_w)
    return _direct(real, imag, sign, out_w)


def _fft2d(call: Call) -> list[Array]:
    sign = -1.0 if call.flag("inverse") else 1.0
    return list(_transform(call[0], call[1], sign, call[0].shape[2]))


def _rfft2d(call: Call) -> list[Array]:
    """Real input; the imaginary part is exactly 0 where it is by symmetry."""
    height, width = call[0].shape[1:]
    real, imag = _transform(call[0], np.zeros_like(call[0]), 1.0, width // 2 + 1)
    for oy in {0, height // 2} if height % 2 == 0 else {0}:
        for ox in {0, width // 2} if width % 2 == 0 else {0}:
            imag[:, oy, ox] = 0.0
    return [real, imag]


_DIRECT = 1 << 18


def weighted_sums(values: Array, out_w: int, smallest: float) -> tuple[Array, Array]:
    """Sums of values * |cos| and values * |sin| of the transform's angles: its bound.

    |cos| and |sin| depend only on the angle modulo one turn, which is a multiple of
    1 / L for L = max(H, W); their Fourier series over these L angles turns each sum
    into L elements of the ordinary transform of `values`.

    Args:
        values: (N, H, W), not negative; H and W are powers of two.
        out_w: columns of the result.
        smallest: what a factor of zero counts as.

    Returns:
        Two arrays (N, H, out_w).
    """
    total = values.sum(axis=(1, 2), keepdims=True)
    batch, height, width = values.shape
    shape = (batch, height, out_w)
    if not np.isfinite(values).all():
        return np.broadcast_to(total, shape), np.broadcast_to(total, shape)
    turns = max(height, width)
    angle = 2.0 * np.pi * np.arange(turns, dtype=np.float64) / turns
    factors = [np.maximum(np.abs(f(angle)), smallest) for f in (np.cos, np.sin)]
    if height * width * height * out_w <= _DIRECT:
        return _direct_sums(values, out_w, factors)
    spectrum = np.fft.fft2(values)
    rows = np.arange(height, dtype=np.int64)[:, None]
    columns = np.arange(out_w, dtype=np.int64)[None, :]
    sums: list[Array] = []
    for factor in factors:
        series = np.fft.fft(factor).real / turns
        # Large values hide small ones in a transform; a bound must not be too small.
        out = np.zeros(shape) + turns * 2.0**-50 * total
        for k in range(turns):
            out += series[k] * spectrum[:, k * rows % height, k * columns % width].real
        sums.append(np.maximum(out, smallest * total))
    return sums[0], sums[1]


def _direct_sums(
    values: Array, out_w: int, factors: Sequence[Array]
) -> tuple[Array, Array]:
    """The sums of `weighted_sums`, term by term, for small transforms."""
    _, height, width = values.shape
    turns = factors[0].size
    rows, columns = (np.arange(n, dtype=np.int64) for n in (height, width))
    down = np.outer(rows, rows) * (turns // height)
    across = np.outer(columns[:out_w], columns) * (turns // width)
    # Angle of each output row and column, for each input row and column.
    steps = np.add.outer(down, across).transpose(0, 2, 1, 3) % turns
    first, second = (np.einsum("nhw,abhw->nab", values, f[steps]) for f in factors)
    return first, second


HANDLERS: dict[Op, Handler] = {Op.FFT2D: _fft2d, Op.RFFT2D: _rfft2d}
