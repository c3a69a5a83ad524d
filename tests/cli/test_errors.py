"""What the command line says when it is given something wrong: one line, one code."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.planted import healthy, plant
from tosavk import cli
from tosavk.core.device import Device
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceCreationFailed, DeviceUnavailable
from tosavk.lowering.graph import Op
from tosavk.lowering.tosa.builder import Builder

Complaint = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = x + x, of a matrix with an open dimension 0."""
    b = Builder()
    x = b.input("x", DType.FP32, (-1, 3))
    b.output(b.op(Op.ADD, [x, x], name="y", dtype=DType.FP32, shape=(-1, 3)))
    path = tmp_path / "model.tosa"
    path.write_bytes(b.build())
    return path


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Complaint:
    """Runs a command that must fail with a code, and gives its one line."""

    def run(code: int, *words: object) -> str:
        assert cli.main([str(word) for word in words]) == code
        said = capsys.readouterr()
        assert said.out == ""
        lines = said.err.splitlines()
        assert len(lines) == 1, said.err
        assert lines[0].startswith("tosavk")
        return lines[0]

    return run


SHAPE = ("--shape", "x=2x3", "--backend", "reference")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "COMMAND"),
        (("fly",), "'fly'"),
        (("run",), "MODEL"),
        (("run", "m", "--seed", "-1"), "'-1' is not a number"),
        (("run", "m", "--seed", "x"), "'x' is not a number"),
        (("run", "m", "--numerics", "slow"), "strict"),
        (("run", "m", "--no-such-option"), "--no-such-option"),
        (("run", "m", "--back", "vulkan"), "--back"),
        (("run", "m", "--backend", "metal"), "vulkan, wgpu, reference"),
        (("run", "m", "--backend", "reference"), "No such file"),
    ],
)
def test_usage(complaint: Complaint, words: tuple[str, ...], part: str) -> None:
    assert part in complaint(2, *words)


@pytest.mark.parametrize("command", ["run", "inspect", "diff"])
def test_files_that_are_no_model(
    complaint: Complaint, tmp_path: Path, model: Path, command: str
) -> None:
    empty = tmp_path / "empty.tosa"
    empty.touch()
    cut = tmp_path / "cut.tosa"
    cut.write_bytes(model.read_bytes()[:-40])
    text = tmp_path / "text.tosa"
    text.write_text("hello, this is no flatbuffer at all")
    assert "No such file" in complaint(2, command, tmp_path / "none.tosa")
    assert "directory" in complaint(2, command, tmp_path)
    for path in (empty, cut, text):
        complaint(2, command, path)


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        (None, "dimension"),
        ("x=2x3x4", "x"),
        ("x=2x4", "x"),
        ("nobody=2x3", "nobody"),
        ("x", "NAME=1x2x3"),
        ("x=2x0", "positive"),
        ("x=2x-3", "positive"),
        ("x=axb", "positive"),
        ("=2x3", "NAME=1x2x3"),
        ("x=99999999999999999999x3", "positive"),
        ("x=4000000000x3", "x"),
    ],
)
def test_shapes(
    complaint: Complaint, model: Path, shape: str | None, part: str
) -> None:
    words = () if shape is None else ("--shape", shape)
    assert part in complaint(2, "run", model, *words, "--backend", "reference")
    assert part in complaint(2, "inspect", model, *words)


def test_a_shape_twice(complaint: Complaint, model: Path) -> None:
    assert "twice" in complaint(2, "inspect", model, *("--shape", "x=2x3") * 2)


@pytest.mark.parametrize("command", ["run", "diff"])
def test_inputs(
    complaint: Complaint, tmp_path: Path, model: Path, command: str
) -> None:
    backends = ("--backend", "reference") * (1 if command == "run" else 2)

    def said(name: str, path: object) -> str:
        words = (command, model, "--shape", "x=2x3", *backends)
        return complaint(2, *words, "--input", f"{name}={path}")

    def saved(array: object) -> Path:
        path = tmp_path / "array.npy"
        np.save(path, np.asarray(array))
        return path

    good = np.ones((2, 3), np.float32)
    assert "no such input" in said("nobody", saved(good))
    assert "(2, 3)" in said("x", saved(good[:1]))
    assert "float32" in said("x", saved(good.astype(np.float64)))
    assert "'x'" in said("x", tmp_path / "none.npy")
    assert "directory" in said("x", tmp_path)
    text = tmp_path / "text.npy"
    text.write_text("1 2 3")
    line = said("x", text)
    assert "cannot read an array" in line
    assert "no plain numbers" in line
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    line = said("x", pickled)
    assert "cannot read an array" in line
    assert "allow_pickle" not in line
    cut = tmp_path / "cut.npy"
    cut.write_bytes(saved(good).read_bytes()[:-4])
    assert "cannot read an array" in said("x", cut)
    huge = tmp_path / "huge.npy"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 64)}\n"
    huge.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert "cannot read an array" in said("x", huge)
    archive = tmp_path / "array.npz"
    np.savez(archive, x=good)
    assert "archive" in said("x", archive)
    assert "NAME=F.npy" in said("x", "")


def test_devices(
    complaint: Complaint, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no device" in complaint(
        4, "run", model, "--shape", "x=2x3", "--backend", "reference:nowhere"
    )

    def ambiguous() -> Device:
        raise DeviceUnavailable("'a' means several devices: 0 aa, 1 ab")

    def broken() -> Device:
        raise DeviceCreationFailed("the driver refused")

    plant(
        monkeypatch,
        {"open_two": ambiguous, "open_broken": broken, "good": healthy},
    )
    shape = ("--shape", "x=2x3")
    assert "several" in complaint(4, "run", model, *shape, "--backend", "open_two")
    assert "refused" in complaint(4, "run", model, *shape, "--backend", "open_broken")
    two = ("--backend", "good", "--backend", "open_two")
    assert "several" in complaint(4, "diff", "--in-process", model, *shape, *two)
    unknown = ("--backend", "good", "--backend", "metal")
    assert "'metal'" in complaint(2, "diff", model, *shape, *unknown)
    assert "two" in complaint(2, "diff", model, *shape, "--backend", "good")


def test_places_that_cannot_be_written(
    complaint: Complaint, tmp_path: Path, model: Path
) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    shape = ("--shape", "x=2x3")
    reference = ("--backend", "reference")
    for words in (
        ("run", model, *shape, *reference, "--output-dir", occupied),
        ("diff", model, *shape, *reference * 2, "--report", tmp_path),
        ("diff", model, *shape, *reference * 2, "--json", occupied / "a.json"),
    ):
        assert "cannot" in complaint(2, *words)


def test_an_unsupported_operator_is_code_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (1, 4))
    for part in b.custom([x], [(DType.FP32, (1, 4))], operator_name="mine"):
        b.output(part)
    path = tmp_path / "custom.tosa"
    path.write_bytes(b.build())
    assert cli.main(["inspect", str(path)]) == 3
    assert "CUSTOM" in capsys.readouterr().out


def test_messages_cannot_steer_a_terminal(complaint: Complaint, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\nb.tosa"
    line = complaint(2, "inspect", path)
    assert "\x1b" not in line


def test_nothing_usable_is_code_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tosavk.backends import registry

    monkeypatch.setattr(registry, "BACKENDS", ())
    assert cli.main(["devices"]) == 4
    assert cli.main(["doctor"]) == 0
    capsys.readouterr()


def test_doctor_survives_a_broken_driver(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tosavk.backends import registry

    def broken() -> None:
        raise SystemError("the loader is broken")

    monkeypatch.setattr(registry, "devices", broken)
    assert cli.main(["doctor"]) == 0
    assert "the loader is broken" in capsys.readouterr().out


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tosavk", *words]


def test_a_closed_pipe_is_quiet(model: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = ("inspect", str(model), "--shape", "x=2x3", "--plan")
    done = subprocess.run(
        command(*words), stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [("devices",), ("devices", "--json"), ("inspect",)])
def test_a_full_disk_is_one_line(model: Path, words: tuple[str, ...]) -> None:
    if words == ("inspect",):
        words = ("inspect", str(model), "--shape", "x=2x3")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*words), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("tosavk: input or output failed: No space left")
    assert done.stderr.count("\n") == 1


def test_closed_streams_are_no_matter(model: Path) -> None:
    words = command("inspect", str(model), "--shape", "x=2x3")
    done = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words], check=False)
    assert done.returncode == 0


@pytest.fixture
def heard() -> Iterator[None]:
    """Processes that are started hear SIGINT, also where this one runs in background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_interrupt(model: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.npy"
    os.mkfifo(fifo)
    # It waits for the fifo's writer until it is interrupted.
    words = ("run", str(model), "--shape", "x=2x3", "--input", f"x={fifo}")
    with subprocess.Popen(
        command(*words, "--backend", "reference"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            stack = Path(f"/proc/{process.pid}/wchan")
            if process.poll() is not None or not stack.exists():
                break
            if "fifo" in stack.read_text() or "wait_for_partner" in stack.read_text():
                break
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err == "tosavk: interrupted\n"
