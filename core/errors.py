"""The errors of tosavk: one root, the Accelerator model's errors, and start-up errors.

Messages name the thing, its value and the remedy. Source of the meanings: the
Accelerator model (docs/accelerator.md).
"""

from __future__ import annotations


class Error(Exception):
    """Root of every error that tosavk raises on purpose."""


class ModelError(Error):
    """An error of the Accelerator model: the call had no effect unless it says so."""


class Unsupported(ModelError):
    """The device or the backend does not have what was asked for."""


class Incompatible(ModelError):
    """The objects are valid, but do not fit each other."""


class InvalidArgument(ModelError):
    """A value can never be right, on any device."""


class OutOfBounds(ModelError):
    """A byte range leaves its buffer."""


class Busy(ModelError):
    """The object is in use by unobserved work or has live children."""


class OutOfMemory(ModelError):
    """The driver could not provide host or device memory."""


class ResourceLimit(ModelError):
    """A limit of the device or of this backend would be exceeded."""


class TooLarge(ResourceLimit):
    """A tensor is larger than one limit of the device allows.

    Attributes:
        tensor: its name.
        requested: bytes that it needs.
        limit: bytes that the device allows.
        limit_name: the limit, as Vulkan calls it: maxStorageBufferRange (what a shader
            can bind), maxMemoryAllocationSize (what can be allocated in one piece) or
            maxBufferSize.
    """

    def __init__(
        self,
        what: str,
        *,
        tensor: str,
        requested: int,
        limit: int,
        limit_name: str,
    ) -> None:
        super().__init__(
            f"{what} {tensor!r} needs {requested} bytes in one storage buffer; the "
            f"device allows {limit} ({limit_name})"
        )
        self.tensor = tensor
        self.requested = requested
        self.limit = limit
        self.limit_name = limit_name


class DeadlineExpired(ModelError):
    """A finite timeout cannot be honoured, or has passed."""


class DeviceLost(ModelError):
    """The device is gone for good: discard the accelerator and open a new one."""


class PermissionDenied(ModelError):
    """The usage given at allocation does not allow this access."""


class Released(InvalidArgument):
    """The handle has been released; it names nothing any more."""


class WrongThread(ModelError):
    """A handle was used in another thread than the one its accelerator belongs to."""


class WrongProcess(WrongThread):
    """A handle was used in a process that was forked from its accelerator's."""


class External(ModelError):
    """A driver answered with a code that has no meaning of its own here.

    Attributes:
        domain: who answered, a u32 (0x56554C4B, "VULK", for Vulkan).
        code: the raw result.
    """

    def __init__(self, message: str, *, domain: int, code: int) -> None:
        super().__init__(message)
        self.domain = domain
        self.code = code


class Indeterminate(ModelError):
    """Work may have been accepted; `event` owns its resources; never submit again.

    Attributes:
        error: the model error that describes what happened.
        event: the event, already terminal, that must be released.
    """

    def __init__(self, error: ModelError, event: object) -> None:
        super().__init__(f"submission outcome unknown: {error}")
        self.error = error
        self.event = event


class InitError(Error):
    """A backend or device could not be opened."""


class RuntimeUnavailable(InitError):
    """No loader library, or one that is too old, or no driver at all."""


class InstanceCreationFailed(InitError):
    """The API instance could not be created."""


class DeviceEnumerationFailed(InitError):
    """The devices could not be listed."""


class DeviceUnavailable(InitError):
    """No suitable device, or none that the specification names, or more than one."""


class DeviceCreationFailed(InitError):
    """The device exists but could not be opened."""
