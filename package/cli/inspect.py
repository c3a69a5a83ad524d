"""`tosavk inspect`: operators, tensors, admission, plan and memory of a model."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tosavk.backends.session import read_model
from tosavk.cli import options as shared
from tosavk.cli.console import out
from tosavk.core.plan import Dispatch, Numerics, Plan
from tosavk.lowering.admission import Admission, admissions
from tosavk.lowering.errors import AdmissionError
from tosavk.lowering.graph import Graph, Tensor
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

if TYPE_CHECKING:
    from tosavk.cli.types import Subparsers


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser("inspect", help="look into a model")
    shared.add_model(parser)
    parser.add_argument("--plan", action="store_true", help="also list the dispatches")
    parser.add_argument("--json", action="store_true", help="as JSON")
    shared.add_numerics(parser)
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Shows the model; 3 when an operator is not supported."""
    graph = load_graph(
        read_model(options.model), shapes=shared.parse_shapes(options.shape)
    )
    answers = admissions(graph)
    refused = [answer for answer in answers if answer.reason]
    plan: Plan | None = None
    if not refused:
        try:
            plan = lower_graph(graph, numerics=Numerics(options.numerics)).plan
        except AdmissionError as error:
            if error.operator is None:
                raise
            refused = [Admission(error.operator, str(error))]
    if options.json:
        shared.write_json("-", _document(graph, refused, plan, options.plan))
    else:
        _show(out(), graph, refused, plan, options.plan)
    return 3 if refused else 0


def _show(
    console: Console,
    graph: Graph,
    refused: list[Admission],
    plan: Plan | None,
    with_plan: bool,  # noqa: FBT001
) -> None:
    block = graph.main
    console.print(f"TOSA {graph.version}, {len(block.operators)} operators")
    for title, names in (("inputs", block.inputs), ("outputs", block.outputs)):
        for name in names:
            console.print(f"  {title[:-1]} {_tensor(block.tensors[name])}")
    counts = Counter(op.op.name for op in block.operators)
    console.print(
        "operators: " + ", ".join(f"{n} {name}" for name, n in counts.most_common())
    )
    for answer in refused:
        console.print(f"not supported: {answer.reason}")
    if plan is None:
        return
    constants = sum(len(c.data) for c in plan.constants)
    pipelines = {(d.kernel, d.spec) for d in (*plan.prologue, *plan.dispatches)}
    console.print(
        f"plan: {len(plan.dispatches)} dispatches with "
        f"{sum(d.barrier for d in plan.dispatches)} barriers, {len(plan.prologue)} at "
        f"load, {len(pipelines)} pipelines; arena {plan.arena_bytes:,} bytes in "
        f"{len(plan.segments)} segments, of which constants {constants:,}"
    )
    if with_plan:
        console.print(_dispatch_table(plan))
    else:
        console.print(_operator_table(graph))


def _operator_table(graph: Graph) -> Table:
    table = Table()
    for column in ("#", "operator", "inputs", "output"):
        table.add_column(column, overflow="fold")
    tensors = graph.main.tensors
    for op in graph.main.operators:
        if not op.inputs:
            continue
        table.add_row(
            str(op.index),
            op.op.name,
            ", ".join(_brief(tensors[name]) for name in op.inputs),
            ", ".join(f"{name} {_brief(tensors[name])}" for name in op.outputs),
        )
    return table


def _dispatch_table(plan: Plan) -> Table:
    table = Table()
    for column in ("#", "kernel", "spec", "operands", "work", "barrier", "operator"):
        table.add_column(column, overflow="fold")
    for number, dispatch in enumerate(plan.dispatches):
        origin = plan.operators[dispatch.operator]
        table.add_row(
            str(number),
            dispatch.kernel,
            " ".join(map(str, dispatch.spec)),
            " ".join(f"{o.buffer}+{o.word}:{o.words}" for o in dispatch.operands),
            f"{dispatch.columns}x{dispatch.tiles}",
            "yes" if dispatch.barrier else "",
            f"{origin.index} {origin.op}",
        )
    return table


def _document(
    graph: Graph,
    refused: list[Admission],
    plan: Plan | None,
    with_plan: bool,  # noqa: FBT001
) -> dict[str, object]:
    block = graph.main
    reasons = {answer.operator.index: answer.reason for answer in refused}
    result: dict[str, object] = {
        "format": "tosavk.inspect",
        "version": 1,
        "tosa": str(graph.version),
        "inputs": [_tensor_data(block.tensors[name]) for name in block.inputs],
        "outputs": [_tensor_data(block.tensors[name]) for name in block.outputs],
        "operators": [
            {
                "index": op.index,
                "op": op.op.name,
                "inputs": list(op.inputs),
                "outputs": list(op.outputs),
                "supported": op.index not in reasons,
                "reason": reasons.get(op.index, ""),
            }
            for op in block.operators
        ],
    }
    if plan is not None:
        result["plan"] = {
            "dispatches": len(plan.dispatches),
            "barriers": sum(d.barrier for d in plan.dispatches),
            "load_dispatches": len(plan.prologue),
            "pipelines": len(
                {(d.kernel, d.spec) for d in (*plan.prologue, *plan.dispatches)}
            ),
            "segments": list(plan.segments),
            "constant_bytes": sum(len(c.data) for c in plan.constants),
        }
        if with_plan:
            result["dispatches"] = [_dispatch_data(plan, d) for d in plan.dispatches]
    return result


def _dispatch_data(plan: Plan, dispatch: Dispatch) -> dict[str, object]:
    return {
        "kernel": dispatch.kernel,
        "spec": list(dispatch.spec),
        "params": list(dispatch.params),
        "operands": [[o.buffer, o.word, o.words] for o in dispatch.operands],
        "columns": dispatch.columns,
        "tiles": dispatch.tiles,
        "barrier": dispatch.barrier,
        "operator": plan.operators[dispatch.operator].index,
    }


def _tensor_data(tensor: Tensor) -> dict[str, object]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape or ()),
    }


def _tensor(tensor: Tensor) -> str:
    return f"{tensor.name}: {_brief(tensor)}"


def _brief(tensor: Tensor) -> str:
    dims = "x".join("?" if d < 0 else str(d) for d in tensor.shape or ())
    return f"{tensor.dtype.name} {dims or 'scalar'}"
