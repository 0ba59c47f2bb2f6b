"""Which plugins may load, by the command line, the environment and the place they were found in.

The words of the command line are taken apart in `cli/settings.py`; here they are reasons.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from splitbit_kit._metadata import EntryPoint, normalized
from splitbit_kit.api import UsageError
from splitbit_kit.registry.wording import nearest

DISTRIBUTION = "splitbit-kit"
"""Our own distribution. Every plugin of another is third-party."""


def named_in_environment() -> tuple[str, ...] | None:
    """Return the names in SPLITBIT_PLUGINS, or None if it is not set."""
    listed = os.environ.get("SPLITBIT_PLUGINS")
    if listed is None:
        return None
    return tuple(name.strip() for name in listed.split(",") if name.strip())


@dataclass(frozen=True)
class PluginOptions:
    """Which plugins may load: names are those of plugins, of distributions, or DISTRIBUTION:PLUGIN.

    Where nothing is said, all may that the environment allows.
    """

    disabled: tuple[str, ...] = ()
    third_party: bool = True
    only: tuple[str, ...] | None = field(default_factory=named_in_environment)
    """of the third-party ones, only these; None for all"""

    def standing(self, entry: EntryPoint) -> tuple[str, str]:
        """Return ("ok", "") if the entry point may be imported; else another status, and why."""
        if reason := self._reason_against(entry):
            return "disabled", reason
        if entry.shadowed_by:
            return "duplicate", (
                f"{entry.distribution} is in {entry.shadowed_by} too, which comes first and is"
                " used; remove one of the two"
            )
        return "ok", ""

    def _reason_against(self, entry: EntryPoint) -> str:
        for name in self.disabled:
            if _means(name, entry):
                return f"-p no:{name}"
        if entry.distribution == DISTRIBUTION:
            return ""
        if not self.third_party:
            return "--no-plugins"
        if self.only is not None and not any(_means(name, entry) for name in self.only):
            return "SPLITBIT_PLUGINS does not name it"
        return ""

    def check(self, entries: Sequence[EntryPoint]) -> None:
        """Raise UsageError for a name that means none of the entry points."""
        known = {name for entry in entries for name in (entry.name, entry.distribution)}
        for where, names in (("-p no:", self.disabled), ("SPLITBIT_PLUGINS: ", self.only or ())):
            for name in names:
                if not any(_means(name, entry) for entry in entries):
                    raise UsageError(
                        f"{where}{name}: there is no such plugin{nearest(name, known)}"
                    )


def _means(name: str, entry: EntryPoint) -> bool:
    return name in (entry.name, f"{entry.distribution}:{entry.name}") or (
        normalized(name) == entry.distribution
    )
