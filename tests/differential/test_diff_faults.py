"""Planted faults: what a diff must find, name, and not mistake for something else."""

import errno
import struct
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from harness.planted import Array, Fault, Planted, corrupts, healthy, plant
from tosavk.backends.vulkan.device import VulkanDevice, open_with
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.spirv import ShaderLibrary, catalogue_library
from tosavk.core.device import Device
from tosavk.core.dtypes import DType
from tosavk.core.errors import (
    DeviceCreationFailed,
    DeviceUnavailable,
    External,
    InvalidArgument,
    OutOfMemory,
)
from tosavk.differential.diff import DiffRequest, diff
from tosavk.differential.result import DiffResult, Ending, FindingKind, Verdict
from tosavk.lowering.graph import Graph, Op, Operator
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

SHAPE = (1, 7, 11)


def sample() -> Graph:
    """square -> sum -> clamp -> exp -> reduced, and a comparison of sum with x."""
    b = Builder()
    x = b.input("x", DType.FP32, SHAPE)
    square = b.mul(x, x, name="square")
    total = b.add(square, b.const(np.full((1, 1, 1), 0.1, np.float32)), name="total")
    clamped = b.clamp(total, 0.0, 6.0, name="clamped")
    power = b.exp(clamped, name="power")
    b.output(b.reduce_sum(power, 1, name="reduced"))
    b.output(b.greater(total, x, name="above"))
    return load_graph(b.build())


def run(
    patch: pytest.MonkeyPatch,
    backends: Mapping[str, Planted],
    *,
    graph: Graph | None = None,
    node_by_node: bool = True,
    reference: bool = False,
    given: Mapping[str, Array] | None = None,
    optional: bool = False,
) -> DiffResult:
    plant(patch, backends)
    return diff(
        DiffRequest(
            graph=graph or sample(),
            model="sample",
            backends=(*backends, *(("reference",) * reference)),
            given=given or {},
            node_by_node=node_by_node,
            optional=optional,
            children=None,
        )
    )


def operators(result: DiffResult) -> list[str]:
    """Tensors of the operator findings, in order, each once."""
    found = (f.tensor for f in result.findings if f.kind is FindingKind.OPERATOR)
    return list(dict.fromkeys(found))


def test_healthy_backends_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, {"one": healthy, "two": healthy}, reference=True)
    assert result.verdict is Verdict.AGREED, result.findings
    assert len(result.operators) == 6
    assert result.first_different is None
    assert not result.notes


@pytest.mark.parametrize(
    ("tensor", "op"),
    [("square", "MUL"), ("total", "ADD"), ("clamped", "CLAMP"), ("power", "EXP")],
)
def test_one_wrong_element_names_its_operator_only(
    monkeypatch: pytest.MonkeyPatch, tensor: str, op: str
) -> None:
    result = run(monkeypatch, {"good": healthy, "bad": corrupts(tensor)})
    assert result.verdict is Verdict.DIFFERENT
    assert result.first_different is not None
    assert (result.first_different.op, result.first_different.output) == (op, tensor)
    assert result.findings[0].operator == result.first_different
    assert operators(result) == [tensor]
    (wrong,) = (
        c for item in result.operators for c in item.comparisons if not c.agreed
    )
    assert wrong.worst is not None
    assert wrong.worst.index == (0, 0, 3)
    assert wrong.differing == 1
    assert wrong.error_map is not None
    assert any(f.kind is FindingKind.OUTPUT for f in result.findings)


def test_a_fault_does_not_hide_those_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = corrupts("square", "power")
    result = run(monkeypatch, {"good": healthy, "bad": bad})
    assert operators(result) == ["square", "power"]
    reruns = {c.tensor: c.rerun for item in result.operators for c in item.comparisons}
    assert reruns == {
        "square": False,
        "total": True,
        "clamped": True,
        "power": True,
        "reduced": True,
        "above": True,
    }


def test_the_odd_one_out_is_blamed_also_when_it_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backends: dict[str, Planted] = {
        "bad": corrupts("total"),
        "one": healthy,
        "two": healthy,
    }
    result = run(monkeypatch, backends)
    assert operators(result) == ["total"]
    (wrong,) = (f for f in result.findings if f.kind is FindingKind.OPERATOR)
    assert wrong.backends == ("bad", "one")


def test_the_reference_tells_which_of_two_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backends: dict[str, Planted] = {"bad": corrupts("total"), "good": healthy}
    result = run(monkeypatch, backends, reference=True)
    assert ("bad", "reference") in [f.backends for f in result.findings]
    assert ("good", "reference") not in [f.backends for f in result.findings]


def test_both_wrong_alike_is_found_by_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = corrupts("power")
    result = run(monkeypatch, {"one": bad, "two": bad}, reference=True)
    assert operators(result) == ["power"]
    assert {f.backends for f in result.findings if f.operator} == {
        ("one", "reference"),
        ("two", "reference"),
    }


def test_without_node_by_node_the_output_differs_and_a_note_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(
        monkeypatch, {"good": healthy, "bad": corrupts("total")}, node_by_node=False
    )
    assert result.verdict is Verdict.DIFFERENT
    assert not result.operators
    assert [f.kind for f in result.findings] == [FindingKind.OUTPUT]
    assert any("--node-by-node" in note for note in result.notes)


def test_wrong_bool(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, {"good": healthy, "bad": corrupts("above")})
    assert operators(result) == ["above"]


def test_results_that_change_from_run_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        nonlocal count
        count += op.outputs[0] == "total"
        return corrupts("total")(op, graph, results) if count > 2 else results

    result = run(monkeypatch, {"good": healthy, "flaky": fault}, node_by_node=False)
    assert [f.kind for f in result.findings] == [FindingKind.REPEATABILITY]
    assert result.findings[0].backends == ("flaky",)


def test_an_output_that_changes_when_intermediates_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        alone = len(graph.main.outputs) == 2
        return corrupts("reduced")(op, graph, results) if alone else results

    result = run(monkeypatch, {"good": healthy, "reuses": fault})
    kinds = [f.kind for f in result.findings]
    assert kinds == [FindingKind.PLAN, FindingKind.OUTPUT]
    assert "arena" in result.findings[0].text
    assert result.findings[0].tensor == "reduced"


def raises(error: Exception) -> Fault:
    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph, results
        if op.op is Op.EXP:
            raise error
        return []

    return fault


def refuses(error: Exception) -> Callable[[], Device]:
    def opening() -> Device:
        raise error

    return opening


def test_a_backend_that_is_lost_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backends: dict[str, Planted] = {
        "one": healthy,
        "bad": raises(RuntimeError("boom")),
        "two": healthy,
    }
    result = run(monkeypatch, backends)
    assert [run.ending for run in result.runs] == [
        Ending.RAN,
        Ending.LOST,
        Ending.RAN,
    ]
    assert result.verdict is Verdict.DIFFERENT
    assert [f.kind for f in result.findings] == [FindingKind.LOST]
    assert "DeviceLost" in result.findings[0].text
    assert result.outputs
    assert result.operators


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (DeviceCreationFailed("no"), Ending.FAILED),
        (External("bad driver", domain=1, code=-13), Ending.FAILED),
        (OutOfMemory("none left"), Ending.OUT_OF_MEMORY),
        (ZeroDivisionError("a bug"), Ending.FAILED),
    ],
)
def test_a_backend_that_cannot_be_opened_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, error: Exception, ending: Ending
) -> None:
    backends: dict[str, Planted] = {
        "one": healthy,
        "open_bad": refuses(error),
        "two": healthy,
    }
    result = run(monkeypatch, backends)
    assert result.runs[1].ending is ending
    assert str(error) in result.runs[1].failure
    assert result.outputs


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")]
)
def test_an_evaluation_without_memory_is_no_lost_device(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def wants(operator: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del operator, graph, results
        raise error

    result = run(monkeypatch, {"one": healthy, "bad": wants, "two": healthy})
    assert result.runs[1].ending is Ending.OUT_OF_MEMORY
    assert [f.kind for f in result.findings] == [FindingKind.MEMORY]
    assert result.outputs


def test_fewer_than_two_results_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refuses(DeviceCreationFailed("no"))
    result = run(monkeypatch, {"one": healthy, "open_bad": refused})
    assert result.verdict is Verdict.FAILED
    assert not result.outputs


def test_a_name_without_device_is_an_error_unless_optional(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = refuses(DeviceUnavailable("no such device"))
    backends: dict[str, Planted] = {
        "one": healthy,
        "open_none": refused,
        "two": healthy,
    }
    with pytest.raises(DeviceUnavailable, match="no such device"):
        run(monkeypatch, backends)
    result = run(monkeypatch, backends, optional=True)
    assert result.verdict is Verdict.AGREED
    assert result.runs[1].ending is Ending.LEFT_OUT
    assert any("no such device" in note for note in result.notes)


def test_one_backend_is_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="at least two"):
        run(monkeypatch, {"one": healthy})


def test_one_specification_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {"one": healthy})
    result = diff(
        DiffRequest(
            graph=sample(),
            model="sample",
            backends=("one", "one"),
            node_by_node=True,
            children=None,
        )
    )
    assert [run.label for run in result.runs] == ["one", "one (2)"]
    assert {(c.left, c.right) for c in result.outputs} == {("one (2)", "one")}


# Unusual programs ---------------------------------------------------------------------


def test_degenerate_outputs_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = np.zeros(SHAPE, np.float32)
    result = run(monkeypatch, {"one": healthy, "two": healthy}, given={"x": zeros})
    assert result.verdict is Verdict.AGREED
    assert any("'reduced'" in note and "little" in note for note in result.notes)


def test_more_intermediates_than_a_submission_binds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Builder()
    value = b.input("x", DType.FP32, (1, 5))
    one = b.const(np.ones((1, 5), np.float32))
    for i in range(300):
        value = b.add(value, one, name=f"t{i}")
    b.output(value)
    graph = load_graph(b.build())
    result = run(monkeypatch, {"good": healthy, "bad": corrupts("t280")}, graph=graph)
    assert len(result.operators) == 300
    assert operators(result) == ["t280"]


def test_no_inputs_and_an_output_that_appears_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Builder()
    y = b.exp(b.const(np.array([[0.25, 1.5, -2.0]], np.float32)), name="y")
    b.output(y)
    b.output(y)
    result = run(
        monkeypatch,
        {"one": healthy, "two": healthy},
        graph=load_graph(b.build()),
        reference=True,
    )
    assert result.verdict is Verdict.AGREED, result.findings
    assert [c.tensor for c in result.outputs].count("y") == 3
    assert result.inputs == ()


def test_integers_are_exact_and_floats_before_them_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Builder()
    x = b.input("x", DType.INT32, (1, 9))
    b.output(b.maximum(x, b.negate(x), name="y"))
    graph = load_graph(b.build())
    bad = corrupts("y", by=1)
    result = run(monkeypatch, {"bad": bad}, graph=graph, reference=True)
    rules = [c.rule for c in result.outputs]
    assert rules == ["exact"]
    assert operators(result) == ["y"]
    assert result.findings[-1].kind is FindingKind.OUTPUT


# Known exceptions ---------------------------------------------------------------------


def flushes(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
    """A device that flushes subnormal results of ADD, SUB and MUL."""
    del graph
    if op.op not in (Op.ADD, Op.SUB, Op.MUL):
        return results
    value = np.asarray(results[0])
    small = np.abs(value) < np.float32(2.0**-126)
    return [np.where(small, np.copysign(np.float32(0), value), value)]


def product() -> Graph:
    b = Builder()
    x = b.input("x", DType.FP32, (1, 13))
    tiny = b.mul(x, b.const(np.full((1, 13), 2.0**-100, np.float32)), name="tiny")
    b.output(b.mul(tiny, b.const(np.full((1, 13), 2.0**-28, np.float32)), name="y"))
    return load_graph(b.build())


VALUES = {"x": np.linspace(0.5, 3.0, 13, dtype=np.float32).reshape(1, 13)}


@pytest.mark.parametrize("node_by_node", [True, False])
def test_flushed_subnormals_are_a_known_exception(
    monkeypatch: pytest.MonkeyPatch, *, node_by_node: bool
) -> None:
    result = run(
        monkeypatch,
        {"good": healthy, "soft": flushes},
        graph=product(),
        given=VALUES,
        node_by_node=node_by_node,
    )
    assert result.verdict is Verdict.AGREED, result.findings
    (output,) = result.outputs
    assert output.outcome == "known exception"
    assert output.differing > 0
    assert result.runs[0].traits == ()
    assert result.runs[1].traits == ("flushes FP32 subnormals",)
    assert any("flushes FP32 subnormals" in note for note in result.notes)


def test_a_subnormal_lost_by_a_device_that_keeps_them_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        # Right in the known-answer test, wrong in the program.
        return flushes(op, graph, results) if op.outputs == ("y",) else results

    result = run(
        monkeypatch, {"good": healthy, "bad": fault}, graph=product(), given=VALUES
    )
    assert operators(result) == ["y"]


def test_a_trait_excuses_no_other_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        flushed = flushes(op, graph, results)
        return corrupts("tiny", by=2.0**-90)(op, graph, flushed)

    result = run(
        monkeypatch, {"good": healthy, "bad": fault}, graph=product(), given=VALUES
    )
    assert operators(result) == ["tiny"]


# Real devices -------------------------------------------------------------------------

_ADD, _SUBTRACT = 129, 131  # OpFAdd, OpFSub


def subtracting(module: bytes) -> bytes:
    """The module with every addition of floats made a subtraction."""
    code = [word for (word,) in struct.iter_unpack("<I", module)]
    at = 5
    while at < len(code):
        count, opcode = code[at] >> 16, code[at] & 0xFFFF
        if opcode == _ADD:
            code[at] = count << 16 | _SUBTRACT
        at += count
    return struct.pack(f"<{len(code)}I", *code)


def wrong_library() -> ShaderLibrary:
    """The catalogue, but `binary` subtracts where it should add."""
    right = catalogue_library()

    def read(name: str) -> bytes:
        module = right.read(name)
        return subtracting(module) if name.startswith("binary") else module

    return ShaderLibrary(right.kernels, read)


def test_a_wrong_spirv_module_is_named(
    monkeypatch: pytest.MonkeyPatch, vulkan_device: str
) -> None:
    library = wrong_library()

    def opening() -> VulkanDevice:
        options = VulkanOptions(pipeline_cache=False)
        selector = vulkan_device.partition(":")[2] or None
        return open_with(None, selector, options, library=library)

    plant(monkeypatch, {"open_wrong": opening})
    b = Builder()
    x = b.input("x", DType.FP32, SHAPE)
    low = b.clamp(x, -0.5, 0.5, name="low")
    total = b.add(low, x, name="total")
    b.output(b.clamp(total, -1.0, 1.0, name="high"))
    result = diff(
        DiffRequest(
            graph=load_graph(b.build()),
            model="wrong",
            backends=(vulkan_device, "open_wrong", "reference"),
            node_by_node=True,
            children=None,
        )
    )
    assert result.verdict is Verdict.DIFFERENT
    assert operators(result) == ["total"]
    assert result.findings[0].operator is not None
    assert result.findings[0].operator.op == "ADD"
    pairs = {f.backends for f in result.findings if f.kind is FindingKind.OPERATOR}
    assert ("open_wrong", "reference") in pairs
    assert (vulkan_device, "reference") not in pairs


def test_flushing_is_found_by_known_answers(available_devices: tuple[str, ...]) -> None:
    devices = tuple(d for d in available_devices if d != "reference")
    if len(devices) < 2:
        pytest.skip("needs two devices")
    result = diff(
        DiffRequest(
            graph=product(),
            model="tiny",
            backends=devices,
            given=VALUES,
            node_by_node=True,
        )
    )
    assert result.verdict is Verdict.AGREED, result.findings
    traits = {run.spec: run.traits for run in result.runs}
    if "vulkan:SwiftShader" in traits and "vulkan:llvmpipe" in traits:
        assert traits["vulkan:SwiftShader"] == ("flushes FP32 subnormals",)
        assert traits["vulkan:llvmpipe"] == ()
        assert result.exceptions > 0


# Programs beyond straight lines ---------------------------------------------------------


def test_a_program_that_keeps_state_is_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (1, 5))
    v = b.variable("v", DType.FP32, (1, 5), 0.5)
    b.variable_write(v, b.add(b.variable_read(v, name="old"), x, name="new"))
    b.output(b.exp(b.variable_read(v, name="now"), name="out"))
    graph = load_graph(b.build())
    found = run(monkeypatch, {"one": healthy, "two": healthy}, graph=graph)
    assert found.verdict is Verdict.AGREED, found.findings
    assert any("keeps state" in note for note in found.notes)


def test_an_operator_of_control_flow_is_compared_but_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (1, 5))
    for name, method in (("then", Builder.exp), ("else", Builder.tanh)):
        part = b.region(name)
        inner = part.input(f"in_{name}", DType.FP32, (1, 5))
        part.output(method(part, inner, name=f"out_{name}"))
    above = b.greater(b.reduce_sum(x, 1), b.const(np.zeros((1, 1), np.float32)))
    condition = b.reshape(above, (1,))
    square = b.mul(x, x, name="square")
    (chosen,) = b.cond_if(condition, [square], then_graph="then", else_graph="else")
    b.output(b.add(chosen, x, name="out"))
    graph = load_graph(b.build())
    backends: dict[str, Planted] = {"one": healthy, "two": corrupts("square")}
    found = run(monkeypatch, backends, graph=graph, reference=True)
    assert operators(found) == ["square"]
    assert any("COND_IF: not judged" in note for note in found.notes)
    (cond,) = (o for o in found.operators if o.operator.op == "COND_IF")
    assert {c.outcome for c in cond.comparisons} == {"equal", "not judged"}
    assert any(c.rerun for c in cond.comparisons)


def test_intermediates_that_do_not_fit_leave_the_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def small(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        return results

    plant(monkeypatch, {"one": healthy, "two": small})
    from tosavk.core.errors import ResourceLimit
    from tosavk.differential import station

    def refuse(*_: object) -> Graph:
        raise ResourceLimit("too many buffers")

    monkeypatch.setattr(station, "expose", refuse)
    found = diff(
        DiffRequest(
            graph=sample(),
            model="m",
            backends=("one", "two", "reference"),
            children=None,
        )
    )
    assert found.verdict is Verdict.AGREED
    assert not found.operators
    assert any("too many buffers" in note for note in found.notes)
