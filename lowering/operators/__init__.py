"""The specifications of all TOSA 1.0 operators, and the rules of their shapes."""

from tosavk.lowering.operators.check import infer
from tosavk.lowering.operators.spec import (
    Call,
    Operand,
    OperandKind,
    OperatorSpec,
    Shape,
    Signature,
    TypeRow,
    text_of,
)
from tosavk.lowering.operators.table import SPECS

__all__ = [
    "SPECS",
    "Call",
    "Operand",
    "OperandKind",
    "OperatorSpec",
    "Shape",
    "Signature",
    "TypeRow",
    "infer",
    "text_of",
]
