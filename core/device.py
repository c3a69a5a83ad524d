"""What a backend must provide underneath the Accelerator model.

`core.accelerator` holds the model itself: handles, order of checks, guards, ring slots,
event latches. It is the same code for every backend. A backend provides the five
objects below, which do the work and check nothing that the model has checked already.
All of them belong to the owner's thread.

What the model adds to the signatures below (all of it compatible with them):

* A device may have an attribute `binding_alignment`, an int: the offset of a bound range
  must be a multiple of it (Vulkan: max(4, minStorageBufferOffsetAlignment)). Without it
  the model asks for `DEFAULT_BINDING_ALIGNMENT`, which is enough for every device.
* What not every device can do is asked for with `getattr`, and refused with Unsupported
  where it is missing: gates (`GatingDevice`, `GatedRecording`) and the import of host
  memory (`ImportingDevice`, `ImportingKit`).
* `ContextKit.record` consumes `reuse` when it succeeds: it takes the objects over, or
  frees them. When it fails, `reuse` is never launched again, only reused or freed.
* The model frees the idle recordings of a program or buffer before it frees that. Only
  when handles die unreleased in a reference cycle may a recording outlive its memory;
  then it is at most polled, waited for, retired, reused or freed.
* `Recording.free` of a launch that failed with DeviceLost comes after `wait_idle`.
* `wait_idle` of a poisoned device returns within bounded time.
* A method that raises ModelError has changed nothing, except as it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tosavk.core.descriptors import (
    Artifact,
    BufferDesc,
    BufferInfo,
    DeviceInfo,
)
from tosavk.core.plan import Plan, PlanLimits, Slot

DEFAULT_BINDING_ALIGNMENT = 256
"""Bytes; the most that Vulkan and WebGPU let a device ask of storage buffer offsets."""


class Lowered(Protocol):
    """A lowered program, as `tosavk.lowering` makes it."""

    @property
    def plan(self) -> Plan:
        """The plan to run.

        If it has slots that are checked, there is an attribute `rules` as well, a
        `core.rules.ValueRules`.
        """
        ...


class Allocation(Protocol):
    """Memory behind one buffer: dedicated, word-rounded, bound at offset 0."""

    @property
    def info(self) -> BufferInfo:
        """What was really allocated."""
        ...

    @property
    def mapped(self) -> memoryview | None:
        """The writable host mapping of the whole allocation, if it is mapped."""
        ...

    def write(self, offset: int, data: memoryview) -> None:
        """Copies `data` to byte `offset`; staged where the memory is not mapped."""
        ...

    def read(self, offset: int, out: memoryview) -> None:
        """Fills `out` from byte `offset`."""
        ...

    def free(self) -> None:
        """Gives the memory back; the device no longer uses it."""
        ...


@dataclass(frozen=True, slots=True)
class BoundSlot:
    """The memory bound to one slot of a submission."""

    allocation: Allocation
    offset: int
    nbytes: int


class LoadedProgram(Protocol):
    """A program on the device: pipelines, arena with constants, fixed descriptors."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The program's slots in order."""
        ...

    @property
    def dispatch_count(self) -> int:
        """Kernel launches of one submission."""
        ...

    @property
    def arena_bytes(self) -> int:
        """Device bytes that the program retains for its arena."""
        ...

    def free(self) -> None:
        """Gives everything back; the device no longer uses it."""
        ...


class Recording(Protocol):
    """One recorded submission of a program with fixed bindings, and its fence.

    It is launched any number of times, one launch at a time.
    """

    def launch(self) -> None:
        """Hands the work to the queue; never blocks.

        Raises:
            DeviceLost: the work may have been accepted.
            ModelError: any other; nothing was accepted.
        """
        ...

    def poll(self) -> bool:
        """Whether the last launch is complete; never blocks."""
        ...

    def wait(self, timeout_ns: int) -> bool:
        """Waits at most `timeout_ns` (bounded, GIL released) and polls."""
        ...

    def retire(self) -> None:
        """Called once after completion was observed; makes it launchable again."""
        ...

    def free(self) -> None:
        """Gives everything back; the last launch is complete."""
        ...


class DeviceGate(Protocol):
    """A counter that starts at 0, is raised by the host, and queued work waits for."""

    @property
    def max_difference(self) -> int:
        """How far the counter and any value that is waited for may lie apart."""
        ...

    def signal(self, value: int) -> None:
        """Raises the counter to `value`, which is larger; called in any thread.

        Host stores of that thread before the call are seen by the work that it lets go.

        Raises:
            ModelError: the counter is as before. A lost device is told, not noted.
        """
        ...

    def free(self) -> None:
        """Gives it back; no queued work waits for it."""
        ...


class GatedRecording(Recording, Protocol):
    """A recording of a device that has gates."""

    def launch_after(self, gate: DeviceGate, value: int) -> None:
        """Like `launch`, but the work starts when the gate has reached `value`.

        Work that is launched later, by whomever, may have to wait for it too. The
        backend must not wait for its queue inside a transfer or load meanwhile, but
        refuses them with Busy where they need the queue.
        """
        ...


class GatingDevice(Protocol):
    """What a device that has gates offers besides `Device`."""

    def create_gate(self) -> DeviceGate:
        """Makes a counter.

        Raises:
            Unsupported: the device has no such thing.
        """
        ...


class ImportingDevice(Protocol):
    """What a device that imports host memory offers besides `Device`."""

    @property
    def host_import_alignment(self) -> int | None:
        """A power of two that address and size must be multiples of; None: it cannot."""
        ...


class ImportingKit(Protocol):
    """What the context of such a device offers besides `ContextKit`."""

    def import_memory(self, desc: BufferDesc, data: memoryview) -> Allocation:
        """Makes host memory usable by the device where it lies.

        The allocation is always mapped, keeps `data` until it is freed, and then calls
        its `release`; when this raises, `data` stays the caller's.

        Args:
            desc: its domain is HOST or SHARED; validated.
            data: writable, flat bytes; aligned, at least `desc.nbytes`.
        """
        ...


class ContextKit(Protocol):
    """The device objects of one context."""

    def allocate(self, desc: BufferDesc) -> Allocation:
        """Allocates memory for a buffer; the descriptor is validated already."""
        ...

    def load(self, lowered: Lowered) -> LoadedProgram:
        """Creates pipelines and arena, uploads constants, runs the prologue."""
        ...

    def record(
        self,
        program: LoadedProgram,
        bound: Sequence[BoundSlot],
        reuse: Recording | None,
    ) -> Recording:
        """Records a submission; may take over the objects of an idle `reuse`."""
        ...

    def free(self) -> None:
        """Gives everything back; all children are gone."""
        ...


class Device(Protocol):
    """An open device."""

    @property
    def info(self) -> DeviceInfo:
        """Identity, limits, capabilities; equal for the life of the device."""
        ...

    @property
    def name(self) -> str:
        """Name of the device and driver for people."""
        ...

    @property
    def plan_limits(self) -> PlanLimits:
        """What plans for this device may ask for."""
        ...

    @property
    def poisoned(self) -> bool:
        """Whether the device was lost; sticky."""
        ...

    def lower(self, artifact: Artifact) -> Lowered:
        """Lowers an artifact for this device (through `tosavk.lowering`)."""
        ...

    def create_kit(self) -> ContextKit:
        """Creates the objects of a context."""
        ...

    def wait_idle(self) -> None:
        """Waits until the device has nothing to do; never raises."""
        ...

    def close(self) -> None:
        """Destroys the device; all kits are gone."""
        ...
