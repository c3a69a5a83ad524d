"""Numeric field cases that are no single TOSA artifact, and that none of them is lost."""

import dataclasses
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import tosavk
from harness import shared
from harness.running import Array, Devices
from tosavk.backends.reference import evaluate
from tosavk.backends.session import Session
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Op, ResizeMode
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

SPIRV = Path(tosavk.__file__).parent / "shaders" / "spirv"
# Cases of group A are artifacts, all of them; so are these, which are about numbers.
NUMERIC = {
    *("B1", "B8", "B9", "B12", "B18", "B20", "B29", "B30", "B31", "B32"),
    *("C1", "C3", "C6", "C9", "C10", "C11", "C13", "C21", "C23"),
}


@pytest.mark.skipif(
    bool(shared.missing("cases", "tosa")), reason=shared.missing("cases", "tosa")
)
def test_every_case_is_a_test() -> None:
    """Each id of group A, and the numeric ones of B and C, has a folder that is run."""
    root = shared.shared_root() / "cases"
    text = (root / "field-cases.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^### ([A-E]\d+) ", text, re.MULTILINE))
    wanted = {name for name in listed if name.startswith("A")} | NUMERIC
    assert listed >= wanted
    assert len(wanted) > 45
    found = {
        path.parent.name.partition("_")[0]
        for pattern in ("[!_]*/case.json", "_unpredictable/*/case.json")
        for path in (root / "tosa").glob(pattern)
    }
    assert wanted - found == set()


def instructions(path: Path) -> set[int]:
    data = path.read_bytes()
    words = struct.unpack(f"<{len(data) // 4}I", data)
    found: set[int] = set()
    at = 5
    while at < len(words):
        found.add(words[at] & 0xFFFF)
        at += words[at] >> 16
    return found


def test_no_kernel_has_signed_remainders() -> None:
    """C7: OpSRem and OpSMod of negative numbers are wrong on some drivers."""
    for path in SPIRV.rglob("*.spv"):
        assert not instructions(path) & {138, 139}, path.name


def test_remainders_of_negative_numbers(opened: Devices, gpu_device: str) -> None:
    """C7, as TOSA can ask for it, and rounding down by a shift and in RESIZE."""
    b = Builder()
    x = b.input("x", DType.INT32, (5,))
    size = b.const(np.full(1, 768, np.int32))
    whole = b.op(Op.INTDIV, [x, size])
    b.output(b.sub(x, b.mul(whole, size), name="rest"))
    y = b.input("y", DType.INT32, (4,))
    two = b.const(np.full(1, 2, np.int32))
    b.output(b.op(Op.ARITHMETIC_RIGHT_SHIFT, [y, two], name="floor", round=False))
    image = b.input("image", DType.INT8, (1, 1, 6, 1))
    scale, offset, border = (
        b.const_shape(numbers) for numbers in ((1, 1, 8, 3), (0, -7), (0, 1))
    )
    b.output(
        b.op(
            Op.RESIZE,
            [image, scale, offset, border],
            name="resized",
            dtype=DType.INT8,
            mode=int(ResizeMode.NEAREST),
        )
    )
    graph = load_graph(b.build())
    feeds: dict[str, Array] = {
        "x": np.array([-1, -5, -768, -769, -1000], np.int32),
        "y": np.array([-1, -3, -4, -5], np.int32),
        "image": np.arange(10, 70, 10, dtype=np.int8).reshape(1, 1, 6, 1),
    }
    found = opened.run(gpu_device, graph, feeds)
    assert found["rest"].tolist() == [-1, -5, 0, -1, -232]
    assert found["floor"].tolist() == [-1, -1, -1, -2]
    assert np.array_equal(found["resized"], evaluate(graph, feeds)["resized"])


def test_widths_are_not_mixed_up(opened: Devices, gpu_device: str) -> None:
    """C20: one product by work groups of several widths, alternating in one process."""
    rng = np.random.default_rng(20)
    b = Builder()
    x, y = b.input("x", DType.INT8, (1, 70, 9)), b.input("y", DType.INT8, (1, 9, 50))
    b.output(b.matmul(x, y))
    graph = load_graph(b.build())
    feeds: dict[str, Array] = {
        name: rng.integers(-128, 128, tensor.shape).astype(np.int8)
        for name, tensor in (("x", x), ("y", y))
    }
    (want,) = (evaluate(graph, feeds)[name] for name in graph.main.outputs)
    lowered = opened.lower(gpu_device, graph)
    for width in (8, 32, 16, 8, 64, 32, 16):
        dispatches = tuple(
            dataclasses.replace(dispatch, width=width)
            for dispatch in lowered.plan.dispatches
        )
        plan = dataclasses.replace(lowered.plan, dispatches=dispatches)
        changed = dataclasses.replace(lowered, plan=plan)
        with Session(opened.accelerator(gpu_device), changed) as session:
            (found,) = session.run(feeds).values()
        assert np.array_equal(found, want), width
