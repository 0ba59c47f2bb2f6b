"""A training step beside the machine's limit, and beside PyTorch, in the same minutes.

Every side (our step, each mode of PyTorch, the multiplies that show the limit) is a living process,
warmed up, and they take turns: in each round each works alone for a second or more, and its figure
is its least step. So a machine that slows down slows all. A ratio is the median over rounds of
peer / ours, above 1 if ours is ahead; the peer's mode is the one with the lowest median.

A waiting side must not take time from the working one. Threads of a finished parallel region spin
for a few milliseconds before they sleep, in PyTorch's OpenMP as in OpenBLAS; that is left as it is,
because to forbid it (OMP_WAIT_POLICY=passive) would make every region of a *working* PyTorch wake
its threads anew. What waiting costs is measured instead, and reported as `waiting_cpu_share`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

from splitbit_kit.benchmark.turns import Worker, WorkerError
from splitbit_kit.models.presets import preset, preset_names
from splitbit_kit.training.machine import processor_name

PREFIX = "bench-"
PEER = Path(__file__).with_name("torch_peer.py")
MODES = ("eager", "bf16", "compile", "compile-bf16")
OURS, LIMIT, PEER_LIMIT = "ours", "limit", "peer limit"
DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}  # by precision

Say = Callable[[str], None]
Task = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to compare. peer_python: an interpreter with torch; empty, and there is no peer."""

    size: str
    backend: str = "auto"
    precision: str = "auto"
    threads: int
    peer_python: str = ""
    modes: tuple[str, ...] = ()  # of the peer; none: all that may compete
    rounds: int = 7
    seconds: float = 1.0  # a side's least work in a round


def sizes() -> list[str]:
    """Return the names of the sizes there are."""
    names = preset_names()
    return [name.removeprefix(PREFIX).upper() for name in names if name.startswith(PREFIX)]


def compare(request: Request, say: Say = lambda line: None) -> dict[str, Any]:
    """Let all sides take turns, and return what the rounds say.

    ratio is null where a side failed, for it might have been the best; a failed side has an
    "error". limit_gflops is the better of our multiply's peak and the peer's at 4096 cubed, and
    limit_share the part of it that the whole step reaches. peak_mb is in MB (10^6 bytes), and
    idle_mb what was resident once everything was imported. by_op and rest_ms are milliseconds of
    one step, page_faults_* pages touched for the first time.
    """
    chosen = preset(PREFIX + request.size.lower())
    task = {
        "model": chosen["model"],
        "vocabulary": chosen["tokenizer"]["vocab_size"],
        "batch": chosen["train"]["batch_size"],
        "threads": request.threads,
    }
    ours = {**task, "backend": request.backend, "precision": request.precision}
    errors: dict[str, str] = {}
    with ExitStack() as living:
        parts = start(living, "by op", our_command({**ours, "side": "by_op"}), errors, say)
        facts = parts.facts if parts else {}
        living.pop_all().close()
        sides = {}
        for name, command in commands(request, task, ours).items():
            if side := start(living, name, command, errors, say):
                sides[name] = side
        take_turns(sides, request, errors, say)
        result = summary(sides, errors, facts, peer_modes(request))
    return {
        "size": request.size,
        **result,
        "tokens": task["batch"] * task["model"]["context"],
        "rounds": request.rounds,
        "threads": request.threads,
        "cpu": processor_name(),
    }


# ---- the sides


def our_command(task: Task) -> tuple[list[str], Task]:
    """Return how a side of ours is started."""
    return [sys.executable, "-m", "splitbit_kit.benchmark.ours"], task


def commands(request: Request, task: Task, ours: Task) -> dict[str, tuple[list[str], Task]]:
    """Return how each side that takes turns is started, ours first."""
    found = {
        OURS: our_command({**ours, "side": "step"}),
        LIMIT: our_command({**ours, "side": "limit"}),
    }
    if request.peer_python:
        python = [request.peer_python, str(PEER)]
        found |= {mode: (python, {**task, "mode": mode}) for mode in peer_modes(request)}
        dtype = "float32" if request.precision == "fp32" else "bfloat16"
        found[PEER_LIMIT] = (python, {**task, "mode": "limit", "dtype": dtype})
    return found


def peer_modes(request: Request) -> list[str]:
    """Return the peer's modes that compete: without bf16 where ours may not use it either."""
    if not request.peer_python:
        return []
    if request.modes:
        return list(request.modes)
    return [mode for mode in MODES if request.precision != "fp32" or "bf16" not in mode]


def start(
    living: ExitStack, name: str, command: tuple[list[str], Task], errors: dict[str, str], say: Say
) -> Worker | None:
    """Return a side that is warm; None if it failed, with its error among the errors."""
    say(f"starting {name}")
    try:
        worker = Worker(*command)
    except (WorkerError, OSError) as error:
        errors[name] = str(error)
        say(f"{name}: {error}")
        return None
    living.callback(worker.close)
    return worker


def take_turns(
    sides: dict[str, Worker], request: Request, errors: dict[str, str], say: Say
) -> None:
    """Let the sides work in turns; one that fails leaves them."""
    for number in range(request.rounds):
        # there and back, so that no side always follows the same other
        for name in list(sides)[:: -1 if number % 2 else 1]:
            try:
                sides[name].turn(request.seconds)
            except WorkerError as error:
                errors[name] = str(error)
                del sides[name]
        figures = ", ".join(f"{name} {side.ms[-1]:.2f}" for name, side in sides.items())
        say(f"round {number + 1} of {request.rounds}, ms: {figures}")


# ---- what the rounds say


def summary(
    sides: dict[str, Worker], errors: dict[str, str], parts: dict[str, Any], modes: list[str]
) -> dict[str, Any]:
    """Return the figures of all sides."""
    ours = sides.get(OURS)
    found: dict[str, dict[str, Any]] = {}
    for mode in modes:
        found[mode] = {"error": errors[mode]} if mode in errors else figures(sides[mode], ours)
    waited = [side for side in sides.values() if side.waited_s]
    working = {mode: figure["ms"] for mode, figure in found.items() if "ms" in figure}
    best = min(working, key=lambda mode: working[mode], default=None)
    whole = best and not any(name in errors for name in (OURS, *modes))
    rates = [
        side.facts["work"] / median(side.ms) / 1e6
        for name, side in sides.items()
        if name in (LIMIT, PEER_LIMIT)
    ]
    limit = max(rates, default=None)
    reached = parts["work"] / median(ours.ms) / 1e6 if ours and parts else None
    mine = {} if ours is None else {**ours.facts, "peak_mb": ours.peak_mb, "idle_mb": ours.idle_mb}
    return {
        "ratio": found[best]["ratio"] if best and whole else None,
        "ours_ms": median(ours.ms) if ours else None,
        "peer_ms": working[best] if best else None,
        "peer_mode": best,
        "modes": found,
        "waiting_cpu_share": max((s.waited_cpu_s / s.waited_s for s in waited), default=None),
        "work_gflop": parts["work"] / 1e9 if parts else None,
        "gflops": reached,
        "limit_gflops": limit,
        "limit_share": reached / limit if reached and limit else None,
        **mine,
        "by_op": parts.get("by_op", []),
        "rest_ms": parts.get("rest_ms"),
        "errors": errors,
    }


def figures(side: Worker, ours: Worker | None) -> dict[str, Any]:
    """Return what a mode of the peer took, and its ratio to ours."""
    ratio = median(map(truediv, side.ms, ours.ms)) if ours else None
    facts = {**side.facts, "peak_mb": side.peak_mb, "idle_mb": side.idle_mb}
    return {"ms": median(side.ms), **facts, "ratio": ratio}


# ---- for people


def report(result: dict[str, Any]) -> str:
    """Return a result for people to read."""
    lines = [f"{result['size']}, {result['threads']} threads, {result['cpu']}"]
    if result["ours_ms"] is None:
        return "\n".join([*lines, *(f"{name}: {e}" for name, e in result["errors"].items())])
    per_second = result["tokens"] / result["ours_ms"] * 1e3
    lines += [
        f"{result['backend']} {result['precision']}: {result['ours_ms']:.2f} ms a step, "
        f"{per_second:,.0f} tokens a second, {result['peak_mb']:.0f} MB at most, "
        f"{result['page_faults_per_step']:.1f} page faults a step"
    ]
    if result["limit_share"]:
        lines.append(
            f"{result['gflops']:.0f} GFLOP/s, {result['limit_share']:.1%} of the limit of "
            f"{result['limit_gflops']:.0f}"
        )
    if result["by_op"]:
        lines += ["", *op_table(result)]
    if result["modes"]:
        lines += ["", *peer_table(result)]
    lines += [f"{name}: {e}" for name, e in result["errors"].items() if name not in result["modes"]]
    return "\n".join(lines)


def op_table(result: dict[str, Any]) -> list[str]:
    """Return the time of a step by op, slowest first, with the part of the limit that each reaches.

    Medians, where a step's own figure is its least; and the account itself takes some time: so the
    sum is more than a step.
    """
    rows = [(*_row(entry, result["limit_gflops"]),) for entry in result["by_op"]]
    rest = ("between the ops", "", "", f"{result['rest_ms']:.2f}", "", "", "")
    heads = ("op", "backend", "calls", "forward ms", "backward ms", "GFLOP/s", "of the limit")
    widths = [max(map(len, column)) for column in zip(heads, *rows, rest, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (heads, *rows, rest)
    ]


def _row(entry: dict[str, Any], limit: float | None) -> tuple[str, ...]:
    rate = entry["work"] / (entry["forward_ms"] + entry["backward_ms"]) / 1e6
    backward = f"{entry['backward_ms']:.2f}" if entry["backward_ms"] else ""
    return (
        entry["op"],
        entry["origin"],
        f"{entry['calls']}",
        f"{entry['forward_ms']:.2f}",
        backward,
        f"{rate:.0f}" if rate else "",
        f"{rate / limit:.0%}" if rate and limit else "",
    )


def peer_table(result: dict[str, Any]) -> list[str]:
    """Return the peer's modes, and the ratio to the best."""
    lines = [f"{'PyTorch':14}{'ms':>9}{'MB':>7}  PyTorch / ours"]
    for mode, figure in result["modes"].items():
        if "error" in figure:
            lines.append(f"{mode}: {figure['error']}")
            continue
        ratio = f"{figure['ratio']:9.2f}" if figure["ratio"] else ""
        lines.append(f"{mode:14}{figure['ms']:9.2f}{figure['peak_mb']:7.0f}{ratio}")
    if result["waiting_cpu_share"] is not None:
        lines.append(f"CPU time of a waiting side: {result['waiting_cpu_share']:.1%}")
    if result["ratio"]:
        lines.append(f"ratio {result['ratio']:.2f} to {result['peer_mode']}, the best of PyTorch")
    else:
        lines.append("no ratio: a side has failed")
    return lines
