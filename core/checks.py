"""Checks of what a backend tells, and of requests against what its device offers.

Source: the Accelerator model (docs/accelerator.md, "Vocabulary").
"""

from __future__ import annotations

import enum
from dataclasses import fields

from tosavk.core.descriptors import (
    USAGE_PROGRAM,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    Capabilities,
    DeviceInfo,
    MemoryDomain,
    is_power_of_two,
)
from tosavk.core.errors import (
    Incompatible,
    InvalidArgument,
    ResourceLimit,
    Unsupported,
)

RESERVED_CAPABILITIES = Capabilities.EXTERNAL_MEMORY | Capabilities.SECURE_CONTEXTS
_PROPERTIES_MASK = 7
_REQUIRED_PROPERTIES = {
    MemoryDomain.HOST: BufferProperties.HOST_VISIBLE,
    MemoryDomain.DEVICE: BufferProperties.DEVICE_LOCAL,
    MemoryDomain.SHARED: BufferProperties.HOST_VISIBLE
    | BufferProperties.DIRECT_BINDING,
}


class DeviceInfoFault(enum.Enum):
    """What is wrong with a `DeviceInfo`."""

    RESERVED_CAPABILITIES = "reserved capabilities"
    MISSING_MEMORY_DOMAIN = "missing memory domain"
    ZERO_LIMIT = "zero limit"


class DeviceInfoError(InvalidArgument):
    """A backend describes its device in a way that the model does not allow.

    Attributes:
        fault: which rule is broken.
    """

    def __init__(self, message: str, *, fault: DeviceInfoFault) -> None:
        """A message for people, and the rule that is broken."""
        super().__init__(message)
        self.fault = fault


def validate_device_info(info: DeviceInfo) -> None:
    """Checks what a backend tells of its device; unknown capability bits are fine.

    Raises:
        DeviceInfoError: with `fault` RESERVED_CAPABILITIES, MISSING_MEMORY_DOMAIN or
            ZERO_LIMIT, tried in this order.
    """
    reserved = info.capabilities & RESERVED_CAPABILITIES
    if reserved:
        raise DeviceInfoError(
            f"device advertises reserved capabilities {reserved!r}",
            fault=DeviceInfoFault.RESERVED_CAPABILITIES,
        )
    if not info.domains:
        raise DeviceInfoError(
            f"device advertises no memory domain: {info.capabilities!r}",
            fault=DeviceInfoFault.MISSING_MEMORY_DOMAIN,
        )
    for limit in fields(info.limits):
        if getattr(info.limits, limit.name) <= 0:
            raise DeviceInfoError(
                f"device limit {limit.name} must not be zero",
                fault=DeviceInfoFault.ZERO_LIMIT,
            )


def validate_buffer_desc(info: DeviceInfo, desc: BufferDesc) -> None:
    """Checks a buffer request against a device.

    Raises:
        ResourceLimit: larger than the device's `max_buffer_bytes`.
        Unsupported: the device does not advertise the memory domain.
    """
    if desc.nbytes > info.limits.max_buffer_bytes:
        raise ResourceLimit(
            f"buffer of {desc.nbytes} bytes exceeds max_buffer_bytes = "
            f"{info.limits.max_buffer_bytes} of this device"
        )
    if not info.capabilities & desc.domain.capability:
        names = ", ".join(d.name for d in info.domains)
        raise Unsupported(
            f"memory domain {desc.domain.name} is not offered by this device; "
            f"it offers {names}"
        )


def check_buffer_info(desc: BufferDesc, info: BufferInfo) -> None:
    """Checks that an allocation is what was asked for (the honesty check).

    Raises:
        InvalidArgument: zero bytes, zero alignment, or unknown property bits.
        Incompatible: less than requested, or properties that contradict the domain or
            the usage.
    """
    properties = info.properties
    if info.allocation_bytes <= 0:
        raise InvalidArgument("backend reports an allocation of 0 bytes")
    if info.alignment <= 0:
        raise InvalidArgument("backend reports an allocation alignment of 0")
    if int(properties) & ~_PROPERTIES_MASK:
        raise InvalidArgument(f"backend reports unknown properties {properties!r}")
    if info.allocation_bytes < desc.nbytes:
        raise Incompatible(
            f"backend allocated {info.allocation_bytes} of {desc.nbytes} bytes"
        )
    if not is_power_of_two(info.alignment) or info.alignment < desc.alignment:
        raise Incompatible(
            f"backend aligned to {info.alignment}, {desc.alignment} was requested"
        )
    missing = _REQUIRED_PROPERTIES[desc.domain] & ~properties
    if desc.usage & USAGE_PROGRAM:
        missing |= BufferProperties.DIRECT_BINDING & ~properties
    if missing:
        raise Incompatible(
            f"{desc.domain.name} buffer of usage {desc.usage!r} lacks {missing!r}"
        )
