"""The devices that tests run on.

A *lane* is a device specification that every test of a device is run for. Four lanes
are always collected, whether their driver is there or not, so that a missing driver
is seen: as a skip with its reason, or as a failure where TOSAVK_REQUIRE_DEVICES asks
for the device. Other devices of the machine (real GPUs) are further lanes.

Environment:
    TOSAVK_REQUIRE_DEVICES: `1` requires the four lanes, a comma list requires those
        that it names.
    TOSAVK_TEST_DEVICES: a comma list of specifications, to be used instead of the
        four lanes and of what the machine has.
"""

import functools
import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

LANES = ("vulkan:llvmpipe", "vulkan:SwiftShader", "wgpu:llvmpipe", "reference")
CPU_DRIVERS = ("llvmpipe", "swiftshader")


class DeviceRecord(Protocol):
    """What the tests use of an element of `tosavk.devices()`."""

    backend: str
    name: str
    spec: str
    usable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A device specification, and whether the device is there.

    Attributes:
        spec: What `tosavk.open` is given.
        driver: Name and version of the driver, for expected failures; may be empty.
        missing: Why the device cannot be used, or empty.
    """

    spec: str
    driver: str
    missing: str

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.spec.partition(":")[0]


@functools.cache
def records() -> tuple[tuple[DeviceRecord, ...], str]:
    """Asks tosavk for its devices, once in a process.

    Returns:
        The devices, and why there are none if tosavk could not say.
    """
    try:
        tosavk = importlib.import_module("tosavk")
        found = cast("Iterable[DeviceRecord]", tosavk.devices())
        return tuple(found), ""
    except Exception as error:  # noqa: BLE001 - a broken driver fails its tests, not all
        return (), f"tosavk.devices() failed: {type(error).__name__}: {error}"


def matches(record: DeviceRecord, spec: str) -> bool:
    """Whether a specification means this device."""
    backend, _, part = spec.partition(":")
    if record.spec == spec:
        return True
    names = f"{record.name} {getattr(record, 'driver', '')}".casefold()
    return record.backend == backend and part.casefold() in names


def driver_of(record: DeviceRecord) -> str:
    """Returns what is known of a device's driver."""
    parts = (record.name, getattr(record, "driver", ""))
    return " ".join(str(part) for part in parts if part)


@functools.cache
def lane(spec: str) -> Lane:
    """Looks up a lane."""
    found, failure = records()
    candidates = [record for record in found if matches(record, spec)]
    for record in candidates:
        if record.usable:
            return Lane(spec, driver_of(record), "")
    for record in candidates:
        return Lane(spec, driver_of(record), record.reason or "not usable")
    seen = ", ".join(record.spec for record in found) or "none"
    return Lane(spec, "", failure or f"no such device (found: {seen})")


def named(variable: str) -> tuple[str, ...]:
    """Returns the elements of a comma list in the environment."""
    value = os.environ.get(variable, "")
    return tuple(part.strip() for part in value.split(",") if part.strip())


def required() -> tuple[str, ...]:
    """Returns the specifications whose absence is a failure."""
    value = named("TOSAVK_REQUIRE_DEVICES")
    if value == ("1",):
        return named("TOSAVK_TEST_DEVICES") or LANES
    return () if value == ("0",) else value


@functools.cache
def lanes() -> tuple[str, ...]:
    """Returns the specifications that every test of a device is run for."""
    chosen = named("TOSAVK_TEST_DEVICES")
    if chosen:
        return chosen
    further = [
        record.spec
        for record in records()[0]
        if record.usable
        and not any(matches(record, spec) for spec in LANES)
        and not any(cpu in driver_of(record).casefold() for cpu in CPU_DRIVERS)
    ]
    return (*LANES, *(spec for spec in required() if spec not in LANES), *further)


def available() -> tuple[str, ...]:
    """Returns the lanes whose device is there."""
    return tuple(spec for spec in lanes() if not lane(spec).missing)


def first(backend: str) -> str:
    """Returns the first lane of a backend whose device is there, or an empty text."""
    return next((s for s in available() if s.partition(":")[0] == backend), "")
