"""What `splitbit-kit train` adds to the bare steps: data, schedule, logging, events, the console.

    python bench/through_train.py C1 C2 C4 --steps 300

The command itself runs, on the built-in text, and the model's own steps are timed inside it. The
figure is the median time from one finished step to the next, over the median of the bare steps; at
most 1.03 is wanted. Evaluations, samples and checkpoints lie between other steps and are left out:
they are asked for, not added.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from splitbit_kit.__main__ import main as splitbit_kit
from splitbit_kit.benchmark.compare import PREFIX
from splitbit_kit.models.presets import preset
from splitbit_kit.text.tokenizer import LEAST_VOCAB
from splitbit_kit.training.learner import Learner

WARM_UP = 20  # steps


def main() -> None:
    """Measure each size that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sizes", nargs="+", metavar="SIZE", help="C1, C2, C3 or C4")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--backend", default="auto")
    args = parser.parse_args()
    print(f"{'':4}{'bare ms':>9}{'train ms':>10}{'ratio':>8}")
    for size in args.sizes:
        bare, between = measure(size, args.steps, args.backend)
        print(f"{size:4}{bare * 1e3:9.2f}{between * 1e3:10.2f}{between / bare:8.3f}", flush=True)


def measure(size: str, steps: int, backend: str) -> tuple[float, float]:
    """Return the seconds of a bare step, and from one finished step to the next."""
    bare: list[float] = []
    ends: list[float] = []
    step = Learner.step

    def timed(self: Learner, *args: Any) -> Any:
        begun = time.perf_counter()
        outcome = step(self, *args)
        ends.append(time.perf_counter())
        bare.append(ends[-1] - begun)
        return outcome

    Learner.step = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            words = ["train", "--preset", PREFIX + size.lower(), "--steps", str(steps)]
            words += ["--eval-every", str(steps), "--backend", backend]
            words += ["--set", "sample.max_tokens=1", "--out", str(Path(folder) / "run")]
            if preset(PREFIX + size.lower())["tokenizer"]["vocab_size"] < LEAST_VOCAB:
                words += ["--set", "tokenizer.kind=char", "--set", "tokenizer.vocab_size=0"]
            if splitbit_kit(words):
                sys.exit("the training failed")
    finally:
        Learner.step = step  # type: ignore[method-assign]
    between = [later - earlier for earlier, later in pairwise(ends)]
    return median(bare[WARM_UP:]), median(between[WARM_UP:])


if __name__ == "__main__":
    main()
