"""Programs of one broken operator, and the error that names it."""

from collections.abc import Sequence
from typing import Any

import pytest

from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.errors import VerifyError
from tosavk.lowering.graph import Attribute, Op, Tensor
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.verify import verify

F32 = DType.FP32
F16 = DType.FP16
I8 = DType.INT8
I32 = DType.INT32


CONV: dict[str, Any] = {
    "pad": (0, 0, 0, 0),
    "stride": (1, 1),
    "dilation": (1, 1),
    "acc_type": F32,
}
POOL: dict[str, Any] = {"kernel": (2, 2), "stride": (1, 1), "pad": (0, 0, 0, 0)}


def refused(b: Builder, out: tuple[DType, Sequence[int]] | None = None) -> VerifyError:
    """Verifies what was written and read back; the last operator is the broken one."""
    graph = read_graph(b.build())
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    assert isinstance(caught.value, InvalidArgument)
    last = graph.main.operators[-1]
    assert caught.value.operator is not None
    assert caught.value.operator.index == last.index
    assert str(last) in str(caught.value)
    return caught.value


def run(
    op: Op,
    inputs: Sequence[tuple[DType, tuple[int, ...]] | Tensor],
    dtype: DType,
    shape: tuple[int, ...],
    *,
    builder: Builder | None = None,
    **attributes: Attribute | Sequence[int],
) -> VerifyError:
    b = builder or Builder()
    operands: list[Tensor] = []
    for number, given in enumerate(inputs):
        if isinstance(given, Tensor):
            operands.append(given)
        else:
            operands.append(b.input(f"in{number}", *given))
    b.output(b.op(op, operands, dtype=dtype, shape=shape, name="y", **attributes))
    return refused(b)
