"""Which NVFP4 kernel a device gets, with made-up devices: no driver is asked."""

import dataclasses
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from harness.plan_limits import H200, NAVI31
from tosavk.backends.nvfp4_check import variants_of
from tosavk.core.errors import InvalidArgument, ResourceLimit
from tosavk.core.plan import MatrixGrid, MatrixShape, Numerics, PlanLimits
from tosavk.lowering.nvfp4.artifact import (
    Activation,
    Experts,
    Extra,
    Mode,
    Program,
    Projection,
)
from tosavk.lowering.nvfp4.kernels import (
    NAMES,
    SCALAR,
    SLOWER,
    SUBGROUP,
    Choice,
    choose,
    kernel_named,
)
from tosavk.lowering.nvfp4.lower import lower_nvfp4
from tosavk.lowering.nvfp4.pipelines import pipelines
from tosavk.lowering.nvfp4.tiles import (
    FRAGMENTS,
    GEMM,
    GEMV,
    NV,
    fragment_tile,
    gemm_tile,
    gemv_tile,
)

pytestmark = pytest.mark.nvfp4

WITHOUT = {"matrices2": "no extension", "matrices": "no extension", "subgroup": "none"}


def chosen(limits: PlanLimits = H200, *, asked: str = "", **sizes: int) -> Choice:
    m, n, k = (sizes.get(name, 64) for name in "mnk")
    program = Projection(m=m, n=n, k=k)
    return choose(limits, program=program, numerics=Numerics.FAST, asked=asked)


def reason(choice: Choice, kernel: str) -> str:
    (found,) = (r.reason for r in choice.rejected if r.kernel == kernel)
    assert f"; not {kernel}: {found}" in str(choice)
    return found


def test_few_tokens_have_a_kernel_of_their_own() -> None:
    assert {chosen(m=m).kernel for m in range(1, 33)} == {GEMV}
    assert {chosen(m=m).kernel for m in (33, 64, 4096)} == {FRAGMENTS}
    assert chosen(m=1, k=48).kernel == SUBGROUP
    assert {chosen(m=m, k=48).kernel for m in (9, 64)} == {GEMM}


@pytest.mark.parametrize(
    ("changes", "m", "k", "kernel", "expected"),
    [
        ({"lacks": (("matrices", "no extension"),)}, 64, 64, GEMM, "no extension"),
        ({"lacks": (("matrices", "no extension"),)}, 1, 64, GEMV, "no extension"),
        ({"matrix_shapes": ()}, 64, 64, GEMM, "no cooperative matrix that the kernel"),
        ({"matrix_shapes": ()}, 1, 64, GEMV, "no 16x8x16 cooperative matrix"),
        (
            {"matrix_shapes": H200.matrix_shapes[1:]},
            64,
            64,
            FRAGMENTS,
            "no 16x16x16 cooperative",
        ),
        ({"shared_bytes": 512}, 64, 64, GEMM, "no tile fits 512 bytes of shared"),
        ({"shared_bytes": 512}, 64, 64, FRAGMENTS, "no tile fits 512 bytes of shared"),
        ({"shared_bytes": 512}, 4, 64, GEMV, "no tile fits 512 bytes of shared"),
        ({"max_workgroup_invocations": 16}, 4, 64, GEMV, "and 16 invocations"),
        ({"subgroup_size": 64}, 1, 64, GEMV, "subgroups have 64 invocations, not 32"),
        ({"subgroup_size": 8}, 99, 64, FRAGMENTS, "subgroups have 8 invocations"),
        ({}, 1, 48, GEMV, "k = 48 is no multiple of 32"),
        ({}, 64, 48, FRAGMENTS, "k = 48 is no multiple of 32"),
        ({"max_storage_buffers": 4}, 1, 64, GEMV, "binds 5 storage buffers"),
        ({"lacks": (("matrices2", "half of it"),)}, 64, 64, NV, "half of it"),
        ({}, 64, 64, NV, "kernel='nv' asks for it"),
    ],
)
def test_the_reason_why_a_better_kernel_is_not_taken(
    changes: dict[str, Any], m: int, k: int, kernel: str, expected: str
) -> None:
    limits = dataclasses.replace(H200, **changes)
    if limits.max_storage_buffers < 5:
        with pytest.raises(ResourceLimit, match=expected):
            chosen(limits, m=m, k=k)
        return
    choice = chosen(limits, m=m, k=k)
    assert choice.kernel != kernel
    assert expected in reason(choice, kernel)


def test_strict_programs_name_every_fast_kernel() -> None:
    for m, names in ((4, {GEMV}), (20, {NV, GEMV, FRAGMENTS, GEMM})):
        choice = choose(H200, program=Projection(m=m, n=64, k=64))
        assert choice.kernel == SUBGROUP
        assert {r.kernel for r in choice.rejected} == names
        assert all("not strict" in r.reason for r in choice.rejected)


def test_a_failed_kernel_is_named() -> None:
    program = Projection(m=64, n=64, k=64)
    broken = {FRAGMENTS: "wrong", GEMM: "wrong, too", SUBGROUP: "so did this"}
    choice = choose(H200, program=program, numerics=Numerics.FAST, broken=broken)
    assert choice.kernel == SCALAR
    assert [r.kernel for r in choice.rejected] == [NV, FRAGMENTS, GEMM, SUBGROUP]
    assert reason(choice, GEMM) == "wrong, too"


@pytest.mark.parametrize(("name", "kernel"), NAMES.items())
def test_the_kernel_that_is_asked_for(name: str, kernel: str) -> None:
    assert kernel_named(name) == kernel_named(kernel) == kernel
    for m in (1, 20, 512):
        choice = chosen(m=m, asked=kernel)
        assert choice.kernel == kernel
        assert choice.rejected == ()
        assert (choice.tile is None) == (kernel in (SCALAR, SUBGROUP))


def test_a_kernel_that_cannot_be_had() -> None:
    assert kernel_named("") == ""
    with pytest.raises(InvalidArgument, match="'cublas' is unknown; choose one of sca"):
        kernel_named("cublas")
    with pytest.raises(ResourceLimit, match="nvfp4_gemv: k = 48"):
        chosen(m=1, k=48, asked=GEMV)
    bare = dataclasses.replace(H200, lacks=tuple(WITHOUT.items()))
    for kernel in (NV, GEMM, SUBGROUP):
        with pytest.raises(ResourceLimit, match=f"{kernel}: no"):
            chosen(bare, asked=kernel)
    assert chosen(bare).kernel == SCALAR
    experts = Experts.packed(batch=2, width=32, inner=32)
    for program in (experts, Projection(m=2, n=64, k=64, mode=Mode.BATCHED)):
        with pytest.raises(ResourceLimit, match="tokens that share one matrix"):
            choose(H200, program=program, numerics=Numerics.FAST, asked=GEMM)
    reference = PlanLimits(lacks=(("kernels", "NumPy"),))
    with pytest.raises(ResourceLimit, match="no kernel nvfp4_gemm_nv: the dev"):
        lower_nvfp4(experts, limits=reference, asked=NV)


TOKENS = [1, 5, 8, 9, 16, 17, 32, 33, 64, 100, 128, 129, 4096]


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(
    "shape",
    [
        *((16, 16, 16), (16, 8, 16), (8, 8, 8), (8, 16, 16), (16, 8, 8)),
        *((8, 4, 8), (32, 32, 16), (64, 32, 32), (64, 64, 64)),
    ],
)
def test_tiles_of_any_matrix_fit_the_device(
    m: int, shape: tuple[int, int, int]
) -> None:
    sizes = (32768, 49152) if shape[0] * shape[1] > 256 else (16384, 32768, 49152)
    for shared, subgroup in itertools.product(sizes, (8, 16, 32, 64)):
        limits = dataclasses.replace(
            H200,
            matrix_shapes=(MatrixShape(*shape),),
            shared_bytes=shared,
            subgroup_size=subgroup,
            max_workgroup_invocations=256,
        )
        tile, _ = gemm_tile(m, limits)
        assert tile is not None
        assert tile.shared_bytes <= shared
        assert tile.width <= 256
        parts = (tile.m // tile.m_part) * (tile.n // tile.n_part)
        assert parts * subgroup == tile.width
        assert tile.m % tile.m_part == tile.n % tile.n_part == tile.k % shape[2] == 0
        assert tile.m_part * tile.n_part <= max(2048, shape[0] * shape[1])
        assert tile.m_part % shape[0] == tile.n_part % shape[1] == 0


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(
    ("n", "k"), [(1, 32), (64, 4096), (4096, 14336), (14336, 4096), (9, 65536)]
)
def test_tiles_of_fragments_fit_the_device(m: int, n: int, k: int) -> None:
    program = Projection(m=m, n=n, k=k)
    for shared, invocations, units in itertools.product(
        (16384, 49152), (128, 256, 1024), (0, 20, 132)
    ):
        limits = dataclasses.replace(
            H200,
            shared_bytes=shared,
            max_workgroup_invocations=invocations,
            compute_units=units,
        )
        tile, _ = gemv_tile(program, limits)
        assert tile is not None
        assert tile.shared_bytes <= shared
        assert tile.width <= invocations
        if not tile.halves:
            assert m <= tile.room_tokens <= 8
            assert tile.own or k <= 128 * tile.room_chunks
        product = tile.steps(program, Activation.NONE).product
        assert product.columns // tile.width * tile.rows >= n
        assert product.tiles * 8 * tile.token_tiles >= m
        other, _ = fragment_tile(program, limits)
        if invocations > 128 or shared > 16384:
            assert other is not None
            assert other.shared_bytes <= shared
            assert other.width <= invocations


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize("kernel", [GEMV, FRAGMENTS, GEMM, NV])
def test_a_trial_gets_the_words_of_what_it_stands_for(m: int, kernel: str) -> None:
    """Only words that say where operands lie may differ, and no room is too small."""
    program = Projection(m=m, n=4096, k=4096, activation=Activation.SILU)
    tile = chosen(m=m, n=4096, k=4096, asked=kernel).tile
    assert tile is not None
    trial = Projection(m=tile.trial.m, n=tile.trial.n, k=tile.trial.k)
    assert trial.k % 32 == 0
    geometry = {"M", "N", "K", "DEPTH"}
    steps = [tile.steps(one, Activation.SILU) for one in (program, trial)]
    first, second = (
        {name: word for name, word in step.product.spec.items() if name not in geometry}
        for step in steps
    )
    assert first == second
    assert (steps[0].halves is None) == (steps[1].halves is None)
    if first.get("HALVES") == 0:
        assert trial.m <= first["ROOM_TOKENS"]
        assert trial.k <= 128 * first["ROOM_CHUNKS"]


@pytest.mark.parametrize(
    ("m", "k", "kernel", "before"),
    [
        (70, 48, GEMM, ["nvfp4_halves"]),
        (70, 64, FRAGMENTS, ["nvfp4_halves"]),
        (5, 64, GEMV, []),
        (8, 14336, GEMV, []),
        (20, 64, GEMV, ["nvfp4_halves"]),
    ],
)
def test_the_plan_of_a_fast_product(
    m: int, k: int, kernel: str, before: list[str]
) -> None:
    program = Projection(m=m, n=40, k=k, extras=Extra.BIAS)
    plan = lower_nvfp4(program, limits=H200, numerics=Numerics.FAST).plan
    assert [d.kernel for d in plan.dispatches] == [*before, kernel, "nvfp4_finish"]
    assert [d.barrier for d in plan.dispatches] == [False, *[True] * (1 + len(before))]
    assert plan.segments[0] == 4
    assert plan.constants[0].data.tobytes() == np.float32(1).tobytes()
    product = plan.dispatches[-2]
    assert product.columns % product.width == 0
    if before:
        assert product.barrier
        assert product.operands[0].words * 4 == plan.segments[2]
    else:
        assert not product.barrier
        assert product.operands[0].buffer == 0
    plain = lower_nvfp4(
        Projection(m=m, n=40, k=k, activation=Activation.SILU),
        limits=H200,
        numerics=Numerics.FAST,
    ).plan
    assert [d.kernel for d in plain.dispatches] == [*before, kernel]
    assert plain.dispatches[-1].operands[-1].buffer == plain.outputs[0].index


@pytest.mark.parametrize(
    "program",
    [
        Experts.packed(batch=2, width=32, inner=32),
        Projection(m=6, n=32, k=32, mode=Mode.BATCHED),
        Projection(m=6, n=32, k=32, mode=Mode.EXPERTS),
    ],
)
def test_matrices_of_their_own_take_strict_kernels(program: Program) -> None:
    lowered = lower_nvfp4(program, limits=H200, numerics=Numerics.FAST)
    assert {kernel for kernel, _ in variants_of(lowered)} == {SUBGROUP}


def test_the_pipelines_of_a_device() -> None:
    kinds = Counter(p.kernel for p in pipelines(H200))
    assert {GEMV, FRAGMENTS, GEMM, SUBGROUP, SCALAR} < set(kinds)
    for size in (32, 64):
        limits = dataclasses.replace(NAVI31, subgroup_size=size)
        found = pipelines(limits)
        matrices = [p for p in found if p.kernel == GEMM]
        assert {p.subgroup_size for p in matrices} == {size}
        assert {p.words[0] % size for p in matrices} == {0}
        assert all(p.full_subgroups for p in matrices)
        assert {p.subgroup_size for p in found if p.kernel == SUBGROUP} == {32}
        assert (GEMV in kinds) > any(p.kernel == GEMV for p in found)
    bare = PlanLimits(max_storage_buffers=8)
    assert {p.kernel for p in pipelines(bare)} == {SCALAR}


def test_nv_matrices_are_named_with_the_way_to_get_them() -> None:
    assert reason(chosen(m=4096, n=4096, k=4096), NV) == SLOWER
    choice = chosen(m=4096, n=4096, k=4096, asked=NV)
    assert choice.tile is not None
    program = Projection(m=4096, n=4096, k=4096)
    steps = choice.tile.steps(program, Activation.NONE)
    assert steps.product.spec["CLAMP"] == 0
    none = dataclasses.replace(H200, matrix_grids=(MatrixGrid(96, 96, 16, 256),))
    assert "no matrix of a work group" in reason(chosen(none, m=64), NV)
