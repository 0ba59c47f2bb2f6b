"""What a verb writes: text for people, and with --json one object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import isfinite
from typing import Any, TextIO


def people(as_json: bool) -> TextIO:
    """Return where text for people goes: with --json, standard output is for the object alone."""
    return sys.stderr if as_json else sys.stdout


def emit(keys: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Write the object of --json, as one line of ASCII with exactly the keys that are documented.

    keys: name -> meaning. Raises KeyError if one has no value.
    """
    row = {key: _plain(values[key]) for key in keys}
    print(json.dumps(row, allow_nan=False), flush=True)


def _plain(value: Any) -> Any:
    """Return None for a number that JSON has no word for."""
    return None if isinstance(value, float) and not isfinite(value) else value


def show(line: str) -> None:
    """Write a line for people on standard error."""
    print(line, file=sys.stderr, flush=True)
