"""The trackers of a run: each is told every event, and none can stop the run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from splitbit_kit.api import Event, SplitbitError, Tracker
from splitbit_kit.formats import durable
from splitbit_kit.registry import Registry, check_options, say
from splitbit_kit.training.config import TrackConfig


class Tracking:
    """A listener that passes events on to the trackers that a run names, between `begin` and exit.

    What a tracker raises is told once and stops neither the run nor the others; the user's Ctrl-C
    goes through. On exit each is closed, once, whatever happened. Raises SplitbitError, before
    anything is written, for a tracker or an option that is not there.
    """

    def __init__(
        self, registry: Registry, config: TrackConfig, notify: Callable[[str], None]
    ) -> None:
        self._registry = registry
        self._options = {name: config.options.get(name, {}) for name in config.names}
        self._notify = notify
        self._complained: set[str] = set()
        self._trackers: dict[str, Tracker] = {}
        for name, options in self._options.items():
            _check(registry, name, options)

    def begin(self, folder: Path) -> None:
        """Build the trackers, each with a folder of its own in this one.

        Raises SplitbitError if one can not be built, as the user asked for it; no folder that was
        made for them is left then.
        """
        # a qualified name has a colon, which not every system takes in a file's name
        owns = {name: folder / name.replace(":", "-") for name in self._options}
        new = [path for path in (folder, *owns.values()) if not path.exists()]
        try:
            for name, options in self._options.items():
                durable.make_folder(owns[name])
                tracker = self._registry.build("tracker", name, owns[name], **options)
                self._trackers[name] = tracker
        except BaseException:
            self._close()  # those before it; some systems do not delete what is open
            for path in new:
                shutil.rmtree(path, ignore_errors=True)
            raise

    def __call__(self, event: Event) -> None:
        """Pass an event on."""
        for name, tracker in self._trackers.items():
            self._guarded(name, tracker.event, event)

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        with ExitStack() as stack:  # the others are closed even if Ctrl-C comes through one
            while self._trackers:
                name, tracker = self._trackers.popitem()
                stack.callback(self._guarded, name, tracker.close)

    def _guarded(self, name: str, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a tracker does not end a run
            if name not in self._complained:
                self._complained.add(name)
                self._notify(f"tracker {name}: {say(error)}; the run goes on")


def _check(registry: Registry, name: str, options: Mapping[str, Any]) -> None:
    try:
        offer = registry.offer("tracker", name)
    except SplitbitError as error:
        raise type(error)(f"{error}; --set track.names=[] trains without trackers") from None
    check_options(f"tracker {name}", offer, options)
