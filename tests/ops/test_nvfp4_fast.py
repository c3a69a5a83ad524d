"""Fast NVFP4 kernels: FP16 activations, FP32 sums, on devices that have them.

On a device without cooperative matrices the same programs run on strict kernels and
have to keep the strict bound. `make test-coopmat` runs this on a CPU driver that has
them.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.running import Devices
from tosavk.backends.nvfp4 import Nvfp4Session
from tosavk.backends.nvfp4_check import variants_of
from tosavk.backends.nvfp4_oracle import evaluate
from tosavk.core.plan import MatrixShape, Numerics, PlanLimits
from tosavk.lowering.nvfp4.artifact import Activation, Experts, Extra, Projection
from tosavk.lowering.nvfp4.fast import GEMM, gemm_tile
from tosavk.lowering.nvfp4.kernels import (
    FAST_KERNELS,
    SCALAR,
    SUBGROUP,
    Choice,
    choose,
)
from tosavk.lowering.nvfp4.lower import lower_nvfp4

Array = NDArray[Any]
NVIDIA = PlanLimits(
    max_storage_buffers=64,
    max_workgroup_invocations=1024,
    shared_bytes=49152,
    subgroup_size=32,
    matrix_shapes=(
        MatrixShape(16, 16, 16),
        MatrixShape(16, 8, 16),
        MatrixShape(16, 8, 8),
    ),
    lacks=(("matrices2", "not here"),),
)


def filled(program: Projection) -> dict[str, Array]:
    rng = np.random.default_rng(program.m)
    m, n, k = program.m, program.n, program.k
    rows = n if program.extras & Extra.ROW_SCALES else 1
    given: dict[str, Array] = {
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


def check(program: Projection, given: dict[str, Array], y: Array, kernel: str) -> None:
    """The bound of FP16-rounded activations with FP32 sums, or the strict one."""
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


def run(
    opened: Devices, spec: str, program: Projection, given: dict[str, Array]
) -> Array:
    accelerator = opened.accelerator(spec)
    with Nvfp4Session(accelerator, program, numerics=Numerics.FAST) as session:
        y = session.run(given)
        kernel = session.choice.kernel
        limits = accelerator.device.plan_limits
        if not limits.lack("matrices") and program.m > 8:
            assert kernel == GEMM, str(session.choice)
    check(program, given, y, kernel)
    return y


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *[(m, 9, 96) for m in (1, 2, 4, 7, 8)],
        *[(m, 9, 48) for m in (9, 12, 15, 16)],
        *[(m, 9, 48) for m in (33, 64, 70)],
        (70, 1, 16),
        (70, 65, 528),
        (64, 70, 1040),
    ],
)
def test_ragged_shapes(
    opened: Devices, vulkan_device: str, m: int, n: int, k: int
) -> None:
    program = Projection(m=m, n=n, k=k)
    run(opened, vulkan_device, program, filled(program))


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("extras", [Extra.NONE, Extra(7)])
def test_epilogues(
    opened: Devices, vulkan_device: str, activation: Activation, extras: Extra
) -> None:
    program = Projection(m=70, n=20, k=64, activation=activation, extras=extras)
    run(opened, vulkan_device, program, filled(program))


def test_nothing_of_a_ragged_edge_leaks(opened: Devices, vulkan_device: str) -> None:
    """A NaN in one row of weights stays there, one in a token stays in the token."""
    program = Projection(m=70, n=9, k=48)
    given = filled(program)
    given["scales"][8, 2] = 0x7F
    given["x"][69] = np.nan
    accelerator = opened.accelerator(vulkan_device)
    with Nvfp4Session(accelerator, program, numerics=Numerics.FAST) as session:
        y = session.run(given)
    assert np.isnan(y[:, 8]).all()
    assert np.isnan(y[69]).all()
    assert np.isfinite(y[:69, :8]).all()


def test_strict_is_not_fast(opened: Devices, vulkan_device: str) -> None:
    program = Projection(m=9, n=9, k=48)
    with Nvfp4Session(opened.accelerator(vulkan_device), program) as session:
        assert session.choice.kernel in (SUBGROUP, SCALAR)
        assert any("not strict" in r.reason for r in session.choice.rejected)


# The choice, without a device -------------------------------------------------------


def chosen(limits: PlanLimits = NVIDIA, **sizes: int) -> Choice:
    m, n, k = (sizes.get(name, 64) for name in "mnk")
    program = Projection(m=m, n=n, k=k)
    return choose(limits, program=program, numerics=Numerics.FAST)


def test_few_tokens_have_a_kernel_of_their_own() -> None:
    assert {chosen(m=m).kernel for m in range(1, 9)} == {SUBGROUP}
    assert {chosen(m=m).kernel for m in (9, 16, 4096)} == {GEMM}


@pytest.mark.parametrize(
    ("changes", "m", "reason"),
    [
        ({"lacks": (("matrices", "no extension"),)}, 64, "no extension"),
        ({"matrix_shapes": ()}, 64, "tile that fits"),
        ({"shared_bytes": 512}, 64, "tile that fits"),
    ],
)
def test_the_reason_why_a_fast_kernel_is_not_taken(
    changes: dict[str, Any], m: int, reason: str
) -> None:
    choice = chosen(dataclasses.replace(NVIDIA, **changes), m=m)
    assert choice.kernel == SUBGROUP
    (rejected,) = choice.rejected
    assert reason in rejected.reason
    assert f"not {rejected.kernel}: " in str(choice)


def test_a_failed_kernel_is_named() -> None:
    program = Projection(m=64, n=64, k=64)
    broken = {GEMM: "its known-answer test failed", SUBGROUP: "so did this"}
    choice = choose(NVIDIA, program=program, numerics=Numerics.FAST, broken=broken)
    assert choice.kernel == SCALAR
    assert [r.kernel for r in choice.rejected] == [GEMM, SUBGROUP]


@pytest.mark.parametrize("m", [9, 16, 17, 33, 64, 100, 128, 4096])
@pytest.mark.parametrize("shape", [(16, 16, 16), (16, 8, 16), (8, 8, 8), (8, 16, 16)])
@pytest.mark.parametrize("shared", [16384, 32768, 49152])
@pytest.mark.parametrize("subgroup", [8, 16, 32, 64])
def test_tiles_fit_the_device(
    m: int, shape: tuple[int, int, int], shared: int, subgroup: int
) -> None:
    limits = dataclasses.replace(
        NVIDIA,
        matrix_shapes=(MatrixShape(*shape),),
        shared_bytes=shared,
        subgroup_size=subgroup,
        max_workgroup_invocations=256,
    )
    tile = gemm_tile(m, limits)
    assert tile is not None
    assert tile.shared_bytes <= shared
    assert tile.width <= 256
    parts = (tile.m // tile.m_part) * (tile.n // tile.n_part)
    assert parts * subgroup == tile.width
    assert tile.m % tile.m_part == tile.n % tile.n_part == 0
    assert tile.m_part % shape[0] == tile.n_part % shape[1] == tile.k % shape[2] == 0


def test_the_plan_of_a_fast_product() -> None:
    program = Projection(m=70, n=40, k=48, extras=Extra.BIAS)
    plan = lower_nvfp4(program, limits=NVIDIA, numerics=Numerics.FAST).plan
    kernels = [dispatch.kernel for dispatch in plan.dispatches]
    assert kernels == ["nvfp4_halves", GEMM, "nvfp4_finish"]
    assert [dispatch.barrier for dispatch in plan.dispatches] == [False, True, True]
    assert plan.segments[0] == 4
    assert plan.constants[0].data.tobytes() == np.float32(1).tobytes()
    product = plan.dispatches[1]
    assert product.operands[0].words * 4 == plan.segments[2]
    assert product.columns % product.width == 0


def test_experts_take_strict_kernels() -> None:
    program = Experts.packed(batch=2, width=32, inner=32)
    lowered = lower_nvfp4(program, limits=NVIDIA, numerics=Numerics.FAST)
    assert {kernel for kernel, _ in variants_of(lowered)} == {SUBGROUP}
