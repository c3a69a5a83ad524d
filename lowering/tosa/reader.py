"""Reads the bytes of a TOSA file into a `Graph`.

The bytes are not trusted: what is wrong with them ends in a `ParseError`, within a time
and memory bounded by their size. Constants stay views of the file. What the operators
mean is not looked at here; `tosavk.lowering.verify` does that.
"""

from __future__ import annotations

from collections.abc import Sequence

from tosavk.core.dtypes import DType, serialized_bytes
from tosavk.core.plan import OperatorName
from tosavk.lowering.errors import Kind, ParseError
from tosavk.lowering.graph import (
    Attribute,
    Block,
    Graph,
    Op,
    Operator,
    Region,
    Tensor,
    Version,
)
from tosavk.lowering.tosa import schema
from tosavk.lowering.tosa.flatbuffer import FlatBuffer
from tosavk.lowering.tosa.schema import FieldKind

MAX_MODEL_BYTES = 256 << 20
MAX_CONSTANT_BYTES = 256 << 20
MAX_REGIONS = 64
MAX_BLOCKS = 4096
MAX_OPERATORS = 1 << 20
MAX_TENSORS = 262_144
MAX_SHAPES = 65_536
MAX_EDGES = 8 << 20
MAX_NAME_BYTES = 1024
MAX_RANK = 32
# A shape value is a list of numbers, two for each dimension for PAD.
MAX_SHAPE_LENGTH = 2 * MAX_RANK

_TYPES_IN_MESSAGE = 8

_DTYPES = {int(dtype): dtype for dtype in DType if dtype is not DType.SHAPE}
_OPERATORS = {int(op): op for op in Op}


def read_graph(data: bytes | bytearray | memoryview) -> Graph:
    """Reads a TOSA flatbuffer.

    Versions 1.0.x and 1.1.0 are read, draft or not, as far as they use what TOSA 1.0
    has. The constants of the graph are read-only views of `data`, which must not be
    changed while the graph is in use.

    Raises:
        ParseError: `data` is not such a file; `kind` says why.
    """
    view = memoryview(data).cast("B").toreadonly()
    if not len(view):
        raise ParseError("the file is empty; give a .tosa file", kind=Kind.EMPTY_INPUT)
    if len(view) > MAX_MODEL_BYTES:
        raise ParseError(
            f"the file has {len(view)} bytes; at most {MAX_MODEL_BYTES} are read",
            kind=Kind.LIMIT_EXCEEDED,
        )
    identifier = bytes(view[4:8])
    if identifier != schema.FILE_IDENTIFIER:
        raise ParseError(
            f"bytes 4 to 7 are {identifier!r} instead of b'TOSA': this is no TOSA "
            "flatbuffer; give a .tosa file (not TOSA in MLIR text or bytecode)",
            kind=Kind.MISSING_IDENTIFIER,
        )
    return _Reader(FlatBuffer(view)).graph()


class _Reader:
    """One reading of one file."""

    def __init__(self, file: FlatBuffer) -> None:
        self._file = file
        self._blocks = 0
        self._tensors = 0
        self._shapes = 0
        self._operators = 0
        self._edges = 0
        self._constant_bytes = 0

    def graph(self) -> Graph:
        file = self._file
        version_at, regions_at, _, compatibility_at = file.root(schema.GRAPH)
        version = self._version(version_at)
        regions = tuple(
            self._region(position)
            for position in file.references(regions_at, MAX_REGIONS, "regions")
        )
        if not regions:
            raise ParseError("the file holds no region", kind=Kind.INVALID_FLATBUFFER)
        _unique([region.name for region in regions], "region")
        self._check_features(compatibility_at)
        return Graph(version, regions)

    def _version(self, position: int) -> Version:
        if position == 0:
            raise ParseError(
                "the file has no version table; tosavk reads TOSA "
                f"{schema.SUPPORTED_VERSIONS}",
                kind=Kind.UNSUPPORTED_VERSION,
            )
        major, minor, patch, draft = self._file.table(schema.VERSION, position)
        version = Version(major, minor, patch, bool(draft))
        if not (
            major == 1 and ((minor == 0 and patch >= 0) or (minor, patch) == (1, 0))
        ):
            raise ParseError(
                f"the file is written for TOSA {version}; tosavk reads TOSA "
                f"{schema.SUPPORTED_VERSIONS}: export the model for TOSA 1.0",
                kind=Kind.UNSUPPORTED_VERSION,
            )
        return version

    def _check_features(self, position: int) -> None:
        if position == 0:
            return
        _, features = self._file.table(schema.COMPATIBILITY, position)
        if features >> 1:
            raise ParseError(
                f"the file asks for reader features {features:#x} (block-scaled "
                "types of TOSA 1.1), which tosavk does not have: export the model "
                "for TOSA 1.0",
                kind=Kind.UNSUPPORTED_FEATURE,
            )

    def _region(self, position: int) -> Region:
        file = self._file
        name_at, blocks_at = file.table(schema.REGION, position)
        name = self._name(name_at, "a region")
        places = file.references(blocks_at, MAX_BLOCKS, "blocks")
        self._blocks = _limited(self._blocks + len(places), MAX_BLOCKS, "blocks")
        if not places:
            raise ParseError(
                f"region {name!r} has no block", kind=Kind.INVALID_FLATBUFFER
            )
        blocks = tuple(self._block(place) for place in places)
        _unique([block.name for block in blocks], f"block of region {name!r}")
        return Region(name, blocks)

    def _block(self, position: int) -> Block:
        file = self._file
        record = file.table(schema.BLOCK, position)
        name_at, operators_at, tensors_at, inputs_at, outputs_at, shapes_at = record
        name = self._name(name_at, "a block")
        places = file.references(tensors_at, MAX_TENSORS, "tensors")
        self._tensors = _limited(self._tensors + len(places), MAX_TENSORS, "tensors")
        tensors: dict[str, Tensor] = {}
        foreign: dict[str, str] = {}
        for place in places:
            self._tensor(place, tensors, foreign)
        places = file.references(shapes_at, MAX_SHAPES, "shapes")
        self._shapes = _limited(self._shapes + len(places), MAX_SHAPES, "shapes")
        for place in places:
            self._shape(place, tensors, foreign)
        places = file.references(operators_at, MAX_OPERATORS, "operators")
        self._operators = _limited(
            self._operators + len(places), MAX_OPERATORS, "operators"
        )
        operators = tuple(
            self._operator(index, place, tensors, foreign)
            for index, place in enumerate(places)
        )
        for tensor, dtype in foreign.items():
            raise _foreign_type(dtype, f"tensor {tensor!r}", tensor=tensor)
        _single_producers(operators, tensors)
        block = Block(
            name,
            operators,
            tensors,
            self._names(inputs_at, "block inputs"),
            self._names(outputs_at, "block outputs"),
        )
        for what, names in (("input", block.inputs), ("output", block.outputs)):
            for symbol in names:
                if symbol not in tensors:
                    raise ParseError(
                        f"{what} {symbol!r} of block {name!r} is not among its tensors",
                        kind=Kind.UNKNOWN_SYMBOL,
                        tensor=symbol,
                    )
        return block

    def _tensor(
        self, position: int, tensors: dict[str, Tensor], foreign: dict[str, str]
    ) -> None:
        file = self._file
        (
            name_at,
            shape_at,
            type_id,
            data_at,
            variable,
            unranked,
            variable_name_at,
            offset,
            size,
            scale_type,
        ) = file.table(schema.TENSOR, position)
        name = self._name(name_at, "a tensor")
        if name in tensors or name in foreign:
            raise _duplicate(name, "tensor")
        dtype = _DTYPES.get(type_id)
        if dtype is None:
            foreign[name] = schema.LATER_DTYPES.get(type_id, f"type {type_id}")
            return
        if scale_type:
            foreign[name] = f"block-scaled {dtype.name}"
            return
        shape = self._dimensions(name, shape_at, unranked=bool(unranked))
        data = self._data(name, data_at, offset, size)
        if data is not None and shape is not None and min(shape, default=1) >= 1:
            need = serialized_bytes(dtype, shape)
            if len(data) < need:
                raise ParseError(
                    f"constant {name!r} ({dtype.name}, shape {shape}) needs {need} "
                    f"bytes of data; the file has {len(data)}: export the model again",
                    kind=Kind.INVALID_TENSOR_DATA,
                    tensor=name,
                )
        tensors[name] = Tensor(
            name, dtype, shape, data, bool(variable), file.string(variable_name_at)
        )

    def _dimensions(
        self, name: str, position: int, *, unranked: bool
    ) -> tuple[int, ...] | None:
        shape = self._file.ints(position, MAX_RANK, f"dimensions of {name!r}")
        if unranked:
            if shape:
                raise ParseError(
                    f"tensor {name!r} is unranked and yet has dimensions {shape}",
                    kind=Kind.UNRANKED_TENSOR_WITH_DIMENSIONS,
                    tensor=name,
                )
            return None
        if position == 0:
            raise ParseError(
                f"tensor {name!r} has no shape, and is not marked as unranked",
                kind=Kind.RANKED_TENSOR_WITHOUT_SHAPE,
                tensor=name,
            )
        for axis, size in enumerate(shape):
            if size < 1 and size != schema.UNKNOWN_DIMENSION:
                raise ParseError(
                    f"dimension {axis} of tensor {name!r} (shape {shape}) is {size}; "
                    "TOSA wants at least 1, or -1 for an unknown dimension",
                    kind=Kind.INVALID_DIMENSION,
                    tensor=name,
                )
        return shape

    def _data(
        self, name: str, data_at: int, offset: int, size: int
    ) -> memoryview | None:
        file = self._file
        data = file.bytes_view(data_at, f"the data of {name!r}")
        # The schema: an offset counts from the start of the file, and only above 1.
        if offset > 1:
            if len(data):
                raise ParseError(
                    f"tensor {name!r} has its data both inside and behind the "
                    "flatbuffer; export the model again",
                    kind=Kind.INVALID_TENSOR_DATA,
                    tensor=name,
                )
            if offset + size > file.size:
                raise ParseError(
                    f"the data of tensor {name!r} is at bytes {offset} to "
                    f"{offset + size}, but the file ends at {file.size}",
                    kind=Kind.EXTERNAL_DATA_RANGE,
                    tensor=name,
                )
            data = file.data[offset : offset + size]
        if not len(data):
            return None
        self._constant_bytes = _limited(
            self._constant_bytes + len(data), MAX_CONSTANT_BYTES, "bytes of constants"
        )
        return data

    def _shape(
        self, position: int, tensors: dict[str, Tensor], foreign: dict[str, str]
    ) -> None:
        file = self._file
        name_at, rank, data_at = file.table(schema.SHAPE, position)
        name = self._name(name_at, "a shape")
        if name in tensors or name in foreign:
            raise _duplicate(name, "shape")
        if rank > MAX_SHAPE_LENGTH:
            raise ParseError(
                f"shape {name!r} has {rank} numbers; at most {MAX_SHAPE_LENGTH} "
                "are read",
                kind=Kind.LIMIT_EXCEEDED,
                tensor=name,
            )
        view = file.bytes_view(data_at, f"the data of {name!r}")
        # A shape of no numbers has one value, whether or not the file spells it out.
        data = view if len(view) or rank == 0 else None
        if data is not None and len(data) < 8 * rank:
            raise ParseError(
                f"shape {name!r} of {rank} numbers needs {8 * rank} bytes of data; "
                f"the file has {len(data)}: export the model again",
                kind=Kind.INVALID_SHAPE_DATA,
                tensor=name,
            )
        tensors[name] = Tensor(name, DType.SHAPE, (rank,), data)

    def _operator(
        self,
        index: int,
        position: int,
        tensors: dict[str, Tensor],
        foreign: dict[str, str],
    ) -> Operator:
        file = self._file
        record = file.table(schema.OPERATOR, position)
        op_id, tag, attribute_at, inputs_at, outputs_at, location_at = record
        inputs = self._names(inputs_at, "operator inputs")
        outputs = self._names(outputs_at, "operator outputs")
        op = _OPERATORS.get(op_id)
        if op is None:
            raise _foreign_operator(index, op_id, outputs)
        self._edges = _limited(
            self._edges + len(inputs) + len(outputs), MAX_EDGES, "edges"
        )
        for symbol in (*inputs, *outputs):
            # A constant of a foreign type is reported by the operator that reads it.
            if symbol not in tensors and not (op is Op.CONST and symbol in foreign):
                raise _missing_symbol(
                    index, op, symbol, inputs, outputs, tensors, foreign
                )
        if tag != op_id or attribute_at == 0:
            raise _wrong_attribute(index, op, outputs, tag, attribute_at)
        location = ""
        if location_at:
            location = file.string(file.table(schema.LOCATION, location_at)[0])
        return Operator(
            index, op, inputs, outputs, self._attributes(op, attribute_at), location
        )

    def _attributes(self, op: Op, position: int) -> dict[str, Attribute]:
        file = self._file
        table = schema.ATTRIBUTES[op]
        record = file.table(table, position)
        return {
            field.name: self._attribute(field.kind, value)
            for field, value in zip(table.fields, record, strict=True)
        }

    def _attribute(self, kind: FieldKind, value: int) -> Attribute:
        if kind is FieldKind.BOOL:
            return bool(value)
        if kind is FieldKind.INTS:
            return self._file.ints(value, MAX_SHAPE_LENGTH, "numbers in an attribute")
        if kind is FieldKind.DTYPE:
            # An unknown type stays a number, which no type rule admits.
            return _DTYPES.get(value, value)
        if kind is FieldKind.STRING:
            return self._file.string(value)
        if kind is FieldKind.BYTES:
            return bytes(self._file.bytes_view(value, "an attribute"))
        return value

    def _names(self, position: int, what: str) -> tuple[str, ...]:
        file = self._file
        return tuple(
            [file.string(place) for place in file.references(position, MAX_EDGES, what)]
        )

    def _name(self, position: int, what: str) -> str:
        if position == 0:
            raise ParseError(f"{what} in the file has no name", kind=Kind.MISSING_NAME)
        name = self._file.string(position)
        if not name:
            raise ParseError(
                f"{what} in the file has an empty name", kind=Kind.EMPTY_NAME
            )
        if len(name) > MAX_NAME_BYTES // 4 and len(name.encode()) > MAX_NAME_BYTES:
            raise ParseError(
                f"{what} has a name of {len(name.encode())} bytes "
                f"({name[:40]!r}...); at most {MAX_NAME_BYTES} are read",
                kind=Kind.LIMIT_EXCEEDED,
            )
        return name


def _limited(count: int, limit: int, what: str) -> int:
    if count > limit:
        raise ParseError(
            f"the file has {count} {what}; at most {limit} are read",
            kind=Kind.LIMIT_EXCEEDED,
        )
    return count


def _duplicate(name: str, what: str) -> ParseError:
    return ParseError(
        f"the name {name!r} of a {what} is used twice; names must be unique",
        kind=Kind.DUPLICATE_NAME,
        tensor=name,
    )


def _unique(names: Sequence[str], what: str) -> None:
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ParseError(
            f"the name {repeated!r} of a {what} is used twice; names must be unique",
            kind=Kind.DUPLICATE_NAME,
        )


def _single_producers(
    operators: Sequence[Operator], tensors: dict[str, Tensor]
) -> None:
    producers: dict[str, Operator] = {}
    for operator in operators:
        for name in operator.outputs:
            # Every write of a variable names it.
            if name in producers and not tensors[name].variable:
                raise ParseError(
                    f"tensor {name!r} is written by {producers[name]} and by "
                    f"{operator}; a tensor has one producer",
                    kind=Kind.MULTIPLE_PRODUCERS,
                    operator=operator,
                    tensor=name,
                )
            producers[name] = operator


def _place(index: int, name: str, outputs: Sequence[str]) -> OperatorName:
    return OperatorName(index, name, outputs[0] if outputs else "")


def _text(place: OperatorName) -> str:
    output = f" ({place.output!r})" if place.output else ""
    return f"operator {place.index} {place.op}{output}"


def _foreign_operator(index: int, op_id: int, outputs: Sequence[str]) -> ParseError:
    name = schema.LATER_OPERATORS.get(op_id)
    if name is None:
        place = _place(index, f"number {op_id}", outputs)
        return ParseError(
            f"{_text(place)} is no operator of TOSA 1.0 or 1.1; "
            "the file is damaged or made for a later version: export it for TOSA 1.0",
            kind=Kind.UNKNOWN_OPERATOR,
            operator=place,
        )
    place = _place(index, name, outputs)
    return ParseError(
        f"{_text(place)} belongs to TOSA 1.1; tosavk runs the operators of TOSA 1.0: "
        "export the model for TOSA 1.0",
        kind=Kind.UNSUPPORTED_OPERATOR,
        operator=place,
    )


def _foreign_type(
    dtype: str, where: str, *, tensor: str, operator: OperatorName | None = None
) -> ParseError:
    if dtype.startswith("type "):
        return ParseError(
            f"{where} has an unknown data type ({dtype}); export the model again",
            kind=Kind.UNKNOWN_DATA_TYPE,
            operator=operator,
            tensor=tensor,
        )
    return ParseError(
        f"{where} has data type {dtype}, which belongs to TOSA 1.1; tosavk runs the "
        "types of TOSA 1.0: export the model for TOSA 1.0",
        kind=Kind.UNSUPPORTED_DATA_TYPE,
        operator=operator,
        tensor=tensor,
    )


def _missing_symbol(
    index: int,
    op: Op,
    symbol: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    tensors: dict[str, Tensor],
    foreign: dict[str, str],
) -> ParseError:
    place = _place(index, op.name, outputs)
    if symbol in foreign:

        def types(names: Sequence[str]) -> str:
            shown = [
                tensors[name].dtype.name if name in tensors else foreign.get(name, "?")
                for name in names[:_TYPES_IN_MESSAGE]
            ]
            return ", ".join(shown) + (", ..." if len(shown) < len(names) else "")

        return _foreign_type(
            foreign[symbol],
            f"{_text(place)} has types {types(inputs)} -> {types(outputs)}: "
            f"tensor {symbol!r}",
            tensor=symbol,
            operator=place,
        )
    return ParseError(
        f"{_text(place)} names {symbol!r}, which is not among the tensors and shapes "
        "of its block",
        kind=Kind.UNKNOWN_SYMBOL,
        operator=place,
        tensor=symbol,
    )


def _wrong_attribute(
    index: int, op: Op, outputs: Sequence[str], tag: int, attribute_at: int
) -> ParseError:
    place = _place(index, op.name, outputs)
    if tag == 0 or attribute_at == 0:
        return ParseError(
            f"{_text(place)} has no attribute table; export the model again",
            kind=Kind.MISSING_ATTRIBUTE,
            operator=place,
        )
    found = f"that of {_OPERATORS[tag].name}" if tag in _OPERATORS else f"number {tag}"
    return ParseError(
        f"{_text(place)} has the wrong attribute table ({found}); "
        "export the model again",
        kind=Kind.ATTRIBUTE_MISMATCH,
        operator=place,
    )
