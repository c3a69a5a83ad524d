"""Cooperative matrices as drivers offer them: what is lacking, and their sizes."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tosavk.backends.vulkan import probe
from tosavk.backends.vulkan.device import plan_limits
from tosavk.backends.vulkan.records import DeviceRecord, Features, Limits
from tosavk.core.plan import MatrixGrid, MatrixShape

HALF, SINGLE, WORKGROUP, SUBGROUP = 0, 1, 2, 3
EVERYTHING = DeviceRecord(
    index=0,
    name="Example 9000",
    driver="exadrv, 1.2.3",
    features=Features(
        **{field.name: True for field in dataclasses.fields(Features)},
    ),
    limits=Limits(
        subgroup_size=32,
        subgroup_sizes=(32, 32),
        subgroup_stages=0x20,
        subgroup_operations=0xFF,
    ),
    extensions=frozenset({"VK_KHR_cooperative_matrix", "VK_NV_cooperative_matrix2"}),
    matrix_shapes=(MatrixShape(16, 16, 16),),
    matrix_grids=(MatrixGrid(32, 32, 16, 256),),
    compute_units=132,
)


def test_a_device_with_everything() -> None:
    limits = plan_limits(EVERYTHING)
    assert limits.lack("matrices") == limits.lack("matrices2") == ""
    assert limits.matrix_shapes == EVERYTHING.matrix_shapes
    assert limits.matrix_grids == EVERYTHING.matrix_grids
    assert limits.compute_units == 132


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"extensions": frozenset[str]()}, "no VK_NV_cooperative_matrix2"),
        ({"matrix_grids": ()}, "work-group scope"),
        ({"matrix_shapes": ()}, "FP32 sums and subgroup scope"),
        ({"features": "cooperative_matrix_2"}, "only a part of VK_NV_coop"),
        ({"features": "shader_int8"}, "feature shaderInt8"),
        ({"features": "storage_8bit"}, "feature storageBuffer8BitAccess"),
        ({"features": "buffer_device_address"}, "feature bufferDeviceAddress"),
        ({"features": "shader_float16"}, "feature shaderFloat16"),
    ],
)
def test_why_there_are_no_matrices_of_a_work_group(
    changes: dict[str, Any], reason: str
) -> None:
    missing = changes.get("features")
    if missing:
        features = dataclasses.replace(EVERYTHING.features, **{missing: False})
        changes = {"features": features}
    limits = plan_limits(dataclasses.replace(EVERYTHING, **changes))
    assert reason in limits.lack("matrices2")
    assert limits.matrix_grids == ()


def entry(
    *sizes: int, types: tuple[int, ...] = (HALF, HALF, SINGLE, SINGLE), scope: int = 2
) -> list[int]:
    """What is behind the header of a structure; the last size is the width."""
    *shape, width = sizes
    return [*shape, *types, 0, scope, width]


OFFERED = [
    entry(32, 32, 16, 256),
    entry(32, 32, 16, 256),
    entry(64, 32, 16, 512),
    entry(16, 16, 16, 256, types=(HALF, HALF, HALF, HALF)),
    entry(16, 8, 16, 256, scope=SUBGROUP),
]


def answer(handle: object, count: Any, found: Any) -> int:  # noqa: ANN401 - C data
    del handle
    if not found:
        count[0] = len(OFFERED)
        return 0
    for i, words in enumerate(OFFERED):
        assert found[14 * i] == 1000593001
        for j, word in enumerate(words):
            found[14 * i + 4 + j] = word
    return 0


def test_the_sizes_of_matrices_of_a_work_group() -> None:
    name = "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV"
    calls: Any = SimpleNamespace(**{name: answer})
    query = probe._matrix_grids  # pyright: ignore[reportPrivateUsage]
    found = query(calls, None)
    assert found == (MatrixGrid(32, 32, 16, 256), MatrixGrid(64, 32, 16, 512))
    none: Any = SimpleNamespace()
    assert query(none, None) == ()
