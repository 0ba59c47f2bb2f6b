"""Hold the memory that `train --dry-run` foretells beside the peak of real trainings.

    python bench/plan_memory.py
    python bench/plan_memory.py tiny-llama gpt2-124m --backend numpy --steps 3 --json

For each preset: a plan, in a process of its own; then a training of a few steps with an evaluation,
a sample and checkpoints, whose peak is the system's figure (VmHWM on Linux) at its end. A first
plan, not counted, fills the caches: the figures are those of a machine that has compiled its
kernels. Give --set to make a preset quicker without changing what memory it takes, as
--set train.grad_accum=1 does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PRESETS = ("nanogpt-laptop", "tiny-llama", "nanogpt-shakespeare", "bench-c4", "gpt2-124m")
BOUND = 0.15
TRAINING = """
import sys
from splitbit_kit.__main__ import main
from splitbit_kit.training.plan import peak_bytes
code = main(sys.argv[1:])
print(peak_bytes())
sys.exit(code)
"""


def main() -> None:
    """Measure what the command line says; exit code 1 if an estimate is off by more than 15 %."""
    args = arguments()
    rows = []
    for preset in args.presets:
        row = compared(preset, args)
        rows.append(row)
        if not args.json:
            print(line(row), flush=True)
    if args.json:
        print(json.dumps({"presets": rows, "bound": BOUND}))
    sys.exit(any(abs(row["ratio"] - 1) > BOUND for row in rows))


def compared(preset: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the plan of a preset and the peak of its training, in bytes."""
    options = ["--preset", preset, "--backend", args.backend, "--steps", str(args.steps)]
    options += [word for pair in args.set for word in ("--set", pair)]
    options += ["--set", "sample.max_tokens=20"]
    if not args.warm:
        run([*options, "--dry-run"])
    plan = json.loads(run([*options, "--dry-run", "--json"]).splitlines()[-1])
    with tempfile.TemporaryDirectory() as folder:
        said = run([*options, "--out", str(Path(folder) / "run")])
    measured = int(said.splitlines()[-1])
    return {
        "preset": preset,
        **{key: plan[key] for key in ("backend", "precision", "threads", "parameters", "memory")},
        "estimate": plan["memory_peak"],
        "measured": measured,
        "ratio": plan["memory_peak"] / measured,
    }


def run(options: list[str]) -> str:
    """Return what a `train` in a process of its own wrote, its peak in the last line."""
    command = [sys.executable, "-c", TRAINING, "train", *options]
    as_json = "--json" in options
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(f"{' '.join(options)}: {done.stderr.strip()}")
    # with --json the object is the last line that the command wrote, before ours
    return done.stdout.rsplit("\n", 2)[0] if as_json else done.stdout.strip()


def line(row: dict[str, Any]) -> str:
    """Return a row for people."""
    largest = sorted(row["memory"].items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {nbytes / 1e6:.0f}" for name, nbytes in largest)
    return (
        f"{row['preset']:20} {row['backend']:6} {row['precision']:5} "
        f"estimate {row['estimate'] / 1e6:6.0f} MB  measured {row['measured'] / 1e6:6.0f} MB  "
        f"ratio {row['ratio']:.3f}  ({parts})"
    )


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("presets", nargs="*", default=list(PRESETS), metavar="PRESET")
    parser.add_argument("--backend", default="auto", help="as `splitbit-kit train` takes it")
    parser.add_argument("--steps", type=int, default=3, help="of each training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--warm", action="store_true", help="the caches are filled already")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    return parser.parse_args()


if __name__ == "__main__":
    main()
