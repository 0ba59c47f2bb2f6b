"""What goes on around a plugin while it loads: its output is kept, the user's Ctrl-C is noticed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import RawIOBase, TextIOWrapper, UnsupportedOperation
from types import FrameType
from typing import Any, TextIO, cast


@contextmanager
def captured() -> Iterator[bytearray]:
    """Take what is printed meanwhile, in the order of printing, as UTF-8."""
    kept = bytearray()
    out, err = _Capture("stdout", kept), _Capture("stderr", kept)
    try:
        with redirect_stdout(_stream(out)), redirect_stderr(_stream(err)):
            yield kept
    finally:
        out.kept = err.kept = None


class _Capture(RawIOBase):
    """Keeps what is written; once `kept` is None, passes it on to the real stream.

    A plugin may hold on to it, as a logging handler does with sys.stderr.
    """

    def __init__(self, name: str, kept: bytearray) -> None:
        self.kept: bytearray | None = kept
        self._name = name
        self._behind: TextIO | None = getattr(sys, name)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._behind is None:
            raise UnsupportedOperation("fileno")
        return self._behind.fileno()

    def write(self, data: Any) -> int:
        if self.kept is not None:
            self.kept += data
        elif stream := getattr(sys, self._name):
            stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)


def _stream(raw: _Capture) -> TextIOWrapper:
    return TextIOWrapper(cast(Any, raw), "utf-8", "replace", write_through=True)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Yield an event that is set once the user presses Ctrl-C, which no plugin can pretend."""
    pressed = threading.Event()
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield pressed
        return

    def note(number: int, frame: FrameType | None) -> None:
        pressed.set()
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, handler)
