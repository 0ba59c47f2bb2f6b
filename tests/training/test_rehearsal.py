"""Rehearsed steps foretell what real ones take, whoever wrote the optimizer."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from tiny_run import TINY

from splitbit_kit.api import OptimizerOffer, hookimpl
from splitbit_kit.compute import choose
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.registry import Registry
from splitbit_kit.training import rehearsal
from splitbit_kit.training.config import build_config
from splitbit_kit.training.learner import build_learner
from splitbit_kit.training.rehearsal import TooLargeError, rehearse, token_batch

VOCABULARY = 300


class Strange:
    """An optimizer with a state that is no multiple of the parameters."""

    def init(self, params):
        return {f"rows.{p.name}": np.zeros(p.shape[0], np.float64) for p in params}

    def update(self, params, grads, state, *, lr, grad_scale, ops):
        params.values[...] -= lr * grad_scale * grads


class Plugin:
    @hookimpl
    def optimizers(self):
        return [OptimizerOffer("strange", "for tests", Strange)]


@pytest.fixture(scope="module")
def registry():
    return Registry(extra={"strange": Plugin()})


def resolved(family="llama", optimizer="adamw", precision="fp32", **changes):
    """Return a configuration as `resolve` leaves it, large enough for arrays to outweigh Python."""
    sections = {**TINY, "model": dict(TINY["model"]), "optimizer": {"name": optimizer, "lr": 1e-3}}
    sections.pop("preset")
    sections["model"] |= {"family": family, "width": 64, "hidden": 256, "layers": 5}
    sections["model"] |= {"kv_heads": 2, "context": 64}
    sections["train"] = {"steps": 8, "batch_size": 6, "seq_len": 64}
    sections["compute"] = {"backend": "numpy", "threads": 1, "precision": precision}
    return build_config("nanogpt-laptop", sections=sections).with_keys(**changes)


def real_peak(config, registry):
    """Return what tracemalloc sees of the whole step: the less of two, for the first may import."""
    compute = choose(registry, "numpy", config.compute.precision, 1)
    batch = token_batch(VOCABULARY, config.train.batch_size, config.train.seq_len)
    peaks = []
    for _ in range(2):
        compute = replace(compute, workspace=BufferPool())
        tracemalloc.start()
        try:
            learner = build_learner(config, VOCABULARY, compute, registry)
            learner.step(0, [batch])
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks), learner


@pytest.mark.parametrize(
    ("family", "optimizer", "precision"),
    [
        ("llama", "adamw", "fp32"),
        ("gpt2", "sgd", "fp32"),
        ("gpt2", "adamw", "fp64"),
        ("llama", "strange", "fp32"),
        ("llama", "muon", "fp32"),
        ("gpt2", "adafactor", "fp32"),
        ("llama", "lion", "fp32"),
    ],
)
def test_small_steps_foretell_the_whole_one(registry, family, optimizer, precision):
    config = resolved(family, optimizer, precision)
    taken = rehearse(config, VOCABULARY, registry, 1e12).at(5, 6)
    peak, learner = real_peak(config, registry)
    assert taken.total == pytest.approx(peak, rel=0.15)  # buffers come in sizes an eighth apart
    assert taken.parameters == learner.params.values.nbytes
    assert taken.gradients == learner.grads.flat.nbytes
    assert taken.moments == sum(array.nbytes for array in learner.state.values())


@pytest.mark.parametrize(("layers", "sequences"), [(1, 1), (1, 6), (5, 1), (2, 2)])
def test_a_model_or_batch_of_one_needs_no_second(registry, layers, sequences):
    config = resolved(model__layers=layers, train__batch_size=sequences)
    taken = rehearse(config, VOCABULARY, registry, 1e12).at(layers, sequences)
    assert taken.total == pytest.approx(real_peak(config, registry)[0], rel=0.15)


def test_a_quick_rehearsal_bounds_every_part(registry):
    config = resolved()
    quick = rehearse(config, VOCABULARY, registry, 1e12, quick=True).at(5, 6)
    full = rehearse(config, VOCABULARY, registry, 1e12).at(5, 6)
    for part in ("parameters", "gradients", "moments", "total"):
        assert getattr(quick, part) >= getattr(full, part), part
    assert quick.activations + quick.backend >= full.activations + full.backend


def test_a_rehearsal_stops_at_the_memory_there_is(registry):
    with pytest.raises(TooLargeError):
        rehearse(resolved(), VOCABULARY, registry, 10_000)
    assert not tracemalloc.is_tracing()


def test_whoever_traces_memory_already_goes_on_doing_so(registry):
    tracemalloc.start()
    try:
        rehearse(resolved(), VOCABULARY, registry, 1e12, quick=True)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


# ---- seconds


def timed(**seconds):
    """Return a rehearsal of nothing but seconds, by "layers_sequences"."""
    points = {
        tuple(map(int, place[1:].split("_"))): rehearsal._Point(0, 0, 0, 0, value, 0.0)
        for place, value in seconds.items()
    }
    return rehearsal.Rehearsal(points, 0, compiled=False)


def test_seconds_grow_with_layers_and_sequences():
    found = timed(_1_1=3.0, _1_2=5.0, _2_1=4.0, _2_2=7.0)  # 1 + layers sequences + sequences
    assert found.at(4, 100).seconds == pytest.approx(1 + 400 + 100)


def test_a_surface_that_noise_made_fall_still_has_the_work_below_it():
    found = timed(_1_1=0.011, _1_2=0.010, _2_1=0.013, _2_2=0.012)
    assert found.at(4, 100_000).seconds >= 0.012 * 100_000 * 4 / 4 / rehearsal.BULK
    assert found.at(2, 3).seconds == 0.013, "no step is faster than a smaller one"


def test_a_point_has_the_least_of_several_timings(registry, monkeypatch):
    made = iter([9.0, *[5.0, 0.04, 0.03, 0.05, 0.06] * 4])  # the first is warm-up
    monkeypatch.setattr(rehearsal, "_timed_step", lambda learner, batch: next(made))
    monkeypatch.setattr(rehearsal, "ENOUGH", 100.0)
    found = rehearse(resolved(), VOCABULARY, registry, 1e12)
    assert [point.seconds for point in found.points.values()] == [0.03] * 4
    assert next(made, None) is None


def test_long_steps_and_the_bounds_of_a_training_are_timed_once(registry, monkeypatch):
    made = []
    monkeypatch.setattr(
        rehearsal, "_timed_step", lambda learner, batch: made.append(batch) or rehearsal.ENOUGH
    )
    rehearse(resolved(), VOCABULARY, registry, 1e12)
    assert len(made) == 1 + 4
    made.clear()
    monkeypatch.setattr(rehearsal, "ENOUGH", 100.0)
    rehearse(resolved(), VOCABULARY, registry, 1e12, quick=True)
    assert len(made) == 1 + 1
