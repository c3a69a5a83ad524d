"""The C interface of wgpu-native: the library and its types, as `wgpu` ships them.

The Python modules of the package are not imported: that takes 0.2 s, most of it for
parsing the C header. Here the header is parsed once; cffi's table of its types is kept
in the cache folder and believed only for the same header and the same cffi, when its
checksum is right. It is data (JSON), never code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import _cffi_backend

from tosavk.backends.cachefolder import (
    CacheRejected,
    cache_folder,
    read_file,
    write_file,
)
from tosavk.core import logs

Cdata = Any
Table = dict[str, Any]
"""cffi's packed table of types: the keyword arguments of `_cffi_backend.FFI`."""

NATIVE_VERSION = 29
"""Major version of wgpu-native that this backend is written for."""

FUNCTIONS = (
    "wgpuAdapterGetInfo",
    "wgpuAdapterGetLimits",
    "wgpuAdapterHasFeature",
    "wgpuAdapterInfoFreeMembers",
    "wgpuAdapterRelease",
    "wgpuAdapterRequestDevice",
    "wgpuBindGroupLayoutRelease",
    "wgpuBindGroupRelease",
    "wgpuBufferDestroy",
    "wgpuBufferGetConstMappedRange",
    "wgpuBufferGetMappedRange",
    "wgpuBufferMapAsync",
    "wgpuBufferRelease",
    "wgpuBufferUnmap",
    "wgpuCommandBufferRelease",
    "wgpuCommandEncoderBeginComputePass",
    "wgpuCommandEncoderCopyBufferToBuffer",
    "wgpuCommandEncoderFinish",
    "wgpuCommandEncoderRelease",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuComputePassEncoderEnd",
    "wgpuComputePassEncoderRelease",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePipelineRelease",
    "wgpuCreateInstance",
    "wgpuDeviceCreateBindGroup",
    "wgpuDeviceCreateBindGroupLayout",
    "wgpuDeviceCreateBuffer",
    "wgpuDeviceCreateCommandEncoder",
    "wgpuDeviceCreateComputePipeline",
    "wgpuDeviceCreatePipelineLayout",
    "wgpuDeviceCreateShaderModule",
    "wgpuDeviceDestroy",
    "wgpuDeviceGetQueue",
    "wgpuDevicePoll",
    "wgpuDeviceRelease",
    "wgpuGetVersion",
    "wgpuInstanceEnumerateAdapters",
    "wgpuPipelineLayoutRelease",
    "wgpuQueueOnSubmittedWorkDone",
    "wgpuQueueRelease",
    "wgpuQueueSubmit",
    "wgpuQueueWriteBuffer",
    "wgpuShaderModuleRelease",
)
"""Every function that the backend calls."""

MAGIC = b"TOSAVKWT"
_LOGGER = "tosavk.wgpu"
_HASH_BYTES = 32
_MAX_BYTES = 4 << 20
_KEYS = frozenset(
    {"_version", "_types", "_globals", "_struct_unions", "_enums", "_typenames"}
)


def open_interface() -> tuple[Cdata, Cdata]:
    """Finds the package, and opens its library.

    Returns:
        A cffi FFI with the types, and the library.

    Raises:
        ImportError: the package is not there, or another version.
        OSError: the library or the header cannot be read.
    """
    resources = find_resources()
    header = (resources / "combined_header.h").read_bytes()
    path = library_path(resources)
    ffi = load_types(header, cache_folder())
    lib = ffi.dlopen(str(path))
    check_library(lib, path)
    return ffi, lib


def find_resources(package: str = "wgpu") -> Path:
    """The folder of the header and the library.

    Raises:
        ImportError: the package is not installed, or has no such header.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        resources = Path(folder) / "resources"
        if (resources / "combined_header.h").is_file():
            return resources
    raise ImportError(f"the package {package!r} is missing or has no C header")


def library_path(
    resources: Path,
    environment: Mapping[str, str] | None = None,
    platform: str = sys.platform,
) -> Path:
    """The library to open: `WGPU_LIB_PATH`, as for the package, or the package's.

    Raises:
        ImportError: the package has no library for this platform.
    """
    env = os.environ if environment is None else environment
    chosen = env.get("WGPU_LIB_PATH", "").strip()
    if chosen:
        return Path(chosen)
    start, end = {"win32": ("", ".dll"), "darwin": ("lib", ".dylib")}.get(
        platform, ("lib", ".so")
    )
    for build in ("-release", ""):
        path = resources / f"{start}wgpu_native{build}{end}"
        if path.is_file():
            return path
    raise ImportError(f"{resources} has no library of wgpu-native for {platform}")


def check_library(lib: Cdata, path: Path) -> None:
    """Looks whether this is the library that the backend is written for.

    Raises:
        ImportError: another version, or a function is missing.
    """
    missing = [name for name in FUNCTIONS if not hasattr(lib, name)]
    if missing:
        raise ImportError(f"{path} has no {', '.join(missing)}")
    version = int(lib.wgpuGetVersion())
    if version >> 24 != NATIVE_VERSION:
        found = ".".join(str(byte) for byte in version.to_bytes(4, "big"))
        raise ImportError(f"{path} is version {found}, {NATIVE_VERSION}.x is needed")


# Types ------------------------------------------------------------------------------


def load_types(header: bytes, folder: Path | None) -> Cdata:
    """A cffi FFI with the types of a header, from the cache if it is there.

    Args:
        header: C declarations.
        folder: the cache folder; None: nothing is kept.
    """
    key = types_key(header)
    path = folder / f"wgpu-types-{key.hex()[:32]}.cache" if folder else None
    if path is not None:
        try:
            return make_ffi(unpack(key, read_file(path, _MAX_BYTES + 1)))
        except FileNotFoundError:
            pass
        except (OSError, CacheRejected) as error:
            logs.warning(_LOGGER, "type cache %s is ignored: %s", path, error)
    table = parse(header)
    if path is not None:
        try:
            write_file(path, pack(key, table))
        except (OSError, CacheRejected) as error:
            logs.warning(_LOGGER, "type cache %s is not written: %s", path, error)
    return make_ffi(table)


def make_ffi(table: Table) -> Cdata:
    """A cffi FFI from a table."""
    return _cffi_backend.FFI("wgpu_native", **table)


def types_key(header: bytes) -> bytes:
    """What a table depends on, as 32 bytes."""
    cffi_version = _cffi_backend.__version__.encode()
    return hashlib.sha256(MAGIC + cffi_version + b"\0" + header).digest()


def parse(header: bytes) -> Table:
    """cffi's table of the types of a header; takes 0.15 s.

    Raises:
        ImportError: cffi does not understand the header, or we not its answer.
    """
    # With a table in the cache, none of these is needed.
    import ast
    import tempfile

    from cffi import FFI, CDefError, FFIError

    ffi = FFI()
    try:
        ffi.cdef(header.decode())
    except (CDefError, FFIError, UnicodeDecodeError) as error:
        raise ImportError(f"cffi does not understand the C header: {error}") from error
    ffi.set_source("wgpu_native", None, compiler_verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wgpu_native.py"
        ffi.emit_python_code(str(path))
        module = ast.parse(path.read_text(encoding="utf-8"))
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            keywords = statement.value.keywords
            return {str(k.arg): ast.literal_eval(k.value) for k in keywords}
    raise ImportError("cffi describes the C interface in a form that is not known")


def pack(key: bytes, table: Table) -> bytes:
    """The content of a cache file."""
    parts = {name: _to_json(part) for name, part in table.items()}
    payload = json.dumps(parts).encode()
    return MAGIC + key + hashlib.sha256(payload).digest() + payload


def unpack(key: bytes, content: bytes) -> Table:
    """The table in a cache file.

    Raises:
        CacheRejected: damaged, or of another header or cffi.
    """
    if len(content) > _MAX_BYTES:
        raise CacheRejected(f"more than {_MAX_BYTES} bytes")
    start = len(MAGIC) + 2 * _HASH_BYTES
    if len(content) < start or not content.startswith(MAGIC + key):
        raise CacheRejected("not a table of these types")
    payload = content[start:]
    if hashlib.sha256(payload).digest() != content[start - _HASH_BYTES : start]:
        raise CacheRejected("the checksum is wrong")
    table = {name: _from_json(value) for name, value in json.loads(payload).items()}
    if not _KEYS.issuperset(table):
        raise CacheRejected(f"it has the entries {', '.join(sorted(table))}")
    return table


def _to_json(value: object) -> Any:  # noqa: ANN401 - a part of a table
    """Bytes become text, byte by byte, and tuples lists."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, tuple):
        return [_to_json(part) for part in cast("tuple[object, ...]", value)]
    return value


def _from_json(value: object) -> Any:  # noqa: ANN401 - a part of a table
    if isinstance(value, str):
        return value.encode("latin-1")
    if isinstance(value, list):
        return tuple(_from_json(part) for part in cast("list[object]", value))
    return value
