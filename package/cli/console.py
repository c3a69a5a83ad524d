"""Where output goes: tables on standard output, progress on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status


def out() -> Console:
    """Console for results."""
    return Console(highlight=False, soft_wrap=False)


def err() -> Console:
    """Console for progress."""
    return Console(stderr=True, highlight=False)


class Steps:
    """Names the step that is under way; silent unless on a terminal."""

    def __init__(self, console: Console, status: Status | None) -> None:
        self._console = console
        self._status = status

    def __call__(self, text: str) -> None:
        """Shows `text` as the current step."""
        if self._status is not None:
            self._status.update(text)


@contextmanager
def steps(first: str) -> Iterator[Steps]:
    """Progress of long work on a terminal; nothing in a pipe."""
    console = err()
    if not console.is_terminal:
        yield Steps(console, None)
        return
    with console.status(first) as status:
        yield Steps(console, status)
