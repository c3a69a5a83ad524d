"""The Vulkan validation layer: which one there is, and its messages."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tosavk.backends.vulkan.layers import Layer

MODULE = "tosavk.backends.vulkan.validation"


def take_messages() -> list[str]:
    """Returns the messages collected since the last call.

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
    """Whether the layer is one of Vulkan 1.4.

    Those look across submissions, and follow semaphores that other threads raise.
    """
    found = layer()
    return found is not None and found.version >= (1 << 22) | (4 << 12)


def in_use() -> str:
    """Says what has validated the tests, or ""; imports nothing."""
    options = sys.modules.get("tosavk.backends.vulkan.options")
    if options is None or MODULE not in sys.modules:
        return ""
    wanted = cast("Callable[[], bool]", vars(options)["validation_wanted"])
    return str(layer()) if wanted() else "off (TOSAVK_VALIDATION)"
