"""docs/portability.md, written from the results that lanes keep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lane_table import LANES, Kind, Lane

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "portability"
PAGE = ROOT / "docs" / "portability.md"

Result = Mapping[str, Any]

_HEAD = """\
# Portability: which driver ran what

A lane is one driver, tried with one command:

    make lane LANE=lavapipe-13      one lane
    make lanes                      all that can run here, one after the other
    .venv/bin/python tools/lanes.py list

Lanes of tests run `tests/backends`, `tests/ops`, `tests/contract` and the official
programs of `tests/conformance` on one device of one driver, with the Khronos validation
layer that goes with it. Lanes of RADV compile every kernel without a GPU. The lane of the
mock ICD makes and gives back very many objects. What each lane found is kept in
`docs/portability/LANE.json`; this page is written from it (`tools/lanes.py table`), so
change it there.

Drivers newer than the system's are unpacked beside it (`tools/newer_debian.py`): no root,
nothing is installed. They run under the Python that comes with their Debian, hence also
with other versions of Python and pytest than the rest.

## Lanes

| lane | driver | version | passed | failed | expected to fail | skipped | known issues | date |
|---|---|---|---|---|---|---|---|---|
"""

_NOTES = """
"Expected to fail" are the entries of `tests/expected_failures.toml`, each with its cause.
Skipped tests are those of the other backend, of abilities that the device does not have,
and of parts that the driver's Python does not have. The causes that each lane counted are
in its file.

What is run by hand is told at the end.
"""

_RADV_HEAD = """
## RADV: registers

Mesa's compiler for AMD GPUs, without a GPU (`RADV_FORCE_FAMILY`, Mesa 24 and 25; Mesa 26
has it no longer: "AMD_FORCE_FAMILY has been removed. Please use AMDGPU drm-shim now").
Every module of the catalogue, every specialised variant and every NVFP4 kernel that the
GPU's plans take is compiled, with every value of its specialization words where they are
few, else of each word in turn. A pipeline that is refused or spills a register is a
failure. The most registers are those of the largest pipeline.

| GPU | pipelines | modules | subgroups | matrices | most SGPRs | most VGPRs | spilled | scratch | largest code |
|---|---|---|---|---|---|---|---|---|---|
"""

_FULL = """
The five kernels with the most vector registers on each GPU:

| GPU | kernels (VGPRs) |
|---|---|
"""

_HAND = """
## By hand

What has no driver here is run by a person, with all of `tests/`, and the table is kept:

    export TOSAVK_TEST_DEVICES=vulkan:NVIDIA,wgpu:NVIDIA,reference TOSAVK_REQUIRE_DEVICES=1
    export TOSAVK_VALIDATION=1 VK_ADD_LAYER_PATH=...     the folder of the layer's manifest
    export TOSAVK_SHARED=... TOSAVK_TOSA_TOOLS=...       official programs, official verifier
    .venv/bin/python -m pytest -n 12 --dist loadfile --timeout 200 --timeout-method thread \\
        --junit-xml=report.xml
    .venv/bin/python tools/lanes.py keep h200 report.xml --validation 1.4.364

`-n 12 --dist loadfile` is pytest-xdist's, which is installed beside; without it the tests run
in one process.
"""


def read() -> dict[str, Result]:
    """The kept results by lane."""
    found: dict[str, Result] = {}
    for each in LANES:
        path = RESULTS / f"{each.name}.json"
        if path.exists():
            found[each.name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def page(results: Mapping[str, Result]) -> str:
    """The text of docs/portability.md."""
    text = _HEAD + "".join(_row(each, results.get(each.name)) for each in LANES)
    text += _NOTES
    failures = "".join(_failures(each, results.get(each.name)) for each in LANES)
    if failures:
        text += f"\n## Failures\n\n{failures}"
    compiled = [
        (each, results[each.name])
        for each in LANES
        if each.kind is Kind.COMPILE and each.name in results
    ]
    if compiled:
        text += _RADV_HEAD + "".join(_registers(*pair) for pair in compiled)
        text += _FULL + "".join(_fullest(*pair) for pair in compiled)
        text += _left_out(compiled)
    mock = results.get("mock")
    if mock:
        text += _lives(mock)
    for each in LANES:
        result = results.get(each.name)
        if each.kind is Kind.HAND and result:
            text += _HAND + _by_hand(result)
    return text


_KINDS = ("passed", "failed", "expected failures", "skipped")


def _by_hand(result: Result) -> str:
    details = result["details"]
    text = (
        f"\n{result['device']}, {result['driver']}, {result['date']}, "
        f"{result['seconds']} s, validation layer: {details['validation']}.\n\n"
        "| tests | passed | failed | expected to fail | skipped |\n|---|---|---|---|---|\n"
    )
    rows = {**details["folders"], "all": result["counts"]}
    for name, counts in rows.items():
        shown = f"`{name}`" if name != "all" else name
        text += _line([shown, *(str(counts.get(kind, 0)) for kind in _KINDS)])
    text += "\n| why a test was skipped | how many |\n|---|---|\n"
    for reason, count in details["skips"].items():
        text += _line([reason, str(count)])
    return text


def _row(lane: Lane, result: Result | None) -> str:
    if result is None:
        cells = [f"`{lane.name}`", lane.title, "not run yet", *[""] * 4]
        return _line([*cells, lane.issues, ""])
    counts = result["counts"]
    numbers = [str(counts.get(key, 0)) for key in _KINDS]
    return _line(
        [
            f"`{lane.name}`",
            lane.title,
            result["driver"],
            *numbers,
            lane.issues or "none",
            result["date"],
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _failures(lane: Lane, result: Result | None) -> str:
    if result is None or not result["failures"]:
        return ""
    lines = "".join(f"- {failure}\n" for failure in result["failures"])
    return f"`{lane.name}`:\n\n{lines}\n"


def _registers(lane: Lane, result: Result) -> str:
    details = result["details"]
    rows: list[dict[str, int]] = [
        dict(zip(details["columns"], row, strict=True)) for row in _modules(result)
    ]

    def most(name: str) -> int:
        return max(row[name] for row in rows)

    shapes = ", ".join("x".join(map(str, s)) for s in details["matrix_shapes"])
    sizes = sorted(set(details["subgroup_sizes"]))
    return _line(
        [
            lane.family,
            str(sum(row["pipelines"] for row in rows)),
            str(len(rows)),
            " or ".join(map(str, sizes)),
            shapes or "none",
            str(most("sgprs")),
            str(most("vgprs")),
            str(most("spilled_sgprs") + most("spilled_vgprs")),
            f"{most('scratch_bytes')} B",
            f"{most('code_bytes')} B",
        ]
    )


def _modules(result: Result) -> list[list[int]]:
    return list(result["details"]["modules"].values())


def _fullest(lane: Lane, result: Result) -> str:
    columns: list[str] = result["details"]["columns"]
    at = columns.index("vgprs")
    modules: dict[str, list[int]] = result["details"]["modules"]
    order = sorted((-numbers[at], name) for name, numbers in modules.items())
    names = ", ".join(f"{name} ({-vgprs})" for vgprs, name in order[:5])
    return _line([lane.family, names])


def _left_out(compiled: Iterable[tuple[Lane, Result]]) -> str:
    text = ""
    for lane, result in compiled:
        reasons: dict[str, list[str]] = {}
        for kernel, reason in result["details"]["left_out"].items():
            reasons.setdefault(reason, []).append(kernel)
        for reason, kernels in sorted(reasons.items()):
            text += f"- {lane.family}: {', '.join(sorted(kernels))}: {reason}.\n"
    if text:
        text = f"\nNot compiled, since the backend would not take them there:\n\n{text}"
    besides = ""
    for lane, result in compiled:
        for name, trouble in result["details"]["besides"].items():
            besides += f"- {lane.family}: {name}: {trouble or 'fine'}.\n"
    if besides:
        text += (
            "\nCompiled besides: kernels with a subgroup size that the GPU allows and "
            f"the backend does not\nask for. They do not count above.\n\n{besides}"
        )
    return text


def _lives(result: Result) -> str:
    details = dict(result["details"])
    details.pop("seconds", None)
    text = "\n## The mock ICD: lives at scale\n\n| what | how many |\n|---|---|\n"
    for name, number in details.items():
        shown = f"{number:,}" if isinstance(number, int) else str(number)
        text += _line([name, shown])
    return text + (
        "\nEvery object is counted at the function table: none is left at the end of any "
        "kind of\nlife, and none is destroyed twice.\n"
    )


def main(*, check: bool) -> int:
    """Writes the page, or says whether it fits the kept results."""
    text = page(read())
    if check:
        fits = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        if not fits:
            print("docs/portability.md does not fit docs/portability/*.json")
        return 0 if fits else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0
