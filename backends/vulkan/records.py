"""A physical device as plain data."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from dataclasses import dataclass
from typing import Any

from tosavk.backends.vulkan._ffi import const
from tosavk.backends.vulkan.instance import API_VERSION
from tosavk.backends.vulkan.layers import version_text
from tosavk.backends.vulkan.memory import MemoryHeap, MemoryType
from tosavk.core.plan import MatrixGrid, MatrixShape

PORTABILITY_SUBSET = "VK_KHR_portability_subset"
HOST_MEMORY = "VK_EXT_external_memory_host"
COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix"
COOPERATIVE_MATRIX_2 = "VK_NV_cooperative_matrix2"
MULTIPROCESSORS = "VK_NV_shader_sm_builtins"
MIN_STORAGE_BUFFERS = 4
LEAST_DIFFERENCE = (1 << 31) - 1


class DeviceType(enum.IntEnum):
    """VkPhysicalDeviceType."""

    OTHER = 0
    INTEGRATED = 1
    DISCRETE = 2
    VIRTUAL = 3
    CPU = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The device limits that this backend heeds; the defaults are the least allowed.

    Attributes:
        storage_buffer_range: bytes one descriptor may cover.
        stage_storage_buffers: storage buffers one shader may use.
        set_storage_buffers: storage buffers in one descriptor set.
        push_constant_bytes: bytes of push constants.
        group_count: work groups along x, y and z.
        group_size: invocations of a work group along x, y and z.
        group_invocations: invocations of a work group.
        shared_memory_bytes: shared memory of a work group.
        allocations: live memory allocations.
        allocation_bytes: bytes of one allocation.
        buffer_bytes: bytes of one buffer.
        storage_offset_alignment: alignment of a storage descriptor's offset.
        subgroup_size: invocations of a subgroup.
        subgroup_sizes: the least and the most of them, where a shader may choose.
        subgroup_stages: shader stages with subgroup operations.
        subgroup_operations: kinds of subgroup operations.
        subgroup_choice_stages: stages whose subgroup size may be chosen.
        host_import_alignment: what address and size of imported host memory are
            multiples of; 0 if none can be imported.
        semaphore_difference: how far the values of one timeline semaphore may be apart.
    """

    storage_buffer_range: int = 1 << 27
    stage_storage_buffers: int = MIN_STORAGE_BUFFERS
    set_storage_buffers: int = 24
    push_constant_bytes: int = 128
    group_count: tuple[int, int, int] = (65535, 65535, 65535)
    group_size: tuple[int, int, int] = (128, 128, 64)
    group_invocations: int = 128
    shared_memory_bytes: int = 16384
    allocations: int = 4096
    allocation_bytes: int = 1 << 30
    buffer_bytes: int = 1 << 30
    storage_offset_alignment: int = 256
    subgroup_size: int = 1
    subgroup_sizes: tuple[int, int] = (1, 1)
    subgroup_stages: int = 0
    subgroup_operations: int = 0
    subgroup_choice_stages: int = 0
    host_import_alignment: int = 0
    semaphore_difference: int = LEAST_DIFFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Whether the driver offers what this backend asks about.

    Attributes:
        robust_buffer_access: accesses outside a descriptor do no harm.
        synchronization2: the barriers and submissions used here.
        timeline_semaphore: host gates.
        buffer_device_address: used to measure the alignment of memory.
        signed_zero_inf_nan_preserve: the execution mode for FP32.
        shader_float16: FP16 arithmetic.
        shader_int8: 8-bit integers in shaders.
        shader_int64: 64-bit integers in shaders.
        subgroup_size_control: the subgroup size may be chosen.
        compute_full_subgroups: full subgroups may be asked for.
        vulkan_memory_model: the memory model that cooperative matrices need.
        memory_model_device_scope: atomics of the whole device under that model.
        storage_16bit: 16-bit elements in storage buffers.
        shader_int16: 16-bit integers in shaders.
        cooperative_matrix: VK_KHR_cooperative_matrix.
        cooperative_matrix_2: what kernels need of VK_NV_cooperative_matrix2.
        storage_8bit: 8-bit elements in storage buffers.
        integer_dot_product: dot products of packed integers.
    """

    robust_buffer_access: bool = False
    synchronization2: bool = False
    timeline_semaphore: bool = False
    buffer_device_address: bool = False
    signed_zero_inf_nan_preserve: bool = False
    shader_float16: bool = False
    shader_int8: bool = False
    shader_int64: bool = False
    subgroup_size_control: bool = False
    compute_full_subgroups: bool = False
    vulkan_memory_model: bool = False
    memory_model_device_scope: bool = False
    storage_16bit: bool = False
    shader_int16: bool = False
    cooperative_matrix: bool = False
    cooperative_matrix_2: bool = False
    storage_8bit: bool = False
    integer_dot_product: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A physical device as plain data.

    Attributes:
        index: position in the loader's list.
        name: name of the device.
        driver: name and version text of the driver.
        driver_id: VkDriverId.
        driver_version: the driver's own version number.
        api_version: packed Vulkan version of the device.
        device_type: kind of device.
        vendor_id: vendor number.
        device_id: the vendor's device number.
        uuid: deviceUUID, 16 bytes.
        cache_uuid: pipelineCacheUUID, 16 bytes.
        limits: numbers.
        features: yes or no.
        extensions: names of the device extensions it offers.
        queue_families: flags of each family.
        memory_types: the memory types in order.
        memory_heaps: the heaps in order.
        matrix_shapes: cooperative FP16 products with FP32 sums of one subgroup.
        matrix_grids: those of a whole work group.
        compute_units: multiprocessors; 0 if the driver does not tell.
        switches: what is left alone, although the device may offer it.
    """

    index: int
    name: str
    driver: str
    driver_id: int = 0
    driver_version: int = 0
    api_version: int = API_VERSION
    device_type: DeviceType = DeviceType.OTHER
    vendor_id: int = 0
    device_id: int = 0
    uuid: bytes = bytes(16)
    cache_uuid: bytes = bytes(16)
    limits: Limits = Limits()
    features: Features = Features()
    extensions: frozenset[str] = frozenset()
    queue_families: tuple[int, ...] = ()
    memory_types: tuple[MemoryType, ...] = ()
    memory_heaps: tuple[MemoryHeap, ...] = ()
    matrix_shapes: tuple[MatrixShape, ...] = ()
    matrix_grids: tuple[MatrixGrid, ...] = ()
    compute_units: int = 0
    switches: frozenset[str] = frozenset()

    @property
    def queue_family(self) -> int | None:
        """A family that computes and draws nothing, else the first that computes."""
        compute = [
            index
            for index, flags in enumerate(self.queue_families)
            if flags & const.QUEUE_COMPUTE_BIT
        ]
        for index in compute:
            if not self.queue_families[index] & const.QUEUE_GRAPHICS_BIT:
                return index
        return compute[0] if compute else None

    @property
    def uuid_text(self) -> str:
        """The UUID in the usual 8-4-4-4-12 form."""
        digits = self.uuid.hex()
        cuts = (0, 8, 12, 16, 20, 32)
        return "-".join(digits[a:b] for a, b in itertools.pairwise(cuts))

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        found = dataclasses.asdict(self)
        found["uuid"] = self.uuid_text
        found["cache_uuid"] = self.cache_uuid.hex()
        found["api_version"] = version_text(self.api_version)
        found["device_type"] = self.device_type.name.lower()
        found["extensions"] = sorted(self.extensions)
        found["switches"] = sorted(self.switches)
        return found
