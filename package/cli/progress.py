"""Progress on standard error; the first result does not wait for what draws it."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status


def printable(text: object) -> str:
    """A text from a file, without what could steer a terminal."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in str(text)
    )


class Steps:
    """Names the step that is under way; silent unless on a terminal.

    Args:
        status: what shows it, or None.
    """

    def __init__(self, status: Status | None) -> None:
        """Steps shown by `status`."""
        self._status = status

    def __call__(self, text: str) -> None:
        """Shows `text` as the current step."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(printable(text)))


@contextmanager
def steps(first: str) -> Generator[Steps]:
    """Progress of long work on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield Steps(None)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with console.status(Text(first)) as status:
        yield Steps(status)
