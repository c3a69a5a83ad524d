"""A device without hardware that obeys a script, and watches how the model treats it.

It fails the calls that a test tells it to fail, ends work when a test says so, counts
every live object, and raises AssertionError when the model breaks the contract of
core/device.py (frees twice, frees what runs, launches what runs, waits for the queue
behind an unraised gate). It has one queue: work behind a gate holds up what follows.
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
from tosavk.core.device import (
    BoundSlot,
    ContextKit,
    DeviceGate,
    Lowered,
    Recording,
)
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


class FakeGate:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.max_difference = device.max_difference
        self.value = 0
        self.signals: list[int] = []
        self.freed = False
        device.live["gate"] += 1

    def signal(self, value: int) -> None:
        self._device.call("signal")
        assert not self.freed, "signalled a gate that is freed"
        assert self.value < value <= self.value + self.max_difference
        self.value = value
        self.signals.append(value)

    def free(self) -> None:
        assert not self.freed, "gate freed twice"
        for recording in self._device.running:
            assert recording.gate is not self, "freed the gate of running work"
        self.freed = True
        self._device.live["gate"] -= 1
        self._device.call("gate.free")


class FakeAllocation:
    def __init__(
        self, device: FakeDevice, desc: BufferDesc, data: memoryview | None = None
    ) -> None:
        self._device = device
        self._info = device.next_info or BufferInfo(
            desc.nbytes if data is None else data.nbytes,
            max(desc.alignment, 256),
            BufferProperties(7),
        )
        self._imported = data
        self.memory = bytearray(desc.nbytes) if data is None else data
        self.freed = False
        device.live["allocation"] += 1

    @property
    def info(self) -> BufferInfo:
        return self._info

    @property
    def mapped(self) -> memoryview | None:
        if self._imported is None and not self._device.maps:
            return None
        return memoryview(self.memory)

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
        if self._imported is not None:
            self._imported.release()
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
        self.gate: FakeGate | None = None
        self.value = 0
        device.live["recording"] += 1

    def launch_after(self, gate: DeviceGate, value: int) -> None:
        assert isinstance(gate, FakeGate)
        assert not gate.freed, "launched behind a gate that is freed"
        self.gate, self.value = gate, value
        try:
            self.launch()
        except BaseException:
            self.gate = None
            raise

    @property
    def is_held(self) -> bool:
        """Whether it, or what is in front of it in the queue, waits for a gate."""
        queue = self._device.running
        if self not in queue:  # the device was lost
            return False
        front = queue[: queue.index(self) + 1]
        return any(r.gate is not None and r.gate.value < r.value for r in front)

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
        if self._device.instant and not self.is_held:
            self.finish()

    def finish(self) -> None:
        """Ends the work, as the hardware would."""
        assert self.state == "running"
        assert not self.is_held, "ended behind an unraised gate"
        self.state = "done"
        self.gate = None
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
        if self.state == "running" and (patience is None or self.is_held):
            time.sleep(min(timeout_ns * 1e-9, 1e-3 if self.is_held else 2e-4))
        waited = patience is not None and self.waits >= patience
        if self.state == "running" and waited and not self.is_held:
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

    def import_memory(self, desc: BufferDesc, data: memoryview) -> FakeAllocation:
        self._device.call("import_memory")
        return FakeAllocation(self._device, desc, data)

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
        host_import_alignment: what imported memory must be aligned to; None: no import.
        max_difference: of gates made from now on.
        gates: all gates that were made.
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
        kinds = ("kit", "allocation", "program", "recording", "gate")
        self.live = dict.fromkeys(kinds, 0)
        self.running: list[FakeRecording] = []
        self.recorded = 0
        self.instant = False
        self.patience: int | None = 2
        self.waited_ns = 0
        self.maps = True
        self.next_info: BufferInfo | None = None
        self.host_import_alignment: int | None = 64
        self.max_difference = (1 << 64) - 1
        self.gates: list[FakeGate] = []
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

    def create_gate(self) -> FakeGate:
        self.call("create_gate")
        self.gates.append(FakeGate(self))
        return self.gates[-1]

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
