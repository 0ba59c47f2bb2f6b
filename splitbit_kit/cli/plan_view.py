"""How `train --dry-run` shows a plan: a few lines for people, one object for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from splitbit_kit.cli.progress import duration
from splitbit_kit.training.plan import Plan, size
from splitbit_kit.training.rates import Rate


def plan_values(plan: Plan, rate: Rate) -> dict[str, Any]:
    """Return what --json reports of a plan."""
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
        "fits": plan.memory_fits and plan.disk_fits,
    }


def plan_lines(plan: Plan, rate: Rate) -> list[str]:
    """Return a plan in words, the parts of each sum largest first."""
    train, compute = plan.config.train, plan.config.compute
    per_step = train.batch_size * train.grad_accum * train.seq_len
    many = "s" if compute.threads > 1 else ""
    lines = [
        f"model    {plan.config.preset}: {plan.parameters:,} parameters",
        f"compute  backend {compute.backend}, {compute.precision}, {compute.threads} thread{many}",
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
        f"time     {duration(rate.total)} for {train.steps:,} steps of {per_step:,} tokens: "
        f"training {duration(rate.training)}, evaluations {duration(rate.evaluations)}, "
        f"samples {duration(rate.samples)}",
        "nothing was begun; without --dry-run it is",
    ]
    return lines


def _parts(parts: dict[str, int]) -> str:
    order = sorted((name for name in parts if parts[name]), key=lambda name: -parts[name])
    return ", ".join(f"{name} {size(parts[name])}" for name in order)
