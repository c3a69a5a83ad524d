"""Inputs for a program: given arrays first, seeded random ones for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.session import TensorSpec
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument

_INTEGER_BITS = {DType.INT4: 4, DType.INT48: 48, DType.SHAPE: 8}


def random_array(
    dtype: DType, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.generic]:
    """A random array: floats uniform in -1..1, integers over their whole range."""
    if dtype.is_float:
        return rng.uniform(-1, 1, shape).astype(np.float32).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    bits = _INTEGER_BITS.get(dtype, dtype.bits)
    # TOSA's INT4 has no -8.
    low = -(1 << (bits - 1)) + (1 if dtype is DType.INT4 else 0)
    return rng.integers(low, 1 << (bits - 1), shape).astype(dtype.numpy)


def fill_inputs(
    specs: Sequence[TensorSpec],
    given: Mapping[str, NDArray[np.generic]],
    *,
    seed: int,
) -> dict[str, NDArray[np.generic]]:
    """An array for every input, checked.

    A random array depends on the seed and the input's position only, so that giving
    one input leaves the others as they were.

    Raises:
        InvalidArgument: an array is given for a name that is no input, or has another
            type or shape than the input.
    """
    names = [spec.name for spec in specs]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InvalidArgument(
            f"{', '.join(map(repr, unknown))}: no such input; the model takes "
            + ("; ".join(map(str, specs)) or "none")
        )
    return {
        spec.name: spec.check(given[spec.name])
        if spec.name in given
        else random_array(
            spec.dtype, spec.shape, np.random.default_rng([seed, position])
        )
        for position, spec in enumerate(specs)
    }
