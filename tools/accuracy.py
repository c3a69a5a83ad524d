#!/usr/bin/env python3
"""Measures how far the float operators are from exact values, and writes the table.

    accuracy.py [--backend vulkan:llvmpipe] [OPERATOR ...]     measures and prints
    accuracy.py --write                                        into docs/numerics.md

Each operator is run in FP16 and BF16 on every value of its type, and in FP32 on every
value of FP16 and of BF16 and on 2^22 values of all magnitudes. POW has every value as its
base and as its exponent, each with 64 others. The exact values come from `long double`
(80 bits on x86), those of ERF from binary64. Errors are in units in the last place of the
result's type.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import tosavk
from tosavk import Builder, DType

Array = NDArray[Any]
Exact = Callable[..., Array]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "numerics.md"
BEGIN = "<!-- accuracy: written by tools/accuracy.py -->"
END = "<!-- /accuracy -->"
WIDE = np.longdouble
PARTNERS = 64
DENSE = 1 << 22

# Bits of the significand, with the leading one, and the exponent of the smallest normal.
PRECISION = {DType.FP32: 24, DType.FP16: 11, DType.BF16: 8}
SMALLEST = {DType.FP32: -126, DType.FP16: -14, DType.BF16: -126}


def _reciprocal(x: Array) -> Array:
    return 1 / x


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _erf(x: Array) -> Array:
    flat = [math.erf(value) for value in x.astype(np.float64).ravel().tolist()]
    return np.array(flat, WIDE).reshape(x.shape)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


EXACT: dict[str, Exact] = {
    "RECIPROCAL": _reciprocal,
    "RSQRT": _rsqrt,
    "EXP": np.exp,
    "LOG": np.log,
    "POW": np.power,
    "SIN": np.sin,
    "COS": np.cos,
    "TANH": np.tanh,
    "SIGMOID": _sigmoid,
    "ERF": _erf,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
}


@dataclass(frozen=True, slots=True)
class Found:
    """The worst error of an operator over some values.

    Attributes:
        ulp: the error, in units in the last place.
        at: operands there.
        special: results that are NaN or infinite and should not be, or the reverse.
        count: how many results there were.
    """

    ulp: float
    at: tuple[float, ...]
    special: int
    count: int


def every(dtype: DType) -> Array:
    """Every value of a 16-bit type, NaN and infinities included."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    return bits.view(np.float16 if dtype is DType.FP16 else ml_dtypes.bfloat16)


def dense(count: int = DENSE) -> Array:
    """FP32 values: half of them spread over all exponents, the rest where it matters."""
    rng = np.random.default_rng(20)
    bits = rng.integers(0, 1 << 32, count // 2, dtype=np.uint32)
    parts = [bits.view(np.float32)]
    for width in (1.0, 8.0, 20.0, 110.0):
        parts.append(rng.uniform(-width, width, count // 8).astype(np.float32))
    return np.concatenate(parts)


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Every value as base and as exponent, each with some others."""
    rng = np.random.default_rng(21)
    values = every(dtype)
    kind = values.dtype
    some = rng.choice(values, PARTNERS // 4)
    steps = rng.uniform(-3, 3, PARTNERS // 4)
    whole = np.arange(PARTNERS // 4) - 4
    exponents = np.concatenate(
        [
            some,
            whole.astype(kind),
            (whole + 0.5).astype(kind),
            np.exp2(steps).astype(kind),
        ]
    )
    bases = np.concatenate(
        [some, *(np.exp2(steps * scale).astype(kind) for scale in (0.1, 0.5, 2.0))]
    )
    left, right = np.broadcast_arrays(values[:, None], exponents[None, :])
    base, exponent = np.broadcast_arrays(bases[None, :], values[:, None])
    return (
        np.concatenate([left.ravel(), base.ravel()]),
        np.concatenate([right.ravel(), exponent.ravel()]),
    )


def run(backend: str, op: str, dtype: DType, operands: tuple[Array, ...]) -> Array:
    """One operator on a device."""
    b = Builder()
    names = "xy"[: len(operands)]
    tensors = [b.input(name, dtype, operands[0].shape) for name in names]
    b.output(getattr(b, op.lower())(*tensors, name="z"))
    with tosavk.load(b.build(), backend=backend) as program:
        return program.run(dict(zip(names, operands, strict=True)))["z"]


def wide(values: Array) -> Array:
    """The same values with more bits."""
    if values.dtype.kind == "V" or values.dtype == ml_dtypes.bfloat16:
        values = values.astype(np.float32)
    return values.astype(WIDE)


def error(op: str, dtype: DType, operands: tuple[Array, ...], result: Array) -> Found:
    """How far results are from the exact ones.

    Args:
        op: the operator.
        dtype: type of the results.
        operands: what it was given.
        result: what it gave.
    """
    with np.errstate(all="ignore"):
        right = EXACT[op](*map(wide, operands))
        _, exponent = np.frexp(right)
        exponent = np.maximum(exponent - 1, SMALLEST[dtype])
        unit = np.ldexp(WIDE(1), exponent - PRECISION[dtype] + 1)
        rounded = wide(right.astype(np.float32).astype(result.dtype))
        given = wide(result)
        odd = (np.isnan(rounded) != np.isnan(given)) | (
            np.isinf(rounded) != np.isinf(given)
        )
        fine = np.isfinite(rounded) & np.isfinite(given)
        far = np.where(fine, np.abs(given - right) / unit, 0).astype(np.float64)
    worst = int(far.argmax())
    at = tuple(float(operand[worst]) for operand in operands)
    return Found(float(far[worst]), at, int(odd.sum()), result.size)


def measure(backend: str, op: str) -> dict[str, Found]:
    """All that is measured of an operator, by column of the table."""
    found: dict[str, Found] = {}
    for dtype in (DType.FP16, DType.BF16):
        operands = pairs(dtype) if op == "POW" else (every(dtype),)
        result = run(backend, op, dtype, operands)
        found[dtype.name] = error(op, dtype, operands, result)
        as_fp32 = tuple(operand.astype(np.float32) for operand in operands)
        result = run(backend, op, DType.FP32, as_fp32)
        found[f"FP32 {dtype.name}"] = error(op, DType.FP32, as_fp32, result)
    values = dense()
    operands = (np.abs(values), np.roll(values, 1)) if op == "POW" else (values,)
    result = run(backend, op, DType.FP32, operands)
    found["FP32"] = error(op, DType.FP32, operands, result)
    return found


COLUMNS = {
    "FP32": "FP32, dense",
    "FP32 FP16": "FP32, all FP16 values",
    "FP32 BF16": "FP32, all BF16 values",
    "FP16": "FP16, all values",
    "BF16": "BF16, all values",
}


def table(rows: dict[str, dict[str, Found]], device: str) -> str:
    """The table of the page."""
    bits = np.finfo(WIDE).nmant + 1
    today = datetime.datetime.now(tz=datetime.UTC).date()
    lines = [
        f"{device}, {today}; exact values of {bits} bits. NaN and infinities are where "
        "they should be, in every result.",
        "",
        f"| operator | {' | '.join(COLUMNS.values())} |",
        f"|---|{'--:|' * len(COLUMNS)}",
    ]
    for op, found in rows.items():
        cells = " | ".join(f"{found[name].ulp:.3f}" for name in COLUMNS)
        lines.append(f"| {op} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    """Runs the command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Measures errors of float operators.")
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="default: all")
    parser.add_argument("--backend", default="vulkan:llvmpipe", metavar="S")
    parser.add_argument("--write", action="store_true", help="into docs/numerics.md")
    options = parser.parse_args()
    unknown = [op for op in options.operators if op not in EXACT]
    if unknown or (options.operators and options.write):
        parser.error(f"operators are {', '.join(EXACT)}; --write takes all of them")
    rows: dict[str, dict[str, Found]] = {}
    special = 0
    for op in options.operators or EXACT:
        rows[op] = measure(options.backend, op)
        for name, found in rows[op].items():
            special += found.special
            at = ", ".join(f"{value:g}" for value in found.at)
            print(
                f"{op} {COLUMNS[name]}: {found.ulp:.3f} ulp at {at}; "
                f"{found.special} of {found.count} wrongly NaN or infinite",
                flush=True,
            )
    if special:
        return 1
    if options.write:
        with tosavk.open(options.backend) as accelerator:
            text = table(rows, accelerator.name)
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
