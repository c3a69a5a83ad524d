"""Inputs of a diff: chosen by the operator that reads them, and by nothing else."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.differential.diff import DiffRequest
from tosavk.differential.generators import Generator, Style
from tosavk.differential.inputs import random_array
from tosavk.differential.request import Given
from tosavk.lowering.graph import Graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

F = DType.FP32


def request(graph: Graph, generator: Generator, samples: int = 1) -> DiffRequest:
    return DiffRequest(
        graph=graph,
        model="m",
        backends=("reference", "reference"),
        generator=generator,
        samples=samples,
        seed=7,
    )


def inputs(b: Builder, generator: Generator) -> dict[str, NDArray[Any]]:
    found = request(load_graph(b.build()), generator).inputs(0)
    return {name: np.asarray(array) for name, array in found.items()}


def two_sums() -> Builder:
    b = Builder()
    x, y = b.input("x", F, (1, 6, 50)), b.input("y", F, (1, 6, 50))
    b.output(b.add(x, y))
    b.output(b.sub(x, y))
    return b


def test_uniform_values_are_those_of_run() -> None:
    for generator in (Generator.UNIFORM, Generator.AUTO):
        found = inputs(two_sums(), generator)
        for position, name in enumerate(("x", "y")):
            rng = np.random.default_rng([7, position])
            want = random_array(F, (1, 6, 50), rng)
            assert np.array_equal(found[name], want)


def test_specials() -> None:
    x = inputs(two_sums(), Generator.SPECIALS)["x"]
    assert np.isnan(x).any()
    assert np.isposinf(x).any()
    assert np.isneginf(x).any()
    assert (np.signbit(x) & (x == 0)).any()
    tiny = np.abs(x[(x != 0) & np.isfinite(x)])
    assert (tiny < 2.0**-126).any()
    assert (np.isfinite(x)).sum() > x.size // 2


def test_ranges_are_wide_and_do_not_overflow_sums() -> None:
    x = inputs(two_sums(), Generator.RANGES)["x"]
    powers = np.log2(np.abs(x.astype(np.float64)))
    assert powers.max() - powers.min() > 50
    assert np.isfinite(x).all()
    assert powers.max() <= 30
    b = Builder()
    b.output(b.exp(b.input("x", F, (1, 6, 50))))
    assert np.isfinite(np.exp(inputs(b, Generator.RANGES)["x"])).all()


def test_what_is_added_cancels() -> None:
    b = Builder()
    x, y = b.input("x", F, (1, 6, 50)), b.input("y", F, (1, 6, 50))
    b.output(b.add(b.identity(x), y))
    found = inputs(b, Generator.CANCELLATION)
    whole = np.abs(found["x"]).max()
    assert whole > 100
    b = Builder()
    b.output(b.add(b.input("x", F, (1, 6, 50)), b.input("y", F, (1, 6, 50))))
    found = inputs(b, Generator.CANCELLATION)
    left = np.abs(found["x"].astype(np.float64) + found["y"])
    assert (left < 0.05 * np.abs(found["x"])).all()
    assert (left > 0).any()
    b = Builder()
    b.output(b.reduce_sum(b.input("x", F, (1, 6, 50)), 2))
    x_sum = inputs(b, Generator.CANCELLATION)["x"].astype(np.float64)
    assert (np.abs(x_sum.sum(axis=2)) < 0.1 * np.abs(x_sum).sum(axis=2)).all()


def test_auto_takes_turns() -> None:
    b = two_sums()
    r = request(load_graph(b.build()), Generator.AUTO, 5)
    styles = [r.styles(sample)["x"] for sample in range(5)]
    assert styles == [
        Style.UNIFORM,
        Style.RANGES,
        Style.CANCELLATION,
        Style.SPECIALS,
        Style.UNIFORM,
    ]
    first, last = r.inputs(0), r.inputs(4)
    assert not np.array_equal(first["x"], last["x"])
    b = Builder()
    b.output(b.exp(b.input("x", F, (3,))))
    r = request(load_graph(b.build()), Generator.AUTO, 3)
    assert r.styles(2) == {"x": Style.RANGES}


@pytest.mark.parametrize(
    "generator", [g for g in Generator if g is not Generator.UNIFORM]
)
def test_operators_are_given_what_they_may_be_given(generator: Generator) -> None:
    b = Builder()
    values = b.input("values", F, (2, 9, 3))
    b.output(b.gather(values, b.reshape(b.input("at", DType.INT32, (10,)), (2, 5))))
    b.output(b.log(b.input("positive", F, (4, 30))))
    b.output(b.pow(b.input("base", F, (4, 30)), b.input("power", F, (4, 30))))
    shifted = b.input("shifted", DType.INT32, (1, 60))
    b.output(b.logical_left_shift(shifted, b.input("by", DType.INT32, (1, 60))))
    many = b.input("many", DType.INT32, (1, 60))
    b.output(b.intdiv(many, b.input("divisor", DType.INT32, (1, 60))))
    one, other = (b.input(n, DType.INT32, (1, 60)) for n in ("one", "other"))
    b.output(b.add(one, other))
    found = inputs(b, generator)
    assert ((found["at"] >= 0) & (found["at"] < 9)).all()
    assert len(set(found["at"].tolist())) > 1
    for name in ("positive", "base"):
        sound = found[name][~np.isnan(found[name])]
        assert not np.signbit(sound).any()
    assert ((found["by"] >= 0) & (found["by"] <= 31)).all()
    assert (found["divisor"] != 0).all()
    total = found["one"].astype(np.int64) + found["other"]
    assert np.abs(total).max() < 2**31


def test_scatter_is_given_every_row_once() -> None:
    b = Builder()
    rows, given = b.input("rows", F, (2, 9, 3)), b.input("given", F, (2, 5, 3))
    b.output(b.scatter(rows, b.input("at", DType.INT32, (2, 5)), given))
    at = inputs(b, Generator.AUTO)["at"]
    assert all(len(set(row)) == 5 for row in at.tolist())
    assert ((at >= 0) & (at < 9)).all()


def test_given_arrays_come_first() -> None:
    graph = load_graph(two_sums().build())
    one = np.ones((1, 6, 50), np.float32)
    r = DiffRequest(
        graph=graph,
        model="m",
        backends=("reference", "reference"),
        given={"x": one},
        runs=(Given({"y": 2 * one}, {"y": "two.npy"}), Given({"y": 3 * one})),
    )
    assert r.count == 2
    assert [float(r.inputs(n)["y"][0, 0, 0]) for n in range(2)] == [2, 3]
    assert all(float(r.inputs(n)["x"][0, 0, 0]) == 1 for n in range(2))
    assert r.given_in(0).paths == {"y": "two.npy"}
    bad = DiffRequest(
        graph=graph, model="m", backends=("a", "b"), given={"z": one}, samples=1
    )
    with pytest.raises(InvalidArgument, match="'z'"):
        bad.inputs(0)
