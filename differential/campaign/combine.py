"""Puts the results of one model from many devices together, as one diff.

Every device was compared with the reference where it is. Here the devices are compared
with each other: outputs by the rules of a diff, operators by digests of their tensors,
and where the digests differ on equal operands by the tensors themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import elements
from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.campaign.known import result_of
from tosavk.differential.campaign.packet import Blob, Packet
from tosavk.differential.campaign.remote import output_key, tensor_key
from tosavk.differential.childside import Children
from tosavk.differential.compare import compare_bits
from tosavk.differential.exceptions import Trait
from tosavk.differential.findings import findings
from tosavk.differential.operators import OperatorCheck
from tosavk.differential.outputs import compare_outputs, merged_operators
from tosavk.differential.request import DiffRequest
from tosavk.differential.result import (
    BackendRun,
    Comparison,
    DiffResult,
    Ending,
    OperatorComparison,
)
from tosavk.differential.sides import REFERENCE, Party
from tosavk.lowering.errors import operator_name
from tosavk.lowering.graph import Block, Graph, Operator

Array = NDArray[np.generic]

_FETCHED = 4


@dataclass(slots=True)
class Stored:
    """A device of another machine, as a side of a diff.

    Attributes:
        label: its specification.
        spec: the same.
        result: what was found where it is.
        digests: of its tensors, by "run name".
        present: known exceptions that its known-answer test found.
        record: what is reported of its run.
        is_reference: never; the reference was beside each device.
        tensors: values that were fetched, by name, of the run that is looked at.
        values: the same of all runs.
        changed: outputs that change when all intermediates are kept, as was found there.
    """

    label: str
    spec: str
    result: DiffResult
    digests: Mapping[str, str]
    present: frozenset[Trait]
    record: BackendRun
    is_reference: bool = False
    tensors: dict[str, Array] = field(default_factory=dict[str, Array])
    values: dict[tuple[int, str], Array] = field(
        default_factory=dict[tuple[int, str], Array]
    )
    changed: list[str] = field(default_factory=list[str])

    def traits(self) -> frozenset[Trait]:
        """What its known-answer test found."""
        return self.present

    def rerun(
        self,
        op: Operator,
        block: Block,
        graph: Graph,
        operands: Mapping[str, Array],
        constants: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Nothing: only operators with equal operands are looked at."""
        del op, block, graph, operands, constants
        return {}


class Combination:
    """One model on several devices.

    Args:
        graph: the model's program.
        model: the name for the report.
        numerics: mode.
        packets: a result for each device, by specification.

    Raises:
        InvalidArgument: a result is not sound.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        model: str,
        numerics: Numerics,
        packets: Mapping[str, Packet],
    ) -> None:
        """Reads the results."""
        self._graph = graph
        self._numerics = numerics
        self._model = model
        self._outputs: list[dict[str, dict[str, Array]]] = []
        self._notes: dict[str, None] = {}
        self.devices: list[Stored] = []
        self._reference: BackendRun | None = None
        for spec, packet in packets.items():
            self._add(spec, packet)
        self._check = OperatorCheck(graph, against_reference=False, exact=True)

    def wanted(self) -> dict[str, tuple[str, ...]]:
        """Tensors whose values are needed besides, by device.

        They are the operands and results of the first operators that differ on equal
        operands.
        """
        found: dict[str, dict[str, None]] = {}
        for op in self._suspects():
            names = [
                name
                for name in (*op.inputs, *op.outputs)
                if f"0 {name}" in self.devices[0].digests
            ]
            for side in self.devices:
                found.setdefault(side.label, {}).update(dict.fromkeys(names))
        return {label: tuple(names) for label, names in found.items()}

    def fetched(self, spec: str, packet: Packet) -> None:
        """Takes in values that were wanted.

        Raises:
            InvalidArgument: they are not sound.
        """
        side = next(side for side in self.devices if side.spec == spec)
        for number in range(side.result.samples):
            for name in self._graph.main.tensors:
                blob = packet.blobs.get(tensor_key(number, name))
                if blob is not None:
                    side.values[number, name] = self._array(name, blob)

    def result(
        self, missing: Mapping[str, str], command: Sequence[str] = ()
    ) -> DiffResult:
        """The whole as one diff.

        Args:
            missing: why a device has no result, by specification.
            command: the words that repeat it.
        """
        operators = self._operators()
        request = DiffRequest(
            graph=self._graph,
            model=self._model,
            backends=tuple(side.spec for side in self.devices),
            numerics=self._numerics,
            children=Children(),
        )
        stored = list(self.devices)
        if self._reference is not None:
            stored.append(self._reference_side())
        # What is asked of them here is what `Stored` has.
        sides = cast("list[Party]", stored)
        judged = [s.label for s in self.devices if s.result.operators]
        outputs = compare_outputs(request, sides, self._outputs, judged, operators)
        first = self.devices[0].result
        return DiffResult(
            model=self._model,
            model_sha256=first.model_sha256,
            numerics=self._numerics.value,
            inputs=first.inputs,
            runs=(
                *(side.record for side in stored),
                *(missing_run(spec, reason) for spec, reason in missing.items()),
            ),
            outputs=outputs,
            operators=operators,
            findings=tuple(findings(sides, outputs, operators)),
            notes=(
                *(f"{spec}: not run: {reason}" for spec, reason in missing.items()),
                *self._notes,
            ),
            command=tuple(command),
            samples=first.samples,
        )

    def _add(self, spec: str, packet: Packet) -> None:
        result = result_of(packet.document.get("result"))
        record = next((r for r in result.runs if r.label == spec), None)
        digests = cast("Mapping[object, object]", packet.document.get("digests"))
        found = cast("Sequence[object]", packet.document.get("traits"))
        if record is None or not (
            isinstance(digests, dict) and isinstance(found, list)
        ):
            raise InvalidArgument(f"the result of {spec} does not name it")
        try:
            present = frozenset(Trait(str(trait)) for trait in found)
        except ValueError as error:
            raise InvalidArgument(f"the result of {spec}: {error}") from error
        side = Stored(
            label=spec,
            spec=spec,
            result=result,
            digests={str(name): str(value) for name, value in digests.items()},
            present=present,
            record=dataclasses.replace(record, traits=tuple(sorted(present))),
        )
        side.changed = [
            f.tensor for f in result.findings if f.kind.value == "plan" and f.tensor
        ]
        self.devices.append(side)
        if self.devices[0].result.inputs != result.inputs:
            raise InvalidArgument(
                f"{spec} was given other inputs than {self.devices[0].label}"
            )
        for text in result.notes:
            self._notes[text if spec in text else f"{spec}: {text}"] = None
        self._keep_outputs(side, packet)

    def _keep_outputs(self, side: Stored, packet: Packet) -> None:
        """Outputs of the device, and of the reference beside the first device."""
        block = self._graph.main
        for number in range(side.result.samples):
            while len(self._outputs) <= number:
                self._outputs.append({})
            found = self._outputs[number]
            for kind, label in (("device", side.label), ("reference", REFERENCE)):
                blobs = {
                    name: packet.blobs.get(output_key(kind, number, name))
                    for name in dict.fromkeys(block.outputs)
                }
                arrays = {
                    name: self._array(name, blob)
                    for name, blob in blobs.items()
                    if blob is not None
                }
                if len(arrays) < len(blobs):
                    continue
                if label == REFERENCE and label in found:
                    self._same_reference(side, found[label], arrays)
                else:
                    found[label] = arrays
        if self._reference is None:
            self._reference = next(
                (r for r in side.result.runs if r.label == REFERENCE), None
            )

    def _same_reference(
        self, side: Stored, known: Mapping[str, Array], arrays: Mapping[str, Array]
    ) -> None:
        for name, array in arrays.items():
            if not compare_bits(known[name], array).equal:
                text = (
                    f"the reference beside {side.label} gives other bits in {name!r} "
                    f"than beside {self.devices[0].label}: another NumPy"
                )
                self._notes[text] = None

    def _array(self, name: str, blob: Blob) -> Array:
        tensor = self._graph.main.tensors[name]
        shape = tuple(tensor.shape or ())
        kind = tensor.dtype.numpy
        if len(blob) != elements(shape) * kind.itemsize:
            raise InvalidArgument(f"{name!r} came with {len(blob)} bytes")
        return np.frombuffer(blob, np.uint8).view(kind).reshape(shape)

    def _reference_side(self) -> Stored:
        assert self._reference is not None
        return Stored(
            label=REFERENCE,
            spec=REFERENCE,
            result=self.devices[0].result,
            digests={},
            present=frozenset(),
            record=self._reference,
            is_reference=True,
        )

    def _suspects(self) -> list[Operator]:
        """The first operators that differ between devices on equal operands."""
        if self._numerics is not Numerics.STRICT or len(self._able()) < 2:
            return []
        found: list[Operator] = []
        for op in self._check.work:
            for number in range(self.devices[0].result.samples):
                same = self._groups(op.inputs, number)
                results = self._groups(op.outputs, number)
                if len(same) == 1 < len(results):
                    found.append(op)
                    break
            if len(found) == _FETCHED:
                break
        return found

    def _able(self) -> list[Stored]:
        """Devices that gave their tensors."""
        return [side for side in self.devices if side.digests]

    def _groups(self, names: Iterable[str], number: int) -> set[tuple[str, ...]]:
        """What the devices have in these tensors, each once."""
        return {
            tuple(side.digests.get(f"{number} {name}", "") for name in names)
            for side in self._able()
        }

    def _operators(self) -> tuple[OperatorComparison, ...]:
        """All comparisons of operators: with the reference, and between devices."""
        found: dict[int, OperatorComparison] = {}
        for op in self._check.work:
            between = self._between(op)
            if between:
                found[op.index] = OperatorComparison(operator_name(op), between)
        for side in self.devices:
            for item in side.result.operators:
                index = item.operator.index
                known = found.get(index)
                if known is None:
                    found[index] = item
                    continue
                found[index] = dataclasses.replace(
                    known,
                    operator=item.operator,
                    comparisons=(*known.comparisons, *item.comparisons),
                    shares=(*known.shares, *item.shares),
                )
        return tuple(found[index] for index in sorted(found))

    def _between(self, op: Operator) -> tuple[Comparison, ...]:
        """One operator between the devices, over all runs; empty if not comparable."""
        able = self._able()
        if self._numerics is not Numerics.STRICT or len(able) < 2:
            return ()
        samples = range(able[0].result.samples)
        if not all(len(self._groups(op.inputs, n)) == 1 for n in samples):
            # Inputs differ already; each is judged by its own.
            return ()
        if all(len(self._groups(op.outputs, n)) == 1 for n in samples):
            return tuple(
                self._equal(name, side)
                for name in op.outputs
                if f"0 {name}" in able[0].digests
                for side in able[1:]
            )
        runs: list[list[OperatorComparison]] = []
        for number in samples:
            for side in able:
                side.tensors = {
                    name: array
                    for (run, name), array in side.values.items()
                    if run == number
                }
            ready = all(side.tensors for side in able)
            runs.append(
                list(self._check.check([op], able, lambda _: None)) if ready else []
            )
        merged = merged_operators(runs)
        if merged:
            return merged[0].comparisons
        return tuple(self._unknown(op, side) for side in able[1:])

    def _equal(self, name: str, side: Stored) -> Comparison:
        tensor = self._graph.main.tensors[name]
        shape = tuple(tensor.shape or ())
        return Comparison(
            tensor=name,
            dtype=tensor.dtype.name,
            shape=shape,
            left=side.label,
            right=self._able()[0].label,
            rule="same bits",
            agreed=True,
            outcome="equal",
            elements=elements(shape) * side.result.samples,
        )

    def _unknown(self, op: Operator, side: Stored) -> Comparison:
        """A difference of which only the digests are known."""
        name = next(iter(op.outputs))
        return dataclasses.replace(
            self._equal(name, side),
            agreed=False,
            outcome="different",
            note="only the digests are known",
        )


def missing_run(spec: str, reason: str) -> BackendRun:
    """The part of a device that no worker could run."""
    return BackendRun(
        label=spec, spec=spec, ending=Ending.LEFT_OUT, failure=f"not run: {reason}"
    )
