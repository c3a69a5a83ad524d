"""The errors of lowering: a file that cannot be read, is not valid, or is not admitted.

Each carries a machine-readable `kind`, and says which operator and which tensor it is
about; a message names the thing, its value and the remedy.
"""

from __future__ import annotations

import enum

from tosavk.core.errors import InvalidArgument, ModelError, Unsupported
from tosavk.core.plan import OperatorName
from tosavk.lowering.graph import Operator


class Kind(enum.StrEnum):
    """What is wrong, for programs; the value is the stable name."""

    # Found while reading the file.
    EMPTY_INPUT = "EmptyInput"
    MISSING_IDENTIFIER = "MissingIdentifier"
    INVALID_FLATBUFFER = "InvalidFlatbuffer"
    UNSUPPORTED_VERSION = "UnsupportedVersion"
    UNSUPPORTED_FEATURE = "UnsupportedFeature"
    LIMIT_EXCEEDED = "LimitExceeded"
    MISSING_NAME = "MissingName"
    EMPTY_NAME = "EmptyName"
    DUPLICATE_NAME = "DuplicateName"
    UNKNOWN_DATA_TYPE = "UnknownDataType"
    UNSUPPORTED_DATA_TYPE = "UnsupportedDataType"
    RANKED_TENSOR_WITHOUT_SHAPE = "RankedTensorWithoutShape"
    UNRANKED_TENSOR_WITH_DIMENSIONS = "UnrankedTensorWithDimensions"
    INVALID_DIMENSION = "InvalidDimension"
    INVALID_SHAPE_DATA = "InvalidShapeData"
    INVALID_TENSOR_DATA = "InvalidTensorData"
    EXTERNAL_DATA_RANGE = "ExternalDataRange"
    UNKNOWN_OPERATOR = "UnknownOperator"
    UNSUPPORTED_OPERATOR = "UnsupportedOperator"
    MISSING_ATTRIBUTE = "MissingAttribute"
    ATTRIBUTE_MISMATCH = "AttributeMismatch"
    UNKNOWN_SYMBOL = "UnknownSymbol"
    MULTIPLE_PRODUCERS = "MultipleProducers"
    # Found while verifying the graph.
    GRAPH_IO_MUST_BE_TENSOR = "GraphIoMustBeTensor"
    GRAPH_INPUT_PRODUCED = "GraphInputProduced"
    DISCONNECTED_SYMBOL = "DisconnectedSymbol"
    DATAFLOW_CYCLE = "DataflowCycle"
    INVALID_ARITY = "InvalidArity"
    TENSOR_LIST_LIMIT = "TensorListLimit"
    EXPECTED_TENSOR = "ExpectedTensor"
    EXPECTED_SHAPE = "ExpectedShape"
    INVALID_RANK = "InvalidRank"
    UNSUPPORTED_TYPE_PROFILE = "UnsupportedTypeProfile"
    INVALID_ATTRIBUTE = "InvalidAttribute"
    CONSTANT_REQUIRED = "ConstantRequired"
    INVALID_CONSTANT_DATA = "InvalidConstantData"
    INVALID_SHAPE = "InvalidShape"
    UNKNOWN_SHAPE = "UnknownShape"
    TENSOR_SIZE_LIMIT = "TensorSizeLimit"
    SHAPE_VALUE_LIMIT = "ShapeValueLimit"
    INVALID_VARIABLE = "InvalidVariable"
    INVALID_CONTROL_FLOW = "InvalidControlFlow"
    NESTING_LIMIT = "NestingLimit"
    # Found while lowering a valid graph.
    UNSUPPORTED_GRAPH = "UnsupportedGraph"
    UNSUPPORTED_TYPE = "UnsupportedType"


def operator_name(operator: Operator) -> OperatorName:
    """Where an operator is, for messages and reports."""
    return OperatorName(
        operator.index,
        operator.op.name,
        operator.outputs[0] if operator.outputs else "",
        operator.location,
    )


class LoweringError(ModelError):
    """An error of lowering, with its kind and its place.

    Attributes:
        kind: what is wrong (`Kind`).
        operator: the operator it is about, or None.
        tensor: name of the tensor it is about, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        operator: Operator | OperatorName | None = None,
        tensor: str | None = None,
    ) -> None:
        """Takes the message for people, and the same for programs."""
        super().__init__(message)
        self.kind = kind
        self.operator = (
            operator_name(operator) if isinstance(operator, Operator) else operator
        )
        self.tensor = tensor


class ParseError(LoweringError, InvalidArgument):
    """The bytes are no TOSA file that this version reads."""


class VerifyError(LoweringError, InvalidArgument):
    """The graph violates a rule of TOSA 1.0."""


class AdmissionError(LoweringError, Unsupported):
    """The graph is valid, but asks for something that is not offered."""
