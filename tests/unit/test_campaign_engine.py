"""How a campaign deals with workers that come, go, lack things, and answer nonsense."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from tosavk.core.errors import InvalidArgument
from tosavk.differential.campaign.engine import Engine
from tosavk.differential.campaign.packet import Packet, opened
from tosavk.differential.campaign.store import Store
from tosavk.differential.campaign.task import (
    DiffTask,
    FuzzTask,
    Task,
    task_of,
    text_of,
)
from tosavk.differential.campaign.workers import (
    Running,
    WorkerRecord,
    matching,
    record_of,
)

A, B = "vulkan:alpha", "vulkan:beta"
Answer = Callable[[Task, bytes | None], bytes]


def listing(*names: str) -> str:
    devices = [
        {
            "backend": "vulkan",
            "index": number,
            "name": name,
            "driver": "driver 1",
            "uuid": "",
            "usable": True,
            "reason": "",
        }
        for number, name in enumerate(names)
    ]
    about = {"pid": 1, "host": "h", "system": "s", "tosavk": "1", "failure": ""}
    return json.dumps({**about, "devices": devices})


def worker(address: str, *names: str, labels: Iterable[str] = ()) -> WorkerRecord:
    return record_of(address, address, labels, listing(*names), version="1")


class Flight:
    def __init__(self, data: bytes | Exception | None) -> None:
        self._data = data
        self.cancelled = False

    def done(self) -> bool:
        return self._data is not None

    def result(self) -> bytes:
        assert self._data is not None
        if isinstance(self._data, Exception):
            raise self._data
        return self._data

    def cancel(self) -> None:
        self.cancelled = True


class Fake:
    """A pool of workers that a test moves."""

    def __init__(self, *workers: WorkerRecord) -> None:
        self.alive = {w.address: w for w in workers}
        self.sent: list[tuple[str, str, bool]] = []
        self.answer: Callable[[str, Task, bytes | None], bytes | Exception | None]
        self.answer = lambda _a, task, _m: good(task)
        self.now = 0.0

    def workers(self) -> Mapping[str, WorkerRecord]:
        return dict(self.alive)

    def submit(self, address: str, text: str, model: bytes | None) -> Running:
        task = task_of(text)
        self.sent.append((address, str(task), model is not None))
        return Flight(self.answer(address, task, model))

    def wait(self, running: Iterable[Running], seconds: float) -> None:
        del running
        self.now += seconds

    def engine(self, folder: Path, patience_s: float = 5.0) -> Engine:
        store = Store(folder)
        return Engine(self, store, patience_s=patience_s, clock=lambda: self.now)


def good(task: Task) -> bytes:
    return Packet({"result": {"of": str(task)}}).packed()


def programs(spec: str, start: int = 0) -> FuzzTask:
    return FuzzTask(spec=spec, seed=1, start=start, count=2)


def test_tasks_go_to_workers_with_their_device(tmp_path: Path) -> None:
    pool = Fake(worker("w1", "alpha"), worker("w2", "beta"))
    tasks = [programs(spec, start) for start in (0, 2, 4) for spec in (A, B)]
    outcome = pool.engine(tmp_path).run(tasks)
    assert len(outcome.done) == 6
    assert not outcome.not_run
    for address, text, _ in pool.sent:
        assert text.endswith(A if address == "w1" else B)


def test_a_dead_worker_is_replaced_by_another_with_the_device(tmp_path: Path) -> None:
    pool = Fake(worker("w1", "alpha"), worker("w2", "alpha", "beta"))

    def dies(address: str, task: Task, model: bytes | None) -> bytes | None:
        del model
        if address == "w1":
            pool.alive.pop("w1", None)
            return None
        return good(task)

    pool.answer = dies
    outcome = pool.engine(tmp_path).run([programs(A), programs(B)])
    assert len(outcome.done) == 2
    assert outcome.where[programs(A).key] == "w2"
    assert [e for e in outcome.events if "went away" in e]


def test_a_device_that_nobody_has_any_more_is_said(tmp_path: Path) -> None:
    pool = Fake(worker("w1", "alpha"), worker("w2", "beta"))

    def dies(address: str, task: Task, model: bytes | None) -> bytes | None:
        del model
        if address == "w1":
            pool.alive.pop("w1", None)
            return None
        return good(task)

    pool.answer = dies
    tasks = [programs(A), programs(B), programs(B, 2)]
    outcome = pool.engine(tmp_path, patience_s=3).run(tasks)
    assert outcome.not_run == {programs(A).key: f"no worker has {A}"}
    assert len(outcome.done) == 2
    assert 3 <= pool.now < 5
    # Later, with the worker there again, only that is run.
    later = Fake(worker("w3", "alpha"), worker("w2", "beta"))
    outcome = later.engine(tmp_path).run(tasks)
    assert [text for _, text, _ in later.sent] == [str(programs(A))]
    assert len(outcome.done) == 3
    assert len(outcome.found) == 2


class Late(Fake):
    """A pool to which a worker comes after two seconds."""

    def workers(self) -> Mapping[str, WorkerRecord]:
        if self.now > 2:
            self.alive["w1"] = worker("w1", "alpha")
        return super().workers()


def test_a_worker_that_comes_late_is_used(tmp_path: Path) -> None:
    assert len(Late().engine(tmp_path).run([programs(A)]).done) == 1


def test_what_fails_three_times_is_not_run(tmp_path: Path) -> None:
    pool = Fake(worker("w1", "alpha"))
    answers: list[bytes | Exception] = [
        b"nonsense",
        RuntimeError("killed"),
        Packet({"result": {}}).packed() + b"x",
    ]
    pool.answer = lambda _a, _t, _m: answers.pop(0)
    outcome = pool.engine(tmp_path).run([programs(A)])
    assert not outcome.done
    assert "tried 3 times" in outcome.not_run[programs(A).key]
    assert "1 bytes too many" in outcome.not_run[programs(A).key]
    assert not list((tmp_path / "results").iterdir())


def test_a_model_is_sent_to_whom_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "m.tosa"
    path.write_bytes(b"model")
    task = DiffTask(spec=A, model="m.tosa", sha256="0", path=str(path))
    pool = Fake(worker("w1", "alpha"))

    def asks(address: str, task: Task, model: bytes | None) -> bytes:
        del address
        return Packet({"wanted": True}).packed() if model is None else good(task)

    pool.answer = asks
    assert len(pool.engine(tmp_path / "out").run([task]).done) == 1
    assert [sent for _, _, sent in pool.sent] == [False, True]


def test_a_device_that_is_gone_on_one_worker_is_looked_for_on_another(
    tmp_path: Path,
) -> None:
    pool = Fake(worker("w1", "alpha"), worker("w2", "alpha"))

    def lacks(address: str, task: Task, model: bytes | None) -> bytes:
        del model
        if address == "w1":
            return Packet({"lacks": "no device"}).packed()
        return good(task)

    pool.answer = lacks
    outcome = pool.engine(tmp_path).run([programs(A)])
    assert outcome.where[programs(A).key] == "w2"
    assert "has vulkan:alpha no longer" in outcome.events[0]


def test_labels_restrict_a_worker() -> None:
    both = worker("w", "alpha", "beta")
    assert both.has(A)
    assert both.has(B)
    only = worker("w", "alpha", "beta", labels=[A, "GPU"])
    assert only.has(A)
    assert not only.has(B)
    wrong = worker("w", "beta", labels=[A])
    assert wrong.unusable == f"it is labelled {A}, and has no such device"
    assert not wrong.has(B)


def test_devices_are_chosen_as_the_backends_do() -> None:
    twins = worker("w", "alpha one", "alpha two")
    assert not twins.has(A)
    assert twins.has("vulkan:ALPHA TWO")
    assert twins.has("vulkan:1")
    assert twins.has("vulkan")
    assert not twins.has("wgpu")
    assert len(matching("vulkan:driver 1", twins.devices)) == 2


def test_another_version_gets_no_work(tmp_path: Path) -> None:
    other = record_of("w1", "w1", (), listing("alpha"), version="2")
    assert other.unusable == "it has tosavk 1, here is 2"
    outcome = Fake(other).engine(tmp_path, patience_s=1).run([programs(A)])
    reason = outcome.not_run[programs(A).key]
    assert reason == f"no worker has {A} (w1: it has tosavk 1, here is 2)"
    with pytest.raises(InvalidArgument, match="describes itself"):
        record_of("w1", "w1", (), "[]", version="1")


def test_tasks_and_packets_survive_the_way() -> None:
    task = DiffTask(spec=A, model="m", sha256="0", path="/m", shapes={"x": (1, 2)})
    assert task_of(text_of(task)) == task
    assert task_of(text_of(programs(B, 4))) == programs(B, 4)
    with pytest.raises(InvalidArgument):
        task_of("{}")
    elsewhere = DiffTask(spec=A, model="n", sha256="0", path="/n", shapes={"x": (1, 2)})
    assert elsewhere.key == task.key
    packet = Packet({"a": [1]}, {"one": b"12", "two": b""})
    data = packet.packed()
    again = opened(data)
    assert again.document == {"a": [1]}
    assert {name: bytes(blob) for name, blob in again.blobs.items()} == packet.blobs
    for end in range(len(data)):
        with pytest.raises(InvalidArgument):
            opened(data[:end])


@pytest.mark.parametrize(
    "name", ["../x", "a/../b", "/etc/x", "a/b/c", "a/..", "..", "a"]
)
def test_files_of_results_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    with pytest.raises(InvalidArgument, match="names the file"):
        store.unpack(Packet({}, {name: b"x"}), "p")
    store.unpack(Packet({}, {"001-bits/model.tosa": b"x"}), "p")
    assert (tmp_path / "findings/p/001-bits/model.tosa").read_bytes() == b"x"
