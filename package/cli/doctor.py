"""`tosavk doctor`: what this environment is, for a bug report. Never fails."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from rich.table import Table

from tosavk.backends.registry import devices as list_devices
from tosavk.cli import devices
from tosavk.cli.console import out
from tosavk.cli.options import write_json

if TYPE_CHECKING:
    from tosavk.cli.types import Subparsers

_PACKAGES = (
    "tosavk",
    "vulkan",
    "wgpu",
    "numpy",
    "flatbuffers",
    "ml_dtypes",
    "cffi",
    "rich",
)
_VARIABLES = (
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "VK_LOADER_DRIVERS_SELECT",
    "VK_LAYER_PATH",
    "VK_INSTANCE_LAYERS",
    "WGPUPY_WGPU_ADAPTER_NAME",
    "TOSAVK_VALIDATION",
    "TOSAVK_CACHE_DIR",
)


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser("doctor", help="environment report for a bug report")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Prints the report; always 0."""
    report = document()
    if options.json:
        write_json("-", report)
        return 0
    console = out()
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for section in ("system", "packages", "environment"):
        entries = report[section]
        assert isinstance(entries, dict)
        for name, value in entries.items():
            table.add_row(str(name), str(value))
        table.add_section()
    console.print(table)
    console.print(devices.table(list_devices()))
    return 0


def document() -> dict[str, object]:
    """The report as JSON data (docs/json.md)."""
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
        "environment": {
            name: os.environ[name] for name in _VARIABLES if name in os.environ
        },
        "devices": devices.document(list_devices())["devices"],
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
