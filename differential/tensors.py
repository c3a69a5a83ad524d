"""Compares two backends' results for one tensor, as data for verdict and report."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference import Expected
from tosavk.differential.compare import (
    BitComparison,
    bits_of,
    compare_bits,
    degenerate,
    is_float,
)
from tosavk.differential.result import Comparison, Worst
from tosavk.differential.rules import Outcome, judge, rule_for
from tosavk.lowering.graph import Block, Operator, Tensor

Array = NDArray[np.generic]
Named = tuple[str, Array]

_MAP_ROWS = 32
_MAP_COLUMNS = 48


def compare_exactly(tensor: Tensor, left: Named, right: Named) -> Comparison:
    """Compares bit for bit; any NaN equals any NaN."""
    bits = compare_bits(left[1], right[1])
    outcome = Outcome.EQUAL if bits.equal else Outcome.DIFFERENT
    return _comparison(tensor, left, right, bits, "same bits", outcome, outcome.agrees)


def compare_with_reference(tensor: Tensor, left: Named, right: Named) -> Comparison:
    """Compares a final output with the reference's, whole program against whole program.

    TOSA bounds single operators only, so a float output always agrees here: its error
    is reported, and the operators are judged one by one (docs/adr/0005). Other types
    must be equal.
    """
    bits = compare_bits(left[1], right[1])
    if bits.equal:
        outcome, agreed, rule = Outcome.EQUAL, True, "end to end"
    elif tensor.dtype.is_float:
        outcome, agreed, rule = Outcome.WITHIN_RULE, True, "by operators"
    else:
        outcome, agreed, rule = Outcome.DIFFERENT, False, "exact"
    return _comparison(tensor, left, right, bits, rule, outcome, agreed)


def judge_operator(
    op: Operator, block: Block, output: int, expected: Expected, left: Named
) -> Comparison:
    """Judges one result of an operator by TOSA's rule, against the reference."""
    tensor = block.tensors[op.outputs[output]]
    rule = rule_for(op, block, expected, output)
    verdict = judge(rule, expected.reference, expected.bound, left[1])
    reference = expected.reference
    worst = None
    if verdict.outcome is not Outcome.EQUAL and verdict.index is not None:
        worst = Worst(
            verdict.index,
            _value(left[1][verdict.index]),
            f"{verdict.expected!r} (allowed {verdict.limit:.3g} ulp)",
            verdict.error_ulp,
        )
    return Comparison(
        tensor=tensor.name,
        dtype=tensor.dtype.name,
        shape=left[1].shape,
        left=left[0],
        right="reference",
        rule=str(rule),
        agreed=verdict.outcome.agrees,
        outcome=verdict.outcome.value,
        differing=verdict.failed,
        elements=left[1].size,
        relative=_relative(left[1], reference),
        worst=worst,
        note=verdict.reason,
        error_map=None if verdict.outcome.agrees else error_map(left[1], reference),
    )


def _comparison(
    tensor: Tensor,
    left: Named,
    right: Named,
    bits: BitComparison,
    rule: str,
    outcome: Outcome,
    agreed: bool,  # noqa: FBT001
) -> Comparison:
    worst = None
    if bits.index is not None:
        worst = Worst(
            bits.index,
            f"{bits.left!r} ({bits.left_bits})",
            f"{bits.right!r} ({bits.right_bits})",
            None if bits.distance < 0 else float(bits.distance),
        )
    return Comparison(
        tensor=tensor.name,
        dtype=tensor.dtype.name,
        shape=left[1].shape,
        left=left[0],
        right=right[0],
        rule=rule,
        agreed=agreed,
        outcome=outcome.value,
        differing=bits.differing,
        elements=bits.elements,
        relative=_relative(left[1], right[1]),
        worst=worst,
        note=_degenerate_note(left[1]),
        error_map=None if bits.equal else error_map(left[1], right[1]),
    )


def _degenerate_note(array: Array) -> str:
    if not degenerate(array):
        return ""
    return f"all {array.size} elements are {array.reshape(-1)[0]}; this proves little"


def _errors(left: Array, right: Array) -> NDArray[np.float64]:
    """Absolute errors; infinite where only one side is NaN or infinite."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def _relative(left: Array, right: Array) -> float:
    """Largest error over the largest finite magnitude; 0 for types that are exact."""
    if not left.size or not is_float(left.dtype):
        return 0.0
    largest = float(_errors(left, right).max())
    if largest == 0.0:
        return 0.0
    magnitudes = np.abs(right.astype(np.float64))
    finite = magnitudes[np.isfinite(magnitudes)]
    peak = float(finite.max()) if finite.size else 0.0
    return largest / peak if peak else float("inf")


def error_map(left: Array, right: Array) -> tuple[tuple[float, ...], ...]:
    """Mean absolute error on a coarse grid: leading dimensions by the last one."""
    error = _errors(left, right)
    error = np.where(np.isinf(error), np.finfo(np.float32).max, error)
    plane = error.reshape(-1, error.shape[-1]) if error.ndim else error.reshape(1, 1)
    rows = np.array_split(plane, min(_MAP_ROWS, plane.shape[0]), axis=0)
    return tuple(
        tuple(
            float(cell.mean())
            for cell in np.array_split(row, min(_MAP_COLUMNS, row.shape[1]), axis=1)
        )
        for row in rows
    )


def _value(element: np.generic) -> str:
    array = np.asarray(element)
    digits = 2 * array.dtype.itemsize
    return f"{array.item()!r} (0x{int(bits_of(array)):0{digits}x})"
