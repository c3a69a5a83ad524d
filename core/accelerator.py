"""The Accelerator: an open device under the model's rules.

The model is the same code for every backend; a backend provides a `Device`. Source:
docs/accelerator.md.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self, cast, final

from tosavk.core.checks import validate_device_info
from tosavk.core.contexts import Context
from tosavk.core.descriptors import U64_MAX, ContextDesc, DeviceInfo
from tosavk.core.device import Device, GatingDevice
from tosavk.core.errors import Released, ResourceLimit, Unsupported
from tosavk.core.gates import Gate, GateState
from tosavk.core.scope import Scope
from tosavk.core.shared import LiveResources, Shared


@final
class Accelerator:
    """A handle of an open device.

    All handles belong to the thread that made the accelerator: their methods raise
    WrongThread in another one, and WrongProcess in a forked process. A context manager:
    leaving the block closes it with everything on it. What is open when the interpreter
    exits is closed then.

    Args:
        device: an open device; the accelerator closes it. If the constructor raises,
            the device stays the caller's.

    Raises:
        DeviceInfoError: the device describes itself in a way that is not allowed.
    """

    __slots__ = ("__weakref__", "_info", "_name", "_shared")

    def __init__(self, device: Device) -> None:
        """Takes an open device over."""
        validate_device_info(device.info)
        self._info = device.info
        self._name = device.name
        self._shared = Shared(device)

    @property
    def info(self) -> DeviceInfo:
        """What the device told of itself; the same for ever, also when it is lost."""
        return self._info

    @property
    def name(self) -> str:
        """Name of the device and driver, for people."""
        return self._name

    @property
    def device(self) -> Device:
        """The device underneath, for what only its backend offers."""
        return self._shared.device

    @property
    def is_poisoned(self) -> bool:
        """Whether the device is lost; then only this accelerator's end is left."""
        return self._shared.poisoned

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._shared.orphaned

    @property
    def direct_binding_admissions(self) -> int:
        """Bindings of all accepted submissions so far."""
        return self._shared.admissions

    @property
    def explicit_transfer_bytes(self) -> int:
        """Bytes moved so far by reads and writes that succeeded."""
        return self._shared.transferred

    def live_resources(self) -> LiveResources:
        """Counts of what is live."""
        self._shared.begin()
        return self._shared.live()

    def create_context(self, desc: ContextDesc | None = None) -> Context:
        """Creates a context.

        Raises:
            Released: the accelerator is closed.
            Unsupported: any flag is set.
            DeviceLost: the device is lost.
            ResourceLimit: too many contexts.
            ModelError: the device could not create its objects.
        """
        shared = self._begin()
        if desc is not None and desc.flags:
            raise Unsupported(f"context flags {desc.flags!r} are not supported")
        shared.require_device("create a context")
        limit = self._info.limits.max_contexts
        if len(shared.scopes) >= limit:
            raise ResourceLimit(
                f"there are {limit} contexts, which is max_contexts; release one"
            )
        if shared.next_id > U64_MAX:
            raise ResourceLimit("all context numbers of this accelerator are used up")
        with shared:
            kit = shared.device.create_kit()
        scope = Scope(shared, kit)
        shared.scopes[scope.id] = scope
        return Context(scope)

    @property
    def host_import_alignment(self) -> int | None:
        """What `Context.import_host_buffer` wants address and size to be multiples of.

        A power of two, in bytes; None where host memory cannot be imported.
        """
        alignment = getattr(self._shared.device, "host_import_alignment", None)
        return None if alignment is None else int(alignment)

    def create_gate(self) -> Gate:
        """Creates a gate, which work can be queued behind; it starts at 0.

        Raises:
            Released: the accelerator is closed.
            DeviceLost: the device is lost.
            Unsupported: the device has no timeline semaphores.
            ModelError: the device could not create it.
        """
        shared = self._begin()
        shared.require_device("create a gate")
        if not hasattr(shared.device, "create_gate"):
            raise Unsupported(
                f"{self._name} has no gates: its backend knows no timeline semaphores"
            )
        with shared:
            counter = cast(GatingDevice, shared.device).create_gate()
        return Gate(GateState(shared, counter))

    def close(self) -> None:
        """Waits for all work, ends everything and closes the device; again is fine.

        Gates are ended first, so that all work can run. Handles are released by this;
        pending events observe how their work ended. Arrays of a mapped view that are
        still alive keep the device open until they are gone.
        """
        self._shared.begin()
        self._shared.end()

    def __enter__(self) -> Self:
        """The accelerator itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the accelerator."""
        if not self._shared.forked:
            self.close()

    def __del__(self) -> None:
        """Leaves the device to the contexts, or closes it."""
        shared = getattr(self, "_shared", None)
        if shared is not None and not shared.orphaned:
            shared.finalise(self._abandon)

    def __repr__(self) -> str:
        """Name and whether it is closed."""
        return f"<Accelerator {self._name}{', closed' if self.is_closed else ''}>"

    def _begin(self) -> Shared:
        shared = self._shared
        shared.begin()
        if shared.orphaned:
            raise Released(f"{self!r} was used after its close")
        return shared

    def _abandon(self) -> None:
        self._shared.orphaned = True
        self._shared.close_if_unused()
