"""A lane that only compiles: every pipeline, its registers, and no spills."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from lane_drivers import ROOT, Start
from lane_table import Lane
from lane_tests import MAX_FAILURES, Outcome

COLUMNS = (
    "sgprs",
    "vgprs",
    "spilled_sgprs",
    "spilled_vgprs",
    "scratch_bytes",
    "shared_bytes",
    "code_bytes",
)


def run(lane: Lane, start: Start) -> Outcome:
    """Compiles everything with the lane's compiler.

    Raises:
        RuntimeError: the compiler's process failed.
    """
    path = f"{start.environment['PYTHONPATH']}:{ROOT / 'tools'}"
    script = str(ROOT / "tools" / "compile_pipelines.py")
    done = subprocess.run(
        [start.python, script, lane.family],
        cwd=ROOT,
        env={**start.environment, "PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"compiling failed: {done.stderr.strip()[-800:]}")
    return judge(json.loads(done.stdout))


def judge(document: Mapping[str, Any]) -> Outcome:
    """What the pipelines of a compiler's document come to.

    A pipeline that is refused, that spills, or whose numbers are not told is a failure,
    if the backend makes it on this device. What it would make if it chose another
    subgroup size, which it does not, is noted besides.
    """
    modules: dict[str, list[int]] = {}
    besides: dict[str, str] = {}
    failures: list[str] = []
    count = failed = 0
    for each in document["pipelines"]:
        trouble = _trouble(each)
        size = each.get("subgroup_size", 0)
        if size:
            name = f"{each['kernel']}, subgroups of {size}"
            besides[name] = trouble or besides.get(name, "")
            continue
        count += 1
        if trouble:
            failed += 1
            if len(failures) < MAX_FAILURES:
                failures.append(
                    f"{each['module']} {tuple(each['spec'])} x{each['width']}: {trouble}"
                )
        numbers = [int(each.get(name, 0)) for name in COLUMNS]
        before = modules.get(each["module"], [0] * (1 + len(COLUMNS)))
        most = [max(a, b) for a, b in zip(before[1:], numbers, strict=True)]
        modules[each["module"]] = [before[0] + 1, *most]
    return Outcome(
        device=document["device"],
        driver=document["driver"],
        counts={"passed": count - failed, "failed": failed},
        failures=failures,
        details={
            "subgroup_sizes": document["subgroup_sizes"],
            "matrix_shapes": document["matrix_shapes"],
            "left_out": document["left_out"],
            "besides": besides,
            "columns": ["pipelines", *COLUMNS],
            "modules": modules,
        },
    )


def _trouble(each: Mapping[str, Any]) -> str:
    """Why a pipeline is a failure; "" if it is none."""
    if "error" in each:
        return str(each["error"])
    if "vgprs" not in each:
        return "the driver tells no registers"
    spills = (each["spilled_sgprs"], each["spilled_vgprs"])
    if any(spills):
        return f"spills {spills[0]} scalar and {spills[1]} vector registers"
    return ""
