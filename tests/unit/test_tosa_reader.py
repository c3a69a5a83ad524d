"""Reading: every way in which a file can be wrong ends in one typed error."""

import mmap
import time
from pathlib import Path

import numpy as np
import pytest

from harness.tosa_programs import Nested, encode, program, table
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.errors import Kind, ParseError
from tosavk.lowering.graph import Op
from tosavk.lowering.tosa import reader, schema
from tosavk.lowering.tosa.reader import read_graph


def error(data: bytes) -> ParseError:
    with pytest.raises(ParseError) as caught:
        read_graph(data)
    assert isinstance(caught.value, InvalidArgument)
    return caught.value


def operator(
    op: int, inputs: list[str], outputs: list[str], **fields: object
) -> Nested:
    values: dict[str, object] = {
        "op": op,
        "attribute_type": op if op < 256 else 0,
        "attribute": (schema.Table("empty"), {}),
        "inputs": inputs,
        "outputs": outputs,
    }
    values.update(fields)
    return table(schema.OPERATOR, **{k: v for k, v in values.items() if v is not None})


def tensor(name: str, dtype: int = 7, shape: list[int] | None = None) -> Nested:
    return table(schema.TENSOR, name=name, type=dtype, shape=shape or [3])


VERSION = table(schema.VERSION, _major=1, _minor=0, _patch=0, _draft=0)
IDENTITY = operator(Op.IDENTITY, ["x"], ["y"])
TENSORS = [tensor("x"), tensor("y")]


def block(**fields: object) -> Nested:
    values: dict[str, object] = {
        "name": "main",
        "operators": [IDENTITY],
        "tensors": TENSORS,
        "inputs": ["x"],
        "outputs": ["y"],
    }
    values.update(fields)
    return table(schema.BLOCK, **{k: v for k, v in values.items() if v is not None})


def region(*blocks: Nested, **fields: object) -> Nested:
    values: dict[str, object] = {"name": "main", "blocks": list(blocks) or [block()]}
    values.update(fields)
    return table(schema.REGION, **{k: v for k, v in values.items() if v is not None})


def file(*regions: Nested, **fields: object) -> bytes:
    values: dict[str, object] = {
        "version": VERSION,
        "regions": list(regions) or [region()],
    }
    values.update(fields)
    kept = {k: v for k, v in values.items() if v is not None}
    return encode(table(schema.GRAPH, **kept))


def with_block(**fields: object) -> bytes:
    return file(region(block(**fields)))


def test_the_plain_file_is_read() -> None:
    graph = read_graph(file())
    assert graph.main.operators[0].op is Op.IDENTITY
    assert graph.main.tensors["x"].shape == (3,)
    assert str(graph.version) == "1.0.0"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Kind.EMPTY_INPUT),
        (b"TOSA", Kind.MISSING_IDENTIFIER),
        (bytes(4096), Kind.MISSING_IDENTIFIER),
        (b"\xff\xff\xff\xffTOSA", Kind.INVALID_FLATBUFFER),
        (b"\0\0\0\0TOSA", Kind.INVALID_FLATBUFFER),
        (b"\x08\0\0\0TOSA\x04\0\0\0", Kind.INVALID_FLATBUFFER),
        (file(version=None), Kind.UNSUPPORTED_VERSION),
        (file(regions=None), Kind.INVALID_FLATBUFFER),
        (file(region(blocks=[])), Kind.INVALID_FLATBUFFER),
        (file(region(name=None)), Kind.MISSING_NAME),
        (file(region(name="")), Kind.EMPTY_NAME),
        (file(region(), region()), Kind.DUPLICATE_NAME),
        (file(region(block(), block())), Kind.DUPLICATE_NAME),
        (with_block(name=None), Kind.MISSING_NAME),
        (with_block(tensors=[*TENSORS, tensor("x")]), Kind.DUPLICATE_NAME),
        (
            with_block(shapes=[table(schema.SHAPE, name="x", rank=1)]),
            Kind.DUPLICATE_NAME,
        ),
        (with_block(tensors=[*TENSORS, tensor("")]), Kind.EMPTY_NAME),
        (with_block(tensors=[*TENSORS, tensor("z" * 1025)]), Kind.LIMIT_EXCEEDED),
        (with_block(tensors=[*TENSORS, tensor("é" * 600)]), Kind.LIMIT_EXCEEDED),
        (with_block(tensors=[*TENSORS, tensor("z", 0)]), Kind.UNKNOWN_DATA_TYPE),
        (with_block(tensors=[*TENSORS, tensor("z", 99)]), Kind.UNKNOWN_DATA_TYPE),
        (with_block(tensors=[*TENSORS, tensor("z", 17)]), Kind.UNSUPPORTED_DATA_TYPE),
        (with_block(tensors=[*TENSORS, tensor("z", 10)]), Kind.UNKNOWN_DATA_TYPE),
        (
            with_block(tensors=[*TENSORS, tensor("z", 7, [2, 0])]),
            Kind.INVALID_DIMENSION,
        ),
        (with_block(tensors=[*TENSORS, tensor("z", 7, [-2])]), Kind.INVALID_DIMENSION),
        (with_block(tensors=[*TENSORS, tensor("z", 7, [1] * 33)]), Kind.LIMIT_EXCEEDED),
        (
            with_block(tensors=[*TENSORS, table(schema.TENSOR, name="z", type=7)]),
            Kind.RANKED_TENSOR_WITHOUT_SHAPE,
        ),
        (
            with_block(
                tensors=[
                    *TENSORS,
                    table(schema.TENSOR, name="z", type=7, shape=[3], is_unranked=1),
                ]
            ),
            Kind.UNRANKED_TENSOR_WITH_DIMENSIONS,
        ),
        (
            with_block(shapes=[table(schema.SHAPE, name="s", rank=2, data=bytes(15))]),
            Kind.INVALID_SHAPE_DATA,
        ),
        (
            with_block(shapes=[table(schema.SHAPE, name="s", rank=65)]),
            Kind.LIMIT_EXCEEDED,
        ),
        (
            with_block(operators=[operator(Op.ABS, ["x"], ["z"])]),
            Kind.UNKNOWN_SYMBOL,
        ),
        (with_block(inputs=["nowhere"]), Kind.UNKNOWN_SYMBOL),
        (with_block(outputs=["nowhere"]), Kind.UNKNOWN_SYMBOL),
        (with_block(operators=[IDENTITY, IDENTITY]), Kind.MULTIPLE_PRODUCERS),
        (
            with_block(operators=[operator(Op.IDENTITY, ["x"], ["y", "y"])]),
            Kind.MULTIPLE_PRODUCERS,
        ),
        (
            with_block(operators=[operator(Op.ABS, ["x"], ["y"], attribute=None)]),
            Kind.MISSING_ATTRIBUTE,
        ),
        (
            with_block(operators=[operator(Op.ABS, ["x"], ["y"], attribute_type=0)]),
            Kind.MISSING_ATTRIBUTE,
        ),
        (
            with_block(operators=[operator(Op.ABS, ["x"], ["y"], attribute_type=15)]),
            Kind.ATTRIBUTE_MISMATCH,
        ),
        (with_block(operators=[operator(0, ["x"], ["y"])]), Kind.UNKNOWN_OPERATOR),
        (with_block(operators=[operator(101, ["x"], ["y"])]), Kind.UNKNOWN_OPERATOR),
        (with_block(operators=[operator(76, ["x"], ["y"])]), Kind.UNSUPPORTED_OPERATOR),
        (
            file(compatibility=table(schema.COMPATIBILITY, features=2)),
            Kind.UNSUPPORTED_FEATURE,
        ),
    ],
)
def test_a_broken_file_is_refused_by_kind(data: bytes, kind: Kind) -> None:
    found = error(data)
    assert found.kind == kind, str(found)
    assert len(str(found)) > 20


def of_version(major: int, minor: int, patch: int, *, draft: bool = False) -> bytes:
    numbers = {"_major": major, "_minor": minor, "_patch": patch, "_draft": int(draft)}
    return file(version=table(schema.VERSION, **numbers))


@pytest.mark.parametrize(
    "version", [(1, 0, 0), (1, 0, 2), (1, 0, 9), (1, 1, 0)], ids=str
)
@pytest.mark.parametrize("draft", [False, True])
def test_versions_that_are_read(version: tuple[int, int, int], *, draft: bool) -> None:
    found = read_graph(of_version(*version, draft=draft)).version
    assert (found.major, found.minor, found.patch, found.draft) == (*version, draft)


@pytest.mark.parametrize(
    "version",
    [(1, 0, -1), (1, 1, 1), (1, 2, 0), (2, 0, 0), (0, 90, 0), (-1, -1, -1)],
    ids=str,
)
def test_versions_that_are_refused(version: tuple[int, int, int]) -> None:
    found = error(of_version(*version))
    assert found.kind == Kind.UNSUPPORTED_VERSION
    assert ".".join(str(number) for number in version) in str(found)
    assert "1.0.x and 1.1.0" in str(found)


def test_an_absent_draft_flag_means_draft() -> None:
    version = table(schema.VERSION, _major=1, _minor=0, _patch=2)
    assert str(read_graph(file(version=version)).version) == "1.0.2-draft"


def test_a_foreign_operator_is_named_with_its_version() -> None:
    found = error(with_block(operators=[operator(100, ["x"], ["y"])]))
    assert "operator 0 MATMUL_T ('y')" in str(found)
    assert "TOSA 1.1" in str(found)
    assert found.operator is not None
    assert found.operator.op == "MATMUL_T"


def test_a_foreign_type_is_reported_by_the_operator_that_reads_it() -> None:
    found = error(
        with_block(
            tensors=[tensor("x", 17), tensor("y", 5)],
            operators=[
                operator(Op.CONST, [], ["x"]),
                operator(Op.ABS, ["x"], ["y"]),
            ],
            inputs=[],
        )
    )
    assert "operator 1 ABS ('y') has types INT64 -> INT32" in str(found)
    assert found.tensor == "x"


def test_constants_are_views_of_the_file() -> None:
    data = program("conv2d").build()
    graph = read_graph(data)
    weight = next(t for t in graph.main.tensors.values() if t.shape == (3, 3, 3, 2))
    assert weight.data is not None
    assert weight.data.readonly
    assert weight.data.obj is data
    assert np.frombuffer(weight.data, np.float32).tolist() == [1.0] * 54


def constant(count: int, /, **fields: object) -> bytes:
    values: dict[str, object] = {"name": "y", "type": 3, "shape": [5]}
    if count:
        values["data"] = bytes(number % 256 for number in range(1, count + 1))
    values.update(fields)
    return with_block(
        operators=[operator(Op.CONST, [], ["y"])],
        tensors=[table(schema.TENSOR, **values)],
        inputs=[],
    )


@pytest.mark.parametrize("size", [5, 8, 16, 200])
def test_padded_constants_are_read(size: int) -> None:
    data = read_graph(constant(size)).main.tensors["y"].data
    assert data is not None
    assert bytes(data[:5]) == b"\x01\x02\x03\x04\x05"


@pytest.mark.parametrize("size", [1, 4])
def test_short_constants_are_refused(size: int) -> None:
    found = error(constant(size))
    assert found.kind == Kind.INVALID_TENSOR_DATA
    assert found.tensor == "y"
    assert f"needs 5 bytes of data; the file has {size}" in str(found)


def test_data_behind_the_flatbuffer() -> None:
    length = len(constant(0, offset=1 << 32, size=5))
    data = constant(0, offset=length, size=5) + b"\x05\x04\x03\x02\x01"
    found = read_graph(data).main.tensors["y"].data
    assert found is not None
    assert bytes(found) == b"\x05\x04\x03\x02\x01"
    assert error(data[:-1]).kind == Kind.EXTERNAL_DATA_RANGE
    huge = constant(0, offset=(1 << 64) - 2, size=5)
    assert error(huge).kind == Kind.EXTERNAL_DATA_RANGE
    both = constant(5, offset=8, size=5)
    assert error(both).kind == Kind.INVALID_TENSOR_DATA


def test_a_shape_of_no_numbers_has_a_value() -> None:
    data = with_block(shapes=[table(schema.SHAPE, name="s", rank=0)])
    found = read_graph(data).main.tensors["s"]
    assert found.dtype is DType.SHAPE
    assert found.shape == (0,)
    assert found.data is not None


def test_unknown_and_unranked_shapes() -> None:
    unranked = table(schema.TENSOR, name="z", type=7, is_unranked=1)
    data = with_block(tensors=[*TENSORS, tensor("w", 7, [-1, 4]), unranked])
    tensors = read_graph(data).main.tensors
    assert tensors["w"].shape == (-1, 4)
    assert tensors["z"].shape is None


def test_an_unknown_accumulator_type_is_left_to_the_verifier() -> None:
    attribute = table(schema.ATTRIBUTES[Op.AVG_POOL2D], acc_type=99)
    data = with_block(
        operators=[operator(Op.AVG_POOL2D, ["x"], ["y"], attribute=attribute)]
    )
    assert read_graph(data).main.operators[0].attributes["acc_type"] == 99


def test_every_cut_of_a_file_is_refused() -> None:
    data = program("while_loop").build()
    whole = len(data.rstrip(b"\0")) + 1
    for length in range(whole):
        error(data[:length])


def test_overlapping_tables_cost_bounded_time() -> None:
    # A vector of regions that all are the same region, full of the same block.
    count = 900
    good = bytearray(file())
    graph_at = int.from_bytes(good[:4], "little")
    size = len(good)
    places = [size + 4 + 4 * n for n in range(count)]
    # Points the root's list of regions at a list behind the file, of one region each.
    vtable = graph_at - int.from_bytes(
        good[graph_at : graph_at + 4], "little", signed=True
    )
    field = graph_at + int.from_bytes(good[vtable + 6 : vtable + 8], "little")
    old = field + int.from_bytes(good[field : field + 4], "little")
    region_at = old + 4 + int.from_bytes(good[old + 4 : old + 8], "little")
    good[field : field + 4] = (size - field).to_bytes(4, "little")
    good += count.to_bytes(4, "little")
    for place in places:
        good += ((region_at - place) % (1 << 32)).to_bytes(4, "little")
    start = time.perf_counter()
    error(bytes(good))
    assert time.perf_counter() - start < 1


def test_a_file_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_MODEL_BYTES", 100)
    assert error(file()).kind == Kind.LIMIT_EXCEEDED


def test_counts_are_limited_over_the_whole_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = file(region(), region(name="other"))
    read_graph(two)
    for limit, value in (
        ("MAX_BLOCKS", 1),
        ("MAX_OPERATORS", 1),
        ("MAX_TENSORS", 3),
        ("MAX_EDGES", 3),
        ("MAX_REGIONS", 1),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(reader, limit, value)
            assert error(two).kind == Kind.LIMIT_EXCEEDED, limit


def test_other_bytes_are_read(tmp_path: Path) -> None:
    data = file()
    path = tmp_path / "model.tosa"
    path.write_bytes(data)
    assert read_graph(bytearray(data)) == read_graph(data)
    assert read_graph(memoryview(data).cast("I")) == read_graph(data)
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert len(read_graph(memoryview(mapped)).main.operators) == 1
