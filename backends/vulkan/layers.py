"""What the loader offers before there is an instance: version, extensions, layers."""

from __future__ import annotations

from dataclasses import dataclass

from tosavk.backends.vulkan._ffi import NULL, Calls, const, error_of, ffi, text_of
from tosavk.core.errors import InstanceCreationFailed

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"


def version_text(version: int) -> str:
    """A packed Vulkan version as "major.minor.patch"."""
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that the loader finds.

    Attributes:
        name: its name.
        version: packed Vulkan version it was written for.
        extensions: instance extensions that it offers itself.
    """

    name: str
    version: int
    extensions: frozenset[str]

    @property
    def number(self) -> str:
        """Its version as "major.minor.patch"."""
        return version_text(self.version)

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


def require(code: int, call: str) -> None:
    """Raises if a call that belongs to making an instance failed.

    Raises:
        InstanceCreationFailed: `code` is an error.
    """
    if code < 0:
        error = error_of(code, call)
        raise InstanceCreationFailed(str(error)) from error


def loader_version(calls: Calls) -> int:
    """The newest version of Vulkan that the loader knows, packed."""
    version = ffi.new("uint32_t *")
    code = calls.vkEnumerateInstanceVersion(version)
    require(code, "vkEnumerateInstanceVersion")
    return int(version[0])


def instance_extensions(calls: Calls, layer: str | None = None) -> frozenset[str]:
    """Instance extensions of the loader and its drivers, or of one layer.

    A layer that is not there has none.
    """
    call = "vkEnumerateInstanceExtensionProperties"
    name = NULL if layer is None else ffi.new("char[]", layer.encode())
    count = ffi.new("uint32_t *")
    code = calls.vkEnumerateInstanceExtensionProperties(name, count, NULL)
    if code == const.ERROR_LAYER_NOT_PRESENT:
        return frozenset()
    require(code, call)
    count[0] += 8
    found = ffi.new("VkExtensionProperties[]", count[0])
    code = calls.vkEnumerateInstanceExtensionProperties(name, count, found)
    require(code, call)
    return frozenset(text_of(found[i].extensionName) for i in range(count[0]))


def find_layer(calls: Calls, name: str = VALIDATION_LAYER) -> Layer | None:
    """The layer of that name that an instance would get; None if there is none."""
    call = "vkEnumerateInstanceLayerProperties"
    count = ffi.new("uint32_t *")
    require(calls.vkEnumerateInstanceLayerProperties(count, NULL), call)
    count[0] += 8
    found = ffi.new("VkLayerProperties[]", count[0])
    require(calls.vkEnumerateInstanceLayerProperties(count, found), call)
    for i in range(count[0]):
        # Of several with one name the first is loaded.
        if text_of(found[i].layerName) == name:
            version = int(found[i].specVersion)
            return Layer(name, version, instance_extensions(calls, name))
    return None
