"""Which elements of its operands an element of a result is computed from.

For a person who looks at a wrong element: the values that went into it. What is far
away, such as a whole matrix for a transform, is shown around the same place instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.differential.result import Excerpt
from tosavk.differential.text import decimal, hexadecimal
from tosavk.lowering.graph import Block, Op, Operator

Array = NDArray[np.generic]
Index = tuple[int, ...]
Box = tuple[slice, ...]

_MOST = 64
_AROUND = 2


@dataclass(frozen=True, slots=True)
class _Site:
    """An operator, its operands, and the element of its result."""

    op: Operator
    operands: Sequence[Array]
    index: Index

    def numbers(self, name: str) -> tuple[int, ...]:
        value = self.op.attributes.get(name, ())
        return tuple(int(v) for v in value) if isinstance(value, tuple) else ()

    def axis(self) -> int:
        value = self.op.attributes.get("axis", 0)
        return int(value) if isinstance(value, int) else 0


def excerpts(
    op: Operator,
    block: Block,
    values: Mapping[str, Array],
    index: Index,
) -> tuple[Excerpt, ...]:
    """The parts of an operator's operands that an element of its result is made from.

    Args:
        op: the operator.
        block: gives the types of the operands.
        values: arrays of the operands, by name.
        index: of the element.
    """
    names = [name for name in op.inputs if name in values]
    operands = [values[name] for name in names]
    site = _Site(op, operands, index)
    handler = _BOXES.get(op.op, _nearby)
    try:
        boxes = handler(site)
    except (IndexError, KeyError, ValueError):
        boxes = _nearby(site)
    found: list[Excerpt] = []
    for name, array, box in zip(names, operands, boxes, strict=True):
        if box is None:
            continue
        part = np.asarray(array[box])
        start = tuple(s.start or 0 for s in box)
        flat = part.reshape(-1)
        found.append(
            Excerpt(
                tensor=name,
                dtype=block.tensors[name].dtype.name,
                start=start,
                shape=part.shape,
                values=tuple(decimal(v) for v in flat[:_MOST]),
                bits=tuple(hexadecimal(v) for v in flat[:_MOST]),
                elements=part.size,
            )
        )
    return tuple(found)


Boxes = Sequence[Box | None]


def _one(at: int) -> slice:
    return slice(at, at + 1)


def _whole(array: Array) -> Box:
    return tuple(slice(0, n) for n in array.shape)


def _around(array: Array, index: Index) -> Box:
    """A few elements along the last axis, around the same place."""
    if not array.ndim:
        return ()
    padded = (*((0,) * (array.ndim - len(index))), *index[-array.ndim :])
    at = [min(i, n - 1) for i, n in zip(padded, array.shape, strict=True)]
    low, high = max(0, at[-1] - _AROUND), min(array.shape[-1], at[-1] + _AROUND + 1)
    return (*(_one(i) for i in at[:-1]), slice(low, high))


def _nearby(site: _Site) -> Boxes:
    """Of an elementwise operator: its elements and the ones beside them."""
    return [
        _whole(a) if a.size <= _AROUND else _around(a, site.index)
        for a in site.operands
    ]


def _along(site: _Site) -> Boxes:
    """All elements along the axis that is reduced."""
    axis = site.axis()
    at = list(site.index)
    if len(at) < site.operands[0].ndim:
        at.insert(axis, 0)
    box = tuple(
        slice(0, n) if i == axis else _one(at[i])
        for i, n in enumerate(site.operands[0].shape)
    )
    return [box, *(_whole(a) for a in site.operands[1:])]


def _matmul(site: _Site) -> Boxes:
    n, row, column = site.index
    a, b = site.operands[:2]
    return [
        (_one(n), _one(row), slice(0, a.shape[2])),
        (_one(n), slice(0, b.shape[1]), _one(column)),
        *(_whole(x) for x in site.operands[2:]),
    ]


def _taps(
    at: Sequence[int],
    sizes: Sequence[int],
    shape: Sequence[int],
    *,
    stride: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
) -> list[slice]:
    """The part of each dimension that a window reads, cut at the edges."""
    found: list[slice] = []
    for o, k, n, s, d, p in zip(
        at, sizes, shape, stride, dilation, before, strict=True
    ):
        low = o * s - p
        low, high = max(0, low), min(n, low + (k - 1) * d + 1)
        found.append(slice(low, max(low, high)))
    return found


def _convolution(site: _Site) -> Boxes:
    x, w = site.operands[:2]
    depthwise = site.op.op is Op.DEPTHWISE_CONV2D
    rank = 3 if site.op.op is Op.CONV3D else 2
    kernel = w.shape[:2] if depthwise else w.shape[1 : 1 + rank]
    spatial = _taps(
        site.index[1 : 1 + rank],
        kernel,
        x.shape[1 : 1 + rank],
        stride=site.numbers("stride"),
        dilation=site.numbers("dilation"),
        before=site.numbers("pad")[::2],
    )
    channel = site.index[-1]
    taps = [slice(0, k) for k in kernel]
    if depthwise:
        many = w.shape[3]
        data = (_one(site.index[0]), *spatial, _one(channel // many))
        weight = (*taps, _one(channel // many), _one(channel % many))
    else:
        data = (_one(site.index[0]), *spatial, slice(0, x.shape[-1]))
        weight = (_one(channel), *taps, slice(0, w.shape[-1]))
    rest: list[Box | None] = []
    for i, a in enumerate(site.operands[2:]):
        short = i == 0 and a.size > 1
        rest.append((_one(channel),) if short else _whole(a))
    return [data, weight, *rest]


def _transposed(site: _Site) -> Boxes:
    x, w = site.operands[:2]
    pad, stride = site.numbers("out_pad"), site.numbers("stride")
    data: list[slice] = [_one(site.index[0])]
    for d in (0, 1):
        # Input i reaches i * stride + tap + pad; taps are 0 to the kernel's size.
        at, size = site.index[1 + d] - pad[2 * d], w.shape[1 + d]
        low = max(0, -((size - 1 - at) // stride[d]))
        high = min(x.shape[1 + d] - 1, at // stride[d])
        data.append(slice(low, max(low, high + 1)))
    channel = site.index[-1]
    weight = (_one(channel), *(slice(0, n) for n in w.shape[1:]))
    rest: list[Box | None] = []
    for i, a in enumerate(site.operands[2:]):
        short = i == 0 and a.size > 1
        rest.append((_one(channel),) if short else _whole(a))
    return [(*data, slice(0, x.shape[3])), weight, *rest]


def _pool(site: _Site) -> Boxes:
    x = site.operands[0]
    spatial = _taps(
        site.index[1:3],
        site.numbers("kernel"),
        x.shape[1:3],
        stride=site.numbers("stride"),
        dilation=(1, 1),
        before=site.numbers("pad")[::2],
    )
    box = (_one(site.index[0]), *spatial, _one(site.index[3]))
    return [box, *(_whole(a) for a in site.operands[1:])]


def _concat(site: _Site) -> Boxes:
    axis, at = site.axis(), site.index[site.axis()]
    boxes: list[Box | None] = []
    for a in site.operands:
        n = a.shape[axis]
        inside = 0 <= at < n
        place = (*site.index[:axis], at, *site.index[axis + 1 :])
        boxes.append(_around(a, place) if inside else None)
        at -= n
    return boxes


def _moved(to: Callable[[_Site], Index]) -> Callable[[_Site], Boxes]:
    """Of an operator that moves data: around the place it comes from."""

    def boxes(site: _Site) -> Boxes:
        source = site.operands[0]
        place = tuple(
            min(max(0, i), n - 1) for i, n in zip(to(site), source.shape, strict=True)
        )
        return [_around(source, place), *(_whole(a) for a in site.operands[1:])]

    return boxes


def _sizes(site: _Site, operand: int) -> list[int]:
    return [int(v) for v in site.operands[operand].reshape(-1)]


def _sliced(site: _Site) -> Index:
    return tuple(i + s for i, s in zip(site.index, _sizes(site, 1), strict=True))


def _unpadded(site: _Site) -> Index:
    before = _sizes(site, 1)[::2]
    return tuple(i - p for i, p in zip(site.index, before, strict=True))


def _untransposed(site: _Site) -> Index:
    place = [0] * len(site.index)
    for to, axis in enumerate(site.numbers("perms")):
        place[axis] = site.index[to]
    return tuple(place)


def _unreversed(site: _Site) -> Index:
    axis = site.axis()
    place = list(site.index)
    place[axis] = site.operands[0].shape[axis] - 1 - place[axis]
    return tuple(place)


def _untiled(site: _Site) -> Index:
    shape = site.operands[0].shape
    return tuple(i % n for i, n in zip(site.index, shape, strict=True))


def _gather(site: _Site) -> Boxes:
    values, indices = site.operands[:2]
    n, row, column = site.index
    at = int(indices[n, row])
    inside = min(max(at, 0), values.shape[1] - 1)
    return [_around(values, (n, inside, column)), (_one(n), _one(row))]


_BOXES: dict[Op, Callable[[_Site], Boxes]] = {
    Op.MATMUL: _matmul,
    Op.CONV2D: _convolution,
    Op.CONV3D: _convolution,
    Op.DEPTHWISE_CONV2D: _convolution,
    Op.TRANSPOSE_CONV2D: _transposed,
    Op.AVG_POOL2D: _pool,
    Op.MAX_POOL2D: _pool,
    Op.ARGMAX: _along,
    Op.REDUCE_ALL: _along,
    Op.REDUCE_ANY: _along,
    Op.REDUCE_MAX: _along,
    Op.REDUCE_MIN: _along,
    Op.REDUCE_PRODUCT: _along,
    Op.REDUCE_SUM: _along,
    Op.CONCAT: _concat,
    Op.SLICE: _moved(_sliced),
    Op.PAD: _moved(_unpadded),
    Op.TRANSPOSE: _moved(_untransposed),
    Op.REVERSE: _moved(_unreversed),
    Op.TILE: _moved(_untiled),
    Op.GATHER: _gather,
}
