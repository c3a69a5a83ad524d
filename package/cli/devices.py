"""`tosavk devices`: every device of every backend."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from tosavk.cli.options import show_switches, write_json
from tosavk.core.switches import environment_switches

if TYPE_CHECKING:
    from rich.console import Console

    from tosavk.backends.registry import DeviceRecord
    from tosavk.cli.types import Subparsers


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "devices",
        help="list the devices of every backend",
        description="List every device of every backend, and why not for unusable ones.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="as JSON (docs/json.md)")
    parser.add_argument(
        "--describe",
        metavar="S",
        help="print all that is known of one device as JSON: limits, features, memory",
    )
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Lists the devices; 4 when none is usable."""
    from tosavk.backends.registry import devices

    if options.describe:
        from tosavk.backends.registry import describe

        about = describe(options.describe)
        write_json("-", {"format": "tosavk.device", "version": 1, **about})
        return 0
    records = devices()
    if options.json:
        write_json("-", document(records))
    else:
        from tosavk.cli.console import out

        show(out(), records)
        show_switches(out())
    return 0 if any(r.usable for r in records) else 4


def document(records: tuple[DeviceRecord, ...]) -> dict[str, object]:
    """The device list as JSON data (docs/json.md)."""
    return {
        "format": "tosavk.devices",
        "version": 1,
        "switches": sorted(environment_switches()),
        "devices": [
            {**dataclasses.asdict(record), "spec": record.spec} for record in records
        ],
    }


def show(console: Console, records: tuple[DeviceRecord, ...]) -> None:
    """Prints the device list for people, the reasons below it."""
    from tosavk.cli.console import BAD, GOOD, SOFT, Column, say, show_table

    show_table(
        console,
        (
            Column("backend"),
            Column("usable"),
            Column("device", least=18),
            Column("driver", least=18),
        ),
        [
            (
                record.spec,
                ("yes", GOOD) if record.usable else ("no", BAD),
                record.name or "-",
                record.driver or "-",
            )
            for record in records
        ],
    )
    for record in records:
        if record.usable and (record.uuid or record.pci):
            ids = {"UUID": record.uuid, "PCI": record.pci}
            text = ", ".join(f"{name} {value}" for name, value in ids.items() if value)
            say(console, f"  {record.spec}: {text}", SOFT)
    refused = [record for record in records if not record.usable]
    for record in refused:
        say(console, f"  {record.spec}: {record.reason}")
    if refused:
        console.print()
