"""A known-answer test of a device: elementary operators on fixed values.

Some drivers compute one operation plausibly wrong, such as FP16 results that are shifted
by a half. Each operator is judged by TOSA's rule, as in a diff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType
from tosavk.core.errors import Error
from tosavk.differential.childside import Children
from tosavk.differential.request import DiffRequest
from tosavk.differential.result import DiffResult, FindingKind
from tosavk.differential.sides import REFERENCE
from tosavk.lowering.graph import Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

LIMIT_S = 60.0
_COUNT = 64
_CHILDREN = Children(limit_s=LIMIT_S)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What the test says of one device.

    Attributes:
        spec: backend specification.
        device: device and driver, or "".
        operators: how many were judged.
        wrong: what is wrong, each in one line that names the operator.
        failure: why the test could not be run, or "".
    """

    spec: str
    device: str
    operators: int
    wrong: tuple[str, ...]
    failure: str = ""

    @property
    def outcome(self) -> str:
        """The outcome in a word: passed, wrong or failed."""
        if self.failure:
            return "failed"
        return "wrong" if self.wrong else "passed"


def self_test(
    specs: Sequence[str], *, children: Children | None = _CHILDREN
) -> tuple[SelfTest, ...]:
    """Tests devices, all at the same time, each in a process of its own.

    Args:
        specs: backend specifications.
        children: how processes are started; None: in this process.
    """
    from tosavk.differential.diff import diff

    if not specs:
        return ()
    request = DiffRequest(
        graph=load_graph(program()),
        model="self-test",
        backends=(*specs, REFERENCE),
        given=values(),
        optional=True,
        repeats=0,
        children=children,
    )
    try:
        result = diff(request)
    except Error as error:
        reason = f"{type(error).__name__}: {error}"
        return tuple(SelfTest(spec, "", 0, (), reason) for spec in specs)
    return tuple(_of(spec, result) for spec in specs)


def program() -> bytes:
    """The program: every elementary operator of FP16, on 64 values."""
    b = Builder()
    x = b.input("x", DType.FP16, (_COUNT,))
    y = b.input("y", DType.FP16, (_COUNT,))
    positive = b.input("positive", DType.FP16, (_COUNT,))
    one = (Op.ABS, Op.CEIL, Op.FLOOR, Op.EXP, Op.TANH, Op.SIGMOID, Op.ERF, Op.SIN)
    two = (Op.ADD, Op.SUB, Op.POW, Op.GREATER, Op.GREATER_EQUAL, Op.EQUAL)
    results = [b.op(op, [x]) for op in (*one, Op.COS, Op.RECIPROCAL)]
    results += [b.op(op, [positive if op is Op.POW else x, y]) for op in two]
    results += [
        b.log(positive),
        b.rsqrt(positive),
        b.mul(x, y),
        b.maximum(x, y),
        b.minimum(x, y),
        b.negate(x),
        b.clamp(x, -1.5, 2.5),
        b.cast(x, DType.FP32),
        b.cast(x, DType.INT32),
        b.cast(x, DType.INT8),
        b.select(b.greater(x, y), x, y),
    ]
    for result in results:
        b.output(result)
    return b.build()


def values() -> dict[str, NDArray[np.generic]]:
    """The inputs: halves and others, of both signs, small and large."""
    steps = np.arange(_COUNT) - _COUNT // 2
    x = (steps * 0.5 + (steps % 3) * 0.125).astype(np.float16)
    y = (((steps * 7) % 13 - 6) * 0.75).astype(np.float16)
    positive = (2.0 ** ((steps % 11) - 5) * (1 + (steps % 5) / 8)).astype(np.float16)
    return {"x": x, "y": y, "positive": positive}


def _of(spec: str, result: DiffResult) -> SelfTest:
    run = next(run for run in result.runs if run.spec == spec)
    if not run.ran:
        return SelfTest(spec, run.device, 0, (), f"{run.ending}: {run.failure}")
    judged = [
        item
        for item in result.operators
        if any(c.left == run.label for c in item.comparisons)
    ]
    wrong = tuple(
        f"{run.device}: {f.text}"
        for f in result.findings
        if f.kind is FindingKind.OPERATOR
        and run.label in f.backends
        and REFERENCE in f.backends
    )
    return SelfTest(spec, run.device, len(judged), wrong)
