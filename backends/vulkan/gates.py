"""Gates: timeline semaphores that the host signals."""

from __future__ import annotations

from tosavk.backends.vulkan._ffi import NULL, Cdata, Scratch, const, error_of, ffi
from tosavk.backends.vulkan.logical import LogicalDevice


class VulkanGate:
    """`core.device.DeviceGate`: a timeline semaphore, at 0.

    Attributes:
        handle: the VkSemaphore.
        max_difference: how far its value and any value waited for may be apart.
    """

    __slots__ = ("_awaited", "_device", "_raised", "handle", "max_difference")

    def __init__(self, device: LogicalDevice) -> None:
        """Creates the semaphore.

        Raises:
            ModelError: the driver refused.
        """
        scratch = Scratch()
        kind = scratch.struct(
            "VkSemaphoreTypeCreateInfo", semaphoreType=const.SEMAPHORE_TYPE_TIMELINE
        )
        info = scratch.struct("VkSemaphoreCreateInfo", pNext=kind)
        self._device = device
        self._awaited = 0
        self._raised = 0
        self.max_difference = device.record.limits.semaphore_difference
        self.handle: Cdata = device.create("vkCreateSemaphore", "VkSemaphore", info)
        device.watch_gate(self)

    @property
    def holds(self) -> bool:
        """Whether work in the queue waits for a value that it has not reached."""
        return self._awaited > self._raised

    def hold(self, value: int) -> None:
        """Notes that the queue has taken work that waits for `value`."""
        self._awaited = max(self._awaited, value)

    def signal(self, value: int) -> None:
        """Raises the semaphore to `value`; called in any thread.

        Raises:
            ModelError: the driver refused. A lost device is told, not noted, since
                that is for the owner's thread to find.
        """
        device = self._device
        info = ffi.new(
            "VkSemaphoreSignalInfo *",
            {
                "sType": const.STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                "semaphore": self.handle,
                "value": value,
            },
        )
        code = device.calls.vkSignalSemaphore(device.handle, info)
        if code:
            raise error_of(code, f"{device.record.name}: vkSignalSemaphore")
        self._raised = value

    def free(self) -> None:
        """Destroys the semaphore; no work in the queue waits for it."""
        device = self._device
        device.forget_gate(self)
        device.dispose(
            lambda: device.calls.vkDestroySemaphore(device.handle, self.handle, NULL)
        )
