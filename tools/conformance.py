#!/usr/bin/env python3
"""Generates the full official TOSA 1.0 test suite and runs all of it, resumable.

    conformance.py [--backend S]... [--operators add conv2d ...] [--only-generate]

The official generator (package tosa-tools, in build/tosa-full-venv) writes some 14,000
tests (3 GB, about 40 minutes on two cores) to build/conformance/tests, one operator
after the other; what is there is not generated again. Each operator is run as soon as
it is there; results are kept in build/conformance/BACKEND.jsonl, and what they hold is
not run again. At the end a table for each backend is written to docs/conformance/, and
docs/op-support.md from all results. Exit codes: 0 all passed or not supported, 1 a test
failed, or none was run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import bootstrap
import op_support
from make_model import CONVERTER

ROOT = bootstrap.ROOT
WORK = ROOT / "build" / "conformance"
VENV = ROOT / "build" / "tosa-full-venv"
TABLES = ROOT / "docs" / "conformance"
EXTENSIONS = [
    "bf16",
    "controlflow",
    "doubleround",
    "dynamic",
    "fft",
    "fp8e4m3",
    "fp8e5m2",
    "inexactround",
    "int16",
    "int4",
    "variable",
]
OPERATORS = [
    "abs",
    "add",
    "argmax",
    "arithmetic_right_shift",
    "avg_pool2d",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cast",
    "ceil",
    "clamp",
    "clz",
    "concat",
    "cond_if",
    "const",
    "conv2d",
    "conv3d",
    "cos",
    "depthwise_conv2d",
    "equal",
    "erf",
    "exp",
    "fft2d",
    "floor",
    "gather",
    "greater",
    "greater_equal",
    "identity",
    "intdiv",
    "log",
    "logical_and",
    "logical_left_shift",
    "logical_not",
    "logical_or",
    "logical_right_shift",
    "logical_xor",
    "matmul",
    "max_pool2d",
    "maximum",
    "minimum",
    "mul",
    "negate",
    "pad",
    "pow",
    "reciprocal",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_min",
    "reduce_product",
    "reduce_sum",
    "rescale",
    "reshape",
    "resize",
    "reverse",
    "rfft2d",
    "rsqrt",
    "scatter",
    "select",
    "sigmoid",
    "sin",
    "slice",
    "sub",
    "table",
    "tanh",
    "tile",
    "transpose",
    "transpose_conv2d",
    "while_loop",
]


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"[conformance] {text}", flush=True)


def generator() -> Path:
    """The official generator; installs it if need be."""
    program = VENV / "bin" / "tosa_verif_conformance_generator"
    given = os.environ.get("TOSAVK_TOSA_TOOLS")
    if given and (Path(given) / "bin" / program.name).exists():
        return Path(given) / "bin" / program.name
    if not program.exists():
        VENV.parent.mkdir(parents=True, exist_ok=True)
        bootstrap.make_venv(VENV)
        bootstrap.pip_install(VENV, CONVERTER[1])
    return program


def generate(operator: str) -> Path:
    """Generates the tests of one operator, if they are not there."""
    target = WORK / "tests" / operator
    if (target / "complete").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    scratch = WORK / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    say(f"generating {operator}")
    program = generator()
    command = [str(program), "--tosa-version", "1.0", "--profile", "all", "-j", "2"]
    command += ["--extension", *(f"tosa-ext-{name}" for name in EXTENSIONS)]
    command += ["--output-type", "binary", "--operators", operator]
    command += ["--build-directory", str(scratch / "build")]
    command += ["--output-directory", str(scratch / "out")]
    # The reference model attaches a debugger to itself on errors where one is installed.
    environment = dict(os.environ, PATH=str(program.parent))
    log = WORK / f"generate-{operator}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as stream:
        done = subprocess.run(
            command, env=environment, stdout=stream, stderr=stream, check=False
        )
    if done.returncode != 0:
        raise bootstrap.SetupError(f"the generator failed for {operator}: see {log}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(scratch / "out", target)
    shutil.rmtree(scratch, ignore_errors=True)
    (target / "complete").touch()
    return target


def run(folder: Path, backend: str) -> None:
    """Runs the tests of one operator on a backend."""
    command = [sys.executable, "-m", "tosavk", "conformance", str(folder)]
    command += ["--backend", backend, "--resume", str(results_file(backend))]
    with (WORK / "run.log").open("a", encoding="utf-8") as stream:
        subprocess.run(command, stdout=stream, check=False)


def lack(backend: str) -> str:
    """Why a backend cannot be opened, or ""."""
    import tosavk

    try:
        tosavk.open(backend).close()
    except tosavk.Error as error:
        return str(error)
    return ""


def results_file(backend: str) -> Path:
    """Where the results of a backend are kept."""
    return WORK / f"{backend.replace(':', '-')}.jsonl"


def not_run(rows: dict[str, dict[str, int]]) -> list[str]:
    """Generated tests that have no result, by operator."""
    missing: list[str] = []
    for operator in OPERATORS:
        total = sum(1 for _ in (WORK / "tests" / operator).rglob("desc.json"))
        lack = total - sum(rows.get(operator, {}).values())
        if lack > 0:
            missing.append(f"{lack} of {total} of {operator}")
    return missing


def write_table(backend: str) -> bool:
    """Writes the table of a backend, with driver and versions.

    Returns:
        Whether there are results, and none has failed.
    """
    path = results_file(backend)
    if not path.exists() or not path.stat().st_size:
        say(f"{backend}: no test was run")
        return False
    rows: dict[str, dict[str, int]] = {}
    failures: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        row = rows.setdefault(result["operator"], {})
        row[result["status"]] = row.get(result["status"], 0) + 1
        if result["status"] != "passed":
            failures.append(
                f"- {result['operator']}/{result['name']}: {result['status']}: "
                f"{result['reason']}"
            )
    import tosavk

    with tosavk.open(backend) as accelerator:
        device = accelerator.name
    lines = [
        f"# Official TOSA 1.0 tests on `{backend}`",
        "",
        f"{device}; tosavk {tosavk.__version__}; {CONVERTER[1]}; "
        f"{datetime.datetime.now(tz=datetime.UTC).date()}.",
        "All profiles and extensions of TOSA 1.0, seed 42; `make conformance`.",
        "",
        "| operator | passed | failed | unsupported |",
        "|---|--:|--:|--:|",
    ]
    states = ("passed", "failed", "unsupported")
    for operator, row in sorted(rows.items()):
        counts = " | ".join(str(row.get(state, 0)) for state in states)
        lines.append(f"| {operator} | {counts} |")
    totals = [sum(row.get(state, 0) for row in rows.values()) for state in states]
    lines.append(f"| **all** | {' | '.join(f'**{n}**' for n in totals)} |")
    missing = not_run(rows)
    if missing:
        lines += ["", "Not run on this driver: " + ", ".join(missing) + "."]
    if failures:
        lines += ["", "## Not passed", "", *failures]
    TABLES.mkdir(parents=True, exist_ok=True)
    name = f"{backend.replace(':', '-')}.md"
    (TABLES / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    say(f"{backend}: {totals[0]} passed, {totals[1]} failed, {totals[2]} unsupported")
    return totals[1] == 0


def main() -> int:
    """Runs the command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Runs the full official test suite.")
    parser.add_argument(
        "--backend",
        action="append",
        metavar="S",
        help="backend specification (repeatable; default vulkan:llvmpipe, wgpu:llvmpipe)",
    )
    parser.add_argument(
        "--operators",
        nargs="+",
        choices=OPERATORS,
        metavar="OP",
        help="only tests of these, in TOSA's lower-case spelling (default: all)",
    )
    parser.add_argument(
        "--only-generate", action="store_true", help="write the tests, run none"
    )
    options = parser.parse_args()
    backends = options.backend or ["vulkan:llvmpipe", "wgpu:llvmpipe"]
    if not options.only_generate:
        for backend in backends:
            reason = lack(backend)
            if reason:
                print(f"[conformance] error: {reason}", file=sys.stderr)
                return 1
    try:
        for operator in options.operators or OPERATORS:
            folder = generate(operator)
            if not options.only_generate:
                for backend in backends:
                    run(folder, backend)
    except bootstrap.SetupError as error:
        print(f"[conformance] error: {error}", file=sys.stderr)
        return 1
    if options.only_generate:
        return 0
    good = [write_table(backend) for backend in backends]
    op_support.main([])
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
