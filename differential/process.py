"""A process that answers questions, and how it ended if it did not.

Questions and answers are one line of JSON each, so that nothing of what a process says
is ever executed. A driver that aborts, hangs or takes all memory ends its process only;
`ProcessEnded` says how, with what it wrote to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from tosavk.core.errors import Error
from tosavk.differential.result import Ending, ending_of

Message = dict[str, object]
Progress = Callable[[str], None]

DEFAULT_LIMIT_S = 120.0
"""How long a process may give no sign of life, in seconds."""

_TAIL_BYTES = 4096
_SEARCHED_BYTES = 1 << 16
_STARTING_S = 60.0
_CLOSING_S = 10.0
_OUT_OF_MEMORY = (
    "bad_alloc",
    "MemoryError",
    "memory allocation of",
    "Unable to allocate",
    "out of memory",
    "Out of memory",
    "Cannot allocate memory",
    "cannot allocate memory for thread-local data",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_DEVICE_MEMORY",
)


class ProcessEnded(Error):
    """A process gave no answer: it ended, hung, or said what is no answer.

    Attributes:
        ending: crashed, hung, out of memory or failed.
        stderr: the end of what it wrote to standard error.
    """

    def __init__(self, ending: Ending, text: str, stderr: str = "") -> None:
        """How it ended, in one line, and its last words."""
        super().__init__(text)
        self.ending = ending
        self.stderr = stderr


class Refused(Error):
    """A process answered that it could not do what was asked; it goes on living.

    Attributes:
        ending: what that means for the backend in it.
        kind: name of the error's class.
    """

    def __init__(self, ending: Ending, kind: str, text: str) -> None:
        """An error of the process, as it told it."""
        super().__init__(text)
        self.ending = ending
        self.kind = kind


class Process:
    """A program started as a process of its own, that `answering` runs in.

    Use it as a context manager, or `close` it. The process ends with the one that
    started it, whatever happens to that.

    Args:
        command: the program and its arguments.
        stderr: file for what it writes to standard error.
        limit_s: seconds without a sign of life (an answer or progress) after which it
            is killed; 0 for no limit.
        environment: variables that are set besides.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stderr: Path,
        limit_s: float = DEFAULT_LIMIT_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the program; returns at once."""
        self._stderr = stderr
        self.limit_s = limit_s
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._kills = _oom_kills()
        self._ended: ProcessEnded | None = None
        self._heard = False
        with stderr.open("wb") as errors:
            # A session of its own: an interrupt from the keyboard goes to the one that
            # started it, which closes it.
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        threading.Thread(
            target=_read, args=(self._process.stdout, self._lines), daemon=True
        ).start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def send(self, question: Mapping[str, object]) -> None:
        """Sends a question without waiting; answers come in the order of questions.

        Raises:
            ProcessEnded: nobody is there to take it.
        """
        if self._ended is not None:
            raise self._ended
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._end() from None

    def receive(self, progress: Progress = lambda _: None) -> Message:
        """Waits for the next answer.

        Args:
            progress: told what the process says it is doing.

        Raises:
            ProcessEnded: it ended, or gave no sign of life for `limit_s` seconds; then
                it has been killed.
            Refused: it could not do what was asked.
        """
        if self._ended is not None:
            raise self._ended
        doing = "starting"
        while True:
            limit = self.limit_s
            if limit and not self._heard:
                # An interpreter that starts on a busy machine is no driver that hangs.
                limit = max(limit, _STARTING_S)
            try:
                line = self._lines.get(timeout=limit or None)
            except queue.Empty:
                raise self._hang(doing, limit) from None
            self._heard = True
            message = None if line is None else _parsed(line)
            if message is None:
                raise self._end()
            if "progress" in message:
                doing = str(message["progress"])
                progress(doing)
            elif "error" in message:
                error = cast("Message", message["error"])
                raise Refused(
                    Ending(str(error["ending"])), str(error["kind"]), str(error["text"])
                )
            else:
                return message

    def ask(
        self, question: Mapping[str, object], progress: Progress = lambda _: None
    ) -> Message:
        """Sends a question and waits for its answer; raises as both do."""
        self.send(question)
        return self.receive(progress)

    def dismiss(self) -> None:
        """Tells the process to end, without waiting; `close` waits."""
        if self._process.stdin is not None:
            # Also flushes, which fails when nobody is there any more.
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def close(self) -> ProcessEnded | None:
        """Ends the process; again is fine.

        Returns:
            How it ended, where that was not as it should: it crashed or hung in the
            driver while giving everything back.
        """
        if self._ended is not None:
            return self._ended
        self.dismiss()
        limit = min(self.limit_s or _CLOSING_S, _CLOSING_S)
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            return self._hang("closing the device", limit)
        return self._end() if code else None

    def kill(self) -> None:
        """Ends the process by force, with what it started."""
        if os.name == "posix":
            # The group outlives the process as long as something of it runs.
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        self.dismiss()

    def __enter__(self) -> Self:
        """The process itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the process; by force where an error is under way."""
        if error is not None:
            self.kill()
        self.close()

    def stderr_tail(self) -> str:
        """The end of what it wrote to standard error."""
        return self._written(_TAIL_BYTES)

    def _written(self, most: int) -> str:
        try:
            with self._stderr.open("rb") as file:
                file.seek(max(0, self._stderr.stat().st_size - most))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _hang(self, doing: str, limit: float) -> ProcessEnded:
        self.kill()
        text = f"no sign of life for {limit:g} s while {doing}; it was killed"
        return self._close_with(Ending.HUNG, text)

    def _end(self) -> ProcessEnded:
        """What is known of a process that has ended, or that makes no sense."""
        try:
            code = self._process.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._close_with(Ending.FAILED, "its answer makes no sense")
        how = _how(code)
        # What a driver says last may stand above a long list of Python's frames.
        said = self._written(_SEARCHED_BYTES)
        if any(words in said for words in _OUT_OF_MEMORY):
            return self._close_with(Ending.OUT_OF_MEMORY, f"the process {how}")
        if code == -getattr(signal, "SIGKILL", 9):
            if _oom_kills() > self._kills:
                how += " for want of memory"
                return self._close_with(Ending.OUT_OF_MEMORY, f"the process {how}")
            how += ", as the system does when memory runs out, or a person"
        return self._close_with(Ending.CRASHED, f"the process {how}")

    def _close_with(self, ending: Ending, text: str) -> ProcessEnded:
        self.dismiss()
        self._ended = ProcessEnded(ending, text, self.stderr_tail())
        return self._ended


def answering(answer: Callable[[Message, Progress], Message]) -> None:
    """Answers the questions of `Process` on the standard streams until they end.

    What drivers print to standard output goes to standard error. When the one that asks
    is gone, the process ends at once, also in the middle of an answer.

    Args:
        answer: gives the answer to a question; it may raise, which is told as
            `refusal` says.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    questions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()

    def listen() -> None:
        with os.fdopen(os.dup(0), "rb") as stream:
            for line in stream:
                busy.set()
                questions.put(line)
        if busy.is_set():
            os._exit(1)
        questions.put(None)
        # What gives everything back may hang, with nobody left to notice.
        time.sleep(2 * _CLOSING_S)
        os._exit(1)

    telling = threading.Lock()

    def tell(message: Mapping[str, object]) -> None:
        with telling:
            answers.write(json.dumps(message).encode() + b"\n")
            answers.flush()

    threading.Thread(target=listen, daemon=True).start()
    while (line := questions.get()) is not None:
        try:
            reply = answer(json.loads(line), lambda text: tell({"progress": text}))
        except Exception as error:  # noqa: BLE001 - whatever breaks is told
            reply = {"error": refusal(error)}
        if questions.empty():
            busy.clear()
        tell(reply)


def refusal(error: Exception) -> Message:
    """An error as the data that `Process` raises `Refused` from."""
    return {
        "ending": ending_of(error).value,
        "kind": type(error).__name__,
        "text": str(error),
    }


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _parsed(line: bytes) -> Message | None:
    try:
        message: object = json.loads(line)
    except ValueError:
        return None
    return cast("Message", message) if isinstance(message, dict) else None


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _oom_kills() -> int:
    """How many processes the kernel has ended for want of memory; 0 where unknown."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    words = text.split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
