"""A campaign: models and random programs on the devices of many workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tosavk.backends.registry import parse_spec
from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.campaign.combine import Combination
from tosavk.differential.campaign.engine import Engine, Outcome
from tosavk.differential.campaign.packet import Packet
from tosavk.differential.campaign.store import Store
from tosavk.differential.campaign.task import DiffTask, FuzzTask, Task
from tosavk.differential.campaign.workers import Pool, WorkerRecord
from tosavk.differential.job import read_program
from tosavk.differential.result import DiffResult, Verdict
from tosavk.differential.sides import REFERENCE

CHUNK = 50
"""Random programs of one task: as many as share a palette of operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run.

    Attributes:
        devices: backend specifications.
        models: paths of models.
        shapes: of inputs whose dimensions the files leave open.
        seed: of inputs and of random programs.
        samples: runs with different inputs.
        generator: how inputs are chosen.
        numerics: mode.
        programs: how many random programs; 0: none.
        start: number of the first one.
        limit_s: seconds without a sign of life after which a backend is ended.
        patience_s: seconds that a task waits for a worker with its device.
        command: the words of the command line.
    """

    devices: tuple[str, ...]
    models: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[int, ...]]
    )
    seed: int = 0
    samples: int = 1
    generator: str = "auto"
    numerics: Numerics = Numerics.STRICT
    programs: int = 0
    start: int = 0
    limit_s: float = 120.0
    patience_s: float = 60.0
    command: tuple[str, ...] = ()

    def check(self) -> None:
        """Looks at what needs no worker.

        Raises:
            InvalidArgument: nothing to run, or a specification that cannot be meant.
        """
        if not self.models and not self.programs:
            raise InvalidArgument(
                "nothing to run: name models, or random programs with --fuzz N"
            )
        if not self.devices:
            raise InvalidArgument("no device to run on: name some with --device")
        for spec in self.devices:
            if parse_spec(spec)[0] == REFERENCE:
                raise InvalidArgument(
                    "the reference runs beside every device and is none of --device"
                )
        if len(set(self.devices)) < len(self.devices):
            raise InvalidArgument("a device is named twice")


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """Random programs on one device.

    Attributes:
        spec: of the device.
        device: its name and driver, or "".
        programs: how many were judged.
        findings: of all tasks, each as in `tosavk.fuzz`.
        exceptions: comparisons that differ by a known exception only.
        unsupported: programs that the device does not support.
        folder: where the findings are.
    """

    spec: str
    device: str
    programs: int
    findings: tuple[Mapping[str, Any], ...]
    exceptions: int
    unsupported: int
    folder: str


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """What a campaign found.

    Attributes:
        plan: what was asked for.
        models: a diff for each model of which there is a result.
        fuzzed: random programs, for each device.
        workers: those that took part.
        where: name of the worker that did a task, by text of the task; "before" where
            an earlier start had done it.
        not_run: why, by text of the task.
        events: what happened on the way.
    """

    plan: Plan
    models: tuple[DiffResult, ...]
    fuzzed: tuple[Fuzzed, ...]
    workers: tuple[WorkerRecord, ...]
    where: Mapping[str, str]
    not_run: Mapping[str, str]
    events: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """Different if anything is; failed if anything has not run; else agreed."""
        if any(m.verdict is Verdict.DIFFERENT for m in self.models) or any(
            f.findings for f in self.fuzzed
        ):
            return Verdict.DIFFERENT
        if self.not_run or any(m.verdict is Verdict.FAILED for m in self.models):
            return Verdict.FAILED
        return Verdict.AGREED

    def document(self) -> dict[str, object]:
        """The result as JSON data (docs/json.md)."""
        return {
            "format": "tosavk.campaign",
            "version": 1,
            "verdict": self.verdict.value,
            "command": list(self.plan.command),
            "devices": list(self.plan.devices),
            "workers": [
                {
                    "name": w.name,
                    "host": w.host,
                    "system": w.system,
                    "tosavk": w.tosavk,
                    "labels": list(w.labels),
                    "devices": [f"{d.name}, {d.driver}" for d in w.devices],
                    "unusable": w.unusable,
                }
                for w in self.workers
            ],
            "tasks": [{"task": t, "worker": name} for t, name in self.where.items()],
            "not_run": [{"task": t, "reason": r} for t, r in self.not_run.items()],
            "events": list(self.events),
            "models": [model.document() for model in self.models],
            "fuzzed": [dataclasses.asdict(item) for item in self.fuzzed],
        }


def campaign(
    plan: Plan,
    pool: Pool,
    folder: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> CampaignResult:
    """Runs what is missing of a campaign, and puts all of it together.

    Args:
        plan: what to run.
        pool: the workers.
        folder: for results; what is there of an earlier start is not run again.
        progress: told what is under way.

    Raises:
        InvalidArgument: the plan or a model is wrong, or the folder cannot be made.
    """
    plan.check()
    store = Store(folder)
    engine = Engine(pool, store, patience_s=plan.patience_s, progress=progress)
    run = _Campaign(plan, engine, store)
    models = run.models()
    fuzzed = run.fuzzed()
    outcome = engine.outcome
    texts = {task.key: str(task) for task in run.tasks}
    where = {
        texts[key]: "before" if key in outcome.found else outcome.where[key]
        for key in outcome.done
        if key in texts
    }
    return CampaignResult(
        plan=plan,
        models=models,
        fuzzed=fuzzed,
        workers=tuple(outcome.workers.values()),
        where=where,
        not_run={texts[key]: reason for key, reason in outcome.not_run.items()},
        events=tuple(outcome.events),
    )


class _Campaign:
    """One start of a campaign.

    Attributes:
        tasks: all of it.
    """

    def __init__(self, plan: Plan, engine: Engine, store: Store) -> None:
        self._plan = plan
        self._store = store
        self._programs = {
            model: read_program(model, plan.shapes) for model in plan.models
        }
        diffs: list[Task] = [
            self._task(model, spec) for model in plan.models for spec in plan.devices
        ]
        ranges = range(plan.start, plan.start + plan.programs, CHUNK)
        self._fuzz = [
            FuzzTask(
                spec=spec,
                seed=plan.seed,
                start=start,
                count=min(CHUNK, plan.start + plan.programs - start),
                numerics=plan.numerics.value,
                limit_s=plan.limit_s,
            )
            for start in ranges
            for spec in plan.devices
        ]
        self.tasks: list[Task] = [*diffs, *self._fuzz]
        self._engine = engine
        self._outcome: Outcome = engine.run(self.tasks)

    def models(self) -> tuple[DiffResult, ...]:
        """A diff for each model; what differs is looked at more closely first."""
        ready = {model: self._combined(model) for model in self._plan.models}
        closer: list[tuple[str, DiffTask]] = []
        for model, combination in ready.items():
            if combination is not None:
                closer += [
                    (model, self._task(model, spec, keep))
                    for spec, keep in combination.wanted().items()
                ]
        if closer:
            more = [task for _, task in closer]
            self.tasks += more
            self._engine.run(more)
        for model, task in closer:
            packet, combination = self._outcome.done.get(task.key), ready[model]
            if packet is not None and combination is not None:
                combination.fetched(task.spec, packet)
        return tuple(
            combination.result(self._missing(model))
            for model, combination in ready.items()
            if combination is not None
        )

    def fuzzed(self) -> tuple[Fuzzed, ...]:
        """Random programs, for each device that ran some."""
        return tuple(
            found
            for spec in self._plan.devices
            if (found := self._fuzzed(spec)) is not None
        )

    def _fuzzed(self, spec: str) -> Fuzzed | None:
        programs = exceptions = unsupported = 0
        device = folder = ""
        findings: list[Mapping[str, Any]] = []
        for task in self._fuzz:
            packet = self._outcome.done.get(task.key)
            if task.spec != spec or packet is None:
                continue
            try:
                document = cast("dict[str, Any]", packet.document["result"])
                programs += int(document["graphs"])
                exceptions += int(document["known_exceptions"])
                unsupported += len(document["unsupported"])
                findings += document["findings"]
                names = {b["label"]: str(b["device"]) for b in document["backends"]}
            except (KeyError, TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"the result of {task} is not sound: {error!r}"
                ) from error
            device = names.get(spec, "") or device
            if packet.blobs:
                folder = str(self._store.unpack(packet, task.key).parent)
        if not programs:
            return None
        return Fuzzed(
            spec, device, programs, tuple(findings), exceptions, unsupported, folder
        )

    def _task(self, model: str, spec: str, keep: Sequence[str] = ()) -> DiffTask:
        plan = self._plan
        return DiffTask(
            spec=spec,
            model=model,
            sha256=self._programs[model][1],
            path=str(Path(model).absolute()),
            shapes=plan.shapes,
            seed=plan.seed,
            samples=plan.samples,
            generator=plan.generator,
            numerics=plan.numerics.value,
            limit_s=plan.limit_s,
            keep=tuple(keep),
        )

    def _combined(self, model: str) -> Combination | None:
        packets: dict[str, Packet] = {}
        for spec in self._plan.devices:
            packet = self._outcome.done.get(self._task(model, spec).key)
            if packet is not None:
                packets[spec] = packet
        if not packets:
            return None
        return Combination(
            self._programs[model][0],
            model=model,
            numerics=self._plan.numerics,
            packets=packets,
        )

    def _missing(self, model: str) -> dict[str, str]:
        return {
            spec: reason
            for spec in self._plan.devices
            if (reason := self._outcome.not_run.get(self._task(model, spec).key))
        }
