"""Every program under NumPy's semantics: its Python text, run by `interpreter`.

What fails here is wrong in the text of a kernel; what fails in compiled code alone is LLVM's doing
or the SIMD layer's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("splitbit_numba_backend.table")
from interpreter import interpreted, kept
from test_numba_primitives import CASES, FAMILIES, NUMBA, NUMPY, context, error, run
from test_numba_primitives import test_scores_with_the_cache_are_those_without as check_cached
from test_numba_training import batches, learner

from splitbit_kit.bundled.optimizers import SGD, AdamW
from splitbit_kit.engine.params import ParameterStore, ParamSpec
from splitbit_kit.models.config import ModelConfig
from splitbit_numba_backend import runtime

BOUNDS = {"fp32": 1e-5, "bf16": 2e-2}
PRECISIONS = pytest.mark.parametrize("precision", BOUNDS)
MODELS = {
    "gpt2": ModelConfig("gpt2", layers=1, heads=2, width=10, context=64, bias=True, dropout=0.2),
    "llama": ModelConfig(
        "llama", layers=1, heads=4, kv_heads=2, width=24, hidden=36, context=64, tied=False
    ),
}


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """Have the interpreter run every program, on one thread; return those that were run."""
    seen: set[Any] = set()

    def run(self: runtime.Runtime, program: runtime.Program, args: Any) -> None:
        words = np.array(args, np.int64)
        function = program.bf16 if self.precision == "bf16" else program.fp32
        with np.errstate(over="ignore"):  # of integers: a hash
            interpreted(function)(0, 1, words.ctypes.data)
        kept.clear()
        seen.add(program)

    monkeypatch.setattr(runtime.Runtime, "run", run)
    return seen


@PRECISIONS
@pytest.mark.parametrize("case", CASES)
def test_primitives_are_numpys(case: str, precision: str, programs: set[Any]) -> None:
    name, operands, static = CASES[case]
    ours = run(NUMBA[precision], name, operands, static, context())
    theirs = run(NUMPY, name, operands, static, context())
    for a, b in zip(ours, theirs, strict=True):
        assert error(a, b) < BOUNDS[precision]
    assert programs


@PRECISIONS
@pytest.mark.parametrize("optimizer", [AdamW(), SGD(momentum=0.9)], ids=["adamw", "sgd"])
@FAMILIES
def test_a_training_step_is_numpys(
    family: str, optimizer: Any, precision: str, programs: set[Any]
) -> None:
    ours = learner(MODELS[family], "numba", "numpy", precision=precision, optimizer=optimizer)
    theirs = learner(MODELS[family], "numpy", optimizer=optimizer)
    a, b = (side.step(3, batches()) for side in (ours, theirs))
    assert a.loss == pytest.approx(b.loss, rel=BOUNDS[precision])
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=BOUNDS[precision])
    assert error(ours.grads.flat, theirs.grads.flat) < BOUNDS[precision]
    # Adam turns gradients next to 0 into whole steps of one sign or the other
    moved = {"fp32": 1e-3, "bf16": 0.1}[precision]
    assert error(ours.params.values, theirs.params.values) < moved
    assert len(programs) > 8


@PRECISIONS
def test_lion_is_numpys(precision: str, programs: set[Any]) -> None:
    specs = [ParamSpec("w", (5, 7), decay=True), ParamSpec("b", (21,))]
    stores = [ParameterStore(specs) for _ in range(2)]
    size = stores[0].values.size
    draws = np.random.default_rng(2).standard_normal((3, size)).astype(np.float32)
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.5, "grad_scale": 0.7}
    moved = []
    for side, params in zip((NUMBA[precision], NUMPY), stores, strict=True):
        params.values[:], m = draws[0], draws[2].copy()
        side.flat["lion"](params, draws[1].copy(), m, **options)
        moved.append(np.concatenate([params.values, m]))
    np.testing.assert_allclose(*moved, rtol=1e-6, atol=1e-6)
    assert len(programs) == 1


@pytest.mark.parametrize("shape", [(1, 1), (7, 35), (35, 7)])
@PRECISIONS
def test_orthogonalize_is_numpys(
    shape: tuple[int, int], precision: str, programs: set[Any]
) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    made = []
    for side in (NUMBA[precision], NUMPY):
        with np.errstate(invalid="ignore"):  # of rows that a tile has and the matrix has not
            side.flat["orthogonalize"](copy := x.copy(), steps=3)
        made.append(copy)
    assert error(*made) < BOUNDS[precision]
    assert len(programs) == 2


@PRECISIONS
@FAMILIES
def test_generation_is_numpys(family: str, precision: str, programs: set[Any]) -> None:
    check_cached(family, precision)
    assert len(programs) > 3
