"""The registry: what the installed plugins offer, by kind and name, and whom to tell of events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from splitbit_kit import _metadata
from splitbit_kit._metadata import EntryPoint, normalized
from splitbit_kit.api import Event, Hardware, SplitbitError, UsageError
from splitbit_kit.registry.claims import Claim, claims_of
from splitbit_kit.registry.commands import command_claims
from splitbit_kit.registry.contract import EVENT_HOOKS, KINDS
from splitbit_kit.registry.hardware import plain_hardware
from splitbit_kit.registry.listing import Row, offer_row, plugin_row
from splitbit_kit.registry.loading import Plugin, load_all
from splitbit_kit.registry.options import check_options
from splitbit_kit.registry.selection import DISTRIBUTION, PluginOptions
from splitbit_kit.registry.wording import nearest, say


class Registry:
    """What the installed plugins offer, by kind and name. All are loaded at once, here.

    options: which may load; None reads the environment. extra: objects to use as plugins, by name,
    as if a distribution called "local" had brought them. verbs: names of commands that are taken.
    path: where to look for distributions, sys.path by default. notify: told one line about a hook
    that raises, later. Raises UsageError for an option that means no plugin.
    """

    def __init__(
        self,
        options: PluginOptions | None = None,
        *,
        extra: Mapping[str, object] | None = None,
        verbs: Collection[str] = (),
        path: Sequence[str] | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        options = options or PluginOptions()
        local = [_local(name, plugin) for name, plugin in (extra or {}).items()]
        entries = (*_metadata.entry_points(path), *local)
        options.check(entries)
        self._notify = notify or _to_stderr
        self._complained: set[str] = set()
        self.plugins = load_all(options, [e for e in entries if e.group == _metadata.PLUGINS])
        """Every plugin that was found, in the order of loading."""
        self.installed = any(entry.distribution == DISTRIBUTION for entry in entries)
        """Whether our own distribution is installed; without it our plugins are not found."""
        self._claims = {kind: claims_of(kind, self.plugins) for kind in KINDS}
        self._claims["command"] = command_claims(options, entries, verbs)

    # ---- offers

    def names(self, kind: str) -> list[str]:
        """Return the usable names, sorted: plain, or `distribution:name` where two claim one."""
        return sorted(claim.usable_name for claim in self._of(kind) if claim.usable)

    def offer(self, kind: str, name: str) -> Any:
        """Return an offer by name or by `distribution:name`.

        Raises UsageError if there is none, or if two distributions claim the name; SplitbitError if
        it cannot be used here.
        """
        return self._claim(kind, name).offer

    def distribution(self, kind: str, name: str) -> str:
        """Return the distribution that brings an offer. Raises as `offer` does."""
        return self._claim(kind, name).entry.distribution

    def build(self, kind: str, name: str, /, *args: Any, **options: Any) -> Any:
        """Return what an offer builds. Options are checked by name, and by type where it is plain.

        Raises UsageError where they do not fit (a ValueError of the plugin is taken for that), and
        SplitbitError for anything else that the plugin raises.
        """
        claim = self._claim(kind, name)
        check_options(f"{kind} {name}", claim.offer, options)
        try:
            return claim.offer.build(*args, **options)
        except (SplitbitError, KeyboardInterrupt):
            raise
        except ValueError as error:
            raise UsageError(f"{kind} {name}: {error}") from error
        except BaseException as error:
            raise SplitbitError(
                f"{kind} {name}: plugin {claim.entry.name} of {claim.entry.distribution}"
                f" failed: {say(error)}"
            ) from error

    def listing(self, kind: str | None = None) -> list[Row]:
        """Return rows of one kind or, sorted by kind and name, of all.

        Among all, a plugin has a row of its own only if there is something to say of it: it did not
        load, it is slow, or it offers nothing by name. Kind "plugin" lists every plugin.
        """
        if kind == "plugin":
            return [plugin_row(plugin) for plugin in self.plugins]
        rows = [
            offer_row(each, claim)
            for each in (KINDS if kind is None else (kind,))
            for claim in sorted(self._of(each), key=lambda claim: (claim.name, claim.qualified))
        ]
        if kind is None:
            rows += [plugin_row(p) for p in self.plugins if p.reason or not p.offers]
        return rows

    def _of(self, kind: str) -> Sequence[Claim]:
        if kind not in self._claims:
            known = (*KINDS, "plugin")
            raise UsageError(f"kind {kind}: there is no such kind{nearest(kind, known)}")
        return self._claims[kind]

    def _claim(self, kind: str, name: str) -> Claim:
        """Return the usable claim of a plain or qualified name, or raise as `offer` says."""
        owner, _, plain = name.rpartition(":")
        owner = normalized(owner)
        found = [
            claim
            for claim in self._of(kind)
            if claim.name == plain and owner in ("", claim.entry.distribution)
        ]
        if not found:
            raise self._unknown(kind, name)
        contested = [claim for claim in found if claim.status == "conflict"]
        if contested and not owner:
            raise UsageError(f"{kind} {name}: {contested[0].reason}")
        claim = next((claim for claim in found if claim.usable), found[0])
        if not claim.usable:
            raise SplitbitError(f"{kind} {name} is {claim.status}: {claim.reason}")
        return claim

    def _unknown(self, kind: str, name: str) -> SplitbitError:
        if not self.installed:
            return SplitbitError(
                f"{kind} {name}: {DISTRIBUTION} is not installed, so its plugins cannot be found;"
                " run pip install -e . in its folder"
            )
        lost = [plugin.entry.name for plugin in self.plugins if plugin.status != "ok"]
        aside = f" (not loaded: {', '.join(lost)}; see {DISTRIBUTION} list-plugins)" if lost else ""
        return UsageError(
            f"{kind} {name}: there is no such {kind}{nearest(name, self.names(kind))}{aside}"
        )

    # ---- hooks

    def event(self, event: Event) -> None:
        """Pass an event on to every plugin that has its hook.

        One that raises is reported, the first time, and stops neither the others nor the run.
        """
        hook = EVENT_HOOKS[type(event)]
        for plugin in self._asked(hook):
            self._call(plugin, hook, event=event)

    def probe(self) -> Hardware:
        """Return what the first probe to answer says of the machine. It is asked once.

        One that raises is reported and passed over. Without an answer, what the standard library
        knows has to do.
        """
        return self._hardware

    @cached_property
    def _hardware(self) -> Hardware:
        for plugin in self._asked("probe_hardware"):
            found = self._call(plugin, "probe_hardware")
            if isinstance(found, Hardware):
                return found
            if found is not None:
                said = f"it returned {type(found).__name__}, not Hardware"
                self._complain(plugin, "probe_hardware", said)
        return plain_hardware()

    def _asked(self, hook: str) -> Sequence[Plugin]:
        """Return the plugins that have the hook in pluggy's order: tryfirst, then the last loaded.

        Ours were loaded first, so that a stranger's goes before them.
        """

        def rank(plugin: Plugin) -> int:
            return sum(own.trylast - own.tryfirst for own in plugin.hooks[hook].get_hookimpls())

        return sorted((p for p in reversed(self.plugins) if hook in p.hooks), key=rank)

    def _call(self, plugin: Plugin, hook: str, **arguments: Any) -> Any:
        """Return what a plugin's hook answers; None if it raises, which is reported."""
        try:
            return plugin.hooks[hook](**arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._complain(plugin, hook, say(error))
            return None

    def _complain(self, plugin: Plugin, hook: str, what: str) -> None:
        line = f"plugin {plugin.entry.name} of {plugin.entry.distribution}, hook {hook}"
        if line not in self._complained:
            self._complained.add(line)
            self._notify(f"{line}: {what}")


def _local(name: str, plugin: object) -> EntryPoint:
    return EntryPoint(_metadata.PLUGINS, name, "local", "", "this process", lambda: plugin)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
