"""What sessions share: a plan on a device with a buffer for each of its slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    BufferUsage,
    EventState,
    MemoryDomain,
)
from tosavk.core.device import Device, Lowered
from tosavk.core.errors import DeadlineExpired, DeviceLost, OutOfMemory, Unsupported
from tosavk.core.plan import Slot, SlotRole
from tosavk.core.prepared import Prepared

_USAGE = {
    SlotRole.INPUT: BufferUsage.TRANSFER_DESTINATION | BufferUsage.PROGRAM_INPUT,
    SlotRole.OUTPUT: BufferUsage.TRANSFER_SOURCE | BufferUsage.PROGRAM_OUTPUT,
}
_ACCESS = {SlotRole.INPUT: AccessMode.READ, SlotRole.OUTPUT: AccessMode.WRITE}


class Closing(ABC):
    """A context manager whose block closes it in the end."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class LoadedPlan:
    """A plan, loaded, that always works with the same buffers: one for each slot."""

    def __init__(
        self, accelerator: Accelerator, context: Context, lowered: Lowered
    ) -> None:
        """Loads a plan.

        Args:
            accelerator: where to.
            context: what owns the buffers.
            lowered: the plan.

        Raises:
            ModelError: the device refuses it.
        """
        self._device = accelerator.device
        with _wanted_for("constants and intermediates of the program"):
            program = context.load_program(lowered)
        slots = program.slots
        domains = {role: slot_domain(accelerator, role) for role in _ACCESS}
        self._buffers: list[Buffer] = []
        for slot in slots:
            desc = BufferDesc(
                nbytes=slot.nbytes, domain=domains[slot.role], usage=_USAGE[slot.role]
            )
            with _wanted_for(f"{slot.role.value} {slot.name!r}"):
                self._buffers.append(context.allocate_buffer(desc))
        self._prepared = context.prepare(
            program,
            [
                Binding(
                    slot=slot.index,
                    buffer=buffer,
                    range=BufferRange(0, slot.nbytes),
                    access=_ACCESS[slot.role],
                )
                for slot, buffer in zip(slots, self._buffers, strict=True)
            ],
        )

    def write(self, slot: Slot, data: bytes | bytearray | memoryview) -> None:
        """Fills an input slot from its beginning."""
        self._buffers[slot.index].write(0, data)

    def run(self, timeout_s: float | None = None) -> None:
        """Runs the plan once and waits, in steps that let Ctrl-C through.

        Args:
            timeout_s: seconds to wait at most; None: until it ends.

        Raises:
            InvalidArgument: it computed a value that an operator must not be given.
            DeviceLost: the device was lost while it ran.
            DeadlineExpired: it has not ended in time; the device is given up.
        """
        finish(self._prepared, self._device, timeout_s)

    def read(self, slot: Slot) -> NDArray[np.uint8]:
        """The bytes of a slot, copied."""
        raw = np.empty(slot.nbytes, np.uint8)
        self._buffers[slot.index].read_into(0, raw.data)
        return raw


def finish(
    prepared: Prepared,
    device: Device,
    timeout_s: float | None,
    *,
    limit_s: float | None = None,
) -> None:
    """Launches a prepared submission and waits, in steps that let Ctrl-C through.

    Args:
        prepared: what to launch.
        device: what it runs on.
        timeout_s: seconds to wait at most; None: until it ends.
        limit_s: of the whole run, for the message; None: `timeout_s`.

    Raises:
        InvalidArgument: it computed a value that an operator must not be given.
        DeviceLost: the device was lost while it ran.
        DeadlineExpired: it has not ended in time; the device is given up.
    """
    expired: DeadlineExpired | None = None
    try:
        with prepared.submit() as event:
            if event.wait(timeout_s) is EventState.PENDING:
                abandon = getattr(device, "abandon", None)
                if abandon is not None:
                    abandon("the program")
                limit = timeout_s if limit_s is None else limit_s
                expired = DeadlineExpired(
                    f"the program did not end within {limit:g} s on {device.name}; "
                    "close it and open the device anew"
                )
                raise expired
            if event.error is not None:
                raise event.error
    except DeviceLost:
        # What the device says once it is given up.
        if expired is None:
            raise
        raise expired from None


@contextmanager
def _wanted_for(what: str) -> Generator[None]:
    """Says what memory was wanted for when there is not enough."""
    try:
        yield
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}; it was for {what}") from error


def slot_domain(accelerator: Accelerator, role: SlotRole) -> MemoryDomain:
    """Where a slot's buffer lies.

    Inputs are written straight into device memory where it is mapped. Outputs are read
    back by a copy: mapped memory of a graphics card is not cached by the host, and
    reading it reaches a hundredth of the speed.

    Raises:
        Unsupported: the device offers no memory domain.
    """
    offered = accelerator.info.domains
    order = [MemoryDomain.SHARED, MemoryDomain.DEVICE, MemoryDomain.HOST]
    if role is SlotRole.OUTPUT:
        order = [MemoryDomain.DEVICE, MemoryDomain.SHARED, MemoryDomain.HOST]
    for domain in order:
        if domain in offered:
            return domain
    raise Unsupported("the device offers no memory domain")
