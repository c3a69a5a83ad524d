"""The Vulkan validation layer: which one there is, and its messages."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tosavk.backends.vulkan.layers import Layer

MODULE = "tosavk.backends.vulkan.validation"
LOG_VARIABLE = "TOSAVK_VALIDATION_LOG"


class Log:
    """The file in which processes that a test starts leave the layer's messages."""

    def __init__(self, path: Path) -> None:
        """From now on they write to that file."""
        self._path = path
        self._read = 0
        os.environ[LOG_VARIABLE] = str(path)

    def take(self) -> list[str]:
        """Returns what others than this process have written since the last call."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return []
        if size == self._read:
            return []
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._read)
            lines = file.readlines()
            self._read = file.tell()
        found = [cast("tuple[int, str, str]", json.loads(line)) for line in lines]
        own = os.getpid()
        return [f"{name}: {text}" for pid, name, text in found if pid != own]


def take_messages() -> list[str]:
    """Returns the messages of this process collected since the last call.

    The backend is not imported for that: a test that does not use it has no messages.
    """
    module = sys.modules.get(MODULE)
    take = getattr(module, "validation_messages", None)
    if take is None:
        return []
    return [str(m) for m in cast("Callable[[], list[object]]", take)()]


@functools.cache
def layer() -> Layer | None:
    """The layer that the loader finds, asked once in a process."""
    from tosavk.backends.vulkan._ffi import open_loader
    from tosavk.backends.vulkan.layers import find_layer

    return find_layer(open_loader().calls)


def is_new() -> bool:
    """Whether the layer is one of Vulkan 1.4. Those look across submissions."""
    return _is_from((1 << 22) | (4 << 12))


def follows_threads() -> bool:
    """Whether the layer follows semaphores that other threads raise.

    1.3.239 loses track and stalls; 1.4.309 crashes in some runs of many; 1.4.364 does it.
    """
    return _is_from((1 << 22) | (4 << 12) | 364)


def _is_from(version: int) -> bool:
    found = layer()
    return found is not None and found.version >= version


def in_use() -> str:
    """Says what has validated the tests, or ""; imports nothing."""
    options = sys.modules.get("tosavk.backends.vulkan.options")
    if options is None or MODULE not in sys.modules:
        return ""
    wanted = cast("Callable[[], bool]", vars(options)["validation_wanted"])
    return str(layer()) if wanted() else "off (TOSAVK_VALIDATION)"
