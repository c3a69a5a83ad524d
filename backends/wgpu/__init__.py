"""The wgpu backend: the same plans through WebGPU, from kernels of its own.

Nothing of `wgpu` is loaded before a function here is called.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from tosavk.core.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

    from tosavk.backends.wgpu.device import WgpuDevice, WgpuOptions
    from tosavk.backends.wgpu.probe import DeviceListing

__all__ = ["list_devices", "open_device"]


def list_devices() -> tuple[DeviceListing, ...]:
    """Every device that wgpu sees, usable or not, each with the reason why not.

    On Linux and Windows these are Vulkan's devices, on macOS Metal's.

    Raises:
        RuntimeUnavailable: `wgpu` or its native library cannot be loaded.
    """
    listings: tuple[DeviceListing, ...] = _module().list_adapters()
    return listings


def open_device(
    selector: str | None = None,
    *,
    options: WgpuOptions | None = None,
    switches: Collection[str] = (),
) -> WgpuDevice:
    """Opens a device.

    Args:
        selector: None for the best device, an index, or a part of a device or driver
            name.
        options: see `WgpuOptions`.
        switches: what is left alone besides what the options say.

    Raises:
        RuntimeUnavailable: `wgpu` or its native library cannot be loaded.
        DeviceUnavailable: no device fits, several do, or the one is unusable.
        DeviceCreationFailed: it could not be opened.
    """
    module = _module()
    chosen = options or module.WgpuOptions()
    if switches:
        chosen = replace(chosen, switches=chosen.switches | frozenset(switches))
    opened: WgpuDevice = module.open_adapter(selector, chosen)
    return opened


def _module() -> ModuleType:
    # The native library is loaded by the import; it fails in more ways than one.
    try:
        importlib.import_module("tosavk.backends.wgpu._ffi")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise RuntimeUnavailable(
            f"wgpu cannot be loaded: {error}; reinstall it with "
            "'pip install --force-reinstall \"wgpu>=0.32,<0.33\"'"
        ) from error
    from tosavk.backends.wgpu import device

    return device
