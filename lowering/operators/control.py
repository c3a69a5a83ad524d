"""Rules of constants, CUSTOM, variables and control flow."""

from __future__ import annotations

from collections.abc import Sequence

from tosavk.core.dtypes import DType, elements
from tosavk.lowering.errors import Kind
from tosavk.lowering.graph import Tensor
from tosavk.lowering.operators.spec import Call, Shape, Signature, text_of


def declared(call: Call) -> tuple[Shape, ...]:
    """Operators whose outputs are what the file declares: no rule gives them."""
    return ()


def custom(call: Call) -> tuple[Shape, ...]:
    """CUSTOM: only its name can be checked."""
    if not call.text("operator_name"):
        raise call.bad_attribute("operator_name", "is empty")
    return ()


def cond_if(call: Call) -> tuple[Shape, ...]:
    """Both branches take the inputs behind the condition and give the outputs."""
    _check_condition(call, call.inputs[0], "its condition")
    then = _signature(call, "then_graph")
    other = _signature(call, "else_graph")
    for name, signature in (("then_graph", then), ("else_graph", other)):
        _match(call, call.inputs[1:], signature.inputs, f"inputs of its {name}")
    _match(call, then.outputs, other.outputs, "outputs of its else_graph")
    return tuple(tensor.shape or () for tensor in then.outputs)


def branch_types(call: Call) -> tuple[DType, ...]:
    """The outputs of COND_IF have the types of its branches' outputs."""
    return tuple(tensor.dtype for tensor in _signature(call, "then_graph").outputs)


def input_types(call: Call) -> tuple[DType, ...]:
    """The outputs of WHILE_LOOP have the types of its inputs."""
    return tuple(tensor.dtype for tensor in call.inputs)


def while_loop(call: Call) -> tuple[Shape, ...]:
    """Condition and body take the inputs; the body gives them back."""
    condition = _signature(call, "cond_graph")
    body = _signature(call, "body_graph")
    _match(call, call.inputs, condition.inputs, "inputs of its cond_graph")
    _match(call, call.inputs, body.inputs, "inputs of its body_graph")
    _match(call, call.inputs, body.outputs, "outputs of its body_graph")
    if len(condition.outputs) != 1:
        raise call.error(
            Kind.INVALID_CONTROL_FLOW,
            f"its cond_graph has {len(condition.outputs)} outputs; it must have one",
        )
    _check_condition(call, condition.outputs[0], "the output of its cond_graph")
    return tuple(call.shape(position) for position in range(len(call.inputs)))


def _signature(call: Call, attribute: str) -> Signature:
    name = call.text(attribute)
    if name not in call.regions:
        raise call.error(
            Kind.INVALID_CONTROL_FLOW, f"its {attribute} {name!r} is no region"
        )
    return call.regions[name]


def _check_condition(call: Call, tensor: Tensor, what: str) -> None:
    if tensor.dtype is not DType.BOOL or elements(tensor.shape or ()) != 1:
        raise call.error(
            Kind.INVALID_CONTROL_FLOW,
            f"{what} ({tensor.name!r}) is {tensor.dtype.name} of shape "
            f"{text_of(tensor.shape)}; it must be one BOOL",
        )


def _match(
    call: Call, given: Sequence[Tensor], wanted: Sequence[Tensor], what: str
) -> None:
    def types(tensors: Sequence[Tensor]) -> list[tuple[DType, Shape | None]]:
        return [(tensor.dtype, tensor.shape) for tensor in tensors]

    if types(given) != types(wanted):
        raise call.error(
            Kind.INVALID_CONTROL_FLOW,
            f"the {what} are {_texts(wanted)}, but it has {_texts(given)}",
        )


def _texts(tensors: Sequence[Tensor]) -> str:
    return (
        ", ".join(f"{tensor.dtype.name} {text_of(tensor.shape)}" for tensor in tensors)
        or "none"
    )
