"""Field cases about use: B40, C24, E1, E3, E7, E9, E10, E11, E13, E15, E17."""

import getpass
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tosavk
from harness import devices
from harness.planted import Fault, FaultyDevice, corrupts, healthy, plant
from harness.running import Array, Devices
from harness.vulkan_door import Door, KeptInstance
from tosavk import cli
from tosavk.backends.registry import open_accelerator
from tosavk.backends.session import Session, load_on, lower_on
from tosavk.backends.steps import OperatorLost, run_by_operators
from tosavk.backends.vulkan.description import enabled_features
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.cli.doctor import without_home
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import DType
from tosavk.core.errors import (
    DeviceLost,
    DeviceUnavailable,
    InvalidArgument,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.plan import Numerics
from tosavk.differential import selftest
from tosavk.differential.campaign.workers import matching
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.result import DiffResult, Ending, Verdict
from tosavk.differential.selftest import self_test
from tosavk.lowering import admission
from tosavk.lowering.graph import Graph, Op, Operator
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.rules.table import RULES
from tosavk.lowering.tosa.builder import Builder

Captured = pytest.CaptureFixture[str]
OPTIONS = VulkanOptions(pipeline_cache=False)


def five() -> Graph:
    """Five operators in a row; number 1 of the file is the constant shift of MUL."""
    b = Builder()
    x = b.input("x", DType.FP32, (2, 8))
    a = b.add(x, x, name="a")
    c = b.mul(a, x, name="c")
    d = b.clamp(c, -4.0, 4.0, name="d")
    e = b.sub(d, x, name="e")
    b.output(b.abs(e, name="f"))
    return load_graph(b.build())


VALUES = {"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)}


# E1 -------------------------------------------------------------------------------


def test_a_device_is_chosen_by_index_uuid_name_and_variable_e1(
    vulkan_device: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    known = [d for d in tosavk.devices() if d.backend == "vulkan"]
    assert [d.index for d in known] == list(range(len(known)))
    assert tosavk.devices() == tosavk.devices()
    (wanted,) = matching(vulkan_device, known)
    assert len(wanted.uuid) == 36
    assert len(wanted.pci.split(":")) == 2
    names: list[str] = []
    part = vulkan_device.partition(":")[2]
    for selector in (str(wanted.index), wanted.uuid, part.upper()):
        with tosavk.open(f"vulkan:{selector}") as accelerator:
            names.append(accelerator.name)
    for value in (f"vulkan:{wanted.index}", f"wgpu:x,vulkan:{wanted.uuid}"):
        monkeypatch.setenv("TOSAVK_DEVICE", value)
        with tosavk.open("vulkan") as accelerator:
            names.append(accelerator.name)
    assert len(set(names)) == 1
    assert part in names[0]
    assert cli.main(["devices"]) == 0
    shown = capsys.readouterr().out
    assert wanted.uuid in shown
    assert wanted.pci in shown


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ("vulkan:no such device", DeviceUnavailable, "choose by index, UUID"),
        ("vulkan:97", DeviceUnavailable, "choose by index, UUID"),
        ("cuda:0", InvalidArgument, "TOSAVK_DEVICE: backend 'cuda' is unknown"),
        ("vulkan", InvalidArgument, "TOSAVK_DEVICE: 'vulkan' names no device"),
    ],
)
def test_a_device_that_is_not_there_is_never_replaced_e1(
    monkeypatch: pytest.MonkeyPatch, value: str, error: type[Exception], said: str
) -> None:
    if not any(spec.startswith("vulkan") for spec in devices.available()):
        pytest.skip("no Vulkan device")
    monkeypatch.setenv("TOSAVK_DEVICE", value)
    with pytest.raises(error, match=said):
        tosavk.open("vulkan")


# E3 -------------------------------------------------------------------------------


def test_all_that_is_known_of_a_device_e3(vulkan_device: str, capsys: Captured) -> None:
    known = tosavk.describe(vulkan_device)
    assert json.loads(json.dumps(known)) == known
    assert known["driver"]
    assert known["limits"]["storage_buffer_range"] >= 1 << 27
    assert known["limits"]["subgroup_size"] >= 1
    for feature in known["features"].values():
        assert set(feature) == {"available", "enabled"}
        assert feature["available"] or not feature["enabled"]
    assert known["features"]["synchronization2"] == {"available": True, "enabled": True}
    assert isinstance(known["matrix_shapes"], list)
    with tosavk.open(vulkan_device) as accelerator:
        assert known["name"] in accelerator.name
    assert cli.main(["devices", "--describe", vulkan_device]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "tosavk.device"


def test_switched_off_features_are_not_enabled_e3(
    opened: Devices, vulkan_device: str
) -> None:
    record: Any = cast("Any", opened.accelerator(vulkan_device).device).record
    assert enabled_features(record) >= {"synchronization2", "robust_buffer_access"}
    for spec in ("wgpu", "reference"):
        if spec in {s.partition(":")[0] for s in devices.available()}:
            assert json.dumps(tosavk.describe(spec))


# E7 -------------------------------------------------------------------------------


def test_only_needed_pipelines_are_compiled_and_told_e7(
    vulkan_device: str, request: pytest.FixtureRequest
) -> None:
    door = Door()
    instance = KeptInstance(door)
    request.addfinalizer(instance.destroy)
    told: list[tuple[int, int]] = []
    accelerator = Accelerator(instance.open(vulkan_device, OPTIONS))
    with load_on(
        accelerator, five(), progress=lambda n, of: told.append((n, of))
    ) as session:
        keys = {(d.kernel, d.spec) for d in session.plan.dispatches}
        made = sum(name == "vkCreateComputePipelines" for name, _ in door.live)
    assert made == len(keys)
    assert told[0] == (0, len(keys))
    assert told[-1] == (len(keys), len(keys))
    assert told == sorted(told)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_ends_the_compilation_e7(
    gpu_device: str, error: type[BaseException]
) -> None:
    accelerator = open_accelerator(gpu_device)
    graph = load_graph(selftest.program())

    def stop(done: int, of: int) -> None:
        if done:
            assert done < of
            raise error

    with pytest.raises(error):
        load_on(accelerator, graph, progress=stop)
    # It closed the accelerator, since it was given to it.
    with open_accelerator(gpu_device) as again:
        lowered = lower_on(again.device, five())
        with Session(again, lowered) as session:
            assert session.run(VALUES)


def test_progress_is_told_through_the_public_face_e7(gpu_device: str) -> None:
    told: list[tuple[int, int]] = []
    with tosavk.load(
        five(), backend=gpu_device, progress=lambda n, of: told.append((n, of))
    ):
        pass
    assert told
    assert told[-1][0] == told[-1][1]


# E9 -------------------------------------------------------------------------------


def loses(tensor: str) -> Fault:
    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if tensor in op.outputs:
            raise DeviceLost("planted")
        return results

    return fault


def test_a_lost_device_names_itself_and_operator_by_operator_the_culprit_e9() -> None:
    """Lost at the third of five operators."""
    device = Accelerator(FaultyDevice(loses("d")))
    with (
        device,
        Session(device, lower_on(device.device, five())) as session,
        pytest.raises(DeviceLost, match=r"planted \(for a test\)") as caught,
    ):
        session.run(VALUES)
    assert "--op-by-op" in str(caught.value)
    with (
        Accelerator(FaultyDevice(loses("d"))) as device,
        pytest.raises(OperatorLost) as found,
    ):
        run_by_operators(device, five(), VALUES)
    error = found.value
    assert (error.operator, error.op) == (3, "CLAMP")
    assert error.finished == "operator 2 MUL ('c')"
    assert error.device == "planted (for a test)"
    assert "operator 3 CLAMP ('d')" in str(error)
    with (
        Accelerator(FaultyDevice(loses("a"))) as device,
        pytest.raises(OperatorLost, match="finished: none"),
    ):
        run_by_operators(device, five(), VALUES)


def test_operator_by_operator_gives_the_same_e9(opened: Devices, device: str) -> None:
    accelerator = opened.accelerator(device)
    graph = five()
    found = run_by_operators(accelerator, graph, VALUES)
    expected = opened.run(device, graph, VALUES)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[n], expected[n]) for n in found)
    with pytest.raises(InvalidArgument, match="'x' is missing"):
        run_by_operators(accelerator, graph, {})


# E10 ------------------------------------------------------------------------------


def chain() -> Graph:
    """A product of FP16, a sum and something like a softmax."""
    b = Builder()
    x = b.input("x", DType.FP16, (1, 33, 65))
    y = b.input("y", DType.FP16, (1, 65, 17))
    product = b.cast(b.matmul(x, y), DType.FP32)
    power = b.exp(b.sub(product, b.reduce_max(product, 2)))
    b.output(b.mul(power, b.reciprocal(b.reduce_sum(power, 2)), name="soft"))
    return load_graph(b.build())


def bits_of_runs(spec: str, count: int) -> list[str]:
    rng = np.random.default_rng(10)
    inputs = {
        "x": rng.normal(size=(1, 33, 65)).astype(np.float16),
        "y": rng.normal(size=(1, 65, 17)).astype(np.float16),
    }
    with tosavk.load(chain(), backend=spec) as session:
        runs = [session.run(inputs)["soft"].tobytes() for _ in range(count)]
    return [hashlib.sha256(run).hexdigest() for run in runs]


def test_every_run_gives_the_same_bits_e10(gpu_device: str) -> None:
    """15 here, 15 in another process."""
    here = bits_of_runs(gpu_device, 15)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_use\n"
        "print(*test_use.bits_of_runs(sys.argv[2], 15))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), gpu_device],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
    )
    assert len(set(here) | set(done.stdout.split())) == 1


# E11 ------------------------------------------------------------------------------


def test_all_unsupported_operators_are_in_one_error_e11(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    """Three of them, one within a COND_IF."""
    b = Builder()
    condition = b.input("condition", DType.BOOL, (1,))
    x = b.input("x", DType.FP32, (3,))
    yes, no = b.region("yes"), b.region("no")
    yes.output(yes.sin(yes.input("p", DType.FP32, (3,)), name="sine"))
    no.output(no.identity(no.input("q", DType.FP32, (3,)), name="same"))
    (chosen,) = b.cond_if(condition, [x], then_graph="yes", else_graph="no")
    b.output(b.erf(b.tanh(chosen, name="hyper"), name="error"))
    graph = load_graph(b.build())
    rules = {op: rule for op, rule in RULES.items() if op not in _WITHOUT}
    monkeypatch.setattr(admission, "RULES", rules)
    with pytest.raises(Unsupported) as caught:
        lower_graph(graph)
    text = str(caught.value)
    assert text.startswith("3 operators are not supported:")
    for name, tensor in (("SIN", "sine"), ("TANH", "hyper"), ("ERF", "error")):
        (line,) = (line for line in text.splitlines() if f"{name} is not" in line)
        assert repr(tensor) in line
        assert "FP32" in line
        assert ("in region 'yes'" in line) == (name == "SIN")
    path = tmp_path / "m.tosa"
    path.write_bytes(b.build())
    assert cli.main(["run", str(path), "--backend", "reference"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


_WITHOUT = (Op.SIN, Op.TANH, Op.ERF)


# E13 ------------------------------------------------------------------------------


@pytest.mark.parametrize("numerics", Numerics)
def test_fp32_is_fp32_e13(device: str, numerics: Numerics) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (1, 1, 1))
    b.output(b.matmul(x, x, name="square"))
    big, one = b.input("big", DType.FP32, (1,)), b.input("one", DType.FP32, (1,))
    b.output(b.add(b.add(big, one), one, name="total"))
    inputs = {
        "x": np.full((1, 1, 1), 1.0009765625, np.float32),
        "big": np.full(1, 2048, np.float32),
        "one": np.ones(1, np.float32),
    }
    with tosavk.load(b.build(), backend=device, numerics=numerics) as session:
        found = session.run(inputs)
        assert session.plan.numerics is numerics
    assert found["square"].item() == np.float32(1.001954078674316)
    assert found["total"].item() == 2050


# E15, C24 -------------------------------------------------------------------------


def compared(
    monkeypatch: pytest.MonkeyPatch, right: Fault, **values: Array
) -> DiffResult:
    plant(monkeypatch, {"left": healthy, "right": right})
    return diff(
        DiffRequest(
            graph=five(),
            model="m",
            backends=("left", "right", "reference"),
            given=values or VALUES,
            node_by_node=True,
            children=None,
        )
    )


def becomes(tensor: str, value: float) -> Fault:
    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if tensor not in op.outputs:
            return results
        wrong = results[0].copy()
        wrong.flat[5] = value
        return [wrong]

    return fault


def test_the_third_operator_is_named_e15(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared(monkeypatch, corrupts("d"))
    assert result.verdict is Verdict.DIFFERENT
    assert result.first_different is not None
    assert result.first_different.op == "CLAMP"
    assert [o.operator.op for o in result.operators if not o.agreed] == ["CLAMP"]


def test_nan_on_one_side_fails_and_on_both_passes_e15(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = compared(monkeypatch, becomes("c", np.nan))
    assert one.first_different is not None
    assert one.first_different.op == "MUL"
    both = VALUES["x"].copy()
    both.flat[5] = np.nan
    assert compared(monkeypatch, healthy, x=both).verdict is Verdict.AGREED


def test_shapes_and_zeros_e15(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        return [results[0][:1]] if "f" in op.outputs else results

    assert compared(monkeypatch, cut).verdict is not Verdict.AGREED
    zeros = np.zeros((2, 8), np.float32)
    result = compared(monkeypatch, becomes("a", -0.0), x=zeros)
    judged = [c for c in result.operators[0].comparisons if c.right == "reference"]
    assert all(c.agreed for c in judged)


def refuses() -> Any:  # noqa: ANN401 - a device
    class Small(FaultyDevice):
        def create_kit(self) -> Any:  # noqa: ANN401
            raise ResourceLimit("a buffer of 3 GiB; the heap has 2 GiB")

    return Small(healthy)


def test_what_one_side_cannot_hold_is_neither_pass_nor_mismatch_c24(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, {"left": healthy, "open_small": refuses})
    result = diff(
        DiffRequest(
            graph=five(),
            model="m",
            backends=("left", "open_small"),
            given=VALUES,
            children=None,
        )
    )
    assert result.runs[1].ending is Ending.RESOURCE
    assert not result.findings
    assert result.verdict is Verdict.FAILED
    assert not result.outputs
    assert any("resource" in note for note in result.notes)


# B40 ------------------------------------------------------------------------------


def shifted(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
    """Halves are shifted by 0.5, as a driver was seen to do."""
    del graph
    if op.op is not Op.FLOOR or results[0].dtype != np.float16:
        return results
    return [(results[0] + np.float16(0.5)).astype(np.float16)]


def test_a_plausibly_wrong_operator_is_named_b40(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, {"good": healthy, "shifted": shifted})
    good, bad = self_test(["good", "shifted"], children=None)
    assert (good.outcome, good.wrong) == ("passed", ())
    assert good.operators > 25
    assert bad.outcome == "wrong"
    assert len(bad.wrong) == 1
    assert "FLOOR" in bad.wrong[0]
    assert "planted (for a test)" in bad.wrong[0]


def test_the_devices_pass_the_self_test_b40() -> None:
    specs = [spec for spec in devices.available() if spec != "reference"]
    for test in self_test(specs):
        assert test.outcome == "passed", test
        assert test.operators > 25


# E17 ------------------------------------------------------------------------------


@pytest.mark.parametrize("situation", ["as it is", "no driver", "no wgpu", "broken"])
def test_the_report_never_fails_and_names_nobody_e17(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured, situation: str
) -> None:
    home = tmp_path / getpass.getuser()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TOSAVK_CACHE_DIR", str(home / "cache"))
    if situation == "no driver":
        monkeypatch.setenv("VK_DRIVER_FILES", str(home / "none.json"))
        monkeypatch.setenv("VK_ICD_FILENAMES", str(home / "none.json"))
    elif situation == "no wgpu":
        monkeypatch.setitem(sys.modules, "tosavk.backends.wgpu._ffi", None)
    elif situation == "broken":
        from tosavk.backends import registry

        def breaks() -> None:
            raise RuntimeError(f"{home}/driver.so is broken")

        monkeypatch.setattr(registry, "devices", breaks)
    assert cli.main(["doctor", "--json"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text)
    assert str(home) not in text
    assert report["environment"]["TOSAVK_CACHE_DIR"] == "~/cache"
    assert report["packages"]["tosavk"]
    assert report["packages"]["wgpu"]
    assert {"loader", "validation layer"} <= set(report["vulkan"])
    assert isinstance(report["self_test"], list)
    if situation == "broken":
        assert report["failure"].endswith("~/driver.so is broken")
    if situation == "no wgpu":
        assert not any(d["usable"] for d in report["devices"] if d["backend"] == "wgpu")


def test_the_home_folder_is_a_tilde_everywhere_e17(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    report: dict[str, object] = {
        "a": ["/home/somebody/x", {"b": "in /home/somebody"}],
        "n": 1,
    }
    assert without_home(report) == {"a": ["~/x", {"b": "in ~"}], "n": 1}
