"""A campaign on two workers of this machine, each with a driver of its own."""

import argparse
import dataclasses
import gc
import hashlib
import importlib
import json
import os
import re
import shlex
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from harness import browser, devices
from tosavk import cli
from tosavk.backends.registry import DeviceRecord
from tosavk.core.dtypes import DType
from tosavk.differential.campaign.packet import Packet, opened
from tosavk.differential.campaign.remote import perform
from tosavk.differential.campaign.report import render
from tosavk.differential.campaign.run import CampaignResult, Plan, campaign
from tosavk.differential.campaign.task import DiffTask, task_of, text_of
from tosavk.differential.campaign.workers import Pool, Running, WorkerRecord
from tosavk.differential.result import Verdict
from tosavk.lowering.tosa.builder import Builder

LAVAPIPE, SWIFTSHADER = "vulkan:llvmpipe", "vulkan:SwiftShader"
PROBE = """<script>
const page = document.documentElement, links = [...document.querySelectorAll('a')];
page.dataset.frames = document.querySelectorAll('iframe[srcdoc]').length;
page.dataset.requests = performance.getEntriesByType('resource').filter(
  e => !e.name.startsWith('about:')).length;
page.dataset.broken = links.filter(
  a => !document.getElementById(a.getAttribute('href').slice(1))).length;
</script></body>"""
NOBODY = "there is no worker at all"


@pytest.fixture
def both() -> tuple[str, str]:
    """Two devices: of two drivers where these are lanes, else of two backends."""
    there = [spec for spec in devices.available() if spec != "reference"]
    if len(there) < 2:
        pytest.skip("needs two devices")
    if {LAVAPIPE, SWIFTSHADER} <= set(there):
        return LAVAPIPE, SWIFTSHADER
    return there[0], there[1]


def write_models(folder: Path) -> tuple[str, ...]:
    paths: list[str] = []
    for number in range(2):
        b = Builder()
        shape = (2, 3 + number)
        x, y = b.input("x", DType.FP32, shape), b.input("y", DType.FP32, shape)
        b.output(b.exp(b.add(x, y, name="total"), name="power"))
        paths.append(str(folder / f"m{number}.tosa"))
        Path(paths[-1]).write_bytes(b.build())
    return tuple(paths)


class Killer:
    """A pool whose worker for one device is killed while it does its first task."""

    def __init__(self, pool: Pool, spec: str) -> None:
        self._pool = pool
        self._spec = spec
        self.killed: list[int] = []

    def workers(self) -> Mapping[str, WorkerRecord]:
        return self._pool.workers()

    def submit(self, address: str, text: str, model: bytes | None) -> Running:
        worker = self._pool.workers()[address]
        running = self._pool.submit(address, text, model)
        if self._spec in worker.labels and not self.killed:
            time.sleep(0.05)
            assert not running.done()
            self.killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return running

    def wait(self, running: Iterable[Running], seconds: float) -> None:
        self._pool.wait(running, seconds)


class Empty:
    """A pool without workers."""

    def workers(self) -> Mapping[str, WorkerRecord]:
        return {}

    def submit(self, address: str, text: str, model: bytes | None) -> Running:
        raise AssertionError(f"{text} is run again on {address} ({model!r})")

    def wait(self, running: Iterable[Running], seconds: float) -> None:
        del running, seconds


def summary_of(result: CampaignResult) -> list[tuple[object, ...]]:
    return [
        (m.model, m.verdict, [r.device for r in m.runs], [str(c) for c in m.outputs])
        for m in result.models
    ]


@pytest.mark.skipif(os.name != "posix", reason="kills a process as POSIX does")
def test_a_worker_that_dies_loses_nothing(
    tmp_path: Path, both: tuple[str, str]
) -> None:
    """Two workers, two devices; one is killed in the middle and started anew."""
    one, other = both
    pytest.importorskip("distributed", reason="Dask is not installed (extra campaign)")
    cluster = pytest.importorskip("tosavk.differential.campaign.cluster")
    models = write_models(tmp_path)
    plan = Plan(devices=both, models=models, programs=2, seed=3)
    folder = tmp_path / "out"
    with cluster.local(both) as pool:
        killer = Killer(pool, other)
        result = campaign(plan, killer, folder)
    assert killer.killed
    assert any("it is run again" in text for text in result.events), result.events
    assert not result.not_run
    assert result.verdict is Verdict.AGREED
    # Every task was done by a worker with its device, and by no other.
    assert len(result.where) == 2 * 2 + 2
    for task, worker in result.where.items():
        assert worker.endswith(task.rpartition(" on ")[2]), (task, worker)
    assert [f.programs for f in result.fuzzed] == [2, 2]
    for model in result.models:
        names = {run.label: run.device for run in model.runs}
        for spec in both:
            assert spec.partition(":")[2].casefold() in names[spec].casefold()
        pairs = {(c.left, c.right) for o in model.operators for c in o.comparisons}
        assert (other, one) in pairs
        assert (one, "reference") in pairs
        between = [c for c in model.outputs if c.rule == "same bits"]
        assert len(between) == 1
        assert between[0].agreed

    # A second start runs nothing again, and says the same.
    again = campaign(plan, Empty(), folder)
    assert set(again.where.values()) == {"before"}
    assert summary_of(again) == summary_of(result)
    # A lost result is missed, and nothing else.
    lost = DiffTask(
        spec=one,
        model=models[0],
        sha256=hashlib.sha256(Path(models[0]).read_bytes()).hexdigest(),
        path=models[0],
        seed=3,
    )
    path = folder / "results" / f"{lost.key}.packet"
    path.write_bytes(path.read_bytes()[:-1])
    plan = dataclasses.replace(plan, patience_s=0)
    part = campaign(plan, Empty(), folder)
    assert part.not_run == {str(lost): f"no worker has {one}; {NOBODY}"}
    assert part.verdict is Verdict.FAILED
    page = render(part)
    assert f"no worker has {one}" in page
    assert page.count("<iframe") == len(part.models) == 2
    assert not re.search(r"(?:src|href)=.http", page)
    document = json.loads(json.dumps(part.document()))
    assert (document["format"], document["version"]) == ("tosavk.campaign", 1)
    assert len(document["not_run"]) == 1


class Here:
    """A pool that does tasks here, and where one device computes something else."""

    def __init__(self, specs: tuple[str, str]) -> None:
        self.specs = specs
        self.sent: list[str] = []

    def workers(self) -> Mapping[str, WorkerRecord]:
        names = [spec.partition(":")[::2] for spec in self.specs]
        twins = [
            DeviceRecord(backend, number, name, "", "", True, "")
            for number, (backend, name) in enumerate(names)
        ]
        record = WorkerRecord("w", "w", "h", "s", "1", 1, (), tuple(twins))
        return {"w": record}

    def submit(self, address: str, text: str, model: bytes | None) -> Running:
        del address
        task = task_of(text)
        self.sent.append(str(task))
        packet = opened(perform(text, model))
        if task.spec == self.specs[1]:
            packet = planted(packet)
        return Done(packet.packed())

    def wait(self, running: Iterable[Running], seconds: float) -> None:
        del running, seconds


@dataclasses.dataclass
class Done:
    data: bytes

    def done(self) -> bool:
        return True

    def result(self) -> bytes:
        return self.data

    def cancel(self) -> None:
        """Nothing to forget."""


def planted(packet: Packet) -> Packet:
    """The first element of the result of EXP with another last bit."""
    document = json.loads(json.dumps(packet.document))
    document["digests"]["0 power"] = "0" * 64
    blobs = {name: bytes(blob) for name, blob in packet.blobs.items()}
    for name in ("output device 0 power", "tensor 0 power"):
        if name in blobs:
            blobs[name] = bytes([blobs[name][0] ^ 1]) + blobs[name][1:]
    return Packet(document, blobs)


def test_a_difference_between_machines_is_located(
    tmp_path: Path, both: tuple[str, str]
) -> None:
    """By digests first; then the tensors of that operator are fetched and compared."""
    one, other = both
    model = write_models(tmp_path)[0]
    pool = Here(both)
    result = campaign(Plan(devices=both, models=(model,)), pool, tmp_path / "out")
    assert result.verdict is Verdict.DIFFERENT
    assert [text.partition(" on ")[2] for text in pool.sent] == [
        one,
        other,
        f"{one}, values",
        f"{other}, values",
    ]
    (found,) = result.models
    assert found.first_different is not None
    assert found.first_different.op == "EXP"
    total, power = (
        [c for c in item.comparisons if c.rule == "same bits"]
        for item in found.operators
    )
    assert [c.outcome for c in total] == ["equal"]
    assert [c.differing for c in power] == [1]
    assert power[0].worst is not None
    assert power[0].worst.index == (0, 0)
    assert power[0].worst.ulp == 1
    assert power[0].operands[0].tensor == "total"
    assert [f.kind.value for f in found.findings] == ["operator", "output"]
    # As a browser shows it: the model's report is in the page, and nothing is fetched.
    page = tmp_path / "r.html"
    text = render(result)
    policy = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
    assert policy.search(text)
    allowed = policy.sub("", text, count=1)  # of the outer page, for the probe
    page.write_text(allowed.replace("</body>", PROBE), encoding="utf-8")
    if browser.find_browser() is None:
        return
    shown = browser.rendered_html(page, tmp_path / "profile")
    assert 'data-frames="1"' in shown
    assert 'data-requests="0"' in shown
    assert 'data-broken="0"' in shown


def test_a_worker_without_the_model_is_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: tuple[str, str]
) -> None:
    kept = tmp_path / "worker"
    kept.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(kept))
    data = Path(write_models(tmp_path)[0]).read_bytes()
    task = DiffTask(
        spec=both[0],
        model="m0.tosa",
        sha256=hashlib.sha256(data).hexdigest(),
        path="/nowhere/m0.tosa",
    )
    text = text_of(task)
    assert opened(perform(text, None)).document == {"wanted": True}
    assert opened(perform(text, b"something else")).document == {"wanted": True}
    assert "result" in opened(perform(text, data)).document
    # It is kept under its digest, and looked at before it is used.
    (model,) = kept.glob("tosavk-campaign-models-*/*.tosa")
    assert model.read_bytes() == data
    model.write_bytes(data + b"x")
    assert opened(perform(text, None)).document == {"wanted": True}


def test_what_a_worker_cannot_do_is_told(tmp_path: Path) -> None:
    path = write_models(tmp_path)[0]
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    task = DiffTask(spec="vulkan:none such", model="m", sha256=digest, path=path)
    assert "none such" in str(opened(perform(text_of(task), None)).document["lacks"])
    task = dataclasses.replace(task, generator="no such")
    assert "InvalidArgument" in str(
        opened(perform(text_of(task), None)).document["error"]
    )


def test_without_dask_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (model, *_) = write_models(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    words = ["campaign", model, "--local", "--worker", LAVAPIPE]
    assert cli.main([*words, "--out", str(tmp_path / "o")]) == 3
    assert "pip install 'tosavk[campaign]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--local"], "belong together"),
        (["--scheduler", "tcp://a:1", "--worker", LAVAPIPE], "belong together"),
        (["--scheduler", "tcp://a:1"], "no device to run on"),
        (["--local", "--worker", "reference"], "beside every device"),
    ],
)
def test_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (model, *_) = write_models(tmp_path)
    assert cli.main(["campaign", model, *words, "--out", str(tmp_path / "o")]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense", "missing port"),
        ("foo://a:1", "unknown address scheme"),
        ("tls://127.0.0.1:1", "needs certificates"),
    ],
)
def test_what_is_no_scheduler_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str, said: str
) -> None:
    (model, *_) = write_models(tmp_path)
    words = ["campaign", model, "--scheduler", address, "--device", LAVAPIPE]
    assert cli.main([*words, "--out", str(tmp_path / "o")]) == 2
    gc.collect()  # a client that could not connect would complain now
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def parser_of(name: str) -> argparse.ArgumentParser:
    commands = argparse.ArgumentParser().add_subparsers()
    importlib.import_module(f"tosavk.cli.{name}").add_parser(commands)
    found: argparse.ArgumentParser = commands.choices[name]
    return found


def test_options_are_those_of_the_other_commands() -> None:
    """One definition of what they mean."""
    campaign_parser = parser_of("campaign").format_help().partition("\noptions:")[2]
    for other, options in {
        "fuzz": ("--start", "--numerics"),
        "diff": ("--shape", "--samples", "--generator", "--timeout", "--numerics"),
    }.items():
        text = parser_of(other).format_help().partition("\noptions:")[2]
        for option in options:
            found = re.search(rf"\n  {option} .*(?:\n {{10}}.*)*", text)
            assert found, (other, option)
            assert found[0] in campaign_parser, (other, option)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--fuzz", "7", "--start", "50", "--seed", "3", "--timeout", "9"],
        ["--samples", "2", "--generator", "specials", "--numerics", "fast"],
        ["--shape", "x=1x2", "--patience", "5"],
    ],
)
def test_the_command_that_is_told_is_the_one_that_was_given(words: list[str]) -> None:
    from tosavk.cli.campaign import command

    given = ["m.tosa", "--local", "--worker", LAVAPIPE, "--out", "a folder", *words]
    options = parser_of("campaign").parse_args(given)
    told = shlex.split(" ".join(command(options)))
    assert told[:2] == ["tosavk", "campaign"]
    assert parser_of("campaign").parse_args(told[2:]) == options
    assert len(told) == len(given) + 2
