#!/usr/bin/env python3
"""Writes docs/op-support.md from results of the official tests: any backend and driver.

op_support.py [RESULTS.jsonl ...]     default: build/conformance/*.jsonl

Results are what `tools/conformance.py --backend S` and `tosavk conformance --resume`
keep. The name of a driver is that in docs/conformance/, which conformance.py writes.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TYPES = [
    "BOOL",
    "INT4",
    "INT8",
    "INT16",
    "INT32",
    "INT48",
    "FP32",
    "FP16",
    "BF16",
    "FP8E4M3",
    "FP8E5M2",
    "SHAPE",
]

Counts = dict[tuple[str, str], dict[str, list[int]]]


def counted(files: Iterable[Path]) -> Counts:
    """Tests passed and run, by operator and type, and then by backend."""
    counts: Counts = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            # Tests that must be refused may have no type.
            if not result.get("dtype"):
                continue
            cell = counts[result["operator"], result["dtype"]][result["backend"]]
            cell[0] += result["status"] == "passed"
            cell[1] += 1
    return counts


def driver_of(backend: str, tables: Path) -> str:
    """Device, driver and date of a backend's results, as its table says."""
    path = tables / f"{backend.replace(':', '-')}.md"
    if not path.is_file():
        return "unknown"
    return path.read_text(encoding="utf-8").splitlines()[2].rstrip(".")


def page(counts: Counts, tables: Path) -> str:
    """The page."""
    backends = sorted({name for row in counts.values() for name in row})
    lines = [
        "# Operator support",
        "",
        "Official TOSA 1.0 tests passed, of those there are, by operator and type of the",
        "first data operand, for each backend and driver. Tests that must be refused and",
        "name no type are not counted. Written by `tools/op_support.py` from the results",
        "of `make conformance`; tables by operator are in [conformance](conformance/).",
        "",
    ]
    lines += [f"- `{name}`: {driver_of(name, tables)}" for name in backends]
    heads = " | ".join(f"`{name}`" for name in backends)
    lines += [
        "",
        f"| operator | type | {heads} |",
        f"|---|---|{'--:|' * len(backends)}",
    ]
    totals = {name: [0, 0] for name in backends}
    order = {name: place for place, name in enumerate(TYPES)}
    for operator, dtype in sorted(counts, key=lambda key: (key[0], order[key[1]])):
        cells: list[str] = []
        for name in backends:
            passed, run = counts[operator, dtype].get(name, [0, 0])
            totals[name][0] += passed
            totals[name][1] += run
            cells.append(f"{passed}/{run}" if run else "-")
        lines.append(f"| {operator} | {dtype} | {' | '.join(cells)} |")
    sums = " | ".join(f"**{totals[n][0]}/{totals[n][1]}**" for n in backends)
    lines.append(f"| **all** | | {sums} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the results and writes the page."""
    given = [Path(n) for n in (sys.argv[1:] if arguments is None else arguments)]
    missing = [str(name) for name in given if not name.is_file()]
    if missing:
        print(f"op_support.py: no such file: {', '.join(missing)}", file=sys.stderr)
        return 2
    files = given or sorted((ROOT / "build" / "conformance").glob("*.jsonl"))
    counts = counted(files)
    if not counts:
        print("no results: run make conformance first", file=sys.stderr)
        return 1
    target = ROOT / "docs" / "op-support.md"
    target.write_text(page(counts, ROOT / "docs" / "conformance"), encoding="utf-8")
    print(f"wrote {target.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
