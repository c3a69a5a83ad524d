"""CUSTOM operators: users give them their meaning, as TOSA programs.

    from tosavk import Builder, custom

    @custom.register("example.org", "square")
    def square(call):
        b = Builder()
        x = b.input("x", call.inputs[0].dtype, call.inputs[0].shape)
        b.output(b.mul(x, x))
        return b.graph()

Loading replaces each such operator by its program, so it runs on every backend, is
compared like any other, and needs no kernel of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, unpack_serialized
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.errors import Kind, VerifyError
from tosavk.lowering.graph import Attribute, Block, Graph, Op, Operator, Region, Tensor
from tosavk.lowering.operators import text_of
from tosavk.lowering.operators.spec import MAX_NESTING

_REGION_ATTRIBUTES = ("then_graph", "else_graph", "cond_graph", "body_graph")
_MAX_OPERATORS = 1 << 20


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A CUSTOM operator that wants a meaning.

    Attributes:
        operator: the operator.
        inputs: its operands, of known shape; those with `data` are constants.
        outputs: its results as the file declares them.
    """

    operator: Operator
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def attributes(self) -> bytes:
        """The bytes that the file gives along (`implementation_attrs`)."""
        value = self.operator.attributes.get("implementation_attrs", b"")
        return value if isinstance(value, bytes) else b""

    def value(self, position: int) -> NDArray[np.generic] | None:
        """The value of an operand that is a constant, else None."""
        tensor = self.inputs[position]
        if tensor.data is None or tensor.shape is None:
            return None
        return unpack_serialized(tensor.dtype, tensor.data, tensor.shape)


Meaning = Callable[[CustomCall], Graph]
"""Gives a program that takes the operator's operands in order, but for its shapes, and
gives its results."""


class CustomOperators:
    """A registry of CUSTOM operators by domain and name."""

    def __init__(self) -> None:
        """An empty registry."""
        self._meanings: dict[tuple[str, str], Meaning] = {}

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Domain and name of each operator that has a meaning."""
        return tuple(self._meanings)

    def register(self, domain: str, name: str) -> Callable[[Meaning], Meaning]:
        """Registers the decorated function as the meaning of an operator.

        Args:
            domain: the operator's `domain_name`; may be "".
            name: its `operator_name`.

        Raises:
            InvalidArgument: it has a meaning already, or no name.
        """
        if not name:
            raise InvalidArgument("a CUSTOM operator needs a name")

        def enter(meaning: Meaning) -> Meaning:
            if (domain, name) in self._meanings:
                raise InvalidArgument(
                    f"CUSTOM operator {name!r} of domain {domain!r} is registered "
                    "already; unregister it first"
                )
            self._meanings[domain, name] = meaning
            return meaning

        return enter

    def unregister(self, domain: str, name: str) -> None:
        """Takes an operator's meaning away.

        Raises:
            InvalidArgument: it has none.
        """
        if self._meanings.pop((domain, name), None) is None:
            raise InvalidArgument(
                f"CUSTOM operator {name!r} of domain {domain!r} is not registered"
            )

    def update(self, others: CustomOperators) -> None:
        """Takes the operators of another registry over.

        Raises:
            InvalidArgument: one of them has another meaning already; nothing is taken.
        """
        for key, meaning in others._meanings.items():
            if self._meanings.get(key, meaning) is not meaning:
                raise InvalidArgument(
                    f"CUSTOM operator {key[1]!r} of domain {key[0]!r} is registered "
                    "already; unregister it first"
                )
        self._meanings.update(others._meanings)

    def load(self, name: str) -> None:
        """Imports a module that registers operators; again is fine.

        Its code runs in this process, so name only what you trust.

        Args:
            name: a module ("ops" or "package.ops") or the path of a Python file
                ("ops.py"), which registers with `tosavk.custom`; or such a name with a
                colon and an object of the module, which is a registry of its own:
                "package.ops:operators".

        Raises:
            InvalidArgument: it cannot be imported, or registers nothing.
        """
        # What needs no modules of users pays nothing for them.
        from tosavk.lowering.custom_modules import registry_of

        # Any: a checker that reads both files takes this class for two.
        found: Any = registry_of(name)
        if found is not self:
            self.update(found)

    def meaning(self, operator: Operator) -> Meaning | None:
        """The meaning of a CUSTOM operator, or None."""
        return self._meanings.get(custom_name(operator))


custom = CustomOperators()
"""The registry that loading uses unless it is given another one."""


def custom_name(operator: Operator) -> tuple[str, str]:
    """Domain and name of a CUSTOM operator."""
    attributes = operator.attributes
    return (
        str(attributes.get("domain_name", "")),
        str(attributes.get("operator_name", "")),
    )


def expand(graph: Graph, operators: CustomOperators) -> Graph:
    """Replaces the CUSTOM operators that are registered by their programs.

    Args:
        graph: a verified graph.
        operators: their meanings.

    Returns:
        A graph that has to be verified again; the same one if nothing was replaced.

    Raises:
        VerifyError: a program does not fit its operator, or operators are made of each
            other without an end.
    """
    for _ in range(MAX_NESTING):
        if not _registered(graph, operators):
            return graph
        graph = _Expansion(graph, operators).whole()
    left = _registered(graph, operators)
    if left:
        raise VerifyError(
            f"{left[0]}: CUSTOM operators are made of each other more than "
            f"{MAX_NESTING} deep",
            kind=Kind.NESTING_LIMIT,
            operator=left[0],
        )
    return graph


def _registered(graph: Graph, operators: CustomOperators) -> list[Operator]:
    return [
        op
        for region in graph.regions
        for block in region.blocks
        for op in block.operators
        if op.op is Op.CUSTOM and operators.meaning(op) is not None
    ]


class _Expansion:
    """Replaces operators once."""

    def __init__(self, graph: Graph, operators: CustomOperators) -> None:
        self._graph = graph
        self._operators = operators
        self._added: list[Region] = []
        self._names = {region.name for region in graph.regions}
        self._count = sum(len(b.operators) for r in graph.regions for b in r.blocks)

    def whole(self) -> Graph:
        regions = [
            Region(region.name, tuple(self._block(block) for block in region.blocks))
            for region in self._graph.regions
        ]
        return dataclasses.replace(self._graph, regions=(*regions, *self._added))

    def _block(self, block: Block) -> Block:
        tensors = dict(block.tensors)
        listed: list[Operator] = []
        for op in block.operators:
            meaning = self._operators.meaning(op) if op.op is Op.CUSTOM else None
            if meaning is None:
                listed.append(op)
            else:
                listed.extend(self._inlined(op, meaning, tensors))
        numbered = (
            dataclasses.replace(op, index=index) for index, op in enumerate(listed)
        )
        return dataclasses.replace(block, operators=tuple(numbered), tensors=tensors)

    def _inlined(
        self, op: Operator, meaning: Meaning, tensors: dict[str, Tensor]
    ) -> Iterable[Operator]:
        """The operators that stand for one; their tensors are added to `tensors`."""
        inputs = tuple(tensors[name] for name in op.inputs)
        outputs = tuple(tensors[name] for name in op.outputs)
        program = meaning(CustomCall(op, inputs, outputs))
        body = program.main
        data = [tensor for tensor in inputs if tensor.dtype is not DType.SHAPE]
        _match(op, "input", data, body, body.inputs)
        _match(op, "output", outputs, body, body.outputs)
        self._count += sum(len(b.operators) for r in program.regions for b in r.blocks)
        if self._count > _MAX_OPERATORS:
            raise VerifyError(
                f"{op}: CUSTOM operators grow to more than {_MAX_OPERATORS} operators",
                kind=Kind.LIMIT_EXCEEDED,
                operator=op,
            )
        stem = f"{op.outputs[0] if op.outputs else 'custom'}:"
        regions = self._called(program, stem)
        names = dict(zip(body.inputs, (tensor.name for tensor in data), strict=True))
        for name, tensor in body.tensors.items():
            if name not in names:
                names[name] = _fresh(f"{stem}{name}", tensors)
                tensors[names[name]] = dataclasses.replace(tensor, name=names[name])
        place = op.location or str(op)
        made = [_renamed(inner, names, regions, place) for inner in body.operators]
        # The results get their names at the end, since one may be several results.
        made += [
            Operator(0, Op.IDENTITY, (names[inner],), (outer,), {}, place)
            for inner, outer in zip(body.outputs, op.outputs, strict=True)
        ]
        return made

    def _called(self, program: Graph, stem: str) -> dict[str, str]:
        """Adds the regions that a program calls, under names of their own."""
        body = program.main
        others = [region for region in program.regions if region.blocks[0] is not body]
        names: dict[str, str] = {}
        for region in others:
            names[region.name] = _fresh(f"{stem}{region.name}", self._names)
            self._names.add(names[region.name])
        for region in others:
            blocks = tuple(
                dataclasses.replace(
                    block,
                    operators=tuple(
                        _renamed(op, {}, names, op.location) for op in block.operators
                    ),
                )
                for block in region.blocks
            )
            self._added.append(Region(names[region.name], blocks))
        return names


def _renamed(
    op: Operator, tensors: Mapping[str, str], regions: Mapping[str, str], location: str
) -> Operator:
    attributes: dict[str, Attribute] = dict(op.attributes)
    for name in _REGION_ATTRIBUTES:
        region = attributes.get(name)
        if isinstance(region, str):
            attributes[name] = regions.get(region, region)
    return dataclasses.replace(
        op,
        inputs=tuple(tensors.get(name, name) for name in op.inputs),
        outputs=tuple(tensors.get(name, name) for name in op.outputs),
        attributes=attributes,
        location=location,
    )


def _match(
    op: Operator,
    what: str,
    wanted: Iterable[Tensor],
    body: Block,
    names: Iterable[str],
) -> None:
    outside = [(tensor.dtype, tensor.shape) for tensor in wanted]
    inside = [(body.tensors[name].dtype, body.tensors[name].shape) for name in names]
    if outside != inside:

        def texts(pairs: Iterable[tuple[DType, tuple[int, ...] | None]]) -> str:
            listed = ", ".join(
                f"{dtype.name} {text_of(shape)}" for dtype, shape in pairs
            )
            return listed or "none"

        raise VerifyError(
            f"{op}: its {what}s are {texts(outside)}, but the program registered for "
            f"{custom_name(op)[1]!r} has {texts(inside)}",
            kind=Kind.INVALID_SHAPE,
            operator=op,
        )


def _fresh(wanted: str, taken: Container[str]) -> str:
    """A name that nobody has."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}.{number}"
    return name
