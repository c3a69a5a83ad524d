"""The fuzzer: valid programs, the same everywhere; planted faults are found and named."""

import dataclasses
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from harness import devices
from harness.planted import Array, Planted, healthy, plant
from tosavk.backends.registry import parse_spec
from tosavk.backends.vulkan.device import VulkanDevice, open_with
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.vulkan.spirv import ShaderLibrary, catalogue_library
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Dispatch, Operand, Plan, PlanLimits
from tosavk.differential.fuzz.campaign import JOURNAL, Filed, Request, Result, fuzz
from tosavk.differential.fuzz.dice import Dice
from tosavk.differential.fuzz.files import read_case
from tosavk.differential.fuzz.generator import PALETTE, SPAN, Generator, palette
from tosavk.differential.fuzz.judge import Judge, Kind
from tosavk.differential.fuzz.plancheck import Fault, check_plan
from tosavk.differential.fuzz.recipes import MAKERS, all_recipes, make
from tosavk.differential.fuzz.scene import Scene
from tosavk.differential.fuzz.values import Style, values
from tosavk.lowering import arena, folding, hazards, lower
from tosavk.lowering.graph import Graph, Op, Operator, Tensor
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import expose, intermediates, load_graph
from tosavk.lowering.rules.table import RULES

PLANNED = 80
"""Programs that the tests of plans look at."""


# Programs ---------------------------------------------------------------------------


FINGERPRINT = """
import hashlib
from tosavk.differential.fuzz.generator import Generator

seen = hashlib.sha256()
for index in range(6):
    made = Generator(9).make(index)
    seen.update(made.data)
    for sample in made.case.samples:
        for name in sorted(sample):
            seen.update(name.encode() + sample[name].tobytes())
digest = seen.hexdigest()
"""


def test_a_program_depends_on_seed_and_number_only() -> None:
    generator = Generator(5)
    late = generator.make(SPAN + 7)
    assert generator.make(3).data == Generator(5).make(3).data
    assert Generator(5).make(SPAN + 7).data == late.data
    assert Generator(6).make(3).data != Generator(5).make(3).data


def test_a_program_is_the_same_in_another_process() -> None:
    code = f"import sys; sys.path[:] = sys.argv[1].split('|'){FINGERPRINT}print(digest)"
    found = subprocess.run(
        [sys.executable, "-c", code, "|".join(sys.path)],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    here: dict[str, str] = {}
    exec(FINGERPRINT, here)
    assert found.stdout.strip() == here["digest"]


def test_every_admitted_operator_has_a_maker() -> None:
    assert set(MAKERS) == set(RULES)
    assert {recipe.op for recipe in all_recipes()} == set(RULES)


def test_palettes_deal_out_everything() -> None:
    count = -(-len(all_recipes()) // PALETTE)
    dealt = [recipe for number in range(count) for recipe in palette(0, number)]
    assert {(r.op, r.types) for r in dealt} == {(r.op, r.types) for r in all_recipes()}


@pytest.mark.parametrize("variant", range(4))
def test_every_recipe_makes_a_valid_program(variant: int) -> None:
    for number, recipe in enumerate(all_recipes()):
        scene = Scene(Dice("recipe", variant, number))
        chosen = dataclasses.replace(recipe, variant=variant)
        for tensor in make(scene, chosen):
            scene.builder.output(tensor)
        graph = load_graph(scene.builder.build())
        assert any(op.op is recipe.op for op in graph.main.operators)


def test_programs_have_what_lowering_treats_specially() -> None:
    generator = Generator(0)
    seen: set[str] = set()
    missing: set[str] = set()
    for index in range(PLANNED):
        case = generator.make(index).case
        block, plan = case.graph.main, planned(case.graph, case.segment_bytes)
        made = {n: op for op in block.operators for n in op.outputs}
        read = [n for op in block.operators for n in op.inputs]
        live = lower.live_operators(block)
        facts = {
            "prologue": bool(plan.prologue),
            "barriers": any(d.barrier for d in plan.dispatches),
            "no barrier": sum(not d.barrier for d in plan.dispatches) > 1,
            "segments": len(plan.segments) > 2,
            "dead": len(live) < len(block.operators),
            "output is read": any(n in read for n in block.outputs),
            "output twice": len(set(block.outputs)) < len(block.outputs),
            "input is output": not set(block.inputs).isdisjoint(block.outputs),
            "scalar": any(t.shape == () for t in block.tensors.values()),
            "rank 6": any(len(t.shape or ()) == 6 for t in block.tensors.values()),
            "view of input": any(
                op.op in (Op.RESHAPE, Op.IDENTITY) and op.inputs[0] in block.inputs
                for op in block.operators
            ),
            "view is output": any(
                n in made and made[n].op in (Op.RESHAPE, Op.IDENTITY)
                for n in block.outputs
            ),
            "read twice": any(read.count(n) > 1 for n in made if made[n].inputs),
            "control flow": any(
                op.op in (Op.COND_IF, Op.WHILE_LOOP) for op in block.operators
            ),
            "parts": any(
                op.op is Op.CONCAT and len(op.inputs) > 2 for op in block.operators
            ),
        }
        seen |= {name for name, holds in facts.items() if holds}
        missing = set(facts) - seen
    assert not missing


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.SHAPE])
def test_values_are_of_their_type_and_vary(dtype: DType, style: Style) -> None:
    array = values(Dice("values", style.value), dtype, (31, 11), style=style)
    assert array.dtype == dtype.numpy
    assert array.shape == (31, 11)
    assert len(set(array.reshape(-1).tolist())) > 1
    if style is Style.SPECIAL and dtype is DType.FP32:
        assert np.isnan(array).any()
        assert np.isinf(array).any()


# Plans ------------------------------------------------------------------------------


def limits(segment_bytes: int | None) -> PlanLimits:
    if segment_bytes is None:
        return PlanLimits()
    return dataclasses.replace(PlanLimits(), segment_bytes=segment_bytes)


def planned(graph: Graph, segment_bytes: int | None = None) -> Plan:
    return lower_graph(graph, limits=limits(segment_bytes)).plan


def with_dispatch(plan: Plan, position: int, dispatch: Dispatch) -> Plan:
    changed = [*plan.dispatches]
    changed[position] = dispatch
    return dataclasses.replace(plan, dispatches=tuple(changed))


def test_plans_of_random_programs_are_sound() -> None:
    generator = Generator(1)
    for index in range(PLANNED):
        case = generator.make(index).case
        for graph in (case.graph, expose(case.graph, intermediates(case.graph))):
            lowered = lower_graph(graph, limits=limits(case.segment_bytes))
            pieces = [(lowered.plan, graph)]
            if lowered.flow is not None:
                pieces = [(piece.plan, piece.graph) for piece in lowered.flow.pieces]
            for plan, part in pieces:
                assert check_plan(plan, part) == (), index


def test_every_missing_barrier_is_found() -> None:
    generator = Generator(1)
    removed = 0
    for index in range(PLANNED):
        graph = generator.make(index).case.graph
        plan = planned(graph)
        for position, dispatch in enumerate(plan.dispatches):
            if dispatch.barrier:
                without = dataclasses.replace(dispatch, barrier=False)
                found = check_plan(with_dispatch(plan, position, without), graph)
                assert any(v.fault.is_hazard for v in found), (index, position)
                removed += 1
    assert removed > 100


def test_needless_barriers_are_found() -> None:
    graph = Generator(1).make(0).case.graph
    plan = planned(graph)
    first = dataclasses.replace(plan.dispatches[0], barrier=True)
    found = check_plan(with_dispatch(plan, 0, first), graph)
    assert [v.fault for v in found] == [Fault.NEEDLESS]


def copies(plan: Plan, operand: Operand, word: int) -> bool:
    """Whether an operand is a constant of which there is another copy at `word`."""
    segment = operand.buffer - len(plan.slots)
    data = {
        c.offset // 4: bytes(c.data) for c in plan.constants if c.segment == segment
    }
    return operand.word in data and data[operand.word] == data.get(word)


def test_wrong_offsets_are_found() -> None:
    """All but other results of the same operator."""
    generator = Generator(1)
    moved = missed = 0
    for index in range(10):
        graph = generator.make(index).case.graph
        plan = planned(graph)
        slots = len(plan.slots)
        for position, dispatch in enumerate(plan.dispatches):
            for number, operand in enumerate(dispatch.operands):
                if operand.buffer < slots:
                    continue
                size = plan.segments[operand.buffer - slots] // 4
                for word in range(0, min(size - operand.words, 512) + 1, 64):
                    if word == operand.word or copies(plan, operand, word):
                        continue
                    operands = [*dispatch.operands]
                    operands[number] = dataclasses.replace(operand, word=word)
                    wrong = dataclasses.replace(dispatch, operands=tuple(operands))
                    found = check_plan(with_dispatch(plan, position, wrong), graph)
                    moved += 1
                    missed += all(v.fault is Fault.NEEDLESS for v in found)
    assert moved > 300
    assert missed < 0.02 * moved


def test_operands_outside_their_segment_are_found() -> None:
    graph = next(
        g
        for g in (Generator(1).make(i).case.graph for i in range(PLANNED))
        if planned(g).segments
    )
    plan = planned(graph)
    small = dataclasses.replace(plan, segments=(0,) * len(plan.segments))
    assert Fault.BOUNDS in {v.fault for v in check_plan(small, graph)}


# Planted faults in lowering -----------------------------------------------------------


def run(
    backends: Iterable[str],
    *,
    seed: int = 1,
    count: int = 60,
    folder: Path | None = None,
    reducing: int = 300,
) -> Result:
    request = Request(
        seed=seed,
        count=count,
        backends=tuple(backends),
        folder=folder,
        reducing=reducing,
    )
    return fuzz(request)


def kinds(result: Result) -> set[Kind]:
    return {key.kind for key in result.findings}


def test_a_tracker_that_forgets_writes_is_found_without_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = hazards.HazardTracker.needs_barrier

    def wrong(
        self: hazards.HazardTracker,
        reads: Sequence[hazards.Range],
        writes: Sequence[hazards.Range],
        group: object | None,
    ) -> bool:
        # What is read goes unseen.
        del reads
        return right(self, [], writes, group)

    monkeypatch.setattr(hazards.HazardTracker, "needs_barrier", wrong)
    plant(monkeypatch, {"one": healthy, "two": healthy})
    result = run(("one", "two"), count=12, folder=tmp_path)
    assert kinds(result) == {Kind.BARRIER}
    for filed in result.findings.values():
        assert filed.operators <= 3, filed
        assert "read after write" in filed.text
        assert filed.key.op


def test_lifetimes_that_end_too_early_are_found_without_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = arena.lifetimes

    def wrong(*parts: object) -> list[arena.Lifetime]:
        return [
            r
            if r.last == arena.FOREVER
            else dataclasses.replace(r, last=max(r.first, r.last - 1))
            for r in right(*parts)  # type: ignore[arg-type]
        ]

    monkeypatch.setattr(lower, "lifetimes", wrong)
    plant(monkeypatch, {"one": healthy, "two": healthy})
    result = run(("one", "two"), count=40)
    assert Kind.ARENA in kinds(result)
    worst = max(f.operators for f in result.findings.values())
    assert worst <= 3, result.findings


def test_a_constant_folded_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(op: Operator, target: Tensor, operands: list[Array]) -> Array:
        del op, target
        return operands[0][..., ::-1]

    monkeypatch.setitem(vars(folding)["_FOLDERS"], Op.REVERSE, wrong)
    plant(monkeypatch, {"one": healthy})
    result = run(("one", "reference"), seed=2, count=200)
    found = [f for f in result.findings.values() if f.key.op == "REVERSE"]
    assert found
    assert {f.key.kind for f in found} == {Kind.LOAD}
    assert all(f.operators <= 3 for f in found)


# Planted faults in backends -------------------------------------------------------------


def breaks(*ops: Op) -> Planted:
    """The last element of these operators' results is wrong."""

    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if op.op not in ops:
            return results
        wrong = results[0].copy()
        flat = wrong.reshape(-1).view(np.uint8)
        flat[-1] ^= 1
        return [wrong, *results[1:]]

    return fault


@pytest.mark.parametrize(
    ("op", "seed"),
    [(Op.TRANSPOSE, 0), (Op.CLAMP, 0), (Op.MATMUL, 0), (Op.CONCAT, 1)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_wrong_operator_is_found_named_and_reduced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, op: Op, seed: int
) -> None:
    plant(monkeypatch, {"good": healthy, "bad": breaks(op)})
    result = run(("good", "bad"), seed=seed, count=80, folder=tmp_path)
    assert op.name in {key.op for key in result.findings}
    for filed in result.findings.values():
        assert filed.key.kind is Kind.BITS
        assert filed.key.op == op.name
        assert filed.operators == 1, filed
        folder = Path(filed.folder)
        case = read_case(folder)
        with Judge(("good", "bad")) as judge:
            assert judge.judge(case).findings[0].key == filed.key
        document = json.loads((folder / "finding.json").read_text())
        assert document["operator"] == op.name
        assert (folder / "original.tosa").exists()


def test_findings_are_filed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, {"good": healthy, "bad": breaks(Op.RESHAPE)})
    told: list[Filed] = []
    request = Request(
        seed=1, count=30, backends=("good", "bad"), folder=tmp_path, reducing=0
    )
    result = fuzz(request, notice=told.append)
    assert len(told) == len(result.findings)
    assert len({f.key for f in told}) == len(told)
    assert any(len(f.graphs) > 1 for f in result.findings.values())
    assert len([d for d in tmp_path.iterdir() if d.is_dir()]) == len(told)


def test_a_run_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backends: dict[str, Planted] = {"good": healthy, "bad": breaks(Op.CONCAT)}
    plant(monkeypatch, backends)
    whole = run(backends, count=24, reducing=0)
    run(backends, count=10, folder=tmp_path, reducing=0)
    result = run(backends, count=24, folder=tmp_path, reducing=0)
    assert result.fresh == 14
    assert result.done == 24
    assert result.coverage.points == whole.coverage.points
    assert {k: f.graphs for k, f in result.findings.items()} == {
        k: f.graphs for k, f in whole.findings.items()
    }
    assert run(backends, count=24, folder=tmp_path, reducing=0).fresh == 0


def test_another_run_does_not_go_on_in_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, {"one": healthy, "two": healthy})
    run(("one", "two"), count=2, folder=tmp_path)
    with pytest.raises(InvalidArgument, match="another run"):
        run(("one", "two"), seed=2, count=2, folder=tmp_path)


def test_a_program_that_ends_the_process_twice_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, {"one": healthy, "two": healthy})
    run(("one", "two"), count=3, folder=tmp_path)
    journal = tmp_path / JOURNAL
    with journal.open("a") as file:
        file.write('{"begin": 3}\n{"beg')
    again = journal.read_text()
    result = run(("one", "two"), count=5, folder=tmp_path)
    assert not result.findings  # once: somebody may have stopped it
    journal.write_text(again.rpartition("\n")[0] + '\n{"begin": 3}\n')
    result = run(("one", "two"), count=5, folder=tmp_path)
    assert kinds(result) == {Kind.CRASHED}
    assert result.fresh == 1
    (filed,) = result.findings.values()
    assert filed.graphs == [3]
    assert read_case(Path(filed.folder)).graph == Generator(1).make(3).case.graph


# Real devices -----------------------------------------------------------------------

_ADD, _SUBTRACT = 129, 131  # OpFAdd, OpFSub


def without_sums(module: bytes) -> bytes:
    """The module with every addition of floats made a subtraction."""
    code = [word for (word,) in struct.iter_unpack("<I", module)]
    at = 5
    while at < len(code):
        count, opcode = code[at] >> 16, code[at] & 0xFFFF
        if opcode == _ADD:
            code[at] = count << 16 | _SUBTRACT
        at += count
    return struct.pack(f"<{len(code)}I", *code)


def test_a_wrong_kernel_is_found_named_and_reduced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = catalogue_library()
    spec = devices.first("vulkan")
    if not spec:
        pytest.skip("no Vulkan device")

    def read(name: str) -> bytes:
        module = right.read(name)
        return without_sums(module) if name.startswith("matmul") else module

    def opening() -> VulkanDevice:
        options = VulkanOptions(pipeline_cache=False)
        library = ShaderLibrary(right.kernels, read)
        return open_with(None, parse_spec(spec)[1], options, library=library)

    plant(monkeypatch, {"open_wrong": opening})
    result = run(("open_wrong", "reference"), seed=3, count=60, folder=tmp_path)
    assert {f.key.op for f in result.findings.values()} == {"MATMUL"}
    for filed in result.findings.values():
        assert filed.key.kind is Kind.RULE
        assert filed.operators <= 2, filed


def test_devices_agree_on_random_programs(
    available_devices: tuple[str, ...],
) -> None:
    backends = [spec for spec in available_devices if "SwiftShader" not in spec]
    if len(backends) < 2:
        pytest.skip("needs two of the devices")
    result = run(backends, seed=20, count=40)
    assert not result.findings, list(result.findings.values())
    assert result.done == 40
    assert len(result.coverage.points) > 40
    assert not result.left_out
