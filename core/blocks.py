"""The `with` block of handles that submissions can use."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from tosavk.core.errors import Busy

if TYPE_CHECKING:
    from types import TracebackType

    from tosavk.core.scope import Scope


class Releasing:
    """A context manager: leaving the block releases the handle.

    If the block is left by an exception while the handle is in use, it lives on until
    its users end.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _scope: Scope

        @property
        def is_released(self) -> bool:
            """Whether the handle has been released."""
            ...

        def release(self) -> None:
            """Releases the handle."""

    def __enter__(self) -> Self:
        """The handle itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases the handle unless that has been done."""
        if not self.is_released and not self._scope.shared.forked:
            with suppress(*((Busy,) if error is not None else ())):
                self.release()
