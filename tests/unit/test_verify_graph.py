"""The rules of whole graphs: encodings, flow of data, open dimensions, regions."""

import dataclasses
import time

import pytest

from harness.tosa_programs import program
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.errors import Kind, VerifyError
from tosavk.lowering.graph import Block, Graph, Op, Operator, Region, Tensor, Version
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.verify import verify

F32 = DType.FP32


def refused(
    graph: Graph, shapes: dict[str, tuple[int, ...]] | None = None
) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify(graph, shapes=shapes)
    return caught.value


def graph_of(
    operators: list[tuple[Op, tuple[str, ...], tuple[str, ...]]],
    tensors: list[Tensor],
    inputs: tuple[str, ...] = ("x",),
    outputs: tuple[str, ...] = ("y",),
) -> Graph:
    block = Block(
        "main",
        tuple(
            Operator(index, op, given, made)
            for index, (op, given, made) in enumerate(operators)
        ),
        {tensor.name: tensor for tensor in tensors},
        inputs,
        outputs,
    )
    return Graph(Version(1, 0, 0, draft=False), (Region("main", (block,)),))


def vectors(*names: str) -> list[Tensor]:
    return [Tensor(name, F32, (3,)) for name in names]


def test_a_graph_in_order_keeps_its_order() -> None:
    graph = program("conv2d").graph()
    assert verify(graph).main.operators == graph.main.operators


def test_operators_are_put_in_order() -> None:
    graph = graph_of(
        [
            (Op.ABS, ("b",), ("y",)),
            (Op.EXP, ("x",), ("a",)),
            (Op.SIN, ("x",), ("c",)),
            (Op.COS, ("a",), ("b",)),
        ],
        vectors("x", "y", "a", "b", "c"),
    )
    assert [o.op for o in verify(graph).main.operators] == [
        Op.EXP,
        Op.SIN,
        Op.COS,
        Op.ABS,
    ]
    assert [o.index for o in verify(graph).main.operators] == [1, 2, 3, 0]


@pytest.mark.parametrize(
    ("operators", "names", "kind", "text"),
    [
        (
            [(Op.ADD, ("x", "b"), ("y",)), (Op.ABS, ("y",), ("b",))],
            "xyb",
            Kind.DATAFLOW_CYCLE,
            "operator 0 ADD ('y')",
        ),
        ([(Op.ADD, ("x", "y"), ("y",))], "xy", Kind.DATAFLOW_CYCLE, "own output"),
        ([(Op.ABS, ("z",), ("y",))], "xyz", Kind.DISCONNECTED_SYMBOL, "reads 'z'"),
        ([(Op.ABS, ("x",), ("z",))], "xyz", Kind.DISCONNECTED_SYMBOL, "never computed"),
        (
            [(Op.ABS, ("x",), ("y",)), (Op.ABS, ("y",), ("x",))],
            "xy",
            Kind.GRAPH_INPUT_PRODUCED,
            "operator 1 ABS ('x')",
        ),
        (
            [(Op.ABS, ("x",), ("y",)), (Op.EXP, ("x",), ("y",))],
            "xy",
            Kind.MULTIPLE_PRODUCERS,
            "operator 0 ABS ('y') and by operator 1 EXP ('y')",
        ),
        ([(Op.ABS, ("nowhere",), ("y",))], "xy", Kind.UNKNOWN_SYMBOL, "'nowhere'"),
        ([(Op.ABS, ("x",), ("nowhere",))], "xy", Kind.UNKNOWN_SYMBOL, "'nowhere'"),
    ],
)
def test_the_flow_of_data(
    operators: list[tuple[Op, tuple[str, ...], tuple[str, ...]]],
    names: str,
    kind: Kind,
    text: str,
) -> None:
    found = refused(graph_of(operators, vectors(*names)))
    assert found.kind == kind
    assert text in str(found)
    assert isinstance(found, InvalidArgument)


@pytest.mark.parametrize(
    ("inputs", "outputs", "kind"),
    [
        (("x", "x"), ("y",), Kind.DUPLICATE_NAME),
        (("gone",), ("y",), Kind.UNKNOWN_SYMBOL),
        (("x",), ("gone",), Kind.UNKNOWN_SYMBOL),
        (("x", "s"), ("y",), Kind.GRAPH_IO_MUST_BE_TENSOR),
        (("x",), ("s",), Kind.GRAPH_IO_MUST_BE_TENSOR),
    ],
)
def test_boundaries(
    inputs: tuple[str, ...], outputs: tuple[str, ...], kind: Kind
) -> None:
    tensors = [*vectors("x", "y"), Tensor("s", DType.SHAPE, (2,))]
    graph = graph_of([(Op.ABS, ("x",), ("y",))], tensors, inputs, outputs)
    assert refused(graph).kind == kind


@pytest.mark.parametrize(
    ("tensor", "kind", "text"),
    [
        (Tensor("c", F32, (0, 4)), Kind.INVALID_DIMENSION, "dimension 0 of tensor 'c'"),
        (Tensor("c", F32, (1,) * 7), Kind.INVALID_RANK, "rank 7"),
        (Tensor("c", F32, (1 << 29,)), Kind.TENSOR_SIZE_LIMIT, "2147483648 bytes"),
        (Tensor("c", F32, (1 << 31, 1 << 31)), Kind.TENSOR_SIZE_LIMIT, "at most"),
        (Tensor("c", DType.SHAPE, (17,)), Kind.SHAPE_VALUE_LIMIT, "17 numbers"),
        (
            Tensor("c", DType.BOOL, (3,), memoryview(b"\0\1\2")),
            Kind.INVALID_TENSOR_DATA,
            "the byte 2",
        ),
        (
            Tensor("c", DType.INT4, (3,), memoryview(b"\x11\x08")),
            Kind.INVALID_TENSOR_DATA,
            "-8",
        ),
        (
            Tensor("c", F32, (3,), memoryview(bytes(11))),
            Kind.INVALID_TENSOR_DATA,
            "needs 12 bytes of data; it has 11",
        ),
        (
            Tensor("c", F32, (-1,), memoryview(bytes(12))),
            Kind.INVALID_TENSOR_DATA,
            "need a known shape",
        ),
    ],
)
def test_encodings(tensor: Tensor, kind: Kind, text: str) -> None:
    graph = graph_of(
        [(Op.CONST, (), ("c",)), (Op.ABS, ("x",), ("y",))],
        [*vectors("x", "y"), tensor],
    )
    found = refused(graph)
    assert found.kind == kind
    assert found.tensor == "c"
    assert text in str(found)


def test_encodings_that_are_fine() -> None:
    # The high nibble behind the last INT4 element belongs to nobody.
    for tensor in (
        Tensor("c", DType.INT4, (3,), memoryview(b"\x79\x80")),
        Tensor("c", DType.BOOL, (2,), memoryview(b"\0\1\xff")),
        Tensor("c", F32, ((1 << 29) - 1,)),
    ):
        operators: list[tuple[Op, tuple[str, ...], tuple[str, ...]]]
        operators = [(Op.ABS, ("x",), ("y",))]
        if tensor.data is not None:
            operators.append((Op.CONST, (), ("c",)))
        tensors = [*vectors("x", "y"), tensor]
        verify(graph_of(operators, tensors))


def test_data_of_an_input_is_no_constant() -> None:
    x = Tensor("x", F32, (3,), memoryview(bytes(12)))
    graph = graph_of([(Op.ABS, ("x",), ("y",))], [x, *vectors("y")])
    assert verify(graph).main.tensors["x"].data is None
    lonely = graph_of([(Op.ABS, ("x",), ("y",))], [x, *vectors("y")], inputs=())
    found = refused(lonely)
    assert found.kind == Kind.DISCONNECTED_SYMBOL
    assert "CONST operator" in str(found)


def open_graph() -> Graph:
    b = Builder()
    x = b.input("x", F32, (-1, 4, -1))
    y = b.op(Op.ABS, [x], dtype=F32, shape=(-1, 4, -1))
    z = b.op(Op.REDUCE_SUM, [y], dtype=F32, shape=(-1, 4, 1), axis=2, name="z")
    b.output(z)
    return read_graph(b.build())


def test_open_dimensions_are_resolved() -> None:
    graph = verify(open_graph(), shapes={"x": (5, 4, 7)})
    shapes = {name: tensor.shape for name, tensor in graph.main.tensors.items()}
    assert shapes == {"x": (5, 4, 7), "abs_1": (5, 4, 7), "z": (5, 4, 1)}


@pytest.mark.parametrize(
    ("shapes", "kind", "text"),
    [
        (
            {},
            Kind.UNKNOWN_SHAPE,
            "input 'x' has shape ?x4x?: dimensions 0, 2 must be given; "
            "give --shape x=1x4x1",
        ),
        ({"x": (5, 3, 7)}, Kind.INVALID_SHAPE, "5x3x7 given for it does not fit"),
        ({"x": (5, 4)}, Kind.INVALID_SHAPE, "5x4 given"),
        ({"x": (0, 4, 7)}, Kind.INVALID_SHAPE, "0x4x7 given"),
        ({"x": (5, 4, -1)}, Kind.INVALID_SHAPE, "5x4x-1 given"),
        (
            {"x": (5, 4, 7), "w": (1,)},
            Kind.UNKNOWN_SYMBOL,
            "'w', which is no input of the program; its inputs are 'x'",
        ),
        ({"x": (1 << 30, 4, 7)}, Kind.TENSOR_SIZE_LIMIT, "'x'"),
    ],
)
def test_shapes_that_do_not_help(
    shapes: dict[str, tuple[int, ...]], kind: Kind, text: str
) -> None:
    found = refused(open_graph(), shapes)
    assert found.kind == kind
    assert text in str(found)
    assert found.tensor in ("x", "w")


def test_a_given_shape_that_a_rule_refuses_names_the_operator() -> None:
    b = Builder()
    x = b.input("x", F32, (1, -1, -1, 1))
    b.output(
        b.op(
            Op.MAX_POOL2D,
            [x],
            dtype=F32,
            shape=(1, -1, -1, 1),
            kernel=(2, 2),
            stride=(2, 2),
            pad=(0, 0, 0, 0),
        )
    )
    graph = b.graph()
    assert verify(graph, shapes={"x": (1, 4, 6, 1)}).main.tensors[
        graph.main.outputs[0]
    ].shape == (1, 2, 3, 1)
    found = refused(graph, {"x": (1, 5, 6, 1)})
    assert "stride 2 in y does not divide" in str(found)


def test_unranked_tensors() -> None:
    graph = graph_of(
        [(Op.ABS, ("x",), ("y",))], [Tensor("x", F32, None), Tensor("y", F32, None)]
    )
    assert "unranked" in str(refused(graph))
    assert verify(graph, shapes={"x": (2, 3)}).main.tensors["y"].shape == (2, 3)


def test_a_shape_that_no_rule_gives() -> None:
    b = Builder()
    x = b.input("x", F32, (3,))
    b.op_list(Op.CUSTOM, [x], outputs=[(F32, (-1,))], operator_name="filter")
    found = refused(b.graph())
    assert found.kind == Kind.UNKNOWN_SHAPE
    assert "no operator's rule" in str(found)


# Regions.


def branches(then: tuple[int, ...], other: tuple[int, ...]) -> Builder:
    b = Builder()
    for name, shape in (("then", then), ("other", other)):
        r = b.region(name)
        r.output(r.exp(r.input("x", F32, shape)))
    return b


def conditional(b: Builder, condition: Tensor, x: Tensor, **names: str) -> Graph:
    attributes = {"then_graph": "then", "else_graph": "other", **names}
    outputs = [(F32, x.shape or ())]
    (y,) = b.op_list(Op.COND_IF, [condition, x], outputs=outputs, **attributes)
    b.output(y)
    return read_graph(b.build())


def test_regions_take_the_shapes_of_their_callers() -> None:
    b = Builder()
    for name in ("then", "other"):
        r = b.region(name)
        inner = r.input("x", F32, (-1, 3))
        r.output(r.op(Op.EXP, [inner], dtype=F32, shape=(-1, 3)))
    condition = b.input("c", DType.BOOL, (1,))
    x = b.input("x", F32, (5, 3))
    graph = verify(conditional(b, condition, x))
    region = next(r for r in graph.regions if r.name == "other")
    assert {t.shape for t in region.blocks[0].tensors.values()} == {(5, 3)}


@pytest.mark.parametrize(
    ("then", "other", "condition", "names", "text"),
    [
        ((3,), (2,), (DType.BOOL, ()), {}, "inputs of its else_graph are FP32 2"),
        ((4,), (3,), (DType.BOOL, ()), {}, "inputs of its then_graph are FP32 4"),
        ((3,), (3,), (DType.BOOL, (2,)), {}, "must be one BOOL"),
        ((3,), (3,), (DType.BOOL, ()), {"then_graph": "gone"}, "'gone' is no region"),
    ],
)
def test_broken_branches(
    then: tuple[int, ...],
    other: tuple[int, ...],
    condition: tuple[DType, tuple[int, ...]],
    names: dict[str, str],
    text: str,
) -> None:
    b = branches(then, other)
    graph = conditional(b, b.input("c", *condition), b.input("x", F32, (3,)), **names)
    found = refused(graph)
    assert found.kind == Kind.INVALID_CONTROL_FLOW
    assert text in str(found)


def test_a_condition_that_is_no_boolean() -> None:
    b = branches((3,), (3,))
    graph = conditional(b, b.input("c", DType.INT8, ()), b.input("x", F32, (3,)))
    assert refused(graph).kind == Kind.UNSUPPORTED_TYPE_PROFILE


def test_errors_inside_a_region_are_found() -> None:
    b = branches((3,), (3,))
    broken = b.region("broken")
    x = broken.input("x", F32, (3,))
    broken.output(broken.op(Op.REVERSE, [x], dtype=F32, shape=(3,), axis=9))
    graph = conditional(b, b.input("c", DType.BOOL, ()), b.input("x", F32, (3,)))
    assert "axis=9" in str(refused(graph))


def test_a_region_that_calls_itself() -> None:
    b = Builder()
    for name in ("test", "body"):
        r = b.region(name)
        x = r.input("x", DType.BOOL, ())
        if name == "body":
            attributes = {"cond_graph": "test", "body_graph": "body"}
            outputs = [(DType.BOOL, ())]
            (x,) = r.op_list(Op.WHILE_LOOP, [x], outputs=outputs, **attributes)
        r.output(x)
    x = b.input("x", DType.BOOL, ())
    (y,) = b.op_list(
        Op.WHILE_LOOP,
        [x],
        outputs=[(DType.BOOL, ())],
        cond_graph="test",
        body_graph="body",
    )
    b.output(y)
    found = refused(b.graph())
    assert found.kind == Kind.NESTING_LIMIT
    assert "main -> body -> body" in str(found)


@pytest.mark.parametrize("depth", [6, 7])
def test_nesting_is_limited(depth: int) -> None:
    b = Builder()
    regions = [b, *(b.region(f"r{n}") for n in range(depth))]
    for number, r in reversed(list(enumerate(regions))):
        c = r.input("c", DType.BOOL, ())
        if number == depth:
            r.output(r.logical_not(c))
            continue
        name = f"r{number}"
        (y,) = r.op_list(
            Op.COND_IF,
            [c, c],
            outputs=[(DType.BOOL, ())],
            then_graph=name,
            else_graph=name,
        )
        r.output(y)
    if depth == 6:
        verify(b.graph())
    else:
        assert refused(b.graph()).kind == Kind.NESTING_LIMIT


def test_nesting_counts_regions_that_were_verified_before() -> None:
    b = Builder()
    regions = [b.region(f"r{n}") for n in range(7)]

    def call(caller: Builder, c: Tensor, name: str) -> Tensor:
        outputs = [(DType.BOOL, ())]
        names = {"then_graph": name, "else_graph": name}
        return caller.op_list(Op.COND_IF, [c, c], outputs=outputs, **names)[0]

    # r0 to r3 and r4 to r6 are chains; main calls r0 first, and r6 calls it too.
    for number, r in reversed(list(enumerate(regions))):
        c = r.input("c", DType.BOOL, ())
        following = {3: "", 6: "r0"}.get(number, f"r{number + 1}")
        r.output(call(r, c, following) if following else r.logical_not(c))
    c = b.input("c", DType.BOOL, ())
    b.output(call(b, c, "r0"))
    verify(dataclasses.replace(b.graph(), regions=b.graph().regions[:5]))
    b.output(call(b, c, "r4"))
    assert refused(b.graph()).kind == Kind.NESTING_LIMIT


def test_a_region_called_with_two_shapes() -> None:
    b = Builder()
    r = b.region("r")
    inner = r.input("x", F32, (-1,))
    r.output(r.op(Op.EXP, [inner], dtype=F32, shape=(-1,)))
    condition = b.input("c", DType.BOOL, ())
    for size in (3, 4):
        (y,) = b.op_list(
            Op.COND_IF,
            [condition, b.input(f"x{size}", F32, (size,))],
            outputs=[(F32, (size,))],
            then_graph="r",
            else_graph="r",
        )
        b.output(y)
    found = refused(b.graph())
    assert found.kind == Kind.INVALID_CONTROL_FLOW
    assert "different shapes" in str(found)


def test_verifying_twice_changes_nothing() -> None:
    for name in ("while_loop", "cond_if", "resize", "variable"):
        once = verify(program(name).graph())
        assert verify(once) == once


def test_a_long_program_takes_linear_time() -> None:
    def seconds(length: int) -> float:
        names = [f"t{n}" for n in range(length + 1)]
        graph = graph_of(
            [(Op.ABS, (names[n],), (names[n + 1],)) for n in reversed(range(length))],
            vectors(*names),
            (names[0],),
            tuple(names[1:]),
        )
        start = time.perf_counter()
        verify(graph)
        return time.perf_counter() - start

    assert seconds(8000) < 40 * max(seconds(1000), 0.01)


def test_the_graph_given_is_not_changed() -> None:
    graph = open_graph()
    before = dataclasses.replace(graph)
    verify(graph, shapes={"x": (5, 4, 7)})
    assert graph == before
    assert graph.main.tensors["x"].shape == (-1, 4, -1)
