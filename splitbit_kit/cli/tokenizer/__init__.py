"""The verb `tokenizer`, each of its own verbs in the file of its name."""

from __future__ import annotations

import rich_click as click

from splitbit_kit.cli.options import CONTEXT
from splitbit_kit.cli.tokenizer import decode, encode, train


@click.group("tokenizer", context_settings=CONTEXT)
def command() -> None:
    """Learn a tokenizer, and see what it makes of a text.

    It is one file, a tokenizer.json, which Hugging Face's tokenizers reads too.

    \b
    Example:
      splitbit-kit tokenizer train texts/ --vocab-size 4096 -o tok.json
    """


for verb in (train, encode, decode):
    command.add_command(verb.command)
