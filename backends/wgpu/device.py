"""The device and its context kits: what the Accelerator model drives.

Source of the protocols: `core.device`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tosavk.backends.wgpu import _ffi
from tosavk.backends.wgpu._ffi import Gpu
from tosavk.backends.wgpu.adapters import Adapters
from tosavk.backends.wgpu.buffers import Allocation, allocate
from tosavk.backends.wgpu.pipelines import Pipelines
from tosavk.backends.wgpu.polling import Flag, wait_until
from tosavk.backends.wgpu.probe import (
    DeviceListing,
    choose,
    device_info,
    plan_limits,
)
from tosavk.backends.wgpu.programs import Program
from tosavk.backends.wgpu.recordings import Recording
from tosavk.core import device as protocols
from tosavk.core.descriptors import Artifact, BufferDesc, DeviceInfo, MemoryDomain
from tosavk.core.errors import (
    DeviceCreationFailed,
    InvalidArgument,
    ModelError,
    Unsupported,
)
from tosavk.core.plan import Numerics, PlanLimits
from tosavk.core.switches import environment_switches, labelled


@dataclass(frozen=True, slots=True, kw_only=True)
class WgpuOptions:
    """Options of `open_device`.

    Attributes:
        mappable_primary: use wgpu's feature of that name, where it is there, to offer
            the HOST and SHARED memory domains.
        numerics: how artifacts are lowered (docs/numerics.md).
        switches: what is left alone (`tosavk.core.switches`); by default what
            TOSAVK_DISABLE says.
    """

    mappable_primary: bool = True
    numerics: Numerics = Numerics.STRICT
    switches: frozenset[str] = field(default_factory=environment_switches)


class Kit:
    """The device objects of one context: `core.device.ContextKit`."""

    def __init__(self, device: WgpuDevice) -> None:
        """Starts with nothing: wgpu has no pools."""
        self._device = device

    def allocate(self, desc: BufferDesc) -> Allocation:
        """Allocates memory for a buffer.

        Raises:
            Unsupported: the domain needs mappable storage buffers.
            ModelError: wgpu refused it.
        """
        if not self._device.info.capabilities & MemoryDomain(desc.domain).capability:
            raise Unsupported(
                f"{self._device.name} has no {desc.domain.name} memory: its adapter "
                "does not let storage buffers be mapped"
            )
        return allocate(self._device.gpu, desc)

    def load(self, lowered: protocols.Lowered) -> Program:
        """Creates pipelines and arena, uploads constants, runs the prologue."""
        device = self._device
        most = device.plan_limits.max_workgroup_count
        return Program(device.gpu, device.pipelines, lowered.plan, most)

    def record(
        self,
        program: protocols.LoadedProgram,
        bound: Sequence[protocols.BoundSlot],
        reuse: protocols.Recording | None,
    ) -> Recording:
        """Records a submission; `reuse` is freed, since bind groups serve once."""
        if not isinstance(program, Program):
            raise InvalidArgument(
                f"a {type(program).__name__} is no program of the wgpu backend"
            )
        recording = Recording(self._device.gpu, program, bound)
        if reuse is not None:
            reuse.free()
        return recording

    def free(self) -> None:
        """Nothing is left to give back."""


class WgpuDevice:
    """An open device: `core.device.Device`.

    Attributes:
        gpu: the device underneath.
        pipelines: its pipelines.
        binding_alignment: the offset of a bound range is a multiple of this.
    """

    def __init__(self, gpu: Gpu, listing: DeviceListing, options: WgpuOptions) -> None:
        """Takes over an opened device."""
        facts = listing.facts
        self.gpu = gpu
        self.pipelines = Pipelines(gpu, facts.limits)
        self.binding_alignment = max(4, facts.limits.storage_alignment)
        self._options = options
        self._info = device_info(facts)
        self._limits = plan_limits(facts.limits, options.switches)
        self._name = labelled(f"{listing.name} ({listing.driver})", options.switches)

    @property
    def info(self) -> DeviceInfo:
        """Identity, limits, capabilities."""
        return self._info

    @property
    def name(self) -> str:
        """Name of the device and driver."""
        return self._name

    @property
    def plan_limits(self) -> PlanLimits:
        """What plans for this device may ask for."""
        return self._limits

    def abandon(self, what: str) -> None:
        """Gives the device up, since work does not end: it counts as lost from now on."""
        if self.gpu.lost is None:
            self.gpu.lost = f"{what} did not end in time"

    def watch_pipelines(self, watch: Callable[[int, int], None] | None) -> None:
        """Tells how many pipelines of a program are made, and of how many."""
        self.pipelines.watch = watch

    @property
    def poisoned(self) -> bool:
        """Whether the device was lost."""
        return self.gpu.lost is not None

    def lower(self, artifact: Artifact) -> protocols.Lowered:
        """Lowers an artifact for this device."""
        # Listing and opening devices needs none of the lowering.
        from tosavk.backends.nvfp4_check import lower_for

        return lower_for(self, artifact, numerics=self._options.numerics)

    def create_kit(self) -> Kit:
        """Creates the objects of a context."""
        return Kit(self)

    def wait_idle(self) -> None:
        """Waits until the device has nothing to do."""
        if self.poisoned:
            return
        flag = Flag()
        number = self.gpu.when_done(flag.set)
        wait_until(self.gpu, lambda: flag.given, None)
        _ffi.forget(number)

    def close(self) -> None:
        """Destroys the device."""
        self.pipelines.free()
        self.gpu.close()


def list_adapters() -> tuple[DeviceListing, ...]:
    """Every adapter, usable or not."""
    with Adapters() as adapters:
        return _listings(adapters)


def open_adapter(selector: str | None, options: WgpuOptions) -> WgpuDevice:
    """Opens the adapter that a selector means.

    Raises:
        DeviceUnavailable: none fits, several do, or the one that fits is unusable.
        DeviceCreationFailed: it could not be opened.
    """
    with Adapters() as adapters:
        listing = choose(_listings(adapters, options), selector)
        mappable = listing.facts.mappable_primary
        features = (_ffi.FEATURE_MAPPABLE_PRIMARY,) if mappable else ()
        try:
            gpu = Gpu(adapters.handles[listing.index], features)
        except ModelError as error:
            raise DeviceCreationFailed(f"{listing}: {error}") from error
    return WgpuDevice(gpu, listing, options)


def _listings(
    adapters: Adapters, options: WgpuOptions | None = None
) -> tuple[DeviceListing, ...]:
    found = adapters.facts()
    if options is not None and not options.mappable_primary:
        found = tuple(replace(facts, mappable_primary=False) for facts in found)
    return tuple(DeviceListing.of(i, facts) for i, facts in enumerate(found))
