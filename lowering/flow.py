"""A flow: a program with control flow or variables, as straight-line pieces and steps.

The pieces are ordinary plans. Between them the host only chooses what comes next: values
stay in device memory, and of those it looks at no more than the BOOL that an operator of
control flow decides by. Regions become routines, each lowered once, however often it is
called; a call hands values over without a copy. Plain frozen data, like a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from tosavk.core.dtypes import DType
from tosavk.core.plan import OperatorName, Plan
from tosavk.lowering.graph import Graph
from tosavk.lowering.late import LateChecks


@dataclass(frozen=True, slots=True)
class Piece:
    """A straight-line part of a program; a program of its own (`core.device.Lowered`).

    Attributes:
        graph: its operators, as a graph that reads and gives whole tensors.
        plan: the same, lowered.
    """

    graph: Graph
    plan: Plan


@dataclass(frozen=True, slots=True)
class Held:
    """A value that a routine holds in device memory.

    Attributes:
        name: the tensor's name in its block.
        dtype: TOSA type.
        shape: dimensions.
        nbytes: exact bytes in packed storage.
        data: the value of a constant, uploaded at load, or None.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    data: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Variable:
    """State that lives as long as the loaded program.

    Attributes:
        name: the variable's name.
        dtype: TOSA type.
        shape: dimensions.
        nbytes: exact bytes in packed storage.
        initial: its first value; None for zeros, as the file gives none.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    initial: memoryview | None


@dataclass(frozen=True, slots=True)
class Run:
    """Runs a piece.

    Attributes:
        piece: its number.
        inputs: values for its input slots, in order.
        outputs: values that its output slots give.
    """

    piece: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Runs a routine: a COND_IF whose condition is known at load.

    Attributes:
        operator: the operator that calls.
        routine: its number.
        inputs: values that it is given.
        outputs: values for its results.
    """

    operator: OperatorName
    routine: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """COND_IF: one of two routines, by a value.

    Attributes:
        operator: the COND_IF.
        condition: a value of one BOOL.
        then: routine for true.
        other: routine for false.
        inputs: values that either is given.
        outputs: values for its results.
    """

    operator: OperatorName
    condition: int
    then: int
    other: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """WHILE_LOOP: as long as the condition holds, the body makes new values of its own.

    Attributes:
        operator: the WHILE_LOOP.
        condition: routine that gives one BOOL.
        body: routine that gives as many values as it takes.
        inputs: values at the start.
        outputs: values for what is left in the end.
    """

    operator: OperatorName
    condition: int
    body: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """VARIABLE_READ.

    Attributes:
        variable: number of the variable.
        output: the value that it has now.
    """

    variable: int
    output: int


@dataclass(frozen=True, slots=True)
class Write:
    """VARIABLE_WRITE.

    Attributes:
        variable: number of the variable.
        input: the value that it has from now on.
    """

    variable: int
    input: int


@dataclass(frozen=True, slots=True)
class Check:
    """Applies rules about values that only a run brings.

    Attributes:
        rules: the rules.
        inputs: the values that they are about, in the order of `rules.names`.
    """

    rules: LateChecks
    inputs: tuple[int, ...]


Step = Run | Call | Branch | Loop | Read | Write | Check


def read_by(step: Step) -> tuple[int, ...]:
    """The values that a step reads."""
    match step:
        case Read():
            return ()
        case Write():
            return (step.input,)
        case Branch():
            return (step.condition, *step.inputs)
        case _:
            return step.inputs


@dataclass(frozen=True, slots=True)
class Routine:
    """A region, ready to be run.

    Attributes:
        name: the region's name.
        values: what it holds, numbered.
        inputs: values that the caller gives.
        outputs: values that the caller gets.
        steps: in order.
        ends: for each step the values that no later step needs.
    """

    name: str
    values: tuple[Held, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    ends: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A program with control flow or variables.

    Attributes:
        pieces: its straight-line parts.
        routines: its regions; the first one is the entry.
        variables: its state.
    """

    pieces: tuple[Piece, ...]
    routines: tuple[Routine, ...]
    variables: tuple[Variable, ...]

    @property
    def checks(self) -> bool:
        """Whether the host looks at values besides conditions."""
        return any(isinstance(s, Check) for r in self.routines for s in r.steps)
