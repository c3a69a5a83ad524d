"""What tosavk uses of the `vulkan` package.

The package has no types, and a type checker needs most of a minute to infer them.
Its wrapper functions are left out on purpose: backends/vulkan/_ffi.py takes types,
enum values and the loader's entry points from the cffi module.
"""

from typing import Any

from cffi import FFI

ffi: FFI
lib: Any

def __getattr__(name: str) -> Any: ...
