"""The kernels' files."""

from __future__ import annotations

from pathlib import Path

# Not importlib.resources: that imports the compression modules, 8 ms.
_FOLDER = Path(__file__).parent


def read_spirv(name: str) -> bytes:
    """The SPIR-V module `name`, such as "unary" or "unary/11.7".

    Raises:
        FileNotFoundError: there is none.
    """
    return (_FOLDER / "spirv" / f"{name}.spv").read_bytes()


def read_wgsl(name: str) -> str:
    """The WGSL text `name`.

    Raises:
        FileNotFoundError: there is none.
    """
    return (_FOLDER / "wgsl" / f"{name}.wgsl").read_text(encoding="utf-8")
