"""Gradients of whole models, in float64, against central finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine.chains import DTYPES, chain

from splitbit_kit.api import Context, LowRank, PackedTensor, Param
from splitbit_kit.bundled.optimizers import AdamW
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.params import GradientBuffer, ParameterStore, ParamSpec
from splitbit_kit.engine.tape import Tape
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.text.batches import Batch
from splitbit_kit.training.learner import Learner

Array = np.ndarray[Any, np.dtype[Any]]

VOCABULARY = 11
GPT2 = ModelConfig("gpt2", layers=2, heads=2, width=8, hidden=12, context=8)
LLAMA = ModelConfig("llama", layers=2, heads=4, kv_heads=2, width=16, hidden=12, context=8)
CONFIGS = {
    "gpt2": GPT2,
    "gpt2-bias": replace(GPT2, bias=True),
    "gpt2-untied": replace(GPT2, tied=False),
    "gpt2-bias-dropout": replace(GPT2, bias=True, dropout=0.3),
    "gpt2-untied-dropout": replace(GPT2, tied=False, dropout=0.3),
    "llama": LLAMA,
    "llama-all-heads": replace(LLAMA, kv_heads=4),
    "llama-untied": replace(LLAMA, tied=False),
    "llama-tied-dropout": replace(LLAMA, dropout=0.3),
    "llama-untied-dropout": replace(LLAMA, tied=False, dropout=0.3),
}
TOLERANCE = 1e-6
BACKENDS = ("numpy",)  # those that compute in float64


class Model:
    """A decoder with large random weights, so that no gradient is too small to measure."""

    def __init__(
        self,
        config: ModelConfig,
        backend: str = "numpy",
        precision: str = "fp64",
        more: Sequence[ParamSpec] = (),
        frozen: dict[str, Param] | None = None,
    ) -> None:
        specs = [*parameter_specs(config, VOCABULARY), *more]
        self.params = ParameterStore(specs, DTYPES[precision], frozen)
        generator = np.random.default_rng(0)
        for param in self.params:
            param.array[...] = generator.normal(param.array.ndim < 2, 0.3, param.shape)
        self.decoder = Decoder(config, self.params)
        self.table = OpTable(chain(backend, precision), train=True)
        self.grads = GradientBuffer(self.params)
        self.ctx = Context(BufferPool(), seed=5, step=3, unpack=unpack)

    def loss(self, batches: Sequence[Batch], grad: bool = True) -> float:
        """Return the mean loss over all tokens; fill the gradients unless grad is False."""
        self.ctx.grad = grad
        share = 1 / sum(batch.ids.size for batch in batches)
        loss = 0.0
        self.grads.begin()
        for i, batch in enumerate(batches):
            self.ctx.micro_batch = i
            weights = np.full(batch.ids.size, share, self.params.dtype)
            tape = Tape(self.table, self.ctx, flat=self.params.values)
            nll = self.decoder.loss(tape, batch, batch.targets, weights)
            loss += float(weights @ nll)
            if grad:
                tape.backward(nll, weights, self.grads)
        self.grads.finish()
        return loss


def batch(lengths: Sequence[int], seed: int) -> Batch:
    """Return random tokens in sequences of the given lengths."""
    generator = np.random.default_rng(seed)
    ids, targets = generator.integers(0, VOCABULARY, (2, sum(lengths)), np.int32)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    return Batch(ids, targets, positions, np.cumsum([0, *lengths], dtype=np.int32))


def join(batches: Sequence[Batch]) -> Batch:
    """Return one batch with all the sequences."""
    lengths = np.concatenate([np.diff(b.starts) for b in batches])
    return Batch(
        np.concatenate([b.ids for b in batches]),
        np.concatenate([b.targets for b in batches]),
        np.concatenate([b.positions for b in batches]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
    )


RAGGED = (batch((5, 1, 7), seed=1), batch((4, 6), seed=2))


def check_gradients(model: Model, batches: Sequence[Batch]) -> None:
    """Compare every parameter's gradient with finite differences.

    Per tensor: its derivative in two random directions, its largest entry and another one.
    The error is relative to the gradient, or, for an entry, to the tensor's typical entry.
    """
    model.loss(batches)
    gradients = {param.name: model.grads[param.name].copy() for param in model.params}

    def loss() -> float:
        return model.loss(batches, grad=False)

    generator = np.random.default_rng(1)
    for param in model.params:
        gradient = gradients[param.name]
        typical = float(np.linalg.norm(gradient)) / np.sqrt(gradient.size)
        if param.name.endswith("attn.k.bias") and model.decoder.rotary_base is None:
            # softmax does not see a shift of all scores, so this gradient is zero
            assert abs(gradient).max() < 1e-12, param.name
            continue
        assert typical > 1e-5, f"{param.name}: too small a gradient to be compared"
        for direction in _directions(gradient, generator):
            found = float(np.vdot(gradient, direction))
            expected = _derivative(loss, param.array, direction)
            scale = max(abs(expected), typical * float(np.linalg.norm(direction)))
            assert abs(found - expected) < TOLERANCE * scale, (param.name, found, expected)


def _directions(gradient: Array, generator: np.random.Generator) -> list[Array]:
    entries = {int(abs(gradient).argmax()), int(generator.integers(gradient.size))}
    units = []
    for entry in sorted(entries):
        unit = np.zeros(gradient.size)
        unit[entry] = 1.0
        units.append(unit.reshape(gradient.shape))
    random = generator.normal(size=(2, *gradient.shape))
    return [*(d / np.linalg.norm(d) for d in random), *units]


def _derivative(f: Callable[[], float], value: Array, direction: Array, h: float = 5e-4) -> float:
    """Return the slope of f along a direction of `value`: central differences of fourth order."""
    before = value.copy()

    def at(t: float) -> float:
        value[...] = before + t * direction
        return f()

    slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    value[...] = before
    return slope


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_exact(name: str, backend: str) -> None:
    check_gradients(Model(CONFIGS[name], backend), RAGGED)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["gpt2-bias", "llama-untied"])
@pytest.mark.parametrize("lengths", [[(6,), (6,), (6,)], [(5, 1, 7), (2,), (8, 3)]], ids=str)
def test_accumulation_equals_the_large_batch(
    name: str, lengths: list[tuple[int, ...]], backend: str
) -> None:
    model = Model(CONFIGS[name], backend)
    parts = [batch(lens, seed) for seed, lens in enumerate(lengths)]
    loss = model.loss(parts)
    accumulated = model.grads.flat.copy()
    assert model.loss([join(parts)]) == pytest.approx(loss, rel=1e-14)
    scale = abs(accumulated).max()
    np.testing.assert_allclose(accumulated, model.grads.flat, rtol=0, atol=1e-14 * scale)


@pytest.mark.parametrize("name", ["gpt2-bias-dropout", "llama"])
def test_a_training_step_computes_the_same(name: str) -> None:
    model = Model(CONFIGS[name])
    loss = model.loss(RAGGED)
    learner = Learner(model.decoder, model.table, model.ctx, AdamW(), lambda step: 0.0)
    assert learner.gradients(model.ctx.step, RAGGED) == pytest.approx(loss, rel=1e-15)
    np.testing.assert_array_equal(learner.grads.flat, model.grads.flat)


def test_sequences_do_not_see_each_other() -> None:
    model = Model(GPT2)
    alone = [model.loss([b]) for b in (batch((5,), 1), batch((3,), 2))]
    joined = model.loss([join([batch((5,), 1), batch((3,), 2)])])
    assert joined == pytest.approx((5 * alone[0] + 3 * alone[1]) / 8, rel=1e-14)


def test_each_micro_batch_has_dropouts_of_its_own() -> None:
    model = Model(CONFIGS["gpt2-bias-dropout"])
    part = batch((6,), 1)
    assert model.loss([part, part]) != pytest.approx(model.loss([part]), rel=1e-6)


# ---- weights that are not arrays


def pack(w: Array) -> PackedTensor:
    """Return w in a format that only these tests know: int8 and a scale a row."""
    scale = (abs(w).max(axis=1) / 127).astype(np.float32)
    arrays = {"q": np.rint(w / scale[:, None]).astype(np.int8), "scale": scale}
    return PackedTensor("test-rows", w.shape, arrays)


def unpack(packed: PackedTensor, start: int, stop: int) -> Array:
    """Return rows start .. stop - 1 as float32."""
    rows = slice(start, stop)
    result: Array = packed.arrays["q"][rows] * packed.arrays["scale"][rows, None]
    return result


def packed_model(config: ModelConfig) -> tuple[Model, Model]:
    """Return a model with its matrices packed and frozen, and one with the same as arrays.

    All but the embedding, so that the gradient reaches parameters on both sides of the packed ones.
    """
    plain = Model(config)
    names = [p.name for p in plain.params if p.name.startswith("layers.") and p.array.ndim == 2]
    frozen = {n: Param(n, pack(plain.params[n].array), trainable=False) for n in names}
    packed = Model(config, frozen=frozen)
    for name, param in frozen.items():
        assert isinstance(param.value, PackedTensor)
        plain.params[name].array[...] = unpack(param.value, 0, param.shape[0])
    for param in packed.params:
        param.array[...] = plain.params[param.name].array
    return packed, plain


@pytest.mark.parametrize("name", ["gpt2-bias", "llama-untied-dropout"])
def test_packed_weights_pass_the_gradient_on(name: str) -> None:
    packed, plain = packed_model(CONFIGS[name])
    assert packed.loss(RAGGED) == pytest.approx(plain.loss(RAGGED), rel=1e-14)
    for param in packed.params:
        expected = plain.grads[param.name]
        bound = 1e-13 * max(abs(expected).max(), 1e-3)
        np.testing.assert_allclose(packed.grads[param.name], expected, rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["gpt2-bias", "llama-untied-dropout"])
@pytest.mark.parametrize("base", ["array", "packed", "trained"])
def test_low_rank_weights_have_exact_gradients(name: str, base: str) -> None:
    check_gradients(low_rank_model(replace(CONFIGS[name], layers=1), base), RAGGED)


def low_rank_model(config: ModelConfig, base: str) -> Model:
    """Return a model whose matrices in the layers carry adapters of rank 3.

    base: what is below the adapter: a frozen array, a frozen packed tensor, or a parameter that is
    trained with it.
    """
    plain = Model(config)
    rank = 3
    more: list[ParamSpec] = []
    frozen: dict[str, Param] = {}
    matrices = [p for p in plain.params if p.name.startswith("layers.") and p.array.ndim == 2]
    for w in matrices:
        outputs, inputs = w.shape
        more.append(ParamSpec(f"{w.name}.a", (rank, inputs)))
        more.append(ParamSpec(f"{w.name}.b", (outputs, rank)))
        if base == "trained":
            more.append(ParamSpec(f"{w.name}.base", w.shape))
        value = pack(w.array) if base == "packed" else w.array.copy()
        frozen[w.name] = Param(w.name, value, trainable=False)
    model = Model(config, more=more, frozen=frozen)
    for w in frozen.values():
        below = Param(f"{w.name}.base", w.value, trainable=False)
        if base == "trained":
            below = model.params[f"{w.name}.base"]
        a, b = model.params[f"{w.name}.a"], model.params[f"{w.name}.b"]
        w.value = LowRank(below, a, b, scale=0.7)
    return model
