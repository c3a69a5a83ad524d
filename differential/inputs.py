"""Inputs for a program: given arrays first, seeded random ones for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument


class InputSpec(Protocol):
    """Name, type and shape of an input."""

    @property
    def name(self) -> str:
        """Name in the graph."""
        ...

    @property
    def dtype(self) -> DType:
        """TOSA type."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""
        ...


def random_array(
    dtype: DType, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.generic]:
    """A random array: floats uniform in -1..1, integers over their whole range."""
    if dtype.is_float:
        return rng.uniform(-1, 1, shape).astype(np.float32).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    bits = {DType.INT4: 4, DType.INT48: 48, DType.SHAPE: 8}.get(dtype, dtype.bits)
    low = -(1 << (bits - 1)) + (1 if dtype is DType.INT4 else 0)
    return rng.integers(low, 1 << (bits - 1), shape).astype(dtype.numpy)


def fill_inputs(
    specs: Sequence[InputSpec],
    given: Mapping[str, NDArray[np.generic]],
    *,
    seed: int,
) -> dict[str, NDArray[np.generic]]:
    """An array for every input.

    Raises:
        InvalidArgument: an array is given for a name that is no input.
    """
    names = [spec.name for spec in specs]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InvalidArgument(
            f"{unknown} are no inputs of the model; it has {', '.join(names) or 'none'}"
        )
    rng = np.random.default_rng(seed)
    return {
        spec.name: given[spec.name]
        if spec.name in given
        else random_array(spec.dtype, spec.shape, rng)
        for spec in specs
    }
