"""Rules of ARGMAX and the REDUCE operators."""

from __future__ import annotations

from tosavk.lowering.operators.elementwise import check_nan_mode
from tosavk.lowering.operators.spec import Call, Shape, text_of


def check_axis(call: Call) -> None:
    """The axis lies within the rank of the first input."""
    axis = call.integer("axis")
    rank = len(call.shape(0))
    if not 0 <= axis < rank:
        raise call.bad_attribute(
            "axis",
            f"lies outside the {rank} dimensions of input {call.inputs[0].name!r} "
            f"({text_of(call.shape(0))})",
        )


def check_axis_and_nan_mode(call: Call) -> None:
    """Both attributes."""
    check_axis(call)
    check_nan_mode(call)


def keep_axis(call: Call) -> tuple[Shape, ...]:
    """REDUCE_*: the axis keeps size 1."""
    shape = list(call.shape(0))
    shape[call.integer("axis")] = 1
    return (tuple(shape),)


def drop_axis(call: Call) -> tuple[Shape, ...]:
    """ARGMAX: the axis goes away."""
    axis = call.integer("axis")
    shape = call.shape(0)
    return (shape[:axis] + shape[axis + 1 :],)
