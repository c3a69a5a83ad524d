"""A wrapper round the Vulkan function table: counts objects, and fails chosen calls.

It also holds what the Vulkan tests share: two kernels of their own and a way to open a
device with them.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tosavk.backends.vulkan import _ffi
from tosavk.backends.vulkan.device import VulkanDevice, open_with
from tosavk.backends.vulkan.instance import Instance
from tosavk.backends.vulkan.options import VulkanOptions, validation_wanted
from tosavk.backends.vulkan.probe import read_records
from tosavk.backends.vulkan.spirv import ShaderLibrary
from tosavk.backends.vulkan.suitability import select
from tosavk.shaders.catalogue import Kernel, Work

DATA = Path(__file__).resolve().parents[1] / "backends" / "data"

# Who destroys what.
_DESTROYERS = {
    "vkFreeMemory": "vkAllocateMemory",
    "vkUnmapMemory": "vkMapMemory",
    "vkDestroyPipeline": "vkCreateComputePipelines",
}
# What goes with its pool.
_POOLED = {
    "vkDestroyCommandPool": "vkAllocateCommandBuffers",
    "vkDestroyDescriptorPool": "vkAllocateDescriptorSets",
}


class Door:
    """Sees every Vulkan call.

    Attributes:
        calls: how often each function was called.
        commands: what was recorded and submitted, in order; a barrier shows its stages
            and accesses.
        live: objects by (creating function, handle).
        wrong: destructions of objects that were not live.
        fail: number of the checked call (one that returns a VkResult) to answer with
            `code` in the driver's place, counted from 1; 0 for none.
        code: the answer.
        only: the function whose calls are counted for `fail`; None for all.
        stuck: name of a function that always answers `code`, or "".
        failed: name of the function that was made to fail.
        checked: checked calls since `arm`.
    """

    def __init__(self) -> None:
        """A door that lets everything pass."""
        self.calls: Counter[str] = Counter()
        self.commands: list[str] = []
        self.live: set[tuple[str, int]] = set()
        self._device: _ffi.Cdata = None
        self._idle: Callable[[], object] | None = None
        self._lost_gates: set[int] = set()
        self._pools: dict[tuple[str, int], int] = {}
        self.wrong: list[str] = []
        self.fail = 0
        self.code = -1
        self.only: str | None = None
        self.stuck = ""
        self.failed = ""
        self.checked = 0

    def __call__(self, name: str, function: _ffi.Function) -> _ffi.Function:
        """Wraps one function."""
        result = _ffi.ffi.typeof(_ffi.prototype(name)).result
        checked = result.cname == "enum VkResult"

        if name == "vkDeviceWaitIdle":
            self._idle = lambda: function(self._device)

        def call(*args: Any) -> Any:  # noqa: ANN401 - whatever the function takes
            self.calls[name] += 1
            self._note(name, args)
            if checked and self._refuses(name):
                return self._pretend(name, function, args)
            if name == "vkSignalSemaphore" and _semaphore(args) in self._lost_gates:
                return _ffi.const.ERROR_DEVICE_LOST
            if name == "vkFreeMemory":  # freeing memory unmaps it
                self.live.discard(("vkMapMemory", _number(args[1])))
            self._destroyed(name, args)
            answer = function(*args)
            if not checked or answer >= 0:
                self._created(name, args)
            return answer

        return call

    def arm(self, fail: int, *, code: int = -1, only: str | None = None) -> None:
        """Makes the `fail`-th checked call from now on fail."""
        self.fail, self.code, self.only, self.failed = fail, code, only, ""
        self.checked = 0

    def _pretend(
        self, name: str, function: _ffi.Function, args: tuple[Any, ...]
    ) -> int:
        """Leaves the driver in the state in which a call that failed would leave it."""
        gates = any(made == "vkCreateSemaphore" for made, _ in self.live)
        if self.code == _ffi.const.ERROR_DEVICE_LOST and self._idle and not gates:
            self._idle()  # nothing runs any more on a lost device
        if name == "vkEndCommandBuffer":
            function(*args)  # it does not stay in recording
        elif name == "vkSignalSemaphore" and self.code == _ffi.const.ERROR_DEVICE_LOST:
            function(*args)  # nothing waits any more on a lost device
            self._lost_gates.add(_semaphore(args))
        return self.code

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "vkCmdPipelineBarrier2":
            barrier = args[1].pMemoryBarriers[0]
            source = f"{barrier.srcStageMask:#x}/{barrier.srcAccessMask:#x}"
            target = f"{barrier.dstStageMask:#x}/{barrier.dstAccessMask:#x}"
            self.commands.append(f"{source}->{target}")
        elif name in ("vkCmdDispatch", "vkCmdCopyBuffer", "vkQueueSubmit2"):
            self.commands.append(name)

    def _refuses(self, name: str) -> bool:
        if name == self.stuck:
            return True
        if self.only not in (None, name):
            return False
        self.checked += 1
        if self.checked == self.fail:
            self.failed = name
            return True
        return False

    def _created(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "vkCreateComputePipelines":
            handles = [args[5][i] for i in range(args[2])]
        elif name == "vkMapMemory":
            handles = [args[1]]
        elif name == "vkAllocateCommandBuffers":
            handles = [args[2][i] for i in range(args[1].commandBufferCount)]
            self._pool(name, handles, args[1].commandPool)
        elif name == "vkAllocateDescriptorSets":
            handles = [args[2][i] for i in range(args[1].descriptorSetCount)]
            self._pool(name, handles, args[1].descriptorPool)
        elif name.startswith("vkCreate") or name == "vkAllocateMemory":
            handles = [args[-1][0]]
            if name == "vkCreateDevice":
                self._device = handles[0]
                self._idle = None  # its functions come next
        else:
            return
        self.live.update((name, _number(handle)) for handle in handles)

    def _pool(self, name: str, handles: list[Any], pool: _ffi.Cdata) -> None:
        self._pools.update({(name, _number(h)): _number(pool) for h in handles})

    def _destroyed(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "vkDestroyDevice":
            self._idle = None
        if name == "vkDestroySemaphore":
            self._lost_gates.discard(_number(args[1]))
        if name in _POOLED:
            gone = _number(args[1])
            for key in [key for key, pool in self._pools.items() if pool == gone]:
                if key[0] == _POOLED[name]:
                    del self._pools[key]
                    self.live.discard(key)
        if name == "vkFreeCommandBuffers":
            for i in range(args[2]):
                key = ("vkAllocateCommandBuffers", _number(args[3][i]))
                self._pools.pop(key, None)
                self._gone(name, key)
            return
        if name.startswith("vkDestroy"):
            maker = _DESTROYERS.get(name, name.replace("Destroy", "Create"))
        elif name in _DESTROYERS:
            maker = _DESTROYERS[name]
        else:
            return
        alone = name in ("vkDestroyInstance", "vkDestroyDevice")
        self._gone(name, (maker, _number(args[0] if alone else args[1])))

    def _gone(self, name: str, found: tuple[str, int]) -> None:
        if found in self.live:
            self.live.remove(found)
        else:
            self.wrong.append(f"{name} of something that was not live")


def _semaphore(args: tuple[Any, ...]) -> int:
    return _number(args[1].semaphore)


def _number(handle: _ffi.Cdata) -> int:
    return _ffi.address_of(handle)


KERNELS = {
    "mix": Kernel(
        name="mix",
        bindings=("a", "b", "y"),
        spec=("FACTOR",),
        params=("count", "bias"),
    ),
    "tile": Kernel(
        name="tile",
        bindings=("x", "y"),
        spec=(),
        params=("columns", "tiles"),
        work=Work.TILED,
    ),
}


def library_of_tests() -> ShaderLibrary:
    """The kernels of the tests."""
    return ShaderLibrary(KERNELS, lambda name: (DATA / f"{name}.spv").read_bytes())


def open_device(
    spec: str,
    *,
    wrap: Callable[[str, _ffi.Function], _ffi.Function] = _ffi.unwrapped,
    options: VulkanOptions | None = None,
    library: ShaderLibrary | None = None,
) -> VulkanDevice:
    """Opens the device of a lane with the kernels of the tests.

    Args:
        spec: such as "vulkan:llvmpipe".
        wrap: put round every Vulkan function.
        options: by default those of the backend, without pipeline cache.
        library: other kernels.
    """
    return open_with(
        _ffi.open_loader(wrap=wrap),
        spec.partition(":")[2] or None,
        options or VulkanOptions(pipeline_cache=False),
        library=library or library_of_tests(),
    )


class CountingDoor(Door):
    """A door for long runs: it does not write down what was recorded."""

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        del name, args


class KeptInstance(Instance):
    """An instance behind a door that many devices are opened on, one after the other.

    Devices close their instance; this one waits for `destroy`. Making an instance, above
    all with the validation layer, takes far longer than opening a device.

    Attributes:
        door: sees every call.
    """

    def __init__(self, door: Door | None = None) -> None:
        """Makes the instance, with validation where the tests ask for it."""
        self.door = door or Door()
        loader = _ffi.open_loader(wrap=self.door)
        super().__init__(loader, validation=validation_wanted())

    def open(
        self, spec: str, options: VulkanOptions, library: ShaderLibrary | None = None
    ) -> VulkanDevice:
        """Opens the device of a lane; without a library, with the real kernels."""
        found = read_records(self)
        selector = spec.partition(":")[2] or None
        record = select([record for record, _ in found], selector)
        physical = found[record.index][1]
        return VulkanDevice(self, record, physical, options, library)

    def close(self) -> None:
        """Does nothing."""

    def destroy(self) -> None:
        """Destroys the instance."""
        super().close()
