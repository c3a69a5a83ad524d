"""The shader modules: the checked-in SPIR-V, fitted to a device where needed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tosavk.core.errors import InvalidArgument, Unsupported
from tosavk.shaders.catalogue import Kernel, kernels
from tosavk.shaders.files import read_spirv

MAGIC = 0x07230203
_HEADER_WORDS = 5
_OP_EXTENSION = 10
_OP_EXECUTION_MODE = 16
_OP_CAPABILITY = 17
_OP_FUNCTION = 54
_MODE_PRESERVE = 4461
_CAPABILITY_PRESERVE = 4466
# DenormPreserve, DenormFlushToZero, RoundingModeRTE, RoundingModeRTZ
_OTHER_FLOAT_CONTROLS = frozenset({4464, 4465, 4467, 4468})
_FLOAT_CONTROLS = b"SPV_KHR_float_controls\0"


@dataclass(frozen=True, slots=True)
class ShaderLibrary:
    """Where kernels come from.

    Attributes:
        kernels: the catalogue by name.
        read: gives a kernel's SPIR-V module; raises FileNotFoundError.
    """

    kernels: Mapping[str, Kernel]
    read: Callable[[str], bytes]

    def kernel(self, name: str) -> Kernel:
        """The catalogue entry of a kernel.

        Raises:
            Unsupported: there is no such kernel.
        """
        kernel = self.kernels.get(name)
        if kernel is None:
            raise Unsupported(f"kernel {name!r} is not in the kernel catalogue")
        return kernel

    def module(self, name: str, *, preserve: bool) -> bytes:
        """The SPIR-V of a kernel.

        Args:
            name: the kernel.
            preserve: whether the device has shaderSignedZeroInfNanPreserveFloat32;
                otherwise the request for it is taken out.

        Raises:
            Unsupported: there is no module of that name.
            InvalidArgument: the module is damaged.
        """
        try:
            code = self.read(name)
        except FileNotFoundError:
            raise Unsupported(f"kernel {name!r} has no SPIR-V module") from None
        return code if preserve else without_preserve(code)


def catalogue_library() -> ShaderLibrary:
    """The kernels that come with tosavk."""
    return ShaderLibrary(kernels(), read_spirv)


def without_preserve(code: bytes) -> bytes:
    """A module without the SignedZeroInfNanPreserve mode and what only it needs.

    Raises:
        InvalidArgument: not a SPIR-V module, or cut off.
    """
    words = _words(code)
    kept = words[:_HEADER_WORDS]
    extension: list[int] = []
    position = 0
    others = False
    at = _HEADER_WORDS
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        if count == 0 or at + count > len(words):
            raise InvalidArgument(f"the SPIR-V module is cut off at word {at}")
        if opcode == _OP_FUNCTION:
            kept += words[at:]
            break
        operation = words[at : at + count]
        at += count
        if opcode == _OP_CAPABILITY:
            if operation[1] == _CAPABILITY_PRESERVE:
                continue
            others |= operation[1] in _OTHER_FLOAT_CONTROLS
        elif opcode == _OP_EXTENSION and _is_float_controls(operation):
            extension = operation
            position = len(kept)
            continue
        elif opcode == _OP_EXECUTION_MODE and operation[2] == _MODE_PRESERVE:
            continue
        kept += operation
    if extension and others:
        kept[position:position] = extension
    return struct.pack(f"<{len(kept)}I", *kept)


def _words(code: bytes) -> list[int]:
    if len(code) % 4 or len(code) < 4 * _HEADER_WORDS:
        raise InvalidArgument(f"a SPIR-V module cannot have {len(code)} bytes")
    words = list(struct.unpack(f"<{len(code) // 4}I", code))
    if words[0] != MAGIC:
        raise InvalidArgument(f"a SPIR-V module cannot start with {words[0]:#010x}")
    return words


def _is_float_controls(operation: list[int]) -> bool:
    name = struct.pack(f"<{len(operation) - 1}I", *operation[1:])
    return name.startswith(_FLOAT_CONTROLS)
