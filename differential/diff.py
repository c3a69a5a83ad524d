"""Runs one model on several backends and compares what they say.

Device backends are compared bit for bit in strict mode. With `reference` among the
backends, or node by node, every operator is also checked on its own: given the very
inputs that the device's own intermediates are, its result must obey TOSA's rule for that
operator, so errors of earlier operators neither hide nor add to later ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import open_accelerator, parse_spec
from tosavk.backends.session import tensor_spec
from tosavk.core.dtypes import DType, pack
from tosavk.core.errors import DeviceUnavailable, InitError, InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.exceptions import Trait, excuses_output
from tosavk.differential.inputs import fill_inputs
from tosavk.differential.operators import LOAD, check_operators
from tosavk.differential.result import (
    KNOWN_EXCEPTION,
    NOT_JUDGED,
    Comparison,
    DiffResult,
    Ending,
    Finding,
    FindingKind,
    InputOrigin,
    OperatorComparison,
)
from tosavk.differential.sides import REFERENCE, Side, ending_of, keeps_state
from tosavk.differential.tensors import compare_exactly, compare_with_reference
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import live_operators

Array = NDArray[np.generic]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRequest:
    """What to compare.

    Attributes:
        graph: a verified graph.
        model: its path or name for the report.
        model_sha256: of its file, or "".
        backends: at least two specifications; one may come several times.
        optional: whether a backend that is not there is left out; otherwise one that
            names no device is an error, and one that cannot be opened a finding.
        given: arrays for some inputs.
        paths: files that they were read from, by input name.
        seed: seed for the other inputs.
        numerics: mode.
        node_by_node: compare every operator.
        repeats: further runs for latency and repeatability.
        command: the words of the command line that repeats this, or empty.
        environment: variables that choose drivers.
    """

    graph: Graph
    model: str
    backends: tuple[str, ...]
    given: Mapping[str, Array] = field(default_factory=dict[str, Array])
    seed: int = 0
    numerics: Numerics = Numerics.STRICT
    node_by_node: bool = False
    model_sha256: str = ""
    optional: bool = False
    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    repeats: int = 3
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def probing(self) -> bool:
        """Whether operators are compared too."""
        return self.node_by_node or any(
            parse_spec(spec)[0] == REFERENCE for spec in self.backends
        )


def diff(request: DiffRequest, progress: Progress = lambda _: None) -> DiffResult:
    """Runs the comparison.

    Raises:
        InvalidArgument: fewer than two backends, or inputs that do not fit.
        DeviceUnavailable: a backend specification names no device, or several.
    """
    if len(request.backends) < 2:
        raise InvalidArgument(
            "a comparison needs at least two backends; give --backend twice or more"
        )
    for spec in request.backends:
        parse_spec(spec)
    block = request.graph.main
    specs = [tensor_spec(block.tensors[name]) for name in block.inputs]
    inputs = fill_inputs(specs, request.given, seed=request.seed)
    with ExitStack() as stack:
        sides = _open(request, stack, progress)
        for side in sides:
            side.run(
                request.graph,
                inputs,
                repeats=request.repeats,
                probing=request.probing,
                progress=progress,
            )
        progress("comparing outputs")
        done = [side for side in sides if side.ran]
        operators: tuple[OperatorComparison, ...] = ()
        if request.probing:
            operators = check_operators(
                request.graph,
                [side for side in done if not side.is_reference],
                against_reference=any(side.is_reference for side in done),
                exact=request.numerics is Numerics.STRICT,
                progress=progress,
            )
        outputs = _compare_outputs(request, done, operators)
    return DiffResult(
        model=request.model,
        model_sha256=request.model_sha256,
        numerics=request.numerics.value,
        inputs=_origins(request, inputs),
        runs=tuple(side.record for side in sides),
        outputs=outputs,
        operators=operators,
        findings=tuple(_findings(sides, outputs, operators)),
        notes=tuple(_notes(request, sides, outputs, operators)),
        command=request.command,
        environment=request.environment,
    )


def _open(request: DiffRequest, stack: ExitStack, progress: Progress) -> list[Side]:
    """Opens every backend first, so that a wrong name costs no time."""
    sides: list[Side] = []
    seen: Counter[str] = Counter()
    for spec in request.backends:
        seen[spec] += 1
        label = spec if seen[spec] == 1 else f"{spec} ({seen[spec]})"
        progress(f"{label}: opening the device")
        try:
            accelerator = stack.enter_context(open_accelerator(spec))
        except InitError as error:
            if isinstance(error, DeviceUnavailable) and not request.optional:
                raise
            ending = Ending.LEFT_OUT if request.optional else Ending.FAILED
            sides.append(_unopened(request, label, spec, ending, error))
        except Exception as error:  # noqa: BLE001 - a backend that breaks is a finding
            sides.append(_unopened(request, label, spec, ending_of(error), error))
        else:
            sides.append(Side(label, spec, accelerator, numerics=request.numerics))
    return sides


def _unopened(
    request: DiffRequest, label: str, spec: str, ending: Ending, error: Exception
) -> Side:
    return Side(
        label,
        spec,
        None,
        numerics=request.numerics,
        ending=ending,
        failure=f"{type(error).__name__}: {error}",
    )


def _compare_outputs(
    request: DiffRequest,
    sides: Sequence[Side],
    operators: Sequence[OperatorComparison],
) -> tuple[Comparison, ...]:
    devices = [side for side in sides if not side.is_reference]
    references = [side for side in sides if side.is_reference]
    tensors = request.graph.main.tensors
    exact = not _has_floats(request.graph)
    result: list[Comparison] = []
    for name in dict.fromkeys(request.graph.main.outputs):
        tensor = tensors[name]
        if request.numerics is Numerics.STRICT:
            for other in devices[1:]:
                comparison = compare_exactly(
                    tensor,
                    (other.label, other.outputs[name]),
                    (devices[0].label, devices[0].outputs[name]),
                )
                if not comparison.agreed:
                    comparison = _excused(comparison, other, devices[0], operators)
                result.append(comparison)
        result += [
            compare_with_reference(
                tensor,
                (side.label, side.outputs[name]),
                (reference.label, reference.outputs[name]),
                exact=exact,
                sound=_is_sound(side, operators),
                judged=bool(side.tensors),
            )
            for reference in references[:1]
            for side in (*devices, *references[1:])
        ]
    return tuple(result)


def _excused(
    comparison: Comparison,
    left: Side,
    right: Side,
    operators: Sequence[OperatorComparison],
) -> Comparison:
    """An output's difference, as a known exception if operators or values explain it.

    Operators are compared on equal inputs. So when all of them agree between the two
    sides, and one does by a known exception, that is where the difference comes from.
    """
    labels = {left.label, right.label}
    between = [
        c
        for item in operators
        for c in item.comparisons
        if labels & {c.left, c.right} and c.right != REFERENCE
    ]
    inner = [c for c in between if c.outcome == KNOWN_EXCEPTION]
    if between:
        note = inner[0].note if inner and all(c.agreed for c in between) else ""
    else:
        name = comparison.tensor
        used = excuses_output(
            DType[comparison.dtype],
            left.outputs[name],
            right.outputs[name],
            frozenset[Trait]().union(left.traits(), right.traits()),
        )
        note = f"explained by: {', '.join(used)}" if used else ""
    if not note:
        return comparison
    return dataclasses.replace(
        comparison, agreed=True, outcome=KNOWN_EXCEPTION, note=note
    )


def _is_sound(side: Side, operators: Sequence[OperatorComparison]) -> bool:
    """Whether the reference agrees with all of a side's operators."""
    return all(
        c.agreed
        for item in operators
        for c in item.comparisons
        if c.left in (side.label, LOAD) and c.right == REFERENCE
    )


def _has_floats(graph: Graph) -> bool:
    """Whether any value that the outputs depend on is a float."""
    tensors = graph.main.tensors
    return any(
        tensors[name].dtype.is_float
        for op in live_operators(graph.main)
        for name in (*op.inputs, *op.outputs)
    )


def _findings(
    sides: Sequence[Side],
    outputs: Sequence[Comparison],
    operators: Sequence[OperatorComparison],
) -> list[Finding]:
    """Everything that is wrong, in order of importance."""
    found = [
        Finding(
            FindingKind.BACKEND,
            f"{side.label} failed: {side.record.failure}",
            (side.label,),
        )
        for side in sides
        if side.record.ending is Ending.FAILED
    ]
    for item in operators:
        where = f"operator {item.operator.index} {item.operator.op}"
        if item.operator.location:
            where += f" at {item.operator.location}"
        found += [
            Finding(
                FindingKind.OPERATOR,
                f"{where}: {c}",
                (c.left, c.right),
                c.tensor,
                item.operator,
            )
            for c in item.comparisons
            if not c.agreed
        ]
    found += [
        Finding(
            FindingKind.PLAN,
            f"{side.label}: output {name!r} changes when every intermediate is kept; "
            f"arena reuse or a barrier of the plan is wrong",
            (side.label,),
            name,
        )
        for side in sides
        for name in side.changed
    ]
    found += [
        Finding(
            FindingKind.REPEATABILITY,
            f"{side.label} gives different bits from run to run",
            (side.label,),
        )
        for side in sides
        if not side.record.repeatable
    ]
    found += [
        Finding(FindingKind.OUTPUT, f"output {c}", (c.left, c.right), c.tensor)
        for c in outputs
        if not c.agreed
    ]
    return found


def _notes(
    request: DiffRequest,
    sides: Sequence[Side],
    outputs: Sequence[Comparison],
    operators: Sequence[OperatorComparison],
) -> list[str]:
    """What a reader must know besides, each once."""
    notes: dict[str, None] = {}
    for side in sides:
        if side.record.ending not in (Ending.RAN, Ending.FAILED):
            notes[f"{side.label}: {side.record.ending}: {side.record.failure}"] = None
    for c in outputs:
        if c.note:
            notes[f"output {c.tensor!r}: {c.note}"] = None
    for item in operators:
        for c in item.comparisons:
            if c.outcome in (KNOWN_EXCEPTION, NOT_JUDGED, "unpredictable"):
                text = f"operator {item.operator.index} {item.operator.op}"
                notes[f"{text}: {c.outcome}: {c.note}"] = None
    for side in sides:
        if side.unprobed:
            text = "the intermediates could not be read, so no operator was compared"
            notes[f"{side.label}: {text}: {side.unprobed}"] = None
    if keeps_state(request.graph):
        notes["the program keeps state, so it was run once only"] = None
    if not request.probing and any(not c.agreed for c in outputs):
        notes["--node-by-node names the operator that differs"] = None
    return list(notes)


def _origins(
    request: DiffRequest, inputs: Mapping[str, Array]
) -> tuple[InputOrigin, ...]:
    tensors = request.graph.main.tensors
    return tuple(
        InputOrigin(
            name=name,
            dtype=tensors[name].dtype.name,
            shape=array.shape,
            seed=None if name in request.given else request.seed,
            path=request.paths.get(name, ""),
            sha256=hashlib.sha256(pack(tensors[name].dtype, array)).hexdigest(),
        )
        for name, array in inputs.items()
    )
