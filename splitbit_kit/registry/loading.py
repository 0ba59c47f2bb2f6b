"""Loads plugins, each by itself. The one user of `pluggy.PluginManager`."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pluggy

from splitbit_kit._metadata import EntryPoint
from splitbit_kit.api import hookspecs
from splitbit_kit.registry.contract import (
    HOOKS,
    check_hook,
    check_some_hook,
    check_version,
    offers_of,
    verdict,
)
from splitbit_kit.registry.isolation import captured, interrupts
from splitbit_kit.registry.selection import DISTRIBUTION, PluginOptions

SLOW_SECONDS = 0.5
"""A plugin that takes longer to load is listed with the time it took."""


@dataclass(frozen=True)
class Plugin:
    """An entry point of a plugin, and what became of it."""

    entry: EntryPoint
    status: str = "ok"
    reason: str = ""
    detail: str = ""
    """what the plugin printed while it loaded, and the traceback if it failed"""
    offers: tuple[tuple[str, Any], ...] = ()
    """(kind, offer)"""
    hooks: Mapping[str, pluggy.HookCaller] = field(default_factory=dict)
    """by name, what calls the plugin's implementation of a hook"""


def load_all(options: PluginOptions, entries: Sequence[EntryPoint]) -> tuple[Plugin, ...]:
    """Return what becomes of each plugin: ours first, the others by name, wherever they are.

    Raises KeyboardInterrupt if the user presses Ctrl-C; what a plugin raises stays with the plugin.
    """

    def order(entry: EntryPoint) -> tuple[Any, ...]:
        theirs = entry.distribution != DISTRIBUTION
        return theirs, entry.distribution, entry.name, bool(entry.shadowed_by)

    plugins: list[Plugin] = []
    with interrupts() as interrupted:
        for entry in sorted(entries, key=order):
            status, reason = options.standing(entry)
            plugins.append(_load(entry) if status == "ok" else Plugin(entry, status, reason))
            if interrupted.is_set():
                raise KeyboardInterrupt
    return tuple(plugins)


def _load(entry: EntryPoint) -> Plugin:
    started = time.perf_counter()
    with captured() as output:
        try:
            plugin = entry.load()
            check_version(plugin)
            hooks = _hooks(plugin)
            offers = offers_of(entry.name, hooks)
        except BaseException as error:
            status, reason = verdict(error)
            detail = _text(output) + "".join(traceback.format_exception(error))
            return Plugin(entry, status, reason, detail)
    seconds = time.perf_counter() - started
    slow = f"slow: {seconds:.1f} s to load" if seconds > SLOW_SECONDS else ""
    return Plugin(entry, "ok", slow, _text(output), offers, hooks)


def _text(output: bytearray) -> str:
    return output.decode("utf-8", "replace")


def _hooks(plugin: Any) -> dict[str, pluggy.HookCaller]:
    """Return by name what calls each hook that a plugin has. Raises Refused for a bad hook."""
    manager = pluggy.PluginManager("splitbit_kit")  # its own, so that it cannot disturb another
    manager.register(plugin, "plugin")
    hooks = {caller.name: caller for caller in manager.get_hookcallers(plugin) or ()}
    check_some_hook(plugin, hooks)
    for name, caller in hooks.items():
        for own in caller.get_hookimpls():
            if name in HOOKS or not own.optionalhook:
                check_hook(name, own.argnames)
    manager.add_hookspecs(hookspecs)  # only now, since our complaints read better than pluggy's
    return hooks
