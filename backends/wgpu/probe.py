"""What an adapter is: plain data, judged and chosen without a driver.

`adapters.Adapters` reads `AdapterFacts` from wgpu-native. Everything here works on values
and can be tried with made-up ones.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tosavk.core.descriptors import (
    Capabilities,
    DeviceClass,
    DeviceIdentity,
    DeviceInfo,
    DeviceLimits,
)
from tosavk.core.errors import DeviceUnavailable
from tosavk.core.plan import PlanLimits
from tosavk.core.switches import INT8_DOT, switched_off

MIN_STORAGE_BUFFERS = 4
MIN_WORKGROUP = 64
PARAMETER_BYTES = 128
"""Bytes of one parameter block: 31 words and the zero."""

PARAMETER_STRIDE = 256
"""Bytes from one parameter block to the next; WebGPU allows alignments up to this."""

_WORD = 4


class Kind(enum.Enum):
    """What kind of device an adapter is."""

    DISCRETE = "discrete"
    INTEGRATED = "integrated"
    OTHER = "other"
    CPU = "cpu"


_RANK = {Kind.DISCRETE: 0, Kind.INTEGRATED: 1, Kind.OTHER: 2, Kind.CPU: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an adapter that tosavk heeds; the defaults are WebGPU's own.

    Attributes:
        buffer_bytes: bytes of one buffer.
        storage_binding_bytes: bytes one storage binding may cover.
        storage_buffers: storage buffers one kernel may bind.
        workgroup_invocations: invocations of a work group.
        workgroup_width: invocations of a work group along x.
        workgroup_bytes: shared memory of a work group.
        workgroups: work groups along one dimension.
        storage_alignment: alignment of a storage binding's offset.
        uniform_alignment: alignment of a uniform binding's offset.
    """

    buffer_bytes: int = 1 << 28
    storage_binding_bytes: int = 1 << 27
    storage_buffers: int = 8
    workgroup_invocations: int = 256
    workgroup_width: int = 256
    workgroup_bytes: int = 16384
    workgroups: int = 65535
    storage_alignment: int = 256
    uniform_alignment: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """What an adapter tells of itself.

    Attributes:
        name: device name.
        driver: driver name and version, may be empty.
        api: graphics interface under WebGPU, such as "Vulkan".
        kind: kind of device.
        vendor_id: vendor number.
        device_id: the vendor's device number.
        limits: limits.
        mappable_primary: whether storage buffers may be mapped.
    """

    name: str
    driver: str = ""
    api: str = "Vulkan"
    kind: Kind = Kind.OTHER
    vendor_id: int = 0
    device_id: int = 0
    limits: Limits = Limits()
    mappable_primary: bool = False


@dataclass(frozen=True, slots=True)
class DeviceListing:
    """A device for a list that people read.

    Attributes:
        index: number to choose it by.
        name: name of the device.
        driver: graphics interface, driver name and version text.
        uuid: always "": WebGPU has none.
        usable: whether it can be opened.
        reason: why not; "" if it can.
        facts: all that is known.
    """

    index: int
    name: str
    driver: str
    uuid: str
    usable: bool
    reason: str
    facts: AdapterFacts

    @property
    def pci(self) -> str:
        """Numbers of vendor and device in hexadecimal."""
        return f"{self.facts.vendor_id:04x}:{self.facts.device_id:04x}"

    @classmethod
    def of(cls, index: int, facts: AdapterFacts) -> DeviceListing:
        """The listing of an adapter."""
        reason = unsuitable(facts)
        return cls(
            index=index,
            name=facts.name,
            driver=f"{facts.api}: {facts.driver}" if facts.driver else facts.api,
            uuid="",
            usable=reason is None,
            reason=reason or "",
            facts=facts,
        )

    def __str__(self) -> str:
        """One line that says how to choose it and whether it can be opened."""
        line = f"{self.index}: {self.name} ({self.driver})"
        return line if self.usable else f"{line}: unusable, {self.reason}"


def unsuitable(facts: AdapterFacts) -> str | None:
    """Why an adapter cannot be used; None if it can."""
    limits = facts.limits
    needs = (
        ("storage buffers in a kernel", limits.storage_buffers, MIN_STORAGE_BUFFERS),
        ("invocations of a work group", limits.workgroup_invocations, MIN_WORKGROUP),
        ("work-group width", limits.workgroup_width, MIN_WORKGROUP),
        ("work groups along a dimension", limits.workgroups, 65535),
    )
    for what, has, need in needs:
        if has < need:
            return f"it allows {has} {what}, at least {need} are needed"
    for what, alignment in (
        ("storage", limits.storage_alignment),
        ("uniform", limits.uniform_alignment),
    ):
        if alignment > PARAMETER_STRIDE:
            return (
                f"its {what} bindings need {alignment}-byte alignment, at most "
                f"{PARAMETER_STRIDE} is served"
            )
    return None


def choose(listings: Sequence[DeviceListing], selector: str | None) -> DeviceListing:
    """The device that a selector means.

    Args:
        listings: every device.
        selector: None for the best usable one (discrete, integrated, other, CPU; the
            first of equals); an index; or a part of a device or driver name, in any
            case of letters.

    Raises:
        DeviceUnavailable: none fits, several do, or the one that fits is unusable.
    """
    names = "; ".join(str(listing) for listing in listings) or "none"
    if selector is None:
        usable = [listing for listing in listings if listing.usable]
        if not usable:
            raise DeviceUnavailable(f"no usable wgpu device; found: {names}")
        return min(usable, key=lambda listing: _RANK[listing.facts.kind])
    part = selector.casefold()
    if part.isdecimal():
        found = [listing for listing in listings if listing.index == int(part)]
    else:
        found = [
            listing
            for listing in listings
            if part in listing.name.casefold() or part in listing.driver.casefold()
        ]
    if not found:
        raise DeviceUnavailable(
            f"no wgpu device fits {selector!r}; found: {names}. Choose by index or by "
            "a part of a device or driver name"
        )
    if len(found) > 1:
        fitting = "; ".join(str(listing) for listing in found)
        raise DeviceUnavailable(
            f"{selector!r} fits {len(found)} wgpu devices: {fitting}. Choose by index"
        )
    if not found[0].usable:
        raise DeviceUnavailable(f"wgpu device {found[0]}")
    return found[0]


def max_buffer_bytes(limits: Limits) -> int:
    """Largest buffer in bytes: one storage binding must cover it."""
    return min(limits.buffer_bytes, limits.storage_binding_bytes) & -_WORD


def plan_limits(limits: Limits, switches: Collection[str] = ()) -> PlanLimits:
    """What plans for this adapter may ask for, with some things left alone."""
    largest = max_buffer_bytes(limits)
    lacks = dict(PlanLimits().lacks)
    # WGSL has packed dot products; where the device has none, wgpu writes them out.
    if off := switched_off(switches, INT8_DOT):
        lacks["int8_dot"] = off
    else:
        del lacks["int8_dot"]
    return PlanLimits(
        max_storage_buffer_range=largest,
        segment_bytes=min(PlanLimits().segment_bytes, largest),
        max_storage_buffers=limits.storage_buffers,
        max_parameter_bytes=PARAMETER_BYTES,
        max_workgroup_count=limits.workgroups,
        lacks=tuple(lacks.items()),
    )


def device_info(facts: AdapterFacts) -> DeviceInfo:
    """The identity and limits that an opened adapter advertises.

    WebGPU has no device UUID, so one is derived from everything that names the device:
    equal adapters of two machines have equal UUIDs.
    """
    naming = (
        facts.name,
        facts.driver,
        facts.api,
        facts.kind.value,
        f"{facts.vendor_id:#x}",
        f"{facts.device_id:#x}",
    )
    digest = hashlib.sha256("\0".join(naming).encode()).digest()
    capabilities = Capabilities.DEVICE_LOCAL_MEMORY
    if facts.mappable_primary:
        capabilities |= Capabilities.HOST_VISIBLE_MEMORY
        # On a discrete card mappable storage lies in host memory.
        if facts.kind in {Kind.CPU, Kind.INTEGRATED}:
            capabilities |= Capabilities.SHARED_MEMORY
    return DeviceInfo(
        identity=DeviceIdentity(
            uuid=digest[:16],
            device_class=DeviceClass.OTHER
            if facts.kind is Kind.CPU
            else DeviceClass.GPU,
            vendor_id=facts.vendor_id,
            device_id=facts.device_id,
        ),
        limits=DeviceLimits(max_buffer_bytes=max_buffer_bytes(facts.limits)),
        capabilities=capabilities,
    )
