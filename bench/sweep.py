"""How a step's cost grows with batch, depth and context, and attention's share beside its work.

    python bench/sweep.py --plot docs/figures/sweep.svg

Expected: the time of a token is flat in the batch, linear in the depth, and linear in the context;
and the attention block's share of the time follows its share of the arithmetic, as the module
`splitbit_kit.benchmark.work` counts it. Each point is the least step of some seconds in a process
of its own. The plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from splitbit_kit.benchmark.compare import our_command
from splitbit_kit.benchmark.turns import Worker
from splitbit_kit.registry import Registry
from splitbit_kit.training.machine import processor_name

MODEL = {"family": "llama", "layers": 4, "heads": 4, "kv_heads": 2, "width": 256, "hidden": 768}
VOCABULARY = 2048
BATCHES, LAYERS, CONTEXTS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16), (64, 128, 256, 512, 1024, 2048)
BATCH, CONTEXT, TOKENS = 8, 256, 4096  # where they do not vary; tokens of a step in the contexts'


def main() -> None:
    """Measure every point and print it; draw them if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps, for a point")
    parser.add_argument("--plot", type=Path, help="draw into this file")
    parser.add_argument("--json", action="store_true", help="the points, on standard output")
    args = parser.parse_args()
    points = []
    for sweep, value, batch, layers, context in grid():
        point = {"sweep": sweep, sweep: value, **measure(args, batch, layers, context)}
        points.append(point)
        if not args.json:
            share = f"attention {point['time_share']:.1%} of the time"
            work = f"{point['work_share']:.1%} of the work"
            print(f"{sweep:8}{value:6}{point['us_token']:9.2f} us a token, {share}, {work}")
    if args.json:
        print(json.dumps({"cpu": processor_name(), "points": points}))
    if args.plot:
        draw(points, args.plot)


def grid() -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the sweep, the value of what varies in it, batch, layers and context."""
    yield from (("batch", batch, batch, 4, CONTEXT) for batch in BATCHES)
    yield from (("layers", layers, BATCH, layers, CONTEXT) for layers in LAYERS)
    yield from (("context", context, TOKENS // context, 4, context) for context in CONTEXTS)


def measure(args: argparse.Namespace, batch: int, layers: int, context: int) -> dict[str, Any]:
    """Return the microseconds of a token, and attention's shares of the time and of the work."""
    task = {
        "model": {**MODEL, "layers": layers, "context": context},
        "vocabulary": VOCABULARY,
        "batch": batch,
        "backend": args.backend,
        "precision": "auto",
        "threads": Registry().probe().cores,
    }
    with closing(Worker(*our_command({**task, "side": "by_op"}))) as side:
        facts = side.facts
    with closing(Worker(*our_command({**task, "side": "step"}))) as side:
        side.turn(args.seconds)
        least = side.ms[-1]
    ops = {entry["op"]: entry for entry in facts["by_op"]}
    attention = ops["attention_block"]
    timed = sum(entry["forward_ms"] + entry["backward_ms"] for entry in ops.values())
    return {
        "us_token": least / (batch * context) * 1e3,
        "time_share": (attention["forward_ms"] + attention["backward_ms"]) / timed,
        "work_share": attention["work"] / facts["work"],
    }


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """Draw a panel for each sweep, and one for attention's share."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    for panel, sweep in zip(panels, ("batch", "layers", "context"), strict=False):
        chosen = [p for p in points if p["sweep"] == sweep]
        panel.plot([p[sweep] for p in chosen], [p["us_token"] for p in chosen], "o-")
        panel.set(xlabel=sweep, ylabel="µs a token", ylim=(0, None), title=f"by {sweep}")
        if sweep != "layers":
            panel.set_xscale("log", base=2)
    chosen = [p for p in points if p["sweep"] == "context"]
    for key, label in (("time_share", "of the time"), ("work_share", "of the work")):
        panels[3].plot([p["context"] for p in chosen], [p[key] for p in chosen], "o-", label=label)
    panels[3].set(xlabel="context", ylim=(0, 1), title="share of the attention block")
    panels[3].set_xscale("log", base=2)
    panels[3].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
