"""What a physical device is: read once into plain data, judged without a driver.

`read_record` asks the driver. Everything else works on `DeviceRecord` values and can
be tried with made-up ones.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
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
from tosavk.backends.vulkan.layers import version_text
from tosavk.backends.vulkan.memory import MemoryHeap, MemoryType, plan_memory
from tosavk.core import switches
from tosavk.core.errors import DeviceEnumerationFailed, DeviceUnavailable
from tosavk.core.plan import MatrixGrid, MatrixShape

PORTABILITY_SUBSET = "VK_KHR_portability_subset"
HOST_MEMORY = "VK_EXT_external_memory_host"
COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix"
COOPERATIVE_MATRIX_2 = "VK_NV_cooperative_matrix2"
MULTIPROCESSORS = "VK_NV_shader_sm_builtins"
MATRIX_2_FEATURES = 7
"""Features of VkPhysicalDeviceCooperativeMatrix2FeaturesNV, in order: workgroup scope,
flexible dimensions, reductions, conversions, operations on elements, tensor addressing,
block loads."""

_MATRIX_2_NEEDED = (0, 1, 4, 5, 6)
_MATRIX_2_TYPE = 1000593000
_GRID_TYPE, _GRID_WORDS, _WORKGROUP_SCOPE = 1000593001, 14, 2
_WORDS_BEFORE = 4
MIN_STORAGE_BUFFERS = 4
_LEAST_DIFFERENCE = (1 << 31) - 1
_VERSION_1_1 = (1 << 22) | (1 << 12)
_VERSION_1_2 = (1 << 22) | (2 << 12)


class DeviceType(enum.IntEnum):
    """VkPhysicalDeviceType."""

    OTHER = 0
    INTEGRATED = 1
    DISCRETE = 2
    VIRTUAL = 3
    CPU = 4


_RANK = {
    DeviceType.DISCRETE: 0,
    DeviceType.INTEGRATED: 1,
    DeviceType.VIRTUAL: 2,
    DeviceType.CPU: 3,
    DeviceType.OTHER: 4,
}


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
    semaphore_difference: int = _LEAST_DIFFERENCE


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


@dataclass(frozen=True, slots=True)
class DeviceListing:
    """A device for a list that people read.

    Attributes:
        index: number to choose it by.
        name: name of the device.
        driver: name and version text of the driver.
        uuid: UUID to choose it by.
        usable: whether it can be opened.
        reason: why not; "" if it can.
        record: all that is known.
    """

    index: int
    name: str
    driver: str
    uuid: str
    usable: bool
    reason: str
    record: DeviceRecord

    @classmethod
    def of(cls, record: DeviceRecord) -> DeviceListing:
        """The listing of a record."""
        reason = unsuitable(record)
        return cls(
            index=record.index,
            name=record.name,
            driver=record.driver,
            uuid=record.uuid_text,
            usable=reason is None,
            reason=reason or "",
            record=record,
        )

    def __str__(self) -> str:
        text = f"{self.index}: {self.name} ({self.driver}) {self.uuid}"
        return text if self.usable else f"{text}: unusable, {self.reason}"


def unsuitable(record: DeviceRecord) -> str | None:
    """Why a device cannot be used; None if it can."""
    limits = record.limits
    if record.api_version < API_VERSION:
        version = version_text(record.api_version)
        return f"Vulkan {version}, 1.3 is needed: a newer driver may help"
    if not record.features.synchronization2:
        return "the driver lacks the feature synchronization2"
    if not record.features.robust_buffer_access:
        return "the driver lacks the feature robustBufferAccess"
    if record.queue_family is None:
        return "no queue family computes"
    buffers = min(limits.stage_storage_buffers, limits.set_storage_buffers)
    if buffers < MIN_STORAGE_BUFFERS:
        return f"{buffers} storage buffers per shader, {MIN_STORAGE_BUFFERS} are needed"
    if limits.push_constant_bytes < 128:
        return f"{limits.push_constant_bytes} bytes of push constants, 128 are needed"
    memory = plan_memory(record.memory_types, heaps=len(record.memory_heaps))
    if memory is None:
        return "no memory type is both host-visible and host-coherent"
    return None


def subgroup_lack(record: DeviceRecord) -> str:
    """Why kernels cannot use subgroups; "" if they can."""
    limits = record.limits
    if off := switches.switched_off(record.switches, switches.SUBGROUP):
        return off
    wanted = const.SUBGROUP_FEATURE_BASIC_BIT | const.SUBGROUP_FEATURE_SHUFFLE_BIT
    if not limits.subgroup_stages & const.SHADER_STAGE_COMPUTE_BIT:
        return "compute shaders have no subgroup operations"
    if limits.subgroup_operations & wanted != wanted:
        return "subgroups of the device do not shuffle"
    if limits.subgroup_size < 2:
        return f"subgroups have {limits.subgroup_size} invocation"
    return ""


def matrix_lack(record: DeviceRecord) -> str:
    """Why kernels cannot use cooperative matrices; "" if they can."""
    features = record.features
    if off := switches.switched_off(
        record.switches, switches.COOPMAT, switches.FP16, switches.SUBGROUP
    ):
        return off
    if COOPERATIVE_MATRIX not in record.extensions:
        return f"the driver has no {COOPERATIVE_MATRIX}"
    for name, offered in (
        ("cooperativeMatrix", features.cooperative_matrix),
        ("vulkanMemoryModel", features.vulkan_memory_model),
        ("shaderFloat16", features.shader_float16),
        ("storageBuffer16BitAccess", features.storage_16bit),
        ("shaderInt16", features.shader_int16),
    ):
        if not offered:
            return f"the driver lacks the feature {name}"
    if not record.matrix_shapes:
        return "no cooperative matrix of FP16 with FP32 sums and subgroup scope"
    return subgroup_lack(record)


def matrix_2_lack(record: DeviceRecord) -> str:
    """Why kernels cannot use matrices of a whole work group; "" if they can."""
    features = record.features
    if off := switches.switched_off(
        record.switches, switches.COOPMAT, switches.FP16, switches.SUBGROUP
    ):
        return off
    if COOPERATIVE_MATRIX_2 not in record.extensions:
        return f"the driver has no {COOPERATIVE_MATRIX_2}"
    if not features.cooperative_matrix_2:
        return f"the driver offers only a part of {COOPERATIVE_MATRIX_2}"
    for name, offered in (
        ("shaderInt8", features.shader_int8),
        ("storageBuffer8BitAccess", features.storage_8bit),
        ("bufferDeviceAddress", features.buffer_device_address),
    ):
        if not offered:
            return f"the driver lacks the feature {name}"
    if not record.matrix_grids:
        return "no cooperative matrix of FP16 with FP32 sums and work-group scope"
    return matrix_lack(record)


def int8_dot_lack(record: DeviceRecord) -> str:
    """Why kernels cannot use integer dot products; "" if they can."""
    if off := switches.switched_off(record.switches, switches.INT8_DOT):
        return off
    if record.features.integer_dot_product:
        return ""
    return "the driver lacks the feature shaderIntegerDotProduct"


def best(records: Sequence[DeviceRecord]) -> DeviceRecord:
    """The usable device to take when none is named: discrete before integrated ...

    Raises:
        DeviceUnavailable: no device, or none that is usable; the message says why.
    """
    usable = [record for record in records if unsuitable(record) is None]
    if not usable:
        raise DeviceUnavailable(f"no usable Vulkan device{_lines(records)}")
    return min(usable, key=lambda record: (_RANK[record.device_type], record.index))


def select(records: Sequence[DeviceRecord], selector: str | None) -> DeviceRecord:
    """The device that `selector` means.

    Args:
        records: all devices.
        selector: None or "" for the best one; an index; a UUID; or a part of a device
            or driver name, in any case of letters.

    Raises:
        DeviceUnavailable: none, more than one, or an unusable one; the message lists
            the candidates.
    """
    wanted = (selector or "").strip()
    if not wanted:
        return best(records)
    matches = _matching(records, wanted)
    if not matches:
        raise DeviceUnavailable(
            f"no Vulkan device matches {wanted!r}; choose by index, UUID, or part of a "
            f"device or driver name{_lines(records)}"
        )
    usable = [record for record in matches if unsuitable(record) is None]
    if len(usable) > 1:
        raise DeviceUnavailable(
            f"{len(usable)} Vulkan devices match {wanted!r}; choose by index or UUID"
            f"{_lines(usable)}"
        )
    if not usable:
        raise DeviceUnavailable(
            f"the Vulkan device {wanted!r} cannot be used{_lines(matches)}"
        )
    return usable[0]


def _matching(records: Sequence[DeviceRecord], wanted: str) -> list[DeviceRecord]:
    if wanted.isdecimal() and int(wanted) < len(records):
        return [record for record in records if record.index == int(wanted)]
    by_uuid = [r for r in records if r.uuid.hex() == wanted.replace("-", "").lower()]
    if by_uuid:
        return by_uuid
    part = wanted.casefold()
    return [
        record
        for record in records
        if part in record.name.casefold() or part in record.driver.casefold()
    ]


def _lines(records: Sequence[DeviceRecord]) -> str:
    if not records:
        return "; the loader lists no device"
    return ":" + "".join(f"\n  {DeviceListing.of(record)}" for record in records)


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
            or _LEAST_DIFFERENCE,
        ),
        features=features,
        extensions=extensions,
        matrix_shapes=(
            _matrix_shapes(calls, handle) if features.cooperative_matrix else ()
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


def _matrix_shapes(calls: Calls, handle: Cdata) -> tuple[MatrixShape, ...]:
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
