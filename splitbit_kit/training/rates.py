"""How fast this machine trains a model: timed once, kept in the user's cache.

Nothing here is called while a run trains. A figure is kept in a file of its own, under a name made
of all that it depends on; a file that is damaged, or another's, counts as none.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from splitbit_kit.api import SplitbitError
from splitbit_kit.compute import choose
from splitbit_kit.evaluate import evaluate
from splitbit_kit.formats import durable, strict_json
from splitbit_kit.formats.untrusted import read_small
from splitbit_kit.generate import Window
from splitbit_kit.registry import Registry
from splitbit_kit.text.batches import EVALUATED_TOKENS, Windows, batch
from splitbit_kit.text.tokens import cache_folder
from splitbit_kit.training.config import Config
from splitbit_kit.training.data import Data
from splitbit_kit.training.learner import NonFiniteError, build_learner
from splitbit_kit.training.machine import processor_name, software_versions
from splitbit_kit.training.plan import Plan

FORMAT = "splitbit-kit rate 1"
CAP = 64 * 1024  # bytes of a file
LONGEST = 4.0  # seconds of a step; one that is thought to take longer is not tried
WARM, FEWEST, MOST, ENOUGH = 2, 3, 20, 1.5  # steps before, at least, at most; seconds of timing
FORWARD = 1 / 3  # of a step: the way back costs two multiplies for each of the way there


@dataclass(frozen=True)
class Seconds:
    """What was timed: seconds each."""

    micro_batch: float  # forward and backward
    update: float  # of the weights
    evaluated_token: float
    written_token: float  # of a sample


@dataclass(frozen=True)
class Rate:
    """How fast a training goes, in seconds for the whole of it where nothing else is said."""

    tokens_per_second: float  # of the steps alone
    training: float
    evaluations: float
    samples: float
    source: str
    """cached, measured (just now) or extrapolated (from the smallest steps; only roughly right)"""

    @property
    def total(self) -> float:
        """The time of the run; writing checkpoints is not in it."""
        return self.training + self.evaluations + self.samples


def rate(
    config: Config,
    data: Data,
    windows: Windows,
    plan: Plan,
    registry: Registry,
    notify: Callable[[str], None],
) -> Rate:
    """Return the speed of a resolved configuration, timed now if it never was on this machine.

    What does not fit into memory, or takes longer than `LONGEST`, is extrapolated instead.
    """
    key = _key(config, data.tokenizer.vocab_size, registry)
    if seconds := _read(key):
        return _rate(config, data, seconds, "cached")
    rough = plan.rehearsal.at(config.model.layers, config.train.batch_size).seconds
    if rough > LONGEST or not plan.memory_fits:
        tokens = config.train.batch_size * config.train.seq_len
        seconds = Seconds(rough, 0.0, FORWARD * rough / tokens, FORWARD * rough / tokens)
        return _rate(config, data, seconds, "extrapolated")
    notify("no speed is known for this training on this machine: a few steps are timed")
    seconds = _timed(config, data, windows, registry)
    try:
        _write(key, seconds)
    except SplitbitError as error:
        notify(f"the speed is not kept: {error}")
    return _rate(config, data, seconds, "measured")


def _rate(config: Config, data: Data, seconds: Seconds, source: str) -> Rate:
    train, sample = config.train, config.sample
    tokens = train.batch_size * train.grad_accum * train.seq_len
    step = train.grad_accum * seconds.micro_batch + seconds.update
    evaluated = min(len(data.validation) - 1, EVALUATED_TOKENS)
    evaluations = 1 + -(-train.steps // train.eval_every)  # the first before any step
    samples = -(-train.steps // (sample.every or train.eval_every))
    return Rate(
        tokens_per_second=tokens / step,
        training=train.steps * step,
        evaluations=evaluations * evaluated * seconds.evaluated_token,
        samples=samples * sample.max_tokens * seconds.written_token,
        source=source,
    )


def _timed(config: Config, data: Data, windows: Windows, registry: Registry) -> Seconds:
    """Return what the real training's parts take, on its first samples."""
    chosen = config.compute
    compute = choose(registry, chosen.backend, chosen.precision, chosen.threads)
    learner = build_learner(config, data.tokenizer.vocab_size, compute, registry)
    train = config.train
    first = batch(data.training, windows, 0, train.batch_size)
    table = compute.table(train=False)
    window = Window(learner.decoder, compute, table, config.model.context)
    limit = train.batch_size * train.seq_len

    def evaluation() -> None:
        evaluate(
            learner.decoder,
            compute,
            table,
            data.validation,
            data.tokenizer.byte_lengths,
            seq_len=train.seq_len,
            rows=train.batch_size,
            limit=limit,
        )

    def one_step() -> None:
        with suppress(NonFiniteError):  # that is for the training to say
            learner.step(0, [first])

    step = _median(one_step)
    micro_batch = _median(lambda: learner.gradients(0, [first]))
    return Seconds(
        micro_batch=min(step, micro_batch),
        update=max(0.0, step - micro_batch),
        evaluated_token=_median(evaluation) / min(limit, len(data.validation) - 1),
        written_token=_median(lambda: window.read([0])),
    )


def _median(work: Callable[[], Any]) -> float:
    """Return the seconds that a piece of work takes, once it is warm."""
    for _ in range(WARM):
        work()
    times: list[float] = []
    while len(times) < FEWEST or (sum(times) < ENOUGH and len(times) < MOST):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


# ---- the cache


def _key(config: Config, vocabulary: int, registry: Registry) -> dict[str, Any]:
    """Return all that a speed depends on, as plain data."""
    train, compute = config.train, config.compute
    return {
        "processor": processor_name(),
        "backend": compute.backend,
        "precision": compute.precision,
        "threads": compute.threads,
        "versions": software_versions(
            (plugin.entry.distribution, plugin.entry.version)
            for plugin in registry.plugins
            if plugin.status == "ok"
        ),
        "model": asdict(config.model),
        "vocabulary": vocabulary,
        "batch_size": train.batch_size,
        "seq_len": train.seq_len,
        "optimizer": {"name": config.optimizer.name, **config.optimizer.options},
    }


def _path(key: dict[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:40]
    return cache_folder() / "rates" / f"{name}.json"


def _read(key: dict[str, Any]) -> Seconds | None:
    """Return the figures that are kept, or None: what cannot be read is timed anew."""
    path = _path(key)
    try:
        kept = strict_json.parse(read_small(path, CAP), str(path))
    except SplitbitError:
        return None
    if not isinstance(kept, dict) or kept.get("format") != FORMAT or kept.get("key") != key:
        return None
    found = kept.get("seconds")
    names = [field.name for field in fields(Seconds)]
    if not isinstance(found, dict) or sorted(found) != sorted(names):
        return None
    if not all(type(s) is float and isfinite(s) and s >= 0 for s in found.values()):
        return None
    return Seconds(**found) if found["micro_batch"] > 0 else None


def _write(key: dict[str, Any], seconds: Seconds) -> None:
    path = _path(key)
    durable.make_folder(path.parent)
    content = {"format": FORMAT, "key": key, "seconds": asdict(seconds)}
    durable.replace_file(path, [strict_json.dump(content, str(path), indent=1)])
