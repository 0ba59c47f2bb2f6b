"""Measure how much processor time each tier's bare training takes, for docs/tiers.md.

    python bench/tiers.py
    python bench/tiers.py light standard --steps 20 --precision bf16

A few steps of each tier's preset are made with one thread, in a process of its own, and their
processor time is counted, so that a busy machine does not spoil the figures. The last column is
that time spread over the cores of the tier's least machine, as if they lost nothing to each other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from splitbit_kit.api import TIERS, StepDone, tier_floor
from splitbit_kit.training.config import build_config
from splitbit_kit.training.run import Surroundings, train

WARM_UP = 2  # steps not counted: they compile, and fill the memory pools
STEPS = 6  # counted


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tiers", nargs="*", default=TIERS, help="all eight if none is named")
    parser.add_argument("--steps", type=int, default=STEPS, help="counted for each tier")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(seconds_a_step(args.tiers[0], args.steps, args.precision, args.backend))
        return
    print(
        "| tier | steps | seconds a step, one core | all steps | over the least machine's cores |"
    )
    print("| --- | --- | --- | --- | --- |")
    for tier in args.tiers:
        again = [sys.executable, __file__, "--one", tier, "--steps", str(args.steps)]
        again += ["--precision", args.precision, "--backend", args.backend]
        done = subprocess.run(again, stdout=subprocess.PIPE, encoding="utf-8", check=True)
        a_step, steps = json.loads(done.stdout), build_config(tier=tier).train.steps
        whole, (cores, _) = a_step * steps, tier_floor(tier)
        print(
            f"| {tier} | {steps:,} | {a_step:.3g} | {whole:,.0f} s | {whole / cores:.0f} s |",
            flush=True,
        )


def seconds_a_step(tier: str, steps: int, precision: str, backend: str) -> float:
    """Return the processor time of a step, the least of all that are counted."""
    ends: list[float] = []

    def listen(event: object) -> None:
        if isinstance(event, StepDone):
            ends.append(time.process_time())

    total, never = WARM_UP + steps, 10**6
    config = build_config(
        tier=tier,
        flags={
            "train.steps": total,
            "train.eval_every": never,
            "checkpoint.save_every": never,
            "sample.every": never,
            "scheduler.warmup_steps": 1,
            "compute.threads": 1,
            "compute.precision": precision,
            "compute.backend": backend,
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        train(config, out=Path(folder) / "run", around=Surroundings(listeners=[listen]))
    return min(b - a for a, b in zip(ends[WARM_UP - 1 :], ends[WARM_UP:], strict=False))


if __name__ == "__main__":
    main()
