"""The command `splitbit-kit`: each verb is imported from the file of its name when it is needed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

import click as plain_click
import rich_click as click

from splitbit_kit import __version__
from splitbit_kit.cli.options import CONTEXT, option
from splitbit_kit.cli.settings import VERBS

if TYPE_CHECKING:
    from splitbit_kit._metadata import EntryPoint

NAME = "splitbit-kit"


class Verbs(click.RichGroup):
    """Our verbs, then those of other distributions, which are listed without being imported."""

    def list_commands(self, context: plain_click.Context) -> list[str]:
        """Return the names of all verbs."""
        return [*VERBS, *context.obj.foreign_verbs]

    def get_command(self, context: plain_click.Context, name: str) -> plain_click.Command | None:
        """Return a verb by name; a foreign one as it is listed."""
        if name in VERBS:
            module = import_module(f"splitbit_kit.cli.{name.replace('-', '_')}")
            found: plain_click.Command = module.command
            return found
        entry = context.obj.foreign_verbs.get(name)
        return None if entry is None else ForeignVerb(name, entry)

    def resolve_command(
        self, context: plain_click.Context, args: list[str]
    ) -> tuple[str | None, plain_click.Command | None, list[str]]:
        """Return the verb that is to run, imported."""
        name = args[0]
        command = self.get_command(context, name)
        if command is None:
            hint = _nearest(name, self.list_commands(context))
            raise plain_click.UsageError(f"there is no command {name!r}{hint}", context)
        if isinstance(command, ForeignVerb):
            command = command.load()
        return name, command, args[1:]


class ForeignVerb(click.RichCommand):
    """A verb of another distribution, known from its metadata only."""

    def __init__(self, name: str, entry: EntryPoint) -> None:
        super().__init__(name=name, help=f"From {entry.distribution} {entry.version}.")
        self.entry = entry

    def load(self) -> plain_click.Command:
        """Import the verb. Raises SplitbitError naming the distribution if that fails."""
        from splitbit_kit.api import SplitbitError

        origin = f"command {self.name} of {self.entry.distribution} {self.entry.version}"
        try:
            found = self.entry.load()
        except (Exception, SystemExit) as error:
            raise SplitbitError(
                f"{origin} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, plain_click.Command):
            raise SplitbitError(f"{origin}: a click command is expected, not {found!r}")
        return found


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


@click.group(NAME, cls=Verbs, context_settings=CONTEXT)
@option(
    "-p",
    "plugins",
    multiple=True,
    metavar="NAME",
    default_text="all that are installed",
    help="no:NAME leaves a plugin out. Repeatable; may stand anywhere on the line.",
)
@option(
    "--no-plugins",
    is_flag=True,
    default_text="off",
    help="Load none but our own plugins. May stand anywhere.",
)
@option(
    "--debug",
    is_flag=True,
    default_text="off",
    help="Show the traceback of an error. May stand anywhere.",
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
def app(plugins: tuple[str, ...], no_plugins: bool, debug: bool) -> None:
    """Train small language models on ordinary CPUs, and let them write.

    Every command has its own --help, with an example.

    \b
    Examples:
      splitbit-kit train
      splitbit-kit train texts/ --preset nanogpt-laptop --out runs/bard
      splitbit-kit generate runs/bard --prompt "ROMEO:"
    """
    # -p, --no-plugins and --debug are here for the help alone: `cli/settings.py` has taken them
