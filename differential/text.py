"""Single elements as text: decimal digits that give the value again, and its bits."""

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
