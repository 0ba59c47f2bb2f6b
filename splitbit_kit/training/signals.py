"""A first Ctrl-C or SIGTERM asks a run to stop; a second one ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130


@contextmanager
def stop_requests(notify: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether a stop was asked for.

    Outside the main thread, where Python sets no handlers, the answer is always no.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(EXIT_CODE)  # the last checkpoint is whole: it got its name only when it was
        asked.set()
        notify("stopping after this step, saving first; once more to leave at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
