"""Optimizers against recorded PyTorch, against hand-computed numbers, and against themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from splitbit_kit.api import Hardware
from splitbit_kit.bundled.optimizers import SGD, Adafactor, AdamW, Lion, Muon, optimizers
from splitbit_kit.engine.params import ParameterStore, ParamSpec
from splitbit_numpy_backend import build as build_numpy

GOLDEN = Path(__file__).parents[1] / "golden" / "optimizers.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
OPS = build_numpy(Hardware(1, 1, 1 << 30, "minimal"), "fp64", 1).flat
BUILD = {offer.name: offer.build for offer in optimizers()}
ALL = pytest.mark.parametrize("name", BUILD)

# as in tests/golden/record_optimizers.py
STEPS, SHOWN = 20, (1, 2, 10, 20)
DECAY, SCALE = 0.1, 0.5
SHAPES = {"tok": (5, 3), "wide": (3, 4), "tall": (4, 3), "norm": (3,)}
HIDDEN = ("wide", "tall")
SIZE = sum(map(math.prod, SHAPES.values()))


def model(dtype: Any) -> tuple[ParameterStore, list[int]]:
    """Return the parameters before the first step, and where each of their numbers lies."""
    specs = [
        ParamSpec(name, shape, decay=len(shape) > 1, hidden=name in HIDDEN)
        for name, shape in SHAPES.items()
    ]
    params = ParameterStore(specs, dtype)
    places = np.arange(params.values.size)
    for param in params:
        param.array.flat = np.cos(np.arange(param.array.size) + _first(param.name))
    return params, [int(n) for param in params for n in params.view(places, param).flat]


def _first(name: str) -> int:
    names = list(SHAPES)
    return sum(math.prod(SHAPES[before]) for before in names[: names.index(name)])


def model_gradient(step: int, params: ParameterStore) -> Any:
    """Return gradients that change sign and size from step to step, flat."""
    flat = params.zeros()
    for param in params:
        k = np.arange(param.array.size) + _first(param.name)
        values = np.sin(1.7 * step + k * (1 + 0.1 * k)) * 10.0 ** (k % 3 - 1)
        params.view(flat, param)[...] = values.reshape(param.shape)
    return flat


def parameters(values: Any, decayed: int) -> Any:
    return SimpleNamespace(values=np.array(values), decayed=decayed, matrices=decayed, version=0)


def step(optimizer: Any, params: Any, grads: Any, state: Any, **more: float) -> None:
    options = {"lr": 0.05, "grad_scale": 1.0, **more}
    optimizer.update(params, np.array(grads), state, ops=OPS, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['name']} {case['options']}")
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_twenty_steps_are_those_of_pytorch(case: Any, dtype: Any, tolerance: float) -> None:
    optimizer = BUILD[case["name"]](**case["options"], weight_decay=DECAY)
    params, places = model(dtype)
    state = optimizer.init(params)
    expected = iter(case["values"])
    for n in range(STEPS):
        grads = model_gradient(n, params)
        step(optimizer, params, grads, state, lr=case["lr"], grad_scale=SCALE)
        if n + 1 in SHOWN:
            np.testing.assert_allclose(
                params.values[places], next(expected), rtol=tolerance, atol=tolerance
            )
    assert params.values.dtype == dtype
    assert next(expected, None) is None


def test_every_optimizer_is_recorded() -> None:
    assert {case["name"] for case in CASES} == set(BUILD)


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


def test_lions_steps_by_hand() -> None:
    params = parameters([1.0, -2.0, 3.0], 1)
    optimizer = Lion(beta1=0.5, beta2=0.75, weight_decay=0.5)
    state = optimizer.init(params)
    step(optimizer, params, [4.0, -8.0, 0.0], state, lr=0.1)
    np.testing.assert_allclose(params.values, [0.95 - 0.1, -2.0 + 0.1, 3.0])
    np.testing.assert_allclose(state["m"], [1.0, -2.0, 0.0])
    # 0.5 m + 0.5 g is 0 for the first: it only decays
    step(optimizer, params, [-1.0, 1.0, -1.0], state, lr=0.1)
    np.testing.assert_allclose(params.values, [0.85 * 0.95, -1.9 + 0.1, 3.0 + 0.1])


def test_muon_moves_a_hidden_matrix_by_orthogonal_steps() -> None:
    rng = np.random.default_rng(0)
    params = ParameterStore([ParamSpec("w", (24, 40), hidden=True)], np.float64)
    optimizer = Muon()
    step(optimizer, params, rng.standard_normal(24 * 40), optimizer.init(params), lr=0.1)
    moved = np.linalg.svd(params["w"].array / (0.1 * 0.2 * math.sqrt(40)), compute_uv=False)
    assert 0.6 < moved.min() < moved.max() < 1.3
    # as AdamW's, whose entries have a root mean square of about 0.2 where gradients are noise
    assert np.sqrt(np.mean(params.values**2)) == pytest.approx(0.1 * 0.2, rel=0.3)


def test_muon_treats_what_is_not_hidden_as_adamw_does() -> None:
    params, _ = model(np.float64)
    others, _ = model(np.float64)
    muon, adamw = Muon(), AdamW()
    state, other = muon.init(params), adamw.init(others)
    for n in range(3):
        step(muon, params, model_gradient(n, params), state)
        step(adamw, others, model_gradient(n, others), other)
    for name in SHAPES:
        same = np.array_equal(params[name].array, others[name].array)
        assert same == (name not in HIDDEN), name


def test_adafactor_finds_the_moment_of_a_product_exactly() -> None:
    # squares that are a row times a column: then its direction is a sign, and moves by s lr
    row, column = np.array([1.0, 3.0, 0.5]), np.array([2.0, 0.1, 1.0, 7.0])
    params = ParameterStore([ParamSpec("w", (3, 4))], np.float64)
    params["w"].array[...] = 2.0
    grads = params.zeros()
    params.view(grads, params["w"])[...] = np.outer(row, -column)
    optimizer = Adafactor()
    step(optimizer, params, grads, optimizer.init(params), lr=0.1)
    np.testing.assert_allclose(params["w"].array, 2.0 + 2.0 * 0.1)


def test_adafactors_steps_shrink_where_the_rate_does_not() -> None:
    # by 1 / sqrt(step) at most, with gradients that are all alike
    params = ParameterStore([ParamSpec("w", (1, 1))], np.float64)
    params["w"].array[...] = 1.0
    optimizer = Adafactor(eps2=1.0)
    state = optimizer.init(params)
    moved = []
    for _ in range(4):
        before = params.values[0]
        step(optimizer, params, [1.0, *[0.0] * (params.values.size - 1)], state, lr=0.6)
        moved.append((before - params.values[0]) / max(1.0, abs(before)))
    np.testing.assert_allclose(moved, [0.6, 0.6, 1 / math.sqrt(3), 0.5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@ALL
def test_a_gradient_of_nothing_moves_nothing(name: str, dtype: Any) -> None:
    params, _ = model(dtype)
    optimizer = BUILD[name](weight_decay=0.0)
    before, state = params.values.copy(), optimizer.init(params)
    for _ in range(2):
        step(optimizer, params, params.zeros(), state)
    np.testing.assert_array_equal(params.values, before)


@pytest.mark.parametrize("lr", [0.0, 1e-30])
@ALL
def test_a_rate_of_nothing_moves_nothing(name: str, lr: float) -> None:
    params, _ = model(np.float64)
    optimizer = BUILD[name]()
    before, state = params.values.copy(), optimizer.init(params)
    step(optimizer, params, model_gradient(0, params), state, lr=lr)
    np.testing.assert_allclose(params.values, before, atol=1e-25)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-18, 1e15])
@ALL
def test_tiny_and_huge_gradients_stay_finite(name: str, size: float, dtype: Any) -> None:
    params, _ = model(dtype)
    optimizer = BUILD[name]()
    state = optimizer.init(params)
    for n in range(3):
        step(optimizer, params, (size * model_gradient(n, params)).astype(dtype), state)
    assert np.isfinite(params.values).all()
    assert all(np.isfinite(array).all() for array in state.values())


@ALL
def test_only_the_decayed_entries_decay(name: str) -> None:
    params, _ = model(np.float64)
    optimizer = BUILD[name](weight_decay=0.2)
    before = params.values.copy()
    step(optimizer, params, params.zeros(), optimizer.init(params), lr=0.5)
    decayed = np.where(np.arange(before.size) < params.decayed, 0.9, 1.0)
    np.testing.assert_allclose(params.values, before * decayed)


@ALL
def test_the_gaps_between_parameters_stay_zero(name: str) -> None:
    params, places = model(np.float64)
    optimizer = BUILD[name]()
    state = optimizer.init(params)
    for n in range(3):
        step(optimizer, params, model_gradient(n, params), state)
    assert len(places) == SIZE < params.values.size
    assert not np.delete(params.values, places).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "options"), [*((n, {}) for n in BUILD), ("sgd", {"momentum": 0})])
def test_the_state_is_named_flat_arrays_that_resume_to_the_bit(
    name: str, dtype: Any, options: dict[str, float]
) -> None:
    optimizer = BUILD[name](**options)

    def run(params: Any, state: Any, steps: range) -> None:
        for n in steps:
            step(optimizer, params, model_gradient(n, params), state)

    through, _ = model(dtype)
    state = optimizer.init(through)
    run(through, state, range(6))
    for array in state.values():
        assert array.ndim == 1
    assert state["step"].dtype == np.int64
    assert state["step"].tolist() == [6]

    halted, _ = model(dtype)
    saved = optimizer.init(halted)
    run(halted, saved, range(3))
    resumed, _ = model(dtype)
    resumed.values[:] = halted.values
    run(resumed, {name: array.copy() for name, array in saved.items()}, range(3, 6))
    np.testing.assert_array_equal(resumed.values, through.values)


@ALL
def test_the_state_is_changed_in_place(name: str) -> None:
    params, _ = model(np.float64)
    optimizer = BUILD[name]()
    state = optimizer.init(params)
    values, arrays = params.values, dict(state)
    step(optimizer, params, model_gradient(0, params), state)
    assert params.values is values
    assert all(state[name] is array for name, array in arrays.items())


def test_how_much_state_each_keeps() -> None:
    params, _ = model(np.float32)
    kept = {
        name: sum(array.size for array in build().init(params).values()) - 1
        for name, build in BUILD.items()
    }
    whole = params.values.size
    matrices = {name: sum(shape) for name, shape in SHAPES.items()}
    assert kept["adamw"] == 2 * whole
    assert kept["lion"] == kept["sgd"] == whole
    assert kept["adafactor"] == sum(matrices.values())
    assert whole < kept["muon"] < 2 * whole


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
        (Lion, {"beta1": 1.0}),
        (Lion, {"beta2": -1.0}),
        (Lion, {"weight_decay": math.nan}),
        (Muon, {"momentum": 1.0}),
        (Muon, {"ns_steps": 0}),
        (Muon, {"ns_steps": 100}),
        (Muon, {"beta1": 1.5}),
        (Muon, {"beta2": 1.0}),
        (Muon, {"eps": -1e-8}),
        (Muon, {"weight_decay": -1.0}),
        (Adafactor, {"decay": 0.0}),
        (Adafactor, {"decay": 1.1}),
        (Adafactor, {"clip": 0.0}),
        (Adafactor, {"eps1": 0.0}),
        (Adafactor, {"eps2": math.inf}),
        (Adafactor, {"weight_decay": math.inf}),
        (SGD, {"momentum": 1.0}),
        (SGD, {"weight_decay": math.inf}),
    ],
)
def test_options_out_of_range_are_refused_by_name(build: Any, options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name}: "):
        build(**options)
