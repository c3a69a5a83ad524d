"""The VkDevice with its one queue: function table, poison, bounded waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from tosavk.backends.vulkan._ffi import (
    NULL,
    Cdata,
    Function,
    Scratch,
    const,
    error_of,
    ffi,
)
from tosavk.backends.vulkan.instance import Instance
from tosavk.backends.vulkan.ordering import Ordering
from tosavk.backends.vulkan.probe import matrix_2_struct
from tosavk.backends.vulkan.records import (
    COOPERATIVE_MATRIX,
    COOPERATIVE_MATRIX_2,
    HOST_MEMORY,
    PORTABILITY_SUBSET,
    DeviceRecord,
)
from tosavk.backends.vulkan.suitability import (
    int8_dot_lack,
    matrix_2_lack,
    matrix_lack,
    subgroup_lack,
)
from tosavk.backends.vulkan.validation import UNSAID_IMPORT
from tosavk.core import logs
from tosavk.core.errors import (
    Busy,
    DeviceCreationFailed,
    DeviceLost,
    Error,
    ModelError,
    ResourceLimit,
)

_LOGGER = "tosavk.vulkan"

STEP_NS = 50_000_000
"""Longest single wait inside the driver, so that Ctrl-C is heard."""

ABANDON_NS = 5_000_000_000
"""How long `close` waits for a device that has timed out before."""


class Held(Protocol):
    """A gate, as far as the queue is concerned."""

    @property
    def holds(self) -> bool:
        """Whether work in the queue waits for it."""
        ...


class LogicalDevice:
    """An open VkDevice; `close` destroys it.

    Attributes:
        record: what the device is.
        calls: its function table.
        handle: the VkDevice.
        queue: the only VkQueue.
        queue_family: its family.
        poisoned: whether the device was lost; sticky.
        validates: whether the validation layer looks on.
        submit: `vkQueueSubmit2`, or what the validation layer needs in its place.
    """

    def __init__(
        self, instance: Instance, record: DeviceRecord, physical: Cdata
    ) -> None:
        """Creates the device.

        Raises:
            DeviceCreationFailed: the driver refused.
        """
        family = record.queue_family
        if family is None:
            raise DeviceCreationFailed(f"{record.name}: no queue family computes")
        self.record = record
        self.queue_family = family
        self.poisoned = False
        self.validates = instance.validates
        self._ordering: Ordering | None = None
        if record.driver_id == const.DRIVER_ID_GOOGLE_SWIFTSHADER:
            instance.ignore(UNSAID_IMPORT)
        self._overdue = False
        self._idle_pending = False
        self._allocations = 0
        self._parked: list[Callable[[], None]] = []
        self._gates: set[Held] = set()
        with ExitStack() as undo:
            self.handle = _create(instance, record, physical, family)
            try:
                self.calls = instance.loader.device_calls(instance.calls, self.handle)
                undo.callback(self.calls.vkDestroyDevice, self.handle, NULL)
                out = ffi.new("VkQueue *")
                self.calls.vkGetDeviceQueue(self.handle, family, 0, out)
                self.queue = out[0]
                fence = self.create_fence()
            except Error as error:
                raise DeviceCreationFailed(f"{record.name}: {error}") from error
            undo.callback(self.calls.vkDestroyFence, self.handle, fence, NULL)
            self.submit: Function = self.calls.vkQueueSubmit2
            if self.validates:
                self._ordering = Ordering(self, family)
                undo.callback(self._ordering.free)
                self.submit = self._ordering.submit
            self._idle = ffi.new("VkFence[1]", [fence])
            self._undo = undo.pop_all()

    def failure(self, code: int, call: str) -> ModelError:
        """The error for a failed call; notes the loss of the device."""
        if code == const.ERROR_DEVICE_LOST:
            self.poisoned = True
        return error_of(code, f"{self.record.name}: {call}")

    def check(self, code: int, call: str) -> None:
        """Raises the model's error if `code` is an error.

        Raises:
            ModelError: see `error_of`.
        """
        if code < 0:
            raise self.failure(code, call)

    def create(self, call: str, ctype: str, info: Cdata, *, what: str = "") -> Cdata:
        """Makes an object with a `vkCreate...(device, info, NULL, out)` function.

        Raises:
            ModelError: the driver refused; the message names `what`.
        """
        out = ffi.new(f"{ctype} *")
        code = getattr(self.calls, call)(self.handle, info, NULL, out)
        self.check(code, f"{call} ({what})" if what else call)
        return out[0]

    def note_gated(self) -> None:
        """Work that waits for a gate was submitted."""
        if self._ordering is not None:
            self._ordering.begin()

    def create_fence(self) -> Cdata:
        """A new unsignalled VkFence."""
        info = Scratch().struct("VkFenceCreateInfo")
        return self.create("vkCreateFence", "VkFence", info)

    def allocate_memory(self, info: Cdata, what: str) -> Cdata:
        """A new VkDeviceMemory; drivers do not all count, so it is counted here.

        Raises:
            ResourceLimit: the device allows no more allocations.
            ModelError: the driver refused; the message names `what`.
        """
        limit = self.record.limits.allocations
        if self._allocations >= limit:
            raise ResourceLimit(
                f"{self.record.name} allows {limit} memory allocations "
                f"(maxMemoryAllocationCount), all in use: free buffers or programs"
            )
        memory = self.create("vkAllocateMemory", "VkDeviceMemory", info, what=what)
        self._allocations += 1
        return memory

    def free_memory(self, memory: Cdata) -> None:
        """Gives memory back."""
        self.calls.vkFreeMemory(self.handle, memory, NULL)
        self._allocations -= 1

    def watch_gate(self, gate: Held) -> None:
        """From now on `require_flow` asks this gate too."""
        self._gates.add(gate)

    def forget_gate(self, gate: Held) -> None:
        """The gate is gone."""
        self._gates.discard(gate)

    def require_flow(self, what: str) -> None:
        """Refuses to wait for the queue behind work that waits for a gate.

        Raises:
            Busy: such work is queued; the message names `what`.
        """
        if any(gate.holds for gate in self._gates):
            raise Busy(
                f"{self.record.name}: {what} needs the queue, and work that waits for "
                "an unraised gate is queued in front; raise the gate first, or use "
                "mapped memory"
            )

    def wait_fence(self, fences: Cdata, timeout_ns: int) -> bool:
        """Waits for a fence in bounded steps; False if it is not signalled in time.

        Args:
            fences: a `VkFence[1]`.
            timeout_ns: at most that long.

        Raises:
            ModelError: the wait failed.
        """
        end = time.monotonic_ns() + timeout_ns
        left = timeout_ns
        while True:
            code = self.calls.vkWaitForFences(
                self.handle, 1, fences, 1, max(0, min(left, STEP_NS))
            )
            if code == const.SUCCESS:
                return True
            self.check(code, "vkWaitForFences")
            left = end - time.monotonic_ns()
            if left <= 0:
                return False

    def overdue(self, what: str) -> DeviceLost:
        """The error for device work that did not end in time; poisons the device.

        From now on `dispose` frees nothing, since the work may still use it.
        """
        self.poisoned = True
        self._overdue = True
        return DeviceLost(
            f"{self.record.name}: {what} did not end in time; discard the accelerator "
            "and open a new one"
        )

    def dispose(self, free: Callable[[], None]) -> None:
        """Frees something now, or at `close` if overdue work may still use it."""
        if self._overdue:
            self._parked.append(free)
        else:
            free()

    def settle(self, what: str) -> None:
        """Waits for work whose own wait was broken off, so that it can be freed.

        Args:
            what: the work; it counts as overdue if it does not end soon.
        """
        if not self._settled():
            self.overdue(what)

    def wait_idle(self) -> None:
        """Waits until the queue is empty or the device is lost; never raises.

        On a lost device it returns within `ABANDON_NS`.
        """
        if self.poisoned:
            self._settled()
            return
        try:
            while not self._wait_queue(STEP_NS):
                pass
        except DeviceLost as error:
            logs.debug(_LOGGER, "%s", error)
        except ModelError:
            # The wait failed, not the work: there is one other way to wait.
            self.calls.vkDeviceWaitIdle(self.handle)

    def close(self) -> None:
        """Destroys the device; everything made from it is gone."""
        if self._overdue and not self._settled():
            logs.warning(
                _LOGGER,
                "%s is still busy with work that is overdue; it is left open",
                self.record.name,
            )
            self._undo.pop_all()
            return
        self.wait_idle()
        self._overdue = False
        for free in self._parked:
            free()
        self._parked.clear()
        self._undo.close()

    def _settled(self) -> bool:
        for _ in range(2):  # the wait itself may fail once, for want of memory
            try:
                return self._wait_queue(ABANDON_NS)
            except DeviceLost:
                return True  # nothing runs any more
            except ModelError as error:
                logs.debug(_LOGGER, "%s", error)
        return False

    def _wait_queue(self, timeout_ns: int) -> bool:
        """Whether everything submitted so far ends in time."""
        calls, fences = self.calls, self._idle
        if self._idle_pending:
            if not self.wait_fence(fences, timeout_ns):
                return False
            self._idle_pending = False
        self.check(calls.vkResetFences(self.handle, 1, fences), "vkResetFences")
        code = calls.vkQueueSubmit2(self.queue, 0, NULL, fences[0])
        self.check(code, "vkQueueSubmit2")
        self._idle_pending = True
        if not self.wait_fence(fences, timeout_ns):
            return False
        self._idle_pending = False
        return True


def _create(
    instance: Instance, record: DeviceRecord, physical: Cdata, family: int
) -> Cdata:
    scratch = Scratch()
    features = record.features
    matrices = not matrix_lack(record)
    subgroups = not subgroup_lack(record)
    v13 = scratch.struct(
        "VkPhysicalDeviceVulkan13Features",
        synchronization2=1,
        subgroupSizeControl=int(subgroups and features.subgroup_size_control),
        computeFullSubgroups=int(subgroups and features.compute_full_subgroups),
        shaderIntegerDotProduct=int(not int8_dot_lack(record)),
    )
    v12 = scratch.struct(
        "VkPhysicalDeviceVulkan12Features",
        pNext=v13,
        timelineSemaphore=int(features.timeline_semaphore),
        bufferDeviceAddress=int(features.buffer_device_address),
        shaderFloat16=int(matrices),
        vulkanMemoryModel=int(matrices),
        vulkanMemoryModelDeviceScope=int(matrices),
    )
    first = v12
    core = scratch.new("VkPhysicalDeviceFeatures *", {"robustBufferAccess": 1})
    # The specification demands the first one wherever it is offered.
    extensions = [PORTABILITY_SUBSET] * (PORTABILITY_SUBSET in record.extensions)
    extensions += [HOST_MEMORY] * bool(record.limits.host_import_alignment)
    if matrices:
        extensions.append(COOPERATIVE_MATRIX)
        core.shaderInt16 = 1
        matrix = scratch.struct(
            "VkPhysicalDeviceCooperativeMatrixFeaturesKHR",
            pNext=v12,
            cooperativeMatrix=1,
        )
        first = scratch.struct(
            "VkPhysicalDeviceVulkan11Features",
            pNext=matrix,
            storageBuffer16BitAccess=1,
        )
    if not matrix_2_lack(record):
        extensions.append(COOPERATIVE_MATRIX_2)
        v12.shaderInt8 = v12.storageBuffer8BitAccess = 1
        wanted = [1, 1, 0, 0, 1, 1, 1]
        first = matrix_2_struct(scratch, wanted, following=first)
        # Their modules are SPIR-V 1.6, which says the work-group width as LocalSizeId.
        v13.maintenance4 = 1
    queue = scratch.struct(
        "VkDeviceQueueCreateInfo",
        queueFamilyIndex=family,
        queueCount=1,
        pQueuePriorities=scratch.array("float", [1.0]),
    )
    info = scratch.struct(
        "VkDeviceCreateInfo",
        pNext=first,
        queueCreateInfoCount=1,
        pQueueCreateInfos=queue,
        enabledExtensionCount=len(extensions),
        ppEnabledExtensionNames=scratch.texts(extensions),
        pEnabledFeatures=core,
    )
    out = ffi.new("VkDevice *")
    code = instance.calls.vkCreateDevice(physical, info, NULL, out)
    if code < 0:
        error = error_of(code, f"{record.name}: vkCreateDevice")
        raise DeviceCreationFailed(str(error)) from error
    return out[0]
