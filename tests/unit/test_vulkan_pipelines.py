"""Work groups, the SPIR-V filter and the cutting of transfers: pure functions."""

import random
import struct
from pathlib import Path

import pytest

from tosavk.backends.vulkan._ffi import Scratch, ffi
from tosavk.backends.vulkan.blocks import ALIGNMENT_CAP, alignment_of, words
from tosavk.backends.vulkan.pipelines import (
    PipelineKey,
    group_counts,
    group_width,
    specialization,
)
from tosavk.backends.vulkan.records import Limits
from tosavk.backends.vulkan.spirv import ShaderLibrary, without_preserve
from tosavk.backends.vulkan.staging import pieces
from tosavk.core.errors import InvalidArgument, ResourceLimit, Unsupported
from tosavk.core.plan import Dispatch
from tosavk.shaders.catalogue import Kernel, Work

LINEAR = Kernel(name="k", bindings=("x", "y"), spec=(), params=("count",))
TILED = Kernel(name="t", bindings=("x", "y"), spec=(), params=(), work=Work.TILED)
LIMITS = Limits(group_count=(65535, 65535, 65535))


def dispatch(columns: int, tiles: int = 1) -> Dispatch:
    return Dispatch("k", (), (), (), columns, tiles, False, 0)


def constants_of(key: PipelineKey) -> dict[int, int]:
    """The specialization constants that the driver gets, by number."""
    kernel = Kernel(name="k", bindings=("x",), spec=("OP", "TYPE"), params=())
    scratch = Scratch()
    info = specialization(scratch, kernel, key)
    words = ffi.unpack(ffi.cast("uint32_t *", info.pData), info.dataSize // 4)
    entries = [info.pMapEntries[i] for i in range(info.mapEntryCount)]
    assert all(entry.size == 4 for entry in entries)
    return {entry.constantID: words[entry.offset // 4] for entry in entries}


def test_pipelines_that_are_cut_differ_by_a_constant() -> None:
    """Some drivers tell kept pipelines apart by code and constants, not by flags."""
    whole = constants_of(PipelineKey("k", (7, 3), 64))
    cut = constants_of(PipelineKey("k", (7, 3), 64, cut=True))
    assert whole == {0: 64, 1: 7, 2: 3}
    assert whole.items() < cut.items()


@pytest.mark.parametrize(
    ("columns", "counts"),
    [
        (1, (1, 1, 1)),
        (64, (1, 1, 1)),
        (65, (2, 1, 1)),
        (65535 * 64, (65535, 1, 1)),
        (65535 * 64 + 1, (32768, 2, 1)),
        (65535 * 256 + 1, (52429, 5, 1)),
    ],
)
def test_linear_work_spreads_over_x_then_y(
    columns: int, counts: tuple[int, int, int]
) -> None:
    assert group_counts(LINEAR, 64, dispatch(columns), LIMITS) == counts


def test_linear_work_always_covers_everything_once() -> None:
    rng = random.Random(11)
    for _ in range(300):
        columns = rng.randrange(1, 1 << 30)
        x, y, z = group_counts(LINEAR, 64, dispatch(columns), LIMITS)
        assert z == 1
        assert columns <= x * y * 64 <= 1 << 32
        assert max(x, y) <= 65535


@pytest.mark.parametrize(
    ("columns", "tiles", "counts"),
    [
        (1, 1, (1, 1, 1)),
        (200, 7, (4, 7, 1)),
        (64, 65535, (1, 65535, 1)),
        (64, 65536, (1, 32768, 2)),
        (64, 65537, (1, 32769, 2)),
    ],
)
def test_tiled_work_spreads_tiles_over_y_then_z(
    columns: int, tiles: int, counts: tuple[int, int, int]
) -> None:
    assert group_counts(TILED, 64, dispatch(columns, tiles), LIMITS) == counts


@pytest.mark.parametrize(
    ("kernel", "work"),
    [
        (LINEAR, dispatch((1 << 32) + 1)),
        (TILED, dispatch(65535 * 64 + 1)),
        (TILED, dispatch(1, 65535**2 + 1)),
    ],
)
def test_work_beyond_the_device_is_refused(kernel: Kernel, work: Dispatch) -> None:
    with pytest.raises(ResourceLimit, match=f"kernel {kernel.name} needs"):
        group_counts(kernel, 64, work, LIMITS)


@pytest.mark.parametrize(
    ("wanted", "invocations", "size", "width"),
    [(64, 128, 128, 64), (256, 128, 1024, 128), (256, 1024, 64, 64), (64, 64, 32, 32)],
)
def test_width_is_halved_until_it_fits(
    wanted: int, invocations: int, size: int, width: int
) -> None:
    kernel = Kernel(name="k", bindings=(), spec=(), params=(), workgroup=wanted)
    limits = Limits(group_invocations=invocations, group_size=(size, 64, 64))
    assert group_width(kernel, limits) == width


# SPIR-V -----------------------------------------------------------------------------

HEADER = (0x07230203, 0x10500, 0, 8, 0)
SHADER = (2 << 16 | 17, 1)
PRESERVE = (2 << 16 | 17, 4466)
RTE = (2 << 16 | 17, 4467)
NAME = struct.unpack("<6I", b"SPV_KHR_float_controls\0\0")
EXTENSION = (7 << 16 | 10, *NAME)
LOCAL_SIZE = (6 << 16 | 16, 4, 17, 1, 1, 1)
MODE = (4 << 16 | 16, 4, 4461, 32)
FUNCTION = (5 << 16 | 54, 2, 4, 0, 3, 4 << 16 | 16, 4, 4461, 32)


def module(*parts: tuple[int, ...]) -> bytes:
    flat = [word for part in (HEADER, *parts) for word in part]
    return struct.pack(f"<{len(flat)}I", *flat)


def test_the_mode_and_what_only_it_needs_is_taken_out() -> None:
    full = module(SHADER, PRESERVE, EXTENSION, LOCAL_SIZE, MODE, FUNCTION)
    assert without_preserve(full) == module(SHADER, LOCAL_SIZE, FUNCTION)


def test_an_extension_that_others_need_stays_where_it_was() -> None:
    full = module(SHADER, PRESERVE, RTE, EXTENSION, LOCAL_SIZE, MODE, FUNCTION)
    assert without_preserve(full) == module(
        SHADER, RTE, EXTENSION, LOCAL_SIZE, FUNCTION
    )


def test_a_module_without_the_mode_is_unchanged() -> None:
    plain = module(SHADER, LOCAL_SIZE, FUNCTION)
    assert without_preserve(plain) == plain


def test_real_modules_lose_exactly_the_mode() -> None:
    data = Path(__file__).parents[1] / "backends" / "data"
    tile = (data / "tile.spv").read_bytes()
    assert without_preserve(tile) == tile
    mix = (data / "mix.spv").read_bytes()
    words_removed = len(PRESERVE) + len(EXTENSION) + len(MODE)
    assert len(without_preserve(mix)) == len(mix) - 4 * words_removed


@pytest.mark.parametrize(
    "damaged",
    [b"", b"abc", bytes(20), module(SHADER, (0,)), module(SHADER)[:-4]],
)
def test_damaged_modules_are_refused(damaged: bytes) -> None:
    with pytest.raises(InvalidArgument, match="SPIR-V module"):
        without_preserve(damaged)


def test_unknown_kernels_and_missing_modules_are_told_apart(tmp_path: Path) -> None:
    library = ShaderLibrary({"k": LINEAR}, lambda name: (tmp_path / name).read_bytes())
    with pytest.raises(Unsupported, match="not in the kernel catalogue"):
        library.kernel("z")
    with pytest.raises(Unsupported, match="no SPIR-V module"):
        library.module("k", preserve=True)


# Transfers and alignment ------------------------------------------------------------


@pytest.mark.parametrize("staging", [4, 8, 20, 1024])
@pytest.mark.parametrize("offset", range(5))
def test_pieces_cover_a_range_in_whole_words(offset: int, staging: int) -> None:
    for nbytes in (*range(1, 40), 1021):
        at = 0
        for word, skip, position, count in pieces(offset, nbytes, staging):
            assert word % 4 == 0
            assert position == at
            assert word + skip == offset + at
            assert count >= 1
            # Only head and tail touch words that are not wholly theirs.
            if skip or count % 4:
                assert skip + count <= 4
            else:
                assert count <= staging
            at += count
        assert at == nbytes


def test_alignment_is_the_largest_power_of_two() -> None:
    assert alignment_of(0x7F0000001040) == 64
    assert alignment_of(1 << 45) == ALIGNMENT_CAP
    assert alignment_of(12) == 4


def test_sizes_are_rounded_to_words() -> None:
    assert [words(n) for n in (1, 4, 5, 8)] == [4, 4, 8, 8]
