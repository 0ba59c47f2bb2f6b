"""The options of an offer, as the signature of its `build` has them, and whether values fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, signature
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from splitbit_kit.api import UsageError
from splitbit_kit.registry.wording import nearest

_PLAIN: Mapping[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    bool: (bool,),
    type(None): (type(None),),
}
"""annotation -> the types of the values that it accepts"""


@dataclass(frozen=True)
class Option:
    """An option of an offer."""

    name: str
    default: Any
    annotation: Any = None
    """the type, or None where there is none that can be read"""

    def accepts(self, value: Any) -> bool:
        """Whether a value has the type; what is no plain type, or several, accepts anything."""
        origin, parts = get_origin(self.annotation), get_args(self.annotation)
        if origin is Literal:
            return value in parts
        allowed = parts if origin in (Union, UnionType) else (self.annotation,)
        if not all(kind in _PLAIN for kind in allowed):
            return True
        if isinstance(value, bool):  # a bool is an int to Python, not to us
            return bool in allowed
        return any(isinstance(value, _PLAIN[kind]) for kind in allowed)

    @property
    def wanted(self) -> str:
        """What is accepted, in words, such as "float" or "one of linear, exponential"."""
        if get_origin(self.annotation) is Literal:
            return f"one of {', '.join(map(str, get_args(self.annotation)))}"
        return str(getattr(self.annotation, "__name__", self.annotation))


def options_of(offer: Any) -> dict[str, Option]:
    """Return the options of an offer by name: the parameters of its `build` that have defaults."""
    return {
        p.name: Option(p.name, p.default, None if p.annotation is Parameter.empty else p.annotation)
        for p in _parameters(offer.build).values()
        if p.default is not Parameter.empty
        and p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }


def check_options(what: str, offer: Any, given: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that the offer lacks, or a value of the wrong type."""
    known, parameters = options_of(offer), _parameters(offer.build)
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        return  # it takes whatever comes, and checks by itself
    for name, value in given.items():
        if name not in parameters:
            raise UsageError(f"{what}: there is no option {name}{nearest(name, known)}")
        if name in known and not known[name].accepts(value):
            raise UsageError(f"{what}: {name} = {value!r}; {known[name].wanted} is expected")


def _parameters(build: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return the parameters by name; there are none of a builtin that does not tell them."""
    for evaluate in (True, False):  # an annotation may be one that only a type checker can read
        with suppress(Exception):
            return signature(build, eval_str=evaluate).parameters
    return {}
