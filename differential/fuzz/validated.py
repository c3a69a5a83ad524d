"""Synchronization validation of a sample of programs.

The same plans are recorded and run once more on the same device, opened a second time
with the Khronos validation layer, whose synchronization validation follows every access
of a command buffer. What it says is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tosavk.backends.registry import parse_spec
from tosavk.backends.session import Session
from tosavk.core.accelerator import Accelerator
from tosavk.core.errors import InitError
from tosavk.core.plan import Numerics
from tosavk.lowering.lower import Lowered

VULKAN = "vulkan"
EVERY = 20
"""A program of so many is validated."""


class Validated:
    """A Vulkan device with the validation layer, opened when it is first needed.

    Args:
        spec: the specification of the device.
        numerics: mode.

    Attributes:
        missing: why there is none, or "".
    """

    def __init__(self, spec: str, numerics: Numerics) -> None:
        """Opens nothing yet."""
        self._spec = spec
        self._numerics = numerics
        self._accelerator: Accelerator | None = None
        self.missing = ""

    @property
    def is_open(self) -> bool:
        """Whether the device is open."""
        return self._accelerator is not None

    def complaints(
        self, lowered: Lowered, samples: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Runs a program; what the layer says of it, one line for each message.

        Raises:
            ModelError: the device refuses the program.
        """
        from tosavk.backends.vulkan.validation import validation_messages

        if not self._open():
            return []
        assert self._accelerator is not None
        validation_messages()
        with Session(self._accelerator, lowered) as session:
            for sample in samples:
                session.run(dict(sample))
        return [
            f"{m.name}: {' '.join(m.text.split())[:400]}" for m in validation_messages()
        ]

    def close(self) -> None:
        """Closes the device."""
        if self._accelerator is not None:
            self._accelerator.close()
            self._accelerator = None

    def _open(self) -> bool:
        if self._accelerator is None and not self.missing:
            from tosavk.backends.vulkan.device import open_with
            from tosavk.backends.vulkan.options import VulkanOptions

            selector = parse_spec(self._spec)[1]
            options = VulkanOptions(validation=True, numerics=self._numerics)
            try:
                self._accelerator = Accelerator(open_with(None, selector, options))
            except InitError as error:
                self.missing = str(error)
        return self._accelerator is not None
