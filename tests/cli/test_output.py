"""What the commands print and write when all is well, or a difference is found."""

import html
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import validation
from harness.planted import corrupts, healthy, plant
from tosavk import cli
from tosavk.cli.console import short_device
from tosavk.cli.options import parse_inputs, plain
from tosavk.cli.run import file_names
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Op
from tosavk.lowering.nvfp4.artifact import Projection
from tosavk.lowering.tosa.builder import Builder

Captured = pytest.CaptureFixture[str]

LONG = "model/block_12/depthwise_with_a_long_name/BatchNorm/FusedBatchNormV3"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three operators, with a long name, a hostile one, and two that look alike."""
    b = Builder()
    x = b.input("x", DType.FP32, (1, 7, 11))
    b.output(b.exp(x, name=LONG))
    b.output(b.tanh(x, name="../../etc/passwd"))
    b.output(b.sigmoid(x, name="[bold]\x1b[31m.._.._etc_passwd"))
    path = tmp_path / "a model.tosa"
    path.write_bytes(b.build())
    return path


def forbid(token: str) -> NoReturn:
    raise AssertionError(f"{token} is no JSON")


def parsed(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text, parse_constant=forbid)
    versions = {"tosavk.diff": 2}
    assert document["version"] == versions.get(document["format"], 1)
    return document


def lines_of(capsys: Captured) -> list[str]:
    said = capsys.readouterr()
    assert said.err == ""
    assert "\x1b" not in said.out
    return said.out.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_and_keep_what_matters(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    plant(monkeypatch, {"one_with_a_name": healthy, "other": corrupts(LONG)})
    backends = ("--backend", "one_with_a_name", "--backend", "other")
    words = ("diff", str(model), "--in-process", *backends, "--backend", "reference")
    assert cli.main(words) == 1
    lines = lines_of(capsys)
    tables = [line for line in lines if line.startswith("  ") and "  " in line.strip()]
    assert len(tables) > 12
    assert max(map(len, tables)) <= columns
    text = "\n".join(lines)
    for whole in ("one_with_a_name", "different (1/77)", "same bits", "reference"):
        assert whole in text
    assert re.search(r"one_with_a_name +[\d.]+ ms +[\d.]+ ms +[\d.]+ ms", text)
    assert lines[-1].startswith("verdict: DIFFERENT")
    assert "first operator that differs on equal inputs is 0 EXP" in " ".join(
        text.split()
    )


def test_nothing_is_cut_in_a_pipe(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert cli.main(["inspect", str(model)]) == 0
    text = "\n".join(lines_of(capsys))
    assert LONG in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "a model.tosa" in text
    assert "3 dispatches" in text


def test_inspect_lists_dispatches(model: Path, capsys: Captured) -> None:
    assert cli.main(["inspect", str(model), "--plan"]) == 0
    lines = lines_of(capsys)
    assert sum(" unary " in line for line in lines) == 3


def test_inspect_as_json(model: Path, capsys: Captured) -> None:
    assert cli.main(["inspect", str(model), "--plan", "--json"]) == 0
    document = parsed(capsys.readouterr().out)
    assert document["format"] == "tosavk.inspect"
    assert [op["op"] for op in document["operators"]] == ["EXP", "TANH", "SIGMOID"]
    assert all(op["supported"] for op in document["operators"])
    assert len(document["dispatches"]) == document["plan"]["dispatches"] == 3
    assert document["inputs"] == [{"name": "x", "dtype": "FP32", "shape": [1, 7, 11]}]


def test_inspect_of_control_flow(tmp_path: Path, capsys: Captured) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (1, 5))
    condition = b.input("c", DType.BOOL, (1,))
    for name, method in (("then", Builder.exp), ("else", Builder.tanh)):
        part = b.region(name)
        inner = part.input(f"in_{name}", DType.FP32, (1, 5))
        part.output(method(part, inner, name=f"out_{name}"))
    (y,) = b.cond_if(condition, [x], then_graph="then", else_graph="else")
    b.output(b.add(y, x, name="y"))
    path = tmp_path / "flow.tosa"
    path.write_bytes(b.build())
    assert cli.main(["inspect", str(path), "--plan", "--json"]) == 0
    document = parsed(capsys.readouterr().out)
    assert document["plan"]["dispatches"] == len(document["dispatches"]) == 3
    assert document["plan"]["pieces"] == 3
    assert {d["kernel"] for d in document["dispatches"]} == {"unary", "binary"}
    assert cli.main(["inspect", str(path), "--plan"]) == 0
    assert "in 3 pieces" in capsys.readouterr().out


def test_devices_and_doctor(capsys: Captured) -> None:
    assert cli.main(["devices", "--json"]) == 0
    document = parsed(capsys.readouterr().out)
    assert document["format"] == "tosavk.devices"
    assert {"backend", "index", "name", "spec", "usable", "reason"} <= set(
        document["devices"][0]
    )
    assert cli.main(["doctor", "--json"]) == 0
    report = parsed(capsys.readouterr().out)
    assert report["format"] == "tosavk.doctor"
    assert report["devices"] == document["devices"]
    assert report["packages"]["numpy"] == np.__version__
    layer = validation.layer() if report["vulkan"]["loader"] else None
    assert report["vulkan"]["validation layer"] == (layer.number if layer else "")
    assert cli.main(["devices"]) == 0
    assert "reference:0" in capsys.readouterr().out
    assert cli.main(["doctor"]) == 0
    assert "numpy" in capsys.readouterr().out


def test_inspect_of_an_nvfp4_artifact(
    gpu_device: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "product"
    path.write_bytes(Projection(m=3, n=32, k=64).payload())
    words = ["inspect", str(path), "--backend", gpu_device]
    assert cli.main([*words, "--json"]) == 0
    document = parsed(capsys.readouterr().out)
    assert document["slots"][0]["shape"] == [3, 64]
    kernels = document["kernels"]
    assert {kernel["spec"] for kernel in kernels} == {gpu_device}
    assert all(kernel["kernel"] for kernel in kernels)
    assert cli.main(words) == 0
    assert kernels[0]["kernel"] in capsys.readouterr().out
    assert cli.main([*words[:-1], f"{gpu_device} no"]) == 4
    for wrong in (["--plan"], ["--shape", "x=1"]):
        assert cli.main([*words, *wrong]) == 2
        assert f"{wrong[0]} is for TOSA files" in capsys.readouterr().err


def test_doctor_without_a_driver(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.json")
    drivers = {"VK_DRIVER_FILES": missing, "VK_ICD_FILENAMES": missing}
    done = subprocess.run(
        [sys.executable, "-m", "tosavk", "doctor"],
        env={**os.environ, **drivers},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "finds no usable driver" in done.stdout or "no Vulkan loader" in done.stdout


def test_run_saves_inside_the_folder(
    model: Path, tmp_path: Path, capsys: Captured
) -> None:
    folder = tmp_path / "deep" / "out"
    words = ("run", str(model), "--backend", "reference", "--output-dir", str(folder))
    assert cli.main(words) == 0
    lines = lines_of(capsys)
    files = sorted(path.name for path in folder.iterdir())
    assert len(files) == 3
    assert sorted(p for p in tmp_path.rglob("*.npy")) == sorted(folder.iterdir())
    assert sum(line.startswith("saved ") for line in lines) == 3
    assert any("FP32" in line and "1x7x11" in line for line in lines)


def test_run_reads_its_inputs(tmp_path: Path, model: Path, capsys: Captured) -> None:
    values = np.linspace(-2, 2, 77, dtype=np.float32).reshape(1, 7, 11)
    values[0, 0, 0] = np.nan
    path = tmp_path / "values=1.npy"
    np.save(path, values.astype(">f4"))
    out = tmp_path / "out"
    words = ("run", str(model), "--backend", "reference", "--input", f"x={path}")
    assert cli.main((*words, "--output-dir", str(out))) == 0
    text = capsys.readouterr().out
    assert text.count("1 NaN") == 3
    saved = {file.name: np.load(file) for file in out.iterdir()}
    (exp,) = (array for name, array in saved.items() if "depthwise" in name)
    np.testing.assert_allclose(exp, np.exp(values), rtol=1e-6)


@given(st.lists(st.text(max_size=12), max_size=12, unique=True))
def test_file_names_stay_inside_and_differ(names: list[str]) -> None:
    found = file_names([*names, "a" * 999, "a" * 998, "..", "", "A", "a", "a-2", "a/"])
    assert set(names) <= set(found)
    assert len({name.casefold() for name in found.values()}) == len(found)
    for name in found.values():
        assert Path(name).name == name
        assert not name.startswith(".")
        assert len(name) < 128


def test_diff_json_is_strict_json(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    plant(monkeypatch, {"one": healthy, "two": corrupts(LONG, by=float("inf"))})
    words = ("diff", str(model), "--in-process", "--backend", "one", "--backend", "two")
    path = tmp_path / "new" / "diff.json"
    assert cli.main((*words, "--node-by-node", "--json", str(path))) == 1
    capsys.readouterr()
    document = parsed(path.read_text(encoding="utf-8"))
    assert document["format"] == "tosavk.diff"
    assert document["verdict"] == "different"
    assert document["first_different"]["op"] == "EXP"
    assert [run["label"] for run in document["runs"]] == ["one", "two"]
    finding = document["findings"][0]
    assert finding["kind"] == "operator"
    assert finding["operator"]["output"] == LONG
    (wrong,) = document["operators"][0]["comparisons"]
    assert wrong["relative"] == "Infinity"
    assert wrong["worst"]["index"] == [0, 0, 3]
    assert wrong["worst"]["left_bits"].startswith("0x")
    assert cli.main((*words, "--json", "-")) == 1
    said = capsys.readouterr()
    assert parsed(said.out)["verdict"] == "different"
    assert said.err == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_lacks_become_text(value: float) -> None:
    text = json.dumps(plain({"a": [value, (1.5, {"b": value})]}), allow_nan=False)
    assert float(json.loads(text)["a"][0]) == pytest.approx(value, nan_ok=True)


def test_default_backends_are_those_that_are_there(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    from tosavk.cli import diff as command
    from tosavk.core.errors import RuntimeUnavailable

    def missing() -> NoReturn:
        raise RuntimeUnavailable("no loader: install one")

    plant(monkeypatch, {"one": healthy, "open_missing": missing})
    monkeypatch.setattr(command, "DEFAULT_BACKENDS", ("one", "open_missing", "one"))
    assert cli.main(["diff", "--in-process", str(model)]) == 0
    text = capsys.readouterr().out
    assert "left out" in text
    assert "install one" in text
    assert "AGREED" in text
    monkeypatch.setattr(command, "DEFAULT_BACKENDS", ("one", "open_missing"))
    assert cli.main(["diff", "--in-process", str(model)]) == 4
    assert "FAILED" in capsys.readouterr().out


def test_what_no_kernel_has_is_code_3(tmp_path: Path, capsys: Captured) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (1, 4))
    for part in b.custom([x], [(DType.FP32, (1, 4))], operator_name="mine"):
        b.output(part)
    path = tmp_path / "custom.tosa"
    path.write_bytes(b.build())
    words = ("diff", str(path), "--backend", "reference", "--backend", "reference")
    assert cli.main(words) == 3
    text = capsys.readouterr().out
    assert "CUSTOM" in text
    assert "FAILED" in text


def run_words(words: list[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    return done.returncode, done.stdout, done.stderr


def test_the_reports_command_repeats_the_diff(
    tmp_path: Path, available_devices: tuple[str, ...], capsys: Captured
) -> None:
    b = Builder()
    x = b.input("in=put", DType.FP32, (-1, 5))
    b.output(b.op(Op.ADD, [x, x], name="z", dtype=DType.FP32, shape=(-1, 5)))
    (tmp_path / "open.tosa").write_bytes(b.build())
    np.save(tmp_path / "v.npy", np.arange(15, dtype=np.float32).reshape(3, 5))
    device = next(d for d in available_devices if d.startswith("vulkan"))
    words = [
        *("diff", str(tmp_path / "open.tosa"), "--shape", "in=put=3x5"),
        *("--input", f"in=put={tmp_path / 'v.npy'}", "--seed", "5"),
        *("--backend", device, "--backend", "reference", "--node-by-node"),
    ]
    first = tmp_path / "first.json"
    report = tmp_path / "report.html"
    assert cli.main([*words, "--json", str(first), "--report", str(report)]) == 0
    capsys.readouterr()
    page = report.read_text(encoding="utf-8")
    shown = re.search(r'<pre id="command">(.*?)</pre>', page, re.DOTALL)
    assert shown
    parts = shlex.split(html.unescape(shown[1]))
    env = dict(part.split("=", 1) for part in parts[: parts.index("tosavk")])
    again = tmp_path / "again.json"
    command = [*parts[parts.index("tosavk") :], "--json", str(again)]
    code, _, err = run_words(command, env)
    assert code == 0, err
    one, two = (parsed(path.read_text()) for path in (first, again))
    for document in (one, two):
        for run in document["runs"]:
            for name in ("load_s", "first_s", "steady_s"):
                del run[name]
    assert one == two


def test_progress_is_for_terminals(model: Path) -> None:
    words = ["tosavk", "run", str(model), "--backend", "reference"]
    code, _, err = run_words(words, {})
    assert (code, err) == (0, "")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:
            pass
    os.close(ours)
    assert process.returncode == 0
    assert b"reading the model" in shown or b"running on" in shown


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "llvmpipe (LLVM 15.0.6, 256 bits) (llvmpipe, Mesa 22.3.6 (LLVM 15.0.6))",
            "llvmpipe, Mesa 22.3.6",
        ),
        ("reference (NumPy 2.4.6)", "reference, NumPy 2.4.6"),
        ("NVIDIA H200 (NVIDIA, 570.86)", "NVIDIA H200, NVIDIA, 570.86"),
        ("plain", "plain"),
        ("odd (one", "odd (one"),
        ("", ""),
    ],
)
def test_short_names_of_devices(name: str, short: str) -> None:
    assert short_device(name) == short


def test_input_names_may_hold_an_equals_sign() -> None:
    names = ["a", "a=b"]
    assert parse_inputs(["a=b=c.npy"], names) == {"a=b": "c.npy"}
    assert parse_inputs(["a=c=b.npy"], names) == {"a": "c=b.npy"}
