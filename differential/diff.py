"""Runs one model on several backends and compares what they say.

Device backends are compared bit for bit in strict mode. With `reference` among the
backends, or node by node, every operator is also checked on its own: given the very
inputs that the device's own intermediates are, its result must obey TOSA's rule for that
operator, so errors of earlier operators neither hide nor add to later ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import open_accelerator, parse_spec
from tosavk.backends.session import Session, tensor_spec
from tosavk.core.accelerator import Accelerator
from tosavk.core.errors import Error, InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.inputs import fill_inputs
from tosavk.differential.operators import check_operators
from tosavk.differential.result import BackendRun, Comparison, DiffResult
from tosavk.differential.tensors import compare_exactly, compare_with_reference
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import expose, intermediates

Array = NDArray[np.generic]
Progress = Callable[[str], None]

REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRequest:
    """What to compare.

    Attributes:
        graph: a verified graph.
        model: its name for the report.
        backends: at least two specifications.
        given: arrays for some inputs.
        seed: seed for the other inputs.
        numerics: mode.
        node_by_node: compare every operator.
        repeats: further runs for latency and repeatability.
    """

    graph: Graph
    model: str
    backends: tuple[str, ...]
    given: Mapping[str, Array]
    seed: int
    numerics: Numerics
    node_by_node: bool
    repeats: int = 3


@dataclass(slots=True)
class _Side:
    """A backend while the diff runs."""

    run: BackendRun
    outputs: dict[str, Array]
    tensors: dict[str, Array]

    @property
    def is_reference(self) -> bool:
        return parse_spec(self.run.spec)[0] == REFERENCE


def diff(request: DiffRequest, progress: Progress = lambda _: None) -> DiffResult:
    """Runs the comparison.

    Raises:
        InvalidArgument: fewer than two backends, or inputs that do not fit.
        InitError: a backend specification names no device.
    """
    if len(request.backends) < 2:
        raise InvalidArgument("a comparison needs at least two backends")
    for spec in request.backends:
        parse_spec(spec)
    probing = request.node_by_node or any(
        parse_spec(spec)[0] == REFERENCE for spec in request.backends
    )
    inputs = _inputs(request)
    sides = [
        _run(request, spec, inputs, progress, probing=probing)
        for spec in request.backends
    ]
    done = [side for side in sides if not side.run.failure]
    progress("comparing outputs")
    findings = [
        f"{side.run.spec} failed: {side.run.failure}"
        for side in sides
        if side.run.failure
    ]
    findings += [
        f"{side.run.spec} gives different bits from run to run"
        for side in done
        if not side.run.repeatable
    ]
    findings += _changed_by_exposure(done)
    outputs = _compare_outputs(request, done)
    operators = (
        check_operators(
            request.graph,
            {side.run.spec: side.tensors for side in done if not side.is_reference},
            against_reference=any(side.is_reference for side in done),
            exact=request.numerics is Numerics.STRICT,
            progress=progress,
        )
        if probing
        else ()
    )
    findings += [_describe(c) for c in outputs if not c.agreed]
    for item in operators:
        findings += [
            f"operator {item.operator.index} {item.operator.op}: {_describe(c)}"
            for c in item.comparisons
            if not c.agreed
        ]
    return DiffResult(
        model=request.model,
        numerics=request.numerics.value,
        inputs=_describe_inputs(request, inputs),
        runs=tuple(side.run for side in sides),
        outputs=outputs,
        operators=operators,
        findings=tuple(findings),
        notes=tuple(_notes(outputs)),
    )


def _inputs(request: DiffRequest) -> dict[str, Array]:
    block = request.graph.main
    specs = [tensor_spec(block.tensors[name]) for name in block.inputs]
    return fill_inputs(specs, request.given, seed=request.seed)


def _run(
    request: DiffRequest,
    spec: str,
    inputs: Mapping[str, Array],
    progress: Progress,
    *,
    probing: bool,
) -> _Side:
    progress(f"{spec}: loading")
    start = time.perf_counter()
    with open_accelerator(spec) as accelerator:
        try:
            return _run_on(
                request, accelerator, spec, inputs, progress, start, probing=probing
            )
        except InvalidArgument:
            raise
        except Error as error:
            failure = f"{type(error).__name__}: {error}"
            run = BackendRun(spec, accelerator.name, failure=failure)
            return _Side(run, {}, {})


def _run_on(
    request: DiffRequest,
    accelerator: Accelerator,
    spec: str,
    inputs: Mapping[str, Array],
    progress: Progress,
    start: float,
    *,
    probing: bool,
) -> _Side:
    name = accelerator.name
    lowered = lower_graph(
        request.graph, limits=accelerator.device.plan_limits, numerics=request.numerics
    )
    with Session(accelerator, lowered) as session:
        loaded = time.perf_counter()
        progress(f"{spec}: running on {name}")
        outputs = session.run(inputs)
        first = time.perf_counter()
        repeatable, seconds = True, []
        for _ in range(request.repeats):
            begin = time.perf_counter()
            again = session.run(inputs)
            seconds.append(time.perf_counter() - begin)
            repeatable &= all(
                np.array_equal(_bits(again[key]), _bits(outputs[key]))
                for key in outputs
            )
    tensors = _probe(request, accelerator, spec, inputs, progress) if probing else {}
    run = BackendRun(
        spec,
        name,
        load_s=loaded - start,
        first_s=first - loaded,
        steady_s=statistics.median(seconds) if seconds else 0.0,
        repeatable=repeatable,
    )
    return _Side(run, outputs, tensors)


def _probe(
    request: DiffRequest,
    accelerator: Accelerator,
    spec: str,
    inputs: Mapping[str, Array],
    progress: Progress,
) -> dict[str, Array]:
    """All intermediates of a device, by plans that have them as outputs."""
    if parse_spec(spec)[0] == REFERENCE:
        return {}
    progress(f"{spec}: reading every intermediate")
    graph = request.graph
    names = intermediates(graph)
    limits = accelerator.info.limits
    room = min(limits.max_bindings_per_submission, limits.max_buffers_per_context)
    chunk = max(1, room - len(graph.main.inputs) - len(graph.main.outputs))
    tensors: dict[str, Array] = dict(inputs)
    for start in range(0, max(1, len(names)), chunk):
        lowered = lower_graph(
            expose(graph, names[start : start + chunk]),
            limits=accelerator.device.plan_limits,
            numerics=request.numerics,
        )
        with Session(accelerator, lowered) as session:
            tensors.update(session.run(inputs))
    return tensors


def _changed_by_exposure(sides: Sequence[_Side]) -> list[str]:
    """Outputs that change when nothing shares arena memory: a planning fault."""
    return [
        f"{side.run.spec}: output {name!r} changes when every intermediate is kept; "
        f"arena reuse or a barrier of the plan is wrong"
        for side in sides
        for name, array in side.outputs.items()
        if name in side.tensors
        and not np.array_equal(_bits(array), _bits(side.tensors[name]))
    ]


def _compare_outputs(
    request: DiffRequest, sides: Sequence[_Side]
) -> tuple[Comparison, ...]:
    devices = [side for side in sides if not side.is_reference]
    references = [side for side in sides if side.is_reference]
    tensors = request.graph.main.tensors
    names = dict.fromkeys(request.graph.main.outputs)
    result: list[Comparison] = []
    for name in names:
        tensor = tensors[name]
        if request.numerics is Numerics.STRICT:
            result += [
                compare_exactly(
                    tensor,
                    (devices[0].run.spec, devices[0].outputs[name]),
                    (other.run.spec, other.outputs[name]),
                )
                for other in devices[1:]
            ]
        result += [
            compare_with_reference(
                tensor,
                (side.run.spec, side.outputs[name]),
                (reference.run.spec, reference.outputs[name]),
            )
            for reference in references
            for side in devices
        ]
    return tuple(result)


def _describe(c: Comparison) -> str:
    text = f"{c.tensor!r} of {c.left} and {c.right}: {c.outcome} ({c.rule})"
    if c.differing:
        text += f", {c.differing} of {c.elements} elements"
    if c.worst is not None:
        text += f", worst at {list(c.worst.index)}: {c.worst.left} and {c.worst.right}"
    return text


def _describe_inputs(
    request: DiffRequest, inputs: Mapping[str, Array]
) -> tuple[str, ...]:
    return tuple(
        f"{name}: {array.dtype} {'x'.join(map(str, array.shape)) or 'scalar'}, "
        + ("given" if name in request.given else f"random, seed {request.seed}")
        for name, array in inputs.items()
    )


def _notes(outputs: Sequence[Comparison]) -> list[str]:
    return list(
        dict.fromkeys(f"output {c.tensor!r}: {c.note}" for c in outputs if c.note)
    )


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
