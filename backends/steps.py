"""Runs a program operator by operator, to find the one at which a device is lost.

Each operator is a submission of its own, and its results come back to the host before
the next one starts. That is slow, and takes other memory and barriers than the program
as a whole: what goes wrong only there does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.session import Session, tensor_spec
from tosavk.core.accelerator import Accelerator
from tosavk.core.errors import DeadlineExpired, DeviceLost, InvalidArgument, Unsupported
from tosavk.core.plan import Numerics
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Graph, Op, Operator
from tosavk.lowering.late import LateChecks
from tosavk.lowering.lower import live_operators, lower_graph
from tosavk.lowering.single import single

Array = NDArray[np.generic]


class OperatorLost(DeviceLost):
    """The device was lost at one operator.

    Attributes:
        operator: index of the operator.
        op: its kind.
        finished: the last operator that had finished, as text, or "none".
        device: device and driver.
    """

    def __init__(
        self, op: Operator, finished: Operator | None, device: str, error: DeviceLost
    ) -> None:
        self.operator = op.index
        self.op = op.op.name
        self.finished = "none" if finished is None else str(finished)
        self.device = device
        super().__init__(
            f"{device} was lost at {op}; the last operator that finished: "
            f"{self.finished} ({error})"
        )


def run_by_operators(
    accelerator: Accelerator,
    graph: Graph,
    inputs: Mapping[str, object],
    *,
    numerics: Numerics = Numerics.STRICT,
    timeout_s: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Array]:
    """Runs a verified graph operator by operator.

    Args:
        accelerator: where; it stays open.
        graph: the program.
        inputs: an array for every input, by name.
        numerics: mode.
        timeout_s: seconds that an operator may take; None: any time.
        progress: told which operator is under way.

    Returns:
        An array for every output, by name.

    Raises:
        InvalidArgument: an input is missing or has a wrong type or shape, or an
            operator must not be given a value that is given, or was computed.
        OperatorLost: the device was lost; the error names the operator.
        DeadlineExpired: an operator did not end in time; the error names it.
        Unsupported: the program keeps state.
    """
    block = graph.main
    if any(
        op.op in _STATE for r in graph.regions for b in r.blocks for op in b.operators
    ):
        raise Unsupported("a program with variables cannot be run operator by operator")
    live = live_operators(block)
    constants = dict(fold(block, live))
    LateChecks.of(block, live).check(constants)
    values: dict[str, Array] = {}
    for name in block.inputs:
        if name not in inputs:
            raise InvalidArgument(f"input {name!r} is missing")
        values[name] = tensor_spec(block.tensors[name]).check(inputs[name])
    work = [
        op
        for op in live
        if op.op not in CONSTANT_OPS and not all(n in constants for n in op.outputs)
    ]
    finished: Operator | None = None
    for op in work:
        progress(str(op))
        operands = {name: values[name] for name in op.inputs if name in values}
        # In a program of its own all of them are inputs.
        LateChecks.of(block, (op,)).check(operands)
        alone = single(op, block, graph, operands, constants)
        limits = accelerator.device.plan_limits
        lowered = lower_graph(alone, limits=limits, numerics=numerics)
        try:
            with Session(accelerator, lowered) as session:
                values.update(session.run(operands, timeout_s=timeout_s))
        except DeadlineExpired as error:
            raise DeadlineExpired(f"{op}: {error}") from error
        except DeviceLost as error:
            raise OperatorLost(op, finished, accelerator.name, error) from error
        finished = op
    return {
        name: values[name] if name in values else constants[name]
        for name in dict.fromkeys(block.outputs)
    }


_STATE = frozenset({Op.VARIABLE, Op.VARIABLE_READ, Op.VARIABLE_WRITE})
