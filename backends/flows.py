"""Runs flows: programs with control flow or variables.

The host goes through the steps; each piece is a submission of its own over buffers that
hold whole values. Nothing is copied between pieces: a call, a variable and the next turn
of a loop get the buffers themselves.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.cells import Cell, Cells
from tosavk.backends.loaded import finish
from tosavk.core.contexts import Context
from tosavk.core.descriptors import AccessMode, Binding, BufferRange, MemoryDomain
from tosavk.core.device import Device
from tosavk.core.dtypes import coerce, pack, unpack
from tosavk.core.errors import DeadlineExpired, InvalidArgument, ResourceLimit
from tosavk.core.plan import OperatorName, Slot
from tosavk.core.prepared import Prepared
from tosavk.lowering.flow import (
    Branch,
    Call,
    Check,
    Flow,
    Held,
    Loop,
    Read,
    Routine,
    Run,
    Step,
    Variable,
    Write,
)

DEFAULT_TURNS = 1 << 16
"""Turns of all loops together that one run may take, unless told otherwise."""

_LEAST_S = 1.0
"""What a piece gets at least where a run has a time limit, in seconds."""

_RECORDINGS = 48
"""Recordings kept; fewer than the submission slots of a context."""


class FlowRunner:
    """A flow, loaded.

    Args:
        context: where to; its owner closes it, with all that is made here.
        flow: the program.
        slots: inputs and outputs of the program.
        domain: memory that values are kept in.
        device: what the context is on.
        turns: how many turns of loops one run may take.

    Attributes:
        variables: the program's state.

    Raises:
        ModelError: the device refuses a part of the program.
    """

    def __init__(
        self,
        context: Context,
        flow: Flow,
        slots: Sequence[Slot],
        domain: MemoryDomain,
        *,
        device: Device,
        turns: int = DEFAULT_TURNS,
    ) -> None:
        """Loads all pieces and uploads constants."""
        self._context = context
        self._device = device
        self._limit_s: float | None = None
        self._end = 0.0
        self._flow = flow
        self._slots = tuple(slots)
        self._turns = turns
        self._left = turns
        self._programs = [context.load_program(piece) for piece in flow.pieces]
        self._recordings: OrderedDict[tuple[object, ...], Prepared] = OrderedDict()
        self._cells = Cells(context, domain, self._forget)
        self._constants = [
            {
                number: self._upload(value.data, value.nbytes)
                for number, value in enumerate(routine.values)
                if value.data is not None
            }
            for routine in flow.routines
        ]
        self._state = [self._first(variable) for variable in flow.variables]
        self.variables = Variables(self, flow.variables)

    def run(
        self,
        arrays: Sequence[NDArray[np.generic]],
        *,
        timeout_s: float | None = None,
    ) -> dict[str, NDArray[np.generic]]:
        """Runs the program once.

        Variables change when it succeeds; if it fails, they are as before.

        Args:
            arrays: one for each input, checked.
            timeout_s: seconds after which no further piece is begun; None: any time.

        Returns:
            A new array for every output, by name.

        Raises:
            ResourceLimit: the loops took too many turns, or there is no room.
            DeviceLost: the device was lost while it ran.
            DeadlineExpired: it has not ended in time. If a piece took as long again, the
                device is given up.
        """
        self._limit_s = timeout_s
        self._end = time.monotonic() + (timeout_s or 0.0)
        count = len(arrays)
        before = list(self._state)
        self._left = self._turns
        try:
            given = [
                self._upload(pack(slot.dtype, array), slot.nbytes)
                for slot, array in zip(self._slots[:count], arrays, strict=True)
            ]
            # The state of before is kept until the end.
            for cell in before:
                self._cells.name(cell)
            made = self._routine(0, given)
            result = {
                slot.name: self._download(slot, cell)
                for slot, cell in zip(self._slots[count:], made, strict=True)
            }
        except BaseException:
            self._state = before
            self._settle()
            raise
        self._settle()
        return result

    def read(self, number: int) -> NDArray[np.generic]:
        """A copy of a variable's value."""
        return self._download(self._flow.variables[number], self._state[number])

    def write(self, number: int, data: memoryview | None) -> None:
        """Gives a variable a new value, or its first one again."""
        variable = self._flow.variables[number]
        cell = (
            self._first(variable)
            if data is None
            else self._upload(data, variable.nbytes)
        )
        self._cells.drop(self._state[number])
        self._state[number] = cell

    def _settle(self) -> None:
        """Frees all values but constants and variables."""
        constants = [cell for cells in self._constants for cell in cells.values()]
        self._cells.keep_only([*constants, *self._state])

    def _routine(self, number: int, given: Sequence[Cell]) -> list[Cell]:
        """Runs a routine.

        Args:
            number: which one.
            given: cells for its inputs; their names go to it.

        Returns:
            Cells of its outputs, with a name each.
        """
        routine = self._flow.routines[number]
        frame = dict(self._constants[number])
        frame.update(zip(routine.inputs, given, strict=True))
        for step, ends in zip(routine.steps, routine.ends, strict=True):
            self._step(routine, frame, step)
            for value in ends:
                self._cells.drop(frame.pop(value))
        outputs = [self._cells.name(frame[value]) for value in routine.outputs]
        for value in self._constants[number]:
            del frame[value]
        for cell in frame.values():
            self._cells.drop(cell)
        return outputs

    def _step(self, routine: Routine, frame: dict[int, Cell], step: Step) -> None:
        match step:
            case Run():
                self._piece(routine, frame, step)
            case Call():
                self._call(frame, step, step.routine)
            case Branch():
                chosen = step.then if self._holds(frame[step.condition]) else step.other
                self._call(frame, step, chosen)
            case Loop():
                self._loop(frame, step)
            case Check():
                self._check(routine, frame, step)
            case Read():
                frame[step.output] = self._cells.name(self._state[step.variable])
            case Write():
                new = self._cells.name(frame[step.input])
                self._cells.drop(self._state[step.variable])
                self._state[step.variable] = new

    def _check(self, routine: Routine, frame: dict[int, Cell], step: Check) -> None:
        step.rules.check(
            {
                name: self._download(routine.values[value], frame[value])
                for name, value in zip(step.rules.names, step.inputs, strict=True)
            }
        )

    def _call(self, frame: dict[int, Cell], step: Call | Branch, routine: int) -> None:
        given = [self._cells.name(frame[value]) for value in step.inputs]
        made = self._routine(routine, given)
        frame.update(zip(step.outputs, made, strict=True))

    def _loop(self, frame: dict[int, Cell], step: Loop) -> None:
        state = [self._cells.name(frame[value]) for value in step.inputs]
        while self._condition(step.condition, state):
            self._turn(step.operator)
            state = self._routine(step.body, state)
        frame.update(zip(step.outputs, state, strict=True))

    def _condition(self, routine: int, state: Sequence[Cell]) -> bool:
        given = [self._cells.name(cell) for cell in state]
        (answer,) = self._routine(routine, given)
        holds = self._holds(answer)
        self._cells.drop(answer)
        return holds

    def _turn(self, operator: OperatorName) -> None:
        if not self._left:
            raise ResourceLimit(
                f"operator {operator.index} {operator.op} ({operator.output!r}): the "
                f"loops of this run took {self._turns} turns and did not end; allow "
                "more (max_turns) if they should"
            )
        self._left -= 1

    def _holds(self, cell: Cell) -> bool:
        return cell.buffer.read(0, 1) != b"\0"

    def _piece(self, routine: Routine, frame: dict[int, Cell], step: Run) -> None:
        for value in step.outputs:
            frame[value] = self._cells.take(routine.values[value].nbytes)
        cells = [frame[value] for value in (*step.inputs, *step.outputs)]
        prepared = self._recorded(step.piece, cells, len(step.inputs))
        finish(prepared, self._device, self._wait_s(), limit_s=self._limit_s)

    def _wait_s(self) -> float | None:
        """How long to wait for a piece in seconds; None: there is no limit.

        One that was launched just before the end gets as long again: a device that is
        merely at work is not to be given up.

        Raises:
            DeadlineExpired: the run's time is over.
        """
        if self._limit_s is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExpired(
                f"the program did not end within {self._limit_s:g} s on "
                f"{self._device.name}, between two of its pieces; give it more time"
            )
        return left + max(self._limit_s, _LEAST_S)

    def _recorded(self, piece: int, cells: Sequence[Cell], inputs: int) -> Prepared:
        """The recording of a piece on these cells; the last ones used are kept."""
        key = (piece, *cells)
        found = self._recordings.get(key)
        if found is not None:
            self._recordings.move_to_end(key)
            return found
        if len(self._recordings) == _RECORDINGS:
            _, oldest = self._recordings.popitem(last=False)
            oldest.release()
        slots = self._flow.pieces[piece].plan.slots
        prepared = self._context.prepare(
            self._programs[piece],
            [
                Binding(
                    slot=slot.index,
                    buffer=cell.buffer,
                    range=BufferRange(0, slot.nbytes),
                    access=AccessMode.READ if number < inputs else AccessMode.WRITE,
                )
                for number, (slot, cell) in enumerate(zip(slots, cells, strict=True))
            ],
        )
        self._recordings[key] = prepared
        return prepared

    def _forget(self) -> None:
        """Lets go of all recordings."""
        while self._recordings:
            _, prepared = self._recordings.popitem()
            prepared.release()

    def _upload(self, data: memoryview, nbytes: int) -> Cell:
        cell = self._cells.take(nbytes)
        cell.buffer.write(0, data)
        return cell

    def _download(
        self, slot: Slot | Variable | Held, cell: Cell
    ) -> NDArray[np.generic]:
        raw = np.empty(slot.nbytes, np.uint8)
        cell.buffer.read_into(0, raw.data)
        return unpack(slot.dtype, raw.data, slot.shape)

    def _first(self, variable: Variable) -> Cell:
        data = variable.initial
        if data is None:
            data = memoryview(bytes(variable.nbytes))
        return self._upload(data, variable.nbytes)


class Variables:
    """The variables of a loaded program, by name: read them, set them, `reset` them."""

    def __init__(self, runner: FlowRunner | None, declared: Sequence[Variable]) -> None:
        """The variables that a program declares."""
        self._runner = runner
        self._declared = tuple(declared)
        self._numbers: Mapping[str, int] = {
            variable.name: number for number, variable in enumerate(declared)
        }

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        """A copy of a variable's value.

        Raises:
            InvalidArgument: no such variable.
        """
        number, runner = self._find(name)
        return runner.read(number)

    def __setitem__(self, name: str, value: object) -> None:
        """Sets a variable.

        Raises:
            InvalidArgument: no such variable, or it has another type or shape.
        """
        number, runner = self._find(name)
        variable = self._declared[number]
        array = coerce(name, variable.dtype, value)
        if array.shape != variable.shape:
            raise InvalidArgument(
                f"variable {name!r} has shape {variable.shape}, got an array of shape "
                f"{array.shape}"
            )
        runner.write(number, pack(variable.dtype, array))

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of declaration."""
        return iter(self._numbers)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        """Whether the program has such a variable."""
        return name in self._numbers

    def __repr__(self) -> str:
        """The names."""
        return f"<Variables {', '.join(map(repr, self._numbers)) or 'none'}>"

    def reset(self) -> None:
        """Gives all variables their first values again."""
        for name in self._numbers:
            number, runner = self._find(name)
            runner.write(number, None)

    def _find(self, name: str) -> tuple[int, FlowRunner]:
        number = self._numbers.get(name)
        if number is None or self._runner is None:
            known = ", ".join(map(repr, self._numbers)) or "none"
            raise InvalidArgument(f"no variable {name!r}; the program has {known}")
        return number, self._runner
