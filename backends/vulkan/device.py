"""An open Vulkan device, as the model sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from tosavk.backends.vulkan import cachefile
from tosavk.backends.vulkan._ffi import Cdata, Loader
from tosavk.backends.vulkan.blocks import memory_plan
from tosavk.backends.vulkan.gates import VulkanGate
from tosavk.backends.vulkan.instance import Instance, open_instance
from tosavk.backends.vulkan.kit import VulkanKit
from tosavk.backends.vulkan.logical import LogicalDevice
from tosavk.backends.vulkan.memory import MemoryPlan
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.pipelines import Pipelines
from tosavk.backends.vulkan.probe import read_records
from tosavk.backends.vulkan.records import DeviceRecord, DeviceType
from tosavk.backends.vulkan.spirv import ShaderLibrary, catalogue_library
from tosavk.backends.vulkan.suitability import (
    int8_dot_lack,
    matrix_2_lack,
    matrix_lack,
    select,
    subgroup_lack,
)
from tosavk.core.descriptors import (
    Artifact,
    DeviceClass,
    DeviceIdentity,
    DeviceInfo,
    DeviceLimits,
)
from tosavk.core.device import Lowered
from tosavk.core.errors import DeviceCreationFailed, ModelError, Unsupported
from tosavk.core.plan import PlanLimits
from tosavk.core.switches import labelled

MAX_SEGMENT_BYTES = 1 << 28


class VulkanDevice:
    """`core.device.Device`.

    Attributes:
        record: what the device is.
        memory: the memory type of each domain.
        binding_alignment: offsets of bound ranges are multiples of it.
    """

    def __init__(
        self,
        instance: Instance,
        record: DeviceRecord,
        physical: Cdata,
        options: VulkanOptions,
        library: ShaderLibrary | None = None,
    ) -> None:
        """Opens a device; from now on `instance` belongs to it, also if this fails.

        Args:
            instance: lists the device.
            record: a usable device.
            physical: its VkPhysicalDevice.
            options: see there.
            library: the kernels; None for those of the catalogue.

        Raises:
            DeviceCreationFailed: the driver refused.
            DeviceUnavailable: no memory for the host.
        """
        self.record = record
        self._options = options
        folder = cachefile.cache_folder() if options.pipeline_cache else None
        with ExitStack() as undo:
            undo.callback(instance.close)
            try:
                self._logical = LogicalDevice(instance, record, physical)
                undo.callback(self._logical.close)
                self.memory = memory_plan(
                    self._logical, map_unified=options.map_unified_device_memory
                )
                self._pipelines = Pipelines(
                    self._logical, library or catalogue_library(), folder
                )
                undo.callback(self._pipelines.free)
            except ModelError as error:
                raise DeviceCreationFailed(str(error)) from error
            self._undo = undo.pop_all()
        self._info = device_info(record, self.memory)
        self._limits = plan_limits(record)
        self.binding_alignment = max(4, record.limits.storage_offset_alignment)

    @property
    def info(self) -> DeviceInfo:
        """Identity, limits, capabilities."""
        return self._info

    @property
    def name(self) -> str:
        """Name of the device and driver."""
        name = f"{self.record.name} ({self.record.driver})"
        return labelled(name, self.record.switches)

    @property
    def plan_limits(self) -> PlanLimits:
        """What plans for this device may ask for."""
        return self._limits

    @property
    def poisoned(self) -> bool:
        """Whether the device was lost; sticky."""
        return self._logical.poisoned

    def abandon(self, what: str) -> None:
        """Gives the device up, since work does not end: it counts as lost from now on."""
        self._logical.overdue(what)

    def watch_pipelines(self, watch: Callable[[int, int], None] | None) -> None:
        """Tells how many pipelines of a program are compiled, and of how many."""
        self._pipelines.watch = watch

    def lower(self, artifact: Artifact) -> Lowered:
        """Lowers an artifact for this device.

        Raises:
            Error: see `tosavk.backends.nvfp4_check.lower_for`.
        """
        # Listing and opening devices needs none of the lowering.
        from tosavk.backends.nvfp4_check import lower_for

        return lower_for(self, artifact, numerics=self._options.numerics)

    @property
    def host_import_alignment(self) -> int | None:
        """What imported host memory must be aligned to; None: nothing is imported."""
        return self.record.limits.host_import_alignment or None

    def create_gate(self) -> VulkanGate:
        """Makes a counter that queued work can wait for.

        Raises:
            Unsupported: the driver has no timeline semaphores.
            ModelError: the driver refused.
        """
        if not self.record.features.timeline_semaphore:
            raise Unsupported(f"{self.name} has no timeline semaphores, hence no gates")
        return VulkanGate(self._logical)

    def create_kit(self) -> VulkanKit:
        """Creates the objects of a context.

        Raises:
            ModelError: the driver refused.
        """
        return VulkanKit(
            self._logical,
            self.memory,
            self._pipelines,
            work=self._options.submission_work,
        )

    def wait_idle(self) -> None:
        """Waits until the device has nothing to do; never raises.

        On a lost device it returns within bounded time.
        """
        self._logical.wait_idle()

    def close(self) -> None:
        """Destroys the device and its instance; all kits are gone."""
        self._undo.close()


def device_info(record: DeviceRecord, memory: MemoryPlan) -> DeviceInfo:
    """What the model is told of a device."""
    limits = record.limits
    heap = max(heap.size for heap in record.memory_heaps)
    largest = min(
        limits.storage_buffer_range, heap, limits.allocation_bytes, limits.buffer_bytes
    )
    is_cpu = record.device_type is DeviceType.CPU
    return DeviceInfo(
        identity=DeviceIdentity(
            uuid=record.uuid,
            device_class=DeviceClass.OTHER if is_cpu else DeviceClass.GPU,
            vendor_id=record.vendor_id,
            device_id=record.device_id,
        ),
        limits=DeviceLimits(max_buffer_bytes=max(4, largest // 4 * 4)),
        capabilities=memory.capabilities,
    )


def plan_limits(record: DeviceRecord) -> PlanLimits:
    """What plans for a device may ask for."""
    limits = record.limits
    largest, name = min(
        (limits.storage_buffer_range, "maxStorageBufferRange"),
        (limits.allocation_bytes, "maxMemoryAllocationSize"),
        (limits.buffer_bytes, "maxBufferSize"),
        key=lambda limit: limit[0],
    )
    return PlanLimits(
        max_storage_buffer_range=largest,
        storage_limit=name,
        segment_bytes=min(largest, MAX_SEGMENT_BYTES) // 256 * 256,
        max_storage_buffers=min(
            limits.stage_storage_buffers, limits.set_storage_buffers
        ),
        max_parameter_bytes=128,
        max_workgroup_count=min(limits.group_count),
        max_workgroup_invocations=min(limits.group_invocations, limits.group_size[0]),
        shared_bytes=limits.shared_memory_bytes,
        subgroup_size=0 if subgroup_lack(record) else limits.subgroup_size,
        matrix_shapes=() if matrix_lack(record) else record.matrix_shapes,
        matrix_grids=() if matrix_2_lack(record) else record.matrix_grids,
        compute_units=record.compute_units,
        lacks=tuple(
            (need, reason)
            for need, reason in (
                ("subgroup", subgroup_lack(record)),
                ("matrices", matrix_lack(record)),
                ("matrices2", matrix_2_lack(record)),
                ("int8_dot", int8_dot_lack(record)),
            )
            if reason
        ),
    )


def open_with(
    loader: Loader | None,
    selector: str | None,
    options: VulkanOptions,
    *,
    library: ShaderLibrary | None = None,
) -> VulkanDevice:
    """Opens the device that `selector` means, through a loader or this platform's.

    Raises:
        InitError: see `tosavk.backends.vulkan.open_device`.
    """
    instance = open_instance(loader, validation=options.validation)
    with ExitStack() as undo:
        undo.callback(instance.close)
        found = read_records(instance)
        record = select([record for record, _ in found], selector)
        undo.pop_all()
    record = replace(record, switches=options.switches)
    return VulkanDevice(instance, record, found[record.index][1], options, library)
