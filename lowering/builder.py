"""The plan builder: what operator rules talk to.

A rule looks up its tensors, asks for values (symbolic memory) and emits kernels. Where
values lie, when memory is reused and where barriers go is decided afterwards
(`lowering.arena`, `lowering.hazards`), so rules stay free of it.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, elements, pack, storage_bytes
from tosavk.core.plan import PlanLimits
from tosavk.lowering.errors import AdmissionError, Kind
from tosavk.lowering.graph import Op, Operator, Tensor
from tosavk.shaders.catalogue import Kernel, kernels

_U32 = 0xFFFF_FFFF


@dataclass(slots=True, eq=False)
class Memory:
    """Symbolic memory: a slot, a constant, or an intermediate of the arena.

    Attributes:
        nbytes: exact bytes.
        slot: slot number, or None for the arena.
        data: constant bytes, or None.
        label: the tensor it was made for, for messages.
    """

    nbytes: int
    slot: int | None = None
    data: memoryview | None = None
    label: str = ""

    @property
    def words(self) -> int:
        """Length in 32-bit words, rounded up."""
        return (self.nbytes + 3) // 4


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor as an operand: a type and shape over some memory."""

    dtype: DType
    shape: tuple[int, ...]
    memory: Memory


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """A dispatch whose operands are still symbolic."""

    kernel: Kernel
    spec: tuple[int, ...]
    params: tuple[int, ...]
    operands: tuple[Memory, ...]
    columns: int
    tiles: int
    operator: Operator

    @property
    def reads(self) -> tuple[Memory, ...]:
        """Memory that the kernel reads."""
        return self.operands[: len(self.operands) - self.kernel.outputs]

    @property
    def writes(self) -> tuple[Memory, ...]:
        """Memory that the kernel writes."""
        return self.operands[len(self.operands) - self.kernel.outputs :]


def float_bits(value: float) -> int:
    """The bits of a number as FP32."""
    return int.from_bytes(struct.pack("<f", value), "little")


def destination_words(dtype: DType, count: int) -> int:
    """Invocations of a linear kernel: words that `count` elements take."""
    return (count * dtype.bits + 31) // 32


def whole_words(dtype: DType, *lengths: int) -> tuple[DType, int]:
    """The type to move elements as, and how many of `dtype` one of it holds.

    Where all lengths and distances are whole words, packed elements move as words, which
    one load and one store do. BOOL does not: any nonzero byte of it becomes 1.
    """
    lanes = max(32 // dtype.bits, 1)
    if lanes == 1 or dtype is DType.BOOL or any(n % lanes for n in lengths):
        return dtype, 1
    return DType.INT32, lanes


@dataclass(slots=True)
class PlanBuilder:
    """Collects the dispatches of one program.

    Attributes:
        tensors: the block's tensors, shapes resolved.
        constants: values of the tensors known at load.
        values: operands of the tensors that have memory.
        emitted: main dispatches so far.
        prologue: dispatches that depend on constants only.
        limits: what the device offers.
    """

    tensors: Mapping[str, Tensor]
    constants: Mapping[str, NDArray[np.generic]]
    values: dict[str, Value]
    emitted: list[Emitted] = field(default_factory=list[Emitted])
    prologue: list[Emitted] = field(default_factory=list[Emitted])
    limits: PlanLimits = field(default_factory=PlanLimits)
    _literals: dict[Hashable, Value] = field(default_factory=dict[Hashable, Value])
    _table: dict[str, Kernel] = field(default_factory=kernels)
    _operator: Operator | None = None
    _in_prologue: bool = False

    def begin(self, op: Operator, *, constant_only: bool) -> None:
        """Sets the operator that the following dispatches belong to."""
        self._operator = op
        self._in_prologue = constant_only

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name, with its shape resolved."""
        return self.tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The resolved shape of a tensor."""
        shape = self.tensors[name].shape
        assert shape is not None, f"{name!r} is unranked after verification"
        return shape

    def constant(self, name: str) -> NDArray[np.generic] | None:
        """The value of a tensor that is known at load, else None."""
        return self.constants.get(name)

    def integers(self, op: Operator, name: str) -> tuple[int, ...]:
        """The value of a shape or integer operand that must be known at load."""
        array = self.constants.get(name)
        if array is None:
            self.refuse(op, f"operand {name!r} is not a compile-time constant")
        return tuple(int(v) for v in array.reshape(-1))

    def value(self, name: str) -> Value:
        """The operand that reads a tensor."""
        found = self.values.get(name)
        if found is not None:
            return found
        tensor = self.tensors[name]
        array = self.constants[name]
        value = self.literal(("tensor", name), tensor.dtype, array)
        self.values[name] = value
        return value

    def result(self, name: str) -> Value:
        """The operand that a tensor is written to."""
        found = self.values.get(name)
        if found is not None:
            return found
        value = self.temporary(self.tensors[name].dtype, self.shape(name), label=name)
        self.values[name] = value
        return value

    def temporary(
        self, dtype: DType, shape: Sequence[int], *, label: str = ""
    ) -> Value:
        """Scratch memory; it lives from its first write to its last read."""
        memory = Memory(storage_bytes(dtype, shape), label=label or "scratch")
        return Value(dtype, tuple(shape), memory)

    def literal(self, key: Hashable, dtype: DType, array: NDArray[np.generic]) -> Value:
        """A constant written at load; the same key is written once."""
        found = self._literals.get(key)
        if found is None:
            data = pack(dtype, array)
            memory = Memory(len(data), data=data, label=str(key))
            found = Value(dtype, tuple(array.shape), memory)
            self._literals[key] = found
        return found

    def permute(self, name: str, perm: Sequence[int]) -> Value:
        """A tensor with permuted axes: at load when constant, else by a `move`."""
        array = self.constants.get(name)
        if array is not None:
            key = ("permuted", name, tuple(perm))
            turned = np.ascontiguousarray(np.transpose(array, tuple(perm)))
            return self.literal(key, self.tensors[name].dtype, turned)
        source = self.value(name)
        strides = element_strides(source.shape)
        shape = tuple(source.shape[axis] for axis in perm)
        target = self.temporary(source.dtype, shape)
        self.move(source, target, tuple(strides[axis] for axis in perm), 0)
        return target

    def move(
        self, source: Value, target: Value, strides: Sequence[int], offset: int
    ) -> None:
        """Emits `target[c] = source[offset + sum c_k * strides_k]`."""
        dims, (walk,) = collapse(target.shape, (tuple(strides),))
        dtype, lanes = target.dtype, 1
        if walk[-1] == 1:
            dtype, lanes = whole_words(dtype, dims[-1], *walk[:-1], offset)
        dims = (*dims[:-1], dims[-1] // lanes)
        walk = (*(step // lanes for step in walk[:-1]), walk[-1])
        count = elements(dims)
        self.emit(
            "move",
            spec={"TYPE": dtype},
            params={
                "count": count,
                **six("d", dims, fill=1),
                **six("s", walk, fill=0),
                "offset": offset // lanes,
            },
            operands=(source, target),
            columns=destination_words(dtype, count),
        )

    def emit(
        self,
        kernel: str,
        *,
        spec: Mapping[str, int],
        params: Mapping[str, int],
        operands: Sequence[Value],
        columns: int,
        tiles: int = 1,
    ) -> None:
        """Emits one dispatch of the current operator.

        Args:
            kernel: name in the catalogue.
            spec: specialization words by name.
            params: parameter words by name; negative numbers in two's complement.
            operands: in the catalogue's binding order.
            columns: invocations along x.
            tiles: work groups of a tiled kernel.
        """
        entry = self._table[kernel]
        assert set(spec) == set(entry.spec), (kernel, spec.keys())
        assert set(params) == set(entry.params), (kernel, params.keys())
        assert len(operands) == len(entry.bindings), kernel
        assert self._operator is not None
        target = self.prologue if self._in_prologue else self.emitted
        target.append(
            Emitted(
                kernel=entry,
                spec=tuple(int(spec[name]) for name in entry.spec),
                params=tuple(int(params[name]) & _U32 for name in entry.params),
                operands=tuple(value.memory for value in operands),
                columns=columns,
                tiles=tiles,
                operator=self._operator,
            )
        )

    def refuse(self, op: Operator, reason: str) -> NoReturn:
        """Refuses the operator with a typed reason.

        Raises:
            AdmissionError: always.
        """
        raise AdmissionError(
            f"{op}: {reason}", kind=Kind.UNSUPPORTED_OPERATOR, operator=op
        )


def element_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a shape, in elements."""
    strides: list[int] = []
    step = 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def broadcast_strides(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Element strides of `shape` seen as `target`: 0 on broadcast axes."""
    return tuple(
        0 if dim == 1 and wide != 1 else stride
        for dim, wide, stride in zip(shape, target, element_strides(shape), strict=True)
    )


def collapse(
    dims: Sequence[int], walks: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merges neighbouring axes that every walk steps through as one.

    Args:
        dims: row-major dimensions.
        walks: element strides over `dims`, one tuple per operand.

    Returns:
        The fewest dimensions that give the same walks, and those walks. Axes of size
        one vanish; at least one axis is left.
    """
    kept = [axis for axis, dim in enumerate(dims) if dim != 1]
    out: list[int] = []
    steps: list[list[int]] = [[] for _ in walks]
    for axis in kept:
        dim = dims[axis]
        if out and all(
            walk[-1] == stride[axis] * dim
            for walk, stride in zip(steps, walks, strict=True)
        ):
            out[-1] *= dim
            for walk, stride in zip(steps, walks, strict=True):
                walk[-1] = stride[axis]
            continue
        out.append(dim)
        for walk, stride in zip(steps, walks, strict=True):
            walk.append(stride[axis])
    if not out:
        out, steps = [1], [[0] for _ in walks]
    return tuple(out), tuple(tuple(walk) for walk in steps)


def six(prefix: str, values: Sequence[int], *, fill: int) -> dict[str, int]:
    """Parameter words `prefix0..5`, right aligned, `fill` in front."""
    padded = (fill,) * (6 - len(values)) + tuple(values)
    return {f"{prefix}{axis}": value for axis, value in enumerate(padded)}


CONSTANT_OPS = frozenset({Op.CONST, Op.CONST_SHAPE})
