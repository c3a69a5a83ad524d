"""Guards: who uses a buffer or a program, as one counter.

A submission takes its guards when it is admitted and drops them when somebody observes
that it ended, never earlier. Source: docs/accelerator.md, "In flight until observed".
"""

from __future__ import annotations

# The counter stays below 2**30, where Python's integers are one digit and fast. Readers
# cannot reach WRITER: a context has 64 submissions of at most 256 bindings.
WRITER = 1 << 28
DEAD = 1 << 29


class Guard:
    """The state of one buffer or program.

    Attributes:
        state: 0 idle; 1.. the number of submissions that read; WRITER one that writes;
            with DEAD added once the thing is gone, so that nothing takes it again.
        prepared: live prepared submissions that name it.
    """

    __slots__ = ("prepared", "state")

    def __init__(self) -> None:
        """An idle guard."""
        self.state = 0
        self.prepared = 0


def conflict(
    reads: tuple[Guard, ...], writes: tuple[Guard, ...], order: tuple[Guard, ...]
) -> int | None:
    """Position in `order` of the first guard that cannot be taken, or None.

    A writer needs an idle guard; a reader needs one without a writer.
    """
    for guard in reads:
        if guard.state >= WRITER:
            break
    else:
        for guard in writes:
            if guard.state:
                break
        else:
            return None
    for position, guard in enumerate(order):
        if guard.state if guard in writes else guard.state >= WRITER:
            return position
    return len(order)


def take(reads: tuple[Guard, ...], writes: tuple[Guard, ...]) -> None:
    """Takes guards that do not conflict."""
    for guard in reads:
        guard.state += 1
    for guard in writes:
        guard.state += WRITER


def drop(reads: tuple[Guard, ...], writes: tuple[Guard, ...]) -> None:
    """Gives taken guards back; a DEAD mark stays."""
    for guard in reads:
        guard.state -= 1
    for guard in writes:
        guard.state -= WRITER
