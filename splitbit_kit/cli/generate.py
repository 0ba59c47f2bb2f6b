"""The verb `generate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, compute_options, json_option, option
from splitbit_kit.cli.output import emit, show
from splitbit_kit.cli.settings import Settings

JSON_KEYS = {
    "model": "which model was used, in words",
    "prompt": "the prompt",
    "text": "what follows the prompt",
    "seed": "with it, the same text comes again",
    "time_s": "seconds spent on generating, loading excluded",
    "backend": "the backends, the preferred first",
    "precision": "fp32, bf16 or fp64",
    "threads": "threads computed with",
}


@click.command("generate", context_settings=CONTEXT)
@click.argument(
    "run",
    metavar="RUN",
    type=click.Path(path_type=Path),
    panel="Model",
    help="A run folder, or best, final or a checkpoint in one, or a model file there.",
)
@option(
    "--prompt",
    default="",
    default_text="the beginning of a text",
    metavar="TEXT",
    panel="Text",
    help="What the text goes on from; - reads it from standard input, as UTF-8, "
    "without the line end at its end.",
)
@option(
    "--max-tokens",
    default=200,
    default_text="200",
    metavar="N",
    panel="Text",
    help="The most tokens to generate.",
)
@option(
    "--stop",
    multiple=True,
    default_text="none",
    metavar="TEXT",
    panel="Text",
    help="End before this text. Repeatable.",
)
@option(
    "--when-full",
    default="slide",
    default_text="slide",
    metavar="slide|refuse",
    panel="Text",
    help="When the context is full: go on with its newest half, or refuse at once.",
)
@option(
    "--temperature",
    default=0.8,
    default_text="0.8",
    metavar="X",
    panel="Sampling",
    help="Lower is likelier; 0 takes the likeliest token each time.",
)
@option(
    "--top-k",
    default=0,
    default_text="0, all",
    metavar="N",
    panel="Sampling",
    help="Only the N likeliest tokens.",
)
@option(
    "--top-p",
    default=1.0,
    default_text="1.0, all",
    metavar="X",
    panel="Sampling",
    help="Only the fewest tokens that together have this probability.",
)
@option(
    "--min-p",
    default=0.0,
    default_text="0.0, all",
    metavar="X",
    panel="Sampling",
    help="Only tokens with at least this share of the likeliest one's probability.",
)
@option(
    "--repetition-penalty",
    default=1.0,
    default_text="1.0, none",
    metavar="X",
    panel="Sampling",
    help="Above 1, tokens that are there already become less likely.",
)
@option(
    "--seed",
    type=int,
    default_text="another text each time",
    metavar="N",
    panel="Sampling",
    help="The same seed gives the same text.",
)
@compute_options
@json_option
@click.pass_context
def command(
    context: click.RichContext,
    /,
    run: Path,
    prompt: str,
    backend: str | None,
    precision: str | None,
    threads: int | None,
    seed: int | None,
    as_json: bool,
    **sampling: Any,  # the other settings of `splitbit_kit.generate.Sampling`, by name
) -> None:
    """Let a model write.

    The text comes on standard output as it is generated. A run folder means its best model, else
    the final one, else the newest checkpoint; standard error says which it was.

    \b
    Examples:
      splitbit-kit generate runs/bard --prompt "ROMEO:" --max-tokens 200 --seed 1
      splitbit-kit generate runs/bard --temperature 0.8 --top-k 40 --top-p 0.95
      splitbit-kit generate runs/bard/final --prompt - < beginning.txt
    """
    from secrets import randbits

    from splitbit_kit.generate import Sampling
    from splitbit_kit.model import load

    settings: Settings = context.obj
    sampling["seed"] = randbits(63) if seed is None else seed
    Sampling(**sampling)  # a bad setting is refused before anything is loaded
    prompt = read_prompt(prompt)
    model = load(
        run, backend or "auto", precision or "auto", threads or 0, settings.registry(show), show
    )
    show(f"model: {model.label}")
    begun = time.perf_counter()
    pieces = model.stream(prompt, **sampling)
    if not as_json:
        write_pieces(pieces)
        return
    emit(
        JSON_KEYS,
        {
            "model": model.label,
            "prompt": prompt,
            "text": "".join(pieces),
            "seed": sampling["seed"],
            "time_s": time.perf_counter() - begun,
            "backend": model.compute.name,
            "precision": model.compute.precision,
            "threads": model.compute.threads,
        },
    )


def read_prompt(prompt: str) -> str:
    """Return the prompt, from standard input if it is "-". Raises UsageError unless it is text."""
    from splitbit_kit.api import UsageError

    if prompt != "-":
        if any("\ud800" <= c <= "\udfff" for c in prompt):
            raise UsageError("--prompt: not text in the encoding of this system; try --prompt -")
        return prompt
    data = sys.stdin.buffer.read() if sys.stdin else b""  # None: it was closed
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt -: byte {error.start} is not UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def write_pieces(pieces: Iterator[str]) -> None:
    """Write text as it comes, and a line end after it. A terminal gets no control characters."""
    from splitbit_kit.cli.console import printable

    to_terminal = sys.stdout.isatty()
    try:
        for piece in pieces:
            sys.stdout.write(printable(piece) if to_terminal else piece)
            sys.stdout.flush()
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()
