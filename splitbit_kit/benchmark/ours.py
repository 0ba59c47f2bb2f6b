"""Our sides of a comparison, each a worker: `python -m splitbit_kit.benchmark.ours TASK`, in JSON.

    {"backend": "numba", "precision": "auto", "threads": 2, "side": "step", "model": ..., ...}

The sides are a training step through the ordinary parts; the same with every op timed; and the
limit, a multiply that has all its operands in the first cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from statistics import median
from typing import Any

import numpy as np

from splitbit_kit.api import SplitbitError
from splitbit_kit.benchmark.by_op import Entry, TimedTable, total_work
from splitbit_kit.benchmark.turns import page_faults, resident_mb, serve
from splitbit_kit.compute import Compute, choose
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.registry import Registry
from splitbit_kit.text.batches import Batch, side_by_side
from splitbit_kit.training.learner import Learner

BATCHES = 16  # distinct ones, as the peer has
SETTLED, COUNTED = 10, 5  # page faults are counted in so many steps after the settling ones
STEPS = 100_000  # the length of the schedule: more than any bench makes
TIMED_SECONDS = 2.0  # of steps whose ops are timed

Task = dict[str, Any]
Step = Callable[[], None]


def build(task: Task) -> tuple[Step, dict[str, Any]]:
    """Return what the task's side does in a turn, and the facts known of it beforehand."""
    registry = Registry()
    compute = choose(registry, task["backend"], task["precision"], task["threads"])
    idle = resident_mb()
    sides = {"step": plain, "by_op": by_op, "limit": limit}
    step, facts = sides[task["side"]](registry, compute, task)
    return step, {"idle_mb": idle, **facts}


def plain(registry: Registry, compute: Compute, task: Task) -> tuple[Step, dict[str, Any]]:
    """Return a training step, warmed up.

    page_faults_* are the memory pages touched for the first time: in the first step, and in one
    after the tenth.
    """
    step, decoder = training(registry, compute, compute.table(train=True), task)
    before = page_faults()
    step()
    first = page_faults() - before
    for _ in range(SETTLED - 1):
        step()
    before = page_faults()
    for _ in range(COUNTED):
        step()
    return step, {
        "backend": compute.name,
        "precision": compute.precision,
        "parameters": decoder.params.count,
        "page_faults_first_step": first,
        "page_faults_per_step": (page_faults() - before) / COUNTED,
    }


def by_op(registry: Registry, compute: Compute, task: Task) -> tuple[Step, dict[str, Any]]:
    """Return a step whose ops are timed, and what some seconds of them said: medians of a step.

    work is in floating-point operations, see `work`; rest_ms is what lies between the ops.
    """
    table = TimedTable(compute.table(train=True))
    step, _ = training(registry, compute, table, task)
    for _ in range(SETTLED):
        step()
    accounts: list[dict[str, Entry]] = []
    rest: list[float] = []
    until = time.perf_counter() + TIMED_SECONDS
    while time.perf_counter() < until or not accounts:
        table.entries = {}
        begun = time.perf_counter()
        step()
        seconds = time.perf_counter() - begun
        accounts.append(table.entries)
        rest.append(seconds - sum(entry.seconds for entry in table.entries.values()))
    slowest_first = sorted(accounts[0].items(), key=lambda item: -item[1].seconds)
    ops = [
        {
            "op": name,
            "origin": entry.origin,
            "calls": entry.calls,
            "forward_ms": median(account[name].forward_s for account in accounts) * 1e3,
            "backward_ms": median(account[name].backward_s for account in accounts) * 1e3,
            "work": total_work([entry]),
        }
        for name, entry in slowest_first
    ]
    work = total_work(accounts[0].values())
    return step, {"work": work, "by_op": ops, "rest_ms": median(rest) * 1e3}


def limit(registry: Registry, compute: Compute, task: Task) -> tuple[Step, dict[str, Any]]:
    """Return a multiply at the backend's peak, and its floating-point operations."""
    name, backend = compute.chain[0]
    if backend.peak is None:
        raise SplitbitError(f"backend {name} does not say what its multiply can reach")
    run, operations = backend.peak()
    return run, {"work": operations}


def training(
    registry: Registry, compute: Compute, table: OpTable, task: Task
) -> tuple[Step, Decoder]:
    """Return a training step over the table's ops, on random ids."""
    config = ModelConfig(**task["model"])
    specs = parameter_specs(config, task["vocabulary"])
    params = ParameterStore(specs, compute.dtype)
    params.initialise(specs, seed=1)
    learner = Learner(
        Decoder(config, params),
        table,
        compute.context(grad=True),
        registry.build("optimizer", "adamw"),
        registry.build("scheduler", "cosine", 1e-3, STEPS, warmup_steps=100),
    )
    batches = random_batches(task["vocabulary"], task["batch"], config.context)
    numbers = count()

    def step() -> None:
        number = next(numbers)
        learner.step(number, [batches[number % BATCHES]])

    return step, learner.decoder


def random_batches(vocabulary: int, sequences: int, context: int) -> list[Batch]:
    """Return batches of random ids."""
    generator = np.random.default_rng(0)
    ids = generator.integers(0, vocabulary, (BATCHES, 2, sequences * context), np.int32)
    return [side_by_side(inputs, targets, context) for inputs, targets in ids]


if __name__ == "__main__":
    serve(build)
