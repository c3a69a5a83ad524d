"""The backends by name, and how a backend specification chooses a device.

A specification is a backend's name, optionally followed by a colon and a device index,
UUID, or part of a device or driver name: `vulkan`, `vulkan:1`, `wgpu:llvmpipe`. Backend
modules are imported on first use, so that one broken driver binding hides nothing else.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from tosavk.core.accelerator import Accelerator
from tosavk.core.device import Device
from tosavk.core.errors import DeviceUnavailable, InitError, InvalidArgument
from tosavk.core.switches import known_switches

BACKENDS = ("vulkan", "wgpu", "reference")
DEVICE_VARIABLE = "TOSAVK_DEVICE"
"""Environment variable: specifications, separated by commas; each says which device is
meant where its backend is named without one."""


class Listing(Protocol):
    """One device as a backend lists it."""

    @property
    def index(self) -> int:
        """Position in the backend's list."""
        ...

    @property
    def name(self) -> str:
        """Device name."""
        ...

    @property
    def driver(self) -> str:
        """Driver name and version."""
        ...

    @property
    def uuid(self) -> str:
        """Device UUID, or "" where the API has none."""
        ...

    @property
    def usable(self) -> bool:
        """Whether it can be opened."""
        ...

    @property
    def reason(self) -> str:
        """Why it cannot be opened, or ""."""
        ...


class Backend(Protocol):
    """What every backend package offers."""

    def list_devices(self) -> Sequence[Listing]:
        """Every device it sees, usable or not."""
        ...

    def open_device(
        self, selector: str | None = None, *, switches: Collection[str] = ()
    ) -> Device:
        """Opens a device; some of what it offers may be left alone."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device of some backend, or a backend that cannot work here.

    Attributes:
        backend: name of the backend.
        index: device index in that backend; -1 when the backend itself is unusable.
        name: device name.
        driver: driver name and version.
        uuid: device UUID or "".
        usable: whether it can be opened.
        reason: why not.
        pci: numbers of vendor and device, such as 1002:73bf, or "".
    """

    backend: str
    index: int
    name: str
    driver: str
    uuid: str
    usable: bool
    reason: str
    pci: str = ""

    @property
    def spec(self) -> str:
        """The specification that opens exactly this device."""
        return f"{self.backend}:{self.index}" if self.index >= 0 else self.backend


def parse_spec(spec: str) -> tuple[str, str | None]:
    """Splits a backend specification into backend and device selector.

    Raises:
        InvalidArgument: no such backend.
    """
    name, _, selector = str(spec).partition(":")
    if name not in BACKENDS:
        raise InvalidArgument(
            f"backend {name!r} is unknown; choose one of {', '.join(BACKENDS)}"
        )
    return name, selector or None


def backend(name: str) -> Backend:
    """The backend package of that name."""
    return cast(Backend, importlib.import_module(f"tosavk.backends.{name}"))


def devices() -> tuple[DeviceRecord, ...]:
    """Every device of every backend, with the reason for unusable ones."""
    records: list[DeviceRecord] = []
    for name in BACKENDS:
        try:
            listings = backend(name).list_devices()
        except (InitError, ImportError, OSError) as error:
            records.append(DeviceRecord(name, -1, "", "", "", False, str(error)))
            continue
        if not listings:
            records.append(
                DeviceRecord(name, -1, "", "", "", False, "no device was found")
            )
        records.extend(
            DeviceRecord(
                name,
                d.index,
                d.name,
                d.driver,
                d.uuid,
                d.usable,
                d.reason,
                pci=str(getattr(d, "pci", "")),
            )
            for d in listings
        )
    return tuple(records)


def preferred(name: str) -> str | None:
    """The device of a backend that TOSAVK_DEVICE names, if it does.

    Raises:
        InvalidArgument: the variable names an unknown backend, or no device of one.
    """
    found: str | None = None
    for item in os.environ.get(DEVICE_VARIABLE, "").split(","):
        if not item.strip():
            continue
        try:
            backend_name, selector = parse_spec(item.strip())
        except InvalidArgument as error:
            raise InvalidArgument(f"{DEVICE_VARIABLE}: {error}") from error
        if selector is None:
            raise InvalidArgument(
                f"{DEVICE_VARIABLE}: {item.strip()!r} names no device; give an index, a "
                "UUID or a part of a name, such as vulkan:1"
            )
        if backend_name == name:
            found = selector
    return found


def describe(spec: str = "vulkan") -> dict[str, Any]:
    """What is known of a device, ready for JSON; it is not opened.

    Of Vulkan: limits, features as available and as enabled, extensions, subgroups,
    cooperative matrices, memory heaps with what is used and free (null: the driver does
    not tell). Of the others what a device list tells.

    Raises:
        InvalidArgument: no such backend.
        InitError: no such device, or several.
    """
    name, selector = parse_spec(spec)
    selector = selector or preferred(name)
    module = backend(name)
    own = getattr(module, "describe", None)
    if own is not None:
        about = own(selector)
        return _plain({**about, "spec": f"{name}:{about['index']}"})
    listings = module.list_devices()
    wanted = (selector or "0").casefold()
    for d in listings:
        if wanted in (str(d.index), d.name.casefold()) or wanted in d.driver.casefold():
            break
        if wanted in d.name.casefold():
            break
    else:
        raise DeviceUnavailable(f"no {name} device matches {selector!r}")
    record = DeviceRecord(
        name,
        d.index,
        d.name,
        d.driver,
        d.uuid,
        d.usable,
        d.reason,
        pci=str(getattr(d, "pci", "")),
    )
    facts = getattr(d, "facts", None)
    known = dataclasses.asdict(facts) if facts is not None else {}
    return _plain({**dataclasses.asdict(record), "spec": record.spec, "facts": known})


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """The data as JSON has it: lists and texts."""
    return cast("dict[str, Any]", json.loads(json.dumps(data, default=_text)))


def _text(value: object) -> str:
    return str(value.value if isinstance(value, enum.Enum) else value)


def open_accelerator(spec: str, *, disable: Collection[str] = ()) -> Accelerator:
    """Opens the device that a specification names.

    A specification without a device means the one that TOSAVK_DEVICE names, else the
    best one.

    Args:
        spec: the specification.
        disable: switches (`tosavk.core.switches`), besides those of TOSAVK_DISABLE.

    Raises:
        InvalidArgument: no such backend.
        InitError: no such device, several of them, or it cannot be opened.

    Warns:
        SwitchWarning: there is no such switch.
    """
    name, selector = parse_spec(spec)
    selector = selector or preferred(name)
    switches = known_switches(disable, source="disable")
    chosen = backend(name)
    if not switches:
        return Accelerator(chosen.open_device(selector))
    return Accelerator(chosen.open_device(selector, switches=switches))
