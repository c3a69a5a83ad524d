"""Values that an operator must not be given: bad input, and no failure of a backend."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.planted import Array, healthy, plant
from tosavk import cli
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.differential.diff import DiffRequest, Given, diff
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.judge import Judge, Kind
from tosavk.differential.result import Ending, FindingKind, Verdict
from tosavk.lowering.graph import Graph, Op, Operator
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder

Captured = pytest.CaptureFixture[str]
I16 = DType.INT16
X = np.array([1, -2, 3, 4], np.int16)
THREE, ZERO = np.array([3], np.int16), np.array([0], np.int16)
TWO = ("--backend", "reference", "--backend", "reference")


def negation(*, computed: bool) -> bytes:
    """NEGATE by a zero point that is given, or that REVERSE makes of what is given."""
    b = Builder()
    zp, x = b.input("zp", I16, (1,)), b.input("x", I16, (4,))
    if computed:
        zp = b.op(Op.REVERSE, [zp], axis=0, name="three")
    zero = b.const(np.zeros(1, np.int16))
    b.output(b.op(Op.NEGATE, [x, zp, zero], name="y"))
    return b.build()


def inside_a_region() -> bytes:
    b = Builder()
    taken, x, zp = (
        b.input("taken", DType.BOOL, (1,)),
        b.input("x", I16, (4,)),
        b.input("zp", I16, (1,)),
    )
    for name in ("then", "else"):
        region = b.region(name)
        v, z = region.input("v", I16, (4,)), region.input("z", I16, (1,))
        zero = region.const(np.zeros(1, np.int16))
        region.output(region.op(Op.NEGATE, [v, z, zero], name="y"))
    b.output(*b.cond_if(taken, [x, zp], then_graph="then", else_graph="else"))
    return b.build()


CASES = {
    "given": (negation(computed=False), "input 'zp' is 3;"),
    "computed": (negation(computed=True), "computed tensor 'three' is 3;"),
    "region": (inside_a_region(), "input 'z' is 3;"),
}


@pytest.mark.parametrize("name", ["given", "computed"])
def test_run_draws_no_such_values(name: str, tmp_path: Path, capsys: Captured) -> None:
    """Without --input it runs, with the values of the first run of diff."""
    model = tmp_path / "m.tosa"
    model.write_bytes(CASES[name][0])
    words = ["run", str(model), "--backend", "reference", "--seed", "3"]
    assert cli.main([*words, "--output-dir", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    graph = load_graph(CASES[name][0])
    request = DiffRequest(
        graph=graph, model="m", backends=("reference", "vulkan"), seed=3
    )
    drawn = request.inputs(0)
    assert drawn["zp"] == 0
    y = np.load(tmp_path / "out" / "y.npy")
    np.testing.assert_array_equal(y, np.negative(drawn["x"]))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("command", ["run", "diff", "diff in process", "reduce"])
def test_bad_input_is_one_line_and_exit_code_2(
    command: str, name: str, tmp_path: Path, capsys: Captured
) -> None:
    data, message = CASES[name]
    model, zp = tmp_path / "m.tosa", tmp_path / "zp.npy"
    model.write_bytes(data)
    np.save(zp, THREE)
    words = [command.split()[0], str(model), f"--input=zp={zp}"]
    if command == "run":
        words += ["--backend", "reference"]
    elif command == "reduce":
        backends = ["--backend", "reference", "--backend", "vulkan"]
        words += [*backends, "--out", str(tmp_path / "small")]
    else:
        words += [*TWO, "--json", str(tmp_path / "r.json")]
        words += ["--in-process"] if "process" in command else []
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("tosavk: operator ")
    assert message in error
    assert "a zero point of INT16 must be 0" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r.json").exists()


def test_the_run_is_told_where_there_are_several() -> None:
    for name, (data, message) in CASES.items():
        taken = {"taken": np.array([True])} if name == "region" else {}
        runs = tuple(Given({"x": X, "zp": zp, **taken}) for zp in (ZERO, THREE, ZERO))
        request = DiffRequest(
            graph=load_graph(data),
            model="m",
            backends=("reference", "reference"),
            runs=runs,
            children=None,
        )
        with pytest.raises(InvalidArgument, match=rf"^input 2 of 3: .*{message}"):
            diff(request)


def overrides(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
    """A device that computes another zero point."""
    del graph
    return [THREE] if op.outputs == ("three",) else results


def lone(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {"good": healthy, "bad": overrides})


@pytest.mark.parametrize("others", [("good",), ("good", "reference")])
def test_one_that_refuses_what_others_run_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    lone(monkeypatch)
    request = DiffRequest(
        graph=load_graph(negation(computed=True)),
        model="m",
        backends=(*others, "bad"),
        given={"x": X, "zp": ZERO},
        children=None,
    )
    result = diff(request)
    assert [run.ending for run in result.runs] == [
        *(Ending.RAN for _ in others),
        Ending.REFUSED,
    ]
    finding = result.findings[0]
    assert finding.kind is FindingKind.REFUSED
    assert finding.backends == ("bad",)
    assert finding.text.startswith("bad: refused: operator ")
    assert "computed tensor 'three' is 3;" in finding.text
    wanted = Verdict.DIFFERENT if len(others) > 1 else Verdict.FAILED
    assert result.verdict is wanted
    json.dumps(result.document())


def test_exit_code_of_a_lone_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    lone(monkeypatch)
    model, zp = tmp_path / "m.tosa", tmp_path / "zp.npy"
    model.write_bytes(negation(computed=True))
    np.save(zp, ZERO)
    words = ["diff", str(model), "--in-process", f"--input=zp={zp}"]
    assert cli.main([*words, "--backend", "good", "--backend", "bad"]) == 1
    assert "bad: refused: operator" in capsys.readouterr().out


def test_fuzz_blames_a_backend_only_if_the_program_is_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lone(monkeypatch)
    graph = load_graph(negation(computed=True))
    with Judge(("good", "bad")) as judge:
        found = judge.judge(Case(graph, ({"x": X, "zp": ZERO},)))
        assert [(f.key.kind, f.backends) for f in found.findings] == [
            (Kind.REFUSED, ("bad",))
        ]
        found = judge.judge(Case(graph, ({"x": X, "zp": THREE},)))
        assert not found.findings
        assert [text.split(":")[0] for text in found.left_out] == ["good", "bad"]


@pytest.mark.parametrize("generator", ["auto", "ranges", "specials"])
@pytest.mark.parametrize("name", ["given", "computed", "rescale", "multiplication"])
def test_generated_inputs_keep_the_rules(
    name: str, generator: str, tmp_path: Path
) -> None:
    b = Builder()
    if name == "rescale":
        operands = [
            b.input("x", DType.INT32, (2, 8)),
            b.input("multiplier", DType.INT32, (1,)),
            b.input("shift", DType.INT8, (1,)),
            b.input("in", DType.INT32, (1,)),
            b.input("out", DType.INT8, (1,)),
        ]
        attributes: dict[str, Any] = {
            "scale32": True,
            "rounding_mode": 1,
            "per_channel": False,
        }
        b.output(b.op(Op.RESCALE, operands, dtype=DType.INT8, **attributes))
    elif name == "multiplication":
        for dtype in (DType.INT8, DType.INT32):
            pair = [b.input(f"{dtype.name}{i}", dtype, (4,)) for i in range(2)]
            shift = b.input(f"{dtype.name} shift", DType.INT8, (1,))
            b.output(b.op(Op.MUL, [*pair, shift], dtype=DType.INT32))
    data = b.build() if name not in CASES else CASES[name][0]
    model = tmp_path / "m.tosa"
    model.write_bytes(data)
    words = ["diff", str(model), *TWO, "--in-process", "--samples", "4"]
    assert cli.main([*words, "--generator", generator]) == 0
