#!/usr/bin/env python3
"""Writes docs/op-support.md from the results of `make conformance`.

op_support.py [RESULTS.jsonl ...]     default: build/conformance/*.jsonl
"""

import json
import sys
from collections import defaultdict
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


def main() -> int:
    """Reads the results and writes the page."""
    given = [Path(name) for name in sys.argv[1:]]
    files = given or sorted((ROOT / "build" / "conformance").glob("*.jsonl"))
    counts: dict[str, dict[str, dict[str, list[int]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(lambda: [0, 0]))
    )
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            if not result.get("dtype"):
                continue
            cell = counts[result["backend"]][result["operator"]][result["dtype"]]
            cell[0] += result["status"] == "passed"
            cell[1] += 1
    if not counts:
        print("no results: run make conformance first", file=sys.stderr)
        return 1
    lines = [
        "# Operator support",
        "",
        "Official TOSA 1.0 tests passed, of those there are, by operator and type of the",
        "first data operand. Written by `tools/op_support.py` from the results of",
        "`make conformance`; drivers and versions are in [conformance](conformance/).",
    ]
    for backend in sorted(counts):
        rows = counts[backend]
        used = [t for t in TYPES if any(t in row for row in rows.values())]
        lines += ["", f"## `{backend}`", "", f"| operator | {' | '.join(used)} |"]
        lines.append("|---" + "|--:" * len(used) + "|")
        for operator in sorted(rows):
            cells = [rows[operator].get(t) for t in used]
            shown = [f"{c[0]}/{c[1]}" if c else "" for c in cells]
            lines.append(f"| {operator} | {' | '.join(shown)} |")
    target = ROOT / "docs" / "op-support.md"
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {target.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
