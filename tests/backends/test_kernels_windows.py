"""Convolutions, matrix product and pooling on every GPU device, bit for bit.

Expected values are made by the same steps in NumPy's float32: taps in the order
(ky, kx, ic), each product and each sum rounded, padded taps skipped, the bias last, one
rounding to the output type.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import kernels as harness
from tosavk.core.descriptors import BufferDesc, MemoryDomain
from tosavk.core.device import BoundSlot, ContextKit
from tosavk.core.dtypes import DType
from tosavk.core.plan import SlotRole
from tosavk.lowering.graph import Graph, NanMode, Op
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.tosa.builder import Builder

Array = NDArray[Any]
NARROW = (DType.FP16, DType.BF16, DType.FP8E4M3, DType.FP8E5M2)
FLOATS = (DType.FP32, *NARROW)
SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0)
NONE = (0, 0, 0, 0)


@pytest.fixture(scope="module")
def kit(gpu_device: str) -> Iterator[ContextKit]:
    with harness.open_kit(gpu_device) as opened:
        yield opened


@dataclass(frozen=True, slots=True)
class Window:
    """A kernel that steps over an image."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = NONE

    def fitted(self, image: tuple[int, int]) -> "Window":
        """The window with more padding behind, so that the strides fit exactly."""
        pads = list(self.pad)
        for axis, size in enumerate(image):
            reach = (self.kernel[axis] - 1) * self.dilation[axis]
            room = size - 1 + pads[2 * axis] + pads[2 * axis + 1] - reach
            pads[2 * axis + 1] += -room % self.stride[axis]
        return Window(self.kernel, self.stride, self.dilation, tuple(pads))  # type: ignore[arg-type]

    def size(self, image: tuple[int, int]) -> tuple[int, int]:
        """The output's height and width."""
        sizes = [
            (n - 1 + self.pad[2 * a] + self.pad[2 * a + 1] - (k - 1) * d) // s + 1
            for a, (n, k, d, s) in enumerate(
                zip(image, self.kernel, self.dilation, self.stride, strict=True)
            )
        ]
        return sizes[0], sizes[1]

    def along(self, axis: int, tap: int, out: int, size: int) -> tuple[Array, Array]:
        """Output positions that a tap reaches, and the input positions it reads."""
        start = tap * self.dilation[axis] - self.pad[2 * axis]
        source = np.arange(out) * self.stride[axis] + start
        reached = np.flatnonzero((source >= 0) & (source < size))
        return reached, source[reached]


class Transposed(Window):
    """A transposed window; `pad` is out_pad."""

    __slots__ = ()

    def size(self, image: tuple[int, int]) -> tuple[int, int]:
        sizes = [
            (n - 1) * s + self.pad[2 * a] + self.pad[2 * a + 1] + k
            for a, (n, k, s) in enumerate(
                zip(image, self.kernel, self.stride, strict=True)
            )
        ]
        return sizes[0], sizes[1]

    def along(self, axis: int, tap: int, out: int, size: int) -> tuple[Array, Array]:
        ahead = np.arange(out) - self.pad[2 * axis] - tap
        source, rest = np.divmod(ahead, self.stride[axis])
        reached = np.flatnonzero((rest == 0) & (source >= 0) & (source < size))
        return reached, source[reached]


def taps(window: Window, image: tuple[int, int]) -> Iterator[tuple[Any, Any, Any]]:
    """Each tap in order: its number, output positions, input positions."""
    out = window.size(image)
    for ky in range(window.kernel[0]):
        for kx in range(window.kernel[1]):
            to_y, from_y = window.along(0, ky, out[0], image[0])
            to_x, from_x = window.along(1, kx, out[1], image[1])
            every = slice(None)
            if to_y.size and to_x.size:
                yield (
                    (ky, kx),
                    (every, to_y[:, None], to_x[None, :]),
                    (every, from_y[:, None], from_x[None, :]),
                )


def convolved(window: Window, x: Array, w: Array, bias: Array) -> Array:
    """CONV2D or TRANSPOSE_CONV2D in float32; w is [OC, KH, KW, IC]."""
    image = (x.shape[1], x.shape[2])
    sums = np.zeros((x.shape[0], *window.size(image), w.shape[0]), np.float32)
    for (ky, kx), to, source in taps(window, image):
        part = sums[to]
        for c in range(x.shape[3]):
            part = part + x[source][..., c, None] * w[:, ky, kx, c]
        sums[to] = part
    return sums + bias


def convolved_by_channel(window: Window, x: Array, w: Array, bias: Array) -> Array:
    """DEPTHWISE_CONV2D in float32; w is [KH, KW, C, M]."""
    image = (x.shape[1], x.shape[2])
    shape = (x.shape[0], *window.size(image))
    sums = np.zeros((*shape, *w.shape[2:]), np.float32)
    for (ky, kx), to, source in taps(window, image):
        sums[to] = sums[to] + x[source][..., None] * w[ky, kx]
    return sums.reshape(*shape, -1) + bias


def values(
    dtype: DType, shape: tuple[int, ...], seed: int, *, special: float = 0.0
) -> Array:
    """Random values, a part of them infinities, NaNs and zeros."""
    rng = np.random.default_rng(seed)
    array = rng.normal(size=shape)
    chosen = rng.random(shape) < special
    array[chosen] = rng.choice(SPECIAL, shape)[chosen]
    with np.errstate(all="ignore"):
        return array.astype(np.float32).astype(dtype.numpy)


def run(kit: ContextKit, graph: Graph, feeds: Mapping[str, Array]) -> Array:
    """Runs a graph with one output; every slot lies between guard bytes."""
    lowered = lower_graph(graph)
    program = kit.load(lowered)
    images: list[Array] = []
    bound: list[BoundSlot] = []
    for slot in lowered.plan.slots:
        image = harness.noise(2 * harness.GUARD + slot.nbytes + 4, slot.index)
        if slot.role is SlotRole.INPUT:
            data = harness.bytes_of(feeds[slot.name])
            image[harness.GUARD : harness.GUARD + slot.nbytes] = data
        image = image[: len(image) // 4 * 4]
        desc = BufferDesc(
            nbytes=len(image), usage=harness.ALL, domain=MemoryDomain.DEVICE
        )
        buffer = kit.allocate(desc)
        buffer.write(0, image.data)
        images.append(image)
        bound.append(BoundSlot(buffer, harness.GUARD, slot.nbytes))
    recording = kit.record(program, bound, None)
    recording.launch()
    assert recording.wait(harness.WAIT_NS)
    recording.retire()
    result = np.empty(0, np.uint8)
    for slot, image, part in zip(lowered.plan.slots, images, bound, strict=True):
        after = np.empty_like(image)
        part.allocation.read(0, after.data)
        end = harness.GUARD + slot.nbytes
        if slot.role is SlotRole.OUTPUT:
            result = after[harness.GUARD : end].copy()
            after[harness.GUARD : end] = image[harness.GUARD : end]
        assert np.array_equal(image, after), f"bytes around {slot.name!r} changed"
    recording.free()
    for part in bound:
        part.allocation.free()
    program.free()
    output = lowered.plan.outputs[0]
    return result.view(output.dtype.numpy).reshape(output.shape)


def same(result: Array, expected: Array, dtype: DType) -> None:
    """The same bits, any NaN for a NaN."""
    with np.errstate(all="ignore"):
        want = expected.astype(dtype.numpy)
    assert result.shape == want.shape
    assert result.dtype == want.dtype
    whole = np.dtype(f"u{want.dtype.itemsize}")
    both_nan = np.isnan(result.astype(np.float32)) & np.isnan(want.astype(np.float32))
    differ = (result.view(whole) != want.view(whole)) & ~both_nan
    places = np.argwhere(differ)
    assert not places.size, (
        f"{len(places)} of {differ.size} differ, first at {places[0]}: "
        f"{result[tuple(places[0])]!r}, not {want[tuple(places[0])]!r}"
    )


def wide(array: Array) -> Array:
    return array.astype(np.float32)


def is_fp8(dtype: DType) -> bool:
    return dtype in (DType.FP8E4M3, DType.FP8E5M2)


def result_type(dtype: DType) -> DType:
    return DType.FP16 if is_fp8(dtype) else dtype


def sum_type(dtype: DType) -> DType:
    """The acc_type that TOSA has for a type; the kernels always sum in FP32."""
    return DType.FP16 if is_fp8(dtype) else DType.FP32


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution to try.

    Attributes:
        x: shape of the input.
        channels: output channels, or the multiplier of a depthwise one.
        window: its kernel.
        known: whether weights and bias are constants.
        one_bias: whether the bias has one element for all channels.
        special_x, special_w: part of infinities, NaNs and zeros.
    """

    x: tuple[int, int, int, int]
    channels: int
    window: Window
    known: bool = True
    one_bias: bool = False
    special_x: float = 0.0
    special_w: float = 0.0


AROUND = (1, 1, 1, 1)
CONVOLUTIONS = {
    "pointwise": Convolution((1, 7, 5, 8), 16, Window((1, 1))),
    "odd": Convolution((1, 11, 13, 7), 5, Window((3, 5), pad=(1, 1, 2, 2))),
    "batch": Convolution(
        (3, 11, 13, 7), 29, Window((3, 5), (2, 3), (1, 1), (1, 0, 2, 2))
    ),
    "dilated": Convolution(
        (1, 17, 19, 4), 12, Window((3, 2), (2, 1), (2, 3), (2, 3, 1, 4))
    ),
    "fed": Convolution(
        (1, 17, 19, 4), 12, Window((3, 2), (2, 1), (2, 3), (2, 3, 1, 4)), known=False
    ),
    "fed whole": Convolution((1, 9, 9, 4), 16, Window((3, 3), pad=AROUND), known=False),
    "one bias": Convolution((1, 5, 7, 3), 11, Window((2, 2)), one_bias=True),
    "fed one bias": Convolution(
        (1, 5, 7, 3), 11, Window((2, 2)), known=False, one_bias=True
    ),
    "one channel": Convolution((1, 5, 7, 3), 1, Window((2, 2)), known=False),
    "special x": Convolution(
        (1, 9, 7, 4), 9, Window((3, 3), pad=AROUND), special_x=0.1
    ),
    "special w": Convolution(
        (1, 9, 7, 4), 9, Window((3, 3), pad=AROUND), special_w=0.1
    ),
    "special w fed": Convolution(
        (1, 9, 7, 3), 9, Window((3, 3), pad=(2, 2, 2, 2)), known=False, special_w=0.1
    ),
}
DEPTHWISE = {
    "rows": Convolution((1, 11, 13, 8), 1, Window((3, 3), pad=AROUND)),
    "rows stride 2": Convolution(
        (2, 11, 13, 12), 1, Window((3, 3), (2, 2), pad=(0, 1, 0, 1))
    ),
    "rows of 5": Convolution(
        (1, 11, 13, 12), 1, Window((5, 5), (2, 2), pad=(2, 2, 2, 2))
    ),
    "odd": Convolution((1, 11, 13, 7), 1, Window((3, 3), pad=AROUND)),
    "times 3": Convolution((2, 11, 13, 7), 3, Window((3, 2), (1, 2), pad=AROUND)),
    "times 4": Convolution(
        (1, 17, 19, 5), 4, Window((3, 3), (1, 2), (2, 3), (2, 1, 3, 1))
    ),
    "strides": Convolution(
        (1, 17, 19, 8), 1, Window((3, 3), (3, 3), (2, 1), (2, 1, 1, 1))
    ),
    "special x": Convolution(
        (1, 11, 13, 8), 1, Window((3, 3), pad=AROUND), special_x=0.1
    ),
    "special w": Convolution(
        (1, 11, 13, 8), 1, Window((3, 3), pad=AROUND), special_w=0.1
    ),
    "special w odd": Convolution(
        (1, 11, 13, 7), 1, Window((3, 3), pad=AROUND), special_w=0.1
    ),
    "fed": Convolution((1, 11, 13, 7), 1, Window((3, 3), pad=AROUND), known=False),
    "fed whole": Convolution(
        (1, 11, 13, 8), 1, Window((3, 3), pad=AROUND), known=False, special_w=0.1
    ),
}
TRANSPOSED = {
    "stride 1": Convolution((1, 1, 3, 1), 1, Transposed((1, 3))),
    "negative": Convolution((1, 1, 3, 1), 1, Transposed((1, 3), pad=(0, 0, -1, -1))),
    "positive": Convolution((1, 1, 3, 1), 1, Transposed((1, 3), pad=(0, 0, 2, 0))),
    "stride 2": Convolution(
        (2, 5, 7, 4), 9, Transposed((3, 3), (2, 2), pad=(0, -1, 1, 0))
    ),
    "strides": Convolution(
        (1, 5, 7, 3), 9, Transposed((2, 3), (3, 5), pad=(0, 1, 1, 0))
    ),
    "stride above width": Convolution(
        (2, 3, 1, 3), 9, Transposed((2, 3), (2, 7), pad=(0, 1, 1, 0))
    ),
    "special w": Convolution(
        (1, 5, 7, 3), 9, Transposed((2, 3), (2, 2), pad=(0, 1, 1, 0)), special_w=0.1
    ),
    "fed": Convolution(
        (1, 5, 7, 3), 9, Transposed((4, 3), (2, 2), pad=(-1, 1, -1, 0)), known=False
    ),
}


def check_convolution(kit: ContextKit, op: Op, case: Convolution, dtype: DType) -> None:
    image = (case.x[1], case.x[2])
    window = case.window
    if op is not Op.TRANSPOSE_CONV2D:
        window = window.fitted(image)
    out_type = result_type(dtype)
    depth = case.x[3]
    if op is Op.DEPTHWISE_CONV2D:
        shape = (*window.kernel, depth, case.channels)
        channels = depth * case.channels
    else:
        shape = (case.channels, *window.kernel, depth)
        channels = case.channels
    x = values(dtype, case.x, 1, special=case.special_x)
    w = values(dtype, shape, 2, special=case.special_w)
    bias = values(out_type, (1 if case.one_bias else channels,), 3)
    b = Builder()
    operands = [b.input("x", dtype, x.shape)]
    if case.known:
        operands += [b.const(w, dtype), b.const(bias, out_type)]
    else:
        operands += [b.input("w", dtype, shape), b.input("b", out_type, bias.shape)]
    operands += [b.zero(dtype), b.zero(dtype)]
    if op is Op.TRANSPOSE_CONV2D:
        y = b.op(
            op,
            operands,
            out_pad=window.pad,
            stride=window.stride,
            acc_type=sum_type(dtype),
            dtype=out_type,
        )
    else:
        y = b.op(
            op,
            operands,
            pad=window.pad,
            stride=window.stride,
            dilation=window.dilation,
            acc_type=sum_type(dtype),
            dtype=out_type,
        )
    b.output(y)
    result = run(kit, b.graph(), {"x": x, "w": w, "b": bias})
    make = convolved_by_channel if op is Op.DEPTHWISE_CONV2D else convolved
    with np.errstate(all="ignore"):
        expected = make(window, wide(x), wide(w), wide(bias))
    same(result, expected, out_type)


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_conv2d(kit: ContextKit, case: Convolution) -> None:
    check_convolution(kit, Op.CONV2D, case, DType.FP32)


@pytest.mark.parametrize("case", DEPTHWISE.values(), ids=DEPTHWISE)
def test_depthwise_conv2d(kit: ContextKit, case: Convolution) -> None:
    check_convolution(kit, Op.DEPTHWISE_CONV2D, case, DType.FP32)


@pytest.mark.parametrize("case", TRANSPOSED.values(), ids=TRANSPOSED)
def test_transpose_conv2d(kit: ContextKit, case: Convolution) -> None:
    check_convolution(kit, Op.TRANSPOSE_CONV2D, case, DType.FP32)


@pytest.mark.parametrize("known", [True, False], ids=["known", "fed"])
@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)
def test_narrow_convolutions(kit: ContextKit, dtype: DType, known: bool) -> None:  # noqa: FBT001
    window = Window((3, 3), (2, 1), pad=AROUND)
    case = Convolution((1, 7, 11, 5), 7, window, known)
    check_convolution(kit, Op.CONV2D, case, dtype)
    case = Convolution((1, 7, 11, 5), 2, window, known)
    check_convolution(kit, Op.DEPTHWISE_CONV2D, case, dtype)
    turned = Transposed((3, 3), (2, 2), pad=(0, -1, 1, 0))
    case = Convolution((1, 4, 5, 3), 5, turned, known)
    check_convolution(kit, Op.TRANSPOSE_CONV2D, case, dtype)


def test_published_transposed_rows(kit: ContextKit) -> None:
    """Negative and positive out_pad, by hand."""
    for window, bias, row in (
        (Transposed((1, 3)), 0, [10, 40, 100, 120, 90]),
        (Transposed((1, 3), pad=(0, 0, -1, -1)), 0, [40, 100, 120]),
        (Transposed((1, 3), pad=(0, 0, 2, 0)), 7, [7, 7, 17, 47, 107, 127, 97]),
        (Transposed((1, 3), (1, 2)), 0, [10, 20, 50, 40, 90, 60, 90]),
    ):
        b = Builder()
        x = b.input("x", DType.FP32, (1, 1, 3, 1))
        w = b.const(np.array([10, 20, 30], np.float32).reshape(1, 1, 3, 1))
        offset = b.const(np.array([bias], np.float32))
        zero = b.zero(DType.FP32)
        b.output(
            b.op(
                Op.TRANSPOSE_CONV2D,
                [x, w, offset, zero, zero],
                out_pad=window.pad,
                stride=window.stride,
                acc_type=DType.FP32,
            )
        )
        feed = np.array([1, 2, 3], np.float32).reshape(1, 1, 3, 1)
        assert run(kit, b.graph(), {"x": feed}).reshape(-1).tolist() == row


PRODUCTS = (
    (1, 1, 1, 1),
    (3, 37, 41, 29),
    (2, 7, 12, 8),
    (2, 9, 13, 4),
    (1, 1, 64, 100),
    (1, 100, 64, 1),
    (5, 3, 2, 6),
)


def check_matmul(
    kit: ContextKit,
    sizes: tuple[int, int, int, int],
    dtype: DType,
    *,
    out_type: DType,
    special: float = 0.0,
    known: bool = False,
) -> None:
    n, h, c, w = sizes
    a = values(dtype, (n, h, c), 5, special=special)
    m = values(dtype, (n, c, w), 6, special=special)
    b = Builder()
    left = b.input("a", dtype, a.shape)
    right = b.const(m, dtype) if known else b.input("b", dtype, m.shape)
    zero = b.zero(dtype)
    b.output(b.op(Op.MATMUL, [left, right, zero, zero], dtype=out_type))
    result = run(kit, b.graph(), {"a": a, "b": m})
    sums = np.zeros((n, h, w), np.float32)
    with np.errstate(all="ignore"):
        for k in range(c):
            sums = sums + wide(a)[:, :, k, None] * wide(m)[:, k, None, :]
    same(result, sums, out_type)


@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
def test_matmul(kit: ContextKit, sizes: tuple[int, int, int, int]) -> None:
    check_matmul(kit, sizes, DType.FP32, out_type=DType.FP32)


def test_matmul_of_special_values(kit: ContextKit) -> None:
    check_matmul(kit, (1, 9, 8, 5), DType.FP32, out_type=DType.FP32, special=0.1)


def test_matmul_with_a_known_factor(kit: ContextKit) -> None:
    check_matmul(kit, (2, 9, 8, 5), DType.FP32, out_type=DType.FP32, known=True)


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)
def test_narrow_matmul(kit: ContextKit, dtype: DType) -> None:
    out_type = DType.FP32 if dtype is DType.BF16 else result_type(dtype)
    check_matmul(kit, (2, 5, 7, 11), dtype, out_type=out_type)


def test_matmul_of_fp16_to_fp32(kit: ContextKit) -> None:
    check_matmul(kit, (2, 9, 8, 5), DType.FP16, out_type=DType.FP32)


POOL = Window((3, 2), (2, 1), pad=(1, 1, 1, 0))


def pool(kit: ContextKit, op: Op, dtype: DType, x: Array, mode: NanMode) -> Array:
    window = POOL.fitted((x.shape[1], x.shape[2]))
    b = Builder()
    source = b.input("x", dtype, x.shape)
    if op is Op.AVG_POOL2D:
        zero = b.zero(dtype)
        y = b.op(
            op,
            [source, zero, zero],
            kernel=window.kernel,
            stride=window.stride,
            pad=window.pad,
            acc_type=sum_type(dtype),
        )
    else:
        y = b.op(
            op,
            [source],
            kernel=window.kernel,
            stride=window.stride,
            pad=window.pad,
            nan_mode=mode,
        )
    b.output(y)
    return run(kit, b.graph(), {"x": x})


@pytest.mark.parametrize("special", [0.0, 0.1], ids=["finite", "special"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_avg_pool2d(kit: ContextKit, dtype: DType, special: float) -> None:
    x = values(dtype, (2, 7, 11, 5), 7, special=special)
    image = (x.shape[1], x.shape[2])
    window = POOL.fitted(image)
    sums = np.zeros((2, *window.size(image), 5), np.float32)
    counts = np.zeros((1, *window.size(image), 1), np.float32)
    with np.errstate(all="ignore"):
        for _, to, source in taps(window, image):
            sums[to] = sums[to] + wide(x)[source]
            counts[to] += 1
        expected = sums / counts
    same(pool(kit, Op.AVG_POOL2D, dtype, x, NanMode.PROPAGATE), expected, dtype)


@pytest.mark.parametrize("mode", NanMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_max_pool2d(kit: ContextKit, dtype: DType, mode: NanMode) -> None:
    x = values(dtype, (2, 7, 11, 5), 8, special=0.3)
    x[0, :4, :4] = np.nan
    x[0, 4:, 4:] = -np.inf if dtype is not DType.FP8E4M3 else -448.0
    image = (x.shape[1], x.shape[2])
    window = POOL.fitted(image)
    start = np.nan if mode is NanMode.IGNORE else -np.inf
    best = np.full((2, *window.size(image), 5), start, np.float32)
    for _, to, source in taps(window, image):
        old, new = best[to], wide(x)[source]
        larger = np.where(old >= new, old, new)
        either = np.isnan(old) | np.isnan(new)
        other = np.where(np.isnan(new), old, new)
        larger[either] = other[either] if mode is NanMode.IGNORE else np.nan
        best[to] = larger
    same(pool(kit, Op.MAX_POOL2D, dtype, x, mode), best, dtype)
