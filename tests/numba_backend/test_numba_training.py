"""The built backend: whole training steps against NumPy's, ragged, in both precisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import splitbit_numpy_backend
from splitbit_kit.api import Context, Hardware, Optimizer, SplitbitError
from splitbit_kit.bundled.optimizers import SGD, Adafactor, AdamW, Lion, Muon
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.engine.workspace import BufferPool
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.text.batches import Batch
from splitbit_kit.training.learner import Learner

table = pytest.importorskip("splitbit_numba_backend.table")

HARDWARE = Hardware(2, 2, 1 << 34, "light")
VOCABULARY = 61
CASES = {
    "gpt2": ModelConfig("gpt2", layers=2, heads=3, width=48, context=64, bias=True),
    "untied": ModelConfig("gpt2", layers=1, heads=2, width=36, context=64, tied=False),
    "llama": ModelConfig("llama", layers=2, heads=4, kv_heads=2, width=40, hidden=56, context=64),
}
CASES["untied-dropout"] = replace(CASES["untied"], dropout=0.2)
CASES["llama-dropout"] = replace(CASES["llama"], dropout=0.1)  # which is tied
ODD = ModelConfig("llama", layers=3, heads=1, width=50, hidden=70, context=64, tied=False)


def batches(seed: int = 0) -> list[Batch]:
    """Return two ragged micro-batches, one with an empty sequence and one of a single token."""
    generator = np.random.default_rng(seed)
    made = []
    for lengths in ((33, 1, 0, 17), (5, 64)):
        ids, targets = generator.integers(0, VOCABULARY, (2, sum(lengths)), np.int32)
        positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
        made.append(Batch(ids, targets, positions, np.cumsum([0, *lengths], dtype=np.int32)))
    return made


def learner(
    config: ModelConfig,
    *names: str,
    precision: str = "fp32",
    threads: int = 2,
    optimizer: Optimizer | None = None,
    rate: float = 1e-2,
) -> Learner:
    builders = {"numpy": splitbit_numpy_backend.build, "numba": table.build}
    chain = [
        (name, builders[name](HARDWARE, precision if name == "numba" else "fp32", threads))
        for name in names
    ]
    specs = parameter_specs(config, VOCABULARY)
    params = ParameterStore(specs)
    params.initialise(specs, seed=5)
    ctx = Context(BufferPool(), threads=threads)
    return Learner(
        Decoder(config, params),
        OpTable(chain, train=True),
        ctx,
        optimizer or AdamW(),
        lambda step: rate,
    )


def error(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 1e-2)])
def test_gradients_are_numpys(case: str, precision: str, bound: float) -> None:
    ours = learner(CASES[case], "numba", "numpy", precision=precision)
    assert set(ours.origins.values()) == {"numba"}
    theirs = learner(CASES[case], "numpy")
    a, b = ours.gradients(0, batches()), theirs.gradients(0, batches())
    assert a == pytest.approx(b, rel=bound)
    for param in theirs.params:
        if not param.name.endswith(
            "k.bias"
        ):  # a key bias moves all scores alike: its gradient is 0
            assert error(ours.grads[param.name], theirs.grads[param.name]) < bound, param.name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", ["gpt2", "llama-dropout"])
def test_neither_runs_nor_threads_change_a_bit(case: str, precision: str) -> None:
    results = []
    for threads in (1, 2, 2, 3):
        run = learner(CASES[case], "numba", "numpy", precision=precision, threads=threads)
        losses = [run.step(step, batches(step)).loss for step in range(4)]
        results.append((losses, run.params.values.tobytes()))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("case", ["gpt2", "llama"])
def test_a_curve_is_numpys(case: str) -> None:
    """At worst 4e-6 is seen, as between NumPy's own fp32 and fp64.

    At a rate of 1e-2 all three part after 40 steps: training these random tokens is chaotic there.
    """
    ours = learner(CASES[case], "numba", "numpy", rate=3e-3)
    theirs = learner(CASES[case], "numpy", rate=3e-3)
    losses = []
    for step in range(100):
        a, b = (side.step(step, batches(step % 10)) for side in (ours, theirs))
        assert a.loss == pytest.approx(b.loss, rel=1e-4), step
        losses.append(a.loss)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_five_hundred_steps_of_an_odd_model_stay_finite(precision: str) -> None:
    """One head of 50 columns, 61 ids, ragged and empty sequences: none is a multiple of a block."""
    run = learner(ODD, "numba", "numpy", precision=precision)
    outcomes = [run.step(step, batches(step % 7)) for step in range(500)]
    assert np.isfinite([(o.loss, o.grad_norm) for o in outcomes]).all()
    assert np.isfinite(run.params.values).all()
    assert outcomes[-1].loss < 0.5 * outcomes[0].loss


def test_a_shadow_made_stale_by_another_update_is_renewed() -> None:
    ours = learner(CASES["llama"], "numba", "numpy", precision="bf16")
    ours.step(0, batches())
    for param in ours.params:
        param.array[...] *= 0.5
    ours.params.updated()
    theirs = learner(CASES["llama"], "numpy")
    theirs.params.values[:] = ours.params.values
    theirs.params.updated()
    assert ours.gradients(1, batches()) == pytest.approx(theirs.gradients(1, batches()), rel=1e-2)


def test_ids_out_of_range_are_errors() -> None:
    ours = learner(CASES["gpt2"], "numba", "numpy")
    batch = batches()[0]
    for name in ("ids", "targets"):
        for wrong in (-1, VOCABULARY):
            bad = {**vars(batch), name: vars(batch)[name].copy()}
            bad[name][3] = wrong
            with pytest.raises(SplitbitError, match=f"id {wrong} is outside the vocabulary"):
                ours.gradients(0, [Batch(**bad)])


@pytest.mark.parametrize("case", ["gpt2", "llama"])
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 1e-2)])
def test_dropout_is_numpys(case: str, precision: str, bound: float) -> None:
    config = replace(CASES[case], dropout=0.2)
    ours = learner(config, "numba", "numpy", precision=precision)
    assert set(ours.origins.values()) == {"numba"}
    theirs = learner(config, "numpy")
    for side in (ours, theirs):
        side.gradients(6, batches())  # the mask depends on the step
    a, b = ours.gradients(7, batches()), theirs.gradients(7, batches())
    assert a == pytest.approx(b, rel=bound)
    assert error(ours.grads.flat, theirs.grads.flat) < bound


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_numpys(precision: str, momentum: float) -> None:
    optimizer = SGD(momentum=momentum, weight_decay=0.1)
    ours = learner(CASES["gpt2"], "numba", "numpy", precision=precision, optimizer=optimizer)
    theirs = learner(CASES["gpt2"], "numpy", optimizer=optimizer)
    for step in range(3):
        ours.step(step, batches(step))
        theirs.step(step, batches(step))
    assert error(ours.params.values, theirs.params.values) < {"fp32": 1e-5, "bf16": 1e-3}[precision]


OTHERS = pytest.mark.parametrize("build", [Lion, Muon, Adafactor])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@OTHERS
def test_other_optimizers_are_numpys(build: Any, precision: str) -> None:
    ours = learner(CASES["llama"], "numba", "numpy", precision=precision, optimizer=build())
    theirs = learner(CASES["llama"], "numpy", optimizer=build())
    start = ours.params.values.copy()
    for step in range(3):
        ours.step(step, batches(step))
        theirs.step(step, batches(step))
    # signs of gradients next to 0 are either: of what was moved, not of what there is
    moved = error(ours.params.values - start, theirs.params.values - start)
    assert moved < {"fp32": 0.05, "bf16": 0.5}[precision]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@OTHERS
def test_no_thread_changes_a_bit_of_them(build: Any, precision: str) -> None:
    results = []
    for threads in (1, 2, 3):
        run = learner(
            CASES["gpt2"], "numba", "numpy", precision=precision, threads=threads, optimizer=build()
        )
        for step in range(3):
            run.step(step, batches(step))
        state = {name: array.tobytes() for name, array in run.state.items()}
        results.append((run.params.values.tobytes(), state))
    assert results[0] == results[1] == results[2]


@OTHERS
def test_the_shadows_are_those_of_the_new_values(build: Any) -> None:
    """A gradient by shadows that an optimizer renewed is that by shadows made anew."""
    ours = learner(CASES["llama"], "numba", "numpy", precision="bf16", optimizer=build())
    ours.step(0, batches())
    fresh = learner(CASES["llama"], "numba", "numpy", precision="bf16")
    fresh.params.values[:] = ours.params.values
    fresh.params.updated()
    assert ours.gradients(1, batches()) == fresh.gradients(1, batches())
    assert ours.grads.flat.tobytes() == fresh.grads.flat.tobytes()


def test_numpy_has_every_loop_too() -> None:
    """So that it closes the chain of a backend that lacks some."""
    ours, theirs = (
        table.build(HARDWARE, "fp32", 1),
        splitbit_numpy_backend.build(HARDWARE, "fp32", 1),
    )
    assert ours.flat.keys() <= theirs.flat.keys()


@pytest.mark.parametrize("shape", [(1, 1), (16, 48), (48, 16), (33, 100), (130, 65)])
@pytest.mark.parametrize("steps", [1, 4, 5])
def test_orthogonalize_is_numpys(shape: tuple[int, int], steps: int) -> None:
    x = np.random.default_rng(3).standard_normal(shape)
    splitbit_numpy_backend.build(HARDWARE, "fp64", 1).flat["orthogonalize"](
        expected := x.copy(), steps=steps
    )
    for precision, bound in (("fp32", 3e-6), ("bf16", 3e-2)):
        bits = set()
        for threads in (1, 2, 3):
            found = x.astype(np.float32)
            table.build(HARDWARE, precision, threads).flat["orthogonalize"](found, steps=steps)
            assert error(found, expected) < bound
            bits.add(found.tobytes())
        assert len(bits) == 1


def test_other_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match="no precision fp64; choose bf16 or fp32"):
        table.build(HARDWARE, "fp64", 1)
