"""What holds for the whole command line, wherever on it it was said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitbit_kit._metadata import EntryPoint
    from splitbit_kit.registry import PluginOptions, Registry

VERBS = (
    "train",
    "generate",
    "eval",
    "report",
    "probe",
    "data",
    "tokenizer",
    "bench",
    "list-plugins",
)
"""Ours, in the order of the help text; verb a-b is `command` in the file a_b.py beside this one, or
in a folder a_b that has a file for each of its own verbs."""


@dataclass(frozen=True)
class Settings:
    """Which plugins may load, so far as the command line says."""

    without: tuple[str, ...] = ()
    third_party: bool = True

    def registry(self, notify: Callable[[str], None]) -> Registry:
        """Return the plugins, loaded. notify is told when one of them fails later."""
        from splitbit_kit.registry import Registry

        return Registry(self._plugin_options(), verbs=VERBS, notify=notify)

    @cached_property
    def foreign_verbs(self) -> dict[str, EntryPoint]:
        """Return the verbs of other distributions, by name, without importing them."""
        from splitbit_kit import _metadata

        if all(entry.group != _metadata.COMMANDS for entry in _metadata.entry_points()):
            return {}  # without the registry, and so without NumPy
        from splitbit_kit.registry import commands

        return commands(self._plugin_options(), verbs=VERBS)

    def _plugin_options(self) -> PluginOptions:
        from splitbit_kit.registry import PluginOptions

        return PluginOptions(self.without, self.third_party)


def take_debug(argv: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether --debug stands before any `--`, and the arguments without it."""
    end = argv.index("--") if "--" in argv else len(argv)
    rest = [word for word in argv[:end] if word != "--debug"]
    return len(rest) < end, [*rest, *argv[end:]]


def take_plugin_options(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return the settings, and the arguments without `-p no:NAME`, `-pno:NAME`, `--no-plugins`.

    Click would take an option of the program that stands after a verb for an option of the verb; so
    these are taken out before it looks, wherever they stand before a `--`. Another option's value
    that is `-p` must be written as --option=-p. Raises UsageError for a `-p` without no:NAME.
    """
    without: list[str] = []
    third_party = True
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == "--no-plugins":
            third_party = False
        elif word == "-p" or word.startswith("-pno:"):
            without.append(_left_out(word.removeprefix("-p") or next(words, "")))
        else:
            rest.append(word)
    return Settings(tuple(without), third_party), rest


def _left_out(value: str) -> str:
    no, _, name = value.partition(":")
    if no == "no" and name.strip():
        return name.strip()
    from splitbit_kit.api import UsageError

    raise UsageError(f"-p {value}: expected no:NAME, which leaves plugin NAME out")
