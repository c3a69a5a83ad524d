"""The result of a diff as JUnit XML, for the pages of a build server.

A test case for each backend (did it run), each output and each operator with the device
it is of. What cannot be judged or is not supported is skipped.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from xml.etree import ElementTree as Xml

from tosavk.differential.result import (
    NOT_JUDGED,
    BackendRun,
    Comparison,
    DiffResult,
    FindingKind,
)
from tosavk.differential.summary import distance, summary

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(result: DiffResult) -> str:
    """The text of the XML file."""
    suite = Xml.Element("testsuite", {"name": _clean(f"tosavk diff {result.model}")})
    model = PurePath(result.model).name
    for run in result.runs:
        _run(suite, model, run)
    for c in result.outputs:
        _comparison(suite, f"{model}.outputs", f"{c.tensor}: {c.left}, {c.right}", c)
    for item in result.operators:
        for c in item.comparisons:
            name = (
                f"{item.operator.index} {item.operator.op} {c.tensor}: "
                f"{c.left}, {c.right}"
            )
            at = item.operator.location
            _comparison(suite, f"{model}.operators", name, c, at=at)
    for finding in result.findings:
        if finding.kind in (FindingKind.PLAN, FindingKind.REPEATABILITY):
            name = f"{finding.kind}: {', '.join(finding.backends)}"
            case = _case(suite, f"{model}.findings", name)
            _child(case, "failure", finding.text, finding.text)
    for tag, attribute in (
        ("failure", "failures"),
        ("error", "errors"),
        ("skipped", "skipped"),
    ):
        suite.set(attribute, str(sum(1 for _ in suite.iter(tag))))
    suite.set("tests", str(sum(1 for _ in suite.iter("testcase"))))
    seconds = sum(run.load_s + run.first_s for run in result.runs)
    suite.set("time", f"{seconds:.3f}")
    Xml.SubElement(suite, "system-out").text = _clean(summary(result))
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _run(suite: Xml.Element, model: str, run: BackendRun) -> None:
    case = _case(suite, f"{model}.backends", run.label)
    case.set("time", f"{run.load_s + run.first_s:.3f}")
    if run.ending.is_fault:
        _child(case, "error", f"{run.ending}: {run.failure}", run.stderr, run.ending)
    elif not run.ran:
        _child(case, "skipped", f"{run.ending}: {run.failure}")
    if run.device:
        Xml.SubElement(case, "system-out").text = _clean(run.device)


def _comparison(
    suite: Xml.Element, group: str, name: str, c: Comparison, *, at: str = ""
) -> None:
    case = _case(suite, group, name)
    if not c.agreed:
        lines = [f"at {at}"] if at else []
        lines += [str(c), distance(c)]
        lines += [
            f"from {part.tensor} at {list(part.start)}, {list(part.shape)}: "
            + ", ".join(part.values)
            for part in c.operands
        ]
        _child(case, "failure", str(c), "\n".join(lines), c.rule)
    elif c.outcome == NOT_JUDGED:
        _child(case, "skipped", f"{c.outcome}: {c.note}")


def _case(suite: Xml.Element, group: str, name: str) -> Xml.Element:
    return Xml.SubElement(
        suite, "testcase", {"classname": _clean(group), "name": _clean(name)}
    )


def _child(
    case: Xml.Element, tag: str, message: str, text: str = "", kind: str = ""
) -> None:
    element = Xml.SubElement(case, tag, {"message": _clean(message)})
    if kind:
        element.set("type", _clean(kind))
    if text:
        element.text = _clean(text)


def _clean(text: str) -> str:
    """The text without what XML cannot hold."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
