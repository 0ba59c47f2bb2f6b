"""What holds for the whole command line, wherever on it it was said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitbit_kit._metadata import EntryPoint
    from splitbit_kit.registry import PluginOptions, Registry

VERBS = ("train", "generate", "eval", "list-plugins")
"""Ours, in the order of the help text; verb a-b is `command` in the file a_b.py beside this one."""


@dataclass(frozen=True)
class Settings:
    """Which plugins may load: None if the command line does not say."""

    plugins: PluginOptions | None = None

    def registry(self, notify: Callable[[str], None]) -> Registry:
        """Return the plugins, loaded. notify is told when one of them fails later."""
        from splitbit_kit.registry import Registry

        return Registry(self.plugins, verbs=VERBS, notify=notify)

    @cached_property
    def foreign_verbs(self) -> dict[str, EntryPoint]:
        """Return the verbs of other distributions, by name, without importing them."""
        from splitbit_kit import _metadata

        if all(entry.group != _metadata.COMMANDS for entry in _metadata.entry_points()):
            return {}  # without the registry, and so without NumPy
        from splitbit_kit.registry import commands

        return commands(self.plugins, verbs=VERBS)


def take_debug(argv: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether --debug stands before any `--`, and the arguments without it."""
    end = argv.index("--") if "--" in argv else len(argv)
    rest = [word for word in argv[:end] if word != "--debug"]
    return len(rest) < end, [*rest, *argv[end:]]


def take_plugin_options(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return the settings, and the arguments without those that choose plugins.

    Click would take an option of the program that stands after a verb for an option of the verb; so
    these are taken out before it looks. Raises UsageError for a bad one.
    """
    if not any(word == "--no-plugins" or word.startswith("-p") for word in argv):
        return Settings(), list(argv)
    from splitbit_kit.registry import split_plugin_options

    plugins, rest = split_plugin_options(argv)
    return Settings(plugins), rest
