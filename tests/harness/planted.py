"""Backends with a fault, planted for a test under a name of their own.

They evaluate graphs with NumPy like the reference, but count as devices; a fault changes
what one operator gives, so everything behind it sees the wrong value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from tosavk.backends import registry
from tosavk.backends.reference.device import (
    ReferenceDevice,
    ReferenceKit,
    ReferenceProgram,
)
from tosavk.backends.reference.evaluate import Evaluator
from tosavk.backends.reference.values import Precision
from tosavk.core.device import BoundSlot, Device, Lowered
from tosavk.core.dtypes import pack, unpack
from tosavk.core.plan import SlotRole
from tosavk.lowering.graph import Block, Graph, Operator

Array = NDArray[np.generic]
Fault = Callable[[Operator, Graph, list[Array]], list[Array]]
"""Gives an operator's results, which it may change; it may also raise."""

Planted = Fault | Callable[[], Device]
"""A fault, or what opens a device (or raises)."""


def healthy(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
    """No fault."""
    del op, graph
    return results


def corrupts(*tensors: str, element: int = 3, by: float = 0.25) -> Fault:
    """One element of each of these tensors is wrong."""

    def fault(op: Operator, graph: Graph, results: list[Array]) -> list[Array]:
        del graph
        if op.outputs[0] not in tensors:
            return results
        wrong = results[0].copy()
        flat = wrong.reshape(-1)
        if flat.dtype == np.bool_:
            flat[element] = ~flat[element]
        else:
            flat[element] = flat[element] + flat.dtype.type(by if by % 1 else int(by))
        return [wrong, *results[1:]]

    return fault


@dataclass(frozen=True, slots=True)
class _Faulty(Evaluator):
    fault: Fault = healthy

    def operator(
        self, operator: Operator, block: Block, operands: Sequence[Array]
    ) -> list[Array]:
        results = Evaluator.operator(self, operator, block, operands)
        assert self.graph is not None
        return self.fault(operator, self.graph, results)


class _Program(ReferenceProgram):
    fault: Fault = staticmethod(healthy)

    def evaluate(self, bound: Sequence[BoundSlot]) -> None:
        inputs: dict[str, Array] = {}
        for slot, place in zip(self.slots, bound, strict=True):
            if slot.role is SlotRole.INPUT:
                raw = bytearray(slot.nbytes)
                place.allocation.read(place.offset, memoryview(raw))
                inputs[slot.name] = unpack(slot.dtype, raw, slot.shape)
        evaluator = _Faulty(self.graph, Precision.NATIVE, fault=self.fault)
        values = evaluator.block(self.graph.main, inputs)
        for slot, place in zip(self.slots, bound, strict=True):
            if slot.role is not SlotRole.INPUT:
                data = pack(slot.dtype, values[slot.name])
                place.allocation.write(place.offset, data)


class _Kit(ReferenceKit):
    def __init__(self, device: ReferenceDevice, fault: Fault) -> None:
        super().__init__(device)
        self._fault = fault

    def load(self, lowered: Lowered) -> ReferenceProgram:
        loaded = super().load(lowered)
        assert isinstance(loaded, ReferenceProgram)
        program = _Program(loaded.graph, loaded.slots)
        program.fault = self._fault
        return program


class FaultyDevice(ReferenceDevice):
    """NumPy as a device with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault

    @property
    def name(self) -> str:
        return "planted (for a test)"

    def create_kit(self) -> ReferenceKit:
        return _Kit(self, self._fault)


@dataclass(frozen=True, slots=True)
class Listing:
    """How a planted device is listed."""

    index: int = 0
    name: str = "planted"
    driver: str = "for a test"
    uuid: str = ""
    usable: bool = True
    reason: str = ""


def plant(patch: pytest.MonkeyPatch, backends: Mapping[str, Planted]) -> None:
    """Adds backends for one test.

    Args:
        patch: undoes it.
        backends: by name: a fault, or for names that start with "open" what opens a
            device (or raises).
    """
    patch.setattr(registry, "BACKENDS", (*registry.BACKENDS, *backends))
    for name, what in backends.items():
        module = ModuleType(f"tosavk.backends.{name}")
        opens = name.startswith("open")

        def open_device(
            selector: str | None = None,
            what: object = what,
            opens: bool = opens,  # noqa: FBT001
        ) -> Device:
            del selector
            if opens:
                return what()  # type: ignore[operator,no-any-return]
            return FaultyDevice(what)  # type: ignore[arg-type]

        vars(module)["open_device"] = open_device
        vars(module)["list_devices"] = lambda: (Listing(),)
        patch.setitem(sys.modules, f"tosavk.backends.{name}", module)
