"""Every FP16 and BF16 value through every float function, as exact as the document says.

docs/numerics.md has the figures, which tools/accuracy.py measures and writes.
"""

import re
from pathlib import Path

import accuracy
import numpy as np
import pytest

from harness.judging import complaints
from harness.running import Array, Devices
from tosavk.core.dtypes import DType
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
SOME = 257
"""POW is run on one pair of so many."""


def documented() -> dict[str, dict[str, float]]:
    """The figures of the page, by operator and type of its operands."""
    text = PAGE.read_text(encoding="utf-8")
    text = text.partition(accuracy.BEGIN)[2].partition(accuracy.END)[0]
    rows: dict[str, dict[str, float]] = {}
    for line in re.findall(r"^\| ([A-Z]+) \|(.*)\|$", text, re.MULTILINE):
        figures = [float(cell) for cell in line[1].split("|")]
        rows[line[0]] = dict(zip(accuracy.COLUMNS, figures, strict=True))
    return rows


def test_the_page_has_every_function() -> None:
    assert documented().keys() == accuracy.EXACT.keys()


@pytest.mark.parametrize("op", accuracy.EXACT)
def test_every_value(opened: Devices, gpu_device: str, op: str) -> None:
    for dtype in (DType.FP16, DType.BF16):
        operands: tuple[Array, ...] = (accuracy.every(dtype),)
        if op == "POW":
            operands = tuple(array[::SOME] for array in accuracy.pairs(dtype))
        b = Builder()
        tensors = [
            b.input(name, dtype, array.shape)
            for name, array in zip("xy", operands, strict=False)
        ]
        b.output(getattr(b, op.lower())(*tensors, name="z"))
        graph = load_graph(b.build())
        inputs = dict(zip("xy", operands, strict=False))
        results = opened.run(gpu_device, graph, inputs)
        found = accuracy.error(op, dtype, operands, results["z"])
        assert not found.special
        # The figures have three digits.
        assert found.ulp <= documented()[op][dtype.name] + 0.0005, found
        assert not complaints(graph, {**inputs, **results})


def test_the_measure_sees_a_wrong_bit() -> None:
    x = accuracy.every(DType.FP16)
    with np.errstate(all="ignore"):
        right = np.exp(x.astype(np.float32)).astype(np.float16)
    wrong = right.copy()
    wrong[0x3C00] = np.nextafter(wrong[0x3C00], np.float16(9))
    assert accuracy.error("EXP", DType.FP16, (x,), right).ulp <= 0.5001
    found = accuracy.error("EXP", DType.FP16, (x,), wrong)
    assert found.at == (1.0,)
    assert found.ulp > 0.5
    wrong[0x3C00] = np.nan
    assert accuracy.error("EXP", DType.FP16, (x,), wrong).special == 1
