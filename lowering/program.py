"""From bytes to a lowered program: read, verify, lower."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tosavk.core.descriptors import FORMAT_NVFP4, FORMAT_TOSA, Artifact
from tosavk.core.errors import Unsupported
from tosavk.core.plan import Numerics, PlanLimits
from tosavk.lowering import target
from tosavk.lowering.builder import CONSTANT_OPS
from tosavk.lowering.custom import CustomOperators, custom, expand
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import Lowered, live_operators, lower_graph
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.verify import verify

if TYPE_CHECKING:
    from tosavk.lowering.nvfp4.lower import LoweredNvfp4


def load_graph(
    source: bytes | memoryview | Graph,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    operators: CustomOperators = custom,
) -> Graph:
    """Reads (if bytes) and verifies a program; all shapes are known afterwards.

    Args:
        source: the program.
        shapes: shapes of inputs whose dimensions the file leaves open.
        operators: meanings of CUSTOM operators, which are put in.

    Raises:
        ParseError: the bytes are no sound TOSA file.
        VerifyError: the program breaks a rule of TOSA, or a dimension is open.
    """
    graph = source if isinstance(source, Graph) else read_graph(source)
    verified = verify(graph, shapes=shapes or {})
    expanded = expand(verified, operators)
    return verified if expanded is verified else verify(expanded)


def intermediates(graph: Graph) -> tuple[str, ...]:
    """The live, non-constant tensors that are neither inputs nor outputs."""
    block = graph.main
    seen = set(block.inputs) | set(block.outputs)
    return tuple(
        name
        for op in live_operators(block)
        if op.op not in CONSTANT_OPS
        for name in op.outputs
        if name not in seen
    )


def expose(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with further tensors as outputs."""
    block = graph.main
    exposed = dataclasses.replace(block, outputs=(*block.outputs, *names))
    regions = tuple(
        dataclasses.replace(
            region, blocks=tuple(exposed if b is block else b for b in region.blocks)
        )
        for region in graph.regions
    )
    return dataclasses.replace(graph, regions=regions)


def lower_artifact(
    artifact: Artifact,
    *,
    limits: PlanLimits | None = None,
    numerics: Numerics = Numerics.STRICT,
) -> Lowered | LoweredNvfp4:
    """Lowers an artifact.

    Raises:
        Unsupported: the format is unknown.
        Incompatible: the target words are wrong.
        InvalidArgument: the payload is not a sound program.
    """
    if artifact.format == FORMAT_NVFP4:
        # TOSA programs need none of it.
        from tosavk.lowering.nvfp4.artifact import check_target, read_program
        from tosavk.lowering.nvfp4.lower import lower_nvfp4

        check_target(artifact.target)
        program = read_program(artifact.view())
        return lower_nvfp4(program, limits=limits, numerics=numerics)
    if artifact.format != FORMAT_TOSA:
        raise Unsupported(
            f"artifact format {artifact.format:#x} is unknown; TOSA is "
            f"{FORMAT_TOSA:#x}, NVFP4 {FORMAT_NVFP4:#x}"
        )
    target.decode(artifact.target)
    graph = load_graph(artifact.view())
    return lower_graph(graph, limits=limits, numerics=numerics)
