"""What a step will take, found out by making small ones: all real, with fewer layers and sequences.

Every part of the memory is a sum over layers, over sequences, or over both; so steps of one layer
and two, on one sequence and two, tell what any number of them takes. Nothing is known here of how a
backend or an optimizer goes about its work. See docs/decisions/plan-by-rehearsal.md.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import psutil

from splitbit_kit.api import SplitbitError
from splitbit_kit.compute import Compute, choose
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.evaluate import evaluate
from splitbit_kit.generate import Window
from splitbit_kit.registry import Registry
from splitbit_kit.text.batches import Batch, side_by_side
from splitbit_kit.training.config import Config
from splitbit_kit.training.learner import Learner, NonFiniteError, build_learner

TIMINGS, ENOUGH = 5, 1.0  # of a point: at most, and seconds after which there are no more
BULK = 4  # a layer's sequence in a large step costs no less than 1/BULK of that in a small one
COMPILED = 2.0  # seconds of CPU more for the first step than for the next: kernels were compiled


class TooLargeError(SplitbitError):
    """A rehearsal would need more memory than there is."""


@dataclass(frozen=True)
class Taken:
    """What a step takes, in bytes at its peak."""

    parameters: float
    gradients: float
    moments: float
    backend: float  # what does not grow with the sequences: converted weights, scratch memory
    activations: float
    seconds: float  # of one micro-batch and the update

    @property
    def total(self) -> float:
        """All of the memory."""
        return self.parameters + self.gradients + self.moments + self.backend + self.activations


@dataclass(frozen=True)
class _Point:
    """What one rehearsed step took."""

    parameters: int
    gradients: int
    moments: int
    other: int
    seconds: float  # of the step, the least of several
    cpu_seconds: float  # with what was built for it, and an evaluation


@dataclass(frozen=True)
class Rehearsal:
    """Rehearsed steps by (layers, sequences), and what else was seen meanwhile."""

    points: Mapping[tuple[int, int], _Point]
    process_bytes: int
    """resident: all that is none of the steps' arrays, compiled kernels and libraries included"""
    compiled: bool
    """whether kernels were compiled, which leaves a compiler in the process"""

    def at(self, layers: int, sequences: int) -> Taken:
        """Return what a step of so many layers and sequences takes; at most, after a quick one."""
        other = self._fit("other", layers, sequences)
        backend = self._fit("other", layers, 0)
        return Taken(
            self._fit("parameters", layers, 1),
            self._fit("gradients", layers, 1),
            self._fit("moments", layers, 1),
            backend,
            other - backend,
            max(self._fit("seconds", layers, sequences), self._least_seconds(layers, sequences)),
        )

    def _least_seconds(self, layers: int, sequences: int) -> float:
        """Return what a step takes at least: noise may make the surface of the seconds fall."""
        largest = max(self.points)
        work = layers * sequences / prod(largest)
        slowest = max(point.seconds for point in self.points.values())
        return max(slowest, self.points[largest].seconds * work / BULK)

    def _fit(self, what: str, layers: int, sequences: int) -> float:
        """Return a value of the surface a + b layers + c sequences + d layers sequences."""
        depths = sorted({layers for layers, _ in self.points})
        widths = sorted({sequences for _, sequences in self.points})
        by_depth = [
            _along(widths, [getattr(self.points[d, w], what) for w in widths], sequences)
            for d in depths
        ]
        return max(0.0, _along(depths, by_depth, layers))


def _along(places: list[int], values: list[float], place: int) -> float:
    """Return the value of the line through one or two points.

    Through one, 1, it is proportional: no less than a + b place, where a and b are not negative.
    """
    if len(places) == 1:
        return values[0] * place / places[0]
    slope = (values[1] - values[0]) / (places[1] - places[0])
    return values[0] + slope * (place - places[0])


def rehearse(
    config: Config, vocabulary: int, registry: Registry, most_bytes: float, quick: bool = False
) -> Rehearsal:
    """Return what steps of the first layers of a resolved configuration's model took.

    quick: of one layer and sequence only, which tells no more than bounds. Raises TooLargeError
    once the steps have asked for most_bytes.
    """
    begun = time.process_time()
    # what compiles does so now; a run writes its first sample later
    _step(config, vocabulary, registry, 1, 1, most_bytes, sample=not quick)
    first = time.process_time() - begun
    timings = 1 if quick else TIMINGS
    depths = range(1, 2 if quick else min(2, config.model.layers) + 1)
    widths = range(1, 2 if quick else min(2, config.train.batch_size) + 1)
    points: dict[tuple[int, int], _Point] = {}
    others = []
    for place in product(depths, widths):
        points[place], other = _rehearsed(config, vocabulary, registry, *place, most_bytes, timings)
        others.append(other)
    # each step leaves the allocator some memory that the next may use or not
    process = sum(others) // len(others)
    return Rehearsal(points, process, compiled=first - points[1, 1].cpu_seconds > COMPILED)


def _rehearsed(
    config: Config,
    vocabulary: int,
    registry: Registry,
    layers: int,
    sequences: int,
    most_bytes: float,
    timings: int,
) -> tuple[_Point, int]:
    """Return what a step took, and what of the process is not of the step."""
    begun = time.process_time()
    with _traced() as traced:
        learner, seconds = _step(config, vocabulary, registry, layers, sequences, most_bytes)
        held, peak, own = traced()
        others = resident_bytes() - held - own
    flat, moments = learner.grads.flat.nbytes, sum(a.nbytes for a in learner.state.values())
    other = max(0, peak - 2 * flat - moments)
    spent = time.process_time() - begun
    step = token_batch(vocabulary, sequences, config.train.seq_len)
    seconds = _least_of(lambda: _timed_step(learner, step), seconds, timings)
    return _Point(flat, flat, moments, other, seconds, spent), others


def resident_bytes() -> int:
    """Return the main memory that this process takes."""
    return int(psutil.Process().memory_info().rss)


def token_batch(vocabulary: int, sequences: int, seq_len: int) -> Batch:
    """Return a batch in which every id has its turn."""
    count = sequences * seq_len
    ids = np.arange(count + 1, dtype=np.int32) % np.int32(vocabulary)
    return side_by_side(ids[:-1], ids[1:], seq_len)


def _step(
    config: Config,
    vocabulary: int,
    registry: Registry,
    layers: int,
    sequences: int,
    most_bytes: float,
    sample: bool = False,
) -> tuple[Learner, float]:
    """Train one step and evaluate one batch; return the learner, still whole, and the step's time.

    sample: write a little too, so that the kernels for that are there.
    """
    # a backend of its own, which may remember these weights as long as it lives
    chosen = config.compute
    compute = choose(registry, chosen.backend, chosen.precision, chosen.threads)
    compute = replace(compute, workspace=_Limited(most_bytes))
    config = config.with_keys(model__layers=layers)
    learner = build_learner(config, vocabulary, compute, registry, sketch=True)
    seq_len = config.train.seq_len
    batch = token_batch(vocabulary, sequences, seq_len)
    seconds = _timed_step(learner, batch)
    _evaluate(learner, compute, vocabulary, sequences, seq_len)
    if sample:
        window = Window(learner.decoder, compute, compute.table(train=False), seq_len)
        window.read([0])
        window.read([0])
    return learner, seconds


def _timed_step(learner: Learner, batch: Batch) -> float:
    """Return the seconds that a step takes."""
    began = time.perf_counter()
    with suppress(NonFiniteError):  # a training may go on after one
        learner.step(0, [batch])
    return time.perf_counter() - began


def _least_of(timed: Callable[[], float], first: float, most: int) -> float:
    """Return the least of some timings, the first already made: what else runs only adds."""
    times = [first]
    while len(times) < most and sum(times) < ENOUGH:
        times.append(timed())
    return min(times)


def _evaluate(
    learner: Learner, compute: Compute, vocabulary: int, sequences: int, seq_len: int
) -> None:
    evaluate(
        learner.decoder,
        compute,
        compute.table(train=False),
        np.zeros(sequences * seq_len + 1, np.int32),
        np.ones(vocabulary, np.int32),
        seq_len=seq_len,
        rows=sequences,
    )


class _Limited(BufferPool):
    """A workspace that gives up before the system does."""

    def __init__(self, most_bytes: float) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def _allocate(self, size: int) -> Any:
        if self.allocated_bytes + size > self._most_bytes:
            raise TooLargeError("the step does not fit into the memory that there is")
        return super()._allocate(size)


@contextmanager
def _traced() -> Iterator[Any]:
    """Give a function that returns (bytes held, peak, the tracing's own) since it was entered.

    NumPy reports its arrays to tracemalloc; what is beyond Python is not in there.
    """
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]

    def traced() -> tuple[int, int, int]:
        held, peak = tracemalloc.get_traced_memory()
        return held - before, peak - before, tracemalloc.get_tracemalloc_memory()

    try:
        yield traced
    finally:
        if not already:
            tracemalloc.stop()
