"""Our side of `bench/train.py`: a worker that trains through the ordinary parts."""

from __future__ import annotations

import resource
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from turns import serve

from splitbit_kit.compute import choose
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.registry import Registry
from splitbit_kit.text.batches import Batch
from splitbit_kit.training.learner import Learner

BATCHES = 16  # distinct ones, as the peer has
SETTLED, COUNTED = 10, 5  # page faults are counted in so many steps after the settling ones
STEPS = 100_000  # the length of the schedule: more than any bench makes


def build(task: dict[str, Any]) -> tuple[Callable[[], None], dict[str, Any]]:
    """Return a training step of the task's backend, warmed up."""
    registry = Registry()
    compute = choose(registry, task["backend"], task["precision"], task["threads"])
    config = ModelConfig(**task["model"])
    specs = parameter_specs(config, task["vocabulary"])
    params = ParameterStore(specs, compute.dtype)
    params.initialise(specs, seed=1)
    learner = Learner(
        Decoder(config, params),
        compute.table(train=True),
        compute.context(grad=True),
        registry.build("optimizer", "adamw"),
        registry.build("scheduler", "cosine", 1e-3, STEPS, warmup_steps=100),
    )
    batches = random_batches(task["vocabulary"], task["batch"], config.context)
    numbers = count()

    def step() -> None:
        number = next(numbers)
        learner.step(number, [batches[number % BATCHES]])

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
        "parameters": params.count,
        "page_faults_first_step": first,
        "page_faults_per_step": (page_faults() - before) / COUNTED,
    }


def random_batches(vocabulary: int, sequences: int, context: int) -> list[Batch]:
    """Return batches of random ids."""
    generator = np.random.default_rng(0)
    positions = np.tile(np.arange(context, dtype=np.int32), sequences)
    starts = np.arange(sequences + 1, dtype=np.int32) * np.int32(context)
    ids = generator.integers(0, vocabulary, (BATCHES, 2, sequences * context), np.int32)
    return [Batch(inputs, targets, positions, starts) for inputs, targets in ids]


def page_faults() -> int:
    """Return how often this process has touched a page of memory for the first time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    serve(build)
