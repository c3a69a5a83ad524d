"""Authors TOSA programs in Python.

    b = Builder()
    x = b.input("x", DType.FP32, (1, 8, 8, 3))
    w = b.const(weights)
    y = b.clamp(b.conv2d(x, w, b.const(bias), pad=(1, 1, 1, 1)), 0.0, 6.0)
    b.output(y)
    data = b.build()

Values are `Tensor` objects; types and shapes of results are inferred by the rules of
`tosavk.lowering.operators`, and a call that breaks a rule of TOSA raises at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tosavk.core.dtypes import DType, coerce, pack_serialized
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.graph import (
    Attribute,
    Block,
    Graph,
    NanMode,
    Op,
    Operator,
    Region,
    RoundingMode,
    Tensor,
    Version,
)
from tosavk.lowering.operators import SPECS, Signature, infer
from tosavk.lowering.tosa import schema
from tosavk.lowering.tosa.elementwise_methods import Output
from tosavk.lowering.tosa.methods import OperatorMethods
from tosavk.lowering.tosa.schema import FieldKind
from tosavk.lowering.tosa.writer import write_graph

TOSA_1_0 = Version(1, 0, 0, draft=False)

_DTYPES: dict[np.dtype[np.generic], DType] = {
    np.dtype(np.bool_): DType.BOOL,
    np.dtype(ml_dtypes.int4): DType.INT4,
    np.dtype(np.int8): DType.INT8,
    np.dtype(np.int16): DType.INT16,
    np.dtype(np.int32): DType.INT32,
    np.dtype(np.float32): DType.FP32,
    np.dtype(np.float16): DType.FP16,
    np.dtype(ml_dtypes.bfloat16): DType.BF16,
    np.dtype(ml_dtypes.float8_e4m3fn): DType.FP8E4M3,
    np.dtype(ml_dtypes.float8_e5m2): DType.FP8E5M2,
}
_KINDS = {"b": DType.BOOL, "i": DType.INT32, "f": DType.FP32}
_DEFAULTS: dict[str, Attribute] = {
    "nan_mode": int(NanMode.PROPAGATE),
    "rounding_mode": int(RoundingMode.SINGLE_ROUND),
}
_EMPTY: dict[FieldKind, Attribute] = {
    FieldKind.BOOL: False,
    FieldKind.INTS: (),
    FieldKind.STRING: "",
    FieldKind.BYTES: b"",
}


class Builder(OperatorMethods):
    """Builds a program, operator by operator.

    Attributes:
        name: of the region, and of its block.
    """

    def __init__(self, *, name: str = "main", version: Version = TOSA_1_0) -> None:
        """Starts an empty program.

        Args:
            name: of the entry region and block.
            version: that the file declares.
        """
        self.name = name
        self._version = version
        self._operators: list[Operator] = []
        self._tensors: dict[str, Tensor] = {}
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._zeros: dict[DType, Tensor] = {}
        self._regions: list[Builder] = []

    def input(self, name: str, dtype: DType, shape: Sequence[int]) -> Tensor:
        """Declares an input; -1 leaves a dimension open."""
        tensor = self._declare(Tensor(name, dtype, tuple(int(n) for n in shape)))
        self._inputs.append(name)
        return tensor

    def output(self, tensor: Tensor) -> Tensor:
        """Makes a value an output."""
        self._outputs.append(self._own(tensor).name)
        return tensor

    def const(
        self, value: ArrayLike, dtype: DType | None = None, *, name: str | None = None
    ) -> Tensor:
        """A constant.

        Args:
            value: an array, or numbers: without a type, floats are FP32, integers
                INT32.
            dtype: its type; an array's own by default.
            name: of the tensor; made up by default.

        Raises:
            InvalidArgument: the value does not stand for such a type.
        """
        array, dtype = _typed(value, dtype)
        label = name or self._fresh("const")
        array = coerce(label, dtype, array)
        data = memoryview(pack_serialized(dtype, array))
        tensor = self._declare(Tensor(label, dtype, array.shape, data))
        self._append(Op.CONST, (), (tensor,), {})
        return tensor

    def const_shape(self, numbers: Sequence[int], *, name: str | None = None) -> Tensor:
        """A constant list of numbers: a shape, padding, start, scale, ..."""
        array = np.array(tuple(numbers), np.int64)
        data = memoryview(pack_serialized(DType.SHAPE, array))
        label = name or self._fresh("shape")
        tensor = self._declare(Tensor(label, DType.SHAPE, array.shape, data))
        self._append(Op.CONST_SHAPE, (), (tensor,), {})
        return tensor

    def variable(
        self, name: str, dtype: DType, shape: Sequence[int], initial: ArrayLike | None
    ) -> Tensor:
        """Declares a variable, with its initial value or None."""
        data: memoryview | None = None
        if initial is not None:
            array, _ = _typed(initial, dtype)
            value = np.broadcast_to(coerce(name, dtype, array), tuple(shape))
            data = memoryview(pack_serialized(dtype, value))
        tensor = self._declare(
            Tensor(name, dtype, tuple(shape), data, variable=True, variable_name=name)
        )
        self._append(Op.VARIABLE, (), (tensor,), {})
        return tensor

    def region(self, name: str) -> Builder:
        """Starts a further region, for COND_IF and WHILE_LOOP to call by its name."""
        child = Builder(name=name, version=self._version)
        self._regions.append(child)
        child._regions = self._regions
        return child

    def op(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        *,
        name: str | None = None,
        dtype: DType | None = None,
        shape: Sequence[int] | None = None,
        **attributes: Attribute | Sequence[int],
    ) -> Tensor:
        """Adds an operator that has one output.

        Args:
            op: the operator.
            inputs: all its operands, in TOSA's order.
            name: of the output; made up by default.
            dtype: of the output, where the operator leaves a choice.
            shape: of the output. With both `dtype` and `shape` nothing is inferred and
                nothing checked, so that broken programs can be made.
            attributes: by TOSA's names; what is left out is 0, False or empty, and
                PROPAGATE or SINGLE_ROUND for the modes.

        Raises:
            VerifyError: a rule of TOSA is broken.
            InvalidArgument: an unknown attribute, or a value of another builder.
        """
        outputs: tuple[Output, ...] | None = None
        if dtype is not None and shape is not None:
            outputs = ((dtype, tuple(shape)),)
        names = None if name is None else (name,)
        results = self._add(op, inputs, names, outputs, dtype, attributes)
        if len(results) != 1:
            raise InvalidArgument(
                f"{op.name} has {len(results)} outputs; use `op_list` for it"
            )
        return results[0]

    def op_list(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        *,
        names: Sequence[str] | None = None,
        outputs: Sequence[Output] | None = None,
        **attributes: Attribute | Sequence[int],
    ) -> tuple[Tensor, ...]:
        """Adds an operator with any number of outputs.

        Args:
            op: the operator.
            inputs: all its operands, in TOSA's order.
            names: of the outputs; made up by default.
            outputs: their types and shapes; with them nothing is inferred or checked.
            attributes: as for `op`.

        Raises:
            VerifyError: a rule of TOSA is broken.
            InvalidArgument: an unknown attribute, or a value of another builder.
        """
        return self._add(op, inputs, names, outputs, None, attributes)

    def block(self) -> Block:
        """What this builder has so far, as a block."""
        return Block(
            self.name,
            tuple(self._operators),
            dict(self._tensors),
            tuple(self._inputs),
            tuple(self._outputs),
        )

    def graph(self) -> Graph:
        """The program so far, with all its regions."""
        regions = [Region(self.name, (self.block(),))]
        regions += [
            Region(r.name, (r.block(),)) for r in self._regions if r is not self
        ]
        return Graph(self._version, tuple(regions))

    def build(self) -> bytes:
        """The program as a TOSA flatbuffer."""
        return write_graph(self.graph())

    def zero(self, dtype: DType) -> Tensor:
        """A zero of shape [1], such as zero points want; one for each type."""
        if dtype not in self._zeros:
            self._zeros[dtype] = self.const(np.zeros(1, dtype.numpy), dtype)
        return self._zeros[dtype]

    def _add(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        names: Sequence[str] | None,
        outputs: Sequence[Output] | None,
        dtype: DType | None,
        attributes: Mapping[str, Attribute | Sequence[int]],
    ) -> tuple[Tensor, ...]:
        operands = tuple(self._own(tensor) for tensor in inputs)
        values = _complete(op, attributes)
        if outputs is None:
            outputs = self._infer(op, operands, names, dtype, values)
        if names is None:
            names = self._fresh_names(op.name.lower(), len(outputs))
        results = tuple(
            self._declare(Tensor(name, kind, tuple(shape)))
            for name, (kind, shape) in zip(names, outputs, strict=True)
        )
        self._append(op, operands, results, values)
        return results

    def _infer(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        names: Sequence[str] | None,
        dtype: DType | None,
        attributes: Mapping[str, Attribute],
    ) -> tuple[Output, ...]:
        label = tuple(names or (f"output of {op.name}",))
        operator = Operator(
            len(self._operators),
            op,
            tuple(tensor.name for tensor in inputs),
            label,
            attributes,
        )
        for tensor in inputs:
            if tensor.shape is None or any(size < 0 for size in tensor.shape):
                raise InvalidArgument(
                    f"{operator}: input {tensor.name!r} has unknown dimensions; give "
                    "the type and shape of the output"
                )
        regions = {r.name: r.signature() for r in self._regions if r is not self}
        inferred = infer(
            operator,
            inputs,
            None if dtype is None else (dtype,),
            regions=regions,
            minor=self._version.minor,
        )
        if not inferred and SPECS[op].outputs:
            raise InvalidArgument(
                f"{operator}: the outputs of {op.name} cannot be inferred; give their "
                "types and shapes"
            )
        return inferred

    def signature(self) -> Signature:
        """Inputs and outputs of this region."""
        return Signature(
            tuple(self._tensors[name] for name in self._inputs),
            tuple(self._tensors[name] for name in self._outputs),
        )

    def _append(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        attributes: Mapping[str, Attribute],
    ) -> None:
        self._operators.append(
            Operator(
                len(self._operators),
                op,
                tuple(tensor.name for tensor in inputs),
                tuple(tensor.name for tensor in outputs),
                _complete(op, attributes),
            )
        )

    def _declare(self, tensor: Tensor) -> Tensor:
        if not tensor.name or tensor.name in self._tensors:
            raise InvalidArgument(
                f"{self.name!r} has a tensor {tensor.name!r} already; names must be "
                "unique and not empty"
            )
        self._tensors[tensor.name] = tensor
        return tensor

    def _own(self, tensor: Tensor) -> Tensor:
        if self._tensors.get(tensor.name) is not tensor:
            raise InvalidArgument(
                f"tensor {tensor.name!r} does not belong to the builder {self.name!r}; "
                "values reach a region only through its inputs"
            )
        return tensor

    def _fresh(self, stem: str) -> str:
        return self._fresh_names(stem, 1)[0]

    def _fresh_names(self, stem: str, count: int) -> list[str]:
        names: list[str] = []
        number = len(self._tensors)
        while len(names) < count:
            if f"{stem}_{number}" not in self._tensors:
                names.append(f"{stem}_{number}")
            number += 1
        return names


def _typed(value: ArrayLike, dtype: DType | None) -> tuple[NDArray[np.generic], DType]:
    """The array, and its type in TOSA."""
    array = np.asarray(value)
    if hasattr(value, "dtype"):
        dtype = dtype or _DTYPES.get(array.dtype)
        if dtype is None:
            known = ", ".join(str(known) for known in _DTYPES)
            raise InvalidArgument(
                f"an array of {array.dtype} has no type of its own in TOSA ({known} "
                "have); convert it, or name the type"
            )
        return array, dtype
    dtype = dtype or _KINDS.get(array.dtype.kind)
    if dtype is None:
        raise InvalidArgument(f"{value!r} is no array of numbers")
    if array.dtype.kind == "f" and not dtype.is_float:
        raise InvalidArgument(f"{value!r} cannot be {dtype.name}: it is not whole")
    try:
        return np.array(value, dtype.numpy), dtype
    except OverflowError as error:
        raise InvalidArgument(f"{value!r} does not fit {dtype.name}") from error


def _complete(
    op: Op, attributes: Mapping[str, Attribute | Sequence[int]]
) -> dict[str, Attribute]:
    """All attributes of an operator, plain values of the types the reader gives."""
    fields = schema.ATTRIBUTES[op].fields
    unknown = set(attributes) - {field.name for field in fields}
    if unknown:
        known = ", ".join(field.name for field in fields) or "none"
        raise InvalidArgument(
            f"{op.name} has no attribute {sorted(unknown)[0]!r}; it has {known}"
        )
    values: dict[str, Attribute] = {}
    for field in fields:
        default = _DEFAULTS.get(field.name, _EMPTY.get(field.kind, 0))
        value = attributes.get(field.name, default)
        values[field.name] = _plain(value, field.kind)
    return values


def _plain(value: Attribute | Sequence[int], kind: FieldKind) -> Attribute:
    if isinstance(value, str | bytes | DType):
        return value
    if kind is FieldKind.BOOL:
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    return tuple(int(number) for number in value)
