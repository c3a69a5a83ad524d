"""`tosavk doctor`: what this environment is, for a bug report. Never fails."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tosavk.cli.options import show_switches, write_json
from tosavk.core.switches import environment_switches
from tosavk.differential.variables import DRIVER_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosavk.backends.nvfp4_report import KernelReport
    from tosavk.backends.registry import DeviceRecord
    from tosavk.cli.types import Subparsers
    from tosavk.differential.selftest import SelfTest

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
_VARIABLES = (
    *DRIVER_VARIABLES,
    "TOSAVK_VALIDATION",
    "TOSAVK_VALIDATION_LOG",
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
    tests, untested = _self_test(records)
    report = without_home(document(records, failure, kernels, tests, untested))
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
    say(console, "self-test", TITLE)
    for test in tests:
        what = test.failure or f"{test.operators} operators of FP16"
        style = "" if test.outcome == "passed" else BAD
        say(console, f"  {test.spec}: {test.outcome}: {what}", style)
        for text in test.wrong:
            say(console, f"    {text}", BAD)
    if untested:
        say(console, f"  {untested}", BAD)
    console.print()
    say(console, "NVFP4 kernels", TITLE)
    nvfp4.show(console, kernels)
    return 0


def document(
    records: tuple[DeviceRecord, ...],
    failure: str = "",
    kernels: Sequence[KernelReport] = (),
    tests: Sequence[SelfTest] = (),
    untested: str = "",
) -> dict[str, object]:
    """The report as JSON data (docs/json.md).

    Args:
        records: the devices.
        failure: why they could not be listed, or "".
        kernels: which NVFP4 kernel each of them runs.
        tests: what the self-test says of each.
        untested: why there was none, or "".
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
        "self_test": [
            {
                "spec": test.spec,
                "device": test.device,
                "outcome": test.outcome,
                "operators": test.operators,
                "wrong": list(test.wrong),
                "failure": test.failure,
            }
            for test in tests
        ],
        "self_test_failure": untested,
    }


def without_home(report: dict[str, object]) -> dict[str, object]:
    """The report with the home folder as ~ wherever it is named."""
    try:
        home = str(Path.home())
    except RuntimeError:
        return report
    if len(home) < 2:
        return report

    def clean(value: object) -> object:
        if isinstance(value, str):
            return value.replace(home, "~")
        if isinstance(value, dict):
            items = cast("dict[str, object]", value).items()
            return {name: clean(item) for name, item in items}
        if isinstance(value, list):
            return [clean(item) for item in cast("list[object]", value)]
        return value

    return cast("dict[str, object]", clean(report))


def _self_test(records: Sequence[DeviceRecord]) -> tuple[Sequence[SelfTest], str]:
    """What a known-answer test says of each device, or why there was none."""
    specs = [r.spec for r in records if r.usable and r.backend != "reference"]
    try:
        from tosavk.differential.selftest import self_test

        return self_test(specs), ""
    except Exception as error:  # noqa: BLE001 - this command never fails
        return (), f"the self-test failed: {type(error).__name__}: {error}"


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
