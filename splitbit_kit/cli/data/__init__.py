"""The verb `data`, each of its own verbs in the file of its name."""

from __future__ import annotations

import rich_click as click

from splitbit_kit.cli.data import check
from splitbit_kit.cli.options import CONTEXT


@click.group("data", context_settings=CONTEXT)
def command() -> None:
    """Look at texts before a training does.

    Nothing is written.

    \b
    Example:
      splitbit-kit data check texts/
    """


command.add_command(check.command)
