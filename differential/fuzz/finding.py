"""What is wrong with a program, as data."""

from __future__ import annotations

import dataclasses
import enum


class Kind(enum.StrEnum):
    """What sort of thing is wrong; in the order in which findings are listed.

    What is wrong with a plan says more than the outputs that change by it.
    """

    BITS = "bits"
    RULE = "rule"
    LOAD = "load"
    BARRIER = "barrier"
    ARENA = "arena"
    PLAN = "plan"
    REPEAT = "repeat"
    VALIDATION = "validation"
    FAILED = "failed"
    REFUSED = "refused"
    LOST = "lost"
    MEMORY = "memory"
    HUNG = "hung"
    CRASHED = "crashed"

    @property
    def meaning(self) -> str:
        """The kind for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Kind.BITS: "devices give different bits for equal operands",
    Kind.RULE: "a result breaks TOSA's rule",
    Kind.LOAD: "what the host computes at load is wrong",
    Kind.BARRIER: "the plan lacks a barrier, or has one too many",
    Kind.ARENA: "the plan reads or overwrites the wrong memory",
    Kind.PLAN: "an output changes when all intermediates are kept",
    Kind.REPEAT: "a second run gives other bits",
    Kind.VALIDATION: "the validation layer complains",
    Kind.FAILED: "a backend failed",
    Kind.REFUSED: "a valid program was refused",
    Kind.LOST: "a device was lost",
    Kind.MEMORY: "the process ran out of memory",
    Kind.HUNG: "the process hung",
    Kind.CRASHED: "the process ended",
}


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Key:
    """What findings are told apart by.

    Attributes:
        kind: what sort.
        op: the operator's name, or "".
        dtype: types of its first operand and first result, or "".
    """

    kind: Kind
    op: str
    dtype: str

    def __str__(self) -> str:
        """Such as `bits CAST FP32-INT8`."""
        return " ".join(part for part in (self.kind.value, self.op, self.dtype) if part)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a program.

    Attributes:
        key: what it is about.
        text: the finding in one line.
        backends: labels of the backends it is about.
        sample: which run shows it; -1 where no run is needed.
        operator: index of the operator, or -1.
    """

    key: Key
    text: str
    backends: tuple[str, ...]
    sample: int = -1
    operator: int = -1
