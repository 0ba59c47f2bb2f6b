"""A training run from its configuration: begin it, or go on with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from splitbit_kit.api import Optimizer, Schedule, SplitbitError, UsageError
from splitbit_kit.compute import Compute, choose
from splitbit_kit.formats import durable, jsonl
from splitbit_kit.formats.checkpoint import newest_valid
from splitbit_kit.formats.lock import run_lock
from splitbit_kit.models import tiers
from splitbit_kit.quantize import Format
from splitbit_kit.registry import Registry, options_of
from splitbit_kit.text.batches import Windows, samples_for_epochs, steps_for_epochs
from splitbit_kit.text.corpus import absolute
from splitbit_kit.text.progress import Progress, unheard
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.training.config import (
    NAMES,
    Config,
    OptimizerConfig,
    SchedulerConfig,
    build_config,
    from_dict,
    on_tier,
    put,
    table_of,
    to_dict,
)
from splitbit_kit.training.copies import Copies, chosen_format
from splitbit_kit.training.data import Data, prepare
from splitbit_kit.training.learner import build_learner
from splitbit_kit.training.machine import machine_facts, software_versions
from splitbit_kit.training.plan import Plan, check, make_plan, refuse
from splitbit_kit.training.rates import Rate, rate
from splitbit_kit.training.run_folder import RunFolder, config_toml, new_folder
from splitbit_kit.training.signals import stop_requests
from splitbit_kit.training.summary import chosen, own_rate
from splitbit_kit.training.tracking import Tracking
from splitbit_kit.training.trainer import Listener, Trainer

CHANGEABLE = (
    "train.steps",
    "train.epochs",
    "train.eval_every",
    "train.check_resources",
    "checkpoint.save_every",
    "quantize.format",
    "quantize.every",
    "quantize.options",
    "sample.every",
    "compute.backend",
    "track.names",
    "track.options",
)
"""What a resumed run may set anew."""


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and its closing statistics."""

    folder: Path
    statistics: Mapping[str, Any]


@dataclass(frozen=True)
class Surroundings:
    """Where a run finds plugins, and whom it tells what."""

    registry: Registry = field(default_factory=Registry)
    listeners: Sequence[Listener] = ()  # each gets every event
    notify: Callable[[str], None] = lambda line: None  # a line for the user
    progress: Progress = unheard  # how far the text is, before the first step


def train(
    config: Config | Mapping[str, Any] | str | None = None,
    data: Sequence[str | Path] | str | Path = (),
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    around: Surroundings | None = None,
) -> Run:
    """Train a model and return the run.

    config: a preset's name, nested plain data (section -> key -> value, "preset" and "tier" ->
    name), or a `Config`; what the machine's tier picks if None. data: text files and folders; the
    built-in corpus if empty. out: the run folder; runs/PRESET-N if None. Raises SplitbitError, and
    Interrupted after saving if a signal asked the run to stop.
    """
    around = around or Surroundings()
    config, folder = _asked(config, data, out, overwrite, around)
    tracking = Tracking(around.registry, config.track, around.notify)
    around = replace(around, listeners=(*around.listeners, tracking))
    with _trainer(folder, config, None, around) as trainer, tracking:
        if overwrite:
            _replace(trainer.folder, tracking)
        else:
            _refuse_run(trainer.folder)  # another training may have begun and ended here meanwhile
            tracking.begin(trainer.folder.trackers)
        trainer.folder.begin(trainer.config, trainer.data.tokenizer)
        _tell_choice(trainer.config, around)
        return Run(trainer.folder.path, trainer.run())


def dry_run(
    config: Config | Mapping[str, Any] | str | None = None,
    data: Sequence[str | Path] | str | Path = (),
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    around: Surroundings | None = None,
) -> tuple[Plan, Rate, SplitbitError | None]:
    """Return what `train` would take, how fast it would go, and why it would refuse, if it would.

    Arguments and errors are those of `train`. No run folder is written; token files and, where it
    had to be measured, the speed are kept in the cache.
    """
    around = around or Surroundings()
    config, folder = _asked(config, data, out, overwrite, around)
    Tracking(around.registry, config.track, around.notify)  # refuses what `train` would
    found = _prepare(config, None, around)
    registry, path = around.registry, folder.path if folder else None
    _tell_choice(found.config, around)
    plan = make_plan(found.config, found.data, found.windows, registry, path)
    refused = None
    if found.config.train.check_resources:
        try:
            refuse(plan, registry, found.data.tokenizer.vocab_size)
        except SplitbitError as error:
            refused = error
    speed = rate(found.config, found.data, found.windows, plan, registry, around.notify)
    return plan, speed, refused


def _asked(
    config: Config | Mapping[str, Any] | str | None,
    data: Sequence[str | Path] | str | Path,
    out: str | Path | None,
    overwrite: bool,
    around: Surroundings,
) -> tuple[Config, RunFolder | None]:
    """Return a new run's configuration and folder; what makes no sense in them is refused."""
    config = _with_absolute_paths(_as_config(config, around.registry), data)
    if config.train.steps:
        config = config.with_keys(train__epochs=0.0)  # steps win
    config_toml(config)  # what could not be kept is refused before anything is written
    folder = RunFolder(Path(out)) if out else None
    _refuse_place(folder)
    if folder and not overwrite:
        _refuse_run(folder)
    return config, folder


def _tell_choice(config: Config, around: Surroundings) -> None:
    around.notify(chosen(config, around.registry.probe()))
    if line := own_rate(config, lr_scale_in(around.registry)):
        around.notify(line)


def _replace(folder: RunFolder, tracking: Tracking) -> None:
    """Delete the run that is there, once the new one's trackers stand: one that cannot is no loss.

    They are built where the old one's are, which are out of the way meanwhile.
    """
    aside = folder.path / durable.temporary_name()
    had = folder.trackers.exists()
    if had:
        durable.rename_folder(folder.trackers, aside)
    try:
        tracking.begin(folder.trackers)
    except BaseException:
        if had:
            durable.rename_folder(aside, folder.trackers)
        raise
    folder.clear(but=folder.trackers)
    durable.remove_temporaries(folder.path)


def _refuse_place(folder: RunFolder | None) -> None:
    """Raise UsageError if something that is no folder lies where a run would have to be made."""
    path = folder.path if folder else Path("runs")
    there = next((place for place in (path, *path.parents) if os.path.lexists(place)), None)
    if there is not None and not there.is_dir():
        raise UsageError(f"{there}: is in the way, being no folder; choose another --out")


def _refuse_run(folder: RunFolder) -> None:
    if folder.holds_run():
        raise UsageError(
            f"{folder.path}: holds a run; go on with --resume {folder.path}, "
            "replace it with --overwrite, or choose another --out"
        )
    if parts := folder.parts():
        raise UsageError(
            f"{parts[0]}: is in the way; choose another --out, or replace it with --overwrite"
        )


def resume(
    folder: str | Path,
    changes: Mapping[str, Any] | None = None,
    *,
    around: Surroundings | None = None,
) -> Run:
    """Go on with a run from its newest valid checkpoint, and return it when it is finished.

    changes: "section.key" -> value; only those in `CHANGEABLE` may differ from what the run has.
    """
    around = around or Surroundings()
    run = RunFolder(Path(folder))
    before = run.read_config()
    # of a run from before there were tiers, the tier is the machine's
    config = on_tier(changed(before, changes or {}), around.registry.probe().tier)
    tracking = Tracking(around.registry, config.track, around.notify)
    around = replace(around, listeners=(*around.listeners, tracking))
    with _trainer(run, config, Tokenizer.load(run.tokenizer), around) as trainer, tracking:
        if run.read_config() != before:
            raise SplitbitError(f"{run.path}: another training changed this run; try again")
        restored = _restore(trainer, around.notify)
        made = trainer.progress
        kinds = {"eval": made.evaluated, "sample": made.sampled}
        jsonl.cut_back(run.metrics, made.step if restored else -1, kinds)
        if trainer.config.compute != before.compute:
            around.notify(
                f"backend {before.compute.backend} -> {trainer.config.compute.backend}: "
                "from here on the bits differ from those of an uninterrupted run"
            )
        tracking.begin(run.trackers)
        run.write_config(trainer.config)
        around.notify(
            f"resuming {run.path} at step {trainer.progress.step} of {trainer.config.train.steps}"
        )
        return Run(run.path, trainer.run())


def _restore(trainer: Trainer, notify: Callable[[str], None]) -> bool:
    """Return whether there was a checkpoint to go back to.

    Nothing of it stays mapped: it is deleted in the course of the run, and must leave the disk.
    """
    saved, damaged = newest_valid(trainer.folder.checkpoints)
    for line in damaged:
        notify(f"passed over: {line}")
    if saved is None:
        return False
    trainer.restore(saved)
    made, wanted = trainer.progress.step, trainer.config.train.steps
    if wanted < made:
        raise UsageError(
            f"train.steps: {wanted} is below the {made} that the run has made already; "
            f"use --steps {made} or more"
        )
    return True


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return a run's configuration with changes. Raises UsageError naming a forbidden one."""
    data, defaults = to_dict(config), to_dict(Config())
    changes = _whole_tables(data, changes)
    for key, value in changes.items():
        held, default = _at(data, key), _at(defaults, key)
        if value == held:
            continue
        if key == "tokenizer.vocab_size" and value > held:
            continue  # the most that was wanted; the run has what came of it
        if key not in CHANGEABLE and value in (0, "auto") and value == default:
            continue  # what the run once resolved itself
        if key not in CHANGEABLE:
            raise UsageError(
                f"{key}: a resumed run keeps what it was begun with; "
                f"only {', '.join(CHANGEABLE)} can change"
            )
        section, _, name = key.partition(".")
        data[section][name] = value
    if "train.steps" in changes:
        data["train"]["epochs"] = 0.0
    elif "train.epochs" in changes:
        data["train"]["steps"] = 0
    if data["quantize"]["format"] != config.quantize.format:
        _drop_format(data["quantize"], changes)
    if "track.options" not in changes:
        named, options = data["track"]["names"], data["track"]["options"]
        data["track"]["options"] = {k: v for k, v in options.items() if k in named}
    if "compute.backend" in changes:
        data["compute"]["precision"] = _kept_precision(config)
    return from_dict(data)


def _whole_tables(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes in which a table stands for its keys, those that it keeps included."""
    found: dict[str, Any] = {}
    for key, value in changes.items():
        if (table := table_of(key)) is None:
            found[key] = value
            continue
        section, _, name = table.partition(".")
        inside = {name: found.get(table, _kept_options(data[section], changes))}
        put(inside, key.removeprefix(f"{section}."), value)
        found[table] = inside[name]
    return found


def _kept_options(section: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a section's options without what belonged to another format or tracker."""
    options = deepcopy(section["options"])
    if "names" in section:
        named = changes.get("track.names", section["names"])
        return {name: held for name, held in options.items() if name in named}
    return options if changes.get("quantize.format", section["format"]) == section["format"] else {}


def _drop_format(quantize: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Take back what belonged to another format, unless it was said anew."""
    if "quantize.options" not in changes:
        quantize["options"] = {}
    if quantize["format"] == "none" and "quantize.every" not in changes:
        quantize["every"] = 0


def _at(data: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    found = data.get(section)
    return found.get(name) if isinstance(found, dict) else found


def _kept_precision(config: Config) -> str:
    """fp64 is a property of the weights; another backend chooses anew between the others."""
    return "fp64" if config.compute.precision == "fp64" else "auto"


@dataclass(frozen=True)
class _Prepared:
    """A resolved configuration, with what was needed to resolve it."""

    config: Config
    compute: Compute
    data: Data
    windows: Windows
    form: Format | None  # of the copies


def _prepare(config: Config, tokenizer: Tokenizer | None, around: Surroundings) -> _Prepared:
    """Return what a run is made of. Nothing is written but token files in the cache."""
    registry, notify = around.registry, around.notify
    _check_lengths(config)
    _optimizer(registry, config)
    _schedule(registry, config, max(config.train.steps, 1))
    if config.quantize.format == "auto":
        config = config.with_keys(quantize__format=tiers.pick(config.tier).format)
    form = chosen_format(config.quantize, config.model, registry, notify)
    seq_len = config.train.seq_len or config.model.context
    compute = choose(
        registry,
        config.compute.backend,
        config.compute.precision,
        config.compute.threads,
        notify,
    )
    data = prepare(config.data, tokenizer or config.tokenizer, seq_len, notify, around.progress)
    config, windows = resolve(config, data, compute, registry)
    warmup = config.scheduler.options.get("warmup_steps", 0)
    if warmup >= config.train.steps:
        notify(
            f"warm-up of {warmup} steps is no shorter than the run of {config.train.steps}: "
            "the learning rate never reaches its peak; lower scheduler.warmup_steps"
        )
    return _Prepared(config, compute, data, windows, form)


@contextmanager
def _trainer(
    folder: RunFolder | None, config: Config, tokenizer: Tokenizer | None, around: Surroundings
) -> Iterator[Trainer]:
    """Yield a trainer at step 0, with all that is needed read and built, the folder locked.

    tokenizer: that of a run to resume. Raises SplitbitError if memory or disk is too small.
    """
    registry, notify = around.registry, around.notify
    found = _prepare(config, tokenizer, around)
    config, compute, data, windows = found.config, found.compute, found.data, found.windows
    if config.train.check_resources:
        path = folder.path if folder else None
        check(config, data, windows, registry, path, begun=tokenizer is not None)
    learner = build_learner(config, data.tokenizer.vocab_size, compute, registry)
    folder = folder or new_folder(config.preset)
    with run_lock(folder.path), stop_requests(notify) as should_stop:
        durable.remove_temporaries(folder.path)  # of a process that was killed
        yield Trainer(
            config,
            folder,
            data,
            learner,
            compute,
            windows,
            [*around.listeners, registry.event],
            copies=Copies(found.form, folder.best, registry, notify),
            should_stop=should_stop,
            notify=notify,
            machine=machine_facts(registry.probe()),
            versions=software_versions(
                (plugin.entry.distribution, plugin.entry.version)
                for plugin in registry.plugins
                if plugin.status == "ok"
            ),
        )


def resolve(
    config: Config, data: Data, compute: Compute, registry: Registry
) -> tuple[Config, Windows]:
    """Return the configuration without any 0 or auto, and the training samples it means."""
    train = config.train
    seq_len = train.seq_len or config.model.context
    windows = Windows(len(data.training), seq_len, train.seed)
    steps, epochs = train.steps, train.epochs
    by_epochs = steps_for_epochs(epochs, windows, train.batch_size * train.grad_accum)
    if epochs and steps in (0, by_epochs):
        steps = by_epochs
        limit = samples_for_epochs(epochs, windows)
        windows = Windows(len(data.training), seq_len, train.seed, limit)
    else:
        epochs = 0.0  # steps win
    if not steps:
        raise UsageError("train.steps: how long to train is not said; use --steps or --epochs")
    tenth = -(-steps // 10)
    eval_every = train.eval_every or tenth
    resolved = config.with_keys(
        optimizer__options=_all_options(registry, "optimizer", config.optimizer),
        scheduler__options=_all_options(registry, "scheduler", config.scheduler),
        tokenizer__kind=data.tokenizer.kind,
        tokenizer__vocab_size=data.tokenizer.vocab_size,
        train__seq_len=seq_len,
        train__steps=steps,
        train__epochs=epochs,
        train__eval_every=eval_every,
        checkpoint__save_every=config.checkpoint.save_every or eval_every,
        sample__every=config.sample.every or eval_every,
        compute__backend=compute.name,
        compute__precision=compute.precision,
        compute__threads=compute.threads,
    )
    return resolved, windows


def _all_options(
    registry: Registry, kind: str, chosen: OptimizerConfig | SchedulerConfig
) -> dict[str, Any]:
    """Return the options with those not given as they are now: a later default changes no run."""
    known = options_of(registry.offer(kind, chosen.name))
    defaults = {name: option.default for name, option in known.items()}
    return {**{k: v for k, v in defaults.items() if v is not None}, **chosen.options}


def _check_lengths(config: Config) -> None:
    if config.train.seq_len > config.model.context:
        raise UsageError(
            f"train.seq_len: {config.train.seq_len} is above model.context, "
            f"{config.model.context}; lower --seq-len to {config.model.context}, or "
            f"--set model.context={config.train.seq_len}"
        )


def _optimizer(registry: Registry, config: Config) -> Optimizer:
    chosen = config.optimizer
    built: Optimizer = registry.build("optimizer", chosen.name, **chosen.options)
    return built


def _schedule(registry: Registry, config: Config, steps: int) -> Schedule:
    chosen = config.scheduler
    built: Schedule = registry.build(
        "scheduler", chosen.name, lr=config.optimizer.lr, steps=steps, **chosen.options
    )
    return built


def _as_config(config: Config | Mapping[str, Any] | str | None, registry: Registry) -> Config:
    machine = registry.probe().tier
    if isinstance(config, Config):
        return on_tier(config, machine)
    if isinstance(config, Mapping):
        sections = {key: keys for key, keys in config.items() if key not in NAMES}
        preset, tier = (config.get(name) for name in NAMES)
        return build_config(
            preset, sections=sections, tier=tier, machine=machine, lr_scale=lr_scale_in(registry)
        )
    return build_config(config, machine=machine)


def lr_scale_in(registry: Registry) -> Callable[[str], float]:
    """Return what `build_config` asks for: optimizer -> its rate as a multiple of adamw's."""

    def scale(name: str) -> float:
        offered: float = registry.offer("optimizer", name).lr_scale
        return offered

    return scale


def _with_absolute_paths(config: Config, data: Sequence[str | Path] | str | Path) -> Config:
    """Return the configuration with all its texts named so that a resume finds them anywhere."""
    paths = [data] if isinstance(data, str | Path) else list(data)
    held_out, tokenizer = config.data.validation, config.tokenizer.file
    return config.with_keys(
        tokenizer__file=absolute(tokenizer) if tokenizer else "",
        data__paths=[absolute(path) for path in paths or config.data.paths],
        data__validation=absolute(held_out) if isinstance(held_out, str) else held_out,
    )
