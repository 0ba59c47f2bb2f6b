"""The command `splitbit-kit`, also as `python -m splitbit_kit`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitbit_kit.cli.settings import Settings

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, 1 for a failure, 2 for a wrong request.

    argv: the arguments without the program's name; those of the process if None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _never_fail_on_output()
    from splitbit_kit.cli.settings import take_debug, take_plugin_options

    debug, arguments = take_debug(arguments)
    try:
        code = _run(*take_plugin_options(arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _close_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _explain(error)


def _run(settings: Settings, arguments: list[str]) -> int:
    import click

    from splitbit_kit.cli.app import NAME, app

    if completion := os.environ.get("_SPLITBIT_KIT_COMPLETE"):
        from click.shell_completion import shell_complete

        return shell_complete(app, {"obj": settings}, NAME, "_SPLITBIT_KIT_COMPLETE", completion)
    try:
        with app.make_context(NAME, arguments, obj=settings) as context:
            app.invoke(context)
    except click.exceptions.Exit as request:
        return request.exit_code
    except click.exceptions.NoArgsIsHelpError as request:
        print(request.message)
        return request.exit_code
    return 0


def _explain(error: Exception) -> int:
    """Say in one line what went wrong, and return the exit code for it."""
    import click

    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f"; see {context.command_path} --help" if context else ""
        _say(f"error: {error.format_message().rstrip('.')}{hint}")
        return 2
    if isinstance(error, click.Abort):
        _say("interrupted")
        return INTERRUPTED

    from splitbit_kit.api import SplitbitError

    if isinstance(error, SplitbitError):
        _say(f"error: {error}")
        return error.exit_code
    if isinstance(error, OSError) and error.filename:
        _say(f"error: {os.fsdecode(error.filename)}: {error.strerror}")
        return 1
    if isinstance(error, MemoryError):
        _say(f"error: not enough memory; a smaller model or batch needs less ({error})")
        return 1
    _say(
        f"unexpected error: {type(error).__name__}: {error}; "
        "run with --debug for the traceback, and please report it"
    )
    return 1


def _say(line: str) -> None:
    """Print one line on standard error, whatever is in it, if anyone is there to read it."""
    with suppress(OSError):
        print(one_line(line), file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """Return text without control characters: a file's name must not move the cursor."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def _never_fail_on_output() -> None:
    """Let a character that the console's encoding lacks come out as '?', not as an exception.

    A stream that was closed before we began swallows what is written.

    The encoding stays the one that the system says, since other programs read by it. What must
    arrive unchanged wherever it goes, the object of --json, is plain ASCII.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115, for good
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _close_stdout() -> None:
    """Whoever read standard output is gone; do not let the interpreter complain about it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
