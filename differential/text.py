"""Numbers as text: elements with all their digits or bits, and counts of things."""

from __future__ import annotations

import numpy as np

from tosavk.differential.compare import bits_of, is_float


def decimal(element: np.generic) -> str:
    """Enough digits to give the same value again."""
    array = np.asarray(element)
    if is_float(array.dtype):
        digits = 9 if array.dtype.itemsize <= 4 else 17
        return f"{float(array):.{digits}g}"
    return str(array.item())


def hexadecimal(element: np.generic) -> str:
    """The bits, with all leading zeros."""
    array = np.asarray(element)
    return f"0x{int(bits_of(array)):0{2 * array.dtype.itemsize}x}"


def counted(number: int, noun: str) -> str:
    """How many there are of something: "1 finding", "2 findings"."""
    return f"{number} {noun}{'s' * (number != 1)}"
