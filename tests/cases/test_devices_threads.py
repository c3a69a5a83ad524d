"""Field cases about threads, lifetimes and hangs: B34, B37, B38, B42, C27."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import harness
import tosavk
from harness.stress import resident
from harness.vulkan_door import Door, KeptInstance
from tosavk import cli
from tosavk.backends.session import Session, lower_on
from tosavk.backends.steps import OperatorLost, run_by_operators
from tosavk.backends.vulkan import _ffi, staging
from tosavk.backends.vulkan import logical as logical_device
from tosavk.backends.vulkan._ffi import const
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.wgpu.recordings import Recording
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeadlineExpired, WrongThread
from tosavk.lowering.graph import Graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.reader import read_graph

OPTIONS = VulkanOptions(pipeline_cache=False)
THREADS, RUNS = 8, 12
LIMIT_S = 120


def adds(constant: int) -> Graph:
    b = Builder()
    x = b.input("x", DType.INT32, (65,))
    b.output(b.add(x, b.const(np.full(65, constant, np.int32)), name="y"))
    return load_graph(b.build())


# B34 ------------------------------------------------------------------------------


def test_devices_come_and_go_b34(gpu_device: str) -> None:
    """Memory grows by less than a MiB with each, with the driver's own threads."""
    graph, sizes = adds(7), list[int]()
    x = np.arange(65, dtype=np.int32)
    for number in range(20):
        begin = time.monotonic()
        with tosavk.load(graph, backend=gpu_device) as session:
            assert np.array_equal(session.run({"x": x})["y"], x + 7)
        assert time.monotonic() - begin < LIMIT_S
        if number in (5, 19):
            sizes.append(resident())
    assert sizes[1] - sizes[0] < 14 << 20


# B37 ------------------------------------------------------------------------------


def test_threads_with_devices_of_their_own_b37(gpu_device: str) -> None:
    """Half of them with one program, half with one each; all on one physical device."""
    failures: list[str] = []
    start = threading.Barrier(THREADS)
    common = adds(1000)

    def work(number: int) -> None:
        try:
            constant = 1000 if number % 2 else number
            graph = common if number % 2 else adds(number)
            x = np.arange(65, dtype=np.int32) * number
            start.wait(LIMIT_S)
            with tosavk.load(graph, backend=gpu_device) as session:
                for run in range(RUNS):
                    y = session.run({"x": x + run})["y"]
                    if not np.array_equal(y, x + run + constant):
                        failures.append(f"thread {number}, run {run}")
        except Exception as error:  # noqa: BLE001 - told to the main thread
            failures.append(f"thread {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_one_device_belongs_to_one_thread_b37(gpu_device: str) -> None:
    """Others are refused, and disturb nothing."""
    caught: list[type[BaseException]] = []
    x = np.arange(65, dtype=np.int32)
    with tosavk.load(adds(3), backend=gpu_device) as session:

        def intrude() -> None:
            try:
                session.run({"x": x})
            except Exception as error:  # noqa: BLE001 - told to the main thread
                caught.append(type(error))

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join(LIMIT_S)
        assert caught == [WrongThread]
        assert np.array_equal(session.run({"x": x})["y"], x + 3)


# B42 ------------------------------------------------------------------------------


class Stuck(Door):
    """A driver whose fences do not signal while `holds` is set."""

    holds = False

    def __call__(self, name: str, function: _ffi.Function) -> _ffi.Function:
        call = super().__call__(name, function)
        if name == "vkWaitForFences":
            return lambda *args: int(const.TIMEOUT) if self.holds else call(*args)
        if name == "vkGetFenceStatus":
            return lambda *args: int(const.NOT_READY) if self.holds else call(*args)
        return call


@pytest.mark.parametrize("by_operators", ["whole", "by operators"])
def test_a_fence_that_never_signals_b42(
    vulkan_device: str,
    monkeypatch: pytest.MonkeyPatch,
    by_operators: str,
) -> None:
    monkeypatch.setattr(logical_device, "ABANDON_NS", 200_000_000)
    monkeypatch.setattr(staging, "COPY_TIMEOUT_NS", 500_000_000)
    door = Stuck()
    instance = KeptInstance(door)
    accelerator = Accelerator(instance.open(vulkan_device, OPTIONS))
    x = {"x": np.arange(65, dtype=np.int32)}
    begin = time.monotonic()
    if by_operators == "whole":
        session = Session(accelerator, lower_on(accelerator.device, adds(5)))
        door.holds = True
        begin = time.monotonic()
        with pytest.raises(DeadlineExpired, match=r"did not end within 0\.5 s on"):
            session.run(x, timeout_s=0.5)
        session.close()
    else:
        door.holds = True
        # Where constants are copied to memory that is not mapped, it is that copy that
        # never ends, and the device counts as lost.
        ends = (DeadlineExpired, OperatorLost)
        with pytest.raises(ends, match=r"operator 1 ADD \('y'\)"):
            run_by_operators(accelerator, adds(5), x, timeout_s=0.5)
    accelerator.close()
    assert 0.5 <= time.monotonic() - begin < 10
    # The driver was only slow to say so: nothing keeps the process from ending.
    door.holds = False


def test_a_fence_that_never_signals_of_a_flow_b42(
    vulkan_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logical_device, "ABANDON_NS", 200_000_000)
    monkeypatch.setattr(staging, "COPY_TIMEOUT_NS", 500_000_000)
    door = Stuck()
    instance = KeptInstance(door)
    accelerator = Accelerator(instance.open(vulkan_device, OPTIONS))
    b = Builder()
    state = b.variable("state", DType.FP32, (65,), np.zeros(65, np.float32))
    b.variable_write(state, b.input("x", DType.FP32, (65,)))
    b.output(b.add(b.variable_read(state), b.variable_read(state), name="y"))
    session = Session(accelerator, lower_on(accelerator.device, load_graph(b.build())))
    x = {"x": np.arange(65, dtype=np.float32)}
    assert session.run(x, timeout_s=60)["y"][64] == 128
    door.holds = True
    begin = time.monotonic()
    with pytest.raises(DeadlineExpired, match=r"did not end within 0\.5 s on"):
        session.run(x, timeout_s=0.5)
    session.close()
    accelerator.close()
    assert 1.4 <= time.monotonic() - begin < 10
    door.holds = False


def test_work_that_never_ends_on_wgpu_b42(
    wgpu_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(recording: Recording, timeout_ns: int = 0) -> bool:
        time.sleep(timeout_ns / 1e9)
        recording._gpu.check("waiting for a submission")  # pyright: ignore[reportPrivateUsage]
        return False

    x = {"x": np.arange(65, dtype=np.int32)}
    session = tosavk.load(adds(5), backend=wgpu_device)
    begin = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(Recording, "wait", never)
        patch.setattr(Recording, "poll", never)
        with pytest.raises(DeadlineExpired, match=r"did not end within 0\.5 s on"):
            session.run(x, timeout_s=0.5)
        session.close()
    assert 0.5 <= time.monotonic() - begin < 10
    with tosavk.load(adds(5), backend=wgpu_device) as again:
        assert again.run(x)["y"][0] == 5


# B38, C27 -------------------------------------------------------------------------


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = str(Path(harness.__file__).parents[1])
    paths = (str(Path(__file__).parent), tests, os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def make(folder: Path, operator: str) -> None:
    """A test as the official generator writes it."""
    b = Builder()
    x = b.input("x", DType.FP32, (4,))
    b.output(b.exp(x) if operator == "EXP" else b.add(x, x))
    data = b.build()
    (output,) = read_graph(data).main.outputs
    folder.mkdir(parents=True)
    (folder / "test.tosa").write_bytes(data)
    np.save(folder / "input-0.npy", np.asarray([1.0, 2.0, 3.0, 4.0], np.float32))
    rule = {"mode": "ULP", "data_type": "FP32", "ulp_info": {"ulp": 8}}
    description = {
        "tosa_file": "test.tosa",
        "ifm_name": ["x"],
        "ifm_file": ["input-0.npy"],
        "ofm_name": [output],
        "ofm_file": ["result-0.npy"],
        "expected_failure": False,
        "meta": {"compliance": {"tensors": {output: rule}}},
        "test_details": {"operator": operator},
    }
    (folder / "desc.json").write_text(json.dumps(description))


def run_planted(
    folder: Path, fault: str, operators: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Status and reason of a test of each operator, with a fault at EXP."""
    for number, operator in enumerate(operators.split()):
        make(folder / operator / f"t{number}", operator)
    start = folder / "sitecustomize.py"
    start.write_text(_PLANTED.format(fault=fault))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
    path = folder / "r.json"
    words = ["conformance", str(folder), "--backend", "reference", "--timeout", "3"]
    assert cli.main([*words, "--json", str(path)]) == 1
    document = json.loads(path.read_text(encoding="utf-8"))
    return {
        f"{r['operator']} {r['name']}": f"{r['status']} {r['reason']}"
        for r in document["results"]
    }


_PLANTED = """
import os, signal, time
from tosavk.differential import conformance
real = conformance.run_case
def run_case(case, spec, accelerator):
    if case.test.operator == "exp":
        {fault}
    return real(case, spec, accelerator)
conformance.run_case = run_case
"""


@pytest.mark.usefixtures("planted")
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_kernel_that_ends_the_driver_is_named_b38(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_planted(
        tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)", "ADD EXP ADD EXP", monkeypatch
    )
    assert [text.partition(" ")[0] for text in found.values()] == [
        "passed", "passed", "failed", "failed",
    ]  # fmt: skip
    for name, text in found.items():
        if name.startswith("exp"):
            assert "crashed: the process was ended by SIGSEGV" in text


@pytest.mark.usefixtures("planted")
def test_a_test_that_hangs_ends_no_conformance_run_c27(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_planted(tmp_path, "time.sleep(600)", "ADD EXP SUB", monkeypatch)
    hung = [name for name, text in found.items() if "hung: no result for 3 s" in text]
    assert [name.partition(" ")[0] for name in hung] == ["exp"]
    assert sum(text.startswith("passed") for text in found.values()) == 2
