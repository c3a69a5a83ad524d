"""A device without hardware that obeys a script, and watches how the model treats it.

It fails the calls that a test tells it to fail, ends work when a test says so, counts
every live object, and raises AssertionError when the model breaks the contract of
core/device.py (frees twice, frees what runs, launches what runs).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from tosavk.core.accelerator import Accelerator
from tosavk.core.buffers import Buffer
from tosavk.core.contexts import Context
from tosavk.core.descriptors import (
    USAGE_ALL,
    AccessMode,
    Artifact,
    Binding,
    BufferDesc,
    BufferInfo,
    BufferProperties,
    BufferRange,
    Capabilities,
    DeviceIdentity,
    DeviceInfo,
    DeviceLimits,
)
from tosavk.core.device import BoundSlot, ContextKit, Lowered, Recording
from tosavk.core.dtypes import DType
from tosavk.core.errors import DeviceLost
from tosavk.core.plan import Numerics, Plan, PlanLimits, Slot, SlotRole
from tosavk.core.programs import Program

ALL_DOMAINS = (
    Capabilities.HOST_VISIBLE_MEMORY
    | Capabilities.DEVICE_LOCAL_MEMORY
    | Capabilities.SHARED_MEMORY
)
SLOT_BYTES = 16
ALIGNMENT = 16


class FakeLowered:
    """A lowered program with some inputs and outputs of 16 bytes."""

    def __init__(self, inputs: int = 2, outputs: int = 1) -> None:
        roles = [SlotRole.INPUT] * inputs + [SlotRole.OUTPUT] * outputs
        self._plan = Plan(
            slots=tuple(
                Slot(i, f"t{i}", role, DType.FP32, (4,), SLOT_BYTES)
                for i, role in enumerate(roles)
            ),
            segments=(),
            constants=(),
            prologue=(),
            dispatches=(),
            operators=(),
            numerics=Numerics.STRICT,
        )

    @property
    def plan(self) -> Plan:
        return self._plan


class FakeAllocation:
    def __init__(self, device: FakeDevice, desc: BufferDesc) -> None:
        self._device = device
        self._info = device.next_info or BufferInfo(
            desc.nbytes, max(desc.alignment, 256), BufferProperties(7)
        )
        self.memory = bytearray(desc.nbytes)
        self.freed = False
        device.live["allocation"] += 1

    @property
    def info(self) -> BufferInfo:
        return self._info

    @property
    def mapped(self) -> memoryview | None:
        return memoryview(self.memory) if self._device.maps else None

    def write(self, offset: int, data: memoryview) -> None:
        self._device.call("write")
        assert not self.freed
        self.memory[offset : offset + data.nbytes] = data

    def read(self, offset: int, out: memoryview) -> None:
        self._device.call("read")
        assert not self.freed
        out[:] = self.memory[offset : offset + out.nbytes]

    def free(self) -> None:
        assert not self.freed, "allocation freed twice"
        for recording in self._device.running:
            assert self not in recording.allocations, "freed memory of running work"
        self.freed = True
        self._device.live["allocation"] -= 1
        self._device.call("allocation.free")


class FakeLoaded:
    def __init__(self, device: FakeDevice, plan: Plan) -> None:
        self._device = device
        self._plan = plan
        self.freed = False
        device.live["program"] += 1

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self._plan.slots

    @property
    def dispatch_count(self) -> int:
        return 1

    @property
    def arena_bytes(self) -> int:
        return 64

    def free(self) -> None:
        assert not self.freed, "program freed twice"
        for recording in self._device.running:
            assert recording.program is not self, "freed the program of running work"
        self.freed = True
        self._device.live["program"] -= 1
        self._device.call("program.free")


class FakeRecording:
    def __init__(
        self, device: FakeDevice, program: object, bound: Sequence[BoundSlot]
    ) -> None:
        self._device = device
        self.program = program
        self.bound = tuple(bound)
        self.allocations = tuple(slot.allocation for slot in bound)
        self.state = "ready"
        self.launches = 0
        self.waits = 0
        device.live["recording"] += 1

    def launch(self) -> None:
        assert self.state == "ready", f"launched a recording that is {self.state}"
        self._device.call("launch")
        for allocation in self.allocations:
            assert isinstance(allocation, FakeAllocation)
            assert not allocation.freed, "launched with freed memory"
        self.launches += 1
        self.waits = 0
        self.state = "running"
        self._device.running.append(self)
        if self._device.instant:
            self.finish()

    def finish(self) -> None:
        """Ends the work, as the hardware would."""
        assert self.state == "running"
        self.state = "done"
        self._device.running.remove(self)

    def poll(self) -> bool:
        self._device.call("poll")
        assert self.state in {"running", "done"}, f"polled while {self.state}"
        return self.state == "done"

    def wait(self, timeout_ns: int) -> bool:
        self._device.call("wait")
        assert 0 < timeout_ns <= 50_000_000
        self._device.waited_ns += timeout_ns
        self.waits += 1
        # A model that waits for ever must fail the test, not hang it.
        assert self.waits < 1000, "waited for work that never ends"
        patience = self._device.patience
        if patience is None and self.state == "running":
            time.sleep(min(timeout_ns * 1e-9, 2e-4))
        if self.state == "running" and patience is not None and self.waits >= patience:
            self.finish()
        return self.state == "done"

    def retire(self) -> None:
        self._device.call("retire")
        assert self.state == "done", f"retired while {self.state}"
        self.state = "ready"

    def free(self) -> None:
        assert self not in self._device.running, "freed running work"
        assert self.state != "freed", "recording freed twice"
        self.state = "freed"
        self._device.live["recording"] -= 1
        self._device.call("recording.free")


class FakeKit:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._freed = False
        device.live["kit"] += 1

    def allocate(self, desc: BufferDesc) -> FakeAllocation:
        self._device.call("allocate")
        return FakeAllocation(self._device, desc)

    def load(self, lowered: Lowered) -> FakeLoaded:
        self._device.call("load")
        return FakeLoaded(self._device, lowered.plan)

    def record(
        self, program: object, bound: Sequence[BoundSlot], reuse: Recording | None
    ) -> FakeRecording:
        self._device.call("record")
        assert isinstance(program, FakeLoaded)
        assert not program.freed
        self._device.recorded += 1
        if reuse is not None:
            reuse.free()
        return FakeRecording(self._device, program, bound)

    def free(self) -> None:
        assert not self._freed, "kit freed twice"
        self._freed = True
        self._device.live["kit"] -= 1
        self._device.call("kit.free")


class FakeDevice:
    """See the module.

    Attributes:
        calls: names of all device calls so far.
        live: live objects by kind.
        running: recordings that were launched and have not ended.
        instant: whether work ends in its launch.
        patience: number of waits after which the waited-for work ends; None: never.
        maps: whether allocations are mapped.
        next_info: what allocations report, instead of the truth.
        poisoned: whether the device is lost.
    """

    binding_alignment = ALIGNMENT

    def __init__(
        self,
        *,
        limits: DeviceLimits | None = None,
        capabilities: Capabilities = ALL_DOMAINS,
    ) -> None:
        self._info = DeviceInfo(
            DeviceIdentity(bytes(range(16))),
            limits or DeviceLimits(max_buffer_bytes=1 << 20),
            capabilities,
        )
        self.calls: list[str] = []
        self.live = dict.fromkeys(("kit", "allocation", "program", "recording"), 0)
        self.running: list[FakeRecording] = []
        self.recorded = 0
        self.instant = False
        self.patience: int | None = 2
        self.waited_ns = 0
        self.maps = True
        self.next_info: BufferInfo | None = None
        self.poisoned = False
        self.closed = False
        self.lowered: list[Artifact] = []
        self._failures: dict[str, deque[BaseException]] = {}

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def name(self) -> str:
        return "fake"

    @property
    def plan_limits(self) -> PlanLimits:
        return PlanLimits()

    def fail(self, call: str, error: BaseException) -> None:
        """Makes the next call of that name raise `error`."""
        self._failures.setdefault(call, deque()).append(error)

    def call(self, name: str) -> None:
        self.calls.append(name)
        assert not self.closed, f"{name} on a closed device"
        failures = self._failures.get(name)
        if failures:
            error = failures.popleft()
            if isinstance(error, DeviceLost):
                self.lose()
            raise error

    def lose(self) -> None:
        """Loses the device; what ran on it is gone."""
        self.poisoned = True
        self.running.clear()

    def finish_all(self) -> None:
        """Ends all running work."""
        for recording in list(self.running):
            recording.finish()

    def lower(self, artifact: Artifact) -> Lowered:
        self.call("lower")
        self.lowered.append(artifact)
        return FakeLowered()

    def create_kit(self) -> ContextKit:
        self.call("create_kit")
        return FakeKit(self)

    def wait_idle(self) -> None:
        self.call("wait_idle")
        self.finish_all()

    def close(self) -> None:
        self.call("close")
        assert not any(self.live.values()), f"closed with live objects: {self.live}"
        self.closed = True


def buffer(context: Context, nbytes: int = SLOT_BYTES) -> Buffer:
    """A buffer that may be used for everything."""
    return context.allocate_buffer(BufferDesc(nbytes, USAGE_ALL))


def bindings(program: Program, buffers: Sequence[Buffer]) -> list[Binding]:
    """Bindings of whole slots to the beginnings of buffers, in slot order."""
    return [
        Binding(
            slot.index,
            buffer,
            BufferRange(0, slot.nbytes),
            AccessMode.READ if slot.role is SlotRole.INPUT else AccessMode.WRITE,
        )
        for slot, buffer in zip(program.slots, buffers, strict=True)
    ]


class Bench:
    """An accelerator on a fake device with a context, a queue and a program."""

    def __init__(self, device: FakeDevice | None = None) -> None:
        self.device = device or FakeDevice()
        self.accelerator = Accelerator(self.device)
        self.context = self.accelerator.create_context()
        self.queue = self.context.create_queue()
        self.program = self.context.load_program(FakeLowered())

    def buffers(self) -> list[Buffer]:
        """New buffers for every slot of the program."""
        return [buffer(self.context) for _ in self.program.slots]

    def bindings(self) -> list[Binding]:
        """Bindings of new buffers."""
        return bindings(self.program, self.buffers())
