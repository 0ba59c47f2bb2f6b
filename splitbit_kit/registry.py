"""Finds plugins, loads each in isolation, and hands out what they offer.

The one user of `pluggy.PluginManager`. Nothing a plugin does while it loads stops the others: it is
caught, and listed with its reason. Commands are entry points only, and known without loading.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from inspect import Parameter, signature
from io import RawIOBase, TextIOWrapper, UnsupportedOperation
from typing import Any, Literal, TextIO, Union, cast, get_args, get_origin, get_type_hints

import pluggy

from splitbit_kit import _metadata
from splitbit_kit._metadata import EntryPoint, normalized
from splitbit_kit.api import (
    API_VERSION,
    TIERS,
    Event,
    Hardware,
    SplitbitError,
    UsageError,
    hookspecs,
)

DISTRIBUTION = "splitbit-kit"
"""Our own distribution. Every plugin of another is third-party."""

HOOK_PROJECT = "splitbit_kit"
VERSION_ATTRIBUTE = "SPLITBIT_API_VERSION"
"""What a plugin may set to the `API_VERSION` it is written for."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
"""of an offer, or of a distribution that it needs"""

SLOW_SECONDS = 0.5
"""A plugin that takes longer to load is listed with the time it took."""

STATUSES = (
    "ok",
    "unavailable",  # an offer needs a distribution that is not installed
    "disabled",
    "incompatible",  # written for another version of the API
    "duplicate",  # the distribution was found before, further up the path
    "conflict",  # two distributions, one name: usable as distribution:name
    "failed",
)

HOOKS: Mapping[str, Callable[..., Any]] = {
    name: spec for name, spec in vars(hookspecs).items() if hasattr(spec, "splitbit_kit_spec")
}
_TYPES = {name: get_type_hints(spec) for name, spec in HOOKS.items()}
EVENT_HOOKS: Mapping[type, str] = {
    types_["event"]: name for name, types_ in _TYPES.items() if "event" in types_
}
OFFER_TYPES: Mapping[str, type] = {
    name: get_args(types_["return"])[0]
    for name, types_ in _TYPES.items()
    if get_origin(types_["return"]) is Sequence
}
"""hook -> the type of what it returns several of; the kind is the hook's name without its s"""

KINDS = (*(hook.removesuffix("s") for hook in OFFER_TYPES), "probe", "command")


# ---- which plugins may load


@dataclass(frozen=True)
class PluginOptions:
    """Which plugins may load: names are those of plugins or of distributions."""

    disabled: tuple[str, ...] = ()
    third_party: bool = True
    only: tuple[str, ...] | None = None
    """of the third-party ones, only these"""

    @classmethod
    def parse(
        cls,
        values: Sequence[str] = (),
        no_plugins: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> PluginOptions:
        """Return the options that the values of `-p`, --no-plugins and SPLITBIT_PLUGINS mean.

        Raises UsageError for a value that is not no:NAME.
        """
        for value in values:
            if not value.startswith("no:") or not value.removeprefix("no:").strip():
                raise UsageError(f"-p {value}: expected no:NAME, which leaves plugin NAME out")
        listed = environ.get("SPLITBIT_PLUGINS")
        return cls(
            tuple(value.removeprefix("no:").strip() for value in values),
            not no_plugins,
            None if listed is None else tuple(n.strip() for n in listed.split(",") if n.strip()),
        )

    def reason_against(self, entry: EntryPoint) -> str:
        """Say why the entry point may not load, or return an empty string."""
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


def split_plugin_options(
    argv: Sequence[str], environ: Mapping[str, str] = os.environ
) -> tuple[PluginOptions, list[str]]:
    """Take `-p no:NAME`, `-pno:NAME` and `--no-plugins` out of a command line; return the rest too.

    They may stand anywhere before a `--`. Another option's value that is `-p` must be written as
    --option=-p. Raises UsageError for a `-p` without no:NAME.
    """
    values: list[str] = []
    no_plugins = False
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == "--no-plugins":
            no_plugins = True
        elif word == "-p":
            values.append(next(words, ""))
        elif word.startswith("-pno:"):
            values.append(word.removeprefix("-p"))
        else:
            rest.append(word)
    return PluginOptions.parse(values, no_plugins, environ), rest


def _means(name: str, entry: EntryPoint) -> bool:
    return name in (entry.name, f"{entry.distribution}:{entry.name}") or (
        normalized(name) == entry.distribution
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return how an error about an unknown name ends: the nearest known one, and all there are."""
    names = sorted(known)
    if not names:
        return "; there are none"
    lowered = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), lowered, n=1)
    hint = f"; did you mean {lowered[close[0]]}?" if close else ""
    return f"{hint}{' There' if hint else '; there'} are: {', '.join(names)}"


# ---- what was found


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
    hooks: Mapping[str, Any] = field(default_factory=dict)
    """by name, what calls the plugin's implementation of a hook"""


@dataclass(frozen=True)
class Offer:
    """What stands for a probe or a command, in the shape of every other offer."""

    name: str
    summary: str
    build: Callable[..., Any]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One line of the listing. The kind is one of `KINDS`, or "plugin" for a plugin as a whole."""

    kind: str
    name: str
    status: str
    reason: str
    plugin: str
    distribution: str
    version: str
    summary: str
    location: str
    detail: str = ""


@dataclass(frozen=True)
class _Claim:
    """A name that a distribution gives to an offer."""

    offer: Any
    entry: EntryPoint
    status: str = "ok"
    reason: str = ""

    @property
    def name(self) -> str:
        return str(self.offer.name)

    @property
    def qualified(self) -> str:
        return f"{self.entry.distribution}:{self.name}"

    @property
    def usable(self) -> bool:
        return self.status in ("ok", "conflict")


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
        options = PluginOptions.parse() if options is None else options
        entries = (*_metadata.entry_points(path), *_local(extra or {}))
        options.check(entries)
        self._notify = notify or _to_stderr
        self._complained: set[str] = set()
        found = [entry for entry in entries if entry.group == _metadata.PLUGINS]
        self.plugins = tuple(_load_all(options, found))
        """Every plugin that was found, in the order of loading."""
        self.installed = any(entry.distribution == DISTRIBUTION for entry in entries)
        """Whether our own distribution is installed; without it our plugins are not found."""
        self._claims = {kind: _claims(kind, self.plugins) for kind in KINDS}
        self._claims["command"] = _command_claims(options, entries, verbs)

    # ---- offers

    def names(self, kind: str) -> list[str]:
        """Return the usable names, sorted: plain, or `distribution:name` where two claim one."""
        return sorted(
            claim.qualified if claim.status == "conflict" else claim.name
            for claim in self._of(kind)
            if claim.usable
        )

    def offer(self, kind: str, name: str) -> Any:
        """Return an offer by name or by `distribution:name`.

        Raises UsageError if there is none, or if two distributions claim the name; SplitbitError if
        it cannot be used here.
        """
        return self._claim(kind, name).offer

    def build(self, kind: str, name: str, /, *args: Any, **options: Any) -> Any:
        """Return what an offer builds. Options are checked by name, and by type where it is plain.

        Raises UsageError where they do not fit (a ValueError of the plugin is taken for that), and
        SplitbitError for anything else that the plugin raises.
        """
        claim = self._claim(kind, name)
        _check_options(f"{kind} {name}", claim.offer, options)
        try:
            return claim.offer.build(*args, **options)
        except (SplitbitError, KeyboardInterrupt):
            raise
        except ValueError as error:
            raise UsageError(f"{kind} {name}: {error}") from error
        except BaseException as error:
            raise SplitbitError(
                f"{kind} {name}: plugin {claim.entry.name} of {claim.entry.distribution}"
                f" failed: {_say(error)}"
            ) from error

    def listing(self, kind: str | None = None) -> list[Row]:
        """Return rows of one kind or, sorted by kind and name, of all.

        Among all, a plugin has a row of its own only if there is something to say of it: it did not
        load, it is slow, or it offers nothing by name. Kind "plugin" lists every plugin.
        """
        if kind == "plugin":
            return [_plugin_row(plugin) for plugin in self.plugins]
        kinds = KINDS if kind is None else (kind,)
        rows = [
            _offer_row(each, claim)
            for each in kinds
            for claim in sorted(self._of(each), key=lambda claim: (claim.name, claim.qualified))
        ]
        if kind is None:
            rows += [_plugin_row(p) for p in self.plugins if p.reason or not p.offers]
        return rows

    def _of(self, kind: str) -> Sequence[_Claim]:
        if kind not in self._claims:
            known = (*KINDS, "plugin")
            raise UsageError(f"kind {kind}: there is no such kind{nearest(kind, known)}")
        return self._claims[kind]

    def _claim(self, kind: str, name: str) -> _Claim:
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
            try:
                plugin.hooks[hook](event=event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._complain(hook, plugin.entry, _say(error))

    @cached_property
    def _hardware(self) -> Hardware:
        for plugin in self._asked("probe_hardware"):
            try:
                found = plugin.hooks["probe_hardware"]()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._complain("probe_hardware", plugin.entry, _say(error))
                continue
            if isinstance(found, Hardware):
                return found
            if found is not None:
                said = f"it returned {type(found).__name__}, not Hardware"
                self._complain("probe_hardware", plugin.entry, said)
        return _plain_hardware()

    def probe(self) -> Hardware:
        """Return what the first probe to answer says of the machine. It is asked once.

        One that raises is reported and passed over. Without an answer, what the standard library
        knows has to do.
        """
        return self._hardware

    def _asked(self, hook: str) -> Sequence[Plugin]:
        """Return the plugins that have the hook in pluggy's order: tryfirst, then the last loaded.

        Ours were loaded first, so that a stranger's goes before them.
        """

        def rank(plugin: Plugin) -> int:
            own: Sequence[pluggy.HookImpl] = plugin.hooks[hook].get_hookimpls()
            return sum(each.trylast - each.tryfirst for each in own)

        return sorted((p for p in reversed(self.plugins) if hook in p.hooks), key=rank)

    def _complain(self, hook: str, entry: EntryPoint, what: str) -> None:
        line = f"plugin {entry.name} of {entry.distribution}, hook {hook}"
        if line not in self._complained:
            self._complained.add(line)
            self._notify(f"{line}: {what}")


def commands(
    options: PluginOptions | None = None,
    *,
    verbs: Collection[str] = (),
    path: Sequence[str] | None = None,
) -> dict[str, EntryPoint]:
    """Return the commands of other distributions, by usable name, without importing anything.

    verbs: our own commands; another's of the same name is there as `distribution:name`. Raises
    UsageError for an option that means no plugin.
    """
    options = PluginOptions.parse() if options is None else options
    entries = _metadata.entry_points(path)
    options.check(entries)
    return {
        claim.qualified if claim.status == "conflict" else claim.name: claim.entry
        for claim in _command_claims(options, entries, verbs)
        if claim.usable
    }


def _plugin_row(plugin: Plugin) -> Row:
    entry = plugin.entry
    summary = ", ".join(f"{kind} {offer.name}" for kind, offer in plugin.offers)
    return Row(
        "plugin",
        entry.name,
        plugin.status,
        plugin.reason,
        entry.name,
        entry.distribution,
        entry.version,
        f"offers {summary}" if summary else "",
        entry.location,
        plugin.detail,
    )


def _offer_row(kind: str, claim: _Claim) -> Row:
    entry = claim.entry
    return Row(
        kind,
        claim.name,
        claim.status,
        claim.reason,
        entry.name,
        entry.distribution,
        entry.version,
        claim.offer.summary,
        entry.location,
    )


# ---- who has which name


def _claims(kind: str, plugins: Sequence[Plugin]) -> list[_Claim]:
    claims: list[_Claim] = []
    for plugin in plugins:
        for offered, offer in plugin.offers:
            if offered != kind:
                continue
            missing = [name for name in offer.needs if not _metadata.installed(name)]
            if missing:
                verb = "is" if len(missing) == 1 else "are"
                claim = _Claim(
                    offer,
                    plugin.entry,
                    "unavailable",
                    f"{', '.join(missing)} {verb} not installed; pip install {' '.join(missing)}",
                )
            else:
                claim = _Claim(offer, plugin.entry)
            claims.append(claim)
    # Probes are all asked, one after another, so that their names need not differ.
    return claims if kind == "probe" else _with_conflicts(claims)


def _command_claims(
    options: PluginOptions, entries: Sequence[EntryPoint], verbs: Collection[str]
) -> list[_Claim]:
    claims = []
    for entry in entries:
        if entry.group == _metadata.COMMANDS:
            offer = Offer(entry.name, f"from {entry.distribution} {entry.version}", entry.load)
            claims.append(_Claim(offer, entry, *(_barred(options, entry) or ())))
    claims = _with_conflicts(claims)
    return [
        replace(
            claim,
            status="conflict",
            reason=f"{DISTRIBUTION} has a command of this name; write {claim.qualified}",
        )
        if claim.usable and claim.name in verbs
        else claim
        for claim in claims
    ]


def _with_conflicts(claims: Sequence[_Claim]) -> list[_Claim]:
    """Mark what two distributions claim, and refuse what one distribution claims twice."""
    checked: list[_Claim] = []
    for claim in claims:
        if claim.status == "ok":
            rivals = [o for o in claims if o.name == claim.name and o.status in _CLAIMING]
            owners = sorted({rival.entry.distribution for rival in rivals})
            first = next(o for o in rivals if o.entry.distribution == claim.entry.distribution)
            if first is not claim:
                reason = f"plugin {first.entry.name} of {claim.entry.distribution} offers it too"
                claim = replace(claim, status="failed", reason=reason)
            elif len(owners) > 1:
                names = " or ".join(f"{owner}:{claim.name}" for owner in owners)
                reason = f"offered by {' and '.join(owners)}; write {names}"
                claim = replace(claim, status="conflict", reason=reason)
        checked.append(claim)
    return checked


_CLAIMING = ("ok", "unavailable")  # what a name means must not depend on what else is installed


def _barred(options: PluginOptions, entry: EntryPoint) -> tuple[str, str] | None:
    """Return status and reason if the entry point is not to be imported."""
    if reason := options.reason_against(entry):
        return "disabled", reason
    if entry.shadowed_by:
        return "duplicate", (
            f"{entry.distribution} is in {entry.shadowed_by} too, which comes first and is used;"
            f" remove one of the two"
        )
    return None


def _local(extra: Mapping[str, object]) -> list[EntryPoint]:
    return [
        EntryPoint(_metadata.PLUGINS, name, "local", "", "this process", partial(_same, plugin))
        for name, plugin in extra.items()
    ]


def _same(plugin: object) -> object:
    return plugin


# ---- loading


class _Refused(Exception):
    """A plugin breaks the contract; the message is the reason."""

    def __init__(self, reason: str, status: str = "failed") -> None:
        super().__init__(reason)
        self.status = status


def _load_all(options: PluginOptions, entries: Sequence[EntryPoint]) -> Iterator[Plugin]:
    """Yield what becomes of each plugin: ours first, the others by name, wherever they are."""

    def order(entry: EntryPoint) -> tuple[Any, ...]:
        theirs = entry.distribution != DISTRIBUTION
        return theirs, entry.distribution, entry.name, bool(entry.shadowed_by)

    with _interrupts() as interrupted:
        for entry in sorted(entries, key=order):
            if barred := _barred(options, entry):
                yield Plugin(entry, *barred)
            else:
                yield _load(entry)
            if interrupted.is_set():  # by the user: what a plugin raises by itself is no reason
                raise KeyboardInterrupt


def _load(entry: EntryPoint) -> Plugin:
    started = time.perf_counter()
    with _captured() as output:
        try:
            plugin = entry.load()
            _check_version(plugin)
            hooks = _register(plugin)
            offers = _offers(entry.name, hooks)
        except BaseException as error:
            status, reason = _verdict(error)
            detail = _text(output) + "".join(traceback.format_exception(error))
            return Plugin(entry, status, reason, detail)
    seconds = time.perf_counter() - started
    slow = f"slow: {seconds:.1f} s to load" if seconds > SLOW_SECONDS else ""
    return Plugin(entry, "ok", slow, _text(output), offers, hooks)


def _register(plugin: Any) -> dict[str, Any]:
    """Return what calls each hook that a plugin has. Raises if it breaks the contract."""
    manager = pluggy.PluginManager(HOOK_PROJECT)  # its own, so that it cannot disturb another
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, "plugin")
    except pluggy.PluginValidationError as error:
        raise _Refused(_argument_fault(error)) from error
    callers = manager.get_hookcallers(plugin) or []
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        unknown = next(caller.name for caller in callers if caller.name not in HOOKS)
        raise _Refused(f"hook {unknown}: there is no such hook{nearest(unknown, HOOKS)}") from error
    if not callers:
        raise _Refused(_why_no_hook(plugin))
    return {caller.name: caller for caller in callers if caller.name in HOOKS}


def _offers(name: str, hooks: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return what a plugin offers, with the kind. Raises _Refused if it breaks the contract."""
    offers: list[tuple[str, Any]] = []
    for hook in OFFER_TYPES:
        if hook in hooks:
            offers += [(hook.removesuffix("s"), offer) for offer in _ask(hook, hooks[hook])]
    if probe := hooks.get("probe_hardware"):
        offers.append(("probe", Offer(name, "says what the machine offers", probe)))
    return tuple(offers)


def _ask(hook: str, caller: Callable[[], Any]) -> list[Any]:
    expected = OFFER_TYPES[hook]
    try:
        answers = caller()
    except Exception as error:
        raise _Refused(f"hook {hook}: {_say(error)}") from error
    offers: list[Any] = []
    for answer in answers or [None]:  # pluggy drops an answer that is None
        if not isinstance(answer, list | tuple):
            raise _Refused(
                f"hook {hook}: it returned {type(answer).__name__};"
                f" a list of {expected.__name__} is expected"
            )
        offers += answer
    for offer in offers:
        _check_offer(hook, expected, offer)
    names = [offer.name for offer in offers]
    for name in names:
        if names.count(name) > 1:
            raise _Refused(f"hook {hook}: {name} is offered twice")
    return offers


def _check_version(plugin: Any) -> None:
    wanted = getattr(plugin, VERSION_ATTRIBUTE, API_VERSION)
    if type(wanted) is not int:
        raise _Refused(f"{VERSION_ATTRIBUTE} is {wanted!r}; a whole number is expected")
    if wanted != API_VERSION:
        older = f"a newer {DISTRIBUTION}" if wanted > API_VERSION else "a newer version of it"
        raise _Refused(
            f"written for version {wanted} of the plugin API, this is {API_VERSION};"
            f" {older} is needed",
            "incompatible",
        )


def _check_offer(hook: str, expected: type, offer: Any) -> None:
    if not isinstance(offer, expected):
        raise _Refused(
            f"hook {hook}: {type(offer).__name__} in its list; {expected.__name__} is expected"
        )
    facts = cast(Any, offer)
    if not (isinstance(facts.name, str) and NAME.fullmatch(facts.name)):
        raise _Refused(
            f"hook {hook}: name {facts.name!r}; letters, digits and . _ + - are expected"
        )
    if not isinstance(facts.summary, str):
        raise _Refused(f"hook {hook}: summary of {facts.name} must be text")
    if not callable(facts.build):
        raise _Refused(f"hook {hook}: build of {facts.name} cannot be called")
    if not isinstance(facts.needs, list | tuple) or not all(
        isinstance(name, str) and NAME.fullmatch(name) for name in facts.needs
    ):
        raise _Refused(
            f"hook {hook}: needs of {facts.name} is {facts.needs!r};"
            ' a tuple of distribution names is expected, such as ("numba",)'
        )


def _argument_fault(error: pluggy.PluginValidationError) -> str:
    """Say which argument of which hook does not exist, on one line."""
    text = " ".join(str(error).split())
    match = re.search(r"hook '(\w+)'.*?Argument\(s\) \{(.*?)\}", text)
    if match is None:
        return text
    hook, arguments = match.groups()
    known = list(signature(HOOKS[hook]).parameters)
    return (
        f"hook {hook}: it has no argument {arguments.replace(chr(39), '')};"
        f" {'only ' + ', '.join(known) if known else 'it has none'}"
    )


def _why_no_hook(plugin: Any) -> str:
    for name in HOOKS:
        if callable(getattr(plugin, name, None)):
            return f"{name} is not marked; write @hookimpl (from splitbit_kit.api) above it"
    return f"it implements no hook{nearest('', HOOKS)}"


def _verdict(error: BaseException) -> tuple[str, str]:
    """Return status and reason for what was raised while a plugin loaded."""
    if isinstance(error, _Refused):
        return error.status, str(error)
    if isinstance(error, ImportError) and (error.name or "").startswith("splitbit_kit.api"):
        return "incompatible", (
            f"{_say(error)}: written for another version of the plugin API than {API_VERSION}"
        )
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return "failed", f"{_say(error)}{where}"


def _say(error: BaseException) -> str:
    """Return an exception as one line, even if it cannot be printed."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


# ---- what a plugin does while it loads


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


@contextmanager
def _captured() -> Iterator[bytearray]:
    """Take what is printed meanwhile, in the order of printing."""
    kept = bytearray()
    out, err = _Capture("stdout", kept), _Capture("stderr", kept)
    try:
        with redirect_stdout(_stream(out)), redirect_stderr(_stream(err)):
            yield kept
    finally:
        out.kept = err.kept = None


def _stream(raw: _Capture) -> TextIOWrapper:
    return TextIOWrapper(cast(Any, raw), "utf-8", "replace", write_through=True)


def _text(output: bytearray) -> str:
    return output.decode("utf-8", "replace")


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Yield an event that is set once the user presses Ctrl-C, which no plugin can pretend."""
    pressed = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield pressed
        return
    handle = before

    def note(number: int, frame: types.FrameType | None) -> None:
        pressed.set()
        handle(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)


# ---- options


@dataclass(frozen=True)
class Option:
    """An option of an offer, as the signature of its `build` has it."""

    name: str
    default: Any
    annotation: Any = None
    """the type, or None where there is none that can be read"""

    def accepts(self, value: Any) -> bool:
        """Whether a value has the type; what is no plain type, or several, accepts anything."""
        allowed = get_args(self.annotation) if _is_union(self.annotation) else (self.annotation,)
        if not all(kind in _PLAIN for kind in allowed):
            return get_origin(self.annotation) is not Literal or value in get_args(self.annotation)
        return any(isinstance(value, _PLAIN[kind]) for kind in allowed) and not (
            isinstance(value, bool) and bool not in allowed
        )


_PLAIN: Mapping[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    bool: (bool,),
    type(None): (type(None),),
}


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def options_of(offer: Any) -> dict[str, Option]:
    """Return the options of an offer by name: the parameters of its `build` that have defaults."""
    try:
        parameters = signature(offer.build, eval_str=True).parameters.values()
    except NameError:  # an annotation that only a type checker can resolve
        parameters = signature(offer.build).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    return {
        p.name: Option(p.name, p.default, None if p.annotation is Parameter.empty else p.annotation)
        for p in parameters
        if p.default is not Parameter.empty
        and p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }


def _check_options(what: str, offer: Any, given: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that the offer lacks, or a value of the wrong type."""
    known = options_of(offer)
    parameters = signature(offer.build).parameters if known else {}
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        return  # it takes whatever comes, and checks by itself
    for name, value in given.items():
        if name not in known:
            if name in parameters:  # one without a default, passed by name
                continue
            raise UsageError(f"{what}: there is no option {name}{nearest(name, known)}")
        if not known[name].accepts(value):
            wanted = known[name].annotation
            raise UsageError(
                f"{what}: {name} = {value!r}; {getattr(wanted, '__name__', wanted)} is expected"
            )


# ---- without any probe


def _plain_hardware() -> Hardware:
    try:
        threads, source = len(os.sched_getaffinity(0)), "affinity mask"
    except (AttributeError, OSError):  # not every system has masks
        threads, source = os.cpu_count() or 1, "logical processors of the system"
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = 0
    unknown = "no probe answered"
    return Hardware(
        threads=threads,
        cores=threads,
        memory_bytes=memory,
        tier=TIERS[0],
        sources={
            "threads": source,
            "cores": f"{unknown}: as many as threads",
            "memory_bytes": "memory of the system" if memory else unknown,
            "tier": f"{unknown}: the least",
        },
    )
