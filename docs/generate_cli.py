"""Write docs/cli.md from the commands themselves: python docs/generate_cli.py [--check]

With --check nothing is written; the exit code is 1 if the page is not what it should be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc
from pathlib import Path

import click
from rich_click import RichContext

from splitbit_kit.cli.app import NAME, app
from splitbit_kit.cli.options import CONTEXT
from splitbit_kit.cli.settings import VERBS, Settings

PAGE = Path(__file__).with_name("cli.md")

INTRODUCTION = """\
# The command line

This page is made by `python docs/generate_cli.py` from the commands themselves; a test fails when
it is stale.

Exit codes: 0 for success, 1 for a failure, 2 for a wrong request, 130 after Ctrl-C or SIGTERM. An
error is one line on standard error; `--debug` adds the traceback.

With `--json` the last line of standard output is one JSON object in plain ASCII, and everything
else goes to standard error. Keys may be added, but are never dropped. A number that JSON cannot
write (infinity) is `null`.

On a terminal, progress is a moving line with colours; piped, or with `NO_COLOR` set or `TERM=dumb`,
it is plain lines with the time. A character that the console's encoding lacks is written as `?`.

Shell completion: `eval "$(_SPLITBIT_KIT_COMPLETE=bash_source splitbit-kit)"`, likewise `zsh_source`
and `fish_source`.
"""


def page() -> str:
    """Return the whole page."""
    root = RichContext(app, info_name=NAME, obj=Settings(), **CONTEXT)
    parts = [INTRODUCTION, *section(app, root)]
    for verb in VERBS:
        command = app.get_command(root, verb)
        assert command is not None
        parts += sections(command, RichContext(command, root, info_name=verb, **CONTEXT))
    return "\n".join(parts)


def sections(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the parts about a verb and its own verbs."""
    yield from section(command, context)
    for name, options in (("JSON_KEYS", "--json"), ("PLAN_KEYS", "--dry-run --json")):
        if keys := getattr(import_module(command.callback.__module__), name, {}):
            yield f"Keys of `{options}`:\n"
            yield table(("key", "meaning"), [(f"`{k}`", v) for k, v in keys.items()])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from sections(inner, RichContext(inner, context, info_name=name, **CONTEXT))


def section(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the parts about one command."""
    yield f"## {context.command_path}\n"
    yield f"```\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.strip("\b\n").split("\n")
            yield f"{lines[0]}\n\n```sh\n" + "\n".join(line.strip() for line in lines[1:])
            yield "```\n"
        else:
            yield f"{paragraph}\n"
    rows = [row(param) for param in command.get_params(context)]
    yield table(("", "", "default"), rows)


def row(param: click.Parameter) -> tuple[str, str, str]:
    """Return an option's or argument's names, meaning and default."""
    help_text, _, default = (getattr(param, "help", "") or "").partition(" [default: ")
    if isinstance(param, click.Argument):
        return f"`{param.human_readable_name}`", help_text, ""
    names = ", ".join(param.opts)
    value = "" if getattr(param, "is_flag", False) else f" {param.metavar}"
    return f"`{names}{value}`", help_text, default.removesuffix("]")


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return (
        "\n".join(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in r)} |" for r in lines)
        + "\n"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text("utf-8") != page())
    PAGE.write_text(page(), "utf-8")
