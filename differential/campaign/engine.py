"""Sends tasks to workers that have their devices, until all are done or cannot be.

One task at a time runs on a worker, so that no two measure or exhaust one device at once.
A worker that goes away costs only the time of its task: that is run again on any worker
with the same device, the same one started anew included.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tosavk.core.errors import InvalidArgument
from tosavk.differential.campaign.packet import Packet, opened
from tosavk.differential.campaign.store import Store
from tosavk.differential.campaign.task import DiffTask, Task, text_of
from tosavk.differential.campaign.workers import Pool, Running, WorkerRecord

_POLL_S = 0.2
_TRIES = 3


@dataclass(slots=True)
class Outcome:
    """What became of the tasks.

    Attributes:
        done: results by key of the task.
        found: keys of those that an earlier start had left.
        where: name of the worker that did it, by key.
        not_run: why a task could not be done, by key.
        events: what happened on the way: workers that went away, tasks run again.
        workers: all that were seen, the newest of each name.
    """

    done: dict[str, Packet] = field(default_factory=dict[str, Packet])
    found: set[str] = field(default_factory=set[str])
    where: dict[str, str] = field(default_factory=dict[str, str])
    not_run: dict[str, str] = field(default_factory=dict[str, str])
    events: list[str] = field(default_factory=list[str])
    workers: dict[str, WorkerRecord] = field(default_factory=dict[str, WorkerRecord])


@dataclass(frozen=True, slots=True)
class _Flight:
    task: Task
    worker: WorkerRecord
    running: Running


class Engine:
    """Does tasks on a pool of workers.

    Args:
        pool: the workers.
        store: keeps results.
        patience_s: seconds that a task waits for a worker with its device.
        progress: told what is under way.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        pool: Pool,
        store: Store,
        *,
        patience_s: float,
        progress: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing runs yet."""
        self._pool = pool
        self._store = store
        self._patience_s = patience_s
        self._progress = progress
        self._clock = clock
        self.outcome = Outcome()
        self._pending: list[Task] = []
        self._flights: list[_Flight] = []
        self._failures: Counter[str] = Counter()
        self._lacking: dict[str, set[str]] = {}
        self._sending: set[tuple[str, str]] = set()
        self._since: dict[str, float] = {}
        self._total = 0

    def run(self, tasks: Sequence[Task]) -> Outcome:
        """Does the tasks that no earlier start has done; raises nothing of theirs."""
        self._total += len(tasks)
        for task in tasks:
            kept = self._store.get(task)
            if kept is None:
                self._pending.append(task)
            else:
                self.outcome.done[task.key] = kept
                self.outcome.found.add(task.key)
        try:
            while self._pending or self._flights:
                alive = self._pool.workers()
                self.outcome.workers.update({w.name: w for w in alive.values()})
                self._land(alive)
                self._start(alive)
                self._give_up(alive)
                self._tell(alive)
                if self._flights or self._pending:
                    self._pool.wait([f.running for f in self._flights], _POLL_S)
        finally:
            for flight in self._flights:
                flight.running.cancel()
        return self.outcome

    def _land(self, alive: Mapping[str, WorkerRecord]) -> None:
        """Takes in what has ended."""
        for flight in list(self._flights):
            if flight.running.done():
                self._flights.remove(flight)
                try:
                    data = flight.running.result()
                except Exception as error:  # noqa: BLE001 - whatever ended it is told
                    reason = f"{type(error).__name__}: {error}"
                    self._again(flight, reason)
                else:
                    self._take(flight, data)
            elif flight.worker.address not in alive:
                self._flights.remove(flight)
                flight.running.cancel()
                self._again(flight, f"the worker {flight.worker} went away")

    def _take(self, flight: _Flight, data: bytes) -> None:
        task = flight.task
        try:
            document = opened(data).document
        except InvalidArgument as error:
            self._again(flight, str(error))
            return
        if "result" in document:
            self.outcome.done[task.key] = self._store.put(task, data)
            self.outcome.where[task.key] = flight.worker.name
            return
        if document.get("wanted"):
            # It has not the model's file; that goes along from now on.
            first = (task.key, flight.worker.address) not in self._sending
            if first:
                self._sending.add((task.key, flight.worker.address))
                self._pending.insert(0, task)
            else:
                self._again(flight, f"{flight.worker} could not keep the model's file")
        elif "lacks" in document:
            text = f"{flight.worker} has {task.spec} no longer: {document['lacks']}"
            self.outcome.events.append(text)
            self._lacking.setdefault(flight.worker.address, set()).add(task.spec)
            self._pending.insert(0, task)
        else:
            self.outcome.not_run[task.key] = str(document.get("error", "no result"))

    def _again(self, flight: _Flight, reason: str) -> None:
        """Puts a task back, unless it has failed too often."""
        key = flight.task.key
        self._failures[key] += 1
        if self._failures[key] >= _TRIES:
            text = f"tried {_TRIES} times; the last time {reason}"
            self.outcome.not_run[key] = text
            return
        self.outcome.events.append(f"{flight.task}: {reason}; it is run again")
        self._pending.insert(0, flight.task)

    def _start(self, alive: Mapping[str, WorkerRecord]) -> None:
        """Gives every idle worker the first task that it can do."""
        busy = {flight.worker.address for flight in self._flights}
        for address, worker in alive.items():
            if address in busy:
                continue
            task = next((t for t in self._pending if self._can(worker, t)), None)
            if task is None:
                continue
            self._pending.remove(task)
            self._since.pop(task.key, None)
            data = None
            if isinstance(task, DiffTask) and (task.key, address) in self._sending:
                data = Path(task.path).read_bytes()
            running = self._pool.submit(address, text_of(task), data)
            self._flights.append(_Flight(task, worker, running))

    def _give_up(self, alive: Mapping[str, WorkerRecord]) -> None:
        """Ends what no worker could do for too long."""
        now = self._clock()
        for task in list(self._pending):
            if any(self._can(worker, task) for worker in alive.values()):
                self._since.pop(task.key, None)
            elif now - self._since.setdefault(task.key, now) >= self._patience_s:
                self._pending.remove(task)
                self.outcome.not_run[task.key] = self._nobody(task.spec, alive)

    def _nobody(self, spec: str, alive: Mapping[str, WorkerRecord]) -> str:
        reasons = [f"{w.name}: {w.unusable}" for w in alive.values() if w.unusable]
        text = f"no worker has {spec}"
        if not alive:
            text += "; there is no worker at all"
        return f"{text} ({'; '.join(reasons)})" if reasons else text

    def _can(self, worker: WorkerRecord, task: Task) -> bool:
        lacking = self._lacking.get(worker.address, ())
        return task.spec not in lacking and worker.has(task.spec)

    def _tell(self, alive: Mapping[str, WorkerRecord]) -> None:
        done = len(self.outcome.done) + len(self.outcome.not_run)
        now = ", ".join(f"{f.worker.name}: {f.task}" for f in self._flights)
        waiting = "" if now else f"; {len(self._pending)} wait for a worker"
        self._progress(
            f"{done} of {self._total} done, {len(alive)} workers; {now}{waiting}"
        )
