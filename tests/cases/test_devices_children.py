"""Field cases in processes of their own: B25, B39, C14, C15, C16, C18."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120


def child(
    code: str, *words: str, changes: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python text, or the command line, as a process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= changes or {}
    command = ["-c", code] if code else ["-m", "tosavk", *words]
    return subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tosavk.core.dtypes import DType
    from tosavk.lowering.tosa.builder import Builder

    b = Builder()
    x = b.input("x", DType.FP32, (4,))
    b.output(b.add(x, x, name="y"))
    path = tmp_path_factory.mktemp("child") / "m.tosa"
    path.write_bytes(b.build())
    return path


# B25 ------------------------------------------------------------------------------


def no_driver(folder: Path, kind: str) -> dict[str, str]:
    """Variables under which no Vulkan driver can be loaded."""
    manifest = folder / "driver.json"
    if kind == "missing library":
        icd = {"library_path": "/nowhere/libdriver.so", "api_version": "1.3.0"}
        manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return {"VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest)}


@pytest.mark.parametrize("kind", ["missing manifest", "missing library"])
def test_without_a_driver_all_says_what_to_install_b25(
    tmp_path: Path, model: Path, kind: str
) -> None:
    changes = no_driver(tmp_path, kind)
    listed = child("", "devices", "--json", changes=changes)
    found = json.loads(listed.stdout)["devices"]
    vulkan = [d for d in found if d["backend"] == "vulkan"]
    assert [d["usable"] for d in vulkan] == [False]
    assert vulkan[0]["reason"]
    run = child("", "run", str(model), "--backend", "vulkan", changes=changes)
    assert run.returncode == 4
    assert "install" in run.stderr
    assert "Traceback" not in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_without_a_loader_all_says_what_to_install_b25() -> None:
    code = """
from tosavk.backends.vulkan import _ffi
import tosavk
class Refusing:
    def __getattr__(self, name):
        return getattr(real, name)
    def dlopen(self, *args):
        raise OSError("cannot open shared object file")
real, _ffi.ffi = _ffi.ffi, None
_ffi.ffi = Refusing()
found = [d for d in tosavk.devices() if d.backend == "vulkan"]
print(len(found), found[0].usable)
print(found[0].reason)
try:
    tosavk.open("vulkan")
except tosavk.InitError as error:
    print(type(error).__name__)
"""
    done = child(code)
    assert done.returncode == 0, done.stderr
    first, *reason, last = done.stdout.splitlines()
    assert first == "1 False"
    assert "install" in " ".join(reason)
    assert last == "RuntimeUnavailable"


@pytest.mark.parametrize("backend", ["vulkan", "wgpu"])
def test_without_its_package_a_backend_says_what_to_install_b25(
    model: Path, backend: str
) -> None:
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
def missing(name, package=None):
    return None if name == {backend!r} else find(name, package)
importlib.util.find_spec = missing
from tosavk.cli import main
sys.exit(main(["run", {str(model)!r}, "--backend", {backend!r}]))
"""
    done = child(code)
    assert done.returncode == 4
    assert f"the package '{backend}' is missing" in done.stderr
    assert "pip install" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# B39 ------------------------------------------------------------------------------


def test_conformance_without_a_device_is_no_pass_b39(tmp_path: Path) -> None:
    changes = no_driver(tmp_path, "missing manifest")
    for backends in (["vulkan"], ["reference", "vulkan"], ["vulkan", "reference"]):
        words = [word for spec in backends for word in ("--backend", spec)]
        done = child("", "conformance", str(ROOT / "tests"), *words, changes=changes)
        assert done.returncode == 4, (backends, done)
        assert "install" in done.stderr


def test_a_diff_with_one_side_is_not_compared_b39(tmp_path: Path, model: Path) -> None:
    changes = no_driver(tmp_path, "missing manifest")
    path = tmp_path / "r.json"
    # Asked for by name: an error. By default: those that are there, said in the result.
    named = ["--backend", "vulkan", "--backend", "reference"]
    done = child("", "diff", str(model), *named, "--json", str(path), changes=changes)
    assert done.returncode == 4, done
    done = child("", "diff", str(model), "--json", str(path), changes=changes)
    document = json.loads(path.read_text(encoding="utf-8"))
    endings = {run["spec"]: run["ending"] for run in document["runs"]}
    assert endings["vulkan"] == "left out"
    assert any("vulkan: left out" in note for note in document["notes"])
    compared = [run for run in document["runs"] if run["compared"]]
    assert document["verdict"] == ("agreed" if len(compared) > 1 else "failed")
    assert done.returncode == (0 if len(compared) > 1 else 4)


# C14, C15 -------------------------------------------------------------------------


def test_many_programs_leave_nothing_behind_c14(wgpu_device: str) -> None:
    code = f"""
import numpy as np
import tosavk
from harness.stress import resident
from tosavk.core.dtypes import DType
from tosavk.lowering.tosa.builder import Builder
b = Builder()
x = b.input("x", DType.FP32, (4096,))
b.output(b.add(x, x, name="y"))
data = b.build()
from tosavk.backends.session import Session, lower_on
from tosavk.lowering.program import load_graph
graph = load_graph(data)
value = np.arange(4096, dtype=np.float32)
accelerator = tosavk.open({wgpu_device!r})
sizes = []
for number in range(200):
    with Session(accelerator, lower_on(accelerator.device, graph)) as session:
        y = session.run({{"x": value}})["y"]
    if number in (20, 199):
        sizes.append(resident())
assert (y == 2 * value).all()
accelerator.close()
for number in range(66):
    with tosavk.load(data, backend={wgpu_device!r}) as session:
        y = session.run({{"x": value}})["y"]
assert (y == 2 * value).all()
print(sizes[1] - sizes[0])
"""
    done = child(code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16 << 20


ENDINGS = {
    "globals": "",
    "exit": "sys.exit(7)",
    "exception": "raise SystemExit(7)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_quietly_c15(gpu_device: str, ending: str) -> None:
    """With a device, a program and a result in globals, a cycle and a daemon thread."""
    code = f"""
import sys, threading, time
import numpy as np
import tosavk
from tosavk.core.dtypes import DType
from tosavk.lowering.tosa.builder import Builder
b = Builder()
x = b.input("x", DType.FP32, (64,))
b.output(b.add(x, x, name="y"))
session = tosavk.load(b.build(), backend={gpu_device!r})
other = tosavk.open({gpu_device!r})
result = session.run({{"x": np.ones(64, np.float32)}})
class Ring: pass
ring = Ring()
ring.itself, ring.session, ring.other = ring, session, other
def beat():
    while True:
        time.sleep(0.001)
        repr(session)
threading.Thread(target=beat, daemon=True).start()
prepared = session._loaded._prepared
event = prepared.submit()
{ENDINGS[ending]}
"""
    done = child(code)
    assert done.returncode == (7 if ENDINGS[ending] else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert "Segmentation" not in done.stderr


# C16 ------------------------------------------------------------------------------

BROKEN = {
    "text": "pipelines._code = lambda *_: 'fn main( {'",
    "width": (
        "pipelines._code = lambda *_: '@compute @workgroup_size(2048) fn main() {}'"
    ),
    "division": (
        "pipelines._code = lambda *_: "
        "'@compute @workgroup_size(1) fn main() { let a = 1 / 0; _ = a; }'"
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_kernels_are_exceptions_c16(wgpu_device: str, what: str) -> None:
    code = f"""
from tosavk.backends.wgpu import open_device
from tosavk.core.errors import Error
device = open_device({wgpu_device.partition(":")[2]!r})
pipelines = device.pipelines
{BROKEN[what]}
try:
    pipelines.get("copy_words", ()) if "copy_words" in pipelines._kernels else \\
        pipelines.get(*next((n, (0,) * len(k.spec)) for n, k in pipelines._kernels.items()))
except Error as error:
    print(type(error).__name__, str(error)[:60].replace(chr(10), " "))
device.close()
"""
    done = child(code)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.strip(), done.stderr


def test_odd_buffers_are_exceptions_c16(wgpu_device: str) -> None:
    code = f"""
from harness.kernels import ALL
from tosavk.backends.wgpu import open_device
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import BufferDesc, MemoryDomain
from tosavk.core.errors import Error
accelerator = Accelerator(open_device({wgpu_device.partition(":")[2]!r}))
context = accelerator.create_context()
for nbytes in (0, -4, 1 << 60):
    try:
        context.allocate_buffer(
            BufferDesc(nbytes=nbytes, usage=ALL, domain=MemoryDomain.DEVICE)
        )
    except Error as error:
        print(type(error).__name__)
buffer = context.allocate_buffer(
    BufferDesc(nbytes=64, usage=ALL, domain=MemoryDomain.DEVICE)
)
for _ in range(2):
    buffer.read(0, 64)
print("read twice")
accelerator.close()
"""
    done = child(code)
    assert done.returncode == 0, (done.returncode, done.stderr)
    *errors, last = done.stdout.splitlines()
    assert len(errors) == 3
    assert last == "read twice"


# C18 ------------------------------------------------------------------------------


def test_wgpu_is_given_wgsl_only_c18() -> None:
    """So what naga makes of barriers in SPIR-V does not matter."""
    texts = [p.read_text("utf-8") for p in (ROOT / "backends/wgpu").glob("*.py")]
    assert not [
        text for text in texts if re.search(r"ShaderSourceSPIRV|read_spirv", text)
    ]
    assert any("ShaderSourceWGSL" in text for text in texts)
    page = (ROOT / "docs/wgpu-backend.md").read_text("utf-8")
    assert "WGSL" in page
