"""What `tosavk inspect` and `tosavk doctor` say of NVFP4."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tosavk.backends.nvfp4_report import KernelReport
    from tosavk.lowering.nvfp4.artifact import Program


def document(reports: Sequence[KernelReport]) -> list[dict[str, object]]:
    """The reports as JSON data (docs/json.md)."""
    return [
        {
            "spec": report.spec,
            "program": report.program,
            "numerics": report.numerics.value,
            "kernel": report.kernel,
            "rejected": [
                {"kernel": r.kernel, "reason": r.reason} for r in report.rejected
            ],
            "failure": report.failure,
        }
        for report in reports
    ]


def show(console: Console, reports: Sequence[KernelReport]) -> None:
    """Prints the reports, and the reasons below the table."""
    from tosavk.cli.console import BAD, Column, say, show_table

    show_table(
        console,
        (
            Column("backend"),
            Column("program", least=20),
            Column("numerics"),
            Column("kernel", least=14),
        ),
        [
            (
                report.spec,
                report.program,
                report.numerics.value,
                report.kernel or ("none", BAD),
            )
            for report in reports
        ],
    )
    # Each reason once, with all kernels that it keeps out.
    told: dict[tuple[str, str], dict[str, None]] = {}
    for report in reports:
        if report.failure:
            say(console, f"  {report.spec}: {report.failure}")
        for rejected in report.rejected:
            kept_out = told.setdefault((report.spec, rejected.reason), {})
            kept_out[rejected.kernel] = None
    for (spec, reason), names in told.items():
        say(console, f"  {spec}: no {', '.join(names)}: {reason}")


def inspect_document(
    program: Program, reports: Sequence[KernelReport]
) -> dict[str, object]:
    """An NVFP4 artifact as JSON data (docs/json.md)."""
    from tosavk.lowering.nvfp4.lower import slots_of

    return {
        "format": "tosavk.inspect",
        "version": 1,
        "nvfp4": str(program),
        "slots": [
            {
                "index": slot.index,
                "name": slot.name,
                "role": slot.role.value,
                "dtype": slot.dtype.name,
                "shape": list(slot.shape),
                "bytes": slot.nbytes,
            }
            for slot in slots_of(program)
        ],
        "kernels": document(reports),
    }


def inspect_show(
    console: Console, program: Program, reports: Sequence[KernelReport]
) -> None:
    """Prints an NVFP4 artifact."""
    from tosavk.cli.console import Column, dims, say, show_table
    from tosavk.lowering.nvfp4.lower import slots_of

    say(console, f"  {program}")
    show_table(
        console,
        (
            Column("slot", right=True),
            Column("name"),
            Column("role"),
            Column("type"),
            Column("bytes", right=True),
        ),
        [
            (
                str(slot.index),
                slot.name,
                slot.role.value,
                f"{slot.dtype.name} {dims(slot.shape)}",
                str(slot.nbytes),
            )
            for slot in slots_of(program)
        ],
    )
    show(console, reports)


def usable_specs() -> list[str]:
    """Devices that can be opened, without the reference."""
    from tosavk.backends.registry import devices

    return [r.spec for r in devices() if r.usable and r.backend != "reference"]
