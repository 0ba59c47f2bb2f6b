"""Compare the optimizers and the schedules on one small training, for docs/optimizers.md.

    python bench/optimizers.py
    python bench/optimizers.py --preset tiny-llama --steps 300 --optimizers adamw muon

Every optimizer trains the same model on the built-in text, with the same seed, the preset's
schedule, one thread and its default options. Its learning rate is searched by factors of 2, from
the one that `train --optimizer` takes, until the rates on both sides of the best do worse. Then
every schedule trains it once more, with AdamW at AdamW's best rate, after the same warm-up. Times
are processor time, so that a busy machine does not spoil them much; of ten slices of the run the
least counts.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from splitbit_kit.api import RunStarted, SplitbitError, StepDone
from splitbit_kit.registry import Registry, options_of
from splitbit_kit.training.config import build_config
from splitbit_kit.training.machine import processor_name
from splitbit_kit.training.run import Surroundings, lr_scale_in, train

NEVER = 10**6


@dataclass(frozen=True)
class Result:
    """What came of one training."""

    loss: float  # of the validation text, in nats a token
    state: float  # bytes a parameter
    step: float  # milliseconds of the processor


def main() -> None:
    """Print two Markdown tables."""
    registry = Registry()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--preset", default="nanogpt-laptop")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--optimizers", nargs="*", default=registry.names("optimizer"))
    parser.add_argument("--schedulers", nargs="*", default=registry.names("scheduler"))
    args = parser.parse_args()
    trial = cache(lambda *what: trained(registry, args, *what))
    today = f"{date.today():%Y-%m-%d}"
    print(f"{args.preset}, {args.steps} steps; {processor_name()}, {platform.system()}, {today}\n")
    print("| optimizer | lr | times adamw's | validation loss | bytes a parameter | ms a step |")
    print("| --- | --- | --- | --- | --- | --- |")
    adamw = best_rate("adamw", registry, args.preset, trial)
    for name in args.optimizers:
        lr = best_rate(name, registry, args.preset, trial)
        found = trial(name, lr, None)
        cells = f"{name} | {lr:.2g} | {lr / adamw:.2g} | {found.loss:.3f}"
        print(f"| {cells} | {found.state:.2f} | {found.step:.1f} |", flush=True)
    print("\n| schedule, with adamw | lr | validation loss |\n| --- | --- | --- |")
    for name in args.schedulers:
        print(f"| {name} | {adamw:.2g} | {trial('adamw', adamw, name).loss:.3f} |", flush=True)


def best_rate(name: str, registry: Registry, preset: str, trial: Callable[..., Result]) -> float:
    """Return the learning rate with the least loss among those a factor of 2 apart."""
    flags = {"optimizer.name": name}
    usual = build_config(preset, flags=flags, lr_scale=lr_scale_in(registry)).optimizer.lr
    best = 0
    while True:
        tried = (best - 1, best, best + 1)
        least = min(tried, key=lambda power: trial(name, usual * 2.0**power, None).loss)
        if least == best:
            return usual * 2.0**best
        best = least


def trained(
    registry: Registry, args: argparse.Namespace, name: str, lr: float, scheduler: str | None
) -> Result:
    """Train once; a training that goes astray has an infinite loss."""
    parameters, times = [0], [time.process_time()]

    def listen(event: object) -> None:
        if isinstance(event, RunStarted):
            parameters[0] = event.parameters
        if isinstance(event, StepDone) and event.step % max(1, args.steps // 10) == 0:
            times.append(time.process_time())

    flags: dict[str, Any] = {
        "train.steps": args.steps,
        "train.eval_every": NEVER,
        "train.check_resources": False,
        "sample.every": NEVER,
        "checkpoint.save_every": NEVER,
        "optimizer.name": name,
        "optimizer.lr": lr,
        "compute.threads": 1,
        "compute.backend": args.backend,
    }
    if scheduler:
        flags["scheduler.name"] = scheduler
        usual = build_config(args.preset).scheduler.options.get("warmup_steps")
        if usual is not None and "warmup_steps" in options_of(
            registry.offer("scheduler", scheduler)
        ):
            flags["scheduler.warmup_steps"] = usual
    config = build_config(args.preset, flags=flags)
    around = Surroundings(registry, listeners=[listen])
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = train(config, out=Path(folder) / "run", around=around)
        except SplitbitError as error:
            print(f"{name} at {lr:.2g}: {error}", file=sys.stderr)
            return Result(inf, 0.0, 0.0)
        kept = next(run.folder.glob("checkpoints/*/optimizer.safetensors")).stat().st_size
    slices = [b - a for a, b in pairwise(times[1:])]
    step = 1000 * min(slices) / max(1, args.steps // 10)
    found = Result(run.statistics["final_loss"], kept / parameters[0], step)
    print(f"{name}, {scheduler or 'the schedule'}, at {lr:.2g}: {found}", file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
