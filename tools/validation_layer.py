"""The Khronos validation layer that comes with Chromium.

Debian's `chromium-common`, which brings SwiftShader, also brings a copy of the layer.
On Debian 12 and 13 it is far newer than the one of `vulkan-validationlayers`: it sees
hazards between submissions, and follows semaphores that other threads raise. No
package registers it, so `bootstrap.py` writes a manifest of our own for it, and
`driver_env.py` shows that to the Vulkan loader where it is the newest layer.

Only the standard library is used: this runs before anything is installed.
"""

import ctypes
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ROOT / "build" / "layers"
MANIFEST = LAYERS / "VkLayer_khronos_validation.json"
LIBRARY = "libVkLayer_khronos_validation.so"
NAME = "VK_LAYER_KHRONOS_validation"
Version = tuple[int, ...]


class _LayerProperties(ctypes.Structure):
    """VkLayerProperties."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("version", ctypes.c_uint32),
        ("implementation", ctypes.c_uint32),
        ("description", ctypes.c_char * 256),
    )


class _ExtensionProperties(ctypes.Structure):
    """VkExtensionProperties."""

    _fields_ = (("name", ctypes.c_char * 256), ("version", ctypes.c_uint32))


@dataclass(frozen=True)
class Layer:
    """What a layer's library says of itself.

    Attributes:
        version: Version of Vulkan that it was written for.
        implementation: Its own version.
        extensions: Instance extensions that it offers, with their versions.
    """

    version: Version
    implementation: int
    extensions: tuple[tuple[str, int], ...]


def ask(library: Path) -> Layer | None:
    """Loads a layer's library and asks it; None if it cannot be used here."""
    try:
        handle = ctypes.CDLL(str(library))
        layers = (_LayerProperties * 8)()
        count = ctypes.c_uint32(len(layers))
        handle.vkEnumerateInstanceLayerProperties(ctypes.byref(count), layers)
        found = next(p for p in layers[: count.value] if p.name.decode() == NAME)
        extensions = (_ExtensionProperties * 64)()
        count = ctypes.c_uint32(len(extensions))
        handle.vkEnumerateInstanceExtensionProperties(
            found.name, ctypes.byref(count), extensions
        )
    except (OSError, AttributeError, StopIteration):
        return None
    packed = int(found.version)
    return Layer(
        version=(packed >> 22 & 0x7F, packed >> 12 & 0x3FF, packed & 0xFFF),
        implementation=int(found.implementation),
        extensions=tuple(
            (e.name.decode(), e.version) for e in extensions[: count.value]
        ),
    )


def manifest(library: Path, layer: Layer) -> dict[str, object]:
    """Returns the manifest that registers a layer's library."""
    return {
        "file_format_version": "1.2.0",
        "layer": {
            "name": NAME,
            "type": "GLOBAL",
            "library_path": str(library),
            "api_version": ".".join(map(str, layer.version)),
            "implementation_version": str(layer.implementation),
            "description": "Khronos validation layer",
            "instance_extensions": [
                {"name": name, "spec_version": str(version)}
                for name, version in layer.extensions
            ],
        },
    }


def write_manifest(library: Path | None) -> Layer | None:
    """Writes the manifest of a layer's library, if it can be used.

    Returns:
        The layer if its manifest is new; None if nothing has changed.
    """
    if library is None:
        MANIFEST.unlink(missing_ok=True)
        return None
    stamp = f"{library} {library.stat().st_mtime_ns} {library.stat().st_size}\n"
    noted = LAYERS / "library"
    known = MANIFEST.exists() and noted.exists()
    if known and noted.read_text(encoding="utf-8") == stamp:
        return None
    layer = ask(library)
    LAYERS.mkdir(parents=True, exist_ok=True)
    MANIFEST.unlink(missing_ok=True)
    if layer is not None:
        text = json.dumps(manifest(library, layer), indent=2) + "\n"
        MANIFEST.write_text(text, encoding="utf-8")
    noted.write_text(stamp, encoding="utf-8")
    return layer


def version_in(file: Path) -> Version:
    """Returns the version that a manifest tells; () if it does not."""
    try:
        document = cast("dict[str, Any]", json.loads(file.read_text(encoding="utf-8")))
        return tuple(int(p) for p in document["layer"]["api_version"].split("."))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def registered(folders: list[Path]) -> Version:
    """Returns the version of the system's layer; () if there is none.

    Args:
        folders: Where the loader looks for manifests of explicit layers, in its order.
    """
    for folder in folders:
        if (folder / MANIFEST.name).exists():
            return version_in(folder / MANIFEST.name)
    return ()


def additions(environment: dict[str, str], folders: list[Path]) -> dict[str, str]:
    """Returns the variable that shows our manifest to the loader, if it should be.

    A folder in VK_ADD_LAYER_PATH comes before those of the system. When VK_LAYER_PATH
    is set, somebody chose layers already.

    Args:
        environment: The variables that are set.
        folders: See `registered`.
    """
    name = "VK_ADD_LAYER_PATH"
    own = version_in(MANIFEST)
    if environment.get("VK_LAYER_PATH") or own <= registered(folders):
        return {}
    others = environment.get(name, "").split(os.pathsep)
    paths = [str(LAYERS), *(p for p in others if p and p != str(LAYERS))]
    return {name: os.pathsep.join(paths)}
