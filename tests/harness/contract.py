"""How the contract suite gets at each of the repository's own implementations."""

# Doubles of handles take whatever they are given.

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

from harness import toy, toy_checks
from harness.vulkan_door import KeptInstance
from tosavk import testing
from tosavk.backends.reference.device import ReferenceDevice
from tosavk.backends.registry import open_accelerator
from tosavk.backends.vulkan._ffi import const
from tosavk.backends.vulkan.device import VulkanDevice
from tosavk.backends.vulkan.options import VulkanOptions
from tosavk.backends.wgpu.device import WgpuDevice
from tosavk.core.accelerator import Accelerator


@dataclass(frozen=True, slots=True)
class Implementation:
    """An implementation under test.

    Attributes:
        make: makes a fresh accelerator.
        hooks: how the suite looks and acts.
    """

    make: testing.Factory
    hooks: testing.Hooks


def totals(accelerator: testing.AcceleratorHandle) -> testing.Diagnostics:
    """The totals of the model; it has no way to copy at a submission."""
    opened = cast(Accelerator, accelerator)
    return testing.Diagnostics(
        opened.direct_binding_admissions, 0, opened.explicit_transfer_bytes
    )


def reference() -> Implementation:
    """The reference backend, with a gate."""

    def lose(accelerator: testing.AcceleratorHandle) -> None:
        device = cast(Accelerator, accelerator).device
        assert isinstance(device, ReferenceDevice)
        device.poison()

    hooks = testing.Hooks(diagnostics=totals, lose=lose, alignment=4)
    return Implementation(lambda: open_accelerator("reference"), hooks)


def wgpu(spec: str) -> Implementation:
    """The wgpu backend."""

    def lose(accelerator: testing.AcceleratorHandle) -> None:
        device = cast(Accelerator, accelerator).device
        assert isinstance(device, WgpuDevice)
        device.gpu.lost = "as told by the test"

    hooks = testing.Hooks(diagnostics=totals, lose=lose)
    return Implementation(lambda: open_accelerator(spec), hooks)


def vulkan(spec: str, instance: KeptInstance, *, unified: bool) -> Implementation:
    """The Vulkan backend behind a door that sees copies and can lose the device.

    Args:
        spec: the device.
        instance: the instance to open it on.
        unified: whether DEVICE memory is mapped where that is possible.
    """
    options = VulkanOptions(map_unified_device_memory=unified, pipeline_cache=False)
    door = instance.door

    def diagnostics(accelerator: testing.AcceleratorHandle) -> testing.Diagnostics:
        known = totals(accelerator)
        device = cast(Accelerator, accelerator).device
        assert isinstance(device, VulkanDevice)
        # Explicit transfers copy too, where memory is not mapped.
        mapped = unified and device.memory.arena.mapped
        copies = door.calls["vkCmdCopyBuffer"] if mapped else 0
        return testing.Diagnostics(known.direct, copies, known.explicit)

    def lose(accelerator: testing.AcceleratorHandle) -> None:
        del accelerator
        door.arm(1, code=const.ERROR_DEVICE_LOST, only="vkQueueSubmit2")

    def make() -> Accelerator:
        door.arm(0)
        door.calls.clear()
        return Accelerator(instance.open(spec, options))

    return Implementation(make, testing.Hooks(diagnostics=diagnostics, lose=lose))


def toys(flaw: str = "") -> Implementation:
    """The second implementation, perhaps with a flaw."""

    def diagnostics(accelerator: testing.AcceleratorHandle) -> testing.Diagnostics:
        made = cast(toy.ToyAccelerator, accelerator)
        return testing.Diagnostics(made.direct, made.staged, made.explicit)

    hooks = testing.Hooks(
        diagnostics=diagnostics,
        gate=toy.ToyGate,
        lose=toy.lose,
        alignment=toy_checks.ALIGNMENT,
        one_thread=False,
    )
    return Implementation(lambda: toy.ToyAccelerator(flaw), hooks)


def of_lane(spec: str, kept: Callable[[], KeptInstance]) -> Implementation:
    """The implementation of a lane.

    Args:
        spec: the lane.
        kept: gives the Vulkan instance, where one is needed.
    """
    backend = spec.partition(":")[0]
    if backend == "vulkan":
        return vulkan(spec, kept(), unified=True)
    return wgpu(spec) if backend == "wgpu" else reference()


@dataclass(slots=True)
class Kept:
    """Opens an instance when it is first wanted, and closes it at the end."""

    undo: ExitStack
    instance: KeptInstance | None = None

    def __call__(self) -> KeptInstance:
        """The instance."""
        if self.instance is None:
            self.instance = KeptInstance()
            self.undo.callback(self.instance.destroy)
        return self.instance
