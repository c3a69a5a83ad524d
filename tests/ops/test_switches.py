"""Devices with parts left alone give the same answers (field case E12)."""

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tosavk
from harness import devices
from harness.running import Array, Devices, same_values
from harness.vulkan_door import open_device
from tosavk.backends.session import load
from tosavk.backends.vulkan._ffi import Function, ffi, structure_type
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.cli import main
from tosavk.core.dtypes import DType
from tosavk.core.switches import SWITCHES, SwitchWarning
from tosavk.lowering.graph import Graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.writer import write_graph

RNG = np.random.default_rng(12)


@functools.cache
def program() -> tuple[Graph, dict[str, Array]]:
    """Operators of INT8, FP16 and FP32, among them all that a switch changes."""
    b = Builder()
    x = b.input("x", DType.INT8, (1, 7, 5, 6))
    weights = b.const(RNG.integers(-127, 128, (9, 3, 3, 6)).astype(np.int8))
    bias = b.const(RNG.integers(-99, 99, 9).astype(np.int32))
    zero = b.const(np.array([-7], np.int8))
    b.output(b.conv2d(x, weights, bias, pad=(1, 1, 1, 1), input_zp=zero))
    m = b.input("m", DType.INT8, (2, 5, 11))
    n = b.input("n", DType.INT8, (2, 11, 3))
    b.output(b.matmul(m, n, a_zp=zero, b_zp=b.const(np.array([3], np.int8))))
    h = b.input("h", DType.FP16, (1, 4, 8))
    f = b.input("f", DType.FP32, (1, 8, 4))
    b.output(b.matmul(h, b.cast(f, DType.FP16)))
    b.output(b.reduce_sum(b.exp(f), 1))
    graph = load_graph(b.build())
    inputs: dict[str, Array] = {}
    for name in graph.main.inputs:
        tensor = graph.main.tensors[name]
        assert tensor.shape is not None
        if tensor.dtype is DType.INT8:
            inputs[name] = RNG.integers(-128, 128, tensor.shape).astype(np.int8)
        else:
            inputs[name] = RNG.normal(size=tensor.shape).astype(tensor.dtype.numpy)
    return graph, inputs


def kernels_of(spec: str, *switches: str) -> set[str]:
    with load(program()[0], backend=spec, disable=switches) as session:
        return {dispatch.kernel for dispatch in session.plan.dispatches}


def check_answers(opened: Devices, spec: str, switches: tuple[str, ...]) -> None:
    graph, inputs = program()
    expected = opened.run(spec, graph, inputs)
    with load(graph, backend=spec, disable=switches) as session:
        found = session.run(inputs)
        assert session.device_name.endswith(", ".join(sorted(switches)))
    for name, value in expected.items():
        assert same_values(value, found[name]), name


@pytest.mark.parametrize("switch", SWITCHES)
def test_answers_stay_with_one(opened: Devices, switch: str) -> None:
    check_answers(opened, devices.available()[0], (switch,))


def test_answers_stay_with_all(opened: Devices, gpu_device: str) -> None:
    check_answers(opened, gpu_device, tuple(SWITCHES))


def test_another_kernel_runs(gpu_device: str) -> None:
    dots = {"conv_dot", "matmul_dot"}
    assert kernels_of(gpu_device) >= dots
    without = kernels_of(gpu_device, "no-int8-dot")
    assert without >= {"conv_int", "matmul_int"}
    assert not without & dots


def model(folder: Path) -> str:
    path = folder / "model.tosa"
    path.write_bytes(write_graph(program()[0]))
    return str(path)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOSAVK_DISABLE", "no-int8-dot,no-such-thing")


@pytest.mark.usefixtures("environment")
def test_the_variable_works_and_reports_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = devices.available()[0]
    path = model(tmp_path)
    with pytest.warns(SwitchWarning, match="no-such-thing"):
        assert main(["inspect", path, "--backend", spec, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["device"]["lacks"]["int8_dot"] == "switched off (no-int8-dot)"
    assert "switched off (no-int8-dot)" in document["device"]["int8_sums"]
    assert document["device"]["name"].endswith("no-int8-dot")
    for command in ("devices", "doctor"):
        with pytest.warns(SwitchWarning, match="no-such-thing"):
            main([command, "--json"])
        report = json.loads(capsys.readouterr().out)
        assert report["switches"] == ["no-int8-dot"]
    with pytest.warns(SwitchWarning, match="no-such-thing"):
        main(["devices"])
    assert "switched off by TOSAVK_DISABLE: no-int8-dot" in capsys.readouterr().out
    backends = ["--backend", spec, "--backend", "reference"]
    with warnings.catch_warnings():
        # Devices may be opened in processes of their own.
        warnings.simplefilter("ignore", SwitchWarning)
        assert main(["diff", path, *backends, "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["environment"]["TOSAVK_DISABLE"] == "no-int8-dot,no-such-thing"


def test_inspect_says_that_dots_are_used(
    gpu_device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model(tmp_path)
    assert main(["inspect", path, "--backend", gpu_device]) == 0
    assert "INT8 sums: integer dot products" in capsys.readouterr().out
    assert main(["inspect", path]) == 0
    assert "no device was named" in capsys.readouterr().out


def test_an_unknown_switch_of_the_api_warns() -> None:
    with pytest.warns(SwitchWarning, match="no-such-thing"):
        tosavk.open("reference", disable=["no-such-thing"]).close()


def test_what_is_switched_off_is_not_enabled(
    vulkan_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[dict[str, bool]] = []
    names = ("subgroupSizeControl", "computeFullSubgroups", "shaderIntegerDotProduct")
    kind = "VkPhysicalDeviceVulkan13Features"

    def wrap(name: str, function: Function) -> Function:
        def seen(physical: Any, info: Any, *rest: Any) -> Any:  # noqa: ANN401 - C data
            node = info.pNext
            while ffi.cast("VkBaseInStructure *", node).sType != structure_type(kind):
                node = ffi.cast("VkBaseInStructure *", node).pNext
            features = ffi.cast(f"{kind} *", node)
            enabled.append({n: bool(getattr(features, n)) for n in names})
            return function(physical, info, *rest)

        return seen if name == "vkCreateDevice" else function

    for switches in ((), ("no-int8-dot",), ("no-subgroup",)):
        options = VulkanOptions(pipeline_cache=False, switches=frozenset(switches))
        open_device(vulkan_device, wrap=wrap, options=options).close()
    every, no_dot, no_subgroup = enabled
    assert no_dot == every | {"shaderIntegerDotProduct": False}
    assert no_subgroup == every | dict.fromkeys(names[:2], False)
    assert every["shaderIntegerDotProduct"]
    monkeypatch.setenv("TOSAVK_DISABLE", "no-int8-dot")
    about = tosavk.describe(vulkan_device)
    assert about["switches"] == ["no-int8-dot"]
    assert about["features"]["integer_dot_product"] == {
        "available": True,
        "enabled": False,
    }
