"""The reference backend against the official reference model's results."""

from collections.abc import Iterator

import numpy as np
import pytest

from harness import official, shared
from harness.official import OfficialTest, Result
from tosavk.backends.reference import Expected, Note, evaluate, expect
from tosavk.backends.reference.values import Array
from tosavk.core.dtypes import coerce
from tosavk.lowering.graph import Block, Op, Operator
from tosavk.lowering.tosa.reader import read_graph

pytestmark = pytest.mark.skipif(
    bool(shared.missing("tosa", "corpus")), reason=shared.missing("tosa", "corpus")
)
OPERATORS = sorted({test.folder.parent.name for test in official.positive_tests()})
# Sums that cancel differ by their order; the distance is measured against the bound.
ORDER = 2.0**-46


def close(expected: Array, actual: Array, scale: Array) -> bool:
    """Whether float64 results differ by rounding in another order at most."""
    with np.errstate(all="ignore"):
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        near = np.abs(actual - expected) <= ORDER * np.maximum(scale, np.abs(expected))
    return bool(np.all(same | near))


@pytest.mark.parametrize("operator", OPERATORS)
def test_precise_results_equal_the_reference_model(operator: str) -> None:
    for test in official.positive_tests(operator):
        graph = read_graph(test.program)
        notes: list[Note] = []
        values = evaluate(graph, test.inputs(), notes=notes)
        for result in test.results():
            check_precise(test, result, graph.main, values[result.name])
        assert not notes or operator == "cast", (test.folder.name, notes)


def check_precise(
    test: OfficialTest, result: Result, block: Block, actual: Array
) -> None:
    where = f"{test.folder.name} {result.name}"
    dtype = block.tensors[result.name].dtype
    assert actual.shape == result.reference.shape, where
    if dtype.is_float:
        scale = np.zeros(()) if result.bound is None else np.abs(result.bound)
        assert actual.dtype == np.float64, where
        assert close(result.reference, actual, scale), where
        return
    assert actual.dtype == dtype.numpy, where
    reference = coerce(result.name, dtype, result.reference)
    if result.bound is None:
        assert np.array_equal(actual, reference), where
    else:  # RESCALE with INEXACT_ROUND; neither side is read as unsigned here
        upper = coerce(result.name, dtype, result.bound)
        assert np.all((actual >= reference) & (actual <= upper)), where


@pytest.mark.skipif(bool(official.missing()), reason=official.missing())
@pytest.mark.parametrize("operator", OPERATORS)
def test_native_results_pass_the_official_verifier(operator: str) -> None:
    for test in official.positive_tests(operator):
        graph = read_graph(test.program)
        values = evaluate(graph, test.inputs(), precise=False)
        for result in test.results():
            actual = values[result.name]
            assert actual.dtype == graph.main.tensors[result.name].dtype.numpy
            assert result.accepts(actual), f"{test.folder.name} {result.name}"


@pytest.mark.parametrize("operator", OPERATORS)
def test_bounds_equal_the_reference_models(operator: str) -> None:
    for test in official.positive_tests(operator):
        results = {result.name: result for result in test.results()}
        if all(result.bound is None for result in results.values()):
            continue
        graph = read_graph(test.program)
        values = evaluate(graph, test.inputs())
        for op, expected in results_of(graph.main, values, set(results)):
            for name, ours in zip(op.outputs, expected, strict=True):
                official_bound = results[name].bound
                assert official_bound is not None
                assert ours.bound is not None, f"{test.folder.name} {name}"
                assert same_bound(op, official_bound, ours.bound), (
                    f"{test.folder.name} {name}"
                )


def results_of(
    block: Block, values: dict[str, Array], names: set[str]
) -> Iterator[tuple[Operator, list[Expected]]]:
    """The operators that make `names`, with what is expected of them."""
    for op in block.operators:
        if names.intersection(op.outputs):
            yield op, expect(op, block, [values[name] for name in op.inputs])


def same_bound(op: Operator, official_bound: Array, ours: Array) -> bool:
    if op.op is Op.RESCALE:
        return bool(np.array_equal(official_bound, ours))
    theirs, mine = (
        np.abs(official_bound),
        np.abs(np.broadcast_to(ours, official_bound.shape)),
    )
    with np.errstate(all="ignore"):
        same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
        near = np.abs(mine - theirs) <= 1e-9 * theirs
        if op.op in (Op.FFT2D, Op.RFFT2D):
            # Where every factor is 0 the official bound is the rounding error of its own
            # sum, of one term for each element.
            terms = official_bound[0].size
            near |= np.abs(mine - theirs) <= terms * 2.0**-52 * theirs.max()
    return bool(np.all(same | near))
