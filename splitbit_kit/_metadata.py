"""What is installed: entry points and the distributions they come from.

The one module that imports importlib_metadata: importing it takes the standard library's finder out
of the process, which nobody should do by accident.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import importlib_metadata

PLUGINS = "splitbit_kit.plugins"
COMMANDS = "splitbit_kit.commands"

Distribution = Any  # importlib_metadata's releases differ in the type that they declare


@dataclass(frozen=True)
class EntryPoint:
    """One line of a distribution's entry points, not yet imported."""

    group: str
    name: str
    distribution: str
    """normalised: lower case, hyphens"""
    version: str
    location: str
    """the folder it is installed in; for an editable install its source, so marked"""
    load: Callable[[], Any]
    """Import and return the object. Raises whatever the import raises."""
    shadowed_by: str = ""
    """where the same distribution was found first, if this is not the first"""


def normalized(name: str) -> str:
    """Return a distribution name in the form that compares equal however it is spelt (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(name: str) -> bool:
    """Whether a distribution of that name is installed. It is looked up, not imported."""
    try:
        importlib_metadata.distribution(name)
    except (importlib_metadata.PackageNotFoundError, ValueError):
        return False
    return True


def version(name: str) -> str:
    """Return the version of an installed distribution, empty if it is not installed."""
    try:
        return str(importlib_metadata.version(name))
    except (importlib_metadata.PackageNotFoundError, ValueError):
        return ""


def entry_points(path: Sequence[str] | None = None) -> tuple[EntryPoint, ...]:
    """Return the entry points of both groups, in the order of `path` (None: sys.path).

    A distribution that is found again further down the path is there too, as shadowed. One whose
    entry points cannot be read is there as a single entry, whose `load` says why.
    """
    where: dict[str, Any] = {} if path is None else {"path": list(path)}
    seen: set[tuple[str, str, str]] = set()
    found: list[EntryPoint] = []
    for distribution in importlib_metadata.distributions(**where):
        if not _mentions_us(distribution):  # the cheap question first: most have nothing for us
            continue
        name, version, folder = identity = _identity(distribution)
        if identity in seen:  # one folder twice on the path
            continue
        seen.add(identity)
        first = next(iter(importlib_metadata.distributions(name=name, **where)), distribution)
        shadow = "" if _identity(first) == identity else _identity(first)[2]
        location = _editable_source(distribution) or folder
        found += [
            EntryPoint(group, entry, name, version, location, load, shadow)
            for group, entry, load in _entries(distribution, name)
        ]
    return tuple(found)


def _mentions_us(distribution: Distribution) -> bool:
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeError):
        return False
    return PLUGINS in text or COMMANDS in text


def _identity(distribution: Distribution) -> tuple[str, str, str]:
    """Return name, version and folder. Metadata that cannot be read is no reason to stop."""
    folder = str(Path(str(distribution.locate_file(""))).resolve())
    try:
        metadata = distribution.metadata
        return normalized(metadata["Name"]), metadata["Version"] or "", folder
    except Exception:
        return normalized(Path(str(getattr(distribution, "_path", "unnamed"))).stem), "", folder


def _editable_source(distribution: Distribution) -> str:
    try:
        origin = distribution.origin
        editable = origin is not None and origin.dir_info.editable
    except (AttributeError, OSError, TypeError, ValueError):
        return ""
    return f"{origin.url.removeprefix('file://')} (editable)" if editable else ""


def _entries(distribution: Distribution, name: str) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    try:
        entries = list(distribution.entry_points)
    except Exception as error:
        yield PLUGINS, name, _raiser(f"entry_points.txt cannot be read: {error}")
        return
    for entry in entries:
        if entry.group in (PLUGINS, COMMANDS):
            yield entry.group, entry.name, entry.load


def _raiser(message: str) -> Callable[[], Any]:
    def load() -> Any:
        raise ValueError(message)

    return load
