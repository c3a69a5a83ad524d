"""A browser that is driven over its DevTools pipe: real keys, real pixels."""

import base64
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.browser import find_browser

_KEYS = {
    "Tab": (9, "Tab", ""),
    "Enter": (13, "Enter", "\r"),
    " ": (32, "Space", " "),
}
_LIMIT_S = 60.0
# Puts the pipes where the browser looks for them.
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One page in a headless browser. Use it as a context manager.

    Args:
        profile: a folder for the browser's own files.
        width: of the window, in pixels.
        height: of the window.
    """

    def __init__(self, profile: Path, *, width: int = 1200, height: int = 900) -> None:
        program = find_browser()
        assert program is not None
        down, self._down = os.pipe()
        self._up, up = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _LAUNCH,
                str(down),
                str(up),
                program,
                "--headless=new",
                "--no-sandbox",  # root has no other way, and the page is our own
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            pass_fds=(down, up),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down)
        os.close(up)
        self._received = b""
        self._number = 0
        self._session: str | None = None
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        attached = self._call(
            "Target.attachToTarget", targetId=page["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        self._call("Page.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, file: Path) -> None:
        """Opens a file and waits until it is there."""
        self._call("Page.navigate", url=file.resolve().as_uri())
        deadline = time.monotonic() + _LIMIT_S
        while self.ask("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < deadline, "the page does not load"
            time.sleep(0.02)

    def ask(self, expression: str) -> Any:  # noqa: ANN401 - what JavaScript has
        """The value of a JavaScript expression."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key: "Tab", "Enter" or " "."""
        code, name, text = _KEYS[key]
        down: dict[str, Any] = {"key": key, "code": name, "windowsVirtualKeyCode": code}
        if text:
            down["text"] = text
        self._call("Input.dispatchKeyEvent", type="keyDown", **down)
        self._call(
            "Input.dispatchKeyEvent",
            type="keyUp",
            key=key,
            code=name,
            windowsVirtualKeyCode=code,
        )

    def picture(self, *, height: int, scale: float = 1.0) -> bytes:
        """The upper part of the page as PNG."""
        width = self.ask("innerWidth")
        answer = self._call(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": width, "height": height, "scale": scale},
        )
        return base64.b64decode(answer["data"])

    def close(self) -> None:
        """Ends the browser."""
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self._call("Browser.close")
        for descriptor in (self._down, self._up):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method}
        message["params"] = parameters
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._down, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _LIMIT_S
        while True:
            while b"\0" in self._received:
                line, _, self._received = self._received.partition(b"\0")
                answer: dict[str, Any] = json.loads(line)
                if answer.get("id") == self._number:
                    assert "error" not in answer, answer
                    result: dict[str, Any] = answer["result"]
                    return result
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._up], [], [], max(0.0, left))
            assert ready, f"no answer to {method}"
            data = os.read(self._up, 1 << 16)
            assert data, "the browser has ended"
            self._received += data
