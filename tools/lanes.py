#!/usr/bin/env python3
"""Tries tosavk on every driver that runs without a GPU, and keeps the results.

    lanes.py list                 the lanes
    lanes.py run NAME ...         run lanes; results go to docs/portability/NAME.json
    lanes.py run all              all that can run here
    lanes.py table                write docs/portability.md from the kept results
    lanes.py table --check        whether it fits them
    lanes.py keep NAME REPORT     keep the JUnit report of a lane run by hand

What comes after `--` goes to pytest (lanes of tests) instead of being kept as the
lane's result. A lane whose driver cannot be had here is skipped and says why.

Exit codes: 0 all good, 1 something failed, 77 nothing could run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lane_compile
import lane_lifecycle
import lane_report
import lane_tests
from lane_drivers import ROOT, Start, start
from lane_report import RESULTS
from lane_table import LANES, Kind, Lane, lane
from newer_python import MissingError

SKIPPED = 77


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"[lane] {text}", flush=True)


def by_hand() -> list[str]:
    """The lanes that a person runs."""
    return [each.name for each in LANES if each.kind is Kind.HAND]


def run(each: Lane, arguments: Sequence[str]) -> bool:
    """Runs one lane and keeps its result; whether all was good.

    Raises:
        MissingError: its driver cannot be had here.
    """
    begin = time.monotonic()
    started = start(each)
    if each.kind is Kind.TESTS:
        outcome = lane_tests.run(each, started, arguments)
    elif each.kind is Kind.COMPILE:
        outcome = lane_compile.run(each, started)
    else:
        outcome = lane_lifecycle.run(each, started)
    seconds = time.monotonic() - begin
    good = not outcome.failures and not outcome.counts.get("failed")
    result: dict[str, Any] = {
        "lane": each.name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(seconds),
        "command": f"make lane LANE={each.name}",
        **asdict(outcome),
    }
    if not arguments:
        RESULTS.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        (RESULTS / f"{each.name}.json").write_text(text, encoding="utf-8")
    counts = ", ".join(f"{n} {what}" for what, n in outcome.counts.items())
    say(f"{each.name}: {counts} in {seconds:.0f} s on {outcome.driver}")
    for failure in outcome.failures:
        say(f"  {failure}")
    return good


def keep(each: Lane, options: argparse.Namespace) -> int:
    """Keeps what a person's run of the whole suite gave; 1 if something failed."""
    outcome, seconds = lane_tests.keep(options.report)
    outcome.device, outcome.driver = options.device, options.driver
    if not outcome.driver:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "typings")}
        found = lane_tests.ask(Start(sys.executable, environment), each.spec)
        outcome.device, outcome.driver = found["name"], found["driver"]
    outcome.details["validation"] = options.validation
    result: dict[str, Any] = {
        "lane": each.name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(seconds),
        "command": "by hand: docs/portability.md, By hand",
        **asdict(outcome),
    }
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{each.name}.json").write_text(text, encoding="utf-8")
    lane_report.main(check=False)
    return 1 if outcome.failures else 0


def run_all(names: Sequence[str], arguments: Sequence[str]) -> int:
    """Runs lanes one after the other."""
    chosen = LANES if list(names) == ["all"] else [lane(name) for name in names]
    ran = failed = 0
    for each in chosen:
        if each.kind is Kind.HAND:
            say(f"{each.name}: is run by hand (docs/portability.md)")
            continue
        say(f"{each.name}: {each.title}")
        try:
            good = run(each, arguments)
        except MissingError as missing:
            say(f"{each.name}: skipped: {missing}")
            continue
        except RuntimeError as broken:
            say(f"{each.name}: {broken}")
            good = False
        ran += 1
        failed += not good
    if not ran:
        return SKIPPED
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; see the module's text."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    further: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, further = words[:cut], words[cut + 1 :]
    parser = argparse.ArgumentParser(description="Tries tosavk on many drivers.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the lanes")
    runner = commands.add_parser("run", help="run lanes and keep their results")
    runner.add_argument("names", nargs="+", metavar="NAME")
    table = commands.add_parser("table", help="write docs/portability.md")
    table.add_argument("--check", action="store_true", help="only compare")
    keeper = commands.add_parser("keep", help="keep a report of a lane run by hand")
    keeper.add_argument("name", metavar="NAME", choices=by_hand())
    keeper.add_argument("report", metavar="REPORT", type=Path, help="JUnit XML")
    keeper.add_argument("--device", default="", help="its name (default: asked)")
    keeper.add_argument("--driver", default="", help="with version (default: asked)")
    keeper.add_argument("--validation", default="off", help="version of the layer")
    options = parser.parse_args(words)
    if options.command == "list":
        for each in LANES:
            print(f"{each.name:<24} {each.kind.value:<10} {each.title}")
        return 0
    if options.command == "table":
        return lane_report.main(check=options.check)
    if options.command == "keep":
        return keep(lane(options.name), options)
    try:
        code = run_all(options.names, further)
    except KeyError as error:
        print(f"[lane] error: {error.args[0]}", file=sys.stderr)
        return 1
    if not further:
        lane_report.main(check=False)
    return code


if __name__ == "__main__":
    sys.exit(main())
