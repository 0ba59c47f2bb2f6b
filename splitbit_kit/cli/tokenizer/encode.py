"""The verb `tokenizer encode`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, json_option, option, text_options
from splitbit_kit.cli.output import emit
from splitbit_kit.cli.tokenizer.shared import load, piped, tokenizer_argument

if TYPE_CHECKING:
    from splitbit_kit.cli.console import TrainingView
    from splitbit_kit.text.tokenizer import Ids, Tokenizer

JSON_KEYS = {
    "tokenizer": "the tokenizer that was named",
    "tokens": "how many ids there are",
    "bytes": "how many bytes of UTF-8 they stand for",
    "ids": "the ids",
}


@click.command("encode", context_settings=CONTEXT)
@tokenizer_argument
@click.argument(
    "text",
    metavar="[TEXT]",
    required=False,
    panel="Text",
    help="What to encode; none: standard input, in UTF-8.",
)
@option(
    "--file",
    "path",
    default_text="none",
    type=click.Path(path_type=str),
    metavar="PATH",
    panel="Text",
    help="Encode a file or folder as a training would: end-of-text follows each document.",
)
@text_options
@json_option
def command(
    tokenizer: Path,
    text: str | None,
    path: str | None,
    encoding: str | None,
    text_column: str | None,
    as_json: bool,
) -> None:
    """Turn text into ids, numbers with white space between.

    Memory stays bounded whatever the length of the text, except with --json.

    \b
    Examples:
      splitbit-kit tokenizer encode tok.json "To be, or not to be"
      splitbit-kit tokenizer encode runs/bard < speech.txt
      splitbit-kit tokenizer encode tok.json --file texts/ > ids.txt
    """
    from splitbit_kit.api import UsageError
    from splitbit_kit.cli.console import training_view

    if text is not None and path is not None:
        raise UsageError("--file: the text stands as an argument too; leave one of them out")
    loaded = load(tokenizer)
    view = training_view(sys.stderr)
    try:
        if path is not None:
            encoded = of_files(loaded, path, encoding, text_column, view)
        else:
            encoded = loaded.encode_pieces(piped("text") if text is None else [text])
        if not as_json:
            for ids in encoded:
                if len(ids):
                    print(*ids.tolist())
            return
        found = [number for ids in encoded for number in ids.tolist()]
    finally:
        view.close()
    emit(
        JSON_KEYS,
        {
            "tokenizer": os.fspath(tokenizer),
            "tokens": len(found),
            "bytes": int(loaded.byte_lengths[found].sum()),
            "ids": found,
        },
    )


def of_files(
    tokenizer: Tokenizer,
    path: str,
    encoding: str | None,
    column: str | None,
    view: TrainingView,
) -> Iterator[Ids]:
    """Yield the ids of a file or folder, end-of-text after each document that is not empty."""
    import numpy as np

    from splitbit_kit.text.corpus import COLUMN, documents
    from splitbit_kit.training.config import DataConfig
    from splitbit_kit.training.data import read

    data = DataConfig(paths=[path], encoding=encoding or "", column=column or COLUMN)
    corpus = read(data, view.notify, view.progress)
    for document in documents(corpus, partial(view.progress, "tokenising")):
        some = False
        for ids in tokenizer.encode_pieces(document):
            some = some or len(ids) > 0
            yield ids
        if some:
            yield np.array([tokenizer.end_of_text], np.int32)
