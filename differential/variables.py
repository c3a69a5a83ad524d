"""The environment variables that choose drivers: a finding is told with them."""

from __future__ import annotations

import os

DRIVER_VARIABLES = (
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "VK_LOADER_DRIVERS_SELECT",
    "VK_LOADER_DRIVERS_DISABLE",
    "VK_LAYER_PATH",
    "VK_ADD_LAYER_PATH",
    "VK_INSTANCE_LAYERS",
    "WGPU_LIB_PATH",
    "MVK_CONFIG_FAST_MATH_ENABLED",
    "TOSAVK_DEVICE",
    "TOSAVK_DISABLE",
    "TOSAVK_SUBMISSION_WORK",
)
"""Variables that choose drivers and layers, and what of a device is used."""


def driver_environment() -> dict[str, str]:
    """Those that are set, with their values."""
    return {name: os.environ[name] for name in DRIVER_VARIABLES if name in os.environ}
