"""Workers as a campaign sees them: what each is, and which devices it has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from tosavk.backends.registry import BACKENDS, DeviceRecord, parse_spec
from tosavk.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker.

    Attributes:
        address: where the scheduler reaches it.
        name: its name there.
        host: of the machine.
        system: operating system of the machine.
        tosavk: version of this package there.
        pid: number of its process.
        labels: backend specifications it was labelled with; empty: whatever it has.
        devices: the usable ones among which it may use.
        unusable: why it gets no work, or "".
    """

    address: str
    name: str
    host: str
    system: str
    tosavk: str
    pid: int
    labels: tuple[str, ...]
    devices: tuple[DeviceRecord, ...]
    unusable: str = ""

    def has(self, spec: str) -> bool:
        """Whether a specification means one device of it."""
        if self.unusable:
            return False
        if spec in self.labels:
            return bool(self.devices)
        _, selector = parse_spec(spec)
        found = matching(spec, self.devices)
        return len(found) == 1 or (bool(found) and selector is None)

    def __str__(self) -> str:
        """The worker in one line."""
        return f"{self.name} ({self.host})"


class Running(Protocol):
    """A task on its way."""

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        ...

    def result(self) -> bytes:
        """What it gave; raises what ended it otherwise."""
        ...

    def cancel(self) -> None:
        """Forgets it."""
        ...


class Pool(Protocol):
    """Where tasks run."""

    def workers(self) -> Mapping[str, WorkerRecord]:
        """The workers that are there now and have said what they are, by address."""
        ...

    def submit(self, address: str, text: str, model: bytes | None) -> Running:
        """Starts `remote.perform` on one worker."""
        ...

    def wait(self, running: Iterable[Running], seconds: float) -> None:
        """Waits until one of them is done, but not long."""
        ...


def record_of(
    address: str, name: str, labels: Iterable[str], text: str, *, version: str
) -> WorkerRecord:
    """The worker that `remote.describe` has described.

    Args:
        address: where it is.
        name: its name.
        labels: names of its Dask resources; those that are specifications are labels.
        text: what it said.
        version: of this package here; another one gives other results.

    Raises:
        InvalidArgument: the text is not what `describe` gives.
    """
    try:
        data = cast("dict[str, object]", json.loads(text))
        listed = tuple(
            DeviceRecord(
                backend=str(item["backend"]),
                index=int(cast("int", item["index"])),
                name=str(item["name"]),
                driver=str(item["driver"]),
                uuid=str(item["uuid"]),
                usable=bool(item["usable"]),
                reason=str(item["reason"]),
            )
            for item in cast("list[dict[str, object]]", data["devices"])
        )
        record = WorkerRecord(
            address=address,
            name=name,
            host=str(data["host"]),
            system=str(data["system"]),
            tosavk=str(data["tosavk"]),
            pid=int(cast("int", data["pid"])),
            labels=tuple(label for label in labels if _is_spec(label)),
            devices=tuple(d for d in listed if d.usable),
            unusable=str(data["failure"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"worker {name} describes itself in no known way: {error!r}"
        ) from error
    if record.tosavk != version:
        return replace(
            record,
            unusable=f"it has tosavk {record.tosavk or 'of no version'}, here is {version}",
        )
    if record.labels:
        return _restricted(record)
    return record


def matching(spec: str, devices: Sequence[DeviceRecord]) -> list[DeviceRecord]:
    """The devices that a specification may mean, as the backends choose them."""
    backend, selector = parse_spec(spec)
    found = [d for d in devices if d.backend == backend]
    if selector is None:
        return found
    wanted = selector.strip()
    if wanted.isdecimal():
        by_index = [d for d in found if d.index == int(wanted)]
        if by_index:
            return by_index
    plain = wanted.replace("-", "").lower()
    by_uuid = [d for d in found if d.uuid and d.uuid.replace("-", "").lower() == plain]
    if by_uuid:
        return by_uuid
    part = wanted.casefold()
    return [d for d in found if part in f"{d.name}\n{d.driver}".casefold()]


def _restricted(record: WorkerRecord) -> WorkerRecord:
    """Only the devices that it was labelled with."""
    kept: dict[DeviceRecord, None] = {}
    wrong: list[str] = []
    for label in record.labels:
        found = matching(label, record.devices)
        if not found:
            wrong.append(label)
        kept.update(dict.fromkeys(found))
    labels = tuple(label for label in record.labels if label not in wrong)
    reason = record.unusable
    if not labels and not reason:
        reason = f"it is labelled {', '.join(wrong)}, and has no such device"
    return replace(record, labels=labels, devices=tuple(kept), unusable=reason)


def _is_spec(text: str) -> bool:
    return text.partition(":")[0] in BACKENDS
