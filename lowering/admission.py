"""Admission: whether the kernels have an operator, with one typed reason if not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tosavk.core.plan import OperatorName
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.control import CALLS, FLOW_OPS, called_region
from tosavk.lowering.custom import custom_name
from tosavk.lowering.errors import AdmissionError, Kind, operator_name
from tosavk.lowering.graph import Block, Graph, Op, Operator
from tosavk.lowering.rules.table import RULES


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer for one operator: `reason` is empty when it is admitted."""

    operator: OperatorName
    reason: str


def check_operator(op: Operator, block: Block) -> None:
    """Checks one operator of a plan against the rule table.

    Raises:
        AdmissionError: with the reason.
    """
    if op.op in CONSTANT_OPS:
        return
    if op.op is Op.CUSTOM:
        domain, name = custom_name(op)
        raise AdmissionError(
            f"{op}: CUSTOM operator {name!r} of domain {domain!r} is unknown; register "
            "its meaning (tosavk.custom.register, on the command line --custom)",
            kind=Kind.UNSUPPORTED_OPERATOR,
            operator=op,
        )
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


def refusal(graph: Graph, first: AdmissionError) -> AdmissionError:
    """All that the kernels lack of a program, as one error.

    Args:
        graph: the program.
        first: what was found first; itself the answer where there is nothing else.
    """
    found = dict.fromkeys(_refused(graph))
    if len(found) < 2:
        return first
    lines = "".join(f"\n  {text}" for text in found)
    return AdmissionError(
        f"{len(found)} operators are not supported:{lines}",
        kind=first.kind,
        operator=first.operator,
        tensor=first.tensor,
    )


def _refused(graph: Graph) -> Iterator[str]:
    """Why operators are refused, those of the called regions included."""
    for region in graph.regions:
        for block in region.blocks:
            for op in block.operators:
                if op.op in FLOW_OPS:
                    continue
                try:
                    check_operator(op, block)
                except AdmissionError as error:
                    types = ", ".join(
                        f"{name!r} {block.tensors[name].dtype.name}"
                        for name in op.inputs
                        if name in block.tensors
                    )
                    where = "" if block is graph.main else f" in region {region.name!r}"
                    yield f"{error}{where}; its operands: {types or 'none'}"


def admissions(graph: Graph) -> tuple[Admission, ...]:
    """The answer for every operator of the entry block.

    An operator of control flow is admitted with all that it calls.
    """
    regions: dict[str, str] = {}
    return tuple(
        Admission(operator_name(op), _reason(graph, op, graph.main, regions))
        for op in graph.main.operators
    )


def _reason(graph: Graph, op: Operator, block: Block, regions: dict[str, str]) -> str:
    """Why an operator is refused, or ""; `regions` remembers that of each region."""
    if op.op not in FLOW_OPS:
        try:
            check_operator(op, block)
        except AdmissionError as error:
            return str(error)
        return ""
    for attribute in CALLS.get(op.op, ()):
        region = called_region(graph, op, attribute)
        if region.name not in regions:
            inner = region.blocks[0]
            reasons = (_reason(graph, o, inner, regions) for o in inner.operators)
            regions[region.name] = next((reason for reason in reasons if reason), "")
        if regions[region.name]:
            return f"{op}: in region {region.name!r}: {regions[region.name]}"
    return ""
