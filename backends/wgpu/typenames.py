"""Names of C types, made known to cffi without parsing.

The binding's cffi parser reads the whole preamble of type names again for every new
type text, 10 ms each; opening a device and loading a program names some thirty. The
types themselves are declared already, so they are looked up and put into the cache that
cffi asks first. This uses cffi's own tables; if they ever look different, nothing is
put there, and cffi parses as it always did.
"""

from __future__ import annotations

import itertools
from typing import Any

POINTERS = (
    "WGPUAdapterInfo",
    "WGPUBindGroupDescriptor",
    "WGPUBindGroupLayoutDescriptor",
    "WGPUBufferDescriptor",
    "WGPUChainedStruct",
    "WGPUCommandBuffer",
    "WGPUComputePipelineDescriptor",
    "WGPUDeviceDescriptor",
    "WGPUDeviceLostCallbackInfo",
    "WGPUInstanceDescriptor",
    "WGPUInstanceEnumerateAdapterOptions",
    "WGPUInstanceExtras",
    "WGPULimits",
    "WGPUPipelineLayoutDescriptor",
    "WGPURequestDeviceCallbackInfo",
    "WGPUShaderModuleDescriptor",
    "WGPUShaderSourceWGSL",
    "WGPUUncapturedErrorCallbackInfo",
)
ARRAYS = (
    "WGPUAdapter",
    "WGPUBindGroupEntry",
    "WGPUBindGroupLayout",
    "WGPUBindGroupLayoutEntry",
    "WGPUConstantEntry",
    "WGPUFeatureName",
)
PLAIN = (
    "WGPUBufferMapCallback",
    "WGPUDeviceLostCallback",
    "WGPUQueueWorkDoneCallback",
    "WGPURequestDeviceCallback",
    "WGPUUncapturedErrorCallback",
)


def make_known(ffi: Any) -> int:  # noqa: ANN401 - a cffi.FFI
    """Puts the types of this backend into cffi's cache.

    Returns:
        How many were put there.
    """
    try:
        from cffi import model

        declared = ffi._parser._declarations
        known = ffi._parsed_types
        types = {
            "void *": model.voidp_type,
            "char[]": model.ArrayType(model.PrimitiveType("char"), None),
        }
        for name, suffix in itertools.chain(
            ((name, " *") for name in POINTERS),
            ((name, "[]") for name in ARRAYS),
            ((name, "") for name in PLAIN),
        ):
            base = declared[f"typedef {name}"][0]
            if suffix == " *":
                base = model.PointerType(base)
            elif suffix == "[]":
                base = model.ArrayType(base, None)
            types[name + suffix] = base
        with ffi._lock:
            found = {n: (ffi._get_cached_btype(t), False) for n, t in types.items()}
            known.update(found)
    except (ImportError, AttributeError, KeyError, TypeError, ValueError):
        return 0
    return len(found)
