"""Time a training step of a backend beside PyTorch's, on this machine, in the same minutes.

    python bench/train.py C1 --backend numpy --vs torch
    python bench/train.py C2 --backend numpy --vs torch --precision fp32 --json
    python bench/train.py C1 --backend numpy --torch-python ~/torch/bin/python

Every side (ours, and each mode of PyTorch) is a living process, warmed up, and they take turns:
in each round each works alone for a second or more, and its figure is its least step. So a machine
that slows down slows both. `ratio` is the median over rounds of peer / ours, above 1 if ours is
ahead; the peer mode is the one with the lowest median.

A waiting side must not take time from the working one. Threads of a finished parallel region spin
for a few milliseconds before they sleep, in PyTorch's OpenMP as in OpenBLAS; that is left as it is,
because to forbid it (OMP_WAIT_POLICY=passive) would make every region of a *working* PyTorch wake
its threads anew. What waiting costs is measured instead, and reported as `waiting_cpu_share`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

from turns import Worker, WorkerError

from splitbit_kit.models.presets import preset, preset_names
from splitbit_kit.registry import Registry

PREFIX = "bench-"
HERE = Path(__file__).parent
MODES = ("eager", "bf16", "compile", "compile-bf16")


def main() -> None:
    """Measure what the command line says, and print it."""
    args = arguments()
    threads = args.threads or Registry().probe().cores
    task = {**size(args.size), "threads": threads}
    tasks = {"ours": {**task, "backend": args.backend, "precision": args.precision}}
    tasks |= {mode: {**task, "mode": mode} for mode in args.modes or peer_modes(args.precision)}
    commands = {name: [args.torch_python, str(HERE / "torch_peer.py")] for name in tasks}
    commands["ours"] = [sys.executable, str(HERE / "ours.py")]
    sides, errors = measure(commands, tasks, args.rounds, args.seconds)
    result = {
        "size": args.size,
        **summary(list(tasks)[1:], sides, errors),
        "rounds": args.rounds,
        "threads": threads,
        "cpu": cpu_name(),
    }
    print(json.dumps(result) if args.json else table(result))
    if errors:
        sys.exit(1)


def measure(
    commands: dict[str, list[str]], tasks: dict[str, Any], rounds: int, seconds: float
) -> tuple[dict[str, Worker], dict[str, str]]:
    """Let all sides take turns. Return those that came through, and the errors of the others."""
    sides: dict[str, Worker] = {}
    errors: dict[str, str] = {}
    with ExitStack() as living:
        for name, task in tasks.items():
            say(f"starting {name}")
            try:
                sides[name] = Worker(commands[name], task)
                living.callback(sides[name].close)
            except (WorkerError, OSError) as error:
                errors[name] = str(error)
                say(f"{name}: {error}")
        for number in range(rounds):
            # there and back, so that no side always follows the same other
            for name in list(sides)[:: -1 if number % 2 else 1]:
                try:
                    sides[name].turn(seconds)
                except WorkerError as error:
                    errors[name] = str(error)
                    del sides[name]
            figures = ", ".join(f"{name} {side.ms[-1]:.2f}" for name, side in sides.items())
            say(f"round {number + 1} of {rounds}, ms: {figures}")
    return sides, errors


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)
    sizes = [n.removeprefix(PREFIX).upper() for n in preset_names() if n.startswith(PREFIX)]
    parser.add_argument("size", choices=sizes, metavar="SIZE", help=f"one of {', '.join(sizes)}")
    parser.add_argument("--backend", default="auto", help="as `splitbit-kit train` takes it")
    parser.add_argument("--vs", choices=["torch"], default="torch", help="the peer")
    parser.add_argument("--precision", default="auto", help="fp32: of both sides; auto: any")
    parser.add_argument("--modes", type=mode_list, help="of the peer, by comma")
    parser.add_argument("--threads", type=int, default=0, help="default: the physical cores")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="a side's least work in a round")
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with torch")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    return parser.parse_args()


def mode_list(text: str) -> list[str]:
    """Return the modes in a list with commas. Raises ArgumentTypeError for an unknown one."""
    modes = text.split(",")
    for mode in modes:
        if mode not in MODES:
            raise argparse.ArgumentTypeError(f"{mode} is not one of {', '.join(MODES)}")
    return modes


def size(name: str) -> dict[str, Any]:
    """Return the model, the batch and the vocabulary of a size."""
    chosen = preset(PREFIX + name.lower())
    return {
        "model": chosen["model"],
        "vocabulary": chosen["tokenizer"]["vocab_size"],
        "batch": chosen["train"]["batch_size"],
    }


def peer_modes(precision: str) -> list[str]:
    """Return the peer's modes that may compete: without bf16 where ours may not use it either."""
    return [mode for mode in MODES if precision != "fp32" or "bf16" not in mode]


def summary(
    modes: Sequence[str], sides: dict[str, Worker], errors: dict[str, str]
) -> dict[str, Any]:
    """Return what the rounds say. ratio is null where a side failed: it might have been the best.

    Beside what the module says: page_faults_* are the memory pages that our side touched for the
    first time, in its first step and in one after the tenth; peak_mb is in MB (10^6 bytes).
    """
    ours = sides.get("ours")
    found: dict[str, dict[str, Any]] = {mode: {"error": errors[mode]} for mode in errors}
    facts = found.pop("ours", None) or {}
    for mode in modes:
        if mode in sides:
            peer = sides[mode]
            found[mode] = {"ms": median(peer.ms), "peak_mb": peer.peak_mb, **peer.facts}
            found[mode]["ratio"] = median(map(truediv, peer.ms, ours.ms)) if ours else None
    if ours:
        facts = {**ours.facts, "peak_mb": ours.peak_mb}
    waited = [side for side in sides.values() if side.waited_s]
    working = {mode: found[mode]["ms"] for mode in modes if mode in sides}
    best = min(working, key=lambda mode: working[mode], default=None)
    return {
        "ratio": found[best]["ratio"] if best and not errors else None,
        "ours_ms": median(ours.ms) if ours else None,
        "peer_ms": working[best] if best else None,
        "peer_mode": best,
        "modes": {mode: found[mode] for mode in modes},
        "waiting_cpu_share": max((s.waited_cpu_s / s.waited_s for s in waited), default=None),
        **facts,
    }


def table(result: dict[str, Any]) -> str:
    """Return a result for people to read."""
    head = f"{result['size']}, {result['threads']} threads, {result['rounds']} rounds"
    lines = [f"{head}, {result['cpu']}", f"{'':14}{'ms':>9}{'peak MB':>9}  peer / ours"]
    if result["ours_ms"]:
        ours = f"{result['backend']} {result['precision']}"
        lines.append(f"{ours:14}{result['ours_ms']:9.2f}{result['peak_mb']:9.0f}")
    else:
        lines.append(f"ours: {result['error']}")
    for mode, figures in result["modes"].items():
        if "error" in figures:
            lines.append(f"{mode}: {figures['error']}")
            continue
        row = f"{mode:14}{figures['ms']:9.2f}{figures['peak_mb']:9.0f}"
        lines.append(row + (f"{figures['ratio']:9.2f}" if figures["ratio"] else ""))
    if result["ours_ms"]:
        faults = result["page_faults_per_step"], result["page_faults_first_step"]
        lines.append("page faults a step: {:.1f}, in the first: {}".format(*faults))
    if result["waiting_cpu_share"] is not None:
        lines.append(f"CPU time of a waiting side: {result['waiting_cpu_share']:.1%}")
    if result["ratio"]:
        lines.append(f"ratio {result['ratio']:.2f} to {result['peer_mode']}, the best of the peer")
    else:
        lines.append("no ratio: a side has failed")
    return "\n".join(lines)


def cpu_name() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def say(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
