"""The verb `tokenizer train`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, json_option, option, text_options, texts_argument
from splitbit_kit.cli.output import emit, people

JSON_KEYS = {
    "tokenizer": "the file that was written",
    "kind": "bpe, byte or char",
    "vocab_size": "how many ids it has; fewer than were asked for where merges ran out",
    "sha256": "of the file",
    "documents": "how many it was learnt from",
    "characters": "how many it was learnt from",
}


@click.command("train", context_settings=CONTEXT)
@texts_argument
@text_options
@option(
    "--strict",
    is_flag=True,
    default_text="off",
    panel="Text",
    help="Take files in a folder that are not text for an error.",
)
@option(
    "--kind",
    default="bpe",
    default_text="bpe",
    metavar="bpe|byte|char",
    panel="Tokenizer",
    help="Byte-level BPE; the 256 bytes; or characters, with bytes for the rare ones.",
)
@option(
    "--vocab-size",
    default=0,
    default_text="4096 for bpe, all characters for char",
    metavar="N",
    panel="Tokenizer",
    help="The most ids; 257 at least.",
)
@option(
    "-o",
    "--output",
    required=True,
    default_text="none: it must be given",
    type=click.Path(path_type=Path),
    metavar="FILE",
    panel="Output",
    help="The tokenizer.json to write.",
)
@option(
    "--overwrite",
    is_flag=True,
    default_text="off",
    panel="Output",
    help="Replace FILE if it is there.",
)
@json_option
def command(
    texts: tuple[str, ...],
    encoding: str | None,
    text_column: str | None,
    strict: bool,
    kind: str,
    vocab_size: int,
    output: Path,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Learn a tokenizer from texts and write it as tokenizer.json.

    The same text gives the same file. Of large texts an even sample of 16 MB is learnt from.
    Hugging Face's tokenizers reads the file; train --tokenizer FILE uses it.

    \b
    Examples:
      splitbit-kit tokenizer train texts/ --vocab-size 4096 -o tok.json
      splitbit-kit tokenizer train texts/ --kind char -o chars.json
    """
    from splitbit_kit.cli.console import training_view
    from splitbit_kit.formats import durable
    from splitbit_kit.quantities import counted
    from splitbit_kit.text.corpus import COLUMN
    from splitbit_kit.training.config import DataConfig, TokenizerConfig
    from splitbit_kit.training.data import learn

    refuse_output(output, overwrite)
    data = DataConfig(
        paths=list(texts),
        encoding=encoding or "",
        strict=strict,
        column=text_column or COLUMN,
    )
    view = training_view(sys.stderr)
    try:
        wanted = TokenizerConfig(kind, vocab_size)
        tokenizer, corpus = learn(wanted, data, view.notify, view.progress)
    finally:
        view.close()
    durable.replace_file(output, [tokenizer.content])
    documents = sum(file.documents for file in corpus.files)
    short = f" of the {vocab_size:,} wanted" if tokenizer.vocab_size < vocab_size else ""
    print(
        f"{output}: {kind} tokenizer, vocabulary {tokenizer.vocab_size:,}{short}, learnt from "
        f"{counted(corpus.characters, 'character')} in {counted(documents, 'document')}",
        file=people(as_json),
    )
    if as_json:
        emit(
            JSON_KEYS,
            {
                "tokenizer": os.fspath(output),
                "kind": kind,
                "vocab_size": tokenizer.vocab_size,
                "sha256": tokenizer.sha256,
                "documents": documents,
                "characters": corpus.characters,
            },
        )


def refuse_output(path: Path, overwrite: bool) -> None:
    """Raise UsageError for what could not be written in the end, before anything is read."""
    from splitbit_kit.api import UsageError

    if path.is_dir():
        raise UsageError(f"{path}: a folder; name a file, such as {path / 'tok.json'}")
    if path.exists() and not overwrite:
        raise UsageError(f"{path}: is there already; --overwrite replaces it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder; make it first")
