"""Our judge against the official verifier, on good results and on spoiled ones."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from harness import official
from harness.official import Result
from tosavk.backends.reference import evaluate, expect
from tosavk.backends.reference.values import (
    FRACTION_BITS,
    LARGEST,
    SMALLEST_NORMAL,
    Array,
    round_float,
)
from tosavk.core.dtypes import DType, coerce
from tosavk.differential import compliance, rules
from tosavk.differential.compliance import Absolute
from tosavk.differential.rules import Kind, Outcome, Rule, judge, rule_for
from tosavk.lowering.tosa.reader import read_graph

pytestmark = pytest.mark.skipif(bool(official.missing()), reason=official.missing())
OPERATORS = (
    sorted({test.folder.parent.name for test in official.positive_tests()})
    if not official.missing()
    else []
)


def official_rule(result: Result) -> tuple[Rule, Array | None]:
    """The rule that the test's own description states, in our terms."""
    stated = result.rule
    dtype = DType[stated["data_type"]]
    bound = result.bound
    match stated["mode"]:
        case "EXACT":
            return rules.exact(dtype), None
        case "ULP":
            info = stated["ulp_info"]
            return rules.ulp(dtype, info["ulp"], lower=info.get("ulp_lower")), None
        case "DOT_PRODUCT":
            info = stated["dot_product_info"]
            rule = Rule(
                Kind.DOT_PRODUCT,
                dtype,
                terms=info["ksb"],
                limit=info["abs_bound"],
                variance=info["variance_error_bound"],
                unbiased=3 <= info["s"] <= 5,
            )
            return rule, bound
        case "FP_SPECIAL":
            return rules.special(dtype), bound
        case "REDUCE_PRODUCT":
            terms = stated["reduce_product_info"]["n"]
            return Rule(Kind.PRODUCT, dtype, terms=terms), None
        case "ABS_ERROR":
            info = stated.get("abs_error_info", {})
            absolute = Absolute(
                base=info.get("base_bound", 0.0),
                least=info.get("lower_bound", 0.0),
                bound_is_magnitude=info.get("bound_as_magnitude", False),
                divisor=info.get("normal_divisor", 1.0),
                least_error=info.get("max_compare", 0.0),
            )
            return Rule(Kind.ABSOLUTE, dtype, absolute=absolute), bound
        case "MAX_RELATIVE":
            info = stated["max_relative_info"]
            most = np.full(result.reference.shape, float(info["max"]))
            rule = Rule(
                Kind.RELATIVE, dtype, ulp=info["ulp_bound"], scale=info["scale"]
            )
            return rule, most
        case "PRECOMPUTED":
            return Rule(Kind.STATED, dtype), bound
        case "RESCALE_INEXACT":
            unsigned = stated["rescale_inexact_info"]["unsigned_data"]
            return Rule(Kind.RANGE, dtype, unsigned=unsigned), bound
        case mode:
            raise AssertionError(mode)


def spoiled(
    rule: Rule, reference: Array, bound: Array | None, good: Array
) -> Iterator[tuple[str, Array]]:
    """Results that differ from a good one, inside and outside the rule."""
    rng = np.random.default_rng(zlib.crc32(str(rule).encode()))
    yield "good", good
    if not rule.dtype.is_float:
        for step in (-2, -1, 1, 2):
            one = good.copy()
            place = rng.integers(one.size)
            if one.dtype == np.bool_:
                one.reshape(-1)[place] ^= True
            else:
                one.reshape(-1)[place] += one.dtype.type(step)
            yield f"{step}", one
        return
    for name, value in (
        ("nan", np.nan),
        ("inf", np.inf),
        ("-inf", -np.inf),
        ("0", 0.0),
        ("-0", -0.0),
        ("1", 1.0),
        ("largest", LARGEST[rule.dtype]),
        ("smallest", SMALLEST_NORMAL[rule.dtype]),
    ):
        one = good.copy()
        one.reshape(-1)[rng.integers(one.size)] = value
        yield name, one
    unit = compliance.unit_in_last_place(rule.dtype, reference)
    for step in (-300, -20, -5, -3, -2, -1, 1, 2, 3, 5, 20, 300):
        everywhere = round_float(rule.dtype, reference + step * unit)
        yield f"all {step} ULP", everywhere
        one = good.copy()
        place = rng.integers(one.size)
        one.reshape(-1)[place] = everywhere.reshape(-1)[place]
        yield f"{step} ULP", one
    if bound is None:
        return
    half = 2.0 ** (-1 - FRACTION_BITS[rule.dtype])
    for scale in (0.3, 0.9, 1.1, 3.0):
        noise = rng.standard_normal(good.shape) * scale
        noise *= np.sqrt(rule.variance or 1.0) * np.where(
            np.isfinite(bound), np.abs(bound), 0.0
        )
        yield f"noise {scale}", round_float(rule.dtype, reference + noise * half)
        yield f"bias {scale}", round_float(rule.dtype, reference + np.abs(noise) * half)
        most = scale * max(rule.limit, 1.0) * np.abs(bound)
        one = good.copy()
        place = rng.integers(one.size)
        moved = round_float(rule.dtype, reference + most * half)
        one.reshape(-1)[place] = moved.reshape(-1)[place]
        yield f"limit {scale}", one
        yield f"stated {scale}", round_float(rule.dtype, reference + scale * bound)


def at_the_edges(
    rule: Rule, reference: Array, bound: Array | None, good: Array
) -> Iterator[tuple[str, Array]]:
    """One element moved as far as we allow, and one number of its type further."""
    if not rule.dtype.is_float or rule.kind is Kind.SPECIAL:
        return
    rng = np.random.default_rng(zlib.crc32(str(rule).encode()))
    usual = np.flatnonzero(np.isfinite(reference) & (reference != 0))
    if not usual.size:
        return
    place = int(rng.choice(usual))
    near = round_float(rule.dtype, reference.reshape(-1)[place : place + 1])

    def moved(steps: int) -> Array:
        result = good.copy()
        result.reshape(-1)[place] = stepped(near, steps)[0]
        return result

    def allowed(steps: int) -> bool:
        if rule.kind is Kind.DOT_PRODUCT:
            return judge(rule, reference, bound, moved(steps)).outcome.agrees
        own = None
        if bound is not None:
            own = np.broadcast_to(bound, reference.shape).reshape(-1)[place : place + 1]
        one = reference.reshape(-1)[place : place + 1]
        return judge(rule, one, own, stepped(near, steps)).outcome.agrees

    for way in (-1, 1):
        most = number_of(LARGEST[rule.dtype], near) - way * number_of(near[0], near)
        inside, outside = 0, most + 1
        while outside - inside > 1:
            middle = (inside + outside) // 2
            if allowed(way * middle):
                inside = middle
            else:
                outside = middle
        yield f"{way * inside} numbers", moved(way * inside)
        if outside <= most:
            yield f"{way * outside} numbers", moved(way * outside)


def number_of(value: object, like: Array) -> int:
    """Where a value comes among the numbers of its type; 0 is number 0."""
    size = like.dtype.itemsize
    bits = int(np.array(value, like.dtype).view(f"u{size}"))
    sign = 1 << (8 * size - 1)
    return bits if bits < sign else sign - bits


def stepped(value: Array, steps: int) -> Array:
    """The number so many numbers further up."""
    size = value.dtype.itemsize
    number = number_of(value[0], value) + steps
    bits = number if number >= 0 else (1 << (8 * size - 1)) - number
    return np.array([bits], f"u{size}").view(value.dtype)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_judge_agrees_with_the_official_verifier(operator: str) -> None:
    refused = 0
    for test in official.positive_tests(operator):
        graph = read_graph(test.program)
        values = evaluate(graph, test.inputs(), precise=False)
        for result in test.results():
            rule, bound = official_rule(result)
            reference = result.reference
            if not rule.dtype.is_float:
                reference = coerce(result.name, rule.dtype, reference)
            with np.errstate(all="ignore"):
                given = (rule, reference, bound, values[result.name])
                cases = [*spoiled(*given), *at_the_edges(*given)]
            for what, actual in cases:
                ours = judge(rule, reference, bound, actual)
                theirs = result.accepts(actual)
                refused += not theirs
                assert ours.outcome.agrees == theirs, (
                    f"{test.folder.name} {result.name} spoiled by {what}: official "
                    f"{theirs}, ours {ours}"
                )
    assert refused, "nothing was spoiled enough"


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_table_has_the_official_rule(operator: str) -> None:
    for test in official.positive_tests(operator):
        graph = read_graph(test.program)
        values = evaluate(graph, test.inputs())
        for op in graph.main.operators:
            for position, name in enumerate(op.outputs):
                found = [r for r in test.results() if r.name == name]
                if not found:
                    continue
                stated, _ = official_rule(found[0])
                operands = [values[tensor] for tensor in op.inputs]
                expected = expect(op, graph.main, operands, graph=graph)[position]
                ours = rule_for(op, graph.main, expected, position)
                if stated.kind is Kind.SPECIAL:
                    assert ours.kind is Kind.DOT_PRODUCT
                elif operator in ("cond_if", "while_loop"):
                    # The tests know which operator a branch has; we allow the loosest.
                    assert ours.ulp >= stated.ulp
                else:
                    assert ours == dataclasses.replace(stated, unbiased=False), (
                        test.folder.name
                    )


@pytest.mark.parametrize("operator", OPERATORS)
def test_native_results_agree_with_our_own_references(operator: str) -> None:
    for test in official.positive_tests(operator):
        graph = read_graph(test.program)
        values = evaluate(graph, test.inputs(), precise=False)
        for op in graph.main.operators:
            operands = [values[tensor] for tensor in op.inputs]
            results = expect(op, graph.main, operands, graph=graph)
            for position, (name, expected) in enumerate(
                zip(op.outputs, results, strict=True)
            ):
                rule = rule_for(op, graph.main, expected, position)
                found = judge(rule, expected.reference, expected.bound, values[name])
                assert found.outcome in (Outcome.EQUAL, Outcome.WITHIN_RULE), (
                    test.folder.name,
                    found,
                )
