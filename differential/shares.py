"""Separates the error that an operator adds from the error that it was given.

A right result for the inputs that a device had tells the two apart: the device's own
result differs from it by what the operator contributed, and it differs from what the
other side has by what the operator inherited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.differential.compare import same_bits
from tosavk.differential.result import Share
from tosavk.differential.tensors import extent

Array = NDArray[np.generic]
Tensors = Mapping[str, Array]


def share_errors(
    inputs: Sequence[str],
    outputs: Sequence[str],
    sides: Mapping[str, Tensors],
    *,
    expected: Mapping[str, Sequence[Array]],
    reference: Tensors,
    results: Mapping[str, Tensors],
) -> tuple[Share, ...]:
    """The shares of one operator's errors, for each device and result.

    Args:
        inputs: names of its operands.
        outputs: names of its results.
        sides: tensors of each device's own run, by label.
        expected: the reference's results for each device's own inputs, by label.
        reference: tensors of the reference's own run, or empty.
        results: results of each device on equal inputs, by label; the first device's
            inputs are those that all had.

    Returns:
        Against the reference where it knows the operator, else against the first
        device.
    """
    found: list[Share] = []
    labels = list(sides)
    for position, name in enumerate(outputs):
        done: list[tuple[Tensors, Share]] = []
        for label, tensors in sides.items():
            if name not in tensors:
                continue
            right = expected.get(label)
            if right is not None and position < len(right) and name in reference:
                known = next(
                    (
                        share
                        for other, share in done
                        if _alike((*inputs, name), tensors, other)
                    ),
                    None,
                )
                if known is not None:
                    share = Share(
                        name,
                        label,
                        known.against,
                        known.contributed,
                        known.inherited,
                        known.total,
                    )
                else:
                    ideal = right[position]
                    given = not _alike(inputs, tensors, reference)
                    share = Share(
                        tensor=name,
                        backend=label,
                        against="reference",
                        contributed=extent(tensors[name], ideal),
                        inherited=extent(ideal, reference[name]) if given else 0.0,
                        total=extent(tensors[name], reference[name]),
                    )
                done.append((tensors, share))
                found.append(share)
            elif label != labels[0] and name in results.get(label, {}):
                base = sides[labels[0]]
                alone = results[label][name]
                found.append(
                    Share(
                        tensor=name,
                        backend=label,
                        against=labels[0],
                        contributed=extent(alone, base[name]),
                        inherited=extent(tensors[name], alone),
                        total=extent(tensors[name], base[name]),
                    )
                )
    return tuple(found)


def _alike(names: Sequence[str], left: Tensors, right: Tensors) -> bool:
    """Whether two runs have the same bits in tensors that both know."""
    return all(
        same_bits(left[name], right[name])
        for name in names
        if name in left and name in right
    )
