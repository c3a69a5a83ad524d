"""Runs official TOSA tests on backends and judges the results by TOSA's rules.

The reference is our own, in binary64, with the bounds that the rules take; the rule is
the one that the test's description states (docs/numerics.md).
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from tosavk.backends.reference import Expected, Note, evaluate, expect
from tosavk.backends.session import Session
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import coerce
from tosavk.core.errors import DeviceLost, Error, InvalidArgument, Unsupported
from tosavk.differential.official_tests import Array, OfficialTest
from tosavk.differential.rules import judge
from tosavk.lowering.graph import Graph, Op
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph


class Status(enum.Enum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test on one backend.

    Attributes:
        operator: operator under test.
        name: test name.
        backend: backend specification.
        status: how it ended.
        reason: what is wrong, or not supported.
        dtype: type of the operator's data operand, "" for a refused program.
    """

    __test__ = False  # for pytest, which takes the name for a test

    operator: str
    name: str
    backend: str
    status: Status
    reason: str = ""
    dtype: str = ""

    def line(self) -> str:
        """The result as a line of JSON."""
        return json.dumps({**asdict(self), "status": self.status.value})

    @classmethod
    def parse(cls, line: str) -> TestResult:
        """Reads a line of `line`.

        Raises:
            InvalidArgument: it is something else.
        """
        try:
            data: dict[str, str] = json.loads(line)
            return cls(
                operator=data["operator"],
                name=data["name"],
                backend=data["backend"],
                status=Status(data["status"]),
                reason=data["reason"],
                dtype=data.get("dtype", ""),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument(f"not a result line: {line[:80]!r}") from error


@dataclass(frozen=True, slots=True)
class Case:
    """A test that is read once and run on every backend.

    Attributes:
        test: its description.
        graph: the verified program, or why it was refused.
        expected: what each judged output should be.
        inputs: the inputs by name.
    """

    test: OfficialTest
    graph: Graph | Error
    expected: Mapping[str, Expected]
    inputs: Mapping[str, Array]


def prepare(test: OfficialTest) -> Case:
    """Reads a test's program and inputs and computes what must come out.

    Raises:
        InvalidArgument: a file of the test is missing or broken.
    """
    inputs = test.arrays()
    data = test.program_bytes()
    try:
        graph = load_graph(data)
        expected = {} if test.must_fail else _expected(test, graph, inputs)
    except Error as error:
        return Case(test, error, {}, inputs)
    return Case(test, graph, expected, inputs)


def _expected(
    test: OfficialTest, graph: Graph, inputs: Mapping[str, Array]
) -> dict[str, Expected]:
    """What each output should be, by the operator that makes it."""
    block = graph.main
    for name in test.outputs:
        if name not in block.outputs:
            raise InvalidArgument(f"the program has no output {name!r}")
    given = {
        name: coerce(name, block.tensors[name].dtype, inputs[name])
        for name in block.inputs
        if name in inputs
    }
    with np.errstate(all="ignore"):
        values = evaluate(graph, given)
        found: dict[str, Expected] = {}
        for op in block.operators:
            if not any(name in test.outputs for name in op.outputs):
                continue
            notes: list[Note] = []
            operands = [values[name] for name in op.inputs]
            if op.op in (Op.CONST, Op.CONST_SHAPE):
                results = [Expected(values[name]) for name in op.outputs]
            else:
                results = expect(op, block, operands, graph=graph, notes=notes)
            found |= dict(zip(op.outputs, results, strict=True))
        for name in test.outputs:
            found.setdefault(name, Expected(values[name]))
    return found


def run_case(case: Case, spec: str, accelerator: Accelerator) -> TestResult:
    """Runs a test on one backend.

    Raises:
        DeviceLost: the device is gone.
    """
    test = case.test

    def ended(status: Status, reason: str = "") -> TestResult:
        dtype = "" if isinstance(case.graph, Error) else _dtype(test, case.graph)
        return TestResult(test.operator, test.name, spec, status, reason, dtype)

    if isinstance(case.graph, Error):
        if test.must_fail:
            return ended(Status.PASSED)
        status = (
            Status.UNSUPPORTED if isinstance(case.graph, Unsupported) else Status.FAILED
        )
        return ended(status, str(case.graph))
    try:
        limits = accelerator.device.plan_limits
        with Session(accelerator, lower_graph(case.graph, limits=limits)) as session:
            outputs = session.run(case.inputs)
    except DeviceLost:
        raise
    except Unsupported as error:
        return ended(Status.UNSUPPORTED, str(error))
    except Error as error:
        if test.must_fail:
            return ended(Status.PASSED)
        return ended(Status.FAILED, f"{type(error).__name__}: {error}")
    if test.must_fail:
        return ended(Status.FAILED, "the program must be refused, but it ran")
    wrong = [
        f"{name!r}: {complaint}"
        for name in test.outputs
        if (complaint := _complaint(case, name, outputs.get(name)))
    ]
    return ended(Status.FAILED, "; ".join(wrong)) if wrong else ended(Status.PASSED)


def _dtype(test: OfficialTest, graph: Graph) -> str:
    """Type of the tested operator's data operand, or of what it makes."""
    block = graph.main
    for op in block.operators:
        if op.op.name.lower() == test.operator:
            # SELECT and COND_IF have their condition in front.
            condition = op.op in (Op.SELECT, Op.COND_IF)
            names = op.inputs[condition:] or op.outputs
            return block.tensors[names[0]].dtype.name
    return ""


def _complaint(case: Case, name: str, actual: Array | None) -> str:
    if actual is None:
        return "there is no such output"
    expected = case.expected[name]
    if actual.shape != expected.reference.shape:
        return f"shape {actual.shape} instead of {expected.reference.shape}"
    rule, bound = case.test.rule(name, expected)
    if actual.dtype != rule.dtype.numpy:
        return f"type {actual.dtype} instead of {rule.dtype.numpy}"
    with np.errstate(all="ignore"):
        verdict = judge(rule, expected.reference, bound, actual)
    return "" if verdict.outcome.agrees else f"{rule}: {verdict}"


@dataclass(frozen=True, slots=True)
class Tally:
    """Results counted for one operator and backend."""

    passed: int
    failed: int
    unsupported: int

    @property
    def total(self) -> int:
        """How many tests there were."""
        return self.passed + self.failed + self.unsupported


def tallies(results: Iterable[TestResult]) -> dict[tuple[str, str], Tally]:
    """Counts by operator and backend."""
    counts = Counter((r.operator, r.backend, r.status) for r in results)
    keys = sorted({(operator, backend) for operator, backend, _ in counts})
    return {
        (operator, backend): Tally(
            counts[operator, backend, Status.PASSED],
            counts[operator, backend, Status.FAILED],
            counts[operator, backend, Status.UNSUPPORTED],
        )
        for operator, backend in keys
    }


def document(results: Iterable[TestResult]) -> dict[str, object]:
    """The results as JSON data (docs/json.md)."""
    listed = list(results)
    return {
        "format": "tosavk.conformance",
        "version": 1,
        "operators": [
            {"operator": operator, "backend": backend, **asdict(tally)}
            for (operator, backend), tally in tallies(listed).items()
        ],
        "results": [{**asdict(r), "status": r.status.value} for r in listed],
    }


def junit(results: Iterable[TestResult]) -> str:
    """The results as JUnit XML."""
    root = ElementTree.Element("testsuites", name="tosavk conformance")
    suites: dict[str, ElementTree.Element] = {}
    for result in results:
        suite = suites.get(result.backend)
        if suite is None:
            suite = ElementTree.SubElement(root, "testsuite", name=result.backend)
            suites[result.backend] = suite
        case = ElementTree.SubElement(
            suite, "testcase", classname=result.operator, name=result.name
        )
        if result.status is Status.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=result.reason)
            failure.text = result.reason
        elif result.status is Status.UNSUPPORTED:
            ElementTree.SubElement(case, "skipped", message=result.reason)
    for suite in suites.values():
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return ElementTree.tostring(root, encoding="unicode")


class Journal:
    """Results kept in a file as they come, so that a run can be taken up again.

    Args:
        path: the file, or None to keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        """Reads the results of an earlier run.

        A run that was killed may have left a part of a line at the end; it is cut off.

        Raises:
            InvalidArgument: the file holds something else, or cannot be written.
        """
        self._path = path
        self.results: dict[tuple[str, str, str], TestResult] = {}
        if path is None:
            return
        try:
            with path.open("a+b") as stream:
                stream.seek(0)
                data = stream.read()
                size = data.rfind(b"\n") + 1
                lines = data[:size].decode("utf-8", "replace").splitlines()
                for number, line in enumerate(lines, 1):
                    self._keep(_parsed(line, f"{str(path)!r}, line {number}"))
                rest = data[size:].decode("utf-8", "replace")
                if rest.startswith("{"):
                    stream.truncate(size)
                elif rest:
                    _parsed(rest, f"{str(path)!r}, its end")
        except OSError as error:
            raise _unkept(path, error) from error

    def known(self, test: OfficialTest, backend: str) -> bool:
        """Whether the result of a test is there already."""
        return (test.operator, test.name, backend) in self.results

    def add(self, result: TestResult) -> None:
        """Keeps a result.

        Raises:
            InvalidArgument: the file cannot be written.
        """
        self._keep(result)
        if self._path is not None:
            try:
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(result.line() + "\n")
            except OSError as error:
                raise _unkept(self._path, error) from error

    def _keep(self, result: TestResult) -> None:
        self.results[result.operator, result.name, result.backend] = result


def _parsed(line: str, place: str) -> TestResult:
    try:
        return TestResult.parse(line)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{place}: {error}; name a file of results, or a new one"
        ) from error


def _unkept(path: Path, error: OSError) -> InvalidArgument:
    return InvalidArgument(
        f"cannot keep results in {str(path)!r}: {error.strerror or error}"
    )
