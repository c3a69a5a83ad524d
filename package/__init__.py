"""tosavk runs TOSA programs on any Vulkan 1.3 driver and proves the result right.

    import tosavk

    with tosavk.load("model.tosa", backend="vulkan") as program:
        result = program.run({"x": array})

Importing this module loads nothing else; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from os import PathLike

    from tosavk.backends.registry import DeviceRecord
    from tosavk.backends.session import Session, TensorSpec
    from tosavk.core.accelerator import Accelerator
    from tosavk.core.dtypes import DType
    from tosavk.core.errors import (
        Error,
        InitError,
        InvalidArgument,
        ModelError,
        Unsupported,
    )
    from tosavk.core.plan import Numerics
    from tosavk.lowering.custom import custom
    from tosavk.lowering.graph import Graph
    from tosavk.lowering.tosa.builder import Builder

__version__ = "0.1.0.dev0"

__all__ = [
    "Accelerator",
    "Builder",
    "DType",
    "DeviceRecord",
    "Error",
    "Graph",
    "InitError",
    "InvalidArgument",
    "ModelError",
    "Numerics",
    "Session",
    "TensorSpec",
    "Unsupported",
    "__version__",
    "custom",
    "describe",
    "devices",
    "load",
    "open",
]

_HOMES = {
    "Accelerator": "core.accelerator",
    "Builder": "lowering.tosa.builder",
    "DType": "core.dtypes",
    "DeviceRecord": "backends.registry",
    "Error": "core.errors",
    "Graph": "lowering.graph",
    "InitError": "core.errors",
    "InvalidArgument": "core.errors",
    "ModelError": "core.errors",
    "Numerics": "core.plan",
    "Session": "backends.session",
    "TensorSpec": "backends.session",
    "Unsupported": "core.errors",
    "custom": "lowering.custom",
}


def devices() -> tuple[DeviceRecord, ...]:
    """Every device of every backend, with the reason for unusable ones."""
    from tosavk.backends.registry import devices as found

    return found()


def describe(spec: str = "vulkan") -> dict[str, Any]:
    """What is known of a device, ready for JSON: limits, features, memory and so on.

    Features are shown as available and as enabled. The device is not opened.

    Args:
        spec: backend specification, as of `open`.

    Raises:
        InvalidArgument: no such backend.
        InitError: no such device, or several of them.
    """
    from tosavk.backends.registry import describe as found

    return found(spec)


def open(spec: str = "vulkan", *, disable: Collection[str] = ()) -> Accelerator:
    """Opens a device under the Accelerator model; close it, or use `with`.

    Args:
        spec: backend specification: `vulkan`, `wgpu` or `reference`, optionally a
            colon and a device index, UUID, or part of a device or driver name.
        disable: what the device offers and is left alone, such as "no-int8-dot"; also
            see TOSAVK_DISABLE (docs/switches.md).

    Raises:
        InvalidArgument: no such backend.
        InitError: no such device, several of them, or it cannot be opened.
    """
    from tosavk.backends.registry import open_accelerator

    return open_accelerator(spec, disable=disable)


def load(
    source: str | PathLike[str] | bytes | bytearray | memoryview | Graph,
    *,
    backend: str = "vulkan",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    numerics: str | Numerics = "strict",
    max_turns: int = 1 << 16,
    disable: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Session:
    """Loads a TOSA program on a device; close it, or use `with`.

    Args:
        source: a path, the bytes of a TOSA flatbuffer, or a Graph.
        backend: backend specification, such as "vulkan" or "wgpu:llvmpipe".
        shapes: shapes of inputs whose dimensions the file leaves open.
        numerics: "strict" (same bits on every IEEE device) or "fast".
        max_turns: how many turns all WHILE_LOOPs together may take in one run.
        disable: what the device offers and is left alone, such as "no-int8-dot".
        progress: told how many pipelines are compiled, and of how many; it may raise.

    Raises:
        InvalidArgument: the file cannot be read or is broken, or a shape is missing.
        Unsupported: the kernels lack an operator or type.
        ResourceLimit: a tensor, or the program, is too large for the device.
        OutOfMemory: there is not as much memory.
        InitError: no such device, or it cannot be opened.
        DeviceLost: the device was lost on the way.
    """
    from tosavk.backends.session import load as load_session

    return load_session(
        source,
        backend=backend,
        shapes=shapes,
        numerics=numerics,
        max_turns=max_turns,
        disable=disable,
        progress=progress,
    )


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


# Type checkers see the imports above, and complain about names that are not there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Loads a public name on first use."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'tosavk' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"tosavk.{home}"), name)
        globals()[name] = value
        return value
