"""The verb `train`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from splitbit_kit.cli.options import (
    CONTEXT,
    ENCODING,
    TEXT_COLUMN,
    compute_options,
    config_option,
    given,
    json_option,
    option,
    texts_argument,
)
from splitbit_kit.cli.output import emit, people
from splitbit_kit.cli.settings import Settings

if TYPE_CHECKING:
    from splitbit_kit.api import RunEnded, RunStarted, SplitbitError
    from splitbit_kit.cli.console import TrainingView
    from splitbit_kit.training.plan import Plan
    from splitbit_kit.training.rates import Rate

JSON_KEYS = {
    "run": "the run folder",
    "preset": "the preset's name",
    "tier": "the tier that decided what neither the preset nor anything else did",
    "parameters": "how many numbers are trained",
    "backend": "the backends, the preferred first",
    "precision": "fp32, bf16 or fp64",
    "threads": "threads computed with",
    "reason": "finished; or interrupted, and then the exit code is 130",
    "total_steps": "optimizer steps made, those before a resume included",
    "epochs": "passes over the training text",
    "best_loss": "lowest validation loss in nats a token; null if none was measured",
    "final_loss": "newest validation loss in nats a token; null if none was measured",
    "total_time_s": "seconds spent on the run, evaluations and samples included",
    "tokens_per_second": "tokens trained on in a second of that time",
    "quantizer": "the format of the best model's quantised copy; null, as the next, without one",
    "quantized_model": "its file, a model for generate and eval",
    "quantized_bytes": "the size of that file",
    "quantized_loss": "its validation loss in nats a token; best_loss is that of the model itself",
}

PLAN_KEYS = {
    "preset": "the preset's name",
    "parameters": "how many numbers are trained",
    "backend": "the backends, the preferred first",
    "precision": "fp32, bf16 or fp64",
    "threads": "threads computed with",
    "steps": "optimizer steps",
    "tokens_per_step": "tokens in a step, all micro-batches together",
    "memory": "bytes at the peak, part by part: parameters, gradients, moments, activations, "
    "backend, copies, data, interpreter",
    "memory_total": "bytes, their sum",
    "memory_peak": "the greater of that and what making the tokenizer has taken",
    "memory_available": "bytes that are free, with what this process holds",
    "compiled": "whether kernels had to be compiled: the interpreter's part is then too high for "
    "later runs",
    "tokens_per_second": "of the steps alone",
    "rate": "where that is from: measured, just now; cached, measured before; or extrapolated from "
    "the smallest steps, and only roughly right",
    "time": "seconds: training, evaluations, samples",
    "time_total": "seconds, their sum",
    "disk": "bytes of the run folder when it is fullest: checkpoints, best, final, copies, "
    "temporary, metrics; and tokens, which are in the cache",
    "disk_total": "bytes of the run folder, tokens aside",
    "disk_available": "bytes that are free there, with what the run replaces",
    "fits": "whether `train` would begin",
}
"""What `--dry-run --json` has instead."""

PRESET = "the preset's"
PRESET_OR_TIER = "the preset's, else the tier's"


def share_or_file(value: str) -> float | str:
    """Return a number where the text is one, otherwise the absolute path."""
    try:
        return float(value)
    except ValueError:
        from splitbit_kit.text.corpus import absolute

        return absolute(value)


def existing_path(value: str) -> str:
    """Return the absolute path of what is to be read."""
    return str(Path(value).resolve())


def named_or_none(
    context: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> list[str] | None:
    """Return the names, None if the option was not given, which is no empty list."""
    return list(value) or None


def names_in(table: str) -> str:
    """Return the names of presets or tiers, for a help text, which must do without NumPy."""
    text = files("splitbit_kit.models").joinpath(f"{table}.toml").read_text("utf-8")
    return ", ".join(tomllib.loads(text))


@click.command("train", context_settings=CONTEXT)
@texts_argument
@config_option("--encoding", key="data.encoding", **ENCODING)
@config_option("--text-column", key="data.column", **TEXT_COLUMN)
@config_option(
    "--validation",
    key="data.validation",
    default_text="0.1",
    type=share_or_file,
    metavar="FILE|SHARE",
    panel="Text",
    help="Text for validation, never trained on: a file, or the last share of the tokens.",
)
@config_option(
    "--strict",
    key="data.strict",
    default_text="off",
    is_flag=True,
    panel="Text",
    help="Take files in a folder that are not text for an error.",
)
@config_option(
    "--tokenizer",
    key="tokenizer.file",
    default_text="one is learnt from the texts",
    type=existing_path,
    metavar="FILE",
    panel="Text",
    help="A tokenizer.json of ours to use, as tokenizer train writes it.",
)
@option(
    "--preset",
    default_text="the tier's",
    metavar="NAME",
    panel="Model",
    help=f"What to start from: {names_in('presets')}.",
)
@option(
    "--tier",
    default_text="this machine's; splitbit-kit probe shows it",
    metavar="NAME",
    panel="Model",
    help=f"What kind of machine to train for: {names_in('tiers')}.",
)
@option(
    "--config",
    "file",
    default_text="none",
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    panel="Model",
    help="Settings, section by section; they win over the preset.",
)
@option(
    "--set",
    "assignments",
    multiple=True,
    default_text="none",
    metavar="KEY=VALUE",
    panel="Model",
    help="One setting, such as model.layers=6; wins over the file. Repeatable.",
)
@config_option(
    "--steps",
    key="train.steps",
    default_text=PRESET_OR_TIER,
    type=int,
    metavar="N",
    panel="Training",
    help="Optimizer steps; they win over --epochs.",
)
@config_option(
    "--epochs",
    key="train.epochs",
    default_text=PRESET,
    type=float,
    metavar="X",
    panel="Training",
    help="Passes over the training text.",
)
@config_option(
    "--batch-size",
    key="train.batch_size",
    default_text=PRESET_OR_TIER,
    type=int,
    metavar="N",
    panel="Training",
    help="Sequences in a micro-batch; 0: the tier's.",
)
@config_option(
    "--seq-len",
    key="train.seq_len",
    default_text="the preset's, else the context",
    type=int,
    metavar="N",
    panel="Training",
    help="Tokens in a sequence.",
)
@config_option(
    "--grad-accum",
    key="train.grad_accum",
    default_text="the preset's, else the tier's, else 1",
    type=int,
    metavar="N",
    panel="Training",
    help="Micro-batches in a step.",
)
@config_option(
    "--seed",
    key="train.seed",
    default_text="1",
    type=int,
    metavar="N",
    panel="Training",
    help="What all randomness comes from.",
)
@config_option(
    "--lr",
    key="optimizer.lr",
    default_text=f"{PRESET_OR_TIER}, as suits the optimizer",
    type=float,
    metavar="X",
    panel="Optimizer",
    help="Highest learning rate.",
)
@config_option(
    "--grad-clip",
    key="train.grad_clip",
    default_text="1.0",
    type=float,
    metavar="X",
    panel="Optimizer",
    help="Greatest norm of the whole gradient; 0 clips nothing.",
)
@config_option(
    "--optimizer",
    key="optimizer.name",
    default_text="the preset's, else adamw",
    metavar="NAME",
    panel="Optimizer",
    help="See splitbit-kit list-plugins --kind optimizer.",
)
@config_option(
    "--scheduler",
    key="scheduler.name",
    default_text="the preset's, else cosine",
    metavar="NAME",
    panel="Optimizer",
    help="Learning-rate schedule; see splitbit-kit list-plugins --kind scheduler.",
)
@compute_options
@config_option(
    "--eval-every",
    key="train.eval_every",
    default_text="a tenth of the run",
    type=int,
    metavar="STEPS",
    panel="Run folder",
    help="Measure the validation loss so often.",
)
@config_option(
    "--save-every",
    key="checkpoint.save_every",
    default_text="--eval-every",
    type=int,
    metavar="STEPS",
    panel="Run folder",
    help="Save a checkpoint so often.",
)
@config_option(
    "--quantizer",
    key="quantize.format",
    default_text="none",
    metavar="NAME",
    panel="Run folder",
    help="Keep a quantised copy of the best model; auto: the tier's format. See splitbit-kit "
    "list-plugins --kind quantizer.",
)
@config_option(
    "--quantize-every",
    key="quantize.every",
    default_text="0, never",
    type=int,
    metavar="STEPS",
    panel="Run folder",
    help="Save a checkpoint so often with a quantised copy in it.",
)
@config_option(
    "--sample-every",
    key="sample.every",
    default_text="--eval-every",
    type=int,
    metavar="STEPS",
    panel="Run folder",
    help="Let the model write a sample so often.",
)
@config_option(
    "--track",
    key="track.names",
    default_text="none",
    multiple=True,
    callback=named_or_none,
    metavar="NAME",
    panel="Run folder",
    help="Let a tracker record the run too; see splitbit-kit list-plugins --kind tracker. "
    "Repeatable.",
)
@option(
    "--out",
    default_text="runs/PRESET-N, a new one",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    panel="Run folder",
    help="Where the run goes.",
)
@option(
    "--overwrite",
    is_flag=True,
    default_text="off",
    panel="Run folder",
    help="Replace the run that is in --out.",
)
@option(
    "--resume",
    default_text="a new run",
    metavar="RUN",
    type=click.Path(path_type=Path),
    panel="Run folder",
    help="Go on with a run from its newest checkpoint. Only --steps, --epochs, --backend, "
    "--eval-every, --save-every, --sample-every, --quantizer, --quantize-every and --track may "
    "change.",
)
@option(
    "--dry-run",
    is_flag=True,
    default_text="off",
    panel="Output",
    help="Only say what the training would take: memory, time, disk. A speed that is not known yet "
    "is measured for some seconds.",
)
@json_option
@click.pass_context
def command(
    context: click.RichContext,
    /,
    texts: tuple[str, ...],
    preset: str | None,
    tier: str | None,
    file: Path | None,
    assignments: tuple[str, ...],
    out: Path | None,
    overwrite: bool,
    resume: Path | None,
    dry_run: bool,
    as_json: bool,
    **flags: Any,  # those that stand for keys of the configuration; see `given`
) -> None:
    """Train a language model on text.

    Without arguments a small model learns the built-in corpus in about three minutes: which model,
    the machine's tier decides. A preset says more than a tier; --config, --set and the other
    options, in that order, win over both.

    Ctrl-C saves and stops; a second one stops at once. Either way --resume goes on from the
    newest checkpoint, and ends with the same bits as if nothing had happened.

    \b
    Examples:
      splitbit-kit train
      splitbit-kit train texts/ more.txt --preset nanogpt-laptop --out runs/bard
      splitbit-kit train texts/ --steps 2000 --set model.layers=6
      splitbit-kit train texts/ --preset gpt2-124m --dry-run
      splitbit-kit train --resume runs/bard --steps 4000
    """
    from splitbit_kit.cli.console import training_view
    from splitbit_kit.training import run
    from splitbit_kit.training.config import build_config
    from splitbit_kit.training.signals import EXIT_CODE
    from splitbit_kit.training.trainer import Interrupted

    settings: Settings = context.obj
    view = training_view(people(as_json))
    registry = settings.registry(view.notify)
    around = run.Surroundings(registry, (view,), view.notify, view.progress)
    interrupted = False
    try:
        if resume is None:
            config = build_config(
                preset,
                file,
                assignments,
                given(context),
                tier=tier,
                machine=registry.probe().tier,
                lr_scale=run.lr_scale_in(registry),
            )
            if dry_run:
                plan, rate, refused = run.dry_run(
                    config, texts, out, overwrite=overwrite, around=around
                )
                show_plan(plan, rate, refused, view, as_json)
                return
            run.train(config, texts, out, overwrite=overwrite, around=around)
        else:
            refuse_with_resume(resume, file, out, overwrite, dry_run)
            run.resume(
                resume,
                changes(context, texts, assignments, preset=preset, tier=tier),
                around=around,
            )
    except Interrupted:
        interrupted = True
    finally:
        view.close()
    if as_json and view.started and view.ended:
        emit(JSON_KEYS, values(view.started, view.ended))
    if interrupted:
        context.exit(EXIT_CODE)


def show_plan(
    plan: Plan, rate: Rate, refused: SplitbitError | None, view: TrainingView, as_json: bool
) -> None:
    """Show a plan, and then raise why it would be refused, if it would."""
    from splitbit_kit.cli.plan_view import plan_lines, plan_values

    for line in plan_lines(plan, rate, refused):
        view.notify(line)
    if as_json:
        emit(PLAN_KEYS, plan_values(plan, rate, refused))
    if refused is not None:
        raise refused


def refuse_with_resume(
    resume: Path, file: Path | None, out: Path | None, overwrite: bool, dry_run: bool
) -> None:
    """Raise UsageError for what makes no sense beside --resume, whatever the run is."""
    from splitbit_kit.api import UsageError

    if file is not None:
        raise UsageError("--config: a resumed run keeps its settings; say what changes by options")
    if out is not None and out.resolve() != resume.resolve():
        raise UsageError(f"--out: a resumed run stays where it is, in {resume}")
    if overwrite:
        raise UsageError("--overwrite: a run is either replaced or resumed; leave one of them out")
    if dry_run:
        raise UsageError("--dry-run: it plans a new run; leave --resume out")


def changes(
    context: click.Context, texts: Sequence[str], assignments: Sequence[str], **names: str | None
) -> dict[str, Any]:
    """Return all that was said about a run to resume, for the run to judge: key -> value."""
    from splitbit_kit.text.corpus import absolute
    from splitbit_kit.training.config import parse_assignment

    found: dict[str, Any] = {key: name for key, name in names.items() if name is not None}
    if texts:
        found["data.paths"] = [absolute(path) for path in texts]
    return {**found, **dict(map(parse_assignment, assignments)), **given(context)}


def values(started: RunStarted, ended: RunEnded) -> dict[str, Any]:
    """Return what --json reports of a run."""
    return {
        "run": str(started.folder),
        "preset": started.config["preset"],
        "tier": started.config["tier"],
        "parameters": started.parameters,
        **started.config["compute"],
        "reason": ended.reason,
        **ended.statistics,
    }
