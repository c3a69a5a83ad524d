"""Large tensors are looked at a part at a time.

What is computed for a part stays in the processor's cache, and no temporary array is as
large as the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

PART = 1 << 15
"""Elements of a part: a dozen arrays of binary64 of them fit a core's cache."""

_KEPT_BYTES = 16 << 20


def is_large(size: int) -> bool:
    """Whether so many elements are more than a part."""
    return size > PART


def parts(size: int) -> Iterator[slice]:
    """The parts of so many elements, in order; an empty one if there are none."""
    if is_large(size):
        _keep_memory()
    for start in range(0, max(size, 1), PART):
        yield slice(start, min(start + PART, size))


@cache
def _keep_memory() -> None:
    """Lets glibc keep what is freed, for the next part.

    By default it gives blocks of such a size back to the system, and every new one
    costs a page fault for each 4 KiB; once it has freed a larger block it keeps those
    that are smaller (mallopt(3), M_MMAP_THRESHOLD).
    """
    np.empty(_KEPT_BYTES, np.uint8)
