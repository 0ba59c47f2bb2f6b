"""Rehearsed steps foretell what real ones take, whoever wrote the optimizer."""

import tracemalloc

import numpy as np
import pytest
from tiny_run import TINY

from splitbit_kit.api import OptimizerOffer, hookimpl
from splitbit_kit.compute import choose
from splitbit_kit.registry import Registry
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
    """Return what tracemalloc sees of the whole step."""
    compute = choose(registry, "numpy", config.compute.precision, 1)
    batch = token_batch(VOCABULARY, config.train.batch_size, config.train.seq_len)
    tracemalloc.start()
    try:
        learner = build_learner(config, VOCABULARY, compute, registry)
        learner.step(0, [batch])
        return tracemalloc.get_traced_memory()[1], learner
    finally:
        tracemalloc.stop()


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
    assert taken.total == pytest.approx(peak, rel=0.08)
    assert taken.parameters == learner.params.values.nbytes
    assert taken.gradients == learner.grads.flat.nbytes
    assert taken.moments == sum(array.nbytes for array in learner.state.values())


@pytest.mark.parametrize(("layers", "sequences"), [(1, 1), (1, 6), (5, 1), (2, 2)])
def test_a_model_or_batch_of_one_needs_no_second(registry, layers, sequences):
    config = resolved(model__layers=layers, train__batch_size=sequences)
    taken = rehearse(config, VOCABULARY, registry, 1e12).at(layers, sequences)
    assert taken.total == pytest.approx(real_peak(config, registry)[0], rel=0.08)


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
