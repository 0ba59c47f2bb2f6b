"""A Chromium without a window, spoken to by its DevTools protocol over two pipes.

https://chromedevtools.github.io/devtools-protocol; messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
]
PATIENCE = 60.0  # seconds for one answer, on a busy machine


def chromium() -> str | None:
    """Return where Chromium is, None if it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one tab. Everything it reported since `open` stands in `events`."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers = to, answers
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to one call. Raises AssertionError if it is an error."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, page: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Load a file in a window of that size, in CSS pixels."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.seen("Page.loadEventFired"):
            self.events.append(self._receive())

    def seen(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of all events of a kind since `open`."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def evaluate(self, expression: str) -> Any:
        """Return the value of some JavaScript; the page's own policy does not apply to it."""
        how = {"returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> bytes:
        """Return the whole page as a PNG, and write it."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        data = base64.b64decode(shot["data"])
        path.write_bytes(data)
        return data

    def press(self, key: str) -> None:
        """Press and let go of a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def point(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 2**16)
            assert data, "the browser is gone"
            self._pending += data
        message, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def browser(command: str, profile: Path) -> Iterator[Browser]:
    """Give a running browser with a profile of its own; it ends with the block."""
    read_by_it, to = os.pipe()
    answers, written_by_it = os.pipe()

    def as_three_and_four() -> None:  # the descriptors that the flag means
        # first out of the way: one of them may be 3 or 4 itself
        a, b = (os.dup(fd) for fd in (read_by_it, written_by_it))
        os.dup2(a, 3)
        os.dup2(b, 4)

    process = subprocess.Popen(
        [command, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=as_three_and_four,
    )
    os.close(read_by_it)
    os.close(written_by_it)
    try:
        yield Browser(to, answers)
    finally:
        os.close(to)  # that ends it
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(answers)
