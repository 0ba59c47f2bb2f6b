"""What the verbs that use a tokenizer have in common."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

if TYPE_CHECKING:
    from splitbit_kit.text.tokenizer import Tokenizer

_BLOCK = 1 << 20  # bytes taken from standard input at once


def tokenizer_argument(command: Callable[..., Any]) -> Any:
    """Add TOKENIZER."""
    return click.argument(
        "tokenizer",
        metavar="TOKENIZER",
        type=click.Path(path_type=Path),
        panel="Tokenizer",
        help="A tokenizer.json of ours, or a run folder for the one in it.",
    )(command)


def load(path: Path) -> Tokenizer:
    """Return the tokenizer in a file or a run folder."""
    from splitbit_kit.text.tokenizer import Tokenizer
    from splitbit_kit.training.run_folder import RunFolder

    return Tokenizer.load(RunFolder(path).tokenizer if path.is_dir() else path)


def piped(what: str) -> Iterator[str]:
    """Yield the text on standard input in pieces. Raises UsageError unless it is piped UTF-8."""
    from splitbit_kit.api import UsageError

    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"{what}: there is none; write it as an argument, or pipe it in")
    decoder = codecs.getincrementaldecoder("utf-8")()
    read = 0
    while True:
        block = sys.stdin.buffer.read(_BLOCK)
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            at = read - waiting + error.start
            raise UsageError(f"standard input: byte {at} is not valid utf-8") from None
        if text:
            yield text
        if not block:
            return
        read += len(block)
