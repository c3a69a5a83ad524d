"""Byte ports: segments, and what counts as contiguous bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from harness.fake_device import Bench, buffer
from tosavk.core import buffers
from tosavk.core.descriptors import FORMAT_TOSA, Artifact
from tosavk.core.errors import InvalidArgument, OutOfBounds
from tosavk.core.ports import Segments, byte_view


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("length", range(8))
def test_segments_read_and_write_across_pieces(start: int, length: int) -> None:
    parts = [bytearray(b"ab"), bytearray(b""), bytearray(b"c"), bytearray(b"defg")]
    segments = Segments(parts)
    whole = bytearray(b"abcdefg")
    out = bytearray(length)
    if start + length > 7:
        with pytest.raises(OutOfBounds, match="leave segments of 7 bytes"):
            segments.read_at(start, memoryview(out))
        with pytest.raises(OutOfBounds):
            segments.write_at(start, memoryview(out))
        assert b"".join(parts) == whole
        return
    segments.read_at(start, memoryview(out))
    assert out == whole[start : start + length]
    data = bytes(range(length))
    segments.write_at(start, memoryview(data))
    whole[start : start + length] = data
    assert b"".join(parts) == whole


def test_byte_view_of_arrays() -> None:
    array = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    assert byte_view(array) == array.tobytes()
    assert byte_view(np.zeros((2, 0), np.float32)).nbytes == 0
    assert byte_view(np.float32(1)) == np.float32(1).tobytes()
    wide = np.arange(4, dtype="<u4")
    view = byte_view(wide)
    view[0] = 9
    assert wide[0] == 9


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        7,
        np.zeros((4, 4), np.float32)[:, ::2],
        np.zeros((4, 4), ml_dtypes.bfloat16)[:, ::2],
        np.zeros(3, dtype=object),
    ],
)
def test_byte_view_refuses(bad: object) -> None:
    with pytest.raises(InvalidArgument):
        byte_view(bad)


@pytest.mark.parametrize("maps", [True, False])
def test_segmented_transfer(
    maps: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A small chunk makes the pieces of unmapped memory visible.
    monkeypatch.setattr(buffers, "PORT_CHUNK", 5)
    bench = Bench()
    bench.device.maps = maps
    target = buffer(bench.context, 16)
    target.write(0, bytes(16))
    target.write(2, Segments([b"abcd", b"efghijk"]))
    assert target.read(0, 16) == b"\0\0abcdefghijk\0\0\0"
    out = [bytearray(3), bytearray(9)]
    target.read_into(1, Segments(out))
    assert out == [b"\0ab", b"cdefghijk"]
    assert bench.accelerator.explicit_transfer_bytes == 16 + 11 + 16 + 12
    with pytest.raises(OutOfBounds):
        target.write(14, Segments([b"a", b"bc"]))
    with pytest.raises(OutOfBounds):
        target.read_into(14, Segments([bytearray(1), bytearray(2)]))
    assert bench.accelerator.explicit_transfer_bytes == 55


def test_read_into_needs_room_to_write() -> None:
    bench = Bench()
    source = buffer(bench.context)
    with pytest.raises(InvalidArgument, match="read-only"):
        source.read_into(0, bytes(4))
    assert bench.accelerator.explicit_transfer_bytes == 0


def test_segmented_artifact_reaches_the_device_in_one_piece() -> None:
    bench = Bench()
    artifact = Artifact(FORMAT_TOSA, tuple(range(12)), Segments([b"to", b"sa!"]))
    bench.context.load_program(artifact)
    (lowered,) = bench.device.lowered
    assert bytes(lowered.view()) == b"tosa!"
    assert isinstance(lowered.payload, memoryview)
    assert lowered.target == tuple(range(12))
