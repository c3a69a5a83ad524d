"""The Plan: what lowering makes of a graph, and all that a backend needs to run it.

Plain frozen data without hardware: the same Plan runs on every backend. Buffers are
numbered: the slots in order (inputs, outputs, what is checked), then the arena's
segments.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tosavk.core.dtypes import DType

OPERAND_WORDS = 64
"""Words that operands are aligned to: 256 bytes, the most that a device may ask."""


class SlotRole(enum.Enum):
    """What a slot is to the program."""

    INPUT = "input"
    OUTPUT = "output"
    CHECKED = "checked"
    """A value that rules are about; the model binds memory of its own (`core.rules`)."""


class Numerics(enum.Enum):
    """The two promises about float results (docs/numerics.md)."""

    STRICT = "strict"
    FAST = "fast"


@dataclass(frozen=True, slots=True)
class Slot:
    """One boundary tensor of a program.

    Attributes:
        index: slot number, also its buffer number.
        name: the tensor's name in the graph.
        role: input, output or checked.
        dtype: TOSA type.
        shape: dimensions.
        nbytes: exact bytes of the tensor in packed storage.
    """

    index: int
    name: str
    role: SlotRole
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as one dispatch sees it; a descriptor covers exactly this.

    Attributes:
        buffer: buffer number (slots first, then segments).
        word: first 32-bit word inside that buffer, a multiple of `OPERAND_WORDS`; in
            a slot the binding's own offset is added.
        words: length in 32-bit words, rounded up.
    """

    buffer: int
    word: int
    words: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel launch.

    Attributes:
        kernel: name in the kernel catalogue.
        spec: specialization words in catalogue order (structure, not geometry).
        params: parameter words in catalogue order, each in 0..2**32-1.
        operands: in catalogue binding order.
        columns: invocations along x.
        tiles: work groups along y (and z), 1 for linear kernels.
        barrier: whether earlier dispatches' memory must be made visible first.
        operator: index into `Plan.operators` of the operator this belongs to.
        layers: work groups along z, of kernels laid out in groups.
        width: work-group width; 0 for the kernel's own.
    """

    kernel: str
    spec: tuple[int, ...]
    params: tuple[int, ...]
    operands: tuple[Operand, ...]
    columns: int
    tiles: int
    barrier: bool
    operator: int
    layers: int = 1
    width: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes that are written to the arena when the program is loaded.

    Attributes:
        segment: segment number (not buffer number).
        offset: byte offset in the segment, a multiple of 256.
        data: the bytes, possibly a view of the model file.
    """

    segment: int
    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class OperatorName:
    """Where a dispatch comes from, for messages and reports.

    Attributes:
        index: position of the operator in its block.
        op: TOSA name, such as "CONV2D".
        output: name of its first output tensor.
        location: the source location the file gives, or "".
    """

    index: int
    op: str
    output: str
    location: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A program, lowered.

    Attributes:
        slots: inputs, then outputs, then what is checked of a submission.
        segments: byte size of each arena segment.
        constants: uploaded once at load.
        prologue: dispatches that depend on constants only; run once at load.
        dispatches: run at every submission, in order.
        operators: origin of the dispatches.
        numerics: the mode it was lowered for.
    """

    slots: tuple[Slot, ...]
    segments: tuple[int, ...]
    constants: tuple[Constant, ...]
    prologue: tuple[Dispatch, ...]
    dispatches: tuple[Dispatch, ...]
    operators: tuple[OperatorName, ...]
    numerics: Numerics

    @property
    def inputs(self) -> tuple[Slot, ...]:
        """The input slots."""
        return tuple(s for s in self.slots if s.role is SlotRole.INPUT)

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """The output slots."""
        return tuple(s for s in self.slots if s.role is SlotRole.OUTPUT)

    @property
    def arena_bytes(self) -> int:
        """Device bytes for constants and intermediates."""
        return sum(self.segments)


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A cooperative matrix product that one subgroup makes: FP16 [m, k] by FP16 [k, n].

    Sums are FP32.
    """

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        """As m x n x k."""
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True)
class MatrixGrid:
    """Cooperative matrices that a work group of one width makes together.

    FP16 [m, k] by FP16 [k, n], with FP32 sums, for all multiples of m, n and k.
    """

    m: int
    n: int
    k: int
    width: int


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What a device allows a plan to ask for.

    Attributes:
        max_storage_buffer_range: bytes one descriptor may cover.
        storage_limit: name of the device's limit that this comes from.
        segment_bytes: preferred size cap of an arena segment; a tensor larger than
            this gets a segment of its own.
        max_storage_buffers: storage buffers one kernel may bind.
        max_parameter_bytes: bytes of the parameter block.
        max_workgroup_count: work groups along one dimension.
        max_workgroup_invocations: invocations of a work group.
        shared_bytes: shared memory of a work group.
        subgroup_size: invocations of a subgroup of compute shaders that may shuffle; 0
            where they may not.
        matrix_shapes: cooperative matrices that kernels may use.
        matrix_grids: those of whole work groups.
        compute_units: multiprocessors of the device; 0 if it does not tell.
        lacks: for a kernel need that is not met ("subgroup", "matrices", "matrices2",
            "int8_dot"), why. "kernels": what runs instead of kernels.
    """

    max_storage_buffer_range: int = 1 << 27
    storage_limit: str = "maxStorageBufferRange"
    segment_bytes: int = 1 << 27
    max_storage_buffers: int = 4
    max_parameter_bytes: int = 128
    max_workgroup_count: int = 65535
    max_workgroup_invocations: int = 128
    shared_bytes: int = 16384
    subgroup_size: int = 0
    matrix_shapes: tuple[MatrixShape, ...] = ()
    matrix_grids: tuple[MatrixGrid, ...] = ()
    compute_units: int = 0
    lacks: tuple[tuple[str, str], ...] = (
        ("subgroup", "the backend has no subgroup operations"),
        ("matrices", "the backend has no cooperative matrices"),
        ("matrices2", "the backend has no cooperative matrices"),
        ("int8_dot", "the backend has no integer dot product"),
    )

    def lack(self, need: str) -> str:
        """Why a kernel need is not met; "" if it is."""
        return dict(self.lacks).get(need, "") if need else ""
