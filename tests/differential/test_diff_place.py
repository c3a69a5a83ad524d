"""Where a difference is: what an element was computed from, whose error it is."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from harness.planted import Array, Planted, corrupts, healthy, plant
from tosavk.backends.reference.evaluate import evaluate_operator
from tosavk.core.dtypes import DType
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.receptive import excerpts
from tosavk.differential.result import ULP_EDGES, DiffResult, Share
from tosavk.differential.station import Station
from tosavk.differential.verdict import counts
from tosavk.differential.windows import windows
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Graph, Op, Tensor
from tosavk.lowering.lower import live_operators
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

F = DType.FP32


def _conv(b: Builder) -> Tensor:
    x, w = b.input("x", F, (2, 6, 6, 3)), b.input("w", F, (4, 3, 2, 3))
    bias = b.input("bias", F, (4,))
    return b.conv2d(x, w, bias, pad=(1, 0, 1, 1), stride=(2, 1), dilation=(1, 2))


def _depthwise(b: Builder) -> Tensor:
    x, w = b.input("x", F, (1, 5, 6, 3)), b.input("w", F, (3, 2, 3, 2))
    return b.depthwise_conv2d(x, w, b.input("bias", F, (6,)), pad=(1, 1, 0, 1))


def _transposed(b: Builder) -> Tensor:
    x, w = b.input("x", F, (1, 4, 3, 2)), b.input("w", F, (3, 3, 2, 2))
    bias = b.input("bias", F, (3,))
    return b.transpose_conv2d(x, w, bias, out_pad=(0, 1, -1, 0), stride=(2, 1))


def _concat(b: Builder) -> Tensor:
    parts = [b.input(f"x{i}", F, (2, 1 + i, 3)) for i in range(3)]
    return b.concat(parts, 1)


CASES: dict[str, Callable[[Builder], Tensor]] = {
    "conv2d": _conv,
    "depthwise": _depthwise,
    "transposed": _transposed,
    "concat": _concat,
    "matmul": lambda b: b.matmul(
        b.input("x", F, (2, 3, 4)), b.input("y", F, (2, 4, 5))
    ),
    "avg_pool": lambda b: b.avg_pool2d(
        b.input("x", F, (1, 5, 6, 2)), (3, 2), stride=(2, 1), pad=(1, 1, 0, 1)
    ),
    "reduce": lambda b: b.reduce_sum(b.input("x", F, (3, 4, 5)), 1),
    "add": lambda b: b.add(b.input("x", F, (3, 1, 5)), b.input("y", F, (1, 4, 5))),
    "slice": lambda b: b.slice(b.input("x", F, (4, 5, 6)), (1, 2, 0), (2, 3, 6)),
    "pad": lambda b: b.pad(b.input("x", F, (3, 4)), (1, 2, 0, 3)),
    "transpose": lambda b: b.transpose(b.input("x", F, (2, 3, 4)), (2, 0, 1)),
    "reverse": lambda b: b.reverse(b.input("x", F, (3, 4)), 1),
    "tile": lambda b: b.tile(b.input("x", F, (2, 3)), (2, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_excerpt_has_all_that_an_element_depends_on(name: str) -> None:
    """Found by changing one element of an operand after the other."""
    b = Builder()
    b.output(CASES[name](b))
    graph = load_graph(b.build())
    block = graph.main
    op = next(op for op in block.operators if op.op not in (Op.CONST, Op.CONST_SHAPE))
    constants = fold(block, live_operators(block))
    rng = np.random.default_rng(5)
    values: dict[str, Array] = {}
    for operand in op.inputs:
        tensor = block.tensors[operand]
        random = rng.uniform(0.5, 1.5, tensor.shape or ()).astype(np.float32)
        values[operand] = constants.get(operand, random)

    def result(changed: Mapping[str, Array]) -> Array:
        operands = [{**values, **changed}[operand] for operand in op.inputs]
        return evaluate_operator(op, block, operands, graph=graph)[0]

    plain = result({})
    for index in [(0,) * plain.ndim, tuple(n - 1 for n in plain.shape)]:
        found = {e.tensor: e for e in excerpts(op, block, values, index)}
        for operand in block.inputs:
            box = found.get(operand)
            for flat in range(values[operand].size):
                other = values[operand].copy()
                other.reshape(-1)[flat] += 1
                if result({operand: other})[index] == plain[index]:
                    continue
                assert box is not None, (operand, index)
                at = np.unravel_index(flat, other.shape)
                assert all(
                    s <= i < s + n
                    for i, s, n in zip(at, box.start, box.shape, strict=True)
                ), (operand, index, at)


def test_an_excerpt_shows_values_and_bits() -> None:
    b = Builder()
    x = b.input("x", F, (1, 200))
    b.output(b.reduce_sum(x, 1))
    block = load_graph(b.build()).main
    values = {"x": np.arange(200, dtype=np.float32).reshape(1, 200)}
    (part,) = excerpts(block.operators[0], block, values, (0, 0))
    assert part.elements == 200
    assert part.values[:3] == ("0", "1", "2")
    assert part.bits[1] == "0x3f800000"
    assert len(part.values) == len(part.bits) == 64


def chain() -> Graph:
    b = Builder()
    x = b.input("x", F, (1, 7, 11))
    square = b.mul(x, x, name="square")
    total = b.add(square, b.const(np.full((1, 1, 1), 0.1, np.float32)), name="total")
    b.output(b.exp(b.clamp(total, 0.0, 6.0, name="clamped"), name="power"))
    return load_graph(b.build())


def run(patch: pytest.MonkeyPatch, *, reference: bool, samples: int = 1) -> DiffResult:
    backends: dict[str, Planted] = {"good": healthy, "bad": corrupts("square")}
    plant(patch, backends)
    return diff(
        DiffRequest(
            graph=chain(),
            model="chain",
            backends=(*backends, *(("reference",) * reference)),
            node_by_node=True,
            samples=samples,
            children=None,
        )
    )


def shares(result: DiffResult, backend: str) -> dict[str, Share]:
    return {
        share.tensor: share
        for item in result.operators
        for share in item.shares
        if share.backend == backend
    }


@pytest.mark.parametrize("reference", [True, False])
def test_own_errors_are_told_from_inherited_ones(
    monkeypatch: pytest.MonkeyPatch, *, reference: bool
) -> None:
    result = run(monkeypatch, reference=reference)
    bad = shares(result, "bad")
    assert list(bad) == ["square", "total", "clamped", "power"]
    against = "reference" if reference else "good"
    assert {share.against for share in bad.values()} == {against}
    assert bad["square"].contributed > 0.1
    assert bad["square"].inherited == 0
    for name in ("total", "clamped", "power"):
        assert bad[name].contributed < 1e-6
        assert bad[name].inherited > 0.05
        assert bad[name].total > 0.05
    if reference:
        good = shares(result, "good")
        assert all(share.contributed < 1e-6 for share in good.values())
        assert all(share.inherited < 1e-6 for share in good.values())


def test_the_worst_element_with_its_operands_and_by_how_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(monkeypatch, reference=True)
    first = result.first_comparison
    assert first is not None
    name, c = first
    assert (name.op, c.tensor, c.right) == ("MUL", "square", "reference")
    assert c.worst is not None
    assert c.worst.index == (0, 0, 3)
    x = float(c.operands[0].values[2])
    assert c.operands[0].tensor == "x"
    assert c.operands[0].start == (0, 0, 1)
    assert c.operands[0].shape == (1, 1, 5)
    assert float(c.worst.right) == pytest.approx(x * x)
    assert float(c.worst.left) == pytest.approx(x * x + 0.25)
    nearest = np.array(x * x, np.float32).view(np.uint32)
    assert int(c.worst.right_bits, 16) == pytest.approx(int(nearest), abs=1)
    assert c.worst.allowed_ulp == 0.5
    assert c.worst.excess is not None
    assert c.worst.ulp is not None
    assert c.worst.excess == pytest.approx(2 * c.worst.ulp)
    assert c.histogram is not None
    assert sum(c.histogram) == 77
    assert c.histogram[-1] == 1


def test_histogram_classes() -> None:
    errors = np.array([0, 0.25, 0.5, 0.75, 1, 3, 1e9, np.inf, np.nan])
    found = counts(errors)
    assert len(found) == len(ULP_EDGES) + 1
    assert found[:5].tolist() == [1, 2, 2, 0, 1]
    assert found[-1] == 3


def test_many_inputs_are_one_comparison_each(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, reference=True, samples=3)
    assert result.samples == 3
    assert [origin.sample for origin in result.inputs] == [0, 1, 2]
    assert [origin.style for origin in result.inputs] == [
        "uniform",
        "ranges",
        "ranges",
    ]
    assert len({origin.sha256 for origin in result.inputs}) == 3
    assert [item.operator.op for item in result.operators] == [
        "MUL",
        "ADD",
        "CLAMP",
        "EXP",
    ]
    first = result.first_comparison
    assert first is not None
    assert first[1].elements == 3 * 77
    assert 0 in first[1].samples


def test_windows_keep_little_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = chain()
    live = live_operators(graph.main)
    constants = fold(graph.main, live)
    parts = windows(graph.main, live, constants, room=1 << 20, budget=1)
    assert [len(part.operators) for part in parts] == [1, 1, 1, 1]
    assert [part.names for part in parts] == [
        ("square",),
        ("square", "total"),
        ("total", "clamped"),
        ("clamped",),
    ]
    assert len(windows(graph.main, live, constants, room=1 << 20)) == 1
    loads: list[int] = []
    expose = Station.expose

    def counted(self: Station, names: Sequence[str]) -> None:
        loads.append(len(names))
        expose(self, names)

    monkeypatch.setattr(Station, "expose", counted)
    plant(monkeypatch, {"good": healthy, "bad": corrupts("square", "power")})
    request = DiffRequest(
        graph=graph,
        model="chain",
        backends=("good", "bad", "reference"),
        children=None,
        repeats=0,
    )
    whole = diff(request)
    assert loads == [3, 3, 3]
    small = diff(dataclasses.replace(request, window_bytes=1))
    assert max(loads[3:]) == 2
    assert small.findings == whole.findings
    assert small.operators == whole.operators
