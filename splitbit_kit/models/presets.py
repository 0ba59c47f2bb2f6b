"""Presets by name, from presets.toml."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from splitbit_kit.api import UsageError


@cache
def _all() -> dict[str, dict[str, Any]]:
    text = files("splitbit_kit.models").joinpath("presets.toml").read_text("utf-8")
    return tomllib.loads(text)


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return list(_all())


def preset(name: str) -> dict[str, Any]:
    """Return a preset's part of a configuration: section -> key -> value."""
    if name not in _all():
        near = get_close_matches(name, _all(), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_all())}"
        raise UsageError(f"preset {name!r} is not known; {hint}")
    return {section: dict(keys) for section, keys in _all()[name].items()}
