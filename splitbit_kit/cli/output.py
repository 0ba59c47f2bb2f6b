"""What a verb writes: text for people, and with --json one object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
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


def one_line(text: str) -> str:
    """Return text for a place in a line: control characters, line ends too, stand as U+FFFD."""
    from splitbit_kit.cli.console import printable

    return printable(text).translate(dict.fromkeys(map(ord, "\n\t"), "\N{REPLACEMENT CHARACTER}"))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], as_json: bool) -> None:
    """Write a table: with rules and colours on a terminal, aligned words elsewhere."""
    from splitbit_kit.cli.console import is_plain

    stream = people(as_json)
    if not rows:
        print("there are none", file=stream)
        return
    if is_plain(stream):
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        for row in (heads, *rows):
            cells = (one_line(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(cells).rstrip(), file=stream)
        return

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ruled = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        ruled.add_column(head)
    for row in rows:
        ruled.add_row(*(Text(one_line(cell), _STYLES.get(cell, "")) for cell in row))
    Console(file=stream).print(ruled)


_STYLES = {"ok": "green", "failed": "red", "incompatible": "red", "conflict": "yellow"}
