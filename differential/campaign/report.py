"""The report of a campaign: one HTML file, with the report of every model in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from tosavk.differential.campaign.remote import version
from tosavk.differential.campaign.run import CampaignResult
from tosavk.differential.pages import template
from tosavk.differential.report import render as render_model
from tosavk.differential.result import DiffResult, Verdict
from tosavk.differential.summary import summary as model_summary
from tosavk.differential.text import counted


@dataclass(frozen=True, slots=True)
class Row:
    """A model and what every device says of it.

    Attributes:
        name: of the model's file.
        verdict: of all devices.
        cells: text and style for each device.
        summary: in one sentence.
        page: its whole report.
    """

    name: str
    verdict: str
    cells: tuple[tuple[str, str], ...]
    summary: str
    page: str


def render(result: CampaignResult) -> str:
    """The report as HTML text."""
    devices = result.plan.devices
    return template("campaign.html.j2").render(
        result=result,
        devices=devices,
        rows=[_row(model, devices) for model in result.models],
        summary=summary(result),
        command=" ".join(result.plan.command),
        version=version() or "(not installed)",
    )


def summary(result: CampaignResult) -> str:
    """The verdict in one sentence."""
    verdicts = [model.verdict for model in result.models]
    parts: list[str] = []
    if verdicts:
        agreed = sum(v is Verdict.AGREED for v in verdicts)
        parts.append(f"{agreed} of {len(verdicts)} models agree")
    for item in result.fuzzed:
        parts.append(
            f"{counted(item.programs, 'random program')} on {item.spec}, "
            f"{counted(len(item.findings), 'finding')}"
        )
    if result.not_run:
        parts.append(f"not run: {counted(len(result.not_run), 'task')}")
    devices = counted(len(result.plan.devices), "device")
    return f"{devices}: {'; '.join(parts) or 'nothing ran'}."


def cell(model: DiffResult, spec: str) -> tuple[str, str]:
    """What a device says of a model, and the style of that."""
    run = next((r for r in model.runs if r.label == spec), None)
    if run is None or not run.ran:
        if run is not None and run.ending.is_fault:
            return str(run.ending), "no"
        return ("not run" if run is None or not run.compared else "ran"), "warn"
    if any(spec in finding.backends for finding in model.findings):
        return "differs", "no"
    return "agrees", "ok"


def _row(model: DiffResult, devices: tuple[str, ...]) -> Row:
    return Row(
        PurePath(model.model).name,
        model.verdict.value,
        tuple(cell(model, spec) for spec in devices),
        model_summary(model),
        render_model(model),
    )
