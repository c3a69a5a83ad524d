"""One operator of a program as a program of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import pack_serialized
from tosavk.lowering.graph import Block, Graph, Operator


def single(
    op: Operator,
    block: Block,
    graph: Graph,
    operands: Mapping[str, NDArray[np.generic]],
    constants: Mapping[str, NDArray[np.generic]],
) -> Graph:
    """A program of one operator, with its constants and the others as inputs.

    Args:
        op: the operator.
        block: gives the types of its tensors.
        graph: the program it is from; operators of control flow call its regions.
        operands: values of its inputs that are known at run time only.
        constants: values of its other inputs.
    """
    names = dict.fromkeys((*op.inputs, *op.outputs))
    tensors = {name: block.tensors[name] for name in names}
    for name in op.inputs:
        if name in operands:
            tensors[name] = replace(tensors[name], data=None)
        elif name in constants:
            data = pack_serialized(tensors[name].dtype, constants[name])
            tensors[name] = replace(tensors[name], data=memoryview(data))
    alone = Block(
        name=block.name,
        operators=(op,),
        tensors=tensors,
        inputs=tuple(dict.fromkeys(n for n in op.inputs if n in operands)),
        outputs=op.outputs,
    )
    regions = tuple(
        replace(region, blocks=(alone,)) if block in region.blocks else region
        for region in graph.regions
    )
    return replace(graph, regions=regions)
