"""What devices that are not here allow plans to ask for, as their drivers say it."""

import dataclasses

from tosavk.core.plan import MatrixGrid, MatrixShape, PlanLimits

H200 = PlanLimits(
    max_storage_buffer_range=1 << 32,
    max_storage_buffers=64,
    max_workgroup_invocations=1024,
    shared_bytes=49152,
    subgroup_size=32,
    matrix_shapes=(
        MatrixShape(16, 16, 16),
        MatrixShape(16, 8, 16),
        MatrixShape(16, 8, 8),
    ),
    matrix_grids=(MatrixGrid(32, 32, 16, 256), MatrixGrid(64, 32, 16, 512)),
    compute_units=132,
    lacks=(),
)
"""NVIDIA's driver 580; `matrix_grids` are some of their kind."""

NAVI31 = dataclasses.replace(
    H200,
    shared_bytes=65536,
    subgroup_size=64,
    matrix_shapes=(MatrixShape(16, 16, 16),),
    matrix_grids=(),
    compute_units=0,
    lacks=(("matrices2", "the driver has no VK_NV_cooperative_matrix2"),),
)
"""RADV; subgroups of 32 may be chosen."""

LAVAPIPE = dataclasses.replace(
    NAVI31,
    shared_bytes=32768,
    subgroup_size=8,
    matrix_shapes=(MatrixShape(8, 8, 8),),
)
"""Mesa 26."""
