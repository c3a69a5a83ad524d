"""Rules of the operators that move data: CONCAT, PAD, RESHAPE, SLICE, TILE, ..."""

from __future__ import annotations

from tosavk.core.dtypes import elements
from tosavk.lowering.errors import Kind
from tosavk.lowering.operators.spec import Call, Shape, text_of


def concat(call: Call) -> tuple[Shape, ...]:
    """All dimensions but that of the axis agree; the axis adds up."""
    axis = call.integer("axis")
    first = call.shape(0)
    total = 0
    for position in range(len(call.inputs)):
        shape = call.shape(position)
        same = len(shape) == len(first) and all(
            size == other or number == axis
            for number, (size, other) in enumerate(zip(shape, first, strict=True))
        )
        if not same:
            raise call.bad_shape(
                f"input {position} has shape {text_of(shape)}, input 0 has "
                f"{text_of(first)}; only dimension {axis} may differ",
                position,
            )
        total += shape[axis]
    return ((*first[:axis], total, *first[axis + 1 :]),)


def pad(call: Call) -> tuple[Shape, ...]:
    """Two numbers for each dimension: before and after, not negative."""
    shape = call.shape(0)
    padding = _numbers(call, 1, 2 * len(shape), "padding")
    if any(number < 0 for number in padding):
        raise call.bad_shape(
            f"padding {padding} has a negative number; use SLICE to cut", 1
        )
    before, after = padding[::2], padding[1::2]
    sizes = zip(before, shape, after, strict=True)
    return (tuple(b + size + a for b, size, a in sizes),)


def reshape(call: Call) -> tuple[Shape, ...]:
    """The new shape has as many elements as the old one."""
    shape = call.shape(0)
    new = call.numbers(1)
    if any(size < 1 for size in new):
        raise call.bad_shape(
            f"the new shape {new} has a dimension below 1; "
            "give every dimension its size",
            1,
        )
    if elements(new) != elements(shape):
        raise call.bad_shape(
            f"cannot make shape {text_of(new)} ({elements(new)} elements) of "
            f"{text_of(shape)} ({elements(shape)} elements)",
            1,
        )
    return (new,)


def slice_(call: Call) -> tuple[Shape, ...]:
    """Start and size lie within the input; no size is below 1."""
    shape = call.shape(0)
    start = _numbers(call, 1, len(shape), "start")
    size = _numbers(call, 2, len(shape), "size")
    for axis, (first, count, whole) in enumerate(zip(start, size, shape, strict=True)):
        if first < 0 or count < 1 or first + count > whole:
            raise call.bad_shape(
                f"start {first} and size {count} in dimension {axis} leave the input's "
                f"{whole} elements (shape {text_of(shape)}); "
                "start must be at least 0 and size at least 1",
                2,
            )
    return (size,)


def tile(call: Call) -> tuple[Shape, ...]:
    """Each dimension is repeated at least once."""
    shape = call.shape(0)
    multiples = _numbers(call, 1, len(shape), "multiples")
    if any(number < 1 for number in multiples):
        raise call.bad_shape(f"multiples {multiples} has a number below 1", 1)
    return (tuple(m * size for m, size in zip(multiples, shape, strict=True)),)


def check_transpose(call: Call) -> None:
    """The permutation names each dimension once."""
    rank = len(call.shape(0))
    perms = call.integers("perms", rank)
    if sorted(perms) != list(range(rank)):
        raise call.bad_attribute("perms", f"is no permutation of 0 to {rank - 1}")


def transpose(call: Call) -> tuple[Shape, ...]:
    """Output dimension i is input dimension perms[i]."""
    shape = call.shape(0)
    return (tuple(shape[axis] for axis in call.integers("perms", len(shape))),)


def gather(call: Call) -> tuple[Shape, ...]:
    """Values [N, K, C], indices [N, W]: output [N, W, C]."""
    values, indices = call.shape(0), call.shape(1)
    if values[0] != indices[0]:
        raise call.bad_shape(
            f"values {text_of(values)} and indices {text_of(indices)} differ in "
            "dimension 0",
            1,
        )
    return ((values[0], indices[1], values[2]),)


def scatter(call: Call) -> tuple[Shape, ...]:
    """Values [N, K, C], indices [N, W], input [N, W, C], K >= W."""
    values, indices, source = call.shape(0), call.shape(1), call.shape(2)
    if source != (values[0], indices[1], values[2]) or indices[0] != values[0]:
        raise call.bad_shape(
            f"values {text_of(values)}, indices {text_of(indices)} and input "
            f"{text_of(source)} are not NxKxC, NxW and NxWxC",
            2,
        )
    if values[1] < indices[1]:
        raise call.bad_shape(
            f"writes {indices[1]} rows into {values[1]}; rows cannot be written twice",
            1,
        )
    return (values,)


def _numbers(call: Call, position: int, count: int, what: str) -> tuple[int, ...]:
    numbers = call.numbers(position)
    if len(numbers) != count:
        raise call.error(
            Kind.INVALID_SHAPE,
            f"{what} {numbers} must have {count} numbers for an input of shape "
            f"{text_of(call.shape(0))}",
            position,
        )
    return numbers
