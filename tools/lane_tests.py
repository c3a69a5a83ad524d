"""A lane of tests: pytest on one device with one driver, and what came of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lane_drivers import ROOT, Start, package_version
from lane_table import Home, Lane

TESTS = ("tests/backends", "tests/ops", "tests/contract", "tests/conformance")
WITHOUT_DEVICE = ("tests/ops/test_reference_*.py", "tests/ops/test_lowering_plans.py")
MAX_FAILURES = 40

_ASK = """
import json, sys, tosavk
found = [d for d in tosavk.devices() if d.backend == sys.argv[1]]
part = sys.argv[2].casefold()
found = [d for d in found if part in f"{d.name} {d.driver}".casefold()]
usable = [d for d in found if d.usable] or found
d = usable[0] if usable else None
print(json.dumps(d and {"name": d.name, "driver": d.driver, "reason": d.reason}))
"""


@dataclass
class Outcome:
    """What came of a lane.

    Attributes:
        device: name of the device.
        driver: name and version of its driver.
        counts: how many of each thing: "passed", "failed", ...
        failures: what failed, one line each.
        details: further numbers.
    """

    device: str = ""
    driver: str = ""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[str] = field(default_factory=list[str])
    details: dict[str, Any] = field(default_factory=dict[str, Any])


def ask(start: Start, spec: str) -> dict[str, str]:
    """Name and driver of a lane's device.

    Raises:
        RuntimeError: it is not there.
    """
    import json

    backend, _, part = spec.partition(":")
    done = subprocess.run(
        [start.python, "-c", _ASK, backend, part],
        cwd=ROOT,
        env=start.environment,
        check=False,
        capture_output=True,
        text=True,
    )
    answer = done.stdout.strip().splitlines()
    found = json.loads(answer[-1]) if done.returncode == 0 and answer else None
    if found is None:
        raise RuntimeError(f"no device {spec}: {done.stderr.strip()[-400:]}")
    return {key: str(value) for key, value in found.items()}


def run(lane: Lane, start: Start, arguments: Sequence[str]) -> Outcome:
    """Runs the tests of a lane.

    Args:
        lane: the lane.
        start: its Python and driver.
        arguments: further arguments for pytest.
    """
    found = ask(start, lane.spec)
    environment = {
        "TOSAVK_VALIDATION": "1",
        **start.environment,
        "TOSAVK_TEST_DEVICES": lane.spec,
        "TOSAVK_REQUIRE_DEVICES": lane.spec,
    }
    with tempfile.TemporaryDirectory(prefix="tosavk-lane-") as folder:
        report = Path(folder) / "report.xml"
        command = [start.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-r", "fE", f"--junit-xml={report}", "-o", "junit_logging=no"]
        command += [f"--ignore-glob={each}" for each in WITHOUT_DEVICE]
        done = subprocess.run(
            [*command, *TESTS, *arguments], cwd=ROOT, env=environment, check=False
        )
        if not report.exists():
            raise RuntimeError(f"pytest ended with {done.returncode} and no report")
        outcome = read(report)
    outcome.device, outcome.driver = found["name"], found["driver"]
    if lane.home is Home.SWIFTSHADER:  # its own version never changes
        outcome.driver += f", chromium {package_version('chromium')}"
    outcome.details["validation"] = environment["TOSAVK_VALIDATION"] == "1"
    return outcome


_PROMISE = re.compile(r"[a-z]+\.[a-z-]+: ")
"""The contract's cases say their name first."""

_NONE = re.compile(r"got empty parameter set \W*(?:for \()?(\w+).*")
"""What pytest says, with a path in some versions, where a list of devices is empty."""


@dataclass(frozen=True)
class Case:
    """One test of a JUnit report.

    Attributes:
        name: module, perhaps class, and name of the test, with dots.
        kind: "passed", "failed", "expected failures" or "skipped".
        message: why, on one line.
    """

    name: str
    kind: str
    message: str


def cases(report: Path) -> Iterator[Case]:
    """Reads a JUnit report; a test that fails and whose clean-up fails counts once."""
    for case in ET.parse(report).getroot().iter("testcase"):
        kind, message = "passed", ""
        for child in case:
            said = (child.get("message") or "").splitlines()
            if child.tag in ("failure", "error"):
                kind, message = "failed", said[0] if said else child.tag
            elif child.tag == "skipped":
                expected = child.get("type") == "pytest.xfail"
                kind = "expected failures" if expected else "skipped"
                message = _cause(said[0]) if said else ""
        message = message.replace(f"{ROOT}/", "")
        yield Case(f"{case.get('classname')}.{case.get('name')}", kind, message)


def _cause(message: str) -> str:
    """Why a test was skipped, the same for all tests with that cause."""
    return _NONE.sub(r"no \1", _PROMISE.sub("", message, count=1))


def read(report: Path) -> Outcome:
    """Counts what a JUnit report holds."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    skips: Counter[str] = Counter()
    for case in cases(report):
        counts[case.kind] += 1
        if case.kind == "failed":
            failures.append(f"{case.name}: {case.message}"[:300])
        elif case.kind == "skipped":
            skips[case.message[:120]] += 1
    details = {"skips": dict(skips.most_common(12))}
    return Outcome(
        counts=dict(counts), failures=failures[:MAX_FAILURES], details=details
    )


def keep(report: Path) -> tuple[Outcome, float]:
    """Counts a report of the whole suite, which a person has run: folder by folder.

    Returns:
        The outcome without device and driver, and how many seconds it took.
    """
    outcome = read(report)
    folders: dict[str, Counter[str]] = {}
    skips: Counter[str] = Counter()
    for case in cases(report):
        folder = "/".join(case.name.split(".")[:2])
        folders.setdefault(folder, Counter())[case.kind] += 1
        if case.kind == "skipped":
            skips[case.message] += 1
    outcome.details = {
        "folders": {name: dict(folders[name]) for name in sorted(folders)},
        "skips": dict(skips.most_common()),
    }
    suites = ET.parse(report).getroot().iter("testsuite")
    return outcome, sum(float(suite.get("time") or 0) for suite in suites)
