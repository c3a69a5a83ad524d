"""Writes a `Graph` as a TOSA flatbuffer; the opposite of the reader."""

from __future__ import annotations

from collections.abc import Sequence

import flatbuffers

from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.graph import (
    Attribute,
    Block,
    Graph,
    Operator,
    Region,
    Tensor,
    Version,
)
from tosavk.lowering.tosa import schema
from tosavk.lowering.tosa.schema import FieldKind, Table

# Byte vectors are aligned, so that constants can be used in place.
_ALIGNMENT = 8
_OVERHEAD_BYTES = 1 << 16


def write_graph(graph: Graph) -> bytes:
    """Writes a graph: reading the result gives an equal graph.

    Raises:
        InvalidArgument: an attribute has a value that its field cannot hold.
    """
    size = sum(
        len(tensor.data)
        for region in graph.regions
        for block in region.blocks
        for tensor in block.tensors.values()
        if tensor.data is not None
    )
    return _Writer(size + _OVERHEAD_BYTES).graph(graph)


class _Writer:
    """One writing; everything is written before what points to it."""

    def __init__(self, size: int) -> None:
        self._to = flatbuffers.Builder(size)

    def graph(self, graph: Graph) -> bytes:
        regions = self._vector([self._region(region) for region in graph.regions])
        version = self._version(graph.version)
        root = self._table(schema.GRAPH, version=version, regions=regions)
        self._to.Finish(root, schema.FILE_IDENTIFIER)
        return bytes(self._to.Output())

    def _version(self, version: Version) -> int:
        return self._table(
            schema.VERSION,
            _major=version.major,
            _minor=version.minor,
            _patch=version.patch,
            _draft=version.draft,
        )

    def _region(self, region: Region) -> int:
        blocks = self._vector([self._block(block) for block in region.blocks])
        return self._table(schema.REGION, name=self._string(region.name), blocks=blocks)

    def _block(self, block: Block) -> int:
        shapes = [t for t in block.tensors.values() if t.dtype is DType.SHAPE]
        tensors = [t for t in block.tensors.values() if t.dtype is not DType.SHAPE]
        return self._table(
            schema.BLOCK,
            operators=self._vector([self._operator(o) for o in block.operators]),
            tensors=self._vector([self._tensor(t) for t in tensors]),
            shapes=self._vector([self._shape(t) for t in shapes]),
            inputs=self._strings(block.inputs),
            outputs=self._strings(block.outputs),
            name=self._string(block.name),
        )

    def _tensor(self, tensor: Tensor) -> int:
        data = 0 if tensor.data is None else self._bytes(tensor.data)
        shape = 0 if tensor.shape is None else self._ints(tensor.shape)
        variable_name = (
            self._string(tensor.variable_name) if tensor.variable_name else 0
        )
        return self._table(
            schema.TENSOR,
            name=self._string(tensor.name),
            shape=shape,
            type=int(tensor.dtype),
            data=data,
            variable=tensor.variable,
            is_unranked=tensor.shape is None,
            variable_name=variable_name,
        )

    def _shape(self, tensor: Tensor) -> int:
        data = 0 if tensor.data is None else self._bytes(tensor.data)
        return self._table(
            schema.SHAPE,
            name=self._string(tensor.name),
            rank=(tensor.shape or (0,))[0],
            data=data,
        )

    def _operator(self, operator: Operator) -> int:
        table = schema.ATTRIBUTES[operator.op]
        values = {
            field.name: self._attribute(operator, field.name, field.kind)
            for field in table.fields
        }
        attribute = self._table(table, **values)
        location = 0
        if operator.location:
            text = self._string(operator.location)
            location = self._table(schema.LOCATION, text=text)
        inputs = self._strings(operator.inputs)
        outputs = self._strings(operator.outputs)
        return self._table(
            schema.OPERATOR,
            op=int(operator.op),
            attribute_type=int(operator.op),
            attribute=attribute,
            inputs=inputs,
            outputs=outputs,
            location=location,
        )

    def _attribute(self, operator: Operator, name: str, kind: FieldKind) -> int:
        value: Attribute | None = operator.attributes.get(name)
        if value is None:
            return 0
        if kind is FieldKind.INTS and isinstance(value, tuple):
            return self._ints(value)
        if kind is FieldKind.STRING and isinstance(value, str):
            return self._string(value)
        if kind is FieldKind.BYTES and isinstance(value, bytes):
            return self._bytes(value)
        if not kind.is_offset and isinstance(value, int):
            return int(value)
        raise InvalidArgument(
            f"{operator}: attribute {name}={value!r} does not fit its field "
            f"({kind.name.lower()})"
        )

    def _table(self, table: Table, **values: int) -> int:
        to = self._to
        to.StartObject(len(table.fields))
        for slot, field in enumerate(table.fields):
            value = values.get(field.name, field.default)
            match field.kind:
                case FieldKind.BOOL:
                    to.PrependBoolSlot(slot, bool(value), bool(field.default))
                case FieldKind.TAG:
                    to.PrependUint8Slot(slot, value, field.default)
                case FieldKind.I32:
                    to.PrependInt32Slot(slot, value, field.default)
                case FieldKind.U32 | FieldKind.DTYPE:
                    to.PrependUint32Slot(slot, value, field.default)
                case FieldKind.U64:
                    to.PrependUint64Slot(slot, value, field.default)
                case _:
                    to.PrependUOffsetTRelativeSlot(slot, value, 0)
        return to.EndObject()

    def _string(self, text: str) -> int:
        return self._to.CreateSharedString(text)

    def _strings(self, texts: Sequence[str]) -> int:
        return self._vector([self._string(text) for text in texts])

    def _vector(self, offsets: Sequence[int]) -> int:
        to = self._to
        to.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            to.PrependUOffsetTRelative(offset)
        return to.EndVector()

    def _ints(self, numbers: Sequence[int]) -> int:
        to = self._to
        to.StartVector(4, len(numbers), 4)
        for number in reversed(numbers):
            to.PrependInt32(number)
        return to.EndVector()

    def _bytes(self, data: bytes | memoryview) -> int:
        # Pads so that the bytes, not their length in front of them, are aligned.
        self._to.Prep(_ALIGNMENT, len(data))
        return self._to.CreateByteVector(bytes(data))
