"""Admission: whether the kernels have an operator, with one typed reason if not."""

from __future__ import annotations

from dataclasses import dataclass

from tosavk.core.plan import OperatorName
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.errors import AdmissionError, Kind, operator_name
from tosavk.lowering.graph import Block, Graph, Operator
from tosavk.lowering.rules.table import RULES


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer for one operator: `reason` is empty when it is admitted."""

    operator: OperatorName
    reason: str


def check_operator(op: Operator, block: Block) -> None:
    """Checks one operator against the rule table.

    Raises:
        AdmissionError: with the reason.
    """
    if op.op in CONSTANT_OPS:
        return
    rule = RULES.get(op.op)
    if rule is None:
        raise AdmissionError(
            f"{op}: {op.op.name} is not supported",
            kind=Kind.UNSUPPORTED_OPERATOR,
            operator=op,
        )
    dtype = block.tensors[op.inputs[rule.operand]].dtype
    if dtype not in rule.types:
        names = ", ".join(sorted(t.name for t in rule.types))
        raise AdmissionError(
            f"{op}: {op.op.name} of {dtype.name} is not supported (it is for {names})",
            kind=Kind.UNSUPPORTED_TYPE,
            operator=op,
        )


def admissions(graph: Graph) -> tuple[Admission, ...]:
    """The answer for every operator of the entry block."""
    answers: list[Admission] = []
    for op in graph.main.operators:
        try:
            check_operator(op, graph.main)
        except AdmissionError as error:
            answers.append(Admission(operator_name(op), str(error)))
        else:
            answers.append(Admission(operator_name(op), ""))
    return tuple(answers)
