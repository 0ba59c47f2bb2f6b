"""AdamW and SGD against recorded PyTorch, against hand-computed numbers, and against themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from splitbit_kit.bundled.optimizers import SGD, AdamW, optimizers
from splitbit_numpy_backend import flat

GOLDEN = Path(__file__).parents[1] / "golden" / "optimizers.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]

# as in tests/golden/record_optimizers.py
STEPS, SIZE, DECAYED = 20, 8, 4
LR, DECAY, SCALE = 0.05, 0.1, 0.5

OPS = {"adamw": flat.adamw, "sgd": flat.sgd}


def gradient(step: int) -> Any:
    return np.array([math.sin(1.7 * step + i) * 10.0 ** (i % 3 - 1) for i in range(SIZE)])


def parameters(values: Any, decayed: int) -> Any:
    return SimpleNamespace(values=np.array(values), decayed=decayed, matrices=decayed, version=0)


def step(optimizer: Any, params: Any, grads: Any, state: Any, **more: float) -> None:
    options = {"lr": LR, "grad_scale": 1.0, **more}
    optimizer.update(params, np.array(grads), state, ops=OPS, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['name']} {case['options']}")
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_twenty_steps_are_those_of_pytorch(case: Any, dtype: Any, tolerance: float) -> None:
    build = {offer.name: offer.build for offer in optimizers()}[case["name"]]
    optimizer = build(**case["options"], weight_decay=DECAY)
    params = parameters(np.array([math.cos(i) for i in range(SIZE)], dtype), DECAYED)
    state = optimizer.init(params)
    expected = iter(case["values"])
    for n in range(STEPS):
        step(optimizer, params, gradient(n).astype(dtype), state, grad_scale=SCALE)
        if n + 1 in (1, 2, 10, 20):
            np.testing.assert_allclose(
                params.values, next(expected), rtol=tolerance, atol=tolerance
            )
    assert params.values.dtype == dtype
    assert next(expected, None) is None


def test_adamws_first_step_by_hand() -> None:
    # m/(1 - beta1) = g and v/(1 - beta2) = g^2, so that it moves by lr, in the sign's direction
    params = parameters([1.0, -2.0, 3.0], 1)
    optimizer = AdamW(weight_decay=0.5)
    state = optimizer.init(params)
    step(optimizer, params, [4.0, -8.0, 0.0], state, lr=0.1)
    np.testing.assert_allclose(params.values, [1.0 * (1 - 0.05) - 0.1, -1.9, 3.0], rtol=1e-8)
    np.testing.assert_allclose(state["m"], [0.4, -0.8, 0.0])
    np.testing.assert_allclose(state["v"], [0.16, 0.64, 0.0])


def test_sgds_momentum_by_hand() -> None:
    params = parameters([1.0], 0)
    optimizer = SGD(momentum=0.5)
    state = optimizer.init(params)
    moved = []
    for _ in range(3):
        before = params.values[0]
        step(optimizer, params, [2.0], state, lr=0.1)
        moved.append(before - params.values[0])
    np.testing.assert_allclose(moved, [0.2, 0.3, 0.35])


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.2), SGD(weight_decay=0.2)])
def test_only_the_decayed_entries_decay(optimizer: Any) -> None:
    params = parameters([1.0, 1.0, 1.0, 1.0], 2)
    step(optimizer, params, np.zeros(4), optimizer.init(params), lr=0.5)
    np.testing.assert_allclose(params.values, [0.9, 0.9, 1.0, 1.0])


@pytest.mark.parametrize("optimizer", [AdamW(), SGD()])
def test_the_gaps_between_parameters_stay_zero(optimizer: Any) -> None:
    params = parameters([1.0, 0.0, 1.0], 3)
    state = optimizer.init(params)
    for _ in range(3):
        step(optimizer, params, [1.0, 0.0, -1.0], state)
    assert params.values[1] == 0.0


@pytest.mark.parametrize("optimizer", [AdamW(), SGD(), SGD(momentum=0.0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_state_is_named_flat_arrays_that_resume_to_the_bit(optimizer: Any, dtype: Any) -> None:
    def run(params: Any, state: Any, steps: range) -> None:
        for n in steps:
            step(optimizer, params, gradient(n).astype(dtype), state)

    through = parameters(np.ones(SIZE, dtype), DECAYED)
    state = optimizer.init(through)
    run(through, state, range(6))
    for array in state.values():
        assert array.ndim == 1
    assert state["step"].dtype == np.int64
    assert state["step"].tolist() == [6]

    halted = parameters(np.ones(SIZE, dtype), DECAYED)
    saved = optimizer.init(halted)
    run(halted, saved, range(3))
    resumed = parameters(halted.values, DECAYED)
    run(resumed, {name: array.copy() for name, array in saved.items()}, range(3, 6))
    np.testing.assert_array_equal(resumed.values, through.values)


@pytest.mark.parametrize("optimizer", [AdamW(), SGD()])
def test_the_state_is_changed_in_place(optimizer: Any) -> None:
    params = parameters(np.ones(SIZE), DECAYED)
    state = optimizer.init(params)
    values, arrays = params.values, dict(state)
    step(optimizer, params, gradient(0), state)
    assert params.values is values
    assert all(state[name] is array for name, array in arrays.items())


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (AdamW, {"beta1": 1.0}),
        (AdamW, {"beta1": -0.1}),
        (AdamW, {"beta2": 1.0}),
        (AdamW, {"beta2": math.nan}),
        (AdamW, {"eps": 0.0}),
        (AdamW, {"eps": math.inf}),
        (AdamW, {"weight_decay": -0.1}),
        (AdamW, {"weight_decay": math.nan}),
        (SGD, {"momentum": 1.0}),
        (SGD, {"weight_decay": math.inf}),
    ],
)
def test_options_out_of_range_are_refused_by_name(build: Any, options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name}: "):
        build(**options)
