"""Field cases about limits, features and kernels of devices: B11, B15, B16, B31, B32, C26, E19."""

import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from harness import families
from harness.plan_limits import H200
from harness.running import Devices, same_values
from harness.vulkan_door import Door, KeptInstance
from tosavk.backends.session import Session, lower_on
from tosavk.backends.vulkan import _ffi
from tosavk.backends.vulkan._ffi import const
from tosavk.backends.vulkan.device import VulkanDevice
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.pipelines import group_counts, group_width
from tosavk.backends.vulkan.probe import matrix_shapes, read_records
from tosavk.backends.vulkan.records import (
    COOPERATIVE_MATRIX,
    DeviceRecord,
    Features,
    Limits,
)
from tosavk.backends.vulkan.suitability import matrix_lack, select
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import DType
from tosavk.core.plan import Dispatch, MatrixShape, Numerics, PlanLimits
from tosavk.lowering.nvfp4.artifact import Projection
from tosavk.lowering.nvfp4.kernels import SCALAR, SUBGROUP, choose
from tosavk.lowering.nvfp4.tiles import FRAGMENTS, GEMM, GEMV
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.shaders.catalogue import Work, kernels

# Fewer than these no device may offer (Vulkan 1.3, "Required Limits").
LEAST = Limits()
SMALL = (
    "unary FP32",
    "totals FP32",
    "products FP32",
    "transforms FP32",
    "integers INT32",
    "small integers INT8",
    "logic BOOL",
)


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def instance(door: Door) -> Iterator[KeptInstance]:
    kept = KeptInstance(door)
    yield kept
    kept.destroy()


def smallest(instance: KeptInstance, spec: str) -> VulkanDevice:
    """The device of a lane, which says that it has no more than it must have."""
    found = read_records(instance)
    record = select([record for record, _ in found], spec.partition(":")[2])
    limits = dataclasses.replace(
        LEAST,
        # What is measured, not granted.
        stage_storage_buffers=record.limits.stage_storage_buffers,
        storage_offset_alignment=record.limits.storage_offset_alignment,
        subgroup_size=4,
        subgroup_sizes=(4, 4),
        subgroup_stages=record.limits.subgroup_stages,
        subgroup_operations=0,
    )
    small = dataclasses.replace(record, limits=limits)
    return VulkanDevice(
        instance, small, found[record.index][1], VulkanOptions(pipeline_cache=False)
    )


# B11 ------------------------------------------------------------------------------


def test_the_operators_run_within_the_least_limits_b11(
    opened: Devices, vulkan_device: str, instance: KeptInstance
) -> None:
    """128 invocations, 16 KiB of shared memory, subgroups of 4 that do not shuffle."""
    with Accelerator(smallest(instance, vulkan_device)) as accelerator:
        assert accelerator.device.plan_limits.max_workgroup_invocations == 128
        assert accelerator.device.plan_limits.shared_bytes == 16384
        for name in SMALL:
            program = families.make(name)
            graph = load_graph(program.build.build())
            with Session(accelerator, lower_on(accelerator.device, graph)) as session:
                found = session.run(program.inputs)
            expected = opened.run(vulkan_device, graph, program.inputs)
            for output, array in expected.items():
                assert same_values(array, found[output]), (name, output)


@pytest.mark.parametrize("invocations", [1024, 256, 128])
@pytest.mark.parametrize("wide", [1024, 256, 128, 64])
def test_work_groups_fit_every_limit_b11_c26(invocations: int, wide: int) -> None:
    """Of all kernels that any device gets; only x is ever used."""
    limits = dataclasses.replace(
        LEAST, group_invocations=invocations, group_size=(wide, wide, 64)
    )
    for kernel in kernels().values():
        if kernel.needs.startswith("matrices"):
            continue  # chosen by tiles that fit (tests/unit/test_nvfp4_choice.py)
        width = group_width(kernel, limits)
        assert 0 < width <= min(invocations, wide), kernel.name


# C26 ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1000), (1000, 1, 1), (5, 7, 300)])
def test_long_thin_outputs_c26(
    opened: Devices, gpu_device: str, shape: tuple[int, int, int]
) -> None:
    b = Builder()
    x = b.input("x", DType.INT32, shape)
    b.output(b.reduce_sum(b.add(x, x, name="twice"), 2))
    b.output(b.transpose(x, (2, 0, 1)))
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    total, turned = opened.run(gpu_device, b.build(), {"x": values}).values()
    assert np.array_equal(total, (2 * values).sum(2, keepdims=True, dtype=np.int32))
    assert np.array_equal(turned, values.transpose(2, 0, 1))


@pytest.mark.parametrize("count", [(65535, 65535, 65535), (1024, 1024, 64), (7, 5, 3)])
def test_groups_stay_within_each_dimension_c26(count: tuple[int, int, int]) -> None:
    limits = dataclasses.replace(LEAST, group_count=count)
    for kernel in kernels().values():
        if kernel.work is Work.GROUPS:
            continue
        width = group_width(kernel, limits)
        tiles = 1 if kernel.work is Work.LINEAR else 3
        dispatch = Dispatch(
            kernel=kernel.name,
            spec=(),
            params=(),
            operands=(),
            columns=width * count[0],
            tiles=tiles,
            barrier=False,
            operator=0,
        )
        found = group_counts(kernel, width, dispatch, limits)
        assert all(n <= most for n, most in zip(found, count, strict=True))
        assert found[0] * found[1] * found[2] * width >= dispatch.columns * tiles


# B15 ------------------------------------------------------------------------------

QUERY = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
ENTRY = "VkCooperativeMatrixPropertiesKHR"


def listing(entries: list[dict[str, Any]]) -> Callable[..., int]:
    def answer(physical: Any, count: Any, found: Any) -> int:  # noqa: ANN401
        del physical
        if found == _ffi.NULL:
            count[0] = len(entries)
            return 0
        for i, entry in enumerate(entries[: count[0]]):
            # The driver may look at it, so each element must say what it is.
            assert found[i].sType == _ffi.structure_type(ENTRY)
            assert found[i].pNext == _ffi.NULL
            for name, value in entry.items():
                setattr(found[i], name, value)
        return 0

    return answer


def shape(m: int, n: int, k: int, **changes: int) -> dict[str, Any]:
    half, single = const.COMPONENT_TYPE_FLOAT16_KHR, const.COMPONENT_TYPE_FLOAT32_KHR
    return {
        "MSize": m,
        "NSize": n,
        "KSize": k,
        "AType": half,
        "BType": half,
        "CType": single,
        "ResultType": single,
        "scope": const.SCOPE_SUBGROUP_KHR,
        **changes,
    }


HALF = {
    "CType": const.COMPONENT_TYPE_FLOAT16_KHR,
    "ResultType": const.COMPONENT_TYPE_FLOAT16_KHR,
}
BYTES = {
    "AType": const.COMPONENT_TYPE_SINT8_KHR,
    "BType": const.COMPONENT_TYPE_SINT8_KHR,
    "CType": const.COMPONENT_TYPE_SINT32_KHR,
    "ResultType": const.COMPONENT_TYPE_SINT32_KHR,
}
WORKGROUP = {"scope": const.SCOPE_WORKGROUP_KHR}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], ()),
        ([shape(8, 8, 8, **HALF)], ()),
        ([shape(16, 16, 16)], (MatrixShape(16, 16, 16),)),
        ([shape(16, 16, 32, **BYTES)], ()),
        ([shape(16, 16, 16, **WORKGROUP)], ()),
        (
            [shape(16, 8, 16), shape(16, 16, 16, **HALF), shape(16, 8, 16)],
            (MatrixShape(16, 8, 16),),
        ),
    ],
)
def test_shapes_of_matrices_are_read_b15_b16(
    entries: list[dict[str, Any]], expected: tuple[MatrixShape, ...]
) -> None:
    calls: Any = SimpleNamespace(**{QUERY: listing(entries)})
    assert matrix_shapes(calls, _ffi.NULL) == expected


def answers(code: int) -> Callable[..., int]:
    def answer(*_: object) -> int:
        return code

    return answer


@pytest.mark.parametrize("code", [-1, -13, -1_000_999_888])
def test_a_driver_that_cannot_tell_its_matrices_has_none_b15(code: int) -> None:
    calls: Any = SimpleNamespace(**{QUERY: answers(code)})
    assert matrix_shapes(calls, _ffi.NULL) == ()


def test_without_the_extension_there_are_none_and_a_reason_b15(
    vulkan_device: str, instance: KeptInstance
) -> None:
    assert matrix_shapes(cast("Any", SimpleNamespace()), _ffi.NULL) == ()
    without: Any = SimpleNamespace(**{QUERY: None})
    assert matrix_shapes(without, _ffi.NULL) == ()
    found = [record for record, _ in read_records(instance)]
    record = select(found, vulkan_device.partition(":")[2])
    if COOPERATIVE_MATRIX not in record.extensions:
        assert record.matrix_shapes == ()
        assert COOPERATIVE_MATRIX in matrix_lack(record)


# E19 ------------------------------------------------------------------------------

NONE: frozenset[str] = frozenset()
NOTHING: dict[str, Any] = {}
OFFERED = Features(
    cooperative_matrix=True,
    vulkan_memory_model=True,
    memory_model_device_scope=True,
    shader_float16=True,
    storage_16bit=True,
    shader_int16=True,
)
WITH_MATRICES = DeviceRecord(
    index=0,
    name="d",
    driver="v",
    extensions=frozenset({COOPERATIVE_MATRIX}),
    features=OFFERED,
    limits=Limits(
        subgroup_size=32,
        subgroup_stages=int(const.SHADER_STAGE_COMPUTE_BIT),
        subgroup_operations=0xFF,
    ),
    matrix_shapes=(MatrixShape(16, 16, 16),),
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (NOTHING, ""),
        ({"extensions": NONE}, f"the driver has no {COOPERATIVE_MATRIX}"),
        ({"matrix_shapes": ()}, "no cooperative matrix of FP16 with FP32 sums"),
        (
            {"features": dataclasses.replace(OFFERED, shader_float16=False)},
            "the driver lacks the feature shaderFloat16",
        ),
        (
            {"limits": Limits(subgroup_size=1, subgroup_stages=32)},
            "subgroups of the device do not shuffle",
        ),
        ({"switches": frozenset({"no-coopmat"})}, "no-coopmat"),
    ],
)
def test_every_way_to_lack_matrices_has_its_reason_e19(
    changes: dict[str, Any], reason: str
) -> None:
    lack = matrix_lack(dataclasses.replace(WITH_MATRICES, **changes))
    assert reason in lack
    assert bool(reason) == bool(lack)


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, GEMV),
        ({"matrix_shapes": ()}, SUBGROUP),
        ({"subgroup_size": 4, "matrix_shapes": ()}, SUBGROUP),
        ({"lacks": (("matrices", "no"), ("matrices2", "no"))}, SUBGROUP),
        (
            {
                "lacks": (("matrices", "no"), ("matrices2", "no"), ("subgroup", "no")),
                "subgroup_size": 0,
            },
            SCALAR,
        ),
    ],
)
def test_the_choice_has_a_reason_for_each_better_kernel_b16_e19(
    changes: dict[str, Any], kernel: str
) -> None:
    limits: PlanLimits = dataclasses.replace(H200, **changes)
    program = Projection(m=17, n=33, k=48 if kernel != GEMV else 64)
    choice = choose(limits, program=program, numerics=Numerics.FAST)
    if kernel == GEMV:
        assert choice.kernel in (GEMV, FRAGMENTS, GEMM)
    else:
        assert choice.kernel == kernel
    assert all(item.reason for item in choice.rejected)
    assert choice.kernel in str(choice)


# B31, B32 -------------------------------------------------------------------------


def test_no_kernel_takes_more_than_128_bytes_of_parameters_b31() -> None:
    assert max(4 * len(kernel.params) for kernel in kernels().values()) <= 128


def test_narrow_types_work_without_narrow_storage_b32(
    opened: Devices, vulkan_device: str, instance: KeptInstance
) -> None:
    """Devices without 8-bit and 16-bit storage: neighbours in one word stay."""
    found = read_records(instance)
    record = select([r for r, _ in found], vulkan_device.partition(":")[2])
    features = dataclasses.replace(
        record.features,
        storage_8bit=False,
        storage_16bit=False,
        shader_int8=False,
        shader_int16=False,
        shader_float16=False,
    )
    bare = dataclasses.replace(record, features=features)
    b = Builder()
    x = b.input("x", DType.INT8, (5,))
    f = b.input("f", DType.FP16, (3,))
    b.output(b.add(b.cast(x, DType.INT32), b.cast(x, DType.INT32)))
    b.output(b.greater(b.cast(x, DType.FP32), b.cast(b.identity(x), DType.FP32)))
    for result in (b.reverse(x, 0), b.add(f, f), b.cast(f, DType.INT8)):
        b.output(result)
    graph = load_graph(b.build())
    inputs = {
        "x": np.asarray([-128, 127, -1, 0, 5], np.int8),
        "f": np.asarray([1.5, -2.25, 1024.0], np.float16),
    }
    device = VulkanDevice(
        instance, bare, found[record.index][1], VulkanOptions(pipeline_cache=False)
    )
    with (
        Accelerator(device) as accelerator,
        Session(accelerator, lower_on(accelerator.device, graph)) as session,
    ):
        bare_results = session.run(inputs)
    for name, array in opened.run(vulkan_device, graph, inputs).items():
        assert same_values(array, bare_results[name]), name
