"""Pictures as arrays: PNG files, and layouts that are compared with some tolerance."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 6: 4}
_BAND = 40
_MOVED = 6


def read_png(data: bytes) -> NDArray[np.uint8]:
    """The pixels (height, width, channels) of a PNG of 8 bits without interlacing."""
    assert data.startswith(_SIGNATURE)
    at, packed, header = 8, b"", b""
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    assert depth == 8
    assert not interlaced
    step = _CHANNELS[colour]
    lines = np.frombuffer(zlib.decompress(packed), np.uint8)
    lines = lines.reshape(height, 1 + width * step)
    result = np.zeros((height, width, step), np.uint8)
    before = np.zeros((width, step), np.uint8)
    for y, line in enumerate(lines):
        before = _unfiltered(int(line[0]), line[1:].reshape(width, step), before)
        result[y] = before
    return result


def _unfiltered(
    kind: int, line: NDArray[np.uint8], above: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    if kind == 0:
        return line
    if kind == 2:
        return line + above
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    result = np.zeros_like(line)
    left = np.zeros(line.shape[1], np.int64)
    corner = left
    for x in range(len(line)):
        up = above[x].astype(np.int64)
        if kind == 3:
            guess = (left + up) // 2
        else:
            base = left + up - corner
            a, b, c = abs(base - left), abs(base - up), abs(base - corner)
            guess = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        result[x] = (line[x] + guess) & 255
        left, corner = result[x].astype(np.int64), up
    return result


def grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture in grey: the mean of its colours."""
    means: NDArray[np.float64] = pixels[..., :3].astype(np.float64).mean(axis=2)
    return np.asarray(np.round(means), np.uint8)


def write_png(picture: NDArray[np.uint8]) -> bytes:
    """A grey picture (height, width) as PNG."""
    height, width = picture.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture], axis=1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(body))
        + kind
        + body
        + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def alike(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """How alike two layouts are: the correlation of where they are dark, -1 to 1.

    Each pixel counts with its neighbours, and each band of rows may lie a little higher
    or lower, so that other fonts or a line more or less matter little.
    """
    rows = min(len(one), len(other))
    columns = min(one.shape[1], other.shape[1])
    parts = [_blurred(picture[:rows, :columns]) for picture in (one, other)]
    aligned = _aligned(*parts)
    return float(np.corrcoef(aligned.reshape(-1), parts[1].reshape(-1))[0, 1])


def _aligned(
    one: NDArray[np.float64], other: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rows of `one`, moved by at most _MOVED, in bands that fit `other` best."""
    result = np.empty_like(other)
    for top in range(0, len(other), _BAND):
        band = other[top : top + _BAND]
        starts = range(
            max(top - _MOVED, 0), min(top + _MOVED, len(one) - len(band)) + 1
        )
        found = [one[start : start + len(band)] for start in starts]
        result[top : top + _BAND] = min(found, key=lambda rows: _distance(rows, band))
    return result


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.square(one - other).sum())


def _blurred(picture: NDArray[np.uint8]) -> NDArray[np.float64]:
    dark = 255.0 - picture.astype(np.float64)
    wide = np.pad(dark, 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(wide, (5, 5))
    return np.asarray(windows.mean(axis=(2, 3)))
