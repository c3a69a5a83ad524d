"""Which kernels come specialised: their operator and types are baked in at build time.

One source serves many operators and types, and a driver has to read all of it before it
drops what the specialization words rule out. For the combinations below that is done
when the modules are built, which leaves a tenth of the code: pipelines are created
faster, and drivers that do not drop dead branches run faster. Any other combination
takes the general module, so this table is about speed only.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence

from tosavk.core.dtypes import DType
from tosavk.shaders.catalogue import Kernel

Combination = tuple[int, ...]

_FLOATS = (DType.FP32, DType.FP16, DType.BF16)
_FP8 = (DType.FP8E4M3, DType.FP8E5M2)
_INTEGERS = (DType.INT8, DType.INT16, DType.INT32)
_QUANTIZED = (DType.INT8, DType.INT16)
_STORED = (DType.BOOL, *_INTEGERS, *_FLOATS, *_FP8)

# TOSA operator ids.
_FLOAT_UNARY = (12, 13, 14, 35, 37, 38, 39, 42, 43, 36, 44)
_COMPARISONS = (46, 47, 48)
_EXTREMA = (26, 27)
_INTEGER_BINARY = (16, 17, 18, 19, 22, 23)


def _pairs(first: Iterable[int], second: Iterable[int]) -> list[Combination]:
    return list(itertools.product(map(int, first), map(int, second)))


def _unary() -> list[Combination]:
    return [
        *_pairs(_FLOAT_UNARY, _FLOATS),
        *_pairs((11, 41), (*_FLOATS, *_INTEGERS)),  # CLAMP, NEGATE
        *_pairs((32,), (*_FLOATS, DType.INT32)),  # ABS
        *_pairs((33,), _INTEGERS),  # BITWISE_NOT
        (34, int(DType.INT32)),  # CLZ
        (40, int(DType.BOOL)),  # LOGICAL_NOT
    ]


def _binary() -> list[Combination]:
    numbers = (*_FLOATS, DType.INT32)
    return [
        *_pairs((15, 30, *_EXTREMA, *_COMPARISONS), numbers),  # ADD, SUB, ...
        *_pairs((28,), (*_FLOATS, *_INTEGERS)),  # MUL
        *_pairs((29,), _FLOATS),  # POW
        (20, int(DType.INT32)),  # INTDIV
        *_pairs(_INTEGER_BINARY, _INTEGERS),
        *_pairs((21, 24, 25), (DType.BOOL,)),  # LOGICAL_*
    ]


def _reduce() -> list[Combination]:
    return [
        *_pairs((1,), (*_FLOATS, *_FP8, DType.INT8, DType.INT16)),  # ARGMAX
        *_pairs((49, 50), (DType.BOOL,)),  # REDUCE_ALL, REDUCE_ANY
        *_pairs((51, 52), (*_FLOATS, *_INTEGERS)),  # REDUCE_MAX, REDUCE_MIN
        *_pairs((53,), _FLOATS),  # REDUCE_PRODUCT
        *_pairs((54,), (*_FLOATS, DType.INT32)),  # REDUCE_SUM
    ]


def _cast() -> list[Combination]:
    return [pair for pair in _pairs(_STORED, _STORED) if pair[0] != pair[1]]


def _stored() -> list[Combination]:
    return [(int(dtype),) for dtype in _STORED]


def _quantized() -> list[Combination]:
    return [(int(dtype),) for dtype in _QUANTIZED]


# Kernel: the specialization words that are baked, and their combinations.
_TABLE: dict[str, tuple[tuple[str, ...], list[Combination]]] = {
    "unary": (("OP", "TYPE"), _unary()),
    "binary": (("OP", "TYPE"), _binary()),
    "cast": (("X_TYPE", "Y_TYPE"), _cast()),
    "reduce": (("OP", "TYPE"), _reduce()),
    "pool2d": (
        ("OP", "TYPE"),
        [*_pairs((2, 8), (*_FLOATS, *_FP8)), *_pairs((8,), _QUANTIZED)],
    ),
    "select": (("TYPE",), _stored()),
    "move": (("TYPE",), _stored()),
    "concat": (("TYPE",), _stored()),
    "remap": (("OP", "TYPE"), _pairs((56, 60), _STORED)),
    "gather": (("TYPE",), _stored()),
    "scatter": (("TYPE",), _stored()),
    "resize": (("MODE", "TYPE"), _pairs((1, 2), (*_FLOATS, *_QUANTIZED))),
    "rescale": (("X_TYPE", "Y_TYPE"), _pairs((*_INTEGERS, DType.INT48), _INTEGERS)),
    "table": (("TYPE",), _quantized()),
    "avg_pool_int": (("TYPE",), _quantized()),
    "conv_int": (("OP", "X_TYPE"), _pairs((3, 4, 10), _QUANTIZED)),
    "conv_dot": (("OP",), [(3,), (4,), (10,)]),
    "depthwise_int": (("X_TYPE",), _quantized()),
    "matmul_int": (("X_TYPE",), _quantized()),
}


@functools.cache
def _combinations(name: str) -> frozenset[Combination]:
    return frozenset(_TABLE[name][1]) if name in _TABLE else frozenset()


def baked_words(kernel: Kernel) -> tuple[int, ...]:
    """Positions in `kernel.spec` of the words that are baked in."""
    names = _TABLE[kernel.name][0] if kernel.name in _TABLE else ()
    return tuple(kernel.spec.index(name) for name in names)


def combinations(kernel: Kernel) -> list[Combination]:
    """The combinations of baked words that a kernel has modules for, sorted."""
    return sorted(_combinations(kernel.name))


def module_name(kernel: Kernel, spec: Sequence[int]) -> str:
    """The SPIR-V module for a kernel with these specialization words.

    Returns:
        The kernel's name for the general module, or `NAME/W1.W2` for a specialised one.
    """
    chosen = tuple(int(spec[i]) for i in baked_words(kernel))
    if not chosen or chosen not in _combinations(kernel.name):
        return kernel.name
    return f"{kernel.name}/{'.'.join(map(str, chosen))}"
