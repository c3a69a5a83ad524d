"""The lanes: what counts as a failure, what is compiled, and the page of their results."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest

from tosavk.shaders.catalogue import KERNELS
from tosavk.shaders.variants import baked_words, combinations, module_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])


def pipeline(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    made: dict[str, Any] = {
        "kernel": "unary",
        "module": "unary/11.3",
        "spec": [11, 3, 0],
        "width": 64,
        "sgprs": 16,
        "vgprs": 12,
        "spilled_sgprs": 0,
        "spilled_vgprs": 0,
    }
    return made | changes


def document(*pipelines: dict[str, Any]) -> dict[str, Any]:
    return {
        "device": "Null hardware",
        "driver": "radv",
        "subgroup_sizes": [32, 64],
        "matrix_shapes": [],
        "left_out": {},
        "pipelines": list(pipelines),
    }


def test_registers_are_kept_for_each_module() -> None:
    import lane_compile

    found = lane_compile.judge(document(pipeline(), pipeline(vgprs=20, sgprs=8)))
    assert not found.failures
    assert found.counts == {"passed": 2, "failed": 0}
    assert found.details["modules"]["unary/11.3"][:3] == [2, 16, 20]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spilled_vgprs": 3}, "spills 0 scalar and 3 vector"),
        ({"spilled_sgprs": 1}, "spills 1 scalar"),
        ({"error": "refused"}, "refused"),
        ({"vgprs": None}, "tells no registers"),
    ],
)
def test_what_fails_a_lane_of_a_compiler(changes: dict[str, Any], words: str) -> None:
    import lane_compile

    broken = {k: v for k, v in pipeline(**changes).items() if v is not None}
    found = lane_compile.judge(document(pipeline(), broken))
    assert found.counts == {"passed": 1, "failed": 1}
    assert len(found.failures) == 1
    assert words in found.failures[0]
    assert "unary/11.3 (11, 3, 0) x64" in found.failures[0]


def test_another_subgroup_size_is_noted_besides() -> None:
    import lane_compile

    other = pipeline(subgroup_size=32, spilled_vgprs=3)
    found = lane_compile.judge(document(pipeline(), other))
    assert found.counts == {"passed": 1, "failed": 0}
    (note,) = found.details["besides"].values()
    assert "3 vector" in note


def test_every_module_is_compiled() -> None:
    import pipeline_keys

    for kernel in KERNELS:
        if kernel.name.startswith("nvfp4_"):
            continue
        places = baked_words(kernel)
        wanted: set[str] = set() if places else {kernel.name}
        for combination in combinations(kernel):
            spec = [0] * len(kernel.spec)
            for place, word in zip(places, combination, strict=True):
                spec[place] = word
            wanted.add(module_name(kernel, spec))
        compiled = {module_name(kernel, spec) for spec in pipeline_keys.specs(kernel)}
        assert wanted <= compiled, kernel.name
        # The general module too, where there is a type that has none of its own.
        last = kernel.spec[places[-1]] if places else ""
        assert (kernel.name in compiled) == (not places or last.endswith("TYPE"))


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"/>
<testcase classname="tests.a" name="two"><failure message="wrong&#10;more"/></testcase>
<testcase classname="tests.a" name="three"><skipped type="pytest.skip" message="no GPU"/>
</testcase>
<testcase classname="tests.a" name="four"><skipped type="pytest.xfail" message="known"/>
</testcase>
</testsuite></testsuites>"""


def test_a_report_of_tests_is_counted(tmp_path: Path) -> None:
    import lane_tests

    path = tmp_path / "report.xml"
    path.write_text(REPORT, encoding="utf-8")
    found = lane_tests.read(path)
    assert found.counts == {
        "passed": 1,
        "failed": 1,
        "skipped": 1,
        "expected failures": 1,
    }
    assert found.failures == ["tests.a.two: wrong"]
    assert found.details["skips"] == {"no GPU": 1}


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("got empty parameter set ['gpu'], function test_x at {root}/a.py:3", "no gpu"),
        ("got empty parameter set for (gpu)", "no gpu"),
        ("memory.shared: no such memory", "no such memory"),
        ("not without {root}/build/x", "not without build/x"),
    ],
)
def test_causes_are_alike_and_without_paths(
    tmp_path: Path, message: str, cause: str
) -> None:
    import lane_tests

    path = tmp_path / "report.xml"
    said = quoteattr(message.format(root=ROOT))
    case = f'<testcase classname="a" name="b"><skipped message={said}/></testcase>'
    path.write_text(f"<testsuite>{case}</testsuite>", encoding="utf-8")
    assert lane_tests.read(path).details["skips"] == {cause: 1}


def test_a_report_of_a_run_by_hand_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lane_report
    import lanes

    monkeypatch.setattr(lanes, "RESULTS", tmp_path)
    monkeypatch.setattr(lane_report, "RESULTS", tmp_path)
    monkeypatch.setattr(lane_report, "PAGE", tmp_path / "page.md")
    path = tmp_path / "report.xml"
    more = """<testcase classname="tests.b.C" name="five">
<skipped type="pytest.skip" message="gate.holds: no GPU"/></testcase></testsuite>"""
    text = REPORT.replace("<testsuite>", '<testsuite time="61.7">')
    path.write_text(text.replace("</testsuite>", more, 1), encoding="utf-8")
    words = ["keep", "h200", str(path), "--device", "Card", "--driver", "Driver 1"]
    assert lanes.main(words) == 1
    kept = json.loads((tmp_path / "h200.json").read_text(encoding="utf-8"))
    assert (kept["seconds"], kept["device"]) == (62, "Card")
    assert kept["counts"]["skipped"] == 2
    assert kept["details"]["skips"] == {"no GPU": 2}
    assert kept["details"]["folders"]["tests/b"] == {"skipped": 1}
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| `tests/a` | 1 | 1 | 1 | 1 |\n| `tests/b` | 0 | 0 | 0 | 1 |\n" in page
    assert "| all | 1 | 1 | 1 | 2 |" in page


def test_lanes_have_names_of_their_own() -> None:
    import lane_table

    names = [lane.name for lane in lane_table.LANES]
    assert len(set(names)) == len(names)
    with pytest.raises(KeyError, match="no lane 'lava'"):
        lane_table.lane("lava")


def test_the_page_fits_the_kept_results() -> None:
    import lane_report

    results = lane_report.read()
    text = lane_report.page(results)
    assert lane_report.PAGE.read_text(encoding="utf-8") == text, (
        "run tools/lanes.py table"
    )
    for name, result in results.items():
        assert result["lane"] == name
        assert f"`{name}`" in text


def test_kept_results_are_those_of_lanes() -> None:
    import lane_table

    names = {lane.name for lane in lane_table.LANES}
    for path in (ROOT / "docs" / "portability").glob("*.json"):
        assert path.stem in names
        text = path.read_text(encoding="utf-8")
        json.loads(text)
        assert not re.search(r"[\s'\"(]/\w+/\w", text), f"{path.name}: a path"
