"""The thread that evaluates submissions: one a device, in the order of launches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Worker:
    """Runs jobs one after the other in a thread of its own.

    The thread is started by the first job and is a daemon, so that an evaluation that
    takes long does not keep the interpreter from ending.
    """

    def __init__(self) -> None:
        """A worker without a thread yet."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle = threading.Condition()
        self._pending = 0
        self._abandoned = False

    def submit(self, job: Callable[[], None]) -> None:
        """Queues a job, which must not raise; never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="tosavk-reference", daemon=True
            )
            self._thread.start()
        with self._idle:
            self._pending += 1
        self._jobs.put(job)

    def wait_idle(self) -> None:
        """Returns when every job has ended, or the worker was abandoned."""
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0 or self._abandoned)

    def abandon(self) -> None:
        """Nobody waits for the jobs any more."""
        with self._idle:
            self._abandoned = True
            self._idle.notify_all()

    def close(self) -> None:
        """Ends the thread after the jobs that are queued; waits unless abandoned."""
        if self._thread is not None:
            self._jobs.put(None)
            if not self._abandoned:
                self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            finally:
                del job
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()
