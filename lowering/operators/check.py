"""Checks one operator against its specification and infers its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tosavk.core.dtypes import DType
from tosavk.lowering.errors import Kind, VerifyError
from tosavk.lowering.graph import Operator, Tensor
from tosavk.lowering.operators.spec import (
    MAX_TENSOR_LIST,
    Call,
    Operand,
    OperandKind,
    OperatorSpec,
    Shape,
    Signature,
    plural,
    text_of,
)
from tosavk.lowering.operators.table import SPECS

Inferred = tuple[DType, Shape]


def infer(
    operator: Operator,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor | DType] | None = None,
    *,
    regions: Mapping[str, Signature] | None = None,
    minor: int = 0,
) -> tuple[Inferred, ...]:
    """Checks an operator and gives the types and shapes of its outputs.

    The checks are made in the order arity, list length, operand kinds, ranks, types,
    attributes, constants, shapes.

    Args:
        operator: the operator.
        inputs: its inputs, all of known shape; constants with their data.
        outputs: its declared outputs; or only their types where an operator leaves a
            choice (CAST, RESCALE, MATMUL, RESIZE); or None.
        regions: signatures of the regions that control flow may call.
        minor: minor version of TOSA 1 whose types are allowed.

    Returns:
        One type and shape for each output; nothing for operators whose outputs are
        what the file declares (CONST, CONST_SHAPE, CUSTOM, variables).

    Raises:
        VerifyError: a rule of TOSA is broken.
    """
    spec = SPECS[operator.op]
    call = Call(operator, tuple(inputs), (), regions or {})
    _check_arity(call, spec, None if outputs is None else len(outputs))
    outputs = outputs or ()
    if spec.variadic:
        _check_list(call, len(outputs))
    _check_kinds(call, spec, outputs)
    _check_ranks(call, spec, outputs)
    dtypes = _check_types(call, spec, outputs, minor)
    call = Call(operator, tuple(inputs), dtypes, call.regions)
    spec.attributes(call)
    spec.constants(call)
    shapes = spec.shapes(call)
    if spec.types is not None:
        dtypes = spec.types(call)
    if not shapes:
        return ()
    return tuple(zip(dtypes, shapes, strict=True))


def _check_arity(call: Call, spec: OperatorSpec, outputs: int | None) -> None:
    counts = [("input", len(call.inputs), spec.inputs, spec.least_inputs)]
    if outputs is not None:
        counts.append(("output", outputs, spec.outputs, spec.least_outputs))
    for what, count, operands, least in counts:
        if count < least or (count > len(operands) and not spec.variadic):
            names = ", ".join(operand.name for operand in operands)
            wanted = str(len(operands))
            if spec.variadic or least < len(operands):
                wanted = f"at least {least}"
            raise call.error(
                Kind.INVALID_ARITY,
                f"has {plural(count, what)}; it takes {wanted}"
                + (f" ({names})" if names else ""),
            )


def _check_list(call: Call, outputs: int) -> None:
    for what, count in (("input", len(call.inputs)), ("output", outputs)):
        if count > MAX_TENSOR_LIST:
            raise call.error(
                Kind.TENSOR_LIST_LIMIT,
                f"has {plural(count, what)}; at most {MAX_TENSOR_LIST} (level 8K): "
                "split it into several operators",
            )


def _check_kinds(
    call: Call, spec: OperatorSpec, outputs: Sequence[Tensor | DType]
) -> None:
    operands = [
        (spec.input(number), tensor.name, tensor.dtype)
        for number, tensor in enumerate(call.inputs)
    ]
    for number, output in enumerate(outputs):
        if isinstance(output, Tensor):
            operands.append((spec.output(number), output.name, output.dtype))
    for operand, name, dtype in operands:
        if operand.kind is OperandKind.ANY:
            continue
        is_shape = dtype is DType.SHAPE
        if is_shape is not (operand.kind is OperandKind.SHAPE):
            kind = Kind.EXPECTED_TENSOR if is_shape else Kind.EXPECTED_SHAPE
            found = "a shape" if is_shape else "a tensor"
            raise VerifyError(
                f"{call.operator}: {operand.name} must be a {operand.kind.value}, but "
                f"{name!r} is {found}",
                kind=kind,
                operator=call.operator,
                tensor=name,
            )


def _check_ranks(
    call: Call, spec: OperatorSpec, outputs: Sequence[Tensor | DType]
) -> None:
    for number, tensor in enumerate(call.inputs):
        _check_rank(call, spec.input(number), tensor)
    for number, output in enumerate(outputs):
        if isinstance(output, Tensor):
            _check_rank(call, spec.output(number), output)


def _check_rank(call: Call, operand: Operand, tensor: Tensor) -> None:
    if tensor.shape is None:
        return
    least, most = operand.ranks
    rank = len(tensor.shape)
    if not least <= rank <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise VerifyError(
            f"{call.operator}: {operand.name} {tensor.name!r} has rank {rank} (shape "
            f"{text_of(tensor.shape)}); it must have rank {wanted}",
            kind=Kind.INVALID_RANK,
            operator=call.operator,
            tensor=tensor.name,
        )
    if operand.single and tensor.shape not in ((1,), (-1,)):
        raise VerifyError(
            f"{call.operator}: {operand.name} {tensor.name!r} has shape "
            f"{text_of(tensor.shape)}; it must have one element",
            kind=Kind.INVALID_SHAPE,
            operator=call.operator,
            tensor=tensor.name,
        )


def _check_types(
    call: Call, spec: OperatorSpec, outputs: Sequence[Tensor | DType], minor: int
) -> tuple[DType, ...]:
    """Finds the row of the operator's table; gives the types of the outputs."""
    known: dict[str, DType] = {}
    if "acc_type" in spec.variables:
        acc_type = call.operator.attributes.get("acc_type")
        if not isinstance(acc_type, DType):
            raise call.bad_attribute("acc_type", "is no data type of TOSA 1.0")
        known["acc_type"] = acc_type
    given = [
        (spec.input(number), tensor.dtype) for number, tensor in enumerate(call.inputs)
    ]
    given += [
        (
            spec.output(number),
            output.dtype if isinstance(output, Tensor) else output,
        )
        for number, output in enumerate(outputs)
    ]
    fits = True
    for operand, dtype in given:
        if operand.types is None:
            continue
        if isinstance(operand.types, DType):
            fits = fits and dtype is operand.types
        else:
            fits = fits and known.setdefault(operand.types, dtype) is dtype
    if not spec.rows:
        if not fits:
            raise _type_error(call, spec, given, minor)
        return tuple(dtype for _, dtype in given[len(call.inputs) :])
    rows = [
        row
        for row in spec.rows
        if row.minor <= minor
        and all(
            known.get(variable, dtype) is dtype
            for variable, dtype in zip(spec.variables, row.types, strict=True)
        )
    ]
    if not fits or not rows:
        raise _type_error(call, spec, given, minor)
    columns = dict(zip(spec.variables, rows[0].types, strict=True))
    return tuple(
        operand.types if isinstance(operand.types, DType) else columns[operand.types]
        for operand in spec.outputs[: len(outputs) or None]
        if operand.types is not None
    )


def _type_error(
    call: Call, spec: OperatorSpec, given: list[tuple[Operand, DType]], minor: int
) -> VerifyError:
    inputs = ", ".join(dtype.name for _, dtype in given[: len(call.inputs)])
    outputs = ", ".join(dtype.name for _, dtype in given[len(call.inputs) :])
    acc_type = call.operator.attributes.get("acc_type")
    accumulator = f" (acc_type {acc_type.name})" if isinstance(acc_type, DType) else ""
    return call.error(
        Kind.UNSUPPORTED_TYPE_PROFILE,
        f"types {inputs or 'none'} -> {outputs or '?'}{accumulator} are no combination "
        f"of TOSA 1.{minor}{_allowed(spec, given, minor)}",
    )


def _allowed(spec: OperatorSpec, given: list[tuple[Operand, DType]], minor: int) -> str:
    """What an operator is for; for its first type if that occurs at all."""
    rows = [row.types for row in spec.rows if row.minor <= minor]
    if not rows:
        return ""
    first = given[0][1] if given else None
    matching = [row for row in rows if row[0] is first]
    if len(spec.variables) == 1 or not matching:
        names = dict.fromkeys(row[0].name for row in rows)
        return f"; {spec.op.name} is for {spec.variables[0]} in {', '.join(names)}"
    texts = [", ".join(dtype.name for dtype in row) for row in matching]
    return f"; as ({', '.join(spec.variables)}) it is for ({'), ('.join(texts)})"
