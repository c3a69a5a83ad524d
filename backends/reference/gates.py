"""Gates of the reference: a counter that the worker thread waits for."""

from __future__ import annotations

import threading

from tosavk.core.descriptors import U64_MAX


class ReferenceGate:
    """`core.device.DeviceGate`.

    Attributes:
        max_difference: values may be any distance apart.
    """

    max_difference = U64_MAX

    def __init__(self) -> None:
        """A counter at 0."""
        self._changed = threading.Condition()
        self._value = 0

    def signal(self, value: int) -> None:
        """Raises the counter; called in any thread."""
        with self._changed:
            self._value = value
            self._changed.notify_all()

    def wait(self, value: int) -> None:
        """Returns when the counter has reached `value`; called by the worker."""
        with self._changed:
            self._changed.wait_for(lambda: self._value >= value)

    def free(self) -> None:
        """Nothing is kept."""
