"""The same bits on every device, and results that TOSA's rules allow.

The programs are in harness/families.py. Subnormal numbers have tests of their own,
since a device may flush them to zero in sums and products (docs/numerics.md).
"""

import numpy as np
import pytest

from harness import families
from harness.devices import lane
from harness.judging import complaints
from harness.running import Array, Devices
from tosavk.core.dtypes import DType
from tosavk.differential.compare import compare_bits
from tosavk.lowering.graph import Graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

SUBNORMAL_NAMES = [
    f"{family} {dtype.name}"
    for family, (_, types) in families.FAMILIES.items()
    if family not in families.OPEN and "moves" not in family
    for dtype in types
    if dtype in families.FLOATS
]


def flushes(spec: str) -> bool:
    """Whether a device does what devices may do with subnormal operands and results.

    docs/numerics.md; through wgpu they are flushed, too.
    """
    driver = lane(spec).driver
    return any(name in driver for name in ("SwiftShader", "Mesa 26.", "NVIDIA"))


def gpus(available: tuple[str, ...]) -> list[str]:
    return [spec for spec in available if not spec.startswith("reference")]


def check(
    opened: Devices, specs: list[str], name: str, *, subnormals: bool = False
) -> None:
    """Runs a family on devices; compares them, and judges the first one."""
    program = families.make(name, subnormals=subnormals)
    graph = load_graph(program.build.build())
    results = {spec: opened.run(spec, graph, program.inputs) for spec in specs}
    first, *others = specs
    wrong = [
        f"{first} and {other}: {line}"
        for other in others
        for line in differences(graph, results[first], results[other])
    ]
    if name.rpartition(" ")[0] not in families.OPEN:
        known = {**program.inputs, **results[first]}
        wrong += [f"{first}: {line}" for line in complaints(graph, known)]
    assert not wrong, "\n".join(wrong)


def differences(
    graph: Graph, left: dict[str, Array], right: dict[str, Array]
) -> list[str]:
    """A line for each result that differs."""
    producers = {name: op for op in graph.main.operators for name in op.outputs}
    found: list[str] = []
    for name, array in left.items():
        bits = compare_bits(array, right[name])
        if not bits.equal:
            found.append(f"{producers[name]} {array.dtype} {array.shape}: {bits}")
    return found


@pytest.mark.parametrize("name", families.names())
def test_same_bits(
    opened: Devices, available_devices: tuple[str, ...], name: str
) -> None:
    check(opened, gpus(available_devices), name)


def test_a_device_keeps_subnormals(opened: Devices, gpu_device: str) -> None:
    """Those that do not are expected to fail (tests/expected_failures.toml)."""
    b = Builder()
    b.output(b.mul(b.input("x", DType.FP32, (3,)), b.input("y", DType.FP32, (3,))))
    x = np.array([2.0**-130, 1.0, 3.0], np.float32)
    y = np.array([1.0, 2.0**-140, 4.0], np.float32)
    (result,) = opened.run(gpu_device, b.build(), {"x": x, "y": y}).values()
    assert result.tolist() == [2.0**-130, 2.0**-140, 12.0]


@pytest.mark.parametrize("name", SUBNORMAL_NAMES)
def test_same_bits_with_subnormals(
    opened: Devices, available_devices: tuple[str, ...], name: str
) -> None:
    family, _, dtype = name.rpartition(" ")
    specs = gpus(available_devices)
    if family in families.ROUNDING and dtype != "FP16":
        specs = [spec for spec in specs if not flushes(spec)]
    if not specs:
        pytest.skip("every device here flushes subnormal numbers")
    check(opened, specs, name, subnormals=True)
