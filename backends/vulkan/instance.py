"""A VkInstance, with the validation layer where it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Self

from tosavk.backends.vulkan._ffi import (
    NULL,
    Cdata,
    Loader,
    Scratch,
    const,
    error_of,
    ffi,
    install_hint,
    open_loader,
)
from tosavk.backends.vulkan.layers import (
    instance_extensions,
    loader_version,
    require,
    version_text,
)
from tosavk.backends.vulkan.portability import (
    LAYER_SETTINGS,
    fast_math_on_demand,
    optional_extensions,
    tells_fast_math,
)
from tosavk.backends.vulkan.validation import (
    DEBUG_UTILS,
    layer_switches,
    messenger_info,
    muted,
    require_layer,
)
from tosavk.core.errors import (
    DeviceEnumerationFailed,
    InstanceCreationFailed,
    RuntimeUnavailable,
)

API_VERSION = (1 << 22) | (3 << 12)


class Instance:
    """A VkInstance and its functions; `close` destroys it.

    Attributes:
        loader: the loader it came from.
        calls: its function table.
        handle: the VkInstance.
        validates: whether the validation layer is loaded.
    """

    def __init__(self, loader: Loader, *, validation: bool) -> None:
        """Creates the instance.

        Raises:
            RuntimeUnavailable: the loader is older than Vulkan 1.3, or finds no driver.
            InstanceCreationFailed: any other failure, also a missing layer.
        """
        self.loader = loader
        self.validates = validation
        self._undo = ExitStack()
        self._scratch = Scratch()  # holds the message callback
        self._ignored: set[str] = set()
        _require_version(loader)
        with ExitStack() as undo:
            self.handle = self._create(validation=validation)
            try:
                self.calls = loader.instance_calls(self.handle)
            except RuntimeUnavailable as error:
                raise InstanceCreationFailed(str(error)) from error
            undo.callback(self.calls.vkDestroyInstance, self.handle, NULL)
            if validation:
                self._listen(undo)
            self._undo = undo.pop_all()

    def physical_devices(self) -> list[Cdata]:
        """The VkPhysicalDevice handles in the loader's order.

        Raises:
            DeviceEnumerationFailed: the driver said so.
        """
        count = ffi.new("uint32_t *")
        # The number may grow between the calls; room for more makes that harmless.
        code = self.calls.vkEnumeratePhysicalDevices(self.handle, count, NULL)
        if code >= 0:
            count[0] += 8
            devices = ffi.new("VkPhysicalDevice[]", count[0])
            code = self.calls.vkEnumeratePhysicalDevices(self.handle, count, devices)
            if code >= 0:
                return [devices[i] for i in range(count[0])]
        error = error_of(code, "vkEnumeratePhysicalDevices")
        raise DeviceEnumerationFailed(str(error)) from error

    def ignore(self, names: Iterable[str]) -> None:
        """Drops the validation layer's messages of these names from now on."""
        self._ignored.update(names)

    def close(self) -> None:
        """Destroys the instance; its devices are gone."""
        self._undo.close()

    def pin(self) -> None:
        """Makes it live as long as the process: `close` no longer destroys it."""
        self._undo.pop_all()

    def __enter__(self) -> Self:
        """The instance itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes it."""
        self.close()

    def _create(self, *, validation: bool) -> Cdata:
        scratch = self._scratch
        offered = instance_extensions(self.loader.calls)
        names, flags = optional_extensions(offered)
        extensions = list(names)
        layers: list[str] = []
        chain: Cdata = None
        if validation:
            layer = require_layer(self.loader.calls)
            layers.append(layer.name)
            self._ignored |= muted(layer)
            more, chain = layer_switches(layer, scratch)
            extensions += [DEBUG_UTILS, *more]
            chain = messenger_info(scratch, self._ignored, chain)
        if tells_fast_math(offered, os.environ, sys.platform):
            extensions.append(LAYER_SETTINGS)
            chain = fast_math_on_demand(scratch, chain)
        info = scratch.struct(
            "VkInstanceCreateInfo",
            pNext=chain,
            flags=flags,
            pApplicationInfo=scratch.struct(
                "VkApplicationInfo",
                pApplicationName=scratch.text("tosavk"),
                pEngineName=scratch.text("tosavk"),
                apiVersion=API_VERSION,
            ),
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=scratch.texts(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=scratch.texts(extensions),
        )
        out = ffi.new("VkInstance *")
        code = self.loader.calls.vkCreateInstance(info, NULL, out)
        if code == const.ERROR_INCOMPATIBLE_DRIVER:
            raise RuntimeUnavailable(
                "the Vulkan loader finds no usable driver: "
                f"{install_hint(sys.platform)}; VK_DRIVER_FILES and VK_ICD_FILENAMES, "
                "if set, must name existing files"
            )
        require(code, "vkCreateInstance")
        return out[0]

    def _listen(self, undo: ExitStack) -> None:
        info = messenger_info(self._scratch, self._ignored, None)
        out = ffi.new("VkDebugUtilsMessengerEXT *")
        code = self.calls.vkCreateDebugUtilsMessengerEXT(self.handle, info, NULL, out)
        require(code, "vkCreateDebugUtilsMessengerEXT")
        undo.callback(
            self.calls.vkDestroyDebugUtilsMessengerEXT, self.handle, out[0], NULL
        )


_PINNED: dict[tuple[object, ...], Instance] = {}


def pinned_instance() -> Instance:
    """A plain instance that lives as long as the process.

    Drivers stay loaded while an instance lives. Some can be loaded only some thirty
    times in a process (NVIDIA 580 was seen to run out of thread-local storage), and
    loading takes time. There is one instance for each set of the variables that tell
    the loader where drivers are, and for each process of a fork.

    Raises:
        RuntimeUnavailable: no loader, one older than Vulkan 1.3, or no driver.
        InstanceCreationFailed: any other failure.
    """
    chosen = sorted(item for item in os.environ.items() if item[0].startswith("VK_"))
    key = (os.getpid(), *chosen)
    found = _PINNED.get(key)
    if found is None:
        found = Instance(open_loader(), validation=False)
        found.pin()
        _PINNED[key] = found
    return found


def open_instance(loader: Loader | None, *, validation: bool) -> Instance:
    """The pinned instance where it will do, else one of its own; `close` it.

    Args:
        loader: None for this platform's; a given one always gets its own instance.
        validation: load the validation layer, which needs its own instance too.

    Raises:
        RuntimeUnavailable: no loader, one older than Vulkan 1.3, or no driver.
        InstanceCreationFailed: any other failure, also a missing layer.
    """
    pinned = pinned_instance()
    if loader is None and not validation:
        return pinned
    return Instance(loader or open_loader(), validation=validation)


def _require_version(loader: Loader) -> None:
    version = loader_version(loader.calls)
    if version < API_VERSION:
        raise RuntimeUnavailable(
            f"the Vulkan loader is version {version_text(version)}, 1.3 is needed: "
            f"{install_hint(sys.platform)}"
        )
