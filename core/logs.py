"""Log records without importing `logging` at start-up, which takes 3 ms."""

from __future__ import annotations

import sys


def debug(logger: str, message: str, *values: object) -> None:
    """Logs for debugging; only where something else has imported `logging`.

    As long as nobody has, nobody can have asked for these records.
    """
    if "logging" in sys.modules:
        import logging

        logging.getLogger(logger).debug(message, *values, stacklevel=2)


def warning(logger: str, message: str, *values: object, exc_info: bool = False) -> None:
    """Logs a warning."""
    import logging

    logging.getLogger(logger).warning(message, *values, exc_info=exc_info, stacklevel=2)
