"""Options that several verbs share, and those that stand for a key of the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

Command = TypeVar("Command", bound=Callable[..., Any])

CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "rich_help_config": {
        "theme": "default-slim",
        "enable_theme_env_var": False,
        "max_width": 100,
        "text_markup": None,
        "text_paragraph_linebreaks": "\n\n",
        "padding_helptext_first_line": (0, 0, 1, 0),
    },
}
"""How every help text looks."""


def option(*names: str, default_text: str, help: str, **attributes: Any) -> Callable[[Any], Any]:
    """Declare an option whose help ends with its default, in words."""
    return click.option(*names, help=f"{help} [default: {default_text}]", **attributes)


class ConfigOption(click.RichOption):
    """An option that stands for a key of the configuration, "section.key"."""

    def __init__(self, *names: Any, key: str, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.key = key


def config_option(*names: str, key: str, **attributes: Any) -> Callable[[Any], Any]:
    """Declare an option that stands for a key; None if it is not given."""
    return option(*names, cls=ConfigOption, key=key, default=None, **attributes)


def given(context: click.Context) -> dict[str, Any]:
    """Return the configuration keys whose options were given, and their values."""
    return {
        param.key: context.params[param.name]
        for param in context.command.params
        if isinstance(param, ConfigOption) and context.params[param.name or ""] is not None
    }


def texts_argument(command: Command) -> Command:
    """Add TEXTS."""
    add = click.argument(
        "texts",
        nargs=-1,
        metavar="[TEXTS]...",
        type=click.Path(path_type=str),  # a Path would take "./builtin" for "builtin"
        panel="Text",
        help="Files (.txt, .jsonl, .gz of either, .parquet), folders; none: the built-in corpus.",
    )
    added: Command = add(command)
    return added


ENCODING = {
    "default_text": "by byte-order mark, else UTF-8",
    "metavar": "NAME",
    "panel": "Text",
    "help": "Encoding of the texts.",
}
TEXT_COLUMN = {
    "default_text": "text",
    "metavar": "NAME",
    "panel": "Text",
    "help": "The field of a row of .jsonl or .parquet that holds its text.",
}


def text_options(command: Command) -> Command:
    """Add the options that say how texts are read."""
    for add in (option("--text-column", **TEXT_COLUMN), option("--encoding", **ENCODING)):
        command = add(command)
    return command


def compute_options(command: Command) -> Command:
    """Add the options that say what does the arithmetic."""
    for add in reversed(
        (
            config_option(
                "--backend",
                key="compute.backend",
                default_text="auto",
                metavar="NAMES",
                panel="Compute",
                help="Backends, with commas between, the preferred first; auto: the fastest.",
            ),
            config_option(
                "--precision",
                key="compute.precision",
                default_text="auto, the backend's choice",
                metavar="NAME",
                panel="Compute",
                help="auto, fp32, bf16 or fp64.",
            ),
            config_option(
                "--threads",
                key="compute.threads",
                default_text="the usable physical cores",
                type=int,
                metavar="N",
                panel="Compute",
                help="Threads to compute with.",
            ),
        )
    ):
        command = add(command)
    return command


def json_option(command: Command) -> Command:
    """Add --json."""
    add = option(
        "--json",
        "as_json",
        is_flag=True,
        panel="Output",
        default_text="off",
        help="End with one JSON object on standard output; all else goes to standard error.",
    )
    added: Command = add(command)
    return added
