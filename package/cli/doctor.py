"""`tosavk doctor`: what this environment is, for a bug report. Never fails."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from typing import TYPE_CHECKING, cast

from tosavk.cli.options import show_switches, write_json
from tosavk.core.switches import environment_switches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosavk.backends.nvfp4_report import KernelReport
    from tosavk.backends.registry import DeviceRecord
    from tosavk.cli.types import Subparsers

_PACKAGES = (
    "tosavk",
    "vulkan",
    "wgpu",
    "numpy",
    "flatbuffers",
    "ml_dtypes",
    "cffi",
    "jinja2",
    "rich",
    "safetensors",
)
DRIVER_VARIABLES = (
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "VK_LOADER_DRIVERS_SELECT",
    "VK_LOADER_DRIVERS_DISABLE",
    "VK_LAYER_PATH",
    "VK_ADD_LAYER_PATH",
    "VK_INSTANCE_LAYERS",
    "WGPUPY_WGPU_ADAPTER_NAME",
    "TOSAVK_DISABLE",
)
"""Variables that choose drivers and layers, and what of a device is used."""

_VARIABLES = (
    *DRIVER_VARIABLES,
    "TOSAVK_VALIDATION",
    "TOSAVK_CACHE_DIR",
)


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "doctor",
        help="environment report for a bug report",
        description="Print what a bug report needs: versions, drivers, devices.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="as JSON (docs/json.md)")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Prints the report; always 0."""
    records, failure = _devices()
    kernels = _kernels(records)
    report = document(records, failure, kernels)
    if options.json:
        write_json("-", report)
        return 0
    from tosavk.cli import devices, nvfp4
    from tosavk.cli.console import BAD, TITLE, Column, out, say, show_table

    console = out()
    for section in ("system", "packages", "vulkan", "environment"):
        entries = cast("dict[str, object]", report[section])
        say(console, section, TITLE)
        show_table(
            console,
            (Column(""), Column("")),
            [(name, str(value) or "none") for name, value in entries.items()],
        )
    show_switches(console)
    say(console, "devices", TITLE)
    if failure:
        say(console, f"  {failure}", BAD)
    devices.show(console, records)
    say(console, "NVFP4 kernels", TITLE)
    nvfp4.show(console, kernels)
    return 0


def document(
    records: tuple[DeviceRecord, ...],
    failure: str = "",
    kernels: Sequence[KernelReport] = (),
) -> dict[str, object]:
    """The report as JSON data (docs/json.md).

    Args:
        records: the devices.
        failure: why they could not be listed, or "".
        kernels: which NVFP4 kernel each of them runs.
    """
    from tosavk.cli import devices, nvfp4

    return {
        "format": "tosavk.doctor",
        "version": 1,
        "system": {
            "python": sys.version.split()[0],
            "implementation": platform.python_implementation(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        },
        "packages": {name: _version(name) for name in _PACKAGES},
        "vulkan": _vulkan(),
        "switches": sorted(environment_switches()),
        "environment": {
            name: os.environ[name] for name in _VARIABLES if name in os.environ
        },
        "devices": devices.document(records)["devices"],
        "failure": failure,
        "nvfp4": nvfp4.document(kernels),
    }


def _kernels(records: Sequence[DeviceRecord]) -> tuple[KernelReport, ...]:
    """Which NVFP4 kernel each device runs; the devices are opened for this."""
    from tosavk.backends.nvfp4_report import kernel_reports

    usable = [r.spec for r in records if r.usable and r.backend != "reference"]
    return kernel_reports(usable)


def _vulkan() -> dict[str, str]:
    """Versions of the Vulkan loader and of the validation layer; "" without."""
    try:
        from tosavk.backends.vulkan._ffi import open_loader
        from tosavk.backends.vulkan.layers import (
            find_layer,
            loader_version,
            version_text,
        )

        calls = open_loader().calls
        layer = find_layer(calls)
        return {
            "loader": version_text(loader_version(calls)),
            "validation layer": layer.number if layer else "",
        }
    except Exception:  # noqa: BLE001 - the list of devices says what is wrong
        return {"loader": "", "validation layer": ""}


def _devices() -> tuple[tuple[DeviceRecord, ...], str]:
    """The devices, and why they could not be listed if so."""
    try:
        from tosavk.backends.registry import devices

        return devices(), ""
    except Exception as error:  # noqa: BLE001 - a broken driver is what this is for
        return (), f"listing the devices failed: {type(error).__name__}: {error}"


def _version(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
