"""The reference evaluates large elementwise operators a part at a time."""

import numpy as np
import pytest

from tosavk.backends.reference.evaluate import Evaluator, Note, evaluate
from tosavk.backends.reference.values import Array, Precision
from tosavk.core import parts
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Graph, Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

SHAPE = (3, 5, 7)
FLOATS = (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "negate"),
    *("reciprocal", "rsqrt", "sigmoid", "sin", "tanh"),
)
PAIRS = ("add", "sub", "mul", "maximum", "minimum", "greater", "equal", "pow")


def floats() -> Graph:
    b = Builder()
    x, y = (b.input(name, DType.FP32, SHAPE) for name in "xy")
    scalar = b.input("scalar", DType.FP32, (1, 1, 1))
    row = b.input("row", DType.FP32, (1, 1, 7))
    for name in FLOATS:
        b.output(getattr(b, name)(x, name=name))
    for name in PAIRS:
        b.output(getattr(b, name)(x, y, name=name))
    b.output(b.add(x, scalar, name="one for all"))
    b.output(b.pow(x, scalar, name="one exponent"))
    b.output(b.add(x, row, name="broadcast"))
    b.output(b.cast(x, DType.FP16, name="cast"))
    b.output(b.clamp(x, -0.5, 0.5, name="clamp"))
    return load_graph(b.build())


@pytest.mark.parametrize("precise", [False, True], ids=["native", "precise"])
def test_parts_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, *, precise: bool
) -> None:
    graph = floats()
    rng = np.random.default_rng(1)
    inputs: dict[str, Array] = {
        name: rng.standard_normal(graph.main.tensors[name].shape).astype(np.float32)
        for name in graph.main.inputs
    }
    inputs["x"][0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    inputs["scalar"][:] = 0.5
    whole = evaluate(graph, inputs, precise=precise)
    monkeypatch.setattr(parts, "PART", 13)
    parted = evaluate(graph, inputs, precise=precise)
    assert list(parted) == list(whole)
    for name, array in whole.items():
        assert parted[name].dtype == array.dtype, name
        assert parted[name].tobytes() == array.tobytes(), name


def test_notes_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x, y = (b.input(name, DType.INT32, (40,)) for name in "xy")
    b.output(b.op(Op.INTDIV, [x, y], name="q"))
    graph = load_graph(b.build())
    top = np.full(40, -(2**31), np.int32)
    under = np.ones(40, np.int32)
    # The reasons come in another order than in the operator's description.
    under[3], under[30] = -1, 0
    found: list[list[Note]] = []
    for _ in range(2):
        notes: list[Note] = []
        evaluate(graph, {"x": top, "y": under}, notes=notes)
        found.append(notes)
        monkeypatch.setattr(parts, "PART", 13)
    assert found[0] == found[1]
    assert [n.reason for n in found[0]] == [
        "division by zero",
        "the quotient overflows",
    ]


def test_only_what_is_wanted_is_kept() -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (4,))
    a = b.add(x, x, name="a")
    c = b.mul(a, a, name="c")
    b.output(b.sub(c, a, name="y"))
    b.output(c)
    block = load_graph(b.build()).main
    evaluator = Evaluator(None, Precision.NATIVE)
    given = {"x": np.ones(4, np.float32)}
    kept = evaluator.block(block, given, keep=block.outputs)
    assert set(kept) == {"y", "c"}
    assert kept["y"].tolist() == [2.0] * 4
    assert {"x", "a", "c", "y"} <= set(evaluator.block(block, given))
