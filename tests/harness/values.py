"""Inputs for tests: random, with edge values, reproducible."""

from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def edge_values(dtype: DTypeLike, *, subnormals: bool = False) -> NDArray[np.generic]:
    """Returns the values at which arithmetic of a type goes wrong first.

    Args:
        dtype: A NumPy or ml_dtypes type.
        subnormals: Whether values that some devices flush to zero are wanted too.
    """
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return np.array([False, True])
    if np.issubdtype(kind, np.integer):
        info: Any = cast("Any", np.iinfo)(kind)
        least, most = int(info.min), int(info.max)
        whole = {0, 1, least, least + 1, most - 1, most, -1 if least < 0 else 1}
        return np.array(sorted(whole), dtype=kind)
    limits: Any = cast("Any", ml_dtypes).finfo(kind)
    largest, smallest = float(limits.max), float(limits.smallest_normal)
    step = float(limits.eps)
    sized = [1.0, 1.0 + step, 0.5, 2.0, largest, smallest]
    if subnormals:
        sized += [float(limits.smallest_subnormal), smallest / 2]
    values = [0.0, -0.0, *sized, *(-value for value in sized), np.nan]
    if kind.name in FLOATS or kind.name == "float8_e5m2":
        values += [np.inf, -np.inf]
    return np.array(values, dtype=np.float64).astype(kind)


def random_array(
    shape: tuple[int, ...],
    dtype: DTypeLike = np.float32,
    *,
    seed: int = 7,
    low: float = -1.0,
    high: float = 1.0,
    edges: bool = False,
) -> NDArray[np.generic]:
    """Returns a random array.

    Args:
        shape: Its shape.
        dtype: A NumPy or ml_dtypes type.
        seed: Of the random numbers.
        low: The least value.
        high: The greatest value; integers may have it too.
        edges: Whether edge values are strewn in, as many as the array has room for.
    """
    generator = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    result: NDArray[np.generic]
    if kind == np.bool_:
        result = generator.integers(0, 2, shape).astype(np.bool_)
    elif np.issubdtype(kind, np.integer):
        result = generator.integers(
            int(low), int(high), shape, dtype=kind.type, endpoint=True
        )
    else:
        result = generator.uniform(low, high, shape).astype(kind)
    if edges and result.size:
        flat = result.reshape(-1)
        values = generator.permutation(edge_values(kind))[: flat.size]
        places = generator.choice(flat.size, len(values), replace=False)
        flat[places] = values
    return result
