"""Collapsing of axes: fewer dimensions, the same walk."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tosavk.lowering.builder import broadcast_strides, collapse, element_strides


def walk(dims: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [
        sum(c * s for c, s in zip(at, strides, strict=True))
        for at in itertools.product(*(range(d) for d in dims))
    ]


SHAPES = st.lists(st.integers(1, 3), max_size=6).map(tuple)


@settings(max_examples=300, deadline=None)
@given(SHAPES, st.data())
def test_collapsed_walks_visit_the_same_elements(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    operands = [
        tuple(1 if data.draw(st.booleans()) else d for d in shape) for _ in range(2)
    ]
    walks = [broadcast_strides(operand, shape) for operand in operands]
    perm = data.draw(st.permutations(range(len(shape))))
    strides = element_strides(tuple(shape[p] for p in perm))
    walks.append(tuple(strides[perm.index(axis)] for axis in range(len(shape))))
    dims, collapsed = collapse(shape, walks)
    assert 1 <= len(dims) <= max(1, len(shape))
    for before, after in zip(walks, collapsed, strict=True):
        assert walk(shape, before) == walk(dims, after)


def test_same_layouts_become_one_axis() -> None:
    shape = (2, 3, 5, 7)
    strides = element_strides(shape)
    assert collapse(shape, (strides, strides)) == ((210,), ((1,), (1,)))


def test_a_channel_vector_needs_two_axes() -> None:
    shape = (1, 8, 8, 5)
    dims, walks = collapse(
        shape, (element_strides(shape), broadcast_strides((1, 1, 1, 5), shape))
    )
    assert dims == (64, 5)
    assert walks == ((5, 1), (0, 1))
