"""Target words: what an artifact says it was made for.

Twelve u32 words: magic, ABI, version (3), profiles, level, extensions (2), reserved
(3). Every violation is `Incompatible`. Source: docs/accelerator.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tosavk.core.errors import Incompatible

MAGIC = 0x544F5341
ABI = 1


class Profile(enum.IntFlag):
    """TOSA profiles."""

    INTEGER = 1
    FLOATING_POINT = 2


class Level(enum.IntEnum):
    """TOSA levels."""

    NONE = 0
    EIGHT_K = 1


class Extension(enum.IntFlag):
    """TOSA extensions by their bit."""

    INT16 = 1 << 0
    INT4 = 1 << 1
    BF16 = 1 << 2
    FP8E4M3 = 1 << 3
    FP8E5M2 = 1 << 4
    FFT = 1 << 5
    VARIABLE = 1 << 6
    CONTROL_FLOW = 1 << 7
    DYNAMIC = 1 << 8
    DOUBLE_ROUND = 1 << 9
    INEXACT_ROUND = 1 << 10


_ALL_EXTENSIONS = (1 << 11) - 1
_NEED_INTEGER = (
    Extension.INT16 | Extension.INT4 | Extension.DOUBLE_ROUND | Extension.INEXACT_ROUND
)
_NEED_FLOAT = Extension.BF16 | Extension.FP8E4M3 | Extension.FP8E5M2 | Extension.FFT


@dataclass(frozen=True, slots=True)
class Target:
    """What a program may use."""

    version: tuple[int, int, int]
    profiles: Profile
    level: Level
    extensions: Extension

    def words(self) -> tuple[int, ...]:
        """The twelve target words."""
        bits = int(self.extensions)
        return (
            MAGIC,
            ABI,
            *self.version,
            int(self.profiles),
            int(self.level),
            bits & 0xFFFF_FFFF,
            bits >> 32,
            0,
            0,
            0,
        )


EVERYTHING = Target(
    version=(1, 0, 0),
    profiles=Profile.INTEGER | Profile.FLOATING_POINT,
    level=Level.EIGHT_K,
    extensions=Extension(_ALL_EXTENSIONS),
)


def decode(words: Sequence[int]) -> Target:
    """Decodes target words; the checks are in the documented order.

    Raises:
        Incompatible: the first violation.
    """
    if len(words) != 12:
        raise Incompatible(f"a target has 12 words, got {len(words)}")
    if words[0] != MAGIC:
        raise Incompatible(f"target magic is {words[0]:#x}, expected {MAGIC:#x}")
    if words[1] != ABI:
        raise Incompatible(f"target ABI is {words[1]}, this build knows {ABI}")
    if any(word > 0xFFFF for word in words[2:5]):
        raise Incompatible(f"target version {words[2:5]} has a word above 65535")
    if words[5] == 0 or words[5] & ~3:
        raise Incompatible(f"target profiles {words[5]:#x} are empty or unknown")
    if words[6] not in {0, 1}:
        raise Incompatible(f"target level {words[6]} is unknown")
    bits = words[7] | (words[8] << 32)
    if bits & ~_ALL_EXTENSIONS:
        raise Incompatible(f"target extensions {bits:#x} have unknown bits")
    if any(words[9:12]):
        raise Incompatible("target words 9 to 11 must be zero")
    profiles, extensions = Profile(words[5]), Extension(bits)
    if extensions & _NEED_INTEGER and not profiles & Profile.INTEGER:
        raise Incompatible(f"{extensions & _NEED_INTEGER!r} needs the integer profile")
    if extensions & _NEED_FLOAT and not profiles & Profile.FLOATING_POINT:
        raise Incompatible(f"{extensions & _NEED_FLOAT!r} needs the float profile")
    return Target((words[2], words[3], words[4]), profiles, Level(words[6]), extensions)
