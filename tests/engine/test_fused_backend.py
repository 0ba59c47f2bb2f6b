"""The contract, proved by a backend that fuses, keeps half precision, and declines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chains import DTYPES, backend
from fused_backend import BLOCKS, fused_backend

from splitbit_kit.api import Backend, Context
from splitbit_kit.bundled.optimizers import AdamW
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.text.batches import Batch
from splitbit_kit.training.learner import Learner

CONFIGS = [
    ModelConfig("gpt2", layers=2, heads=2, width=32, context=16, bias=True),
    ModelConfig("llama", layers=2, heads=4, kv_heads=2, width=32, hidden=48, context=16),
]
FAMILIES = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.family)
VOCABULARY = 23


def chain(*names: str, precision: str = "fp32") -> list[tuple[str, Backend]]:
    """Return a chain of "test" and "numpy"."""
    numpy = backend("numpy", precision)
    built = {"numpy": numpy, "test": fused_backend(numpy)}
    return [(name, built[name]) for name in names]


def learner(config: ModelConfig, *names: str, precision: str = "fp32") -> Learner:
    """Return a model that is ready to train, on a chain of backends."""
    specs = parameter_specs(config, VOCABULARY)
    params = ParameterStore(specs, DTYPES[precision])
    params.initialise(specs, seed=3)
    table = OpTable(chain(*names, precision=precision), train=True)
    return Learner(
        Decoder(config, params), table, Context(BufferPool()), AdamW(), lambda step: 1e-2
    )


def batches() -> Sequence[Batch]:
    """Return two ragged micro-batches."""
    generator = np.random.default_rng(1)
    made = []
    for lengths in ((16, 3, 9), (1, 12)):
        ids, targets = generator.integers(0, VOCABULARY, (2, sum(lengths)), np.int32)
        positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
        made.append(Batch(ids, targets, positions, np.cumsum([0, *lengths], dtype=np.int32)))
    return made


def origins(trained: Learner) -> dict[str, set[str]]:
    """Return op -> the backends that serve it."""
    found: dict[str, set[str]] = {}
    for resolved in trained._table.resolved:
        found.setdefault(resolved.site.op, set()).add(resolved.origin)
    return found


def relative(found: Any, expected: Any) -> float:
    """Return the distance of two arrays, relative to the size of the second."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@FAMILIES
def test_gradients_are_numpys_within_half_precision(config: ModelConfig) -> None:
    ours, numpy = learner(config, "test", "numpy"), learner(config, "numpy")
    assert ours.gradients(0, batches()) == pytest.approx(numpy.gradients(0, batches()), rel=1e-6)
    for param in numpy.params:
        if param.name.endswith("attn.k.bias"):
            continue  # zero but for rounding: softmax does not see a shift of all scores
        error = relative(ours.grads[param.name], numpy.grads[param.name])
        assert error < 2e-3, param.name
    assert relative(ours.grads.flat, numpy.grads.flat) > 1e-6  # it does keep half precision


@FAMILIES
def test_it_trains(config: ModelConfig) -> None:
    curves = []
    for names in (("test", "numpy"), ("numpy",)):
        model = learner(config, *names)
        curves.append([model.step(step, batches()).loss for step in range(20)])
    assert curves[0][-1] < curves[0][0] - 0.5
    np.testing.assert_allclose(curves[0], curves[1], atol=0.03)


@FAMILIES
def test_every_site_says_where_it_came_from(config: ModelConfig) -> None:
    found = origins(learner(config, "test", "numpy"))
    assert {op: found.pop(op) for op in BLOCKS} == {op: {"test"} for op in BLOCKS}
    assert found.pop("head_loss") == {"parts"}
    assert set.union(*found.values()) == {"numpy"}
    assert "attention" not in found  # it is inside the block


@FAMILIES
def test_a_declined_site_falls_to_its_parts(config: ModelConfig) -> None:
    dropping = replace(config, dropout=0.2)
    ours, numpy = learner(dropping, "test", "numpy"), learner(dropping, "numpy")
    found = origins(ours)
    assert {op: found.pop(op) for op in BLOCKS} == {op: {"parts"} for op in BLOCKS}
    assert found["attention"] == found["dropout"] == {"numpy"}
    assert ours.gradients(0, batches()) == numpy.gradients(0, batches())
    np.testing.assert_array_equal(ours.grads.flat, numpy.grads.flat)


@FAMILIES
def test_behind_a_backend_that_offers_the_parts_it_is_not_used(config: ModelConfig) -> None:
    found = origins(learner(config, "numpy", "test"))
    assert {op: found.pop(op) for op in BLOCKS} == {op: {"parts"} for op in BLOCKS}


@FAMILIES
def test_it_keeps_less_than_numpy(config: ModelConfig) -> None:
    # half precision is the point: were the saved state float32, nothing here would notice
    model = learner(config, "test", "numpy")
    op = next(r.op for r in model._table.resolved if r.site.op == "mlp_block")
    assert op is not None
    p = model.decoder.layers[0]
    x = np.ones((4, config.width), np.float32)
    operands = (x, p.mlp_norm, p.mlp_norm_bias, p.gate, p.up, p.down, p.up_bias, p.down_bias)
    static = {
        "norm": model.decoder.norm,
        "eps": 1e-5,
        "activation": model.decoder.activation,
        "dropout": 0.0,
        "site": 0,
    }
    _, saved = op.forward(model._ctx, *operands, **static)
    dtypes = {array.dtype for array in _arrays(saved)}
    assert dtypes == {np.dtype(np.float16)}


def _arrays(saved: Any) -> list[Any]:
    if isinstance(saved, np.ndarray):
        return [saved]
    if isinstance(saved, tuple | list):
        return [array for part in saved for array in _arrays(part)]
    return []
