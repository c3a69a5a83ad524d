"""`tosavk devices`: every device of every backend."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from rich.table import Table

from tosavk.backends.registry import DeviceRecord
from tosavk.backends.registry import devices as list_devices
from tosavk.cli.console import out
from tosavk.cli.options import write_json

if TYPE_CHECKING:
    from tosavk.cli.types import Subparsers


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser("devices", help="list the devices of every backend")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Lists the devices; 4 when none is usable."""
    records = list_devices()
    if options.json:
        write_json("-", document(records))
    else:
        out().print(table(records))
    return 0 if any(r.usable for r in records) else 4


def document(records: tuple[DeviceRecord, ...]) -> dict[str, object]:
    """The device list as JSON data (docs/json.md)."""
    return {
        "format": "tosavk.devices",
        "version": 1,
        "devices": [
            {**dataclasses.asdict(record), "spec": record.spec} for record in records
        ],
    }


def table(records: tuple[DeviceRecord, ...]) -> Table:
    """The device list for people."""
    result = Table(title=None)
    for column in ("backend", "device", "driver", "usable"):
        result.add_column(column, overflow="fold")
    for record in records:
        result.add_row(
            record.spec,
            record.name or "-",
            record.driver or "-",
            "yes" if record.usable else f"no: {record.reason}",
        )
    return result
