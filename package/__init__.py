"""tosavk runs TOSA programs on any Vulkan 1.3 driver and proves the result right.

    import tosavk

    with tosavk.load("model.tosa", backend="vulkan") as program:
        result = program.run({"x": array})
"""

from __future__ import annotations

from tosavk.backends.registry import DeviceRecord, devices
from tosavk.backends.registry import open_accelerator as open
from tosavk.backends.session import Session, TensorSpec, load
from tosavk.core.dtypes import DType
from tosavk.core.errors import Error, InitError, ModelError
from tosavk.core.plan import Numerics
from tosavk.lowering.tosa.builder import Builder

__version__ = "0.1.0"

__all__ = [
    "Builder",
    "DType",
    "DeviceRecord",
    "Error",
    "InitError",
    "ModelError",
    "Numerics",
    "Session",
    "TensorSpec",
    "__version__",
    "devices",
    "load",
    "open",
]
