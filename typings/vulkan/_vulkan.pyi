from typing import Any

from cffi import FFI

ffi: FFI
lib: Any

def __getattr__(name: str) -> Any: ...
