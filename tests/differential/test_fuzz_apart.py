"""What one backend does to the process leaves the others' results, and is filed whole."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tosavk import cli
from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.campaign import Request, Result, fuzz
from tosavk.differential.fuzz.files import read_case
from tosavk.differential.fuzz.filing import Setting, file_finding, name_also
from tosavk.differential.fuzz.finding import Key, Kind
from tosavk.differential.fuzz.generator import Generator
from tosavk.differential.fuzz.record import Filed
from tosavk.differential.fuzz.remote import Wanted
from tosavk.differential.fuzz.replay import replay
from tosavk.lowering.graph import Op

TESTS = Path(__file__).resolve().parents[1]
OP = Op.CONCAT
SEED = 1
LIMIT_S = 2.0
DEATHS = {
    "crashes": ("os.abort()", Kind.CRASHED),
    "hangs": ("time.sleep(600)", Kind.HUNG),
    "loses": ("raise DeviceLost('VK_ERROR_DEVICE_LOST')", Kind.LOST),
    "wants": ("print('std::bad_alloc', file=sys.stderr), os.abort()", Kind.MEMORY),
}
"""What a backend does where the operator runs, and what that is as a finding."""

REFUSALS = {
    "open_greedy": ("OutOfMemory('OUT_OF_DEVICE_MEMORY')", Kind.MEMORY),
    "open_failing": ("External('a code', domain=1, code=-13)", Kind.FAILED),
    "open_refusing": ("AdmissionError('it is not offered', kind='X')", Kind.REFUSED),
}
"""What a backend says when a program with the operator is loaded."""

WORKER = """
import os, sys, time
sys.path.insert(0, {tests!r})
import numpy as np
import pytest
from harness.planted import FaultyDevice, healthy, plant
from tosavk.core.errors import DeviceLost, External, OutOfMemory
from tosavk.differential.fuzz.worker import main
from tosavk.lowering.errors import AdmissionError

def say():
    print("driver: last words", file=sys.stderr, flush=True)

def dying(how):
    def fault(op, graph, results):
        if op.op.name == {op!r}:
            say()
            exec(how)
        return results
    return fault

def lying(op, graph, results):
    if op.op.name != {op!r}:
        return results
    say()
    wrong = results[0].copy()
    wrong.reshape(-1).view(np.uint8)[-1] ^= 1
    return [wrong, *results[1:]]

def refusing(how):
    class Device(FaultyDevice):
        def create_kit(self):
            kit = FaultyDevice.create_kit(self)
            right = kit.load
            def load(lowered):
                if any(op.op == {op!r} for op in lowered.plan.operators):
                    say()
                    raise eval(how)
                return right(lowered)
            kit.load = load
            return kit
    return lambda: Device(healthy)

backends = {{"good": healthy, "well": healthy, "lies": lying}}
backends |= {{name: dying(how) for name, how in {deaths!r}.items()}}
backends |= {{name: refusing(how) for name, how in {refusals!r}.items()}}
plant(pytest.MonkeyPatch(), backends)
{more}
main()
"""
COUNTING = """
from tosavk.differential.fuzz import judge
opened, right = [], judge.open_accelerator
def counted(spec):
    opened.append(spec)
    return right(spec)
judge.__dict__["open_accelerator"] = counted
"""


@pytest.fixture(scope="module")
def first() -> int:
    """The first program with the operator in its main block."""
    generator = Generator(SEED)
    return next(
        index
        for index in range(60)
        if OP in {op.op for op in generator.make(index).case.graph.main.operators}
    )


def command(folder: Path, *, crash: str = "", more: str = "") -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "worker.py"
    deaths = {name: how for name, (how, _) in DEATHS.items()}
    if crash:
        deaths["crashes"] = crash
    script.write_text(
        WORKER.format(
            tests=str(TESTS),
            op=OP.name,
            deaths=deaths,
            refusals={name: how for name, (how, _) in REFUSALS.items()},
            more=more,
        )
    )
    return (sys.executable, str(script))


def run(
    folder: Path,
    first: int,
    *backends: str,
    count: int = 1,
    reducing: int = 0,
    crash: str = "",
    more: str = "",
) -> Result:
    return fuzz(
        Request(
            seed=SEED,
            start=first,
            count=count,
            backends=backends,
            folder=folder / "out",
            reducing=reducing,
            apart=True,
            limit_s=LIMIT_S,
            command=command(folder, crash=crash, more=more),
        )
    )


def described(filed: Filed) -> dict[str, Any]:
    text = (Path(filed.folder) / "finding.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def results(folder: Path, names: list[str]) -> dict[str, bytes]:
    """What a backend gave: the files, without the backend's number."""
    return {n.partition("-")[2]: (folder / n).read_bytes() for n in names}


ALL = ("good", "hangs", "crashes", "loses", "well", "wants", "hangs", "reference")


@pytest.fixture(scope="module")
def ended(first: int, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A program that ends the processes of five backends out of eight."""
    start = time.monotonic()
    result = run(tmp_path_factory.mktemp("ended"), first, *ALL)
    assert time.monotonic() - start < 2 * LIMIT_S + 20
    return result


def test_all_that_end_are_named_with_how(ended: Result) -> None:
    found = {key.kind: filed.backends for key, filed in ended.findings.items()}
    assert found == {
        Kind.CRASHED: ("crashes",),
        Kind.HUNG: ("hangs", "hangs (2)"),
        Kind.LOST: ("loses",),
        Kind.MEMORY: ("wants",),
    }
    texts = {key.kind: filed.text for key, filed in ended.findings.items()}
    assert (
        "hangs: no sign of life for 2 s while hangs was at work; it" in texts[Kind.HUNG]
    )
    assert "by SIGABRT while crashes was at work" in texts[Kind.CRASHED]
    assert "DeviceLost: " in texts[Kind.LOST]
    for filed in ended.findings.values():
        endings = {i["label"]: i["ending"] for i in described(filed)["apart"]}
        assert endings == {
            **dict.fromkeys(("good", "well", "reference"), "ran"),
            **dict.fromkeys(("hangs", "hangs (2)"), "hung"),
            "crashes": "crashed",
            "loses": "lost",
            "wants": "memory",
        }


def test_the_others_results_are_kept_and_compared(
    tmp_path: Path, ended: Result, first: int
) -> None:
    alone = run(tmp_path, first, "good", "well", "reference")
    assert not alone.findings
    # All is covered that is covered without those that ended.
    assert ended.coverage.points == alone.coverage.points
    for filed in ended.findings.values():
        kept = {
            item["label"]: results(Path(filed.folder), item["results"])
            for item in described(filed)["apart"]
        }
        assert kept["good"]
        assert kept["good"] == kept["well"]
        assert kept["reference"].keys() == kept["good"].keys()
        for label in ("crashes", "hangs", "hangs (2)", "loses", "wants"):
            assert not kept[label]


def test_a_wrong_number_of_another_backend_is_found_beside_a_crash(
    tmp_path: Path, first: int
) -> None:
    result = run(tmp_path, first, "good", "crashes", "lies", "reference", reducing=3)
    crash, wrong = result.findings.values()
    assert (crash.key.kind, crash.backends) == (Kind.CRASHED, ("crashes",))
    assert (wrong.key.kind, wrong.key.op) == (Kind.BITS, OP.name)
    assert "lies" in wrong.backends
    # It is reduced although the backends of the run do not survive it.
    assert wrong.tried > 1
    labels = {item["label"] for item in described(wrong)["apart"]}
    assert labels == {"good", "crashes", "lies", "reference"}


def test_what_ends_only_a_process_of_several_is_said(
    tmp_path: Path, first: int
) -> None:
    how = "import __main__\nlen(__main__.opened) > 1 and os.abort()"
    result = run(
        tmp_path, first, "good", "crashes", "reference", crash=how, more=COUNTING
    )
    (filed,) = result.findings.values()
    assert filed.key.kind is Kind.CRASHED
    assert filed.backends == ("crashes",)
    assert "in a process of its own each backend lives" in filed.text
    assert {item["ending"] for item in described(filed)["apart"]} == {"ran"}
    assert result.coverage.points


def test_what_ends_while_the_reference_judges_is_not_blamed_on_a_device(
    tmp_path: Path, first: int
) -> None:
    more = """
from tosavk.differential import operators
def expect(*words, **more):
    say()
    os.abort()
operators.__dict__["expect"] = expect
"""
    result = run(tmp_path, first, "good", "well", "reference", more=more)
    (filed,) = result.findings.values()
    assert (filed.key.kind, filed.backends) == (Kind.CRASHED, ("reference",))
    assert "reference: judging good: the process was ended by SIGABRT" in filed.text
    assert "while the comparison was at work" in filed.text
    document = described(filed)
    assert "driver: last words" in document["stderr"]
    kept = {i["label"]: i["results"] for i in document["apart"]}
    assert kept["good"]
    assert len(kept["good"]) == len(kept["well"])
    assert result.coverage.points


def test_another_backend_with_the_same_finding_is_named_too(
    tmp_path: Path, first: int
) -> None:
    result = run(tmp_path, first, "open_refusing", "good", "open_refusing")
    (filed,) = result.findings.values()
    assert filed.key.kind is Kind.REFUSED
    assert filed.backends == ("open_refusing", "open_refusing (2)")


def test_a_later_program_names_another_backend(tmp_path: Path, first: int) -> None:
    """The folder says so too; one that is gone is no trouble."""
    made = Generator(SEED).make(first)
    folder = tmp_path / "case"
    key = Key(Kind.CRASHED, OP.name, "INT8")
    setting = Setting(specs=("good", "well"), devices={}, numerics=Numerics.STRICT)
    file_finding(folder, key, "text", ("good",), case=made.case, setting=setting)
    before = json.loads((folder / "finding.json").read_text())
    name_also(folder, ("good", "well"))
    after = json.loads((folder / "finding.json").read_text())
    assert after == {**before, "backends": ["good", "well"]}
    assert "About: good, well" in (folder / "finding.txt").read_text()
    assert read_case(folder).graph.main.operators
    name_also(tmp_path / "gone", ("good",))


def whole(filed: Filed, compared: Sequence[str], first: int) -> dict[str, Any]:
    """Looks whether everything is in the folder; what `finding.json` says."""
    place, document = Path(filed.folder), described(filed)
    assert document["compared"] == list(compared)
    assert document["devices"].keys() >= set(filed.backends) - {"reference"}
    assert document["backends"] == list(filed.backends)
    assert "driver: last words" in document["stderr"]
    # The artifact with its inputs, as it was made and reduced, and what makes it.
    made = Generator(SEED).make(first)
    assert (place / "original.tosa").read_bytes() == made.data
    for number, sample in enumerate(made.case.samples):
        for position, name in enumerate(made.case.graph.main.inputs):
            stored = np.load(place / f"original-input{position}-{number}.npy")
            assert stored.tobytes() == np.asarray(sample[name], order="C").tobytes()
    assert read_case(place).graph.main.operators
    scope: dict[str, Any] = {"__name__": "build"}
    exec((place / "build.py").read_text(), scope)
    assert scope["build"]() == (place / "model.tosa").read_bytes()
    # The commands, and all of that for people.
    text = (place / "finding.txt").read_text()
    assert filed.text in text
    assert f"About: {', '.join(filed.backends)}" in text
    assert "driver: last words" in text
    commands: dict[str, str] = document["commands"]
    assert all(line in text for line in commands.values())
    one = ["--count", "1"]
    words = [word for spec in compared for word in ("--backend", spec)]
    assert commands["replay"] == shlex.join(["tosavk", "fuzz", "--replay", ".", *words])
    assert commands["original"] == shlex.join(
        ["tosavk", "fuzz", "--seed", str(SEED), "--start", str(first), *one, *words]
    )
    return document


def planted(folder: Path, *backends: str) -> Wanted:
    return Wanted(seed=0, backends=backends, limit_s=LIMIT_S, command=command(folder))


@pytest.mark.parametrize("way", list(DEATHS))
def test_a_stranger_sees_again_what_ended_a_process(
    tmp_path: Path, ended: Result, first: int, way: str
) -> None:
    """With nothing but the folder."""
    kind = DEATHS[way][1]
    (filed,) = (f for f in ended.findings.values() if f.key.kind is kind)
    whole(filed, ALL, first)
    found = replay(Path(filed.folder), planted(tmp_path, "good", way))
    assert found.shown
    assert found.filed.startswith(kind.value)
    assert (way,) in [f.backends for f in found.findings if f.key.kind is kind]
    assert ("good", "ran", "") in found.endings


@pytest.mark.parametrize("way", ["lies", *REFUSALS])
def test_a_stranger_sees_again_what_one_backend_does(
    tmp_path: Path,
    first: int,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With nothing but the folder: a wrong number, a refusal, a failure."""
    result = run(tmp_path, first, "good", way, reducing=4 if way == "lies" else 0)
    (filed,) = result.findings.values()
    kind = Kind.BITS if way == "lies" else REFUSALS[way][1]
    assert filed.key.kind is kind
    assert way in filed.backends
    document = whole(filed, ("good", way), first)
    found = replay(Path(filed.folder), planted(tmp_path))
    assert found.shown
    assert way in found.findings[0].backends
    assert not found.endings
    # Backends that are right do not show it.
    if way == "lies":
        found = replay(Path(filed.folder), planted(tmp_path, "good", "well"))
        assert not found.findings
        assert not found.shown
        # `diff` understands its command, here with other backends.
        monkeypatch.chdir(filed.folder)
        words = shlex.split(document["commands"]["diff"])[1:]
        right = ["reference" if w in ("good", way) else w for w in words]
        assert cli.main([*right, "--in-process"]) == 0
        assert "AGREED" in capsys.readouterr().out


def test_replay_by_the_command_line(
    tmp_path: Path, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Generator(SEED).make(first)
    folder, target = tmp_path / "case", tmp_path / "r.json"
    key = Key(Kind.BITS, OP.name, "INT8")
    setting = Setting(specs=("good", "lies"), devices={}, numerics=Numerics.STRICT)
    file_finding(
        folder, key, "text", ("lies",), case=made.case, setting=setting, made=made
    )
    assert cli.main(["fuzz", "--replay", str(folder)]) == 2
    assert "'good' is unknown" in capsys.readouterr().err
    words = ["fuzz", "--replay", str(folder), "--backend", "reference"]
    assert cli.main([*words, "--json", str(target)]) == 0
    assert "bits CONCAT INT8: it does not show it" in capsys.readouterr().out
    document = json.loads(target.read_text())
    assert (document["format"], document["version"]) == ("tosavk.replay", 1)
    assert (document["verdict"], document["shown"]) == ("agreed", False)
    assert cli.main([*words, "--in-process"]) == 2
    assert cli.main(["fuzz", "--replay", str(tmp_path / "nothing")]) == 2
    assert "holds no case" in capsys.readouterr().err
    path = folder / "finding.json"
    path.write_text(path.read_text().replace('"compared"', '"other"'))
    assert cli.main(["fuzz", "--replay", str(folder)]) == 2
    assert "give --backend" in capsys.readouterr().err
