"""The reference backend: evaluates the graph itself with NumPy.

It shares no code with the kernels and does not look at plans, so it checks the lowering
as well as the drivers.
"""

from __future__ import annotations

from collections.abc import Collection

from tosavk.backends.reference.device import (
    DeviceListing,
    ReferenceDevice,
    ReferenceOptions,
    listing,
    open_reference,
)
from tosavk.backends.reference.evaluate import (
    Evaluator,
    Note,
    evaluate,
    evaluate_operator,
)
from tosavk.backends.reference.oracle import Expected, expect

__all__ = [
    "Evaluator",
    "Expected",
    "Note",
    "ReferenceOptions",
    "evaluate",
    "evaluate_operator",
    "expect",
    "list_devices",
    "open_device",
]


def list_devices() -> tuple[DeviceListing, ...]:
    """The one device of this backend."""
    return (listing(),)


def open_device(
    selector: str | None = None,
    *,
    options: ReferenceOptions | None = None,
    switches: Collection[str] = (),
) -> ReferenceDevice:
    """Opens the reference device.

    Args:
        selector: None, "0", or a part of its name.
        options: none yet.
        switches: it has nothing that could be left alone.

    Raises:
        DeviceUnavailable: `selector` names another device.
    """
    return open_reference(selector)
