"""Fast NVFP4 kernels: FP16 activations, FP32 sums, on devices that have them.

On a device without cooperative matrices the same programs run on strict kernels and
have to keep the strict bound. `make test-coopmat` runs this on a CPU driver that has
them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.running import Devices
from tosavk.backends.nvfp4 import Nvfp4Session
from tosavk.backends.nvfp4_oracle import evaluate
from tosavk.core import nvfp4
from tosavk.core.errors import ResourceLimit
from tosavk.core.plan import Numerics
from tosavk.lowering.nvfp4.artifact import Activation, Extra, Projection
from tosavk.lowering.nvfp4.kernels import FAST_KERNELS, SCALAR, SUBGROUP, choose

pytestmark = pytest.mark.nvfp4

Array = NDArray[Any]
Given = dict[str, Array]


def filled(program: Projection) -> Given:
    rng = np.random.default_rng(program.m)
    m, n, k = program.m, program.n, program.k
    rows = n if program.extras & Extra.ROW_SCALES else 1
    given: Given = {
        "x": rng.standard_normal((m, k)).astype(np.float32),
        "packed": rng.integers(0, 256, (n, k // 2)).astype(np.uint8),
        "scales": rng.integers(0, 127, (n, k // 16)).astype(np.uint8),
        "tensor_scale": rng.uniform(1e-3, 2e-3, rows).astype(np.float32),
    }
    if program.extras & Extra.BIAS:
        given["bias"] = rng.standard_normal(n).astype(np.float32)
    if program.extras & Extra.RESIDUAL:
        given["residual"] = rng.standard_normal((m, n)).astype(np.float32)
    return given


def check(program: Projection, given: Given, y: Array, kernel: str) -> None:
    """The bounds of docs/nvfp4.md, "The strict sum": of fast kernels, or strict ones.

    Fast: activations rounded to FP16, sums in FP32 that may round towards zero.
    """
    exact = evaluate(program, given)
    fast = kernel in FAST_KERNELS
    rounded = {**given, "x": given["x"].astype(np.float16).astype(np.float32)}
    answer = evaluate(program, rounded) if fast else exact
    sums = (program.k + 64) * 2.0 ** (-22 if fast else -23) * answer.size
    slope: Any = 1.1
    if program.activation is Activation.SQUARED_RELU:
        slope = 2 * np.abs(answer.before) + sums
    allowed = slope * sums + 2.0**-18 * np.abs(answer.y)
    assert (np.abs(y - answer.y) <= allowed).all()
    relative = np.linalg.norm(y - exact.y) / np.linalg.norm(exact.y)
    assert relative <= 1e-2


def runs(
    opened: Devices, spec: str, program: Projection, given: Given
) -> Iterator[tuple[str, Array]]:
    """The results of the kernel that the device is due, and of all other fast ones."""
    accelerator = opened.accelerator(spec)
    limits = accelerator.device.plan_limits
    fast = Numerics.FAST
    done: set[str] = set()
    for asked in ("", *FAST_KERNELS):
        try:
            due = choose(limits, program=program, numerics=fast, asked=asked).kernel
        except ResourceLimit:
            continue
        if due in done:
            continue
        done.add(due)
        with Nvfp4Session(accelerator, program, numerics=fast, kernel=asked) as session:
            # Not another one because its known-answer test failed.
            assert session.choice.kernel == due, str(session.choice)
            yield due, session.run(given)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *[(m, 9, 96) for m in (1, 2, 4, 7, 8)],
        *[(m, 9, 48) for m in (9, 12, 15, 16)],
        *[(m, 9, 48) for m in (33, 64, 70)],
        (1, 300, 1056),
        (3, 137, 4128),
        (8, 41, 8224),
        (12, 130, 544),
        (29, 70, 1056),
        (70, 1, 16),
        (70, 65, 528),
        (64, 70, 1056),
        (130, 301, 608),
        (256, 512, 256),
    ],
)
def test_ragged_shapes(
    opened: Devices, vulkan_device: str, m: int, n: int, k: int
) -> None:
    program = Projection(m=m, n=n, k=k)
    given = filled(program)
    for kernel, y in runs(opened, vulkan_device, program, given):
        check(program, given, y, kernel)


def test_every_count_of_tokens(opened: Devices, vulkan_device: str) -> None:
    for m in range(1, 71):
        program = Projection(m=m, n=5, k=32)
        given = filled(program)
        for kernel, y in runs(opened, vulkan_device, program, given):
            check(program, given, y, kernel)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("extras", [Extra.NONE, Extra.BIAS, Extra(7)])
@pytest.mark.parametrize("m", [5, 70])
def test_epilogues(
    opened: Devices,
    vulkan_device: str,
    m: int,
    activation: Activation,
    extras: Extra,
) -> None:
    program = Projection(m=m, n=20, k=64, activation=activation, extras=extras)
    given = filled(program)
    for kernel, y in runs(opened, vulkan_device, program, given):
        check(program, given, y, kernel)


@pytest.mark.parametrize("m", [3, 20, 70])
def test_nothing_of_a_ragged_edge_leaks(
    opened: Devices, vulkan_device: str, m: int
) -> None:
    """A NaN in one row of weights stays there, one in a token stays in the token."""
    program = Projection(m=m, n=9, k=96)
    given = filled(program)
    given["scales"][8, 5] = 0x7F
    given["x"][m - 1] = np.nan
    for kernel, y in runs(opened, vulkan_device, program, given):
        assert np.isnan(y[:, 8]).all(), kernel
        assert np.isnan(y[m - 1]).all(), kernel
        assert np.isfinite(y[: m - 1, :8]).all(), kernel


@pytest.mark.parametrize(("m", "k"), [(16, 16), (8, 32), (16, 32), (48, 32)])
def test_every_code_times_every_scale(
    opened: Devices, vulkan_device: str, m: int, k: int
) -> None:
    """Row r has scale r and all codes; token t picks element t: every product alone."""
    program = Projection(m=m, n=256, k=k)
    codes = np.zeros((256, k), np.uint8)
    codes[:, k - 16 :] = np.arange(16)
    scales = np.zeros((256, k // 16), np.uint8)
    scales[:, -1] = np.arange(256)
    picked = np.arange(m) % 16 if m >= 16 else np.arange(m) * 2 + 1
    x = np.zeros((m, k), np.float32)
    x[np.arange(m), k - 16 + picked] = 1
    given: Given = {
        "x": x,
        "packed": nvfp4.pack_codes(codes),
        "scales": scales,
        "tensor_scale": np.ones(1, np.float32),
    }
    expected = nvfp4.CODE_VALUES[picked][:, None] * nvfp4.SCALE_VALUES
    for kernel, y in runs(opened, vulkan_device, program, given):
        np.testing.assert_array_equal(y, expected, err_msg=kernel)


@pytest.mark.parametrize("m", [1, 70])
def test_zero_blocks_and_large_activations(
    opened: Devices, vulkan_device: str, m: int
) -> None:
    """Zero blocks give 0; what FP16 cannot hold is infinite there, and only there."""
    program = Projection(m=m, n=4, k=64)
    weights = nvfp4.quantize(np.ones((4, 64)))
    packed, scales = weights.packed.copy(), weights.block_scales.copy()
    packed[1] = scales[1] = 0
    packed[2, :8] = 0
    x = np.full((m, 64), 3.0, np.float32)
    x[0, 40] = 1e5
    given: Given = {
        "x": x,
        "packed": packed,
        "scales": scales,
        "tensor_scale": weights.tensor_scale,
    }
    expected = np.broadcast_to([192.0, 0.0, 144.0, 192.0], (m, 4))
    for kernel, y in runs(opened, vulkan_device, program, given):
        if kernel in FAST_KERNELS:
            assert np.isposinf(y[0, [0, 2, 3]]).all(), kernel
            assert np.isnan(y[0, 1]), kernel  # infinity times zero
        np.testing.assert_allclose(y[1:], expected[1:], rtol=1e-6, err_msg=kernel)


def test_strict_is_not_fast(opened: Devices, vulkan_device: str) -> None:
    program = Projection(m=9, n=9, k=48)
    with Nvfp4Session(opened.accelerator(vulkan_device), program) as session:
        assert session.choice.kernel in (SUBGROUP, SCALAR)
        assert any("not strict" in r.reason for r in session.choice.rejected)


def test_a_kernel_that_is_asked_for(opened: Devices, gpu_device: str) -> None:
    program = Projection(m=9, n=9, k=48)
    accelerator = opened.accelerator(gpu_device)
    for kernel in ("scalar", SCALAR):
        with Nvfp4Session(accelerator, program, kernel=kernel) as session:
            assert session.choice.kernel == SCALAR
            assert session.choice.rejected == ()
    with pytest.raises(ResourceLimit, match="khr: its results are not strict"):
        Nvfp4Session(accelerator, program, kernel="khr")
