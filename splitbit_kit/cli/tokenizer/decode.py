"""The verb `tokenizer decode`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, json_option
from splitbit_kit.cli.output import emit
from splitbit_kit.cli.tokenizer.shared import load, piped, tokenizer_argument

if TYPE_CHECKING:
    from splitbit_kit.text.tokenizer import Tokenizer

JSON_KEYS = {
    "tokenizer": "the tokenizer that was named",
    "tokens": "how many ids there were",
    "text": "the text; bytes that are not UTF-8 are U+FFFD, end-of-text is nothing",
}

_BETWEEN = re.compile(r"[\s,\[\]]+")  # what a Python or JSON list has between its numbers, too


@click.command("decode", context_settings=CONTEXT)
@tokenizer_argument
@click.argument(
    "ids",
    nargs=-1,
    metavar="[IDS]...",
    panel="Text",
    help="Numbers with white space or commas between; none: standard input.",
)
@json_option
def command(tokenizer: Path, ids: tuple[str, ...], as_json: bool) -> None:
    """Turn ids into the text that they stand for, exactly, in UTF-8.

    End-of-text stands for nothing.

    \b
    Examples:
      splitbit-kit tokenizer decode tok.json 53 391 12
      splitbit-kit tokenizer decode runs/bard < ids.txt
    """
    loaded = load(tokenizer)
    found = numbers([" ".join(ids)] if ids else piped("ids"), loaded.vocab_size)
    if as_json:
        given = list(found)
        values = {"tokenizer": os.fspath(tokenizer), "tokens": len(given)}
        emit(JSON_KEYS, {**values, "text": loaded.decode(given)})
    else:
        write(loaded, found)


def numbers(pieces: Iterable[str], size: int) -> Iterator[int]:
    """Yield the ids in a text that comes in pieces. Raises UsageError for what is none."""
    from splitbit_kit.api import UsageError

    rest = ""
    for piece in chain(pieces, " "):  # after white space no number can go on
        *words, rest = _BETWEEN.split(rest + piece)
        if len(rest) > 20:  # no id is so long, and memory must be bounded
            words.append(rest)
        for word in filter(None, words):
            if not (word.isascii() and word.isdigit() and len(word) <= 20 and int(word) < size):
                raise UsageError(
                    f"{word[:20]!r} is not an id; whole numbers from 0 to {size - 1} are expected"
                )
            yield int(word)


def write(tokenizer: Tokenizer, ids: Iterable[int]) -> None:
    """Write the text as it comes. A terminal gets a line end more and no control characters."""
    from splitbit_kit.cli.console import printable

    stream = tokenizer.stream("replace")
    if sys.stdout.isatty():
        for number in ids:
            sys.stdout.write(printable(stream.feed(number)))
        print(printable(stream.flush()))
        return
    sys.stdout.flush()
    out = sys.stdout.buffer  # the bytes themselves, whatever the console's encoding and line ends
    for number in ids:
        out.write(stream.feed(number).encode())
    out.write(stream.flush().encode())
    out.flush()
