"""Reduction: minimal, deterministic, resumable, and written so that it can be repeated."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.planted import Array, Planted, healthy, plant
from tosavk.cli import main
from tosavk.core.dtypes import DType
from tosavk.differential.fuzz import shrink
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.files import FolderStore, read_case, write_case
from tosavk.differential.fuzz.generator import Generator
from tosavk.differential.fuzz.judge import Judge, Key, Kind
from tosavk.differential.fuzz.reduce import reduce_case
from tosavk.differential.fuzz.reducing import reduce_finding
from tosavk.differential.fuzz.script import canonical, rebuilt, script
from tosavk.differential.inputs import random_array
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.graph import Graph, Op, Operator
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.tosa.writer import write_graph


def network() -> Graph:
    """A convolution, and what is usually around one."""
    b = Builder()
    rng = np.random.default_rng(3)
    x = b.input("x", DType.FP32, (2, 9, 11, 5))
    weight = b.const(rng.uniform(-1, 1, (7, 3, 3, 5)).astype(np.float32))
    bias = b.const(rng.uniform(-1, 1, 7).astype(np.float32))
    y = b.conv2d(b.tanh(x), weight, bias, pad=(1, 1, 1, 1), dilation=(1, 1))
    y = b.clamp(y, -1.0, 1.0)
    left = b.reduce_sum(b.reshape(y, (2, 99, 7)), 1)
    right = b.exp(b.slice(y, (0, 0, 0, 0), (2, 3, 5, 7)))
    b.output(left)
    b.output(b.sigmoid(right, name="wanted"))
    b.output(b.mul(y, y))
    return load_graph(b.build())


def samples(graph: Graph, count: int = 3) -> tuple[dict[str, Array], ...]:
    tensors = graph.main.tensors
    return tuple(
        {
            name: random_array(
                tensors[name].dtype,
                tensors[name].shape or (),
                np.random.default_rng([seed, position]),
            )
            for position, name in enumerate(graph.main.inputs)
        }
        for seed in range(count)
    )


def breaks_where(op: Op, chosen: Callable[[Array], Array]) -> Planted:
    """An operator is wrong where its result fulfils a condition."""

    def fault(operator: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if operator.op is not op:
            return results
        result: NDArray[Any] = results[0]
        wrong = result + 1
        return [np.where(chosen(result), wrong, result), *results[1:]]

    return fault


def big(result: Array) -> Array:
    return np.asarray(np.abs(result) > 0.75)


def work(case: Case) -> list[str]:
    return [op.op.name for op in case.graph.main.operators if op.op not in CONSTANT_OPS]


@pytest.mark.parametrize("op", [Op.CONV2D, Op.CLAMP, Op.EXP, Op.SIGMOID, Op.MUL])
def test_one_operator_is_left(monkeypatch: pytest.MonkeyPatch, op: Op) -> None:
    plant(monkeypatch, {"good": healthy, "bad": breaks_where(op, big)})
    case = Case(network(), samples(network()))
    with Judge(("good", "bad")) as judge:
        first = judge.judge(case).findings[0]
        assert first.key == Key(Kind.BITS, op.name, "FP32")
        found = reduce_case(
            case,
            lambda c: any(f.key == first.key for f in judge.judge(c).findings),
            target=op.name,
        )
    assert found.finished
    assert work(found.case) == [op.name]
    assert len(found.case.samples) == 1
    size, busy = shrink.weight(found.case)[1:]
    assert size <= 24, size
    assert busy <= 6, busy


def test_a_difference_in_one_sample_only(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network()
    inputs = samples(graph)
    inputs[2]["x"][1, 4, 4, 2] = 7.0

    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        rare = op.op is Op.TANH and bool((results[0] == np.float32(np.tanh(7))).any())
        return [np.zeros_like(results[0])] if rare else results

    plant(monkeypatch, {"good": healthy, "bad": fault})
    with Judge(("good", "bad")) as judge:
        found = reduce_case(
            Case(graph, inputs),
            lambda c: bool(judge.judge(c).findings),
            target="TANH",
        )
    assert work(found.case) == ["TANH"]
    (sample,) = found.case.samples
    assert [array.reshape(-1).tolist() for array in sample.values()] == [[7.0]]


def test_two_operators_that_only_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        made = {n: o.op for o in graph.main.operators for n in o.outputs}
        fused = op.op is Op.CLAMP and made.get(op.inputs[0]) is Op.CONV2D
        return [np.zeros_like(results[0])] if fused else results

    plant(monkeypatch, {"good": healthy, "bad": fault})
    with Judge(("good", "bad")) as judge:
        key = judge.judge(Case(network(), samples(network(), 1))).findings[0].key
        found = reduce_case(
            Case(network(), samples(network(), 1)),
            lambda c: any(f.key == key for f in judge.judge(c).findings),
            target=key.op,
        )
    assert work(found.case) == ["CONV2D", "CLAMP"]
    assert shrink.weight(found.case)[1] <= 40


def test_a_reduction_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {"good": healthy, "bad": breaks_where(Op.CLAMP, big)})
    results: list[bytes] = []
    with Judge(("good", "bad")) as judge:
        for _ in range(2):
            found = reduce_case(
                Case(network(), samples(network())),
                lambda c: bool(judge.judge(c).findings),
                target="CLAMP",
            )
            results.append(write_graph(canonical(found.case.graph)))
    assert results[0] == results[1]


@pytest.mark.parametrize("needed", [True, False])
def test_small_segments_stay_where_they_are_needed(*, needed: bool) -> None:
    graph = network()
    case = Case(graph, samples(graph, 1), segment_bytes=4096)

    def interesting(other: Case) -> bool:
        return "EXP" in work(other) and (not needed or other.segment_bytes is not None)

    found = reduce_case(case, interesting)
    assert work(found.case) == ["EXP"]
    assert found.case.segment_bytes == (4096 if needed else None)


def test_an_interrupted_reduction_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, {"good": healthy, "bad": breaks_where(Op.CLAMP, big)})
    case = Case(network(), samples(network()))
    with Judge(("good", "bad")) as judge:
        whole = reduce_finding(case, judge, tmp_path / "whole")
        short = reduce_finding(case, judge, tmp_path / "parts", budget=whole.tried // 2)
        assert not short.finished
        rest = reduce_finding(case, judge, tmp_path / "parts")
        assert rest.finished
        assert rest.tried < whole.tried
        again = reduce_finding(case, judge, tmp_path / "parts")
        assert again.tried == 0
    assert rest.after == whole.after
    first, second = (tmp_path / name / "model.tosa" for name in ("whole", "parts"))
    assert first.read_bytes() == second.read_bytes()


def test_a_store_survives_a_cut_line(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, title="x")
    store.note("a", shows=True)
    store.note("b", shows=False)
    with (tmp_path / "tried.txt").open("a") as log:
        log.write("c ye")
    again = FolderStore(tmp_path, title="x")
    assert [again.known(name) for name in "abc"] == [True, False, None]


# Files and scripts --------------------------------------------------------------------


def test_cases_are_read_as_they_were_written(tmp_path: Path) -> None:
    generator = Generator(2)
    for index in range(25):
        case = generator.make(index).case
        folder = tmp_path / str(index)
        write_case(folder, case, title="a 'case' of \"words\" \\", about={})
        again = read_case(folder)
        assert again.graph == case.graph
        assert again.segment_bytes == case.segment_bytes
        for one, other in zip(again.samples, case.samples, strict=True):
            assert {n: a.tobytes() for n, a in one.items()} == {
                n: a.tobytes() for n, a in other.items()
            }


def test_scripts_make_the_same_bytes() -> None:
    generator = Generator(4)
    for index in range(40):
        graph = generator.make(index).case.graph
        made = rebuilt(script(graph, title="program"))
        assert write_graph(made) == write_graph(canonical(graph)), index
        assert load_graph(write_graph(made)) == graph, index


def test_a_script_with_regions_makes_the_same_program() -> None:
    b = Builder(name='start "here"')
    x = b.input("x", DType.FP32, (3,))
    for name, method in (("then", Builder.exp), ("else", Builder.tanh)):
        part = b.region(name)
        part.output(method(part, part.input(f"in {name}", DType.FP32, (3,))))
    condition = b.const(np.array(True))
    (y,) = b.cond_if(condition, [x], then_graph="then", else_graph="else")
    b.output(y)
    graph = load_graph(b.build())
    assert load_graph(write_graph(rebuilt(script(graph, title="regions")))) == graph


def test_a_script_runs_by_itself(tmp_path: Path) -> None:
    case = Generator(4).make(2).case
    write_case(tmp_path, case, title="program", about={})
    code = "import sys, runpy; sys.path[:] = sys.argv.pop(1).split('|'); "
    code += "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    target = tmp_path / "again.tosa"
    subprocess.run(
        [
            *(sys.executable, "-c", code, "|".join(sys.path)),
            *(str(tmp_path / "build.py"), str(target)),
        ],
        check=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert target.read_bytes() == (tmp_path / "model.tosa").read_bytes()


# The commands -------------------------------------------------------------------------


def test_the_reduce_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, {"good": healthy, "bad": breaks_where(Op.EXP, big)})
    model = tmp_path / "m.tosa"
    model.write_bytes(write_graph(network()))
    out = tmp_path / "small"
    words = [
        "reduce",
        "--in-process",
        str(model),
        "--backend",
        "good",
        "--backend",
        "bad",
    ]
    words += ["--samples", "2", "--out", str(out)]
    assert main([*words, "--json", str(tmp_path / "r.json")]) == 1
    assert "bits EXP FP32" in capsys.readouterr().out
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["format"] == "tosavk.reduce"
    assert document["finding"] == {"kind": "bits", "op": "EXP", "dtype": "FP32"}
    assert document["after"]["operators"] == 1
    assert document["finished"]
    graph = load_graph(read_graph((out / "model.tosa").read_bytes()))
    assert [op.op for op in graph.main.operators if op.inputs] == [Op.EXP]
    # What it writes is what diff takes.
    with Judge(("good", "bad")) as judge:
        (again,) = judge.judge(read_case(out)).findings
    assert again.key.op == "EXP"


def test_nothing_to_reduce(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, {"one": healthy, "two": healthy})
    model = tmp_path / "m.tosa"
    model.write_bytes(write_graph(network()))
    words = [
        "reduce",
        "--in-process",
        str(model),
        "--backend",
        "one",
        "--backend",
        "two",
    ]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0


def test_the_fuzz_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, {"good": healthy, "bad": breaks_where(Op.ABS, big)})
    words = ["fuzz", "--in-process", "--seed", "1", "--count", "6", "--backend", "good"]
    assert main([*words, "--coverage", "--backend", "reference"]) == 0
    shown = capsys.readouterr().out
    assert "not covered: " in shown
    assert "all agree" in shown
    assert "covered" in shown
    words += ["--backend", "bad", "--json", "-", "--out", str(tmp_path)]
    code = main(words)
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "tosavk.fuzz"
    assert document["graphs"] == 6
    assert code == bool(document["findings"])
    assert document["coverage"]["points"]
    assert main(["fuzz", "--in-process", "--count", "1", "--backend", "good"]) == 2
    assert main(["fuzz", "--count", "1", "--backend", "reference"]) == 2
    assert main(["fuzz", "--timeout", "x"]) == 2
    assert main(["fuzz", "--count", "x"]) == 2
