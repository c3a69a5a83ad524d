"""Compares every operator on equal inputs.

Between devices: an operator that is given the same bits must give the same bits (strict
mode). A device whose inputs differ already, because of an operator before, runs the
operator again on the other's inputs, so that a fault does not hide those behind it.
Against the reference: given the inputs that the device itself computed, its result must
obey TOSA's rule for the operator. Source: docs/adr/0005.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference import Expected, Note, expect
from tosavk.core.errors import Unsupported
from tosavk.differential.compare import compare_bits
from tosavk.differential.exceptions import Trait, excuses, flushed_operand
from tosavk.differential.receptive import excerpts
from tosavk.differential.result import (
    KNOWN_EXCEPTION,
    NOT_JUDGED,
    Comparison,
    Excerpt,
    OperatorComparison,
    Share,
)
from tosavk.differential.shares import share_errors
from tosavk.differential.sides import REFERENCE, Compared
from tosavk.differential.tensors import compare_exactly, judge_operator
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.errors import operator_name
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Block, Graph, Op, Operator
from tosavk.lowering.lower import live_operators

Array = NDArray[np.generic]

_WHOLE = frozenset(
    {
        Op.COND_IF,
        Op.WHILE_LOOP,
        Op.VARIABLE,
        Op.VARIABLE_READ,
        Op.VARIABLE_WRITE,
        Op.CUSTOM,
    }
)
"""Operators that TOSA has no bound for: they stand for others, or keep state."""

LOAD = "load"
"""Label of values that are computed on the host when a program is loaded."""


def check_operators(
    graph: Graph,
    sides: Sequence[Compared],
    *,
    against_reference: bool,
    exact: bool,
    progress: Callable[[str], None],
) -> tuple[OperatorComparison, ...]:
    """Compares all live operators.

    Args:
        graph: a verified graph.
        sides: the devices, probed.
        against_reference: judge each device by TOSA's rules.
        exact: compare devices with each other bit for bit.
        progress: told which operator is being looked at.

    Returns:
        Every operator that is computed at run time, and those computed when a program
        is loaded of which the reference says something else.
    """
    check = OperatorCheck(graph, against_reference=against_reference, exact=exact)
    return check.check(check.work, sides, progress)


class OperatorCheck:
    """Compares operators of one program; parts of it at a time, if that is wanted.

    Args:
        graph: a verified graph.
        against_reference: as `check_operators`.
        exact: as `check_operators`.
        shares: find out which error is an operator's own and which it was given.

    Attributes:
        live: the operators that some output depends on, in the order of execution.
        work: those of them that are to be compared.
        constants: values that are known at load, by name.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        against_reference: bool,
        exact: bool,
        shares: bool = False,
    ) -> None:
        """Reads the program's constants."""
        self._graph = graph
        self._against_reference = against_reference
        self._exact = exact
        self._shares = shares
        self.live = tuple(live_operators(graph.main))
        self.work = tuple(
            op for op in self.live if op.op not in CONSTANT_OPS and op.outputs
        )
        self.constants: dict[str, Array] = dict(fold(graph.main, self.live))

    def check(
        self,
        operators: Sequence[Operator],
        sides: Sequence[Compared],
        progress: Callable[[str], None],
        *,
        reference: Mapping[str, Array] | None = None,
    ) -> tuple[OperatorComparison, ...]:
        """Compares some of the operators.

        Args:
            operators: which, out of `work`.
            sides: the devices, with the tensors of these operators.
            progress: told which operator is being looked at.
            reference: the tensors of the reference's own run, for the shares.
        """
        sides = [side for side in sides if side.tensors]
        check = _Check(
            self._graph,
            sides,
            self.constants,
            reference or {},
            against_reference=self._against_reference,
            exact=self._exact,
        )
        first = self.work.index(operators[0]) if operators else 0
        result: list[OperatorComparison] = []
        for number, op in enumerate(operators, first + 1):
            progress(f"comparing operator {number} of {len(self.work)}, {op.op.name}")
            found = check.one(op)
            if found:
                shares = check.shares(op) if self._shares else ()
                result.append(OperatorComparison(operator_name(op), found, shares))
        return tuple(result)


class _Check:
    """The comparison of some operators on the tensors that are known of them.

    Args:
        graph: a verified graph.
        sides: the devices.
        constants: values that are known at load.
        reference: tensors of the reference's own run.
        against_reference: as `check_operators`.
        exact: as `check_operators`.
    """

    def __init__(
        self,
        graph: Graph,
        sides: Sequence[Compared],
        constants: Mapping[str, Array],
        reference: Mapping[str, Array],
        *,
        against_reference: bool,
        exact: bool,
    ) -> None:
        self._graph = graph
        self._block: Block = graph.main
        self._sides = sides
        self._constants = constants
        self._reference = reference
        self._against_reference = against_reference
        self._exact = exact
        # Whether a side has the same bits as the first one, by tensor and label.
        self._same: dict[tuple[str, str], bool] = {}
        # Of the operator that was compared last: by label.
        self._expected: dict[str, list[Array]] = {}
        self._results: dict[str, Mapping[str, Array]] = {}

    def one(self, op: Operator) -> tuple[Comparison, ...]:
        """Compares one operator."""
        self._expected, self._results = {}, {}
        if all(name in self._constants for name in op.outputs):
            return tuple(self._folded(op) if self._against_reference else ())
        found = self._between_devices(op) if self._exact else []
        if self._against_reference:
            found += self._by_rule(op)
        return tuple(
            c
            if c.agreed or c.worst is None
            else dataclasses.replace(c, operands=self._operands(op, c, c.worst.index))
            for c in found
        )

    def shares(self, op: Operator) -> tuple[Share, ...]:
        """Errors of the operator that was compared last: its own, and what it got."""
        return share_errors(
            op.inputs,
            [name for name in op.outputs if name not in self._constants],
            {side.label: side.tensors for side in self._sides},
            expected=self._expected,
            reference=self._reference,
            results=self._results,
        )

    def _operands(
        self, op: Operator, c: Comparison, index: tuple[int, ...]
    ) -> tuple[Excerpt, ...]:
        """What an element was computed from."""
        # Between devices all have the first one's operands.
        side = self._sides[0]
        if c.right == REFERENCE:
            side = next((s for s in self._sides if s.label == c.left), side)
        known = {
            name: self._operand(name, side.tensors)
            for name in op.inputs
            if name in side.tensors or name in self._constants
        }
        return excerpts(op, self._block, known, index)

    def _folded(self, op: Operator) -> list[Comparison]:
        """What the host computed at load, where the reference says something else."""
        values = {name: self._constants[name] for name in op.outputs}
        found = self._judge(op, LOAD, self._constants, values)
        return [c for c in found if not c.agreed]

    def _between_devices(self, op: Operator) -> list[Comparison]:
        if len(self._sides) < 2:
            return []
        first = self._sides[0]
        outputs = [name for name in op.outputs if name in first.tensors]
        results: dict[str, Mapping[str, Array]] = {first.label: first.tensors}
        rerun: set[str] = set()
        for side in self._sides[1:]:
            if all(self._is_same(name, side) for name in op.inputs):
                results[side.label] = side.tensors
                continue
            operands = {
                name: first.tensors[name] for name in op.inputs if name in first.tensors
            }
            again = side.rerun(op, self._block, self._graph, operands, self._constants)
            if again:
                results[side.label] = again
                rerun.add(side.label)
        self._results = results
        return [
            comparison
            for name in outputs
            for comparison in self._compare(op, name, results, rerun)
        ]

    def _compare(
        self,
        op: Operator,
        name: str,
        results: Mapping[str, Mapping[str, Array]],
        rerun: set[str],
    ) -> list[Comparison]:
        """All sides' results of one tensor against what most of them say."""
        tensor = self._block.tensors[name]
        base = _majority({label: values[name] for label, values in results.items()})
        found: list[Comparison] = []
        for label, values in results.items():
            if label == base:
                continue
            comparison = compare_exactly(
                tensor,
                (label, values[name]),
                (base, results[base][name]),
                rerun=label in rerun,
            )
            if not comparison.agreed:
                comparison = self._excused(op, comparison, results)
            found.append(comparison)
        return found

    def _excused(
        self,
        op: Operator,
        comparison: Comparison,
        results: Mapping[str, Mapping[str, Array]],
    ) -> Comparison:
        """The comparison, as a known exception if it is one."""
        present = frozenset[Trait]().union(
            *(
                side.traits()
                for side in self._sides
                if side.label in (comparison.left, comparison.right)
            )
        )
        name = comparison.tensor
        first = self._sides[0].tensors
        # What a variable holds is no operand.
        if not present or not all(
            n in first or n in self._constants for n in op.inputs
        ):
            return comparison
        used = excuses(
            op.op,
            self._block.tensors[name].dtype,
            [self._operand(operand, first) for operand in op.inputs],
            results[comparison.left][name],
            results[comparison.right][name],
            present,
        )
        if not used:
            return comparison
        return dataclasses.replace(
            comparison,
            agreed=True,
            outcome=KNOWN_EXCEPTION,
            note=f"explained by: {', '.join(used)}",
        )

    def _by_rule(self, op: Operator) -> list[Comparison]:
        """Judges every device; what has the same bits is judged once."""
        found: list[Comparison] = []
        first: list[Comparison] = []
        for side in self._sides:
            alike = found and all(
                self._is_same(name, side) for name in (*op.inputs, *op.outputs)
            )
            if alike:
                found += [dataclasses.replace(c, left=side.label) for c in first]
                if self._sides[0].label in self._expected:
                    self._expected[side.label] = self._expected[self._sides[0].label]
                continue
            judged = self._judge(op, side.label, side.tensors, side.tensors)
            if not all(c.agreed for c in judged):
                judged = self._flushing(op, side, judged)
            first = first or judged
            found += judged
        return found

    def _flushing(
        self, op: Operator, side: Compared, judged: list[Comparison]
    ) -> list[Comparison]:
        """Judges again as if subnormal operands were zero, if the device does that.

        TOSA allows it. What agrees then is a known exception.
        """
        if Trait.FLUSHES_SUBNORMALS not in side.traits():
            return judged
        types = {n: self._block.tensors[n].dtype for n in op.inputs}
        flushed = {
            name: flushed_operand(types[name], self._operand(name, side.tensors))
            for name in op.inputs
        }
        again = self._judge(op, side.label, flushed, side.tensors)
        return [
            dataclasses.replace(
                new,
                outcome=KNOWN_EXCEPTION,
                note=f"explained by: {Trait.FLUSHES_SUBNORMALS}",
            )
            if new.agreed and not old.agreed
            else old
            for old, new in zip(judged, again, strict=True)
        ]

    def _judge(
        self,
        op: Operator,
        label: str,
        tensors: Mapping[str, Array],
        values: Mapping[str, Array],
    ) -> list[Comparison]:
        if op.op in _WHOLE:
            return self._unjudged(
                op, label, values, f"TOSA has no rule for {op.op.name}"
            )
        operands = [self._operand(name, tensors) for name in op.inputs]
        notes: list[Note] = []
        try:
            expected: list[Expected] = expect(
                op, self._block, operands, graph=self._graph, notes=notes
            )
        except Unsupported as error:
            return self._unjudged(op, label, values, str(error))
        reason = "; ".join(dict.fromkeys(note.reason for note in notes))
        self._expected[label] = [item.reference for item in expected]
        return [
            judge_operator(
                op,
                self._block,
                position,
                expected[position],
                (label, values[name]),
                open_because=f"TOSA leaves this open: {reason}" if reason else "",
            )
            for position, name in enumerate(op.outputs)
            if name in values
        ]

    def _unjudged(
        self, op: Operator, label: str, values: Mapping[str, Array], reason: str
    ) -> list[Comparison]:
        """Says of an operator that the reference does not judge it."""
        return [
            Comparison(
                tensor=name,
                dtype=self._block.tensors[name].dtype.name,
                shape=values[name].shape,
                left=label,
                right=REFERENCE,
                rule="none",
                agreed=True,
                outcome=NOT_JUDGED,
                elements=values[name].size,
                note=reason,
            )
            for name in op.outputs
            if name in values
        ]

    def _operand(self, name: str, tensors: Mapping[str, Array]) -> Array:
        return tensors[name] if name in tensors else self._constants[name]

    def _is_same(self, name: str, side: Compared) -> bool:
        """Whether a side has the first side's bits in a tensor (or it is constant)."""
        first = self._sides[0]
        if side is first or name not in first.tensors:
            return True
        key = (name, side.label)
        if key not in self._same:
            self._same[key] = compare_exactly(
                self._block.tensors[name],
                (first.label, first.tensors[name]),
                (side.label, side.tensors[name]),
            ).agreed
        return self._same[key]


def _majority(values: Mapping[str, Array]) -> str:
    """The first label among the most that have the same bits."""
    groups: list[list[str]] = []
    for label, array in values.items():
        for group in groups:
            if compare_bits(values[group[0]], array).equal:
                group.append(label)
                break
        else:
            groups.append([label])
    return max(groups, key=len)[0]
