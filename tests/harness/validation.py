"""The messages of the Vulkan validation layer."""

import sys
from collections.abc import Callable
from typing import cast

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
