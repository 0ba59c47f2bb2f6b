"""When and how to say how far a long piece of work is."""

from __future__ import annotations

import time
from collections.abc import Callable

from splitbit_kit.quantities import duration

AFTER = 1.0  # seconds: what is done sooner needs no word


class Paced:
    """A `splitbit_kit.text.progress.Progress` that hands lines on, not too many.

    draw: gets the line and the share. every: seconds between two of them. done: called when a work
    of which something was said is over.
    """

    def __init__(
        self,
        draw: Callable[[str, float], None],
        every: float,
        done: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draw = draw
        self._every = every
        self._done = done
        self._spoke = False
        self._clock = clock
        self._what = ""
        self._begun = self._next = 0.0

    def __call__(self, what: str, share: float) -> None:
        """Say how far it is, if it is time to."""
        now = self._clock()
        if what != self._what:
            self._what, self._begun, self._next = what, now, now + max(AFTER, self._every)
        if share >= 1:
            if self._spoke:
                self._done()
            self._spoke = False
            return
        if now < self._next:
            return
        self._spoke = True
        self._next = now + self._every
        spent = now - self._begun
        left = f", {duration(spent / share - spent)} left" if share > 0 else ""
        self._draw(f"{what}: {share:.0%}{left}", share)
