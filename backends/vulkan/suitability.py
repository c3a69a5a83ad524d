"""Which devices can be used, what kernels cannot use of them, and which one is meant.

Everything works on `DeviceRecord` values and can be tried with made-up ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tosavk.backends.vulkan._ffi import const
from tosavk.backends.vulkan.instance import API_VERSION
from tosavk.backends.vulkan.layers import version_text
from tosavk.backends.vulkan.memory import plan_memory
from tosavk.backends.vulkan.records import (
    COOPERATIVE_MATRIX,
    COOPERATIVE_MATRIX_2,
    MIN_STORAGE_BUFFERS,
    DeviceRecord,
    DeviceType,
)
from tosavk.core import switches
from tosavk.core.errors import DeviceUnavailable

_RANK = {
    DeviceType.DISCRETE: 0,
    DeviceType.INTEGRATED: 1,
    DeviceType.VIRTUAL: 2,
    DeviceType.CPU: 3,
    DeviceType.OTHER: 4,
}


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

    @property
    def pci(self) -> str:
        """Numbers of vendor and device in hexadecimal."""
        return f"{self.record.vendor_id:04x}:{self.record.device_id:04x}"

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
        # With that model switched on, the atomics of other kernels need it.
        ("vulkanMemoryModelDeviceScope", features.memory_model_device_scope),
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
