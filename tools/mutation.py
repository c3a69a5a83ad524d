#!/usr/bin/env python3
"""The mutation study: are planted faults found, named and reduced?

    mutation.py                   run what has no result yet, then write the document
    mutation.py --only ID ...     these faults only, whether they have a result or not
    mutation.py --check           does the table fit the sources?
    mutation.py --report          only write docs/mutation-study.md from the results

For each fault of `mutation_faults.toml` a copy of the tree gets it, and `tosavk fuzz` of
that copy runs as anybody would run it: same seed, same budget, same backends for all,
told nothing. What it files is then given to `tosavk diff`. First of all the unchanged
tree must find nothing in the whole budget. Results are kept in build/mutation: an
interrupted study goes on where it was.

Run it in the project's environment. Exit codes: 0 the study holds what it must, 1 it
does not, 2 the table is stale or a tool is missing.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mutation_report
from build_shaders import BuildError, write_atomically
from mutation_tree import ANY, ROOT, BadTable, Fault, Tree, read_faults, shader_tools
from mutation_tree import problems as table_problems

STUDY = ROOT / "build/mutation"
RESULTS = "results.json"
CONTROL = "control"
BACKENDS = ("vulkan:llvmpipe", "wgpu:llvmpipe", "reference")
SEED = 11
COUNT = 2000
LIMIT_S = 600
MOST_FINDINGS = 8
"""Findings up to which fuzz goes on while what it leaves is not small enough."""

_TRIES = 3

Data = dict[str, Any]

_PLANS = """
import dataclasses, hashlib, json, sys
from pathlib import Path
from tosavk.core.errors import Error
from tosavk.core.plan import PlanLimits
from tosavk.differential.fuzz.files import read_case
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import expose, intermediates

case = read_case(Path(sys.argv[1]))
limits = PlanLimits()
if case.segment_bytes is not None:
    limits = dataclasses.replace(limits, segment_bytes=case.segment_bytes)
plans = []
for graph in (case.graph, expose(case.graph, intermediates(case.graph))):
    seen = []
    for plan in lower_graph(graph, limits=limits).plans:
        data = {
            (len(plan.slots) + c.segment, c.offset // 4): bytes(c.data)
            for c in plan.constants
        }
        for d in (*plan.prologue, *plan.dispatches):
            read = [data.get((o.buffer, o.word), b"") for o in d.operands]
            text = repr((d, read)).encode()
            op = plan.operators[d.operator]
            seen.append([op.index, op.op, hashlib.sha256(text).hexdigest()])
    plans.append(seen)
print(json.dumps(plans))
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is the same for all faults.

    Attributes:
        seed: of the programs.
        count: programs at most.
        backends: specifications.
    """

    seed: int = SEED
    count: int = COUNT
    backends: tuple[str, ...] = BACKENDS

    def words(self) -> list[str]:
        """The backends as words of a command line."""
        return [word for spec in self.backends for word in ("--backend", spec)]


@dataclass(slots=True)
class Outcome:
    """What became of a fault.

    Attributes:
        id: its name.
        digest: of its line in the table.
        settings: what it was run with.
        found: whether fuzz or diff say that something is wrong.
        finding: kind of finding, or "".
        operator: the operator that is named first.
        types: the types that are named with it.
        right: whether that is the right operator.
        backends: labels of the backends that the finding is about.
        graphs: programs up to the one that shows it, or all of them.
        seconds: time of fuzz, start of the process and reduction included.
        operators: operators of the reduced program, the smallest one.
        elements: elements of all its tensors.
        findings: findings up to that one.
        text: the finding in a line.
        diff: what diff says of the reduced program: "different", "agreed", "failed", or
            "" where there is none.
        diff_operator: the operator that diff names first.
        trouble: why there is no answer, or "".
        where: of the unchanged tree: the day, and the devices with their drivers.
    """

    id: str
    digest: str
    settings: Data
    found: bool = False
    finding: str = ""
    operator: str = ""
    types: str = ""
    right: bool = False
    backends: list[str] = field(default_factory=list[str])
    graphs: int = 0
    seconds: float = 0.0
    operators: int = 0
    elements: int = 0
    findings: int = 0
    text: str = ""
    diff: str = ""
    diff_operator: str = ""
    trouble: str = ""
    where: str = ""


class Study:
    """A study in a folder.

    Args:
        folder: for results, findings and caches; made if it is not there.
        settings: what is the same for all faults.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Reads the results that are there."""
        self.folder = folder
        self.settings = settings
        self.results: dict[str, Data] = {}
        if (folder / RESULTS).exists():
            self.results = json.loads((folder / RESULTS).read_text("utf-8"))

    def has(self, fault: Fault) -> bool:
        """Whether there is a result of just this fault and these settings."""
        return self._fits(self.results.get(fault.id), fault.digest)

    def has_control(self) -> bool:
        """Whether there is a result of the unchanged tree."""
        return self._fits(self.results.get(CONTROL), CONTROL)

    def _fits(self, known: Data | None, digest: str) -> bool:
        return (
            known is not None
            and known["digest"] == digest
            and known["settings"] == self._settings()
            and not known["trouble"]
        )

    def _settings(self) -> Data:
        settings: Data = json.loads(json.dumps(asdict(self.settings)))
        return settings

    def keep(self, outcome: Outcome) -> None:
        """Adds a result."""
        self.results[outcome.id] = asdict(outcome)
        text = json.dumps(self.results, indent=1) + "\n"
        write_atomically(self.folder / RESULTS, text.encode())

    def control(self, tree: Tree) -> Outcome:
        """Fuzz of the unchanged tree."""
        outcome = Outcome(CONTROL, CONTROL, self._settings())
        outcome.where = _where(self.settings.backends)
        self._fuzz(outcome, tree)
        return outcome

    def run(self, fault: Fault, tree: Tree) -> Outcome:
        """Fuzz, then diff, of the tree with a fault."""
        outcome = Outcome(fault.id, fault.digest, self._settings())
        try:
            with tree.having(fault):
                folder = self._fuzz(outcome, tree)
                if folder is not None:
                    self._diff(outcome, tree, folder)
                    outcome.right = outcome.operator in self._right(fault, tree, folder)
        except BuildError as error:
            outcome.trouble = f"it does not compile: {error}"
        return outcome

    def _fuzz(self, outcome: Outcome, tree: Tree) -> Path | None:
        """Fuzzes up to the first finding; its folder, or None.

        Where the program that is left of it is large, fuzz goes on.
        """
        work = self.folder / "findings" / outcome.id
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        first: Path | None = None
        for most in range(1, MOST_FINDINGS + 1):
            document = self._fuzz_once(outcome, tree, work, most)
            if document is None or len(document["findings"]) < most:
                break
            filed = document["findings"][-1]
            if first is None:
                first = Path(filed["folder"])
                key = filed["key"]
                outcome.found = True
                outcome.graphs = document["graphs"]
                outcome.finding, outcome.operator = key["kind"], key["op"]
                outcome.types, outcome.text = key["dtype"], filed["text"]
                outcome.backends = filed["backends"]
            if most == 1 or filed["operators"] < outcome.operators:
                outcome.operators, outcome.findings = filed["operators"], most
                outcome.elements = filed["elements"]
            if outcome.operators <= mutation_report.MOST_OPERATORS:
                break
        return first

    def _fuzz_once(
        self, outcome: Outcome, tree: Tree, work: Path, most: int
    ) -> Data | None:
        """Fuzzes up to some number of findings, on from where it was."""
        report = work / "fuzz.json"
        report.unlink(missing_ok=True)
        words = ["fuzz", "--seed", str(self.settings.seed)]
        words += ["--max-findings", str(most), "--count", str(self.settings.count)]
        words += [*self.settings.words(), "--out", str(work), "--json", str(report)]
        start = time.perf_counter()
        done: subprocess.CompletedProcess[str] | None = None
        for _ in range(_TRIES):
            # A program that ends the process is a finding of the third run.
            done = self._tosavk(tree, words)
            if done is None or done.returncode in (0, 1):
                break
        outcome.seconds = round(outcome.seconds + time.perf_counter() - start, 1)
        if done is None:
            outcome.trouble = f"fuzz did not end within {LIMIT_S} s"
            return None
        if not report.exists():
            outcome.trouble = f"fuzz: {done.stderr.strip()[-400:]}"
            return None
        document: Data = json.loads(report.read_text("utf-8"))
        if not outcome.found:
            outcome.graphs = document["graphs"]
        return document

    def _diff(self, outcome: Outcome, tree: Tree, folder: Path) -> None:
        """What diff says of the reduced program with its first inputs."""
        case: Data = json.loads((folder / "finding.json").read_text("utf-8"))
        report = folder / "diff.json"
        words = ["diff", str(folder / "model.tosa"), *self.settings.words()]
        for position, name in enumerate(case["inputs"]):
            words += ["--input", f"{name}={folder / f'input{position}-0.npy'}"]
        done = self._tosavk(tree, [*words, "--json", str(report)])
        if done is None or not report.exists():
            outcome.diff = "failed"
            return
        document: Data = json.loads(report.read_text("utf-8"))
        outcome.diff = document["verdict"]
        named = document["first_different"]
        outcome.diff_operator = "" if named is None else named["op"]

    def _right(self, fault: Fault, tree: Tree, folder: Path) -> set[str]:
        """The operators that it is right to name."""
        if ANY not in fault.operators:
            return set(fault.operators)
        before = self._plans(ROOT / "typings", folder)
        after = self._plans(tree.folder, folder)
        changed: set[str] = set()
        for old, new in zip(before, after, strict=True):
            same = {tuple(dispatch) for dispatch in old}
            changed |= {op for index, op, text in new if (index, op, text) not in same}
        return changed

    def _plans(self, path: Path, folder: Path) -> list[list[list[str]]]:
        done = self._python(path, ["-c", _PLANS, str(folder)])
        if done is None or done.returncode:
            return [[], []]
        plans: list[list[list[str]]] = json.loads(done.stdout)
        return plans

    def _tosavk(
        self, tree: Tree, words: Sequence[str]
    ) -> subprocess.CompletedProcess[str] | None:
        return self._python(tree.folder, ["-m", "tosavk", *words])

    def _python(
        self, path: Path, words: Sequence[str]
    ) -> subprocess.CompletedProcess[str] | None:
        """A process that uses one tree; None when it took too long."""
        try:
            return subprocess.run(
                [sys.executable, *words],
                env=self._environment(path),
                cwd=self.folder,
                check=False,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return None

    def _environment(self, path: Path) -> Mapping[str, str]:
        """Variables: caches of the study's own, so that no fault gets into others."""
        env = dict(os.environ)
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env.pop("TOSAVK_VALIDATION", None)
        cache = self.folder / "cache"
        return env | {
            "PYTHONPATH": str(path),
            "PYTHONPYCACHEPREFIX": str(cache / "bytecode"),
            "XDG_CACHE_HOME": str(cache),
            "TOSAVK_CACHE_DIR": str(cache / "tosavk"),
            "MESA_SHADER_CACHE_DIR": str(cache),
        }


def run(study: Study, faults: Sequence[Fault], *, again: bool) -> None:
    """Runs what has no result yet, or all with `again`."""
    study.folder.mkdir(parents=True, exist_ok=True)
    tools = shader_tools()
    todo = [fault for fault in faults if again or not study.has(fault)]
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = Tree(Path(folder), tools)
        if not again and not study.has_control():
            study.keep(study.control(tree))
            _say(study.results[CONTROL])
        for number, fault in enumerate(todo):
            study.keep(study.run(fault, tree))
            print(f"{number + 1}/{len(todo)} ", end="")
            _say(study.results[fault.id])


def check(faults: Sequence[Fault]) -> None:
    """Whether the table fits the sources.

    Raises:
        BadTable: it does not.
    """
    wrong = table_problems(faults)
    if wrong:
        raise BadTable("\n".join(wrong))


def choose(faults: Sequence[Fault], names: Sequence[str]) -> list[Fault]:
    """The faults of some names; all without names.

    Raises:
        BadTable: there is none of a name.
    """
    unknown = set(names) - {fault.id for fault in faults}
    if unknown:
        raise BadTable(f"no fault is called {', '.join(sorted(unknown))}")
    return [fault for fault in faults if not names or fault.id in names]


def _where(backends: Sequence[str]) -> str:
    """The day, and the devices with their drivers."""
    import tosavk

    names: list[str] = []
    for spec in backends:
        with tosavk.open(spec) as accelerator:
            names.append(f"`{spec}` {accelerator.name}")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{today}; tosavk {tosavk.__version__}; {'; '.join(names)}"


def _say(known: Data) -> None:
    if known["trouble"]:
        text = known["trouble"]
    elif not known["found"]:
        text = f"nothing in {known['graphs']} programs"
    else:
        right = "" if known["right"] else " (not the right one)"
        text = (
            f"{known['finding']} {known['operator']}{right} after {known['graphs']}, "
            f"{known['operators']} operators; diff: {known['diff']} "
            f"{known['diff_operator']}"
        )
    print(f"{known['id']}: {text}; {known['seconds']} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Runs the mutation study.")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these faults")
    parser.add_argument("--check", action="store_true", help="only check the table")
    parser.add_argument("--report", action="store_true", help="only write the document")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--backend", action="append", help="instead of the usual ones")
    parser.add_argument("--folder", type=Path, default=STUDY)
    options = parser.parse_args(arguments)
    try:
        faults = read_faults()
        check(faults)
        chosen = choose(faults, options.only or ())
    except BadTable as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        print(f"{len(faults)} faults fit the sources")
        return 0
    backends = tuple(options.backend or BACKENDS)
    folder: Path = options.folder.resolve()
    study = Study(folder, Settings(options.seed, options.count, backends))
    if not options.report:
        needed = any(fault.where == "glsl" for fault in chosen)
        if needed and shader_tools() is None:
            print(
                "glslangValidator and spirv-opt not found: install glslang-tools and "
                "spirv-tools, or run tools/newer_debian.py shader-tools",
                file=sys.stderr,
            )
            return 2
        run(study, chosen, again=bool(options.only))
    document = mutation_report.DOCUMENT
    if folder != STUDY:
        # A study beside the kept one.
        document = folder / document.name
    summary = mutation_report.write(faults, study.results, document)
    print(summary.text)
    return 0 if summary.holds else 1


if __name__ == "__main__":
    sys.exit(main())
