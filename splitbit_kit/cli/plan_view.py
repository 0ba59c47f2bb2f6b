"""How `train --dry-run` shows a plan: a few lines for people, one object for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from splitbit_kit.api import SplitbitError
from splitbit_kit.quantities import counted, duration, size
from splitbit_kit.training.plan import Plan
from splitbit_kit.training.rates import Rate


def plan_values(plan: Plan, rate: Rate, refused: SplitbitError | None) -> dict[str, Any]:
    """Return what --json reports of a plan. refused: why `train` would not begin."""
    config = plan.config
    train, compute = config.train, config.compute
    return {
        "preset": config.preset,
        "parameters": plan.parameters,
        "backend": compute.backend,
        "precision": compute.precision,
        "threads": compute.threads,
        "steps": train.steps,
        "tokens_per_step": train.batch_size * train.grad_accum * train.seq_len,
        "memory": asdict(plan.memory),
        "memory_total": plan.memory.total,
        "memory_peak": plan.peak,
        "memory_available": round(plan.memory_available),
        "compiled": plan.rehearsal.compiled,
        "tokens_per_second": rate.tokens_per_second,
        "rate": rate.source,
        "time": {
            "training": rate.training,
            "evaluations": rate.evaluations,
            "samples": rate.samples,
        },
        "time_total": rate.total,
        "disk": asdict(plan.disk),
        "disk_total": plan.disk.total,
        "disk_available": plan.disk_available,
        "fits": refused is None,
    }


def plan_lines(plan: Plan, rate: Rate, refused: SplitbitError | None) -> list[str]:
    """Return a plan in words, the parts of each sum largest first. refused: as `plan_values`."""
    train, compute = plan.config.train, plan.config.compute
    per_step = train.batch_size * train.grad_accum * train.seq_len
    lines = [
        f"model    {plan.config.preset}: {counted(plan.parameters, 'parameter')}",
        f"compute  backend {compute.backend}, {compute.precision}, "
        f"{counted(compute.threads, 'thread')}",
        f"memory   {size(plan.memory.total)} at the peak, {size(plan.memory_available)} free: "
        f"{_parts(asdict(plan.memory))}",
    ]
    if plan.peak > plan.memory.total:
        lines.append(f"         {size(plan.peak)} were taken before, to make the tokenizer")
    if plan.rehearsal.compiled:
        lines.append(
            "         kernels were compiled just now, and the compiler is in the interpreter's "
            "part; a second --dry-run tells what later runs take"
        )
    disk = asdict(plan.disk)
    tokens = disk.pop("tokens")
    source = {"measured": "timed just now", "cached": "timed before"}
    lines += [
        f"disk     {size(plan.disk.total)} in {plan.folder} at most, {size(plan.disk_available)} "
        f"free: {_parts(disk)}; {size(tokens)} of tokens are in the cache",
        f"speed    {rate.tokens_per_second:,.0f} tokens/s "
        f"({source.get(rate.source, 'a rough guess from the smallest steps')})",
        f"time     {duration(rate.total)} for {counted(train.steps, 'step')} of "
        f"{counted(per_step, 'token')}: training {duration(rate.training)}, "
        f"evaluations {duration(rate.evaluations)}, samples {duration(rate.samples)}",
        f"nothing was begun; without --dry-run it is{_but(plan, refused)}",
    ]
    return lines


def _but(plan: Plan, refused: SplitbitError | None) -> str:
    """Return what a training would come to, if not simply to begin."""
    if refused is not None:
        return " refused"
    short = [("memory", plan.memory_fits), ("disk", plan.disk_fits)]
    names = " and ".join(name for name, fits in short if not fits)
    return f", short of {names} as it is: train.check_resources is false" if names else ""


def _parts(parts: dict[str, int]) -> str:
    order = sorted((name for name in parts if parts[name]), key=lambda name: -parts[name])
    return ", ".join(f"{name} {size(parts[name])}" for name in order)
