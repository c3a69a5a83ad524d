"""What tosavk uses of `wgpu`, which has no types. Its door is backends/wgpu/_ffi.py."""

from typing import Any

def __getattr__(name: str) -> Any: ...
