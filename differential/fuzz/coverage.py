"""Which operators, types, rules and kernels a run has judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tosavk.core.dtypes import DType
from tosavk.differential.fuzz.judge import Verdict, operator_types
from tosavk.differential.fuzz.recipes import all_recipes
from tosavk.differential.sides import REFERENCE
from tosavk.lowering.graph import Graph, Op
from tosavk.lowering.operators import SPECS

_NUMBERS = re.compile(r"^[0-9.]+ | of [0-9]+ terms| in [A-Z0-9]+$| of [A-Z0-9]+$")
VIEW = "view"
"""Stands for kernels where an operator needs none: its result is a view, or folded."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One thing that can be covered.

    Attributes:
        operator: name.
        dtype: types of its first operand and first result, such as FP32-INT8.
        rule: form of the rule it was judged by; "" without the reference.
        kernels: kernels it took, or "view".
    """

    operator: str
    dtype: str
    rule: str
    kernels: str


class Coverage:
    """Points with the first program that had them."""

    def __init__(self) -> None:
        """Covers nothing."""
        self.points: dict[Point, int] = {}

    def add(self, index: int, found: Iterable[Point]) -> list[Point]:
        """Adds what judging a program covered; the points that are new."""
        fresh: list[Point] = []
        for point in found:
            if point not in self.points:
                self.points[point] = index
                fresh.append(point)
        return fresh

    def possible(self) -> set[tuple[str, str]]:
        """Every operator with types that the generator knows."""
        return {
            (recipe.op.name, _types(recipe.op, dict(recipe.types)))
            for recipe in all_recipes()
        }

    def missing(self) -> list[tuple[str, str]]:
        """What of that no program had yet."""
        seen = {(point.operator, point.dtype) for point in self.points}
        return sorted(self.possible() - seen)

    def document(self) -> dict[str, object]:
        """The coverage as JSON data (docs/json.md)."""
        return {
            "possible": len(self.possible()),
            "covered": len(self.possible()) - len(self.missing()),
            "missing": [list(pair) for pair in self.missing()],
            "points": [
                {
                    "operator": point.operator,
                    "dtype": point.dtype,
                    "rule": point.rule,
                    "kernels": point.kernels,
                    "graph": index,
                }
                for point, index in sorted(self.points.items())
            ],
        }


def points(graph: Graph, verdict: Verdict) -> list[Point]:
    """What a verdict covers."""
    operators = {op.index: op for op in graph.main.operators}
    rules: dict[int, str] = {}
    judged: dict[int, None] = {}
    for item in verdict.operators:
        index = item.operator.index
        judged[index] = None
        for c in item.comparisons:
            if c.right == REFERENCE:
                rules[index] = _form(c.rule)
    tensors = graph.main.tensors
    return [
        Point(
            operators[index].op.name,
            operator_types(operators[index], tensors),
            rules.get(index, ""),
            "+".join(verdict.kernels.get(index, (VIEW,))),
        )
        for index in judged
    ]


def summary(points: Sequence[Point]) -> dict[str, tuple[int, int, int]]:
    """For each operator: types, rules and sets of kernels that were covered."""
    found: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for point in points:
        types, rules, kernels = found.setdefault(point.operator, (set(), set(), set()))
        types.add(point.dtype)
        rules.add(point.rule)
        kernels.update(point.kernels.split("+"))
    return {
        name: (len(types), len(rules), len(kernels))
        for name, (types, rules, kernels) in sorted(found.items())
    }


def _form(rule: str) -> str:
    """A rule without its numbers and types."""
    return _NUMBERS.sub("", _NUMBERS.sub("", rule)).strip()


def _types(op: Op, types: Mapping[str, DType]) -> str:
    spec = SPECS[op]
    found: list[str] = []
    for operand in (spec.inputs[0], spec.outputs[0]):
        kind = operand.types
        dtype = kind if isinstance(kind, DType) else types[str(kind)]
        if dtype.name not in found:
            found.append(dtype.name)
    return "-".join(found)
