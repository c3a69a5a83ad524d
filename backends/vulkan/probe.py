"""What a physical device is: read once from the driver into a `DeviceRecord`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tosavk.backends.vulkan._ffi import (
    NULL,
    Calls,
    Cdata,
    Scratch,
    const,
    error_of,
    ffi,
    structure_type,
    text_of,
)
from tosavk.backends.vulkan.instance import API_VERSION, Instance
from tosavk.backends.vulkan.memory import MemoryHeap, MemoryType
from tosavk.backends.vulkan.records import (
    COOPERATIVE_MATRIX,
    COOPERATIVE_MATRIX_2,
    HOST_MEMORY,
    LEAST_DIFFERENCE,
    MULTIPROCESSORS,
    DeviceRecord,
    DeviceType,
    Features,
    Limits,
)
from tosavk.core.errors import DeviceEnumerationFailed
from tosavk.core.plan import MatrixGrid, MatrixShape

MATRIX_2_FEATURES = 7
"""Features of VkPhysicalDeviceCooperativeMatrix2FeaturesNV, in order: workgroup scope,
flexible dimensions, reductions, conversions, operations on elements, tensor addressing,
block loads."""

_MATRIX_2_NEEDED = (0, 1, 4, 5, 6)
_MATRIX_2_TYPE = 1000593000
_GRID_TYPE, _GRID_WORDS, _WORKGROUP_SCOPE = 1000593001, 14, 2
_WORDS_BEFORE = 4
_VERSION_1_1 = (1 << 22) | (1 << 12)
_VERSION_1_2 = (1 << 22) | (2 << 12)


def read_records(instance: Instance) -> list[tuple[DeviceRecord, Cdata]]:
    """Every device of an instance with its handle, in the loader's order.

    Raises:
        DeviceEnumerationFailed: a driver failed to answer.
    """
    return [
        (read_record(instance.calls, handle, index=index), handle)
        for index, handle in enumerate(instance.physical_devices())
    ]


def read_record(calls: Calls, handle: Cdata, *, index: int) -> DeviceRecord:
    """Asks the driver for everything about one device.

    Raises:
        DeviceEnumerationFailed: its extensions cannot be listed.
    """
    scratch = Scratch()
    core = scratch.new("VkPhysicalDeviceProperties *")
    calls.vkGetPhysicalDeviceProperties(handle, core)
    version = int(core.apiVersion)
    # A struct newer than the device is not asked for; what it would say stays zero.
    v11 = scratch.struct("VkPhysicalDeviceVulkan11Properties")
    v12 = scratch.struct("VkPhysicalDeviceVulkan12Properties")
    v13 = scratch.struct("VkPhysicalDeviceVulkan13Properties")
    host_memory = scratch.struct("VkPhysicalDeviceExternalMemoryHostPropertiesEXT")
    extensions = _extensions(calls, handle)
    maintenance3 = scratch.struct("VkPhysicalDeviceMaintenance3Properties")
    chain = [maintenance3] if version >= _VERSION_1_1 else []
    chain += [v11, v12] if version >= _VERSION_1_2 else []
    chain += [v13] if version >= API_VERSION else []
    chain += [host_memory] if chain and HOST_MEMORY in extensions else []
    units = scratch.struct("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV")
    chain += [units] if chain and MULTIPROCESSORS in extensions else []
    properties = scratch.struct("VkPhysicalDeviceProperties2", pNext=_linked(chain))
    if chain:
        calls.vkGetPhysicalDeviceProperties2(handle, properties)
    limits = core.limits
    features = _features(
        calls,
        handle,
        version,
        preserve=bool(v12.shaderSignedZeroInfNanPreserveFloat32),
        extensions=extensions,
    )
    return DeviceRecord(
        index=index,
        name=text_of(core.deviceName) or "vulkan-device",
        driver=_driver_text(v12, int(core.driverVersion)),
        driver_id=int(v12.driverID),
        driver_version=int(core.driverVersion),
        api_version=version,
        device_type=_device_type(int(core.deviceType)),
        vendor_id=int(core.vendorID),
        device_id=int(core.deviceID),
        uuid=bytes(ffi.buffer(v11.deviceUUID)),
        cache_uuid=bytes(ffi.buffer(core.pipelineCacheUUID)),
        limits=Limits(
            storage_buffer_range=int(limits.maxStorageBufferRange),
            stage_storage_buffers=int(limits.maxPerStageDescriptorStorageBuffers),
            set_storage_buffers=int(limits.maxDescriptorSetStorageBuffers),
            push_constant_bytes=int(limits.maxPushConstantsSize),
            group_count=tuple(limits.maxComputeWorkGroupCount),
            group_size=tuple(limits.maxComputeWorkGroupSize),
            group_invocations=int(limits.maxComputeWorkGroupInvocations),
            shared_memory_bytes=int(limits.maxComputeSharedMemorySize),
            allocations=int(limits.maxMemoryAllocationCount),
            allocation_bytes=int(maintenance3.maxMemoryAllocationSize) or 1 << 30,
            buffer_bytes=int(v13.maxBufferSize) or 1 << 30,
            storage_offset_alignment=int(limits.minStorageBufferOffsetAlignment),
            subgroup_size=int(v11.subgroupSize) or 1,
            subgroup_sizes=(
                int(v13.minSubgroupSize) or int(v11.subgroupSize) or 1,
                int(v13.maxSubgroupSize) or int(v11.subgroupSize) or 1,
            ),
            subgroup_stages=int(v11.subgroupSupportedStages),
            subgroup_operations=int(v11.subgroupSupportedOperations),
            subgroup_choice_stages=int(v13.requiredSubgroupSizeStages),
            host_import_alignment=_import_alignment(
                calls, handle, features, v12, host_memory
            ),
            semaphore_difference=int(v12.maxTimelineSemaphoreValueDifference)
            or LEAST_DIFFERENCE,
        ),
        features=features,
        extensions=extensions,
        matrix_shapes=(
            matrix_shapes(calls, handle) if features.cooperative_matrix else ()
        ),
        matrix_grids=(
            _matrix_grids(calls, handle) if features.cooperative_matrix_2 else ()
        ),
        compute_units=int(units.shaderSMCount),
        queue_families=_queue_families(calls, handle),
        **_memory(calls, handle),
    )


def buffer_usage(features: Features) -> int:
    """The usage flags of every buffer."""
    usage = (
        const.BUFFER_USAGE_STORAGE_BUFFER_BIT
        | const.BUFFER_USAGE_TRANSFER_SRC_BIT
        | const.BUFFER_USAGE_TRANSFER_DST_BIT
    )
    if features.buffer_device_address:
        usage |= const.BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT
    return usage


def _import_alignment(
    calls: Calls, handle: Cdata, features: Features, v12: Cdata, host_memory: Cdata
) -> int:
    """What imported host memory is aligned to; 0 if buffers cannot lie in it."""
    alignment = int(host_memory.minImportedHostPointerAlignment)
    if alignment == 0 or alignment & (alignment - 1):
        return 0
    # SwiftShader imports host memory, but does not say so of buffers.
    if v12.driverID == const.DRIVER_ID_GOOGLE_SWIFTSHADER:
        return alignment
    scratch = Scratch()
    asked = scratch.struct(
        "VkPhysicalDeviceExternalBufferInfo",
        usage=buffer_usage(features),
        handleType=const.EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
    )
    answer = scratch.struct("VkExternalBufferProperties")
    calls.vkGetPhysicalDeviceExternalBufferProperties(handle, asked, answer)
    offered = answer.externalMemoryProperties.externalMemoryFeatures
    return alignment if offered & const.EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT else 0


def _linked(chain: Sequence[Cdata]) -> Cdata:
    """Links structs through pNext and gives the first, or None."""
    for struct, following in itertools.pairwise(chain):
        struct.pNext = following
    return chain[0] if chain else None


def _driver_text(v12: Cdata, number: int) -> str:
    name = text_of(v12.driverName)
    info = text_of(v12.driverInfo)
    if not name:
        return f"unknown driver {number:#x}"
    return f"{name}, {info}" if info else name


def _device_type(number: int) -> DeviceType:
    try:
        return DeviceType(number)
    except ValueError:
        return DeviceType.OTHER


def _features(
    calls: Calls,
    handle: Cdata,
    version: int,
    *,
    preserve: bool,
    extensions: frozenset[str],
) -> Features:
    if version < API_VERSION:
        return Features(signed_zero_inf_nan_preserve=preserve)
    scratch = Scratch()
    v11 = scratch.struct("VkPhysicalDeviceVulkan11Features")
    v12 = scratch.struct("VkPhysicalDeviceVulkan12Features")
    v13 = scratch.struct("VkPhysicalDeviceVulkan13Features")
    matrix = scratch.struct("VkPhysicalDeviceCooperativeMatrixFeaturesKHR")
    # Only the struct of an extension that is there may be asked for.
    chain = [v11, v12, v13] + [matrix] * (COOPERATIVE_MATRIX in extensions)
    first = _linked(chain)
    second = matrix_2_struct(scratch, [0] * MATRIX_2_FEATURES, following=first)
    if COOPERATIVE_MATRIX_2 in extensions:
        first = second
    all_features = scratch.struct("VkPhysicalDeviceFeatures2", pNext=first)
    calls.vkGetPhysicalDeviceFeatures2(handle, all_features)
    return Features(
        robust_buffer_access=bool(all_features.features.robustBufferAccess),
        synchronization2=bool(v13.synchronization2),
        timeline_semaphore=bool(v12.timelineSemaphore),
        buffer_device_address=bool(v12.bufferDeviceAddress),
        signed_zero_inf_nan_preserve=preserve,
        shader_float16=bool(v12.shaderFloat16),
        shader_int8=bool(v12.shaderInt8),
        shader_int64=bool(all_features.features.shaderInt64),
        subgroup_size_control=bool(v13.subgroupSizeControl),
        compute_full_subgroups=bool(v13.computeFullSubgroups),
        vulkan_memory_model=bool(v12.vulkanMemoryModel),
        memory_model_device_scope=bool(v12.vulkanMemoryModelDeviceScope),
        storage_16bit=bool(v11.storageBuffer16BitAccess),
        shader_int16=bool(all_features.features.shaderInt16),
        cooperative_matrix=bool(matrix.cooperativeMatrix),
        cooperative_matrix_2=all(second[_WORDS_BEFORE + i] for i in _MATRIX_2_NEEDED),
        storage_8bit=bool(v12.storageBuffer8BitAccess),
        integer_dot_product=bool(v13.shaderIntegerDotProduct),
    )


def matrix_2_struct(
    scratch: Scratch, values: Sequence[int], *, following: Cdata
) -> Cdata:
    """A VkPhysicalDeviceCooperativeMatrix2FeaturesNV, which the C types lack.

    Args:
        scratch: its owner.
        values: 0 or 1 for each feature.
        following: the next struct of the chain.

    Returns:
        The struct as 32-bit words: sType, padding, pNext (two words), the features.
    """
    pointer = int(ffi.cast("uintptr_t", following))
    words = [_MATRIX_2_TYPE, 0, pointer & 0xFFFFFFFF, pointer >> 32, *values, 0]
    return scratch.new("uint32_t[]", words)


def matrix_shapes(calls: Calls, handle: Cdata) -> tuple[MatrixShape, ...]:
    """The shapes of FP16 products with FP32 sums that one subgroup makes, each once."""
    query = getattr(calls, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", None)
    count = ffi.new("uint32_t *")
    if query is None or query(handle, count, NULL) < 0 or not count[0]:
        return ()
    kind = "VkCooperativeMatrixPropertiesKHR"
    found = ffi.new(f"{kind}[]", count[0])
    for entry in found:
        entry.sType = structure_type(kind)
    if query(handle, count, found) < 0:
        return ()
    half, single = const.COMPONENT_TYPE_FLOAT16_KHR, const.COMPONENT_TYPE_FLOAT32_KHR
    shapes = {
        MatrixShape(int(e.MSize), int(e.NSize), int(e.KSize)): None
        for e in found[0 : count[0]]
        if (e.AType, e.BType, e.CType, e.ResultType) == (half, half, single, single)
        and e.scope == const.SCOPE_SUBGROUP_KHR
        and not e.saturatingAccumulation
    }
    return tuple(shapes)


def _matrix_grids(calls: Calls, handle: Cdata) -> tuple[MatrixGrid, ...]:
    """What FP16 products with FP32 sums a work group makes, each once."""
    name = "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV"
    query = getattr(calls, name, None)
    count = ffi.new("uint32_t *")
    if query is None or query(handle, count, NULL) < 0 or not count[0]:
        return ()
    # VkCooperativeMatrixFlexibleDimensionsPropertiesNV, which the C types lack: sType,
    # padding, pNext (two words), granularities of M, N and K, types of A, B, C and the
    # result, saturatingAccumulation, scope, workgroupInvocations.
    words = [_GRID_TYPE, *[0] * (_GRID_WORDS - 1)] * count[0]
    found = ffi.new("uint32_t[]", words)
    if query(handle, count, found) < 0:
        return ()
    half, single = const.COMPONENT_TYPE_FLOAT16_KHR, const.COMPONENT_TYPE_FLOAT32_KHR
    grids: dict[MatrixGrid, None] = {}
    for at in range(0, _GRID_WORDS * count[0], _GRID_WORDS):
        m, n, k, *rest, width = (int(word) for word in found[at + 4 : at + 14])
        if rest == [half, half, single, single, 0, _WORKGROUP_SCOPE]:
            grids[MatrixGrid(m, n, k, width)] = None
    return tuple(grids)


def _extensions(calls: Calls, handle: Cdata) -> frozenset[str]:
    count = ffi.new("uint32_t *")
    code = calls.vkEnumerateDeviceExtensionProperties(handle, NULL, count, NULL)
    if code >= 0:
        found = ffi.new("VkExtensionProperties[]", count[0] + 8)
        count[0] += 8
        code = calls.vkEnumerateDeviceExtensionProperties(handle, NULL, count, found)
        if code >= 0:
            return frozenset(text_of(found[i].extensionName) for i in range(count[0]))
    error = error_of(code, "vkEnumerateDeviceExtensionProperties")
    raise DeviceEnumerationFailed(str(error)) from error


def _queue_families(calls: Calls, handle: Cdata) -> tuple[int, ...]:
    count = ffi.new("uint32_t *")
    calls.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, NULL)
    found = ffi.new("VkQueueFamilyProperties[]", max(1, count[0]))
    calls.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, found)
    return tuple(int(found[i].queueFlags) for i in range(count[0]))


def _memory(calls: Calls, handle: Cdata) -> dict[str, Any]:
    found = ffi.new("VkPhysicalDeviceMemoryProperties *")
    calls.vkGetPhysicalDeviceMemoryProperties(handle, found)
    return {
        "memory_types": tuple(
            MemoryType(
                int(found.memoryTypes[i].propertyFlags),
                int(found.memoryTypes[i].heapIndex),
            )
            for i in range(found.memoryTypeCount)
        ),
        "memory_heaps": tuple(
            MemoryHeap(int(found.memoryHeaps[i].size), int(found.memoryHeaps[i].flags))
            for i in range(found.memoryHeapCount)
        ),
    }
