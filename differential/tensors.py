"""Compares two backends' results for one tensor, as data for verdict and report."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference import Expected
from tosavk.backends.reference.values import round_float
from tosavk.core.dtypes import DType
from tosavk.core.parts import parts
from tosavk.differential.compare import (
    BitComparison,
    compare_bits,
    degenerate,
    distances,
    is_float,
)
from tosavk.differential.result import NOT_JUDGED, Comparison, Worst
from tosavk.differential.rules import Outcome, judge, rule_for
from tosavk.differential.text import decimal, hexadecimal
from tosavk.differential.verdict import counts
from tosavk.lowering.graph import Block, Operator, Tensor

Array = NDArray[np.generic]
Named = tuple[str, Array]

_MAP_ROWS = 32
_MAP_COLUMNS = 48


def compare_exactly(
    tensor: Tensor, left: Named, right: Named, *, rerun: bool = False
) -> Comparison:
    """Compares bit for bit; any NaN equals any NaN."""
    bits = compare_bits(left[1], right[1])
    outcome = Outcome.EQUAL if bits.equal else Outcome.DIFFERENT
    return _comparison(tensor, left, right, bits, "same bits", outcome, rerun=rerun)


def compare_with_reference(
    tensor: Tensor, left: Named, right: Named, *, exact: bool, sound: bool, judged: bool
) -> Comparison:
    """Compares a final output with the reference's, whole program against whole program.

    TOSA bounds single operators only, so an output that floats had a part in agrees
    when all operators do, which are judged one by one (docs/adr/0005); its error is
    reported. Others must be equal.

    Args:
        tensor: the output.
        left: a device's label and value.
        right: the reference's.
        exact: whether no float had a part in it.
        sound: whether all operators of the device agree.
        judged: whether its operators were judged at all.
    """
    bits = compare_bits(left[1], right[1])
    if bits.equal:
        return _comparison(tensor, left, right, bits, "end to end", Outcome.EQUAL)
    if exact:
        return _comparison(tensor, left, right, bits, "exact", Outcome.DIFFERENT)
    outcome = Outcome.WITHIN_RULE if sound else Outcome.DIFFERENT
    found = _comparison(tensor, left, right, bits, "by operators", outcome)
    return found if judged else dataclasses.replace(found, outcome=NOT_JUDGED)


def judge_operator(
    op: Operator,
    block: Block,
    output: int,
    expected: Expected,
    left: Named,
    *,
    open_because: str = "",
) -> Comparison:
    """Judges one result of an operator by TOSA's rule, against the reference.

    Args:
        op: the operator.
        block: gives the types.
        output: which of its results.
        expected: what the reference says.
        left: a device's label and value.
        open_because: why TOSA leaves the result open for these operands, or "".
    """
    tensor = block.tensors[op.outputs[output]]
    rule = rule_for(op, block, expected, output)
    verdict = judge(rule, expected.reference, expected.bound, left[1])
    outcome, note = verdict.outcome, verdict.reason
    if open_because and not outcome.agrees:
        outcome, note = Outcome.UNPREDICTABLE, open_because
    agreed = outcome.agrees or outcome is Outcome.UNPREDICTABLE
    worst = None
    if outcome is not Outcome.EQUAL and verdict.index is not None:
        value = left[1][verdict.index]
        worst = Worst(
            index=verdict.index,
            left=decimal(value),
            right=f"{verdict.expected:.17g}",
            left_bits=hexadecimal(value),
            right_bits=_nearest_bits(tensor.dtype, expected, verdict.index),
            ulp=_finite(verdict.error_ulp),
            allowed_ulp=_finite(verdict.limit),
            excess=_excess(verdict.error_ulp, verdict.limit),
        )
    return Comparison(
        tensor=tensor.name,
        dtype=tensor.dtype.name,
        shape=left[1].shape,
        left=left[0],
        right="reference",
        rule=str(rule),
        agreed=agreed,
        outcome=outcome.value,
        differing=verdict.failed,
        elements=left[1].size,
        relative=relative_error(left[1], expected.reference),
        worst=worst,
        note=note,
        error_map=None if agreed else error_map(left[1], expected.reference),
        histogram=None if outcome is Outcome.EQUAL else verdict.histogram,
    )


def _comparison(
    tensor: Tensor,
    left: Named,
    right: Named,
    bits: BitComparison,
    rule: str,
    outcome: Outcome,
    *,
    rerun: bool = False,
) -> Comparison:
    worst = None
    if bits.index is not None:
        worst = Worst(
            index=bits.index,
            left=decimal(left[1][bits.index]),
            right=decimal(right[1][bits.index]),
            left_bits=bits.left_bits,
            right_bits=bits.right_bits,
            ulp=None if bits.distance < 0 else float(bits.distance),
        )
    return Comparison(
        tensor=tensor.name,
        dtype=tensor.dtype.name,
        shape=left[1].shape,
        left=left[0],
        right=right[0],
        rule=rule,
        agreed=outcome.agrees,
        outcome=outcome.value,
        differing=bits.differing,
        elements=bits.elements,
        relative=0.0 if bits.equal else relative_error(left[1], right[1]),
        worst=worst,
        note=_degenerate_note(left[1]),
        rerun=rerun,
        error_map=None if bits.equal else error_map(left[1], right[1]),
        histogram=None if bits.equal else ulp_histogram(left[1], right[1]),
    )


def _degenerate_note(array: Array) -> str:
    if not degenerate(array):
        return ""
    return f"all {array.size} elements are {array.reshape(-1)[0]}; this proves little"


def _errors(left: Array, right: Array) -> NDArray[np.float64]:
    """Absolute errors; infinite where only one side is NaN or infinite."""
    with np.errstate(invalid="ignore"):
        a, b = left.astype(np.float64), right.astype(np.float64)
        error = np.abs(a - b)
    if not np.isnan(error).any():
        return error
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def relative_error(left: Array, right: Array) -> float:
    """Largest error over the largest finite magnitude; 0 for types that are exact."""
    return extent(left, right) if is_float(left.dtype) else 0.0


def error_map(left: Array, right: Array) -> tuple[tuple[float, ...], ...]:
    """Mean absolute error on a coarse grid: leading dimensions by the last one."""
    columns = left.shape[-1] if left.ndim else 1
    ours, theirs = left.reshape(-1, columns), right.reshape(-1, columns)
    count = min(_MAP_ROWS, ours.shape[0])
    grid: list[tuple[float, ...]] = []
    for a, b in zip(
        np.array_split(ours, count), np.array_split(theirs, count), strict=True
    ):
        row = _errors(a, b)
        row[np.isinf(row)] = np.finfo(np.float32).max
        cells = np.array_split(row, min(_MAP_COLUMNS, columns), axis=1)
        grid.append(tuple(float(cell.mean()) for cell in cells))
    return tuple(grid)


def ulp_histogram(left: Array, right: Array) -> tuple[int, ...]:
    """How many elements lie in each of the classes of `ULP_EDGES`, and beyond."""
    a, b = left.reshape(-1), right.reshape(-1)
    found = sum(counts(distances(a[piece], b[piece])) for piece in parts(a.size))
    return tuple(int(n) for n in np.asarray(found))


def extent(left: Array, right: Array) -> float:
    """Largest absolute difference over the largest finite magnitude of the right."""
    if not left.size:
        return 0.0
    a, b = left.reshape(-1), right.reshape(-1)
    largest = max(float(_errors(a[i], b[i]).max()) for i in parts(a.size))
    if largest == 0.0:
        return 0.0
    peak = max(_peak(b[piece]) for piece in parts(b.size))
    return largest / peak if peak else float("inf")


def _peak(array: Array) -> float:
    """The largest finite magnitude, or 0."""
    magnitudes = np.abs(array.astype(np.float64))
    most = float(magnitudes.max())
    if math.isfinite(most):
        return most
    return float(magnitudes.max(initial=0.0, where=np.isfinite(magnitudes)))


def _nearest_bits(dtype: DType, expected: Expected, index: tuple[int, ...]) -> str:
    """The bits of the reference's value, rounded to the type."""
    value = expected.reference[index].reshape(1)
    if dtype.is_float:
        return hexadecimal(round_float(dtype, value)[0])
    return hexadecimal(value[0])


def _excess(error: float, limit: float) -> float | None:
    if not (math.isfinite(error) and math.isfinite(limit) and limit > 0):
        return None
    return error / limit


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
