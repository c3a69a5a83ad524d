"""`tosavk inspect`: operators, tensors, admission, plan and memory of a model."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tosavk.cli import options as shared
from tosavk.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from tosavk.cli.types import Subparsers
    from tosavk.core.plan import Dispatch, Numerics, Plan, PlanLimits
    from tosavk.lowering.graph import Graph, Tensor
    from tosavk.lowering.lower import Lowered


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "inspect",
        help="look into a model",
        description="Show a model's operators and tensors, which operators are "
        "supported, and the dispatches and memory it takes.",
        allow_abbrev=False,
    )
    shared.add_model(parser)
    parser.add_argument(
        "--backend",
        metavar="S",
        help="plan for this device, such as vulkan or wgpu:1 (default: for any device, "
        "with what all of them have)",
    )
    parser.add_argument("--plan", action="store_true", help="also list the dispatches")
    parser.add_argument("--json", action="store_true", help="as JSON (docs/json.md)")
    shared.add_numerics(parser)
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Shows the model; 3 when an operator is not supported."""
    from tosavk.backends.session import parse_numerics, read_model
    from tosavk.lowering.admission import admissions
    from tosavk.lowering.errors import AdmissionError
    from tosavk.lowering.lower import lower_graph
    from tosavk.lowering.program import load_graph

    shapes = shared.parse_shapes(options.shape)
    source = read_model(options.model)
    if isinstance(source, bytes) and source.startswith(b"VKNV"):
        return _inspect_nvfp4(options, source)
    shared.load_custom(options.custom)
    graph = load_graph(source, shapes=shapes)
    refused = {a.operator.index: a.reason for a in admissions(graph) if a.reason}
    plans: tuple[Plan, ...] = ()
    numerics = parse_numerics(options.numerics)
    device = _Device("", _any_device())
    if not refused:
        try:
            if options.backend is None:
                lowered = lower_graph(graph, limits=device.limits, numerics=numerics)
            else:
                device, lowered = _lower_for(options.backend, graph, numerics)
            plans = lowered.plans
        except AdmissionError as error:
            if error.operator is None:
                raise
            refused = {error.operator.index: str(error)}
    if options.json:
        listed = plans if options.plan else ()
        document = _document(graph, refused, plans, listed)
        if not refused:
            document["device"] = device.document(plans)
        shared.write_json("-", document)
    else:
        from tosavk.cli.console import TITLE, out, say

        console = out()
        say(console, Path(options.model).name, TITLE)
        _show(console, graph, refused, plans)
        if not refused:
            for line in device.lines(plans):
                say(console, line)
        if options.plan:
            for number, plan in enumerate(plans):
                _show_dispatches(console, plan, number if len(plans) > 1 else None)
    return 3 if refused else 0


@dataclass(frozen=True, slots=True)
class _Device:
    """What a model is planned for.

    Attributes:
        name: name of the device and driver; "" for any device.
        limits: what it offers.
    """

    name: str
    limits: PlanLimits

    def int8(self, plans: Sequence[Plan]) -> str:
        """How INT8 products are summed, and why; "" if there are none."""
        from tosavk.core.dtypes import DType
        from tosavk.shaders.catalogue import kernels

        spec = {name: kernel.spec for name, kernel in kernels().items()}
        for dispatch in (
            d for plan in plans for d in (*plan.prologue, *plan.dispatches)
        ):
            if dispatch.kernel in ("conv_dot", "matmul_dot"):
                return "integer dot products"
            if dispatch.kernel in ("conv_int", "matmul_int"):
                words = dict(zip(spec[dispatch.kernel], dispatch.spec, strict=True))
                if words["X_TYPE"] == DType.INT8:
                    reason = self.limits.lack("int8_dot")
                    return f"four channels at a time, no integer dot products: {reason}"
        return ""

    def lines(self, plans: Sequence[Plan]) -> list[str]:
        """What to say about the device."""
        found = [f"device: {self.name}"] if self.name else []
        how = self.int8(plans)
        return found + ([f"INT8 sums: {how}"] if how else [])

    def document(self, plans: Sequence[Plan]) -> dict[str, object]:
        """The same as JSON data (docs/json.md)."""
        return {
            "name": self.name,
            "int8_sums": self.int8(plans),
            "lacks": dict(self.limits.lacks),
        }


def _any_device() -> PlanLimits:
    """What every device has."""
    from tosavk.core.plan import PlanLimits

    lacks = {**dict(PlanLimits().lacks), "int8_dot": "no device was named"}
    return PlanLimits(lacks=tuple(lacks.items()))


def _lower_for(spec: str, graph: Graph, numerics: Numerics) -> tuple[_Device, Lowered]:
    """Opens a device and lowers a graph as it is when it runs there."""
    from tosavk.backends.dot_check import trusted_limits
    from tosavk.backends.registry import open_accelerator
    from tosavk.backends.session import lower_on

    with open_accelerator(spec) as accelerator:
        lowered = lower_on(accelerator.device, graph, numerics=numerics)
        limits = trusted_limits(accelerator.device)
        return _Device(accelerator.name, limits), lowered


def _inspect_nvfp4(options: argparse.Namespace, payload: bytes) -> int:
    """Shows an NVFP4 artifact, and the kernel that each device runs it with."""
    from tosavk.backends.nvfp4_report import kernel_reports
    from tosavk.backends.registry import open_accelerator
    from tosavk.cli import nvfp4
    from tosavk.lowering.nvfp4.artifact import read_program

    program = read_program(payload)
    for option, given in (("--shape", options.shape), ("--plan", options.plan)):
        if given:
            raise InvalidArgument(
                f"{option} is for TOSA files; {options.model!r} is an NVFP4 artifact"
            )
    if options.backend is None:
        specs = nvfp4.usable_specs()
    else:
        specs = [options.backend]
        with open_accelerator(options.backend):
            pass  # what cannot be opened is an error, not a line of the report
    reports = kernel_reports(specs, [program])
    if options.json:
        shared.write_json("-", nvfp4.inspect_document(program, reports))
        return 0
    from tosavk.cli.console import TITLE, out, say

    console = out()
    say(console, Path(options.model).name, TITLE)
    nvfp4.inspect_show(console, program, reports)
    return 0


def _show(
    console: Console,
    graph: Graph,
    refused: Mapping[int, str],
    plans: Sequence[Plan],
) -> None:
    from tosavk.cli.console import BAD, say, size
    from tosavk.differential.text import counted

    block = graph.main
    say(console, f"  TOSA {graph.version}, {counted(len(block.operators), 'operator')}")
    for title, names in (("input", block.inputs), ("output", block.outputs)):
        for name in names:
            say(console, f"  {title} {name}: {_brief(block.tensors[name])}")
    counts = Counter(op.op.name for op in block.operators)
    say(
        console,
        "  " + ", ".join(f"{n} {name}" for name, n in counts.most_common()),
    )
    console.print()
    _show_operators(console, graph, refused)
    for reason in refused.values():
        say(console, f"not supported: {reason}", BAD)
    if refused:
        return
    totals = _Totals.of(plans)
    pieces = f" in {len(plans)} pieces" if len(plans) != 1 else ""
    say(
        console,
        f"plan: {totals.dispatches} dispatches with {totals.barriers} barriers{pieces}, "
        f"{totals.load_dispatches} at load, {totals.pipelines} pipelines",
    )
    say(
        console,
        f"memory: {size(sum(totals.segments))} in {len(totals.segments)} segments, of "
        f"which {size(totals.constant_bytes)} constants",
    )


def _show_operators(console: Console, graph: Graph, refused: Mapping[int, str]) -> None:
    from tosavk.cli.console import BAD, Column, show_table

    tensors = graph.main.tensors
    show_table(
        console,
        (
            Column("#", right=True),
            Column("operator"),
            Column("result"),
            Column("operands", least=16),
            Column("output", least=8),
        ),
        [
            (
                str(op.index),
                (op.op.name, BAD if op.index in refused else ""),
                ", ".join(_brief(tensors[name]) for name in op.outputs),
                ", ".join(_brief(tensors[name]) for name in op.inputs),
                ", ".join(op.outputs),
            )
            for op in graph.main.operators
            if op.inputs
        ],
    )


def _show_dispatches(console: Console, plan: Plan, piece: int | None) -> None:
    from tosavk.cli.console import Column, say, show_table

    console.print()
    where = "" if piece is None else f" of piece {piece}"
    say(console, f"dispatches{where}; operands are buffer+word:words, slots first")
    show_table(
        console,
        (
            Column("#", right=True),
            Column("barrier"),
            Column("kernel"),
            Column("work", right=True),
            Column("operator"),
            Column("spec"),
            Column("operands"),
        ),
        [
            (
                f"{prefix}{number}",
                "|" if dispatch.barrier else "",
                dispatch.kernel,
                f"{dispatch.columns}x{dispatch.tiles}",
                f"{plan.operators[dispatch.operator].index} "
                f"{plan.operators[dispatch.operator].op}",
                " ".join(map(str, dispatch.spec)),
                " ".join(f"{o.buffer}+{o.word}:{o.words}" for o in dispatch.operands),
            )
            for prefix, part in (("load ", plan.prologue), ("", plan.dispatches))
            for number, dispatch in enumerate(part)
        ],
    )


@dataclass(frozen=True, slots=True)
class _Totals:
    """What all plans of a program take together."""

    pieces: int
    dispatches: int
    barriers: int
    load_dispatches: int
    pipelines: int
    segments: tuple[int, ...]
    constant_bytes: int

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> Self:
        """Adds the plans up."""
        dispatches = [d for plan in plans for d in plan.dispatches]
        at_load = [d for plan in plans for d in plan.prologue]
        return cls(
            pieces=len(plans),
            dispatches=len(dispatches),
            barriers=sum(d.barrier for d in dispatches),
            load_dispatches=len(at_load),
            pipelines=len({(d.kernel, d.spec) for d in (*at_load, *dispatches)}),
            segments=tuple(n for plan in plans for n in plan.segments),
            constant_bytes=sum(len(c.data) for plan in plans for c in plan.constants),
        )


def _document(
    graph: Graph,
    refused: Mapping[int, str],
    plans: Sequence[Plan],
    listed: Sequence[Plan],
) -> dict[str, object]:
    block = graph.main
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
                "supported": op.index not in refused,
                "reason": refused.get(op.index, ""),
            }
            for op in block.operators
        ],
    }
    if not refused:
        result["plan"] = dataclasses.asdict(_Totals.of(plans))
    if listed:
        numbered = list(enumerate(listed))
        result["load_dispatches"] = [
            _dispatch(piece, plan, d) for piece, plan in numbered for d in plan.prologue
        ]
        result["dispatches"] = [
            _dispatch(piece, plan, d)
            for piece, plan in numbered
            for d in plan.dispatches
        ]
    return result


def _dispatch(piece: int, plan: Plan, dispatch: Dispatch) -> dict[str, object]:
    return {
        "piece": piece,
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


def _brief(tensor: Tensor) -> str:
    from tosavk.cli.console import dims

    return f"{tensor.dtype.name} {dims(tensor.shape or ())}"
