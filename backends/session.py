"""A loaded model: one program on one device, NumPy in, NumPy out."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.flows import DEFAULT_TURNS, FlowRunner, Variables
from tosavk.backends.loaded import Closing, LoadedPlan, slot_domain
from tosavk.backends.registry import open_accelerator
from tosavk.core.accelerator import Accelerator
from tosavk.core.descriptors import unsigned
from tosavk.core.device import Device
from tosavk.core.dtypes import DType, coerce, pack, unpack
from tosavk.core.errors import DeviceLost, InvalidArgument, Released, ResourceLimit
from tosavk.core.plan import Numerics, Plan, PlanLimits, Slot, SlotRole
from tosavk.lowering.flow import Flow
from tosavk.lowering.graph import Graph, Tensor
from tosavk.lowering.late import LateChecks
from tosavk.lowering.lower import Lowered, lower_graph
from tosavk.lowering.program import load_graph
from tosavk.lowering.rules.dot import dispatches_dots

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | Graph
"""What a program may be given as."""

Compiling = Callable[[int, int], None]
"""Told how many pipelines of a program are compiled, and of how many."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, type and shape of a program's input or output."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def check(self, value: object) -> NDArray[np.generic]:
        """The array that a user gives for this tensor, in the type of its kind.

        Raises:
            InvalidArgument: it has another type or shape.
        """
        array = coerce(self.name, self.dtype, value, canonical_bool=False)
        if array.shape != self.shape:
            raise InvalidArgument(
                f"input {self.name!r} has shape {self.shape}, "
                f"got an array of shape {array.shape}"
            )
        return array

    def __str__(self) -> str:
        """The tensor for people, such as `x: FP32 1x4`."""
        dims = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.name}: {self.dtype.name} {dims}"


class Session(Closing):
    """A program loaded on a device, with buffers of its own.

    Use it as a context manager; `close` gives everything back. It belongs to the thread
    that made it.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        lowered: Lowered,
        *,
        owns_accelerator: bool = False,
        max_turns: int = DEFAULT_TURNS,
        progress: Compiling | None = None,
    ) -> None:
        """Loads `lowered` in a context of its own.

        Args:
            accelerator: where to.
            lowered: the program.
            owns_accelerator: the accelerator is closed with the session, also when
                loading fails.
            max_turns: how many turns all WHILE_LOOPs together may take in one run.
            progress: told how many pipelines are compiled, and of how many; what it
                raises ends the loading.

        Raises:
            InvalidArgument: `max_turns` is no number of turns.
            ModelError: the device refuses the program.
        """
        self._accelerator = accelerator
        self._closed = False
        self._closing = ExitStack()
        if owns_accelerator:
            self._closing.enter_context(accelerator)
        self.graph: Graph = lowered.graph
        self._runner: FlowRunner | None = None
        self.plan: Plan = lowered.plan
        self._late = LateChecks.of(lowered.graph.main)
        try:
            with _telling(accelerator.device, progress):
                self._load(lowered, unsigned("max_turns", max_turns))
        except BaseException:
            self._closing.close()
            raise
        self.inputs = tuple(_spec(slot) for slot in self.plan.inputs)
        self.outputs = tuple(_spec(slot) for slot in self.plan.outputs)

    @property
    def device_name(self) -> str:
        """The device and driver that runs the program."""
        return self._accelerator.name

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator underneath."""
        return self._accelerator

    @property
    def variables(self) -> Variables:
        """The program's VARIABLEs by name, to be read and set between runs.

        Raises:
            Released: the session is closed.
        """
        self._require_open()
        if self._runner is None:
            return Variables(None, ())
        return self._runner.variables

    def run(
        self,
        inputs: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, NDArray[np.generic]]:
        """Runs the program once.

        Args:
            inputs: an array for every input, by name.
            timeout_s: seconds to wait at most; None: until it ends. With control flow or
                variables, the piece that is under way then may take as long again.

        Returns:
            A new array for every output, by name. An output that the graph lists
            twice appears once.

        Raises:
            InvalidArgument: an input is missing, unknown, or has a wrong type or shape,
                or a value that an operator must not be given (nothing has run then);
                or the program computed such a value, and there is no result.
            Released: the session is closed.
            ResourceLimit: its loops take more than `max_turns` turns.
            DeviceLost: the device was lost while it ran.
            DeadlineExpired: it has not ended in time; the device is given up, unless
                it ended between two pieces (control flow).
        """
        self._require_open()
        if timeout_s is not None and timeout_s < 0:
            raise InvalidArgument(
                f"timeout_s is {timeout_s}; give seconds from 0 on, or None for any time"
            )
        arrays = self._accept(dict(inputs or {}))
        if self._late.operators:
            names = (spec.name for spec in self.inputs)
            self._late.check(dict(zip(names, arrays, strict=True)))
        try:
            return self._run(arrays, timeout_s)
        except DeviceLost as error:
            if isinstance(error.__cause__, ResourceLimit):
                # The reference stops at a limit, not at a fault of the device.
                raise error.__cause__ from None
            raise DeviceLost(
                f"{self.device_name}: {error}; `tosavk run --op-by-op` names the operator"
            ) from error

    def _run(
        self, arrays: list[NDArray[np.generic]], timeout_s: float | None
    ) -> dict[str, NDArray[np.generic]]:
        """Runs with all inputs in order."""
        if self._runner is not None:
            return self._runner.run(arrays, timeout_s=timeout_s)
        for slot, array in zip(self.plan.inputs, arrays, strict=True):
            self._loaded.write(slot, pack(slot.dtype, array))
        self._loaded.run(timeout_s)
        result: dict[str, NDArray[np.generic]] = {}
        for slot in self.plan.outputs:
            raw = self._loaded.read(slot)
            result[slot.name] = unpack(slot.dtype, raw.data, slot.shape)
        return result

    def close(self) -> None:
        """Gives everything back that the session made; may be called twice."""
        self._closed = True
        self._closing.close()

    def __repr__(self) -> str:
        """What is loaded where."""
        takes = ", ".join(map(str, self.inputs))
        gives = ", ".join(map(str, self.outputs))
        state = ", closed" if self._closed else ""
        return f"<Session ({takes}) -> ({gives}) on {self.device_name}{state}>"

    def _load(self, lowered: Lowered, max_turns: int) -> None:
        accelerator = self._accelerator
        self._context = self._closing.enter_context(accelerator.create_context())
        flow = _own_flow(accelerator, lowered)
        if flow is None:
            limit = getattr(accelerator.device, "limit_turns", None)
            if limit is not None:
                limit(max_turns)
            self._loaded = LoadedPlan(accelerator, self._context, lowered)
            return
        self._runner = FlowRunner(
            self._context,
            flow,
            self.plan.slots,
            slot_domain(accelerator, SlotRole.INPUT),
            device=accelerator.device,
            turns=max_turns,
        )

    def _require_open(self) -> None:
        if self._closed:
            raise Released("the program is closed; load it again to run it")

    def _accept(self, given: dict[str, object]) -> list[NDArray[np.generic]]:
        """The arrays of all inputs in order, checked."""
        arrays: list[NDArray[np.generic]] = []
        for spec in self.inputs:
            if spec.name not in given:
                raise InvalidArgument(
                    f"input {spec.name!r} is missing; the program takes "
                    + "; ".join(map(str, self.inputs))
                )
            arrays.append(spec.check(given.pop(spec.name)))
        if given:
            raise InvalidArgument(
                f"{', '.join(map(repr, given))}: no such input; the program takes "
                + ("; ".join(map(str, self.inputs)) or "none")
            )
        return arrays


def read_model(source: Source) -> bytes | memoryview | Graph:
    """The bytes of a model that may be given as a path.

    Raises:
        InvalidArgument: the file cannot be read.
    """
    if isinstance(source, bytes | memoryview | Graph):
        return source
    if isinstance(source, bytearray):
        return bytes(source)
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"cannot read model {str(source)!r}: {error.strerror or error}"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"a model is a path, bytes or a Graph, not {source!r}: {error}"
        ) from error


def load(
    source: Source,
    *,
    backend: str = "vulkan",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    numerics: str | Numerics = Numerics.STRICT,
    max_turns: int = DEFAULT_TURNS,
    disable: Collection[str] = (),
    progress: Compiling | None = None,
) -> Session:
    """Loads a TOSA program on a device.

    Args:
        source: a path, the bytes of a TOSA flatbuffer, or a Graph.
        backend: backend specification, such as "vulkan" or "wgpu:llvmpipe".
        shapes: shapes of inputs whose dimensions the file leaves open.
        numerics: "strict" (same bits on every IEEE device) or "fast".
        max_turns: how many turns all WHILE_LOOPs together may take in one run.
        disable: what the device offers and is left alone (`tosavk.core.switches`).
        progress: told how many pipelines are compiled, and of how many.

    Raises:
        InvalidArgument: the file is broken, a shape is missing, or `max_turns` is no
            number of turns.
        Unsupported: the kernels lack an operator or type.
        InitError: no such device.
    """
    mode = parse_numerics(numerics)
    graph = load_graph(read_model(source), shapes=shapes)
    accelerator = open_accelerator(backend, disable=disable)
    return load_on(
        accelerator, graph, numerics=mode, max_turns=max_turns, progress=progress
    )


def load_on(
    accelerator: Accelerator,
    graph: Graph,
    *,
    numerics: Numerics = Numerics.STRICT,
    max_turns: int = DEFAULT_TURNS,
    progress: Compiling | None = None,
) -> Session:
    """Loads a verified graph on an accelerator, which the session closes in the end.

    Raises:
        ModelError: the device refuses the program; the accelerator is closed.
    """
    try:
        lowered = lower_on(accelerator.device, graph, numerics=numerics)
    except BaseException:
        accelerator.close()
        raise
    return Session(
        accelerator,
        lowered,
        owns_accelerator=True,
        max_turns=max_turns,
        progress=progress,
    )


def lower_on(
    device: Device, graph: Graph, *, numerics: Numerics = Numerics.STRICT
) -> Lowered:
    """Lowers a verified graph with kernels that give right answers on a device.

    Raises:
        ModelError: the device refuses the program, or was lost.

    Warns:
        KernelWarning: a kernel gives wrong answers; others are taken.
    """

    def lower(limits: PlanLimits) -> Lowered:
        return lower_graph(graph, limits=limits, numerics=numerics)

    lowered = lower(device.plan_limits)
    if not dispatches_dots(lowered.plans):
        return lowered
    # Only programs with such kernels pay for what makes the known answers.
    from tosavk.backends.dot_check import lower_trusted

    return lower_trusted(device, lower, lowered)


def parse_numerics(value: str | Numerics) -> Numerics:
    """The numerics mode of that name.

    Raises:
        InvalidArgument: no such mode.
    """
    try:
        return Numerics(value)
    except ValueError:
        raise InvalidArgument(
            f"numerics {value!r} is unknown; choose strict or fast"
        ) from None


def tensor_spec(tensor: Tensor) -> TensorSpec:
    """The specification of a tensor whose shape is resolved."""
    assert tensor.shape is not None
    return TensorSpec(tensor.name, tensor.dtype, tensor.shape)


def _spec(slot: Slot) -> TensorSpec:
    return TensorSpec(slot.name, slot.dtype, slot.shape)


@contextmanager
def _telling(device: Device, progress: Compiling | None) -> Generator[None]:
    """Lets a device tell of its pipelines, if it makes any."""
    watch = getattr(device, "watch_pipelines", None)
    if progress is None or watch is None:
        yield
        return
    watch(progress)
    try:
        yield
    finally:
        watch(None)


def _own_flow(accelerator: Accelerator, lowered: Lowered) -> Flow | None:
    """The flow, if the host must go through it.

    A device that evaluates whole graphs takes control flow as it is; variables it does
    not let anybody see, and rules about values it does not know.
    """
    flow = lowered.flow
    if flow is None or flow.variables or flow.checks:
        return flow
    return None if getattr(accelerator.device, "evaluates_graphs", False) else flow
