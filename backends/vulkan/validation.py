"""The Khronos validation layer: how it is switched on, and what it says."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from tosavk.backends.vulkan._ffi import Calls, Cdata, Scratch, const, ffi, text_of
from tosavk.backends.vulkan.layers import VALIDATION_LAYER, Layer, find_layer
from tosavk.core.errors import InstanceCreationFailed

_log = logging.getLogger("tosavk.vulkan")

DEBUG_UTILS = "VK_EXT_debug_utils"
_LAYER_SETTINGS = "VK_EXT_layer_settings"
_VALIDATION_FEATURES = "VK_EXT_validation_features"

# Without the second one, layers with settings see no hazards of shader accesses.
# Hazards between submissions they look for by default.
_SYNC_SETTINGS = ("validate_sync", "syncval_shader_accesses_heuristic")

_V1_4_0 = (1 << 22) | (4 << 12)
_MUTED_BEFORE = {
    # The settings above are newer than the first layers that can be given settings.
    "VALIDATION-SETTINGS": _V1_4_0,
    # Layer 1.3.239 counts a semaphore as being signalled for a moment after
    # vkSignalSemaphore has returned. Gates are signalled by the host only, one call
    # after the other, so no other signal is ever pending.
    "VUID-VkSemaphoreSignalInfo-value-03259": _V1_4_0,
}
"""Messages that are wrong in layers older than a packed version."""

# NVIDIA 580: vkCreateDevice alone makes the layer say that a video function is asked for
# as one of the device. What we ask for is a fixed list (_ffi), and has to be there.
NOT_OURS = frozenset({"WARNING-vkGetDeviceProcAddr-device"})

UNSAID_IMPORT = frozenset(
    {
        "VUID-VkBufferCreateInfo-pNext-00920",
        "VUID-VkImportMemoryWin32HandleInfoKHR-handleType-09861",
    }
)
"""What layers say of imported host memory where the driver does not tell that buffers
may lie in it. Only SwiftShader is used in spite of that."""


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
LOG_VARIABLE = "TOSAVK_VALIDATION_LOG"
"""Names a file that messages of this process and its children are appended to."""


def validation_messages() -> list[ValidationMessage]:
    """Takes what the validation layer has said, in any instance, since the last call.

    The layer speaks on whatever thread it is called on, so there is one list for all.
    """
    messages = _MESSAGES[:]
    del _MESSAGES[: len(messages)]
    return messages


def require_layer(calls: Calls) -> Layer:
    """The validation layer.

    Raises:
        InstanceCreationFailed: there is none.
    """
    layer = find_layer(calls)
    if layer is None or DEBUG_UTILS not in layer.extensions:
        raise InstanceCreationFailed(
            f"validation was asked for, but the layer {VALIDATION_LAYER} is not "
            "installed: install vulkan-validationlayers, or unset TOSAVK_VALIDATION"
        )
    return layer


def muted(layer: Layer) -> set[str]:
    """Names of the messages that are wrong in this layer, or not about us."""
    wrong = {name for name, fixed in _MUTED_BEFORE.items() if layer.version < fixed}
    return wrong | NOT_OURS


def layer_switches(layer: Layer, scratch: Scratch) -> tuple[list[str], Cdata]:
    """Extensions and a struct that switch synchronization validation on."""
    if _LAYER_SETTINGS in layer.extensions:
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
        # Loaders older than the extension (1.3.239) refuse its name. The layer reads
        # the struct in any case.
        return [], scratch.struct(
            "VkLayerSettingsCreateInfoEXT",
            settingCount=len(settings),
            pSettings=scratch.array("VkLayerSettingEXT", settings),
        )
    enabled = [const.VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT]
    return [_VALIDATION_FEATURES], scratch.struct(
        "VkValidationFeaturesEXT",
        enabledValidationFeatureCount=len(enabled),
        pEnabledValidationFeatures=scratch.array(
            "VkValidationFeatureEnableEXT", enabled
        ),
    )


def _note(message: ValidationMessage) -> None:
    _MESSAGES.append(message)
    _log.error("validation: %s", message)
    path = os.environ.get(LOG_VARIABLE)
    if path:
        line = json.dumps([os.getpid(), message.name, message.text])
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def messenger_info(scratch: Scratch, ignored: set[str], chain: Cdata) -> Cdata:
    """What makes the layer's messages arrive in `validation_messages`.

    Args:
        scratch: keeps the callback alive.
        ignored: names of messages to drop; may change later.
        chain: what its pNext points to, or None.
    """

    def receive(severity: int, kinds: int, data: Cdata, user: Cdata) -> int:
        del kinds, user
        name = text_of(data.pMessageIdName) if data.pMessageIdName else ""
        if name in ignored:
            return 0
        text = text_of(data.pMessage) if data.pMessage else ""
        _note(ValidationMessage(severity, name, text))
        return 0

    callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", receive)
    # Messages of the general kind are the loader's talk about files.
    return scratch.struct(
        "VkDebugUtilsMessengerCreateInfoEXT",
        pNext=chain,
        messageSeverity=const.DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
        | const.DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        messageType=const.DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
        | const.DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
        pfnUserCallback=scratch.keep(callback),
    )
