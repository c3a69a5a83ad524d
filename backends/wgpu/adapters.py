"""The adapters that wgpu-native sees, read into plain data."""

from __future__ import annotations

import os
import sys

from tosavk.backends.wgpu._ffi import (
    FEATURE_MAPPABLE_PRIMARY,
    NULL,
    Cdata,
    ffi,
    lib,
    text,
)
from tosavk.backends.wgpu.probe import AdapterFacts, Kind, Limits

_VULKAN = (1 << 0, lib.WGPUBackendType_Vulkan)
_METAL = (1 << 2, lib.WGPUBackendType_Metal)
_BACKENDS = {
    lib.WGPUBackendType_Vulkan: "Vulkan",
    lib.WGPUBackendType_Metal: "Metal",
    lib.WGPUBackendType_D3D12: "D3D12",
    lib.WGPUBackendType_OpenGL: "OpenGL",
    lib.WGPUBackendType_OpenGLES: "OpenGL ES",
}
_KINDS = {
    lib.WGPUAdapterType_DiscreteGPU: Kind.DISCRETE,
    lib.WGPUAdapterType_IntegratedGPU: Kind.INTEGRATED,
    lib.WGPUAdapterType_CPU: Kind.CPU,
}


_INSTANCES: dict[tuple[object, ...], Cdata] = {}


def _instance(backends: int) -> Cdata:
    """An instance that lives as long as the process.

    Drivers stay loaded while it lives: some can be loaded only some thirty times in a
    process (see `backends.vulkan.instance.pinned_instance`). There is one for each set of
    the variables that tell the loader where drivers are, and for each process of a fork.
    That of `wgpu-py` would keep its drivers and options whatever the variables say.
    """
    chosen = sorted(item for item in os.environ.items() if item[0].startswith("VK_"))
    key = (os.getpid(), backends, *chosen)
    found = _INSTANCES.get(key)
    if found is None:
        extras = ffi.new("WGPUInstanceExtras *")
        extras.chain.sType = lib.WGPUSType_InstanceExtras
        extras.backends = backends
        descriptor = ffi.new("WGPUInstanceDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", extras)
        found = _INSTANCES[key] = lib.wgpuCreateInstance(descriptor)
    return found


class Adapters:
    """The adapters of this machine; a context manager that gives them back."""

    def __init__(self) -> None:
        """Lists the adapters of this process's instance."""
        backends, self._type = _METAL if sys.platform == "darwin" else _VULKAN
        self._instance = _instance(backends)
        options = ffi.new("WGPUInstanceEnumerateAdapterOptions *")
        options.backends = backends
        count = lib.wgpuInstanceEnumerateAdapters(self._instance, options, NULL)
        found = ffi.new("WGPUAdapter[]", count)
        count = lib.wgpuInstanceEnumerateAdapters(self._instance, options, found)
        self._all: list[Cdata] = list(found)[:count]
        self.handles: list[Cdata] = [
            a for a in self._all if self._kind(a) == self._type
        ]

    @staticmethod
    def _kind(adapter: Cdata) -> int:
        info = ffi.new("WGPUAdapterInfo *")
        lib.wgpuAdapterGetInfo(adapter, info)
        kind = int(info.backendType)
        lib.wgpuAdapterInfoFreeMembers(info[0])
        return kind

    def __enter__(self) -> Adapters:
        """Returns itself."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Releases the adapters; the instance and open devices are not touched."""
        for adapter in self._all:
            lib.wgpuAdapterRelease(adapter)
        self._all = self.handles = []

    def facts(self) -> tuple[AdapterFacts, ...]:
        """What each adapter of `handles` tells of itself, in the same order."""
        return tuple(_facts(adapter) for adapter in self.handles)


def _facts(adapter: Cdata) -> AdapterFacts:
    info = ffi.new("WGPUAdapterInfo *")
    lib.wgpuAdapterGetInfo(adapter, info)
    limits = ffi.new("WGPULimits *")
    lib.wgpuAdapterGetLimits(adapter, limits)
    mappable = lib.wgpuAdapterHasFeature(adapter, FEATURE_MAPPABLE_PRIMARY) & 0xFF
    driver = " ".join(filter(None, (text(info.vendor), text(info.description))))
    facts = AdapterFacts(
        name=text(info.device),
        driver=driver,
        api=_BACKENDS.get(info.backendType, f"backend {info.backendType}"),
        kind=_KINDS.get(info.adapterType, Kind.OTHER),
        vendor_id=info.vendorID,
        device_id=info.deviceID,
        limits=Limits(
            buffer_bytes=limits.maxBufferSize,
            storage_binding_bytes=limits.maxStorageBufferBindingSize,
            storage_buffers=limits.maxStorageBuffersPerShaderStage,
            workgroup_invocations=limits.maxComputeInvocationsPerWorkgroup,
            workgroup_width=limits.maxComputeWorkgroupSizeX,
            workgroup_bytes=limits.maxComputeWorkgroupStorageSize,
            workgroups=limits.maxComputeWorkgroupsPerDimension,
            storage_alignment=limits.minStorageBufferOffsetAlignment,
            uniform_alignment=limits.minUniformBufferOffsetAlignment,
        ),
        mappable_primary=bool(mappable),
    )
    lib.wgpuAdapterInfoFreeMembers(info[0])
    return facts
