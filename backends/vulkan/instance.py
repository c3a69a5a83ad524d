"""A VkInstance, with the validation layer where it is asked for."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from tosavk.backends.vulkan._ffi import (
    NULL,
    Calls,
    Cdata,
    Loader,
    Scratch,
    const,
    error_of,
    ffi,
    install_hint,
    open_loader,
    text_of,
)
from tosavk.core.errors import (
    DeviceEnumerationFailed,
    InstanceCreationFailed,
    RuntimeUnavailable,
)

_log = logging.getLogger("tosavk.vulkan")

API_VERSION = (1 << 22) | (3 << 12)
VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
PORTABILITY = "VK_KHR_portability_enumeration"
_DEBUG_UTILS = "VK_EXT_debug_utils"
_LAYER_SETTINGS = "VK_EXT_layer_settings"
_VALIDATION_FEATURES = "VK_EXT_validation_features"

# Newer layers see hazards of shader accesses only with the heuristic, and hazards
# between submissions only with one of the last two: its name has changed.
_SYNC_SETTINGS = (
    "validate_sync",
    "syncval_shader_accesses_heuristic",
    "syncval_submit_time_validation",
    "syncval_full_validation",
)
_IGNORED = frozenset(
    {
        # The layer knows a setting by another name.
        "VALIDATION-SETTINGS",
        # Layer 1.3.239 counts a semaphore as being signalled for a moment after
        # vkSignalSemaphore has returned. Gates are signalled by the host only, one call
        # after the other, so no other signal is ever pending.
        "VUID-VkSemaphoreSignalInfo-value-03259",
        # Whether buffers can lie in imported host memory is asked when devices are
        # listed (probe). Only SwiftShader is used although it does not say so.
        "VUID-VkBufferCreateInfo-pNext-00920",
        "VUID-VkImportMemoryWin32HandleInfoKHR-handleType-09861",
    }
)


@dataclass(frozen=True, slots=True)
class ValidationMessage:
    """One warning or error of the validation layer.

    Attributes:
        severity: the severity bit.
        name: message id, such as "VUID-vkCmdDispatch-None-08114".
        text: the message.
    """

    severity: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


_MESSAGES: list[ValidationMessage] = []


def validation_messages() -> list[ValidationMessage]:
    """Takes what the validation layer has said, in any instance, since the last call.

    The layer speaks on whatever thread it is called on, so there is one list for all.
    """
    messages = _MESSAGES[:]
    del _MESSAGES[: len(messages)]
    return messages


def version_text(version: int) -> str:
    """A packed Vulkan version as "major.minor.patch"."""
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def optional_extensions(offered: frozenset[str]) -> tuple[tuple[str, ...], int]:
    """Instance extensions to enable, and the creation flags that go with them.

    Devices that are not quite conformant (MoltenVK) are listed only on request, and
    the request is only allowed where the loader knows the extension.
    """
    if PORTABILITY in offered:
        return (PORTABILITY,), const.INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
    return (), 0


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
        names, flags = optional_extensions(_extensions(self.loader.calls, None))
        extensions = list(names)
        chain: Cdata = None
        if validation:
            features, chain = _layer_switches(self.loader.calls, scratch)
            extensions += [_DEBUG_UTILS, features]
            chain = self._messenger_info(chain)
        layers = [VALIDATION_LAYER] if validation else []
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
        _require(code, "vkCreateInstance")
        return out[0]

    def _messenger_info(self, chain: Cdata) -> Cdata:
        def receive(severity: int, kinds: int, data: Cdata, user: Cdata) -> int:
            del kinds, user
            name = text_of(data.pMessageIdName) if data.pMessageIdName else ""
            if name in _IGNORED:
                return 0
            text = text_of(data.pMessage) if data.pMessage else ""
            _MESSAGES.append(ValidationMessage(severity, name, text))
            _log.error("validation: %s: %s", name, text)
            return 0

        callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", receive)
        # Messages of the general kind are the loader's talk about files.
        return self._scratch.struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            pNext=chain,
            messageSeverity=const.DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | const.DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            messageType=const.DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
            | const.DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
            pfnUserCallback=self._scratch.keep(callback),
        )

    def _listen(self, undo: ExitStack) -> None:
        info = self._messenger_info(None)
        out = ffi.new("VkDebugUtilsMessengerEXT *")
        code = self.calls.vkCreateDebugUtilsMessengerEXT(self.handle, info, NULL, out)
        _require(code, "vkCreateDebugUtilsMessengerEXT")
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


def _require(code: int, call: str) -> None:
    if code < 0:
        error = error_of(code, call)
        raise InstanceCreationFailed(str(error)) from error


def _require_version(loader: Loader) -> None:
    version = ffi.new("uint32_t *")
    code = loader.calls.vkEnumerateInstanceVersion(version)
    _require(code, "vkEnumerateInstanceVersion")
    if version[0] < API_VERSION:
        raise RuntimeUnavailable(
            f"the Vulkan loader is version {version_text(version[0])}, 1.3 is needed: "
            f"{install_hint(sys.platform)}"
        )


def _extensions(calls: Calls, layer: str | None) -> frozenset[str]:
    name = NULL if layer is None else ffi.new("char[]", layer.encode())
    count = ffi.new("uint32_t *")
    code = calls.vkEnumerateInstanceExtensionProperties(name, count, NULL)
    if code == const.ERROR_LAYER_NOT_PRESENT:
        return frozenset()
    _require(code, "vkEnumerateInstanceExtensionProperties")
    found = ffi.new("VkExtensionProperties[]", count[0] + 8)
    count[0] += 8
    code = calls.vkEnumerateInstanceExtensionProperties(name, count, found)
    _require(code, "vkEnumerateInstanceExtensionProperties")
    return frozenset(text_of(found[i].extensionName) for i in range(count[0]))


def _layer_switches(calls: Calls, scratch: Scratch) -> tuple[str, Cdata]:
    """The extension that switches synchronization validation on, and its struct."""
    offered = _extensions(calls, VALIDATION_LAYER)
    if _DEBUG_UTILS not in offered:
        raise InstanceCreationFailed(
            f"validation was asked for, but the layer {VALIDATION_LAYER} is not "
            "installed: install vulkan-validationlayers, or unset TOSAVK_VALIDATION"
        )
    if _LAYER_SETTINGS in offered:
        settings = [
            {
                "pLayerName": scratch.text(VALIDATION_LAYER),
                "pSettingName": scratch.text(name),
                "type": const.LAYER_SETTING_TYPE_BOOL32_EXT,
                "valueCount": 1,
                "pValues": scratch.new("VkBool32[1]", [1]),
            }
            for name in _SYNC_SETTINGS
        ]
        return _LAYER_SETTINGS, scratch.struct(
            "VkLayerSettingsCreateInfoEXT",
            settingCount=len(settings),
            pSettings=scratch.array("VkLayerSettingEXT", settings),
        )
    enabled = [const.VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT]
    return _VALIDATION_FEATURES, scratch.struct(
        "VkValidationFeaturesEXT",
        enabledValidationFeatureCount=len(enabled),
        pEnabledValidationFeatures=scratch.array(
            "VkValidationFeatureEnableEXT", enabled
        ),
    )
