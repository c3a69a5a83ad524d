"""Failures at every step: what was made before is given back, and all still works."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from harness.kernels import ALL, WAIT_NS, Made, bytes_of, kernel_plan
from tosavk.backends.wgpu import _ffi, adapters, open_device
from tosavk.backends.wgpu.buffers import Allocation
from tosavk.backends.wgpu.device import WgpuDevice
from tosavk.backends.wgpu.recordings import Recording
from tosavk.core.descriptors import BufferDesc, MemoryDomain
from tosavk.core.device import BoundSlot
from tosavk.core.dtypes import DType
from tosavk.core.errors import ModelError, OutOfMemory
from tosavk.core.plan import Constant, Dispatch, Operand, Plan

COUNT = 37
STEP = {**{f"d{i}": 1 for i in range(5)}, **{f"s{i}": 0 for i in range(5)}}


class Door:
    """Stands before the library: counts objects, and lets one creation fail.

    Attributes:
        live: objects by kind that are created and not released.
        fail_at: number of the creation that reports that memory is out, counted down.
        failed: the function that did.
    """

    def __init__(self, lib: Any) -> None:  # noqa: ANN401 - a cffi library
        self._lib = lib
        self.live: Counter[str] = Counter()
        self.fail_at = 0
        self.failed = ""
        self.errors: list[tuple[int, str]] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the library has
        found = getattr(self._lib, name)
        if name.startswith("wgpuDeviceCreate"):
            return self._creating(name, found)
        if name.startswith("wgpu") and name.endswith("Release"):
            return self._releasing(name, found)
        return found

    def _creating(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        kind = name.removeprefix("wgpuDeviceCreate")

        def create(*arguments: object) -> Any:  # noqa: ANN401
            handle = call(*arguments)
            self.live[kind] += 1
            if self.fail_at:
                self.fail_at -= 1
                if not self.fail_at:
                    self.failed = name
                    self.errors.append((3, "Not enough memory left"))
            return handle

        return create

    def _releasing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        kind = name.removeprefix("wgpu").removesuffix("Release")

        def release(*arguments: object) -> None:
            call(*arguments)
            self.live[kind] -= 1

        return release

    def objects(self) -> dict[str, int]:
        """The live objects that a device's children are made of."""
        others = {"Device", "Queue", "Adapter", "Instance", "CommandBuffer"}
        others.add("ComputePassEncoder")
        return {k: n for k, n in sorted(self.live.items()) if n and k not in others}


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    made = Door(_ffi.lib)
    monkeypatch.setattr(_ffi, "lib", made)
    monkeypatch.setattr(adapters, "lib", made)
    return made


@pytest.fixture
def opened(wgpu_device: str, door: Door) -> Iterator[WgpuDevice]:
    device = open_device(wgpu_device.partition(":")[2] or None)
    door.errors = device.gpu.errors
    yield device
    device.close()
    assert door.objects() == {}


def program() -> Plan:
    """y = x reversed through an arena with a constant and a prologue."""
    base = kernel_plan(
        "move",
        {"TYPE": DType.INT32},
        {"count": COUNT, **STEP, "d5": COUNT, "s5": -1, "offset": COUNT - 1},
        [4 * COUNT, 4 * COUNT],
        COUNT,
    )
    (reverse,) = base.dispatches
    arena, other = Operand(2, 0, COUNT), Operand(2, 64, COUNT)

    def move(x: Operand, y: Operand) -> Dispatch:
        return Dispatch(
            reverse.kernel, reverse.spec, reverse.params, (x, y), COUNT, 1, True, 0
        )

    slots = (Operand(0, 0, COUNT), Operand(1, 0, COUNT))
    return Plan(
        slots=base.slots,
        segments=(1024, 512),
        constants=(Constant(0, 0, memoryview(bytes(range(148)))),),
        prologue=(move(arena, other),),
        dispatches=(
            move(slots[0], Operand(3, 0, COUNT)),
            move(Operand(3, 0, COUNT), other),
            move(other, slots[1]),
        ),
        operators=base.operators,
        numerics=base.numerics,
    )


def everything(device: WgpuDevice) -> None:
    """Loads, records, runs and frees a program; frees also when a part fails."""
    kit = device.create_kit()
    x = np.arange(COUNT, dtype=np.uint32)
    loaded = kit.load(Made(program()))
    buffers: list[Allocation] = []
    recording: Recording | None = None
    try:
        for _ in range(2):
            request = BufferDesc(
                nbytes=4 * COUNT, usage=ALL, domain=MemoryDomain.DEVICE
            )
            buffers.append(kit.allocate(request))
        buffers[0].write(0, bytes_of(x).data)
        bound = [BoundSlot(buffer, 0, 4 * COUNT) for buffer in buffers]
        recording = kit.record(loaded, bound, None)
        recording.launch()
        assert recording.wait(WAIT_NS)
        recording.retire()
        out = np.empty_like(x)
        buffers[1].read(0, bytes_of(out).data)
        assert np.array_equal(out, x[::-1])
    finally:
        if recording is not None:
            recording.free()
        for buffer in buffers:
            buffer.free()
        loaded.free()


def test_every_creation_may_fail(opened: WgpuDevice, door: Door) -> None:
    everything(opened)
    # Pipelines and layouts belong to the device.
    kept = door.objects()
    assert set(kept) <= {
        "BindGroupLayout",
        "ComputePipeline",
        "PipelineLayout",
    }
    opened.pipelines.free()
    assert door.objects() == {}
    seen: set[str] = set()
    for number in range(1, 100):
        door.fail_at = number
        try:
            everything(opened)
        except OutOfMemory as error:
            text = str(error)
            assert "Not enough memory left" in text
            seen.add(door.failed)
        opened.pipelines.free()
        assert door.objects() == {}, (number, door.failed)
        if door.fail_at:
            break
    door.fail_at = 0
    assert seen == {
        "wgpuDeviceCreateBuffer",
        "wgpuDeviceCreateBindGroupLayout",
        "wgpuDeviceCreatePipelineLayout",
        "wgpuDeviceCreateShaderModule",
        "wgpuDeviceCreateComputePipeline",
        "wgpuDeviceCreateBindGroup",
        "wgpuDeviceCreateCommandEncoder",
    }
    everything(opened)


def test_an_error_is_raised_once_and_where_it_belongs(opened: WgpuDevice) -> None:
    opened.gpu.errors.append((2, "Validation Error\n\nCaused by:\n  first"))
    opened.gpu.errors.append((2, "second"))
    with pytest.raises(ModelError, match="wgpu refused a thing: first"):
        opened.gpu.check("a thing")
    opened.gpu.check("another thing")
    assert not opened.poisoned


def test_every_instance_is_given_back(wgpu_device: str, door: Door) -> None:
    counts: list[int] = []
    for _ in range(3):
        device = open_device(wgpu_device.partition(":")[2] or None)
        device.close()
        device.close()
        counts.append(len(_ffi.open_devices))
    assert len(set(counts)) == 1
    assert door.objects() == {}
