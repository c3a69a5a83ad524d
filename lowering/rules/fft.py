"""The rules of FFT2D and RFFT2D.

Rows, then columns, by Stockham passes of two points over complex numbers. The factors are
tables made here, from angles reduced exactly, so they are the same bits on all devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, elements
from tosavk.lowering.builder import PlanBuilder, Value
from tosavk.lowering.graph import Operator


def fft2d(op: Operator, build: PlanBuilder) -> None:
    """FFT2D of [N, H, W]; H and W are powers of two."""
    inverse = bool(op.attributes.get("inverse", False))
    _transform(op, build, (op.inputs[0], op.inputs[1]), inverse=inverse, real=False)


def rfft2d(op: Operator, build: PlanBuilder) -> None:
    """RFFT2D of [N, H, W]: the first W / 2 + 1 columns of the transform."""
    source = op.inputs[0]
    _transform(op, build, (source, source), inverse=False, real=True)


def turns(size: int, *, inverse: bool) -> NDArray[np.float32]:
    """The factors exp(-+2 pi i m / size) of m = 0 .. size / 2 - 1.

    Args:
        size: a power of two, at least 2.
        inverse: with the sign of the inverse transform.

    Returns:
        Shape (size / 2, 2): real and imaginary parts, rounded to FP32. Quarters of a turn
        are exact; others are taken from the first eighth of a turn.
    """
    m = np.arange(size // 2)
    # Distance from the nearest quarter turn, at most an eighth.
    quarter = np.rint(4 * m / size).astype(np.int64)
    angle = 2.0 * np.pi * (4 * m - quarter * size) / (4 * size)
    near, far = np.cos(angle), np.sin(angle)
    cosine = np.choose(quarter, (near, -far, -near))
    sine = np.choose(quarter, (far, near, -far))
    table = np.stack((cosine, sine if inverse else -sine), axis=-1)
    return table.astype(np.float32) + np.float32(0.0)


def _transform(
    op: Operator,
    build: PlanBuilder,
    sources: tuple[str, str],
    *,
    inverse: bool,
    real: bool,
) -> None:
    batch, height, width = build.shape(sources[0])
    columns = build.shape(op.outputs[0])[2]
    rows = batch * height
    z = build.temporary(DType.FP32, (rows, width, 2), label=op.outputs[0])
    special = build.temporary(DType.INT32, (rows * (width + 1),))
    build.emit(
        "fft_load",
        spec={"REAL": int(real)},
        params={"count": rows, "width": width},
        operands=(build.value(sources[0]), build.value(sources[1]), z, special),
        columns=rows,
    )
    z = _along(build, z, width, lines=rows, inner=1, pitch=1, inverse=inverse)
    z = _along(
        build, z, height, lines=batch, inner=columns, pitch=width, inverse=inverse
    )
    for part, name in enumerate(op.outputs):
        target = build.result(name)
        build.emit(
            "fft_part",
            spec={"PART": part, "REAL": int(real)},
            params={
                "count": elements(target.shape),
                "rows": rows,
                "height": height,
                "width": width,
                "columns": columns,
                "inverse": int(inverse),
            },
            operands=(z, special, target),
            columns=elements(target.shape),
        )


def _along(
    build: PlanBuilder,
    source: Value,
    size: int,
    *,
    lines: int,
    inner: int,
    pitch: int,
    inverse: bool,
) -> Value:
    """All passes along one axis of `size` points that are `pitch` apart."""
    if size == 1:
        return source
    table = _table(build, size, inverse=inverse)
    half = size // 2
    step = 1
    while step < size:
        target = build.temporary(DType.FP32, source.shape)
        count = lines * half * inner
        build.emit(
            "fft_pass",
            spec={},
            params={
                "count": count,
                "half_n": half,
                "s": step,
                "inner": inner,
                "pitch": pitch,
            },
            operands=(source, table, target),
            columns=count,
        )
        source = target
        step *= 2
    return source


def _table(build: PlanBuilder, size: int, *, inverse: bool) -> Value:
    key: Sequence[object] = ("turns", size, inverse)
    return build.literal(tuple(key), DType.FP32, turns(size, inverse=inverse))
