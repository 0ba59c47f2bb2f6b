"""The verb `eval`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, compute_options, json_option, text_options
from splitbit_kit.cli.output import emit, people, show
from splitbit_kit.cli.settings import Settings

JSON_KEYS = {
    "model": "which model was measured, in words",
    "text": "the text it was measured on",
    "loss": "mean nats a token",
    "perplexity": "exp(loss); null if that is beyond any number",
    "bits_per_byte": "bits a byte of text, which compares models whatever their tokenizers",
    "tokens": "tokens that were predicted",
    "time_s": "seconds spent on it, loading excluded",
    "backend": "the backends, the preferred first",
    "precision": "fp32, bf16 or fp64",
    "threads": "threads computed with",
}


@click.command("eval", context_settings=CONTEXT)
@click.argument(
    "run",
    metavar="RUN",
    type=click.Path(path_type=Path),
    panel="Model",
    help="A run folder, or best, final or a checkpoint in one, or a model file there.",
)
@click.argument(
    "text",
    metavar="TEXT",
    type=click.Path(path_type=str),  # a Path would take "./builtin" for "builtin"
    panel="Model",
    help="A file or folder of text that the model was not trained on.",
)
@text_options
@compute_options
@json_option
@click.pass_context
def command(
    context: click.RichContext,
    /,
    run: Path,
    text: str,
    encoding: str | None,
    text_column: str | None,
    backend: str | None,
    precision: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure how well a model predicts a text.

    A run folder means its best model, else the final one, else the newest checkpoint; standard
    error says which it was. The text is read in windows of the model's context, side by side.

    \b
    Example:
      splitbit-kit eval runs/bard held-out.txt
    """
    from splitbit_kit.cli.console import training_view
    from splitbit_kit.model import load
    from splitbit_kit.text.corpus import COLUMN
    from splitbit_kit.training.config import DataConfig
    from splitbit_kit.training.data import encode_file

    settings: Settings = context.obj
    model = load(
        run, backend or "auto", precision or "auto", threads or 0, settings.registry(show), show
    )
    show(f"model: {model.label}")
    begun = time.perf_counter()
    view = training_view(sys.stderr)
    try:
        data = DataConfig(encoding=encoding or "", column=text_column or COLUMN)
        ids = encode_file(text, model.tokenizer, data, view.notify, view.progress)
    finally:
        view.close()
    found = model.evaluate(ids)
    seconds = time.perf_counter() - begun
    print(f"loss           {found.loss:.4f} nats per token", file=people(as_json))
    print(f"perplexity     {found.perplexity:.2f}", file=people(as_json))
    print(f"bits per byte  {found.bits_per_byte:.4f}", file=people(as_json))
    print(f"tokens         {found.tokens:,} in {seconds:.1f} s", file=people(as_json))
    if as_json:
        emit(
            JSON_KEYS,
            {
                "model": model.label,
                "text": text,
                **vars(found),
                "time_s": seconds,
                "backend": model.compute.name,
                "precision": model.compute.precision,
                "threads": model.compute.threads,
            },
        )
