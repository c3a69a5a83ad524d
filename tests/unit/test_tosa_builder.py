"""Authoring: what the builder and the writer make is what the reader reads."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest

from harness.shared import conformance_tests, shared_root
from harness.tosa_programs import PROGRAMS, program
from tosavk.core.dtypes import DType, unpack_serialized
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.errors import ParseError, VerifyError
from tosavk.lowering.graph import Graph, Op, Region, Version
from tosavk.lowering.operators import SPECS
from tosavk.lowering.tosa import schema
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.tosa.writer import write_graph
from tosavk.lowering.verify import verify


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_survives_writing_and_reading(name: str) -> None:
    builder = program(name)
    graph = builder.graph()
    assert read_graph(builder.build()) == graph
    assert verify(graph) == graph


def test_the_programs_use_every_operator() -> None:
    used = {
        operator.op
        for name in PROGRAMS
        for region in program(name).graph().regions
        for operator in region.blocks[0].operators
    }
    assert used == set(Op) == set(SPECS) == set(schema.ATTRIBUTES)


def test_every_operator_has_a_method() -> None:
    own = {Op.VARIABLE: "variable", Op.CONST: "const", Op.CONST_SHAPE: "const_shape"}
    for op in Op:
        assert callable(getattr(Builder, own.get(op, op.name.lower())))


def readable() -> list[Graph]:
    graphs: list[Graph] = []
    models = sorted((shared_root() / "models").glob("*.tosa"))
    for path in [*(t / "test.tosa" for t in conformance_tests()), *models]:
        try:
            graphs.append(read_graph(path.read_bytes()))
        except ParseError:
            continue
    return graphs


@pytest.mark.skipif(not conformance_tests(), reason="the corpus is not there")
def test_files_of_others_survive_writing_and_reading() -> None:
    graphs = readable()
    assert len(graphs) > 800
    for graph in graphs:
        assert read_graph(write_graph(graph)) == graph


def test_constants_are_aligned_in_the_file() -> None:
    builder = Builder()
    for length in range(1, 12):
        builder.const(np.zeros(length, np.int8))
    data = builder.build()
    for tensor in read_graph(data).main.tensors.values():
        assert tensor.data is not None
        start = np.frombuffer(tensor.data, np.uint8).ctypes.data
        assert (start - np.frombuffer(data, np.uint8).ctypes.data) % 8 == 0


def test_version_and_location_are_written() -> None:
    builder = Builder(version=Version(1, 1, 0, draft=True))
    builder.output(builder.abs(builder.input("x", DType.FP32, (3,))))
    graph = builder.graph()
    assert read_graph(builder.build()).version == graph.version
    operator = dataclasses.replace(graph.main.operators[0], location="model.py:7")
    block = dataclasses.replace(graph.main, operators=(operator,))
    graph = dataclasses.replace(graph, regions=(Region("main", (block,)),))
    assert read_graph(write_graph(graph)) == graph


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (1.5, None, DType.FP32),
        ([1, 2], None, DType.INT32),
        ([True], None, DType.BOOL),
        (np.float16(1), None, DType.FP16),
        (np.zeros(3, ml_dtypes.bfloat16), None, DType.BF16),
        (np.zeros(3, ml_dtypes.int4), None, DType.INT4),
        (np.zeros(3, ml_dtypes.float8_e5m2), None, DType.FP8E5M2),
        ([1, -7], DType.INT4, DType.INT4),
        ([1 << 40], DType.INT48, DType.INT48),
    ],
)
def test_types_of_constants(value: object, dtype: DType | None, want: DType) -> None:
    tensor = Builder().const(value, dtype)  # type: ignore[arg-type]
    assert tensor.dtype is want
    assert tensor.data is not None
    assert tensor.shape is not None
    found = unpack_serialized(want, tensor.data, tensor.shape)
    assert np.array_equal(found.astype(np.float64), np.asarray(value, np.float64))


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.zeros(3), None, "float64 has no type of its own"),
        (np.zeros(3, np.float32), DType.INT8, "which is int8 in NumPy"),
        ([1.5], DType.INT32, "not whole"),
        ([300], DType.INT8, "does not fit INT8"),
        ([-9], DType.INT4, "-8..7"),
        ("text", None, "no array of numbers"),
    ],
)
def test_constants_that_make_no_sense(
    value: object, dtype: DType | None, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        Builder().const(value, dtype)  # type: ignore[arg-type]


def test_mistakes_are_found_when_they_are_made() -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (2, 3))
    with pytest.raises(VerifyError, match="different ranks"):
        b.add(x, b.const(1.0))
    with pytest.raises(VerifyError, match="types FP32, INT32"):
        b.add(x, b.const([[1]]))
    with pytest.raises(InvalidArgument, match="no attribute 'axes'"):
        b.op(Op.REDUCE_SUM, [x], axes=1)
    with pytest.raises(InvalidArgument, match="does not belong"):
        b.abs(Builder().input("x", DType.FP32, (2, 3)))
    with pytest.raises(InvalidArgument, match="unique"):
        b.input("x", DType.FP32, (2, 3))
    with pytest.raises(InvalidArgument, match="unknown dimensions"):
        b.abs(b.input("open", DType.FP32, (-1, 3)))
    with pytest.raises(InvalidArgument, match="2 outputs"):
        b.op(Op.RFFT2D, [b.input("image", DType.FP32, (1, 2, 4))])
    with pytest.raises(InvalidArgument, match="cannot be inferred"):
        b.op(Op.VARIABLE_READ, [b.variable("v", DType.FP32, (3,), None)])


def test_a_failed_call_adds_nothing() -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (2, 3))
    before = b.graph()
    with pytest.raises(VerifyError):
        b.reverse(x, 2)
    assert b.graph() == before


def test_overrides_make_broken_programs() -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (2, 3))
    b.output(b.op(Op.ADD, [x], dtype=DType.FP32, shape=(9,), name="wrong"))
    graph = read_graph(b.build())
    assert graph.main.tensors["wrong"].shape == (9,)
    with pytest.raises(VerifyError, match="has 1 input"):
        verify(graph)


def test_attributes_that_do_not_fit_their_field() -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (2,))
    b.op(Op.ARGMAX, [x], dtype=DType.INT32, shape=(), axis="three")
    with pytest.raises(InvalidArgument, match="axis='three'"):
        b.build()
