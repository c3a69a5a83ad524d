"""A Python script with the builder that makes a program again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import DType, unpack_serialized
from tosavk.core.errors import Unsupported
from tosavk.differential.compare import bits_of
from tosavk.lowering.graph import Attribute, Block, Graph, Op, Operator, Tensor
from tosavk.lowering.tosa.builder import Builder

Array = NDArray[np.generic]

_SHORT = 24
_HEADER = '''\
"""{title}"""

import sys

import ml_dtypes
import numpy as np

from tosavk.core.dtypes import DType, unpack_serialized
from tosavk.lowering.graph import Op
from tosavk.lowering.tosa.builder import Builder


def raw(text, dtype, shape):
    """A constant from its bytes in hexadecimal."""
    return unpack_serialized(dtype, bytes.fromhex(text), shape)


def build():
    """The program as a TOSA flatbuffer."""
'''
_FOOTER = """\
    return {builder}.build()


if __name__ == "__main__":
    with open(sys.argv[1] if len(sys.argv) > 1 else "{file}", "wb") as file:
        file.write(build())
"""
_LITERALS = {
    DType.BOOL: "np.bool_",
    DType.INT8: "np.int8",
    DType.INT16: "np.int16",
    DType.INT32: "np.int32",
    DType.FP32: "np.float32",
    DType.FP16: "np.float16",
    DType.BF16: "ml_dtypes.bfloat16",
}


def script(graph: Graph, *, title: str, file: str = "model.tosa") -> str:
    """The text of a script whose `build()` gives the program.

    Args:
        graph: a verified graph; its operators' locations are not kept.
        title: first line of the script's docstring.
        file: that the script writes when it is run without an argument.

    Raises:
        Unsupported: the builder has no way to make the program.
    """
    if any(len(region.blocks) != 1 for region in graph.regions):
        raise Unsupported("a region has several blocks; the builder makes one")
    clean = title.replace("\\", "/").replace('"', "'")
    lines = [_HEADER.format(title=clean)]
    names: dict[str, str] = {}
    main = graph.main
    for region in graph.regions:
        # The entry's builder makes the others.
        block = region.blocks[0]
        if block is main:
            names[region.name] = "b"
    lines.append(f"    b = Builder(name={main.name!r})\n")
    for number, region in enumerate(graph.regions):
        block = region.blocks[0]
        if block is not main:
            names[region.name] = f"r{number}"
            lines.append(f"    r{number} = b.region({region.name!r})\n")
    # Regions are finished before the operators that call them.
    for region in sorted(graph.regions, key=lambda r: r.blocks[0] is main):
        lines += _block(region.blocks[0], names[region.name])
    lines.append(_FOOTER.format(builder="b", file=file))
    return "".join(lines)


def canonical(graph: Graph) -> Graph:
    """The graph with its tensors in the order in which a script makes them."""
    regions = tuple(
        dataclasses.replace(region, blocks=tuple(map(_ordered, region.blocks)))
        for region in graph.regions
    )
    return dataclasses.replace(graph, regions=regions)


def _ordered(block: Block) -> Block:
    made = (name for op in block.operators for name in op.outputs)
    names = dict.fromkeys((*block.inputs, *made))
    names.update(dict.fromkeys(block.tensors))
    return dataclasses.replace(
        block,
        tensors={name: block.tensors[name] for name in names},
        operators=tuple(
            dataclasses.replace(op, index=position, location="")
            for position, op in enumerate(block.operators)
        ),
    )


def rebuilt(text: str) -> Graph:
    """The graph that a script's builder makes; the script is executed.

    For scripts of this module only.
    """
    scope: dict[str, object] = {"__name__": "rebuilt"}
    made: list[Builder] = []

    class Recorder(Builder):
        def build(self) -> bytes:
            made.append(self)
            return Builder.build(self)

    exec(compile(text, "rebuild.py", "exec"), scope)
    scope["Builder"] = Recorder
    cast("Callable[[], bytes]", scope["build"])()
    return made[-1].graph()


def _block(block: Block, builder: str) -> list[str]:
    lines: list[str] = []
    variables: dict[str, str] = {}

    def name_of(tensor: str) -> str:
        if tensor not in variables:
            variables[tensor] = (
                f"{'t' if builder == 'b' else builder + '_'}{len(variables)}"
            )
        return variables[tensor]

    for name in block.inputs:
        tensor = block.tensors[name]
        lines.append(
            f"    {name_of(name)} = {builder}.input"
            f"({name!r}, DType.{tensor.dtype.name}, {tensor.shape!r})\n"
        )
    for op in block.operators:
        lines += _operator(op, block.tensors, builder, name_of)
    lines += [f"    {builder}.output({name_of(name)})\n" for name in block.outputs]
    return lines


def _operator(
    op: Operator,
    tensors: Mapping[str, Tensor],
    builder: str,
    name: Callable[[str], str],
) -> list[str]:
    outputs = [tensors[n] for n in op.outputs]
    if op.op is Op.CONST:
        tensor = outputs[0]
        return [
            f"    {name(tensor.name)} = {builder}.const("
            f"{_constant(tensor)}, DType.{tensor.dtype.name}, name={tensor.name!r})\n"
        ]
    if op.op is Op.CONST_SHAPE:
        tensor = outputs[0]
        assert tensor.data is not None
        numbers = unpack_serialized(DType.SHAPE, tensor.data, tensor.shape or ())
        return [
            f"    {name(tensor.name)} = {builder}.const_shape("
            f"{numbers.tolist()}, name={tensor.name!r})\n"
        ]
    if op.op is Op.VARIABLE:
        tensor = outputs[0]
        initial = "None" if tensor.data is None else _constant(tensor)
        return [
            f"    {name(tensor.name)} = {builder}.variable({tensor.name!r}, "
            f"DType.{tensor.dtype.name}, {tensor.shape!r}, {initial})\n"
        ]
    return [_call(op, outputs, builder, name)]


def _call(
    op: Operator, outputs: list[Tensor], builder: str, name: Callable[[str], str]
) -> str:
    operands = ", ".join(name(n) for n in op.inputs)
    results = ", ".join(name(t.name) for t in outputs)
    types = ", ".join(f"(DType.{t.dtype.name}, {t.shape!r})" for t in outputs)
    words = [
        f"Op.{op.op.name}",
        f"[{operands}]",
        f"names={[t.name for t in outputs]!r}",
        f"outputs=[{types}]",
        *(f"{key}={_attribute(value)}" for key, value in op.attributes.items()),
    ]
    inner = "".join(f"        {word},\n" for word in words)
    target = f"({results},)" if len(outputs) == 1 else results
    assign = f"{target} = " if outputs else ""
    return f"    {assign}{builder}.op_list(\n{inner}    )\n"


def _attribute(value: Attribute) -> str:
    if isinstance(value, DType):
        return f"DType.{value.name}"
    if isinstance(value, bool | str | bytes | tuple):
        return repr(value)
    return repr(int(value))


def _constant(tensor: Tensor) -> str:
    """A constant as numbers where these give the same bits, else in hexadecimal."""
    assert tensor.data is not None
    assert tensor.shape is not None
    array = unpack_serialized(tensor.dtype, tensor.data, tensor.shape)
    if array.size <= _SHORT and tensor.dtype in _LITERALS:
        numbers = json.dumps(array.astype(_plain(tensor.dtype)).tolist())
        numbers = numbers.replace("true", "True").replace("false", "False")
        if "NaN" not in numbers and "Infinity" not in numbers:
            again = np.array(array.astype(_plain(tensor.dtype)).tolist(), array.dtype)
            if np.array_equal(bits_of(again), bits_of(array)):
                return f"np.array({numbers}, {_LITERALS[tensor.dtype]})"
    text = bytes(tensor.data).hex()
    return f'raw("{text}", DType.{tensor.dtype.name}, {tensor.shape!r})'


def _plain(dtype: DType) -> type:
    if dtype is DType.BOOL:
        return bool
    return float if dtype.is_float else int
