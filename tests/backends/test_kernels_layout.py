"""The kernels that move elements: move, concat, remap, gather, on every GPU device."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import kernels as harness
from tosavk.core.device import ContextKit
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Op

Array = NDArray[np.generic]
RNG = np.random.default_rng(20261)
PACKED = (DType.BOOL, DType.INT8, DType.FP8E5M2, DType.INT16, DType.BF16)
TYPES = (*PACKED, DType.FP32)


@pytest.fixture(scope="module")
def kit(gpu_device: str) -> Iterator[ContextKit]:
    with harness.open_kit(gpu_device) as opened:
        yield opened


def raw(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Random bit patterns, NaNs with payloads among them."""
    count = int(np.prod(shape))
    data = RNG.bytes(count * dtype.bits // 8)
    values: Array = np.frombuffer(data, f"<u{dtype.bits // 8}").reshape(shape).copy()
    if dtype is DType.BOOL:
        values[RNG.random(shape) < 0.5] = 0
    return values


def canonical(dtype: DType, array: Array) -> Array:
    """BOOL results are 0 or 1."""
    return (array != 0).astype(np.uint8) if dtype is DType.BOOL else array


def strides(shape: tuple[int, ...]) -> list[int]:
    return [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]


def six(prefix: str, values: tuple[int, ...] | list[int], fill: int) -> dict[str, int]:
    padded = [fill] * (6 - len(values)) + list(values)
    return {f"{prefix}{i}": value for i, value in enumerate(padded)}


def check(dtype: DType, result: NDArray[np.uint8], expected: Array) -> None:
    want = harness.bytes_of(canonical(dtype, expected))
    assert np.unique(want).size > 1, "the expected output is all equal"
    assert np.array_equal(result, want)


def run_move(
    kit: ContextKit,
    dtype: DType,
    x: Array,
    shape: tuple[int, ...],
    steps: list[int],
    offset: int,
) -> NDArray[np.uint8]:
    count = int(np.prod(shape))
    return harness.run_kernel(
        kit,
        "move",
        spec={"TYPE": dtype},
        params={
            "count": count,
            **six("d", shape, 1),
            **six("s", steps, 0),
            "offset": offset,
        },
        inputs=[x],
        before=raw(DType.INT8 if dtype is DType.BOOL else dtype, shape),
        columns=harness.destination_words(dtype, count),
    )


@pytest.mark.parametrize("dtype", [*TYPES, DType.INT48], ids=lambda d: d.name)
@pytest.mark.parametrize("perms", [(3, 1, 0, 2), (0, 2, 1, 3)], ids=str)
def test_move_transposes(kit: ContextKit, dtype: DType, perms: tuple[int, ...]) -> None:
    for shape in ((2, 3, 5, 7), (3, 5, 2, 8), (1, 1, 1, 3)):
        x = raw(dtype, shape)
        if x.size == 3:
            x[..., 0], x[..., 1] = 0, 1
        target = x.transpose(perms)
        steps = [strides(shape)[axis] for axis in perms]
        result = run_move(kit, dtype, x, target.shape, steps, 0)
        check(dtype, result, target)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_move_reverses_and_slices(kit: ContextKit, dtype: DType) -> None:
    shape = (5, 7, 3)
    x = raw(dtype, shape)
    steps = strides(shape)
    steps[1] = -steps[1]
    result = run_move(kit, dtype, x, shape, steps, 6 * 3)
    check(dtype, result, x[:, ::-1])
    steps = strides(shape)
    offset = 1 * steps[0] + 2 * steps[1] + 1 * steps[2]
    result = run_move(kit, dtype, x, (4, 3, 2), steps, offset)
    check(dtype, result, x[1:, 2:5, 1:3])


def test_move_walks_six_dimensions(kit: ContextKit) -> None:
    shape = (2, 3, 2, 3, 2, 5)
    x = raw(DType.INT16, shape)
    perms = (5, 3, 1, 0, 2, 4)
    steps = [strides(shape)[axis] for axis in perms]
    target = x.transpose(perms)
    result = run_move(kit, DType.INT16, x, target.shape, steps, 0)
    check(DType.INT16, result, target)


def test_move_of_int4_nibbles(kit: ContextKit) -> None:
    nibbles = RNG.integers(0, 16, 37, np.uint8)

    def pack(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        even = np.append(values, np.uint8(0))[: values.size + values.size % 2]
        return (even[::2] | (even[1::2] << 4)).astype(np.uint8)

    before = RNG.integers(0, 256, 19, np.uint8)
    result = harness.run_kernel(
        kit,
        "move",
        spec={"TYPE": DType.INT4},
        params={"count": 37, **six("d", (37,), 1), **six("s", [-1], 0), "offset": 36},
        inputs=[pack(nibbles)],
        before=before,
        columns=5,
    )
    want = pack(nibbles[::-1].copy())
    # The high nibble of the last byte belongs to nobody.
    want[-1] |= before[-1] & 0xF0
    assert np.array_equal(result, want)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_concat_writes_only_its_own_part(kit: ContextKit, dtype: DType) -> None:
    for outer, row, begin, length in ((3, 11, 4, 5), (1, 13, 0, 6), (5, 3, 2, 1)):
        x = raw(dtype, (outer, length))
        y = raw(dtype, (outer, row))
        packed = dtype.bits < 32
        count = y.size if packed else x.size
        result = harness.run_kernel(
            kit,
            "concat",
            spec={"TYPE": dtype},
            params={"count": count, "row": row, "begin": begin, "length": length},
            inputs=[x],
            before=y,
            columns=harness.destination_words(dtype, count),
        )
        want = y.copy()
        want[:, begin : begin + length] = canonical(dtype, x)
        assert np.array_equal(result, harness.bytes_of(want))


def run_remap(
    kit: ContextKit,
    op: Op,
    dtype: DType,
    x: Array,
    target: Array,
    *,
    before: tuple[int, ...] | None = None,
    fill: int = 0,
) -> None:
    before = before or (0,) * x.ndim
    result = harness.run_kernel(
        kit,
        "remap",
        spec={"OP": op, "TYPE": dtype},
        params={
            "count": target.size,
            **six("d", target.shape, 1),
            **six("e", x.shape, 1),
            **six("s", strides(x.shape), 0),
            **six("p", before, 0),
            "fill": fill,
        },
        inputs=[x],
        before=raw(dtype, target.shape),
        columns=harness.destination_words(dtype, target.size),
    )
    check(dtype, result, target)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_remap_pads(kit: ContextKit, dtype: DType) -> None:
    fill = 1 if dtype is DType.BOOL else 0x91
    for shape, padding in (
        ((3, 5, 7), ((1, 2), (0, 0), (2, 0))),
        ((1, 4), ((0, 1), (3, 2))),
        ((2, 1, 2, 1, 3, 1), ((0, 1), (1, 0), (0, 0), (0, 2), (1, 1), (2, 1))),
    ):
        x = raw(dtype, shape)
        target = np.pad(x, padding, constant_values=fill)
        before = tuple(front for front, _ in padding)
        run_remap(kit, Op.PAD, dtype, x, target, before=before, fill=fill)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_remap_tiles(kit: ContextKit, dtype: DType) -> None:
    for shape, times in (((3, 5), (2, 3)), ((1, 2, 7), (5, 1, 3)), ((11,), (2,))):
        x = raw(dtype, shape)
        run_remap(kit, Op.TILE, dtype, x, np.tile(x, times))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_gather_reads_zero_outside(kit: ContextKit, dtype: DType) -> None:
    for n, k, w, c in ((2, 5, 7, 3), (1, 11, 3, 8), (3, 2, 1, 1)):
        x = raw(dtype, (n, k, c))
        x[0, 0, 0] = 1
        indices = RNG.integers(0, k, (n, w)).astype(np.int32)
        indices[0, 0] = 0
        indices[-1, -1] = k
        if w > 1:
            indices[0, 1] = -1
        inside = (indices >= 0) & (indices < k)
        safe = np.where(inside, indices, 0)
        taken = np.take_along_axis(x, safe[:, :, None], axis=1)
        want = np.where(inside[:, :, None], taken, np.zeros_like(taken))
        result = harness.run_kernel(
            kit,
            "gather",
            spec={"TYPE": dtype},
            params={"count": want.size, "n": n, "k": k, "w": w, "c": c},
            inputs=[x, indices],
            before=raw(dtype, want.shape),
            columns=harness.destination_words(dtype, want.size),
        )
        check(dtype, result, want)


def test_more_groups_than_one_dimension_holds(kit: ContextKit) -> None:
    count = 65535 * 64 + 64 * 3 + 5
    x = np.arange(count, dtype=np.uint32)
    result = run_move(kit, DType.INT32, x, (count,), [-1], count - 1)
    assert np.array_equal(result, harness.bytes_of(x[::-1]))
