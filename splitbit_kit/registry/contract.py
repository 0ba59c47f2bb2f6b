"""What a plugin can implement and offer, and what is asked of it.

The hooks and kinds are read from `api.hookspecs`. Whoever breaks the contract is refused, with the
reason.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast, get_args, get_origin, get_type_hints

from splitbit_kit.api import API_VERSION, hookspecs
from splitbit_kit.registry.selection import DISTRIBUTION
from splitbit_kit.registry.wording import nearest, say

HOOKS: Mapping[str, Callable[..., Any]] = {
    name: spec for name, spec in vars(hookspecs).items() if hasattr(spec, "splitbit_kit_spec")
}
_TYPES = {name: get_type_hints(spec) for name, spec in HOOKS.items()}
EVENT_HOOKS: Mapping[type, str] = {
    types["event"]: name for name, types in _TYPES.items() if "event" in types
}
OFFER_TYPES: Mapping[str, type] = {
    name: get_args(types["return"])[0]
    for name, types in _TYPES.items()
    if get_origin(types["return"]) is Sequence
}
"""hook -> the type of what it returns several of; the kind is the hook's name without its s"""

KINDS = (*(hook.removesuffix("s") for hook in OFFER_TYPES), "probe", "command")


@dataclass(frozen=True)
class Offer:
    """What stands for a probe or a command, in the shape of every other offer."""

    name: str
    summary: str
    build: Callable[..., Any]
    needs: tuple[str, ...] = ()


# ---- the plugin as a whole


VERSION_ATTRIBUTE = "SPLITBIT_API_VERSION"
"""What a plugin may set to the `API_VERSION` it is written for."""


class Refused(Exception):
    """A plugin breaks the contract; the message is the reason."""

    def __init__(self, reason: str, status: str = "failed") -> None:
        super().__init__(reason)
        self.status = status


def verdict(error: BaseException) -> tuple[str, str]:
    """Return status and reason for what was raised while a plugin loaded."""
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, ImportError) and (error.name or "").startswith("splitbit_kit.api"):
        return "incompatible", (
            f"{say(error)}: written for another version of the plugin API than {API_VERSION}"
        )
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return "failed", f"{say(error)}{where}"


def check_version(plugin: Any) -> None:
    """Raise Refused if the plugin says that it is written for another version of the API."""
    wanted = getattr(plugin, VERSION_ATTRIBUTE, API_VERSION)
    if type(wanted) is not int:
        raise Refused(f"{VERSION_ATTRIBUTE} is {wanted!r}; a whole number is expected")
    if wanted != API_VERSION:
        other = f"a newer {DISTRIBUTION}" if wanted > API_VERSION else "a newer version of it"
        raise Refused(
            f"written for version {wanted} of the plugin API, this is {API_VERSION};"
            f" {other} is needed",
            "incompatible",
        )


# ---- hooks


def check_some_hook(plugin: Any, hooks: Collection[str]) -> None:
    """Raise Refused if a plugin implements no hook; perhaps it forgot to mark one."""
    if hooks:
        return
    for name in HOOKS:
        if callable(getattr(plugin, name, None)):
            raise Refused(f"{name} is not marked; write @hookimpl (from splitbit_kit.api) above it")
    raise Refused(f"it implements no hook{nearest('', HOOKS)}")


def check_hook(name: str, arguments: Sequence[str]) -> None:
    """Raise Refused if there is no such hook, or if it has no such arguments."""
    if name not in HOOKS:
        raise Refused(f"hook {name}: there is no such hook{nearest(name, HOOKS)}")
    known = signature(HOOKS[name]).parameters
    if unknown := [argument for argument in arguments if argument not in known]:
        raise Refused(
            f"hook {name}: it has no argument {', '.join(unknown)};"
            f" {'only ' + ', '.join(known) if known else 'it has none'}"
        )


# ---- offers


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
"""of an offer, or of a distribution that it needs"""


def offers_of(name: str, hooks: Mapping[str, Callable[..., Any]]) -> tuple[tuple[str, Any], ...]:
    """Return what the plugin of this name offers, as (kind, offer). Raises Refused for bad offers.

    hooks: by name, what calls the plugin's implementation.
    """
    offers = [
        (hook.removesuffix("s"), offer)
        for hook in OFFER_TYPES
        if hook in hooks
        for offer in _ask(hook, hooks[hook])
    ]
    if probe := hooks.get("probe_hardware"):
        offers.append(("probe", Offer(name, "says what the machine offers", probe)))
    return tuple(offers)


def _ask(hook: str, caller: Callable[..., Any]) -> list[Any]:
    try:
        answers = caller()
    except Exception as error:
        raise Refused(f"hook {hook}: {say(error)}") from error
    expected = OFFER_TYPES[hook]
    offers: list[Any] = []
    for answer in answers or [None]:  # pluggy drops an answer that is None
        if not isinstance(answer, list | tuple):
            raise Refused(
                f"hook {hook}: it returned {type(answer).__name__};"
                f" a list of {expected.__name__} is expected"
            )
        offers += answer
    names = set()
    for offer in offers:
        _check_offer(hook, expected, offer)
        if offer.name in names:
            raise Refused(f"hook {hook}: {offer.name} is offered twice")
        names.add(offer.name)
    return offers


def _check_offer(hook: str, expected: type, offer: Any) -> None:
    if not isinstance(offer, expected):
        raise Refused(
            f"hook {hook}: {type(offer).__name__} in its list; {expected.__name__} is expected"
        )
    facts = cast(Any, offer)
    if not _is_name(facts.name):
        raise Refused(f"hook {hook}: name {facts.name!r}; letters, digits and . _ + - are expected")
    if not isinstance(facts.summary, str):
        raise Refused(f"hook {hook}: summary of {facts.name} must be text")
    if not callable(facts.build):
        raise Refused(f"hook {hook}: build of {facts.name} cannot be called")
    if not (isinstance(facts.needs, list | tuple) and all(map(_is_name, facts.needs))):
        raise Refused(
            f"hook {hook}: needs of {facts.name} is {facts.needs!r};"
            ' a tuple of distribution names is expected, such as ("numba",)'
        )


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None
