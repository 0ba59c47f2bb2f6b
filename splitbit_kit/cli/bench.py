"""The verb `bench`."""

from __future__ import annotations

import sys

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, compute_options, json_option, option
from splitbit_kit.cli.output import emit, people, show
from splitbit_kit.cli.settings import Settings

JSON_KEYS = {
    "size": "which model: C1, C2, C3 or C4",
    "ours_ms": "milliseconds of a training step; null if it failed",
    "peer_ms": "milliseconds of PyTorch's best mode; null without --vs",
    "peer_mode": "that mode",
    "ratio": "peer_ms / ours_ms, the median of the rounds; null if a side failed",
    "modes": "PyTorch's modes: ms, peak_mb, idle_mb, ratio, or the error",
    "tokens": "tokens of a step",
    "work_gflop": "arithmetic of a step: multiplies, and attention at half",
    "gflops": "how much of it we do in a second",
    "limit_gflops": "what a multiply reaches on this machine",
    "limit_share": "gflops / limit_gflops",
    "by_op": "op, origin, calls, forward_ms, backward_ms and work of each op in a step",
    "rest_ms": "milliseconds of a step that lie between the ops",
    "backend": "the backends, the preferred first",
    "precision": "fp32, bf16 or fp64",
    "threads": "threads computed with",
    "parameters": "how many numbers are trained",
    "peak_mb": "most memory held, in 10^6 bytes",
    "idle_mb": "memory held once all was imported, in 10^6 bytes",
    "page_faults_first_step": "pages of memory touched for the first time in the first step",
    "page_faults_per_step": "and in a later one",
    "waiting_cpu_share": "processor time that a side took while another worked",
    "rounds": "turns of each side",
    "cpu": "what the processor calls itself",
    "errors": "side -> why it failed",
}


@click.command("bench", context_settings=CONTEXT)
@click.argument(
    "size",
    default="C1",
    metavar="[SIZE]",
    panel="What",
    help="A model: C1 (0.8 M parameters), C2 (11 M), C3 (124 M) or C4 (29 M). [default: C1]",
)
@option(
    "--vs",
    type=click.Choice(["torch"]),
    default_text="nothing",
    panel="What",
    help="Measure a peer in the same minutes.",
)
@option(
    "--torch-python",
    default=sys.executable,
    metavar="FILE",
    default_text="this one",
    panel="What",
    help="A Python interpreter that has torch.",
)
@option(
    "--modes",
    metavar="NAMES",
    default_text="all that may compete",
    panel="What",
    help="Of PyTorch, by comma: eager, bf16, compile, compile-bf16.",
)
@compute_options
@option("--rounds", type=int, default=7, metavar="N", default_text="7", help="Turns of each side.")
@option(
    "--seconds",
    type=float,
    default=1.0,
    metavar="X",
    default_text="1",
    help="Least work of a side in a turn.",
)
@json_option
@click.pass_context
def command(
    context: click.RichContext,
    /,
    size: str,
    vs: str | None,
    torch_python: str,
    modes: str | None,
    backend: str | None,
    precision: str | None,
    threads: int | None,
    rounds: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Time a training step: by op, beside the machine's limit, and beside PyTorch.

    The limit is what a matrix multiply reaches here with everything in the first cache. Every
    side is a process of its own, and they take turns, each at its best of a second: so a machine
    that is busy slows all of them, and a ratio holds.

    \b
    Examples:
      splitbit-kit bench
      splitbit-kit bench C2 --backend numpy --threads 1
      splitbit-kit bench C1 --vs torch --torch-python ~/torch/bin/python
    """
    from splitbit_kit.api import SplitbitError, UsageError
    from splitbit_kit.benchmark.compare import MODES, Request, compare, report, sizes

    if size.upper() not in sizes():
        raise UsageError(f"{size}: there is no such size; there are {', '.join(sizes())}")
    wanted = tuple(modes.split(",")) if modes else ()
    for mode in wanted:
        if mode not in MODES:
            raise UsageError(f"--modes: {mode!r} is not one of {', '.join(MODES)}")
    for name, value in (("--rounds", rounds), ("--seconds", seconds)):
        if not value > 0:
            raise UsageError(f"{name}: {value} is not above 0")
    settings: Settings = context.obj
    request = Request(
        size=size.upper(),
        backend=backend or "auto",
        precision=precision or "auto",
        threads=threads or settings.registry(show).probe().cores,
        peer_python=torch_python if vs else "",
        modes=wanted,
        rounds=rounds,
        seconds=seconds,
    )
    result = compare(request, show)
    print(report(result), file=people(as_json))
    if as_json:
        emit(JSON_KEYS, {**dict.fromkeys(JSON_KEYS), **result})
    if result["errors"]:
        raise SplitbitError("; ".join(f"{side}: {e}" for side, e in result["errors"].items()))
