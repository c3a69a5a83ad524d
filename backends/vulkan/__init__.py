"""The Vulkan backend: plans on any Vulkan 1.3 driver, without a wrapper in between.

Neither the loader library nor the C types are loaded before a function here is called.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tosavk.core.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection

    from tosavk.backends.vulkan.device import VulkanDevice
    from tosavk.backends.vulkan.options import VulkanOptions
    from tosavk.backends.vulkan.suitability import DeviceListing

__all__ = ["describe", "list_devices", "open_device"]


def list_devices() -> list[DeviceListing]:
    """Every device that the loader lists, usable or not, with the reason why not.

    Raises:
        RuntimeUnavailable: no loader, one older than Vulkan 1.3, no driver, or not the
            package `vulkan`; the message says what to install.
        InstanceCreationFailed: the loader refused for another reason.
        DeviceEnumerationFailed: a driver failed to answer.
    """
    _load_types()
    from tosavk.backends.vulkan.instance import open_instance
    from tosavk.backends.vulkan.probe import read_records
    from tosavk.backends.vulkan.suitability import DeviceListing

    with open_instance(None, validation=False) as instance:
        return [DeviceListing.of(record) for record, _ in read_records(instance)]


def describe(selector: str | None = None) -> dict[str, Any]:
    """What is known of a device, ready for JSON; it is not opened.

    Raises:
        InitError: as `open_device`.
    """
    _load_types()
    from tosavk.backends.vulkan.description import describe as found

    return found(selector)


def open_device(
    selector: str | None = None,
    *,
    options: VulkanOptions | None = None,
    switches: Collection[str] = (),
) -> VulkanDevice:
    """Opens a device.

    Args:
        selector: None for the best device; an index; a UUID; or a part of a device or
            driver name.
        options: see `VulkanOptions`.
        switches: what is left alone besides what the options say.

    Raises:
        RuntimeUnavailable: no loader, one older than Vulkan 1.3, no driver, or not the
            package `vulkan`.
        InstanceCreationFailed: the loader refused; also if the validation layer was
            asked for and is not there.
        DeviceEnumerationFailed: a driver failed to answer.
        DeviceUnavailable: no device fits, several do, or the one is unusable.
        DeviceCreationFailed: it could not be opened.
    """
    _load_types()
    from tosavk.backends.vulkan.device import open_with
    from tosavk.backends.vulkan.options import VulkanOptions

    chosen = options or VulkanOptions()
    if switches:
        chosen = replace(chosen, switches=chosen.switches | frozenset(switches))
    return open_with(None, selector, chosen)


def _load_types() -> None:
    """Loads the C types, which come from a package.

    Raises:
        RuntimeUnavailable: it is not there, or another version.
    """
    try:
        importlib.import_module("tosavk.backends.vulkan._ffi")
    except (ImportError, OSError, AttributeError) as error:
        raise RuntimeUnavailable(
            f"the declarations of Vulkan cannot be loaded: {error}; reinstall them with "
            "'pip install --force-reinstall \"vulkan>=1.3.275.1,<1.4\"'"
        ) from error
